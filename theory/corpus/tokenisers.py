"""Text to token numbers: words, bytes, or any tokenizer of Hugging Face's `tokenizers`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from theory.corpus.opening import Corpus
from theory.data.reading import read_text
from theory.data.text import UNKNOWN, most_frequent, words
from theory.errors import UserError, argument, nearest

KINDS = ("word", "byte", "bpe")
VOCABULARY = 1000
# More different words than this are not counted: memory would follow the corpus (here about 1 GB of usual words).
MOST_WORDS = 10_000_000
# The largest vocabulary: pairs of tokens are numbered in 63 bits, and tokens in 31.
LARGEST = 1 << 24


_GIANT = re.compile(r"([^\W\d_]{256})[^\W\d_]+|(\d{256})\d+|([^\w\s]{256})[^\w\s]+")


class Tokenizer(Protocol):
    """What turns text into tokens.

    `title`: how messages call it; `names`: the tokens by number, all different; `digest`: equal only for tokenizers that
    give the same numbers; `encode`: one array of token numbers (int32) for each text.
    """

    @property
    def title(self) -> str: ...
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def digest(self) -> str: ...
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]: ...


@dataclasses.dataclass(frozen=True)
class Words:
    """Lower-cased words, numbers and marks (`theory.data.text.words`); those not in the vocabulary are `<unk>`."""

    names: tuple[str, ...]

    @property
    def title(self) -> str:
        return f"word ({len(self.names)} words)"

    @property
    def digest(self) -> str:
        return _digest("word 1", self.names)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token numbers. **Raises:** `UserError` for a word that is neither in the vocabulary nor `<unk>`."""
        index, unknown = self._index, self._index.get(UNKNOWN)
        if unknown is not None:
            return [np.array([index.get(word, unknown) for word in words(text)], dtype=np.int32) for text in texts]
        try:
            return [np.array([index[word] for word in words(text)], dtype=np.int32) for text in texts]
        except KeyError as error:
            raise UserError(
                f"the word {error.args[0]!r} is not among the {len(self.names)} of the vocabulary, which has no "
                f"{UNKNOWN} for others"
            ) from None


@dataclasses.dataclass(frozen=True)
class Bytes:
    """The bytes of the UTF-8 text: 256 tokens, named by their ASCII character or as <0xE2>."""

    @property
    def title(self) -> str:
        return "byte"

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(chr(i) if 32 < i < 127 else f"<0x{i:02X}>" for i in range(256))

    @property
    def digest(self) -> str:
        return _digest("byte 1", ())

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token numbers."""
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32) for text in texts]


@dataclasses.dataclass(frozen=True)
class Library:
    """A tokenizer of Hugging Face's `tokenizers`.

    **Arguments:** `content`: its JSON; `title`: how messages call it; `size`: V, at least the tokenizer's own; the numbers
    that it never uses are named <unused 5>, as the padded rows of a model's embedding are.
    """

    content: str
    title: str
    size: int

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizer = _library().Tokenizer.from_str(self.content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    @cached_property
    def _names(self) -> tuple[str, ...]:
        numbered = {number: name for name, number in self._tokenizer.get_vocab(with_added_tokens=True).items()}
        return tuple(numbered.get(i, f"<unused {i}>") for i in range(self.size))

    @property
    def digest(self) -> str:
        return _digest(f"tokenizers {self.size}", (self.content,))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token numbers; no special tokens are added."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(each.ids, dtype=np.int32) for each in found]


def tokenizer_of(kind: Any, vocabulary: int | None = None) -> Tokenizer:
    """Load a tokenizer that is not made from a corpus; arguments and errors as for `theory.corpus.tokenizer`."""
    if isinstance(kind, Words | Bytes | Library):
        return _fitting(kind, vocabulary)
    if isinstance(kind, str) and kind == "byte":
        return _fitting(Bytes(), vocabulary)
    if isinstance(kind, str | os.PathLike):
        path = Path(kind)
        if path.suffix.lower() == ".txt":
            return _fitting(Words(_words_of(path)), vocabulary)
        if path.suffix.lower() == ".json":
            return _of_library(read_text(path), str(path), vocabulary)
        raise UserError(
            f"there is no tokenizer {str(kind)!r}; {nearest(str(kind), KINDS)} (files end in .json, or .txt for words)"
        )
    backend = getattr(kind, "backend_tokenizer", kind)
    if not hasattr(backend, "to_str") or not hasattr(backend, "get_vocab"):
        raise UserError(f"a tokenizer is {', '.join(KINDS)}, a file or an object of tokenizers, found {kind!r:.60}")
    return _of_library(backend.to_str(), "the given tokenizer", vocabulary)


def count_words(corpus: Corpus) -> Counter[str]:
    """How often each word of a corpus occurs. Counters of parts add up to that of the whole.

    **Raises:** `UserError` when the different words would not fit in memory.
    """
    counts: Counter[str] = Counter()
    for text in corpus.texts():
        counts.update(words(text))
        check_size(counts, corpus)
    return counts


def check_size(counts: Counter[str], corpus: Corpus) -> None:
    """Refuse more different words than fit in memory. **Raises:** `UserError`."""
    if len(counts) > MOST_WORDS:
        raise UserError(
            f"corpus {corpus.name!r} holds more than {MOST_WORDS:,} different words, too many to count in memory; "
            f"use {argument('tokenizer', 'byte')} or a tokenizer's file"
        )


def word_vocabulary(counts: Counter[str], size: int, corpus: Corpus) -> tuple[str, ...]:
    """The most frequent words, and `<unk>` where that drops some. **Raises:** `UserError` where there are none."""
    if not counts:
        raise UserError(f"corpus {corpus.name!r} holds no word")
    return most_frequent(counts, size)


def train_bpe(corpus: Corpus, size: int) -> Library:
    """Byte-level byte pair encoding trained on a corpus. **Raises:** `UserError` for a size below 256.

    Of letters, digits or marks that go on without a break, the first 256 are learned from: they are no word, and every
    merge would go through all of them.
    """
    library = _library()
    if size < 256:
        raise UserError(f"byte pair encoding begins with 256 bytes, so its vocabulary cannot be {size}")
    from tokenizers import decoders, models, pre_tokenizers, trainers

    trained = library.Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
    )
    trained.train_from_iterator((_GIANT.sub(r"\1\2\3", text) for text in corpus.texts()), trainer)
    return Library(trained.to_str(), f"bpe trained on {corpus.name}", trained.get_vocab_size())


def _of_library(content: str, title: str, vocabulary: int | None) -> Library:
    library = _library()
    try:
        loaded = library.Tokenizer.from_str(content)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{title!r} is no tokenizer of tokenizers: {' '.join(str(error).split())}") from None
    numbers = loaded.get_vocab(with_added_tokens=True).values()
    if not numbers:
        raise UserError(f"{title!r} is a tokenizer without a vocabulary")
    # Written anew, so that the layout of a file does not make another tokenizer of it.
    return _fitting(Library(loaded.to_str(), title, max(numbers) + 1), vocabulary)  # type: ignore[return-value]


def _fitting(found: Words | Bytes | Library, vocabulary: int | None) -> Tokenizer:
    """The tokenizer, padded to `vocabulary` where it may be."""
    own = len(found.names)
    if vocabulary is None or vocabulary == own:
        return found
    if isinstance(found, Library) and own < vocabulary_size(vocabulary):
        return dataclasses.replace(found, size=vocabulary)
    raise UserError(
        f"a vocabulary of {vocabulary!r} does not match tokenizer {found.title!r}, which has {own} tokens; "
        f"leave {argument('vocabulary')} out"
    )


def _words_of(path: Path) -> tuple[str, ...]:
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        word = line.strip()
        if not word:
            continue
        if word in found:
            raise UserError(f"{path}, line {number}: {word!r} stands in line {found[word]} already")
        found[word] = number
    return tuple(found)


def vocabulary_size(vocabulary: Any) -> int:
    """V as an integer. **Raises:** `UserError` for anything that cannot be one."""
    whole = isinstance(vocabulary, int | np.integer) and not isinstance(vocabulary, bool)
    if not whole or not 1 <= vocabulary <= LARGEST:
        raise UserError(f"{argument('vocabulary')} must be an integer in 1 … {LARGEST:,}, found {vocabulary!r}")
    return int(vocabulary)


def _digest(kind: str, parts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps([kind, *parts]).encode()).hexdigest()


def _library() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError(
            f"this tokenizer needs the package tokenizers: pip install tokenizers; "
            f"{argument('tokenizer', 'word')} does without"
        ) from None
    return tokenizers
