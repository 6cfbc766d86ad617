"""The stream of batches that a seed draws: one rule, whose state can be kept and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from theory.errors import UserError


class Batches(Iterator[tuple[np.ndarray, np.ndarray]]):
    """An endless stream of batches: (row numbers, weights), each (sample,). Make one with `batches`.

    `state()` gives plain values (JSON) and `restore(state)` continues exactly there: same generator, same order of the
    epoch, same place in it.
    """

    def __init__(self, probabilities: np.ndarray, size: int, replacement: bool, seed: int):
        self._probabilities = np.asarray(probabilities)
        self._size = size
        self._generator = np.random.default_rng(seed)
        self._replacement = replacement
        self._order: np.ndarray = np.zeros(0, dtype=np.int64)
        self._place = 0
        self._cumulative = np.cumsum(self._probabilities)
        self._cumulative /= self._cumulative[-1]
        self._weights = np.full(size, 1.0 / size)

    def __next__(self) -> tuple[np.ndarray, np.ndarray]:
        if self._replacement:
            drawn = self._generator.random(self._size)
            return np.searchsorted(self._cumulative, drawn, side="right"), self._weights
        count = len(self._probabilities)
        if self._place >= len(self._order):
            self._order, self._place = self._generator.permutation(count), 0
        rows = self._order[self._place : self._place + self._size]
        self._place += self._size
        return rows, count * self._probabilities[rows] / len(rows)

    def state(self) -> dict[str, Any]:
        return {
            "generator": self._generator.bit_generator.state,
            "order": self._order.tolist(),
            "place": self._place,
        }

    def restore(self, state: dict[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
        self._order = np.array(state["order"], dtype=np.int64)
        self._place = int(state["place"])


def batches(probabilities: np.ndarray, size: int, *, replacement: bool = True, seed: int = 0) -> Batches:
    """An endless stream of batches: (row numbers, weights), each (sample,).

    With replacement every row is drawn independently with its probability and weighs 1 / `size`,
    so the batch gradient is an unbiased estimate of the gradient of the law. Without, the rows
    are shuffled anew for each epoch and cut into batches, the last one smaller; row s then weighs
    n P(s) / (rows in the batch).

    **Raises:** `UserError` when `size` is no whole number ≥ 1, or exceeds the rows to draw from
    without replacement.
    """
    count = len(probabilities)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise UserError(f"batch must be 'full' or a whole number of at least 1, found {size!r}")
    if not replacement and size > count:
        raise UserError(f"a batch of {size} cannot be drawn without replacement from {count} samples")
    return Batches(probabilities, int(size), replacement, seed)
