"""Save times shared by flow and training, and the one map between time and optimiser steps.

Gradient flow time is measured in learning rate × steps: one step of gradient descent with learning
rate η advances t by η, and by η / (1 − μ) to leading order with heavy-ball momentum μ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from theory.errors import UserError, nearest


def _time_per_step(learning_rate: float, momentum: float) -> float:
    if not (_number(learning_rate) and math.isfinite(learning_rate) and learning_rate > 0):
        raise UserError(f"learning_rate must be a positive number, but is {learning_rate!r}.")
    if not (_number(momentum) and 0 <= momentum < 1):
        raise UserError(f"momentum must lie in [0, 1), but is {momentum!r}.")
    return learning_rate / (1 - momentum)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def time_of_step(step: Any, learning_rate: float, *, momentum: float = 0.0) -> Any:
    """Gradient-flow time t after `step` optimiser steps: t = learning_rate · step / (1 − momentum).

    Holds for a loss that is the *mean* over samples and positions; with momentum to leading order
    in the learning rate. This is the only place where the relation is written (see neural-tangents
    issue 184).

    **Arguments:** `step`: a number or an array of step counts; `learning_rate`: η > 0; `momentum`:
    μ in [0, 1).

    **Returns:** float64 time(s) of the same shape. **Raises:** `UserError` for a rate or momentum
    out of range, and for times that are not finite.
    """
    with np.errstate(over="ignore"):
        times = np.asarray(step, dtype=np.float64) * _time_per_step(learning_rate, momentum)
    if not np.isfinite(times).all():
        raise UserError(
            f"learning_rate = {learning_rate:g} makes times infinite: {np.max(step):g} steps of it are beyond floating point"
        )
    return float(times) if times.ndim == 0 else times


def time_of_step_at_rates(step: Any, learning_rates: ArrayLike, *, momentum: float = 0.0) -> Any:
    """Gradient-flow time t after `step` optimiser steps of varying learning rate: t = Σ_{j < step} η_j / (1 − momentum).

    **Arguments:** `step`: a number or an array of step counts; `learning_rates`: η_j ≥ 0 of the step j → j + 1, at least
    as many as the largest step count (a warm-up may start at 0); `momentum`: as in `time_of_step`.

    **Returns:** float64 time(s) of the same shape. **Raises:** `UserError` for rates that are negative, not finite or
    too few, or whose sum is not finite.
    """
    rates = np.asarray(learning_rates, dtype=np.float64)
    steps = np.asarray(step, dtype=np.int64)
    if rates.ndim != 1:
        raise UserError(f"learning rates must be a list of one number for each step, but have shape {rates.shape}")
    wrong = np.flatnonzero(~(np.isfinite(rates) & (rates >= 0)))
    if wrong.size:
        raise UserError(
            f"learning rates must be numbers of at least 0, but that of step {wrong[0]} is {rates[wrong[0]]}"
        )
    if steps.size and steps.max() > len(rates):
        raise UserError(
            f"the learning rates are of the wrong length: one is needed for each of {steps.max()} steps, but "
            f"{len(rates)} are given"
        )
    with np.errstate(over="ignore"):
        summed = np.concatenate([[0.0], np.cumsum(rates)])
        times = summed[steps] * _time_per_step(1.0, momentum)
    if not np.isfinite(times).all():
        raise UserError(f"the learning rates sum to infinity: the largest of them is {rates.max():g}")
    return float(times) if times.ndim == 0 else times


def step_of_time(time: Any, learning_rate: float, *, momentum: float = 0.0) -> Any:
    """The optimiser step nearest to gradient-flow time `time`; the inverse of `time_of_step`.

    **Arguments:** `time`: a number or an array of times ≥ 0 in units of learning rate × steps;
    `learning_rate`: η > 0; `momentum`: μ in [0, 1).

    **Returns:** integer(s) of the same shape. **Raises:** `UserError` for a rate or momentum out of
    range.
    """
    steps = np.rint(np.asarray(time, dtype=np.float64) / _time_per_step(learning_rate, momentum))
    steps = steps.astype(np.int64)
    return int(steps) if steps.ndim == 0 else steps


@dataclass(frozen=True, eq=False, init=False)
class Schedule:
    """Strictly increasing save times, in units of learning rate × steps.

    **Arguments:** `times`: any sorted list of finite times ≥ 0. `Schedule.linear` and
    `Schedule.log` build the usual ones, with t = 0 included and the end exact.

    **Raises:** `UserError` when the times are empty, negative, not finite, repeated or out of
    order.
    """

    times: np.ndarray

    def __init__(self, times: ArrayLike) -> None:
        try:
            array = np.array(times, dtype=np.float64)
        except (TypeError, ValueError):
            raise UserError(f"save times must be a list of numbers, but are {times!r}.") from None
        if array.ndim != 1 or array.size == 0:
            raise UserError(f"save times must be a non-empty list of numbers, but have shape {array.shape}.")
        if not np.isfinite(array).all():
            raise UserError(f"save times must be finite, but contain {array[~np.isfinite(array)][0]}.")
        if array[0] < 0:
            raise UserError(f"save times must be ≥ 0, but start at {array[0]:g}.")
        backward = np.flatnonzero(np.diff(array) <= 0)
        if backward.size:
            first, second = array[backward[0]], array[backward[0] + 1]
            raise UserError(f"save times must be strictly increasing, but {second:g} follows {first:g}.")
        array.setflags(write=False)
        object.__setattr__(self, "times", array)

    @classmethod
    def linear(cls, until: float, *, count: int = 101) -> Schedule:
        """`count` equally spaced times from 0 to `until`, both included and exact."""
        cls._check_span(until, count, least=2)
        times = np.linspace(0.0, until, count)
        times[-1] = until
        return cls(times)

    @classmethod
    def log(cls, until: float, *, count: int = 101, first: float | None = None) -> Schedule:
        """t = 0, then `count` − 1 geometric times from `first` to `until`, the end exact.

        **Arguments:** `until`: the last time; `count`: number of times, t = 0 included; `first`:
        the smallest positive time, `until` / 1000 by default.
        """
        cls._check_span(until, count, least=3)
        first = until / 1000 if first is None else first
        if not 0 < first < until:
            raise UserError(f"the first positive save time must lie between 0 and the end {until:g}, but is {first:g}.")
        times = np.concatenate([[0.0], np.geomspace(first, until, count - 1)])
        times[-1] = until
        return cls(times)

    @classmethod
    def of(cls, spacing: str, until: float, *, count: int = 101) -> Schedule:
        """The schedule named `spacing` ("linear" or "log")."""
        builders = {"linear": cls.linear, "log": cls.log}
        if spacing not in builders:
            raise UserError(f"no spacing of save times is called {spacing!r}; {nearest(spacing, builders)}")
        return builders[spacing](until, count=count)

    @staticmethod
    def _check_span(until: float, count: int, least: int) -> None:
        if not (math.isfinite(until) and until > 0):
            raise UserError(f"the last save time must be a positive number, but is {until!r}.")
        if count < least:
            raise UserError(f"a schedule needs at least {least} save times, but count is {count}.")

    @property
    def until(self) -> float:
        """The last save time."""
        return float(self.times[-1])

    def steps(self, learning_rate: float, *, momentum: float = 0.0) -> np.ndarray:
        """The distinct optimiser steps nearest to the save times; step 0 is always kept.

        `time_of_step` of the result gives the times at which a training with this learning rate can
        be saved, so that a flow saved at `snapped(learning_rate)` shares them exactly.
        """
        steps = step_of_time(self.times, learning_rate, momentum=momentum)
        return np.unique(np.concatenate([[0], steps]))

    def snapped(self, learning_rate: float, *, momentum: float = 0.0) -> Schedule:
        """The schedule moved to whole steps: the save times that flow and training share."""
        steps = self.steps(learning_rate, momentum=momentum)
        return Schedule(time_of_step(steps, learning_rate, momentum=momentum))

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[float]:
        return iter(self.times.tolist())

    def __repr__(self) -> str:
        return f"Schedule({len(self)} times from {self.times[0]:g} to {self.until:g})"


def as_schedule(save: Schedule | Iterable[float]) -> Schedule:
    """A schedule from a schedule or from any sorted list of times."""
    return save if isinstance(save, Schedule) else Schedule(np.asarray(list(save)))
