"""Windows of a corpus as a data set: what a model is trained on, where the corpus fits in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from theory.corpus.opening import open_corpus
from theory.corpus.reading import blocks
from theory.corpus.whole import corpus_tokenizer
from theory.data import options
from theory.data.dataset import Dataset
from theory.errors import UserError, argument


def windows(
    source: Any = None,
    tokenizer: Any = "word",
    *,
    vocabulary: int | None = None,
    length: int = 32,
    stride: int | None = None,
    documents: str = "file",
    field: str = "text",
    **of_tokenizer: Any,
) -> Dataset:
    """Next-token windows of a corpus: the label of position s is the token at s + 1.

    The windows are those whose positions `theory.corpus.count` counts, but for the last of each document where it is
    shorter than L: a data set has rows of one length.

    **Arguments:** `source`, `tokenizer`, `vocabulary`, `documents`, `field`: as for `count`; `length`: L; `stride`: tokens
    from one window to the next in its document, default L (every token is a label once); `of_tokenizer`: further options
    of `theory.corpus.tokenizer`.

    **Returns:** a `Dataset` with one label per position, tokens and labels sharing one vocabulary.

    **Raises:** `UserError` when no document is long enough, or the windows would not fit in memory.
    """
    corpus = open_corpus(source, documents=documents, field=field)
    for name, value in (("length", length), ("stride", stride)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1):
            raise UserError(f"{argument(name)} must be an integer ≥ 1, found {value!r}")
    step = length if stride is None else stride
    made = corpus_tokenizer(corpus, tokenizer, vocabulary, **of_tokenizer)
    found: list[np.ndarray] = []
    entries = 0
    # What comes before the next window's start, and what is there of that window.
    ahead, rest = 0, np.empty(0, dtype=np.int32)
    for block in blocks(corpus, made):
        edges = [0, *block.starts, len(block.ids)]
        for number in range(len(edges) - 1):
            # All but the first stretch begin a document; what a document leaves over is no window.
            stretch = block.ids[edges[number] : edges[number + 1]]
            if number:
                ahead = 0
            else:
                stretch = np.concatenate([rest, stretch])[ahead:]
                ahead = max(0, ahead - len(block.ids[: edges[1]]))
            n_windows = max(0, (len(stretch) - 1 - length) // step + 1)
            if n_windows:
                found.append(np.lib.stride_tricks.sliding_window_view(stretch, length + 1)[::step].copy())
                entries += n_windows * length
            rest = stretch[n_windows * step :]
            ahead += max(0, n_windows * step - len(stretch))
        if entries > options.ENTRY_LIMIT:
            raise UserError(
                f"windows of corpus {corpus.name!r} with more than {options.ENTRY_LIMIT:,} tokens do not fit in memory; "
                f"take a larger {argument('stride')}, or a part of the corpus"
            )
    if not found:
        raise UserError(
            f"no document of corpus {corpus.name!r} holds the {length + 1} tokens of one window and its label"
        )
    rows = np.concatenate(found)
    return Dataset(
        rows[:, :-1],
        rows[:, 1:],
        n_tokens=len(made.names),
        n_labels=len(made.names),
        token_names=made.names,
        label_names=made.names,
        name=f"corpus {corpus.name}",
        provenance={
            "corpus": corpus.name,
            "sha256": corpus.digest,
            "tokenizer": made.digest,
            "length": length,
            "stride": step,
        },
    )
