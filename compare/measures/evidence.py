"""What claims are measured on, what a claim asks for, and what a measure gives back; times and seeds are chosen here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from compare.comparison import Agreement, Convergence, jsonable
from compare.similarity import SignatureCorrelation
from simulate.trajectory import Trajectory
from theory.data.dataset import Dataset
from theory.language import Architecture


@dataclass(frozen=True)
class Evidence:
    """What claims are measured on.

    - `agreements`: flow → its agreement with the main training (the first learning rate).
    - `convergences`: flow → its error at several learning rates; empty with a single one.
    - `correlations`: flow → ρ_(0) along it, and "training" → along the main training.
    - `flows`: flow → its trajectory.
    - `half_loss`: the time at which the main training's loss has halved (mean over seeds), nan if it has not.
    - `coverage`: the share of the main training's measurements inside the band that `[noise]` predicts, and where; None
      without one.
    - `training`: the main training; `architecture`, `dataset`: what was trained on what; `departure`: the relative error
      beyond which the training has departed from a flow; `seeds`: of the initial arrays and of the batches.
    """

    agreements: Mapping[str, Agreement]
    convergences: Mapping[str, Convergence]
    correlations: Mapping[str, SignatureCorrelation]
    flows: Mapping[str, Trajectory]
    half_loss: float
    training: Trajectory
    architecture: Architecture
    dataset: Dataset
    departure: float
    seeds: Mapping[str, Any]
    coverage: BandCoverage | None = None


@dataclass(frozen=True)
class BandCoverage:
    """The share of a training's measurements inside its predicted band, pooled over seeds, save times and observables."""

    share: float
    level: float
    seeds: int
    times: int
    observables: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "coverage": jsonable(self.share),
            "level": self.level,
            "seeds": self.seeds,
            "times": self.times,
            "observables": list(self.observables),
        }


@dataclass(frozen=True)
class Subject:
    """A claim with its defaults filled in."""

    flow: str | None
    parameter: str
    at: float | None
    tokens: tuple[str, ...]
    frequency: int | None = None


# How one number is made of those of several seeds: the worst of them, their mean, or measured on the mean of their curves.
Rule = Literal["worst", "mean", "mean curve"]


@dataclass(frozen=True)
class Measured:
    """A number, in words where it was taken, and the first and last time that entered it.

    `by_seed` (seed,): the number of each seed of the training, of which `rule` makes `value`; None where the training has one
    seed, or the number is not of single seeds.
    """

    value: float
    scope: str
    times: tuple[float, float] | None
    by_seed: np.ndarray | None = None
    rule: Rule | None = None


Take = Callable[[Evidence, Subject], Measured]


def worst_of_seeds(values: np.ndarray, scope: str, times: tuple[float, float], *, largest: bool = True) -> Measured:
    """The worst of `values` ([seed]): the largest, or else the smallest; nan where one of them is not known."""
    value = float(np.max(values) if largest else np.min(values))
    return _of_seeds(value, values, scope, times, "worst")


def mean_of_seeds(values: np.ndarray, scope: str, times: tuple[float, float]) -> Measured:
    """The mean of `values` ([seed]); nan where one of them is not known."""
    words = f"{scope}, mean of {values.size} seeds" if values.size > 1 else scope
    return _of_seeds(float(np.mean(values)), values, words, times, "mean")


def of_mean_curve(value: float, values: np.ndarray, scope: str, times: tuple[float, float]) -> Measured:
    """`value` measured on the mean of the seeds' curves, `values` ([seed]) on each of them."""
    words = f"{scope}, of the mean of {values.size} seeds" if values.size > 1 else scope
    return _of_seeds(value, values, words, times, "mean curve")


def _of_seeds(value: float, values: np.ndarray, scope: str, times: tuple[float, float], rule: Rule) -> Measured:
    several = values.size > 1
    return Measured(value, scope, times, np.ravel(values) if several else None, rule if several else None)


def mean_at(values: np.ndarray, scope: str, time: float) -> Measured:
    """The mean of `values` ([seed]), all taken at one time."""
    return mean_of_seeds(values, f"{scope}, at t = {time:.4g}", (time, time))


def along(evidence: Evidence, subject: Subject, series: np.ndarray, scope: str) -> Measured:
    """A series ([seed,] time) along the trajectory that the claim is about, at its time."""
    trajectory, index = state(evidence, subject)
    return mean_at(series[..., index], scope, float(trajectory.parameter_times[index]))


def state(evidence: Evidence, subject: Subject) -> tuple[Trajectory, int]:
    """The trajectory that the claim is about, and the number of the last parameter time up to the claim's time."""
    trajectory = evidence.training if subject.flow is None else evidence.flows[subject.flow]
    wanted = evidence.half_loss if subject.at is None else subject.at
    return trajectory, last_up_to(trajectory.parameter_times, wanted if math.isfinite(wanted) else math.inf)


def moment(evidence: Evidence, subject: Subject) -> tuple[Trajectory, float]:
    """That trajectory at that time alone."""
    trajectory, index = state(evidence, subject)
    dim = "parameter_time" if "parameter_time" in trajectory.data.dims else "time"
    return Trajectory(trajectory.data.isel({dim: [index]})), float(trajectory.parameter_times[index])


def wanted_time(evidence: Evidence, subject: Subject, agreement: Agreement) -> float:
    """The claim's time, by default where the loss has halved, otherwise the last one shared."""
    if subject.at is not None:
        return subject.at
    return evidence.half_loss if math.isfinite(evidence.half_loss) else float(agreement.times[-1])


def last_up_to(times: np.ndarray, until: float) -> int:
    """The number of the last time ≤ `until`."""
    # Times are products like 31400 · 0.001, which differ from what a file states by rounding.
    return int((times <= until + 1e-9 * abs(until)).nonzero()[0][-1])


def span(agreement: Agreement) -> tuple[float, float]:
    """The first and the last time that flow and training share."""
    return float(agreement.times[0]), float(agreement.times[-1])
