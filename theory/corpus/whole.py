"""Counting a whole corpus: from the cache where it was counted before, resumed where that was cut short, on a cluster."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from theory.corpus.cluster import results
from theory.corpus.counting import Counting, Progress, Request
from theory.corpus.counts import Counts
from theory.corpus.opening import SHARD, Corpus, open_corpus
from theory.corpus.reading import blocks
from theory.corpus.store import VERSION, Cache, key_of
from theory.corpus.tokenisers import (
    VOCABULARY,
    Library,
    Tokenizer,
    Words,
    check_size,
    count_words,
    tokenizer_of,
    train_bpe,
    vocabulary_size,
    word_vocabulary,
)
from theory.data.text import UNKNOWN
from theory.errors import UserError, nearest

# A count under way is kept this often (seconds), and less often where that takes more than a twentieth of the time.
CHECKPOINT = 60.0
_SHARE = 20

Told = Callable[[int, int], None] | None


def count(
    source: Any = None,
    tokenizer: Any = "word",
    *,
    vocabulary: int | None = None,
    distances: Iterable[int] = (1,),
    length: int = 32,
    past: bool = False,
    prefix_set: Iterable[str | int] = (),
    moments: bool = False,
    documents: str = "file",
    field: str = "text",
    scheduler: Any = None,
    shard: int = SHARD,
    cache: str | os.PathLike[str] | bool | None = None,
    told: Told = None,
) -> Counts:
    """Count what the signatures and moments of a corpus need, in one pass, in memory bounded by the vocabulary.

    **Arguments:**

    - `source`, `documents`, `field`: the corpus, as for `open_corpus`; by default the English text that CPython ships.
    - `tokenizer`, `vocabulary`: as for `theory.corpus.tokenizer`.
    - `distances`: k of the skip-grams (x_s, x_{s+k}); neighbours are always counted.
    - `length`: L, the positions of a window, of which `past`, `prefix_set` and `moments` are properties.
    - `past`: count the token in the past (`Counts.prefix`); `prefix_set`: the tokens, by name or number, of which
      prefix sets are counted; `moments`: count what `Counts.moments` needs.
    - `scheduler`: the address of a Dask scheduler, or a `distributed.Client`; its workers must see the same files.
      `shard`: bytes of a part.
    - `cache`: a folder, or False for none; by default what STAIRCASE_CACHE_DIR says, else the user's cache directory. A
      corpus that was counted before is read once, to see that it is the same; a count that was killed goes on from its
      last checkpoint.
    - `told`: called now and then with the tokens counted and the bytes to read.

    **Raises:** `UserError` naming file and line for text that cannot be read, and for whatever does not fit.
    """
    corpus = open_corpus(source, documents=documents, field=field)
    kept = Cache.default(cache)
    made = corpus_tokenizer(corpus, tokenizer, vocabulary, scheduler=scheduler, shard=shard, cache=cache)
    request = Request(
        distances=tuple(distances),
        length=length,
        past=past or moments,
        present=moments,
        chosen=_chosen(prefix_set, made.names),
    )
    found = _counted(corpus, made, request, kept, scheduler, shard, told)
    _check(found, corpus)
    return found


def count_ids(
    ids: np.ndarray,
    n_tokens: int,
    starts: Iterable[int] = (0,),
    *,
    names: tuple[str, ...] | None = None,
    request: Request | None = None,
) -> Counts:
    """Count token numbers that exist already, e.g. a memory-mapped file.

    **Arguments:** `ids`: (token,), integers below `n_tokens`; `starts`: where documents begin; `names`: of the tokens.
    """
    request = request or Request()
    counting = Counting(n_tokens, request)
    counting.add(ids, np.fromiter(starts, dtype=np.int64))
    names = names or tuple(str(i) for i in range(n_tokens))
    digest = hashlib.sha256(json.dumps(names).encode()).hexdigest()
    return Counts.of(counting.progress(), names, digest, request, "token numbers")


def corpus_tokenizer(
    source: Any = None,
    kind: Any = "word",
    vocabulary: int | None = None,
    *,
    scheduler: Any = None,
    shard: int = SHARD,
    cache: str | os.PathLike[str] | bool | None = None,
) -> Tokenizer:
    """The tokenizer of a corpus: loaded, or made from it ("word", "bpe") unless that was done before.

    **Arguments:**

    - `kind`: "word" (lower-cased words and marks; the corpus is read once to find the most frequent); "byte"; "bpe"
      (byte-level byte pair encoding, trained on the corpus); a file ending in .json as `tokenizers` and `transformers`
      write it (tokenizer.json); a file ending in .txt with one word in each line; a tokenizer object of `tokenizers`, or
      of `transformers` where it is backed by one.
    - `vocabulary`: V. For "word" how many words are kept, for "bpe" how many tokens are made, 1000 by default; for a file
      at least what it holds (a model's embedding may be padded).
    - the others as for `count`.

    **Raises:** `UserError` for an unknown kind, a file that is no tokenizer, or a size that does not match.
    """
    corpus = open_corpus(source)
    if not (isinstance(kind, str) and kind in ("word", "bpe")):
        return tokenizer_of(kind, vocabulary)
    kept = Cache.default(cache)
    size = vocabulary_size(VOCABULARY if vocabulary is None else vocabulary)
    key = ""
    if kept.folder is not None:
        key = hashlib.sha256(json.dumps(["tokenizer", VERSION, kind, size, corpus.digest]).encode()).hexdigest()
    found = kept.text(key)
    if found is not None:
        content = json.loads(found)
        return Words(tuple(content)) if kind == "word" else Library(*content)
    if kind == "bpe":
        trained = train_bpe(corpus, size)
        kept.keep_text(key, json.dumps([trained.content, trained.title, trained.size]))
        return trained
    if scheduler is None:
        counts = count_words(corpus)
    else:
        counts: Counter[str] = Counter()
        for part in results(count_words, corpus.shards(shard), (), scheduler):
            counts.update(part)
            check_size(counts, corpus)
    words = word_vocabulary(counts, size, corpus)
    kept.keep_text(key, json.dumps(words))
    return Words(words)


def _counted(
    corpus: Corpus, made: Tokenizer, request: Request, kept: Cache, scheduler: Any, shard: int, told: Told
) -> Counts:
    def counts(progress: Progress) -> Counts:
        return Counts.of(progress, made.names, made.digest, request, corpus.name)

    key = "" if kept.folder is None else key_of(corpus.digest, made.digest, request)
    before = kept.progress(key)
    if before is not None:
        return counts(before[0])
    if scheduler is None:
        found = counts(_read(corpus, made, request, kept, f"{key}.partial", told))
    else:
        parts = results(_read_part, corpus.shards(shard), (made, request), scheduler)
        found = functools.reduce(Counts.__add__, map(counts, parts))
    kept.keep_progress(key, found.progress)
    kept.forget(f"{key}.partial")
    return found


def _read(corpus: Corpus, made: Tokenizer, request: Request, kept: Cache, key: str, told: Told) -> Progress:
    """Count on this machine, from the last checkpoint on."""
    begun, start = kept.progress(key) or (None, None)
    counting = Counting(len(made.names), request, begun)
    last, pause = time.monotonic(), CHECKPOINT
    for block in blocks(corpus, made, start):
        counting.add(block.ids, block.starts)
        if told is not None:
            told(counting.tokens, corpus.size)
        begun_at = time.monotonic()
        if kept.folder is not None and begun_at - last > pause:
            kept.keep_progress(key, counting.progress(), block.after)
            last = time.monotonic()
            pause = max(CHECKPOINT, _SHARE * (last - begun_at)) if CHECKPOINT else 0.0
    return counting.progress()


def _read_part(part: Corpus, made: Tokenizer, request: Request) -> Progress:
    """What a worker of a cluster does."""
    return _read(part, made, request, Cache(None), "", None)


def _chosen(wanted: Iterable[str | int], names: tuple[str, ...]) -> tuple[int, ...]:
    """Token numbers of names or numbers."""
    if isinstance(wanted, str):
        raise UserError(f"prefix_set= must be a list of names or numbers, found {wanted!r}")
    index = {name: i for i, name in enumerate(names)}
    found = []
    for token in wanted:
        if isinstance(token, str) and token not in index:
            raise UserError(f"the vocabulary has no token {token!r}; {nearest(token, names)}")
        number = index[token] if isinstance(token, str) else int(token)
        if not 0 <= number < len(names):
            raise UserError(
                f"token number {number} does not match the vocabulary, whose numbers are 0 … {len(names) - 1}"
            )
        found.append(number)
    return tuple(sorted(set(found)))


def _check(found: Counts, corpus: Corpus) -> None:
    """Refuse counts that say nothing. **Raises:** `UserError`."""
    neighbours = found.tables["distance 1"]
    if not neighbours.nnz:
        what = "no text" if not found.tokens else "no document with two tokens"
        raise UserError(f"corpus {corpus.name!r} holds {what}")
    unknown = found.names.index(UNKNOWN) if UNKNOWN in found.names else -1
    if len(found.names) > 1 and neighbours.nnz == 1 and neighbours[unknown, unknown]:
        raise UserError(f"the vocabulary does not match corpus {corpus.name!r}: every word of it is {UNKNOWN}")
