"""Plateaus of a loss and the escape from them, and how far a prediction shifts them in time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.comparison import jsonable
from simulate.trajectory import Trajectory
from theory.errors import UserError

# The steepness |d log loss / d log t| up to which a loss counts as flat, where none is declared.
PLATEAU_BOUND = 0.1


@dataclass(frozen=True)
class Plateau:
    """A maximal interval `start` ≤ t ≤ `end` on which |d log loss / d log t| ≤ bound; `loss`: at its end.

    `open_start` and `open_end` say that the plateau reaches the first positive save time or the last one, so that the
    true one may be longer.
    """

    start: float
    end: float
    loss: float
    open_start: bool
    open_end: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "start": jsonable(self.start),
            "end": jsonable(self.end),
            "loss": jsonable(self.loss),
            "open_start": self.open_start,
            "open_end": self.open_end,
        }


def plateaus(
    times: np.ndarray, loss: np.ndarray, *, bound: float = PLATEAU_BOUND, longest: float = math.inf
) -> tuple[Plateau, ...]:
    """The plateaus of one loss curve, in order of time.

    The slope d log loss / d log t of the chord between two save times is taken at their geometric mean (exact for a
    curve that is quadratic in log t), and is linear in log t between these points; before the first and after the last of
    them it is constant. Start and end of a plateau are where its modulus crosses `bound`, so that they do not stick to
    save times. A curve that moves by steps smaller than the save spacing is not seen. Minibatch noise counts as slope:
    average over seeds first, or raise the bound.

    **Arguments:** `times` (time,), increasing, t = learning rate × step; t = 0 has no logarithm and is left out; `loss`
    (time,), positive; `bound`: declare it before looking; `longest`: times beyond it are left out.

    **Raises:** `UserError` for fewer than two positive times, a loss that is not positive and finite, or a bound that is
    not positive. Source: the definition is ours; plateaus are those of arXiv 2608.30315, figures 3 and 5.
    """
    if not bound > 0:
        raise UserError(f"the bound on |d log loss / d log t| must be positive, found {bound!r}")
    times, loss = np.asarray(times, dtype=np.float64), np.asarray(loss, dtype=np.float64)
    if loss.ndim != 1 or loss.shape != times.shape:
        raise UserError(f"plateaus are those of one curve: times have shape {times.shape}, the loss has {loss.shape}")
    taken = (times > 0) & (times <= longest)
    times, loss = times[taken], loss[taken]
    if len(times) < 2:
        raise UserError(f"plateaus need two save times after t = 0, found {len(times)}")
    if not (np.all(np.isfinite(loss)) and np.all(loss > 0)):
        raise UserError("plateaus are defined by d log loss / d log t: the loss must be positive and finite")
    x, y = np.log(times), np.log(loss)
    middle = (x[1:] + x[:-1]) / 2
    knots = np.concatenate([x[:1], middle, x[-1:]])
    slope = np.diff(y) / np.diff(x)
    slope = np.concatenate([slope[:1], slope, slope[-1:]])
    found, start = [], None
    for i in range(len(knots)):
        if abs(slope[i]) <= bound:
            start = _crossing(knots, slope, i - 1, bound) if start is None else start
        elif start is not None:
            found.append((start, _crossing(knots, slope, i - 1, bound)))
            start = None
    if start is not None:
        found.append((start, knots[-1]))
    return tuple(
        Plateau(
            start=float(times[0] if a == x[0] else math.exp(a)),
            end=float(times[-1] if b == x[-1] else math.exp(b)),
            loss=float(np.exp(np.interp(b, x, y))),
            open_start=bool(a == x[0]),
            open_end=bool(b == x[-1]),
        )
        for a, b in found
    )


def _crossing(knots: np.ndarray, slope: np.ndarray, i: int, bound: float) -> float:
    """Where |slope| crosses `bound` between knots i and i + 1; the first knot where i is before it."""
    if i < 0:
        return float(knots[0])
    # Of the two ends one is within the bound, the other beyond it, on the side of this sign.
    beyond = slope[i] if abs(slope[i]) > bound else slope[i + 1]
    level = math.copysign(bound, beyond)
    fraction = (level - slope[i]) / (slope[i + 1] - slope[i])
    return float(knots[i] + fraction * (knots[i + 1] - knots[i]))


def escape_time(times: np.ndarray, loss: np.ndarray, *, bound: float = PLATEAU_BOUND) -> np.ndarray | float:
    """When a loss leaves its first plateau: the end of the first of `plateaus`.

    **Arguments:** `loss` ([seed,] time). **Returns:** one number for each seed where there are several; nan where there
    is no plateau, or where the first one lasts to the end.
    """
    if np.ndim(loss) > 1:
        return np.array([escape_time(times, member, bound=bound) for member in loss])
    return _first_end(plateaus(times, loss, bound=bound))


@dataclass(frozen=True)
class EscapeShift:
    """Plateaus of a reference and of a prediction, and how far the prediction shifts their ends.

    - `reference`: the plateaus of each seed (one tuple where there is no seed axis); `predicted`: those of the prediction.
    - `escape_reference` (seed,), `escape_predicted`: ends of the first plateaus; `escape_shift` = predicted / reference − 1.
    - `end_shifts` (seed, plateau): the same of every plateau that ends, in order of time; nan throughout for a seed
      whose number of plateaus that end differs from the prediction's, since then nothing says which belong together.
    """

    bound: float
    reference: tuple[tuple[Plateau, ...], ...]
    predicted: tuple[Plateau, ...]
    escape_reference: np.ndarray
    escape_predicted: float

    @property
    def escape_shift(self) -> np.ndarray:
        return self.escape_predicted / self.escape_reference - 1.0

    @property
    def end_shifts(self) -> np.ndarray:
        ends = np.array([p.end for p in self.predicted if not p.open_end])
        shifts = np.full((len(self.reference), len(ends)), math.nan)
        for row, found in zip(shifts, self.reference, strict=True):
            own = np.array([p.end for p in found if not p.open_end])
            if len(own) == len(ends):
                row[:] = ends / own - 1.0
        return shifts

    def to_dict(self) -> dict[str, Any]:
        return {
            "bound": self.bound,
            "reference": [[p.to_dict() for p in found] for found in self.reference],
            "predicted": [p.to_dict() for p in self.predicted],
            "escape_time": {
                "reference": jsonable(self.escape_reference),
                "predicted": jsonable(self.escape_predicted),
                "relative_shift": jsonable(self.escape_shift),
            },
            "end_shifts": jsonable(self.end_shifts),
        }


def escape_shift(reference: Trajectory, prediction: Trajectory, *, bound: float = PLATEAU_BOUND) -> EscapeShift:
    """Time shift of escape and of plateaus of a predicted loss against a trained one, each on its own save times.

    **Arguments:** `reference`: with or without a seed axis; `prediction`: without one; `bound`: see `plateaus`. Both are
    looked at up to the last time that both reach.

    **Raises:** `UserError` as `plateaus` does, or for a trajectory without loss.
    """
    last = float(min(reference.times[-1], prediction.times[-1])) * (1 + 1e-9)
    losses = np.atleast_2d(reference["loss"].to_numpy())
    of_reference = tuple(plateaus(reference.times, loss, bound=bound, longest=last) for loss in losses)
    of_prediction = plateaus(prediction.times, prediction["loss"].to_numpy(), bound=bound, longest=last)
    return EscapeShift(
        bound=bound,
        reference=of_reference,
        predicted=of_prediction,
        escape_reference=np.array([_first_end(found) for found in of_reference]),
        escape_predicted=_first_end(of_prediction),
    )


def _first_end(found: tuple[Plateau, ...]) -> float:
    return math.nan if not found or found[0].open_end else found[0].end
