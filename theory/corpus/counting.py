"""Counting a stream of token numbers: pairs at a distance, the past of a window, prefixes as sets.

Tokens come in blocks of any size; documents are kept apart: no pair reaches across a boundary. A document is cut into
windows of L positions, the last of them shorter; position s = 1 … L of a window holds x_s and has the label x_{s+1}, which
for s = L is the first token of the next window. So each pair of neighbours is counted exactly once, and what a position
sees is the tokens x_1 … x_s of its own window, as in the training of a model with context length L.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from theory.corpus.pairs import HIGH, LOW, MOST_TOKENS, PARTS, PairCount, Table, WeightedCount
from theory.errors import UserError, argument

# Blocks are looked at in stretches of this many tokens, which bounds what is made besides the counts.
_STRETCH = 1 << 18
# Rows of the prefix-set table: chosen tokens × V.
_MOST_ROWS = 1 << 24
LONGEST = 1 << 15


@dataclasses.dataclass(frozen=True)
class Request:
    """What to count.

    - `distances`: k of the pairs (x_s, x_{s+k}); 1, the neighbours, is always among them.
    - `length`: L of the windows.
    - `past`: pairs (x_i, x_{s+1}) for i ≤ s in the window, as often as they occur and weighted by 1/s.
    - `present`: pairs (x_s, x_i) for i ≤ s in the window, weighted by 1/s: what M of the moments needs.
    - `chosen`: token numbers α of which triples (α = x_s, x_{s+1}, β ∈ {x_1 … x_{s−1}}) are counted.
    """

    distances: tuple[int, ...] = (1,)
    length: int = 32
    past: bool = False
    present: bool = False
    chosen: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for distance in self.distances:
            if not _whole(distance) or not 1 <= distance <= LONGEST:
                raise UserError(f"a distance must be an integer in 1 … {LONGEST}, found {distance!r}")
        if not _whole(self.length) or not 1 <= self.length <= LONGEST:
            raise UserError(f"{argument('length')} must be an integer in 1 … {LONGEST}, found {self.length!r}")
        object.__setattr__(self, "distances", tuple(sorted({1, *(int(k) for k in self.distances)})))
        object.__setattr__(self, "chosen", tuple(int(token) for token in self.chosen))

    @property
    def windowed(self) -> bool:
        """Whether anything depends on the windows."""
        return self.past or self.present or bool(self.chosen)

    @property
    def memory(self) -> int:
        """How many tokens back a new one is paired with."""
        return max(*self.distances, self.length if self.windowed else 1)


@dataclasses.dataclass(frozen=True)
class Tail:
    """The last tokens of the document that is being read: what a block yet to come is paired with."""

    tokens: np.ndarray
    position: int  # of the first of them in its document, counted from 0


class Counting:
    """Counts of a stream of blocks, from which it can be left and taken up again.

    **Arguments:** `n_tokens`: V; `request`: what to count; `begun`: the `progress` of an earlier one.
    """

    def __init__(self, n_tokens: int, request: Request, begun: Progress | None = None) -> None:
        begun = begun or Progress()
        self._v = n_tokens
        self._request = request
        self._tail = begun.tail
        self.tokens, self.documents = begun.tokens, begun.documents
        self._positions = (
            np.zeros(request.length, dtype=np.int64) if begun.positions is None else begun.positions.copy()
        )
        tables = begun.tables
        self._distant = {k: PairCount(n_tokens, n_tokens, tables.get(f"distance {k}")) for k in request.distances}
        self._weighted = {
            name: WeightedCount(n_tokens, n_tokens, request.length, parts, _parts_of(tables, name))
            for name, parts, wanted in (("past", PARTS, request.past), ("present", (HIGH, LOW), request.present))
            if wanted
        }
        rows = len(request.chosen) * n_tokens
        if rows > _MOST_ROWS:
            raise UserError(
                f"prefix sets of {len(request.chosen):,} tokens in a vocabulary of {n_tokens:,} are too many; choose at most "
                f"{_MOST_ROWS // n_tokens:,} tokens"
            )
        self._set = PairCount(rows, n_tokens, tables.get("prefix set")) if rows else None
        self._row_of = np.full(n_tokens, -1, dtype=np.int32)
        self._row_of[list(request.chosen)] = np.arange(len(request.chosen))

    def add(self, ids: np.ndarray, starts: Sequence[int] | np.ndarray = ()) -> None:
        """Count a block of tokens.

        **Arguments:** `ids`: token numbers (token,), of any integer type; `starts`: places in it at which a document
        begins, ascending; tokens before the first belong to the document of the block before.

        **Raises:** `UserError` for a number outside the vocabulary.
        """
        ids = np.asarray(ids)
        starts = np.asarray(starts, dtype=np.int64)
        self.documents += len(starts)
        self.tokens += len(ids)
        if self.tokens > MOST_TOKENS:
            raise UserError(f"a corpus of more than {MOST_TOKENS:,} tokens has to be counted in parts")
        stretch = max(_STRETCH, 4 * self._request.memory)
        for at in range(0, len(ids), stretch):
            part = ids[at : at + stretch]
            if part.min() < 0 or part.max() >= self._v:
                wrong = part[(part < 0) | (part >= self._v)][0]
                raise UserError(
                    f"token number {wrong} does not match the vocabulary, whose numbers are 0 … {self._v - 1}"
                )
            inside = starts[(starts >= at) & (starts < at + len(part))] - at
            self._stretch(part.astype(np.int32, copy=False), inside)
        if len(starts) and starts[-1] >= len(ids):
            # A document has begun of which no token was seen yet.
            self._tail = Tail(np.empty(0, np.int32), 0)

    def _stretch(self, new: np.ndarray, starts: np.ndarray) -> None:
        """Count what ends in `new`; `starts`: where documents begin in it."""
        old = self._tail
        ids = np.concatenate([old.tokens, new]) if len(old.tokens) else new
        known = len(old.tokens)
        starts = starts + known
        for k, count in self._distant.items():
            first = max(known, k)
            if first >= len(ids):
                continue
            count.add(ids[first - k : len(ids) - k], ids[first:])
            wrong = _within(starts, k, first, len(ids))
            count.remove(ids[wrong - k], ids[wrong])
        if self._request.windowed:
            position = _positions(len(ids), starts, old.position)
            labelled = position[max(known, 1) :] - 1
            labelled = labelled[labelled >= 0] % self._request.length
            self._positions += np.bincount(labelled, minlength=self._request.length)
            if len(ids) > 1:
                self._windows(ids, position, max(known, 1))
        last, before = (int(starts[-1]), 0) if len(starts) else (0, old.position)
        begin = max(len(ids) - self._request.memory, last)
        self._tail = Tail(ids[begin:].copy(), begin - last + before)

    def _windows(self, ids: np.ndarray, position: np.ndarray, first: int) -> None:
        """Count, for every label from place `first` on, what its window holds before it."""
        request, length = self._request, self._request.length
        labels = np.arange(first, len(ids))
        labels = labels[position[first:] > 0]
        at = labels - 1
        s = (position[at] % length).astype(np.int32)
        if self._set is not None:
            unrepeated = _first_in_window(ids, position, length)
            rows = self._row_of[ids[at]]
        for back in range(length):
            far = s >= back
            if not far.all():
                labels, at, s = labels[far], at[far], s[far]
                if self._set is not None:
                    rows = rows[far]  # pyright: ignore[reportPossiblyUnboundVariable]
            if not len(at):
                break
            seen = ids[at - back]
            if request.past:
                self._weighted["past"].add(seen, ids[labels], s + 1)
            if request.present:
                self._weighted["present"].add(ids[at], seen, s + 1)
            if self._set is not None and back:
                used = (rows >= 0) & unrepeated[at - back]  # pyright: ignore[reportPossiblyUnboundVariable]
                self._set.add(rows[used] * np.int32(self._v) + ids[labels[used]], seen[used])  # pyright: ignore

    def progress(self) -> Progress:
        """All that was counted so far, to be gone on from."""
        tables = {f"distance {k}": count.total() for k, count in self._distant.items()}
        for name, count in self._weighted.items():
            tables |= {f"{name} {part}": table for part, table in count.total().items()}
        if self._set is not None:
            tables["prefix set"] = self._set.total()
        return Progress(tables, self._positions.copy(), self.tokens, self.documents, self._tail)


@dataclasses.dataclass(frozen=True)
class Progress:
    """What a `Counting` has found: `tables` by name, `positions`: how many labels stand at s = 1 … L where that was
    asked for (else 0), and its tail."""

    tables: dict[str, Table] = dataclasses.field(default_factory=dict)
    positions: np.ndarray | None = None
    tokens: int = 0
    documents: int = 0
    tail: Tail = dataclasses.field(default_factory=lambda: Tail(np.empty(0, np.int32), 0))


def _parts_of(tables: dict[str, Table], name: str) -> dict[str, Table]:
    return {key.removeprefix(f"{name} "): table for key, table in tables.items() if key.startswith(f"{name} ")}


def _within(starts: np.ndarray, k: int, first: int, end: int) -> np.ndarray:
    """Places fewer than k behind a document's start, from `first` on: their partner is in the document before."""
    if not len(starts):
        return starts
    # Documents shorter than k: up to the next start, so that no place comes twice.
    until = np.minimum(np.append(starts[1:], end), starts + k)
    lengths = until - starts
    places = np.repeat(starts - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return places[places >= first]


def _positions(size: int, starts: np.ndarray, before: int) -> np.ndarray:
    """Each token's position in its document, counted from 0; the first document has gone on since `before`."""
    begins = np.full(size, -before)
    begins[starts] = starts
    return np.arange(size) - np.maximum.accumulate(begins)


def _first_in_window(ids: np.ndarray, position: np.ndarray, length: int) -> np.ndarray:
    """Whether a token occurs for the first time in its window."""
    window = np.cumsum(position % length == 0)
    order = np.lexsort((ids, window))
    again = (np.diff(ids[order]) == 0) & (np.diff(window[order]) == 0)
    first = np.ones(len(ids), dtype=bool)
    first[order[1:]] = ~again
    return first


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
