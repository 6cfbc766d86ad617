"""Counts of pairs of tokens: exact integers, the same in whichever order and grouping they are added.

A table is a sparse matrix of int64, in canonical form (columns sorted, no zeros), so that equal tables are equal arrays.
Memory follows the number of different pairs, at most V², not the number of pairs counted.

Pairs weighted by 1/s are counted exactly too. The weight is the integer nearest to 2^60/s, whose relative error s·2^-61 is
that of a floating-point number, kept as two numbers of 30 bits that are added up apart (`HIGH`, `LOW`). What is added is an
integer, so that no sum is ever rounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse

# Pairs counted at a time: two sorts by counting, while the pairs are few enough to stay near the processor.
_BLOCK = 1 << 22
# Up to this many cells a table is kept dense while a long corpus is counted (V = 5,792: 256 MiB).
DENSE_CELLS = 1 << 25
# Keys of the dense table are made for this many pairs at a time, which the second-level cache holds.
_STEP = 1 << 16
BITS = 30
COUNT, HIGH, LOW = "count", "high", "low"
PARTS = (COUNT, HIGH, LOW)
# No sum overflows 63 bits below this number of tokens.
MOST_TOKENS = 1 << 33

Table = scipy.sparse.csr_array


def weight_of(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The integer nearest to 2^60/s as (high, low), 30 bits each (but for s = 1, where high is 2^30)."""
    whole = ((1 << 2 * BITS) + s.astype(np.int64) // 2) // s
    return whole >> BITS, whole & ((1 << BITS) - 1)


def carried(high: Table, low: Table) -> tuple[Table, Table]:
    """The same sums with every low part below 2^30: one form for one number."""
    data: Any = low.data
    parts = low.indices, low.indptr
    over = Table((data >> BITS, *parts), shape=low.shape)
    low = Table((data & ((1 << BITS) - 1), *parts), shape=low.shape)
    return canonical(high + over), canonical(low.copy())


def canonical(table: Table) -> Table:
    """Sorted, without zeros."""
    table.sum_duplicates()
    table.eliminate_zeros()
    return table


def empty(rows: int, columns: int) -> Table:
    """A table without pairs."""
    return Table((rows, columns), dtype=np.int64)


def same(one: Table, other: Table) -> bool:
    """Whether two canonical tables hold the same numbers, to the bit."""
    return one.shape == other.shape and all(
        np.array_equal(getattr(one, part), getattr(other, part)) for part in ("indptr", "indices", "data")
    )


class _Stack:
    """A sum of tables, added in pairs of like size: each entry takes part in logarithmically many sums."""

    def __init__(self, rows: int, columns: int) -> None:
        self._shape = rows, columns
        self._tables: list[Table] = []

    def add(self, table: Table) -> None:
        self._tables.append(table)
        while len(self._tables) > 1 and self._tables[-2].nnz <= 1.25 * self._tables[-1].nnz:
            last = self._tables.pop()
            self._tables[-1] = self._tables[-1] + last

    def total(self) -> Table:
        while len(self._tables) > 1:
            last = self._tables.pop()
            self._tables[-1] = self._tables[-1] + last
        return self._tables[0] if self._tables else empty(*self._shape)


class PairCount:
    """How often each pair (row, column) occurs.

    **Arguments:** `rows`, `columns`: sizes; `begun`: counts to go on from.
    """

    def __init__(self, rows: int, columns: int, begun: Table | None = None) -> None:
        self._shape = rows, columns
        self._stack = _Stack(rows, columns)
        if begun is not None:
            self._stack.add(begun)
        self._dense: np.ndarray | None = None
        self._row, self._column = _buffers(2)
        self._filled = 0
        self._seen = 0

    def add(self, row: np.ndarray, column: np.ndarray) -> None:
        """Count pairs: two int32 arrays of one length."""
        self._seen += len(row)
        at = 0
        while self._dense is None and at < len(row):
            taken = min(len(row) - at, len(self._row) - self._filled)
            here = slice(self._filled, self._filled + taken)
            self._row[here], self._column[here] = row[at : at + taken], column[at : at + taken]
            self._filled += taken
            at += taken
            if self._filled == len(self._row):
                # From here on a dense table, if it may be: few pairs would leave most of it empty.
                if self._shape[0] * self._shape[1] <= DENSE_CELLS:
                    self._dense = np.zeros(self._shape[0] * self._shape[1], dtype=np.int64)
                    _scatter(self._dense, self._shape[1], self._row, self._column, 1)
                    self._filled = 0
                else:
                    self._flush()
        if self._dense is not None:
            _scatter(self._dense, self._shape[1], row[at:], column[at:], 1)

    def remove(self, row: np.ndarray, column: np.ndarray) -> None:
        """Take back a few pairs that were counted."""
        if not len(row):
            return
        if self._dense is not None:
            _scatter(self._dense, self._shape[1], row, column, -1)
        else:
            pairs = np.full(len(row), -1, dtype=self._integer), (row, column)
            self._stack.add(Table(scipy.sparse.coo_array(pairs, shape=self._shape)))

    def total(self) -> Table:
        """The counts so far."""
        self._flush()
        found = self._stack.total()
        if self._dense is not None:
            found = found + _sparse(self._dense, *self._shape)
        return canonical(Table(found, dtype=np.int64))

    @property
    def _integer(self) -> type[np.signedinteger]:
        """Small numbers are quicker to add, as long as no sum of them can reach 2^31."""
        return np.int32 if self._seen < 1 << 31 else np.int64

    def _flush(self) -> None:
        if self._filled:
            pointer, indices, _ = _sorted(self._row[: self._filled], self._column[: self._filled], self._shape, None)
            starts, pointer = _runs(pointer, indices)
            counts = np.diff(starts, append=len(indices)).astype(self._integer)
            self._stack.add(Table((counts, indices[starts], pointer), shape=self._shape))
            self._filled = 0


class WeightedCount:
    """The sum of weights 1/s of each pair (row, column), and how often it occurs.

    **Arguments:** as for `PairCount`; `longest`: the largest s; `parts`: which of `PARTS` are wanted; `begun`: tables by
    part.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        longest: int,
        parts: tuple[str, ...] = PARTS,
        begun: dict[str, Table] | None = None,
    ) -> None:
        self._shape = rows, columns
        self._stacks = {part: _Stack(rows, columns) for part in parts}
        for part, table in (begun or {}).items():
            self._stacks[part].add(table)
        self._weights = weight_of(np.arange(1, longest + 1))
        self._row, self._column, self._place = _buffers(3)
        self._filled = 0

    def add(self, row: np.ndarray, column: np.ndarray, s: np.ndarray) -> None:
        """Count pairs: three int32 arrays of one length; s = 1, 2, …."""
        at = 0
        while at < len(row):
            taken = min(len(row) - at, len(self._row) - self._filled)
            here, there = slice(self._filled, self._filled + taken), slice(at, at + taken)
            self._row[here], self._column[here], self._place[here] = row[there], column[there], s[there]
            self._filled += taken
            at += taken
            if self._filled == len(self._row):
                self._flush()

    def total(self) -> dict[str, Table]:
        """The tables so far, by part."""
        self._flush()
        found = {part: canonical(stack.total()) for part, stack in self._stacks.items()}
        found[HIGH], found[LOW] = carried(found[HIGH], found[LOW])
        return found

    def _flush(self) -> None:
        if not self._filled:
            return
        row, column, s = (each[: self._filled] for each in (self._row, self._column, self._place))
        pointer, indices, places = _sorted(row, column, self._shape, s)
        starts, pointer = _runs(pointer, indices)
        high, low = (np.add.reduceat(weight[places - 1], starts) for weight in self._weights)
        counts = np.diff(starts, append=len(indices)).astype(np.int64)
        made = {
            part: Table((data, indices[starts], pointer), shape=self._shape)
            for part, data in zip(PARTS, (counts, high, low), strict=True)
        }
        # Carried at once, so that thousands of blocks can be added before a low part could overflow.
        made[HIGH], made[LOW] = carried(made[HIGH], made[LOW])
        for part, stack in self._stacks.items():
            stack.add(made[part])
        self._filled = 0


def _buffers(number: int) -> tuple[np.ndarray, ...]:
    return tuple(np.empty(_BLOCK, dtype=np.int32) for _ in range(number))


def _sorted(
    row: np.ndarray, column: np.ndarray, shape: tuple[int, int], data: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, Any]:
    """Pairs in order of row and column, repeated ones kept: (row pointer, columns, data).

    Two sorts by counting, first by column, then by row, each in linear time; scipy makes them when it changes the order
    of a sparse matrix, while its own way from pairs to rows compares entries of a row with each other.
    """
    if data is None:
        data = np.ones(len(row), dtype=np.int8)
    by_column = scipy.sparse.coo_array((data, (column, row)), shape=(shape[1], shape[0]))
    # Otherwise repeated pairs would be added up, after sorting each row by comparisons.
    by_column.has_canonical_format = True
    by_row = by_column.tocsr().tocsc()
    return by_row.indptr, by_row.indices, by_row.data


def _runs(pointer: np.ndarray, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each distinct pair begins among sorted ones, and the row pointer that counts distinct pairs."""
    new = np.empty(len(indices) + 1, dtype=bool)
    np.not_equal(indices[1:], indices[:-1], out=new[1:-1])
    new[0] = new[-1] = True
    new[pointer[:-1][pointer[:-1] < pointer[1:]]] = True
    starts = np.flatnonzero(new[:-1])
    return starts, np.searchsorted(starts, pointer).astype(pointer.dtype)


def _scatter(dense: np.ndarray, columns: int, row: np.ndarray, column: np.ndarray, sign: int) -> None:
    keys = np.empty(min(_STEP, len(row)), dtype=np.intp)
    for at in range(0, len(row), _STEP):
        here = keys[: min(_STEP, len(row) - at)]
        np.multiply(row[at : at + _STEP], columns, out=here)
        here += column[at : at + _STEP]
        np.add.at(dense, here, sign)


def _sparse(dense: np.ndarray, rows: int, columns: int) -> Table:
    used = np.flatnonzero(dense)
    row, column = np.divmod(used, columns)
    pointer = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.bincount(row, minlength=rows), out=pointer[1:])
    return Table((dense[used], column, pointer), shape=(rows, columns))
