"""Next-token prediction on a text: words and punctuation, windows of fixed length."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from theory.data import options
from theory.data.dataset import Dataset
from theory.data.reading import read_text
from theory.data.shipped import python_version, shipped_topics
from theory.errors import UserError

UNKNOWN = "<unk>"
# A word (apostrophes inside), a number, or a run of one mark: rules and underlines count once. What is longer than any word,
# such as encoded data, is cut, so that a vocabulary's memory does not follow it.
_TOKEN = re.compile(r"([^\W\d_]{1,256}(?:['’][^\W\d_]{1,256}){0,8}|\d{1,256})|([^\w\s]|_)\2*")


def words(text: str) -> list[str]:
    """Lower-cased words, numbers and punctuation marks in order; a run of one mark counts once."""
    return [word or mark for word, mark in _TOKEN.findall(text.lower())]


def text(
    path: str | None = None,
    vocabulary: int = 1000,
    length: int = 32,
    stride: int | None = None,
) -> Dataset:
    """Next-token windows over a UTF-8 text: the label of position s is the token at s + 1.

    **Arguments:** `path`: a text file, default: the English text that CPython itself ships
    (`pydoc_data.topics`); `vocabulary`: how many of the most frequent words are kept (ties by
    letters), all others become `<unk>`; `length`: L ≥ 1; `stride`: tokens from one window to the
    next, default L (windows that do not overlap).

    **Returns:** a `Dataset` with one label per position and V_out = V_in = the words kept, plus
    one for `<unk>` where words were dropped. Tokens are ordered by frequency, `<unk>` last. The
    text's sha256 stands in the provenance.

    **Raises:** `UserError` for a file that is missing, empty, not UTF-8 (naming byte offset and
    line) or holds fewer than L + 1 tokens, and for an option out of range.
    """
    size = options.integer("text", "vocabulary", vocabulary, 1)
    window = options.integer("text", "length", length, 1)
    step = window if stride is None else options.integer("text", "stride", stride, 1)
    if path is not None and not isinstance(path, str | Path):
        raise UserError(f"option path of task text must be a file name, found {path!r}")
    content, source = _shipped_text() if path is None else (read_text(path), {"path": str(path)})
    stream = words(content)
    if len(stream) < window + 1:
        raise UserError(
            f"{source['path']!r} holds {len(stream)} tokens, but one window of length {window} "
            f"and its last label need {window + 1}"
        )
    n_windows = (len(stream) - window - 1) // step + 1
    if n_windows * window > options.ENTRY_LIMIT:
        raise UserError(
            f"{n_windows:,} windows of length {window} would not fit in memory; take a larger stride than {step}"
        )
    names = most_frequent(Counter(stream), size)
    index = {name: i for i, name in enumerate(names)}
    unknown = index.get(UNKNOWN, -1)
    ids = np.array([index.get(word, unknown) for word in stream], dtype=np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(ids, window + 1)[::step]
    return Dataset(
        tokens=windows[:, :-1],
        labels=windows[:, 1:],
        n_tokens=len(names),
        n_labels=len(names),
        token_names=names,
        label_names=names,
        name=f"text {Path(source['path']).name}",
        exact=False,
        provenance={
            "task": "text", **source, "sha256": hashlib.sha256(content.encode()).hexdigest(),
            "vocabulary": size, "length": window, "stride": step, "n_words": len(stream),
        },
    )  # fmt: skip


def most_frequent(counts: Mapping[str, int], size: int) -> tuple[str, ...]:
    """The `size` most frequent words (ties by letters), followed by `<unk>` where that drops some."""
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return tuple(ranked) if len(ranked) <= size else (*ranked[:size], UNKNOWN)


def _shipped_text() -> tuple[str, dict[str, Any]]:
    return "\n".join(shipped_topics().values()), {"path": "pydoc_data.topics", "python": python_version()}
