"""Checks of task options: one sentence naming the task, the option and the value found."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from theory.errors import UserError, argument, nearest

# 50^4 sequences, the largest enumeration in arXiv 2608.30315 (activation sweep), must fit.
ENUMERATION_LIMIT = 8_000_000
# Beyond these a dataset would not fit in memory; the check comes before anything is allocated.
SYMBOL_LIMIT = 1_000_000
LENGTH_LIMIT = 10_000
ENTRY_LIMIT = 200_000_000


def integer(task: str, option: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value` as an int within [low, high], or raise `UserError` naming task and option."""
    wanted = f"an integer ≥ {low}" if high is None else f"an integer in {low} … {high}"
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < low or (high is not None and value > high):
        raise UserError(f"option {option} of task {task} must be {wanted}, found {value!r}")
    return int(value)


def number(task: str, option: str, value: Any, *, above: float | None = None) -> float:
    """Return `value` as a finite float (greater than `above`), or raise `UserError`."""
    wanted = "a finite number" + ("" if above is None else f" > {above:g}")
    real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or (above is not None and value <= above):
        raise UserError(f"option {option} of task {task} must be {wanted}, found {value!r}")
    return float(value)


def choice(task: str, option: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, or raise `UserError` naming the nearest one."""
    choices = tuple(choices)
    if value not in choices:
        raise UserError(f"option {option} of task {task} cannot be {value!r}; {nearest(str(value), choices)}")
    return value


def outputs(task: str, labels: Sequence[str], n_outputs: int | None) -> tuple[str, ...]:
    """Names of all outputs: the labels in use, then, up to `n_outputs`, outputs nobody asks for.

    How many outputs are never asked for decides whether a plateau exists (theory.md, section 9).
    """
    if n_outputs is None:
        return tuple(labels)
    integer(task, "n_outputs", n_outputs, len(labels), max(len(labels), SYMBOL_LIMIT))
    return (*labels, *(f"unused {i + 1}" for i in range(n_outputs - len(labels))))


def sequences(
    task: str, sizes: Sequence[int], samples: int | str, seed: int
) -> tuple[np.ndarray, bool, dict[str, Any]]:
    """All tuples of the box `sizes` in lexicographic order, or `samples` uniform draws from it.

    **Arguments:** `sizes`: number of choices at each place; `samples`: "all", or how many to draw
    with replacement; `seed`: of the draw.

    **Returns:** choices (sample, place), whether they are all of the law, and the provenance.

    **Raises:** `UserError` when "all" would be more than `ENUMERATION_LIMIT` sequences.
    """
    integer(task, "seed", seed, 0)
    count = math.prod(sizes)
    if samples == "all":
        if count > ENUMERATION_LIMIT:
            raise UserError(
                f"task {task} has {count:,} sequences, more than the {ENUMERATION_LIMIT:,} that "
                f"are enumerated; draw some of them: {argument('samples', 10000, of='task')}"
            )
        rows = np.stack(np.unravel_index(np.arange(count), tuple(sizes)), axis=1)
        return rows.astype(np.int64), True, {}
    if isinstance(samples, str):
        raise UserError(f"option samples of task {task} must be 'all' or an integer ≥ 1, found {samples!r}")
    n = integer(task, "samples", samples, 1, ENTRY_LIMIT // len(sizes))
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.integers(0, size, n) for size in sizes], axis=1)
    return rows, False, {"samples": n, "seed": seed}
