"""Claims of an experiment file against what was measured: claim → measure → threshold → verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.comparison import Agreement, Convergence, jsonable
from compare.departures import first_passage
from compare.escape import plateaus
from compare.similarity import SignatureCorrelation
from simulate.trajectory import Trajectory
from theory.errors import UserError, nearest

if TYPE_CHECKING:
    from simulate.experiment import ClaimSection, Experiment


@dataclass(frozen=True)
class Evidence:
    """What claims are measured on.

    - `agreements`: flow → its agreement with the main training (the first learning rate).
    - `convergences`: flow → its error at several learning rates; empty with a single one.
    - `correlations`: flow → ρ_(0) along it, and "training" → along the main training.
    - `flows`: flow → its trajectory.
    - `half_loss`: the time at which the main training's loss has halved (mean over seeds), nan if it has not.
    - `training`: the main training; `departure`: the relative error of E beyond which it has departed from a flow.
    - `coverage`: the share of the main training's measurements inside the band that `[noise]` predicts, and where; None
      without one.
    """

    agreements: Mapping[str, Agreement]
    convergences: Mapping[str, Convergence]
    correlations: Mapping[str, SignatureCorrelation]
    flows: Mapping[str, Trajectory]
    half_loss: float
    training: Trajectory
    departure: float
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
class Verdict:
    """One claim: its measure, where it was measured, the number, the threshold and what follows."""

    name: str
    claim: str
    measure: str
    scope: str
    measured: float
    comparison: str
    threshold: float

    @property
    def verdict(self) -> str:
        """ "holds", "fails", or "undefined" when there is no number."""
        if math.isnan(self.measured):
            return "undefined"
        met = self.measured <= self.threshold if self.comparison == "<=" else self.measured >= self.threshold
        return "holds" if met else "fails"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "claim": self.claim,
            "measure": self.measure,
            "scope": self.scope,
            "measured": jsonable(self.measured),
            "comparison": self.comparison,
            "threshold": self.threshold,
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class _Subject:
    """A claim with its defaults filled in."""

    flow: str | None
    parameter: str
    at: float | None


# Each measure returns a number and says in words where it was taken.
_Measure = Callable[[Evidence, _Subject], tuple[float, str]]


def _worst_relative_error(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    agreement = evidence.agreements[subject.flow or ""]
    until = _until(evidence, subject, agreement)
    reached = float(agreement.times[agreement.times <= until][-1])
    error = agreement.worst_error(subject.parameter, until=until)
    return error, f"{subject.parameter}, flow {subject.flow}, largest over 0 ≤ t ≤ {reached:.4g}"


def _relative_error(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    return _at_a_time(evidence, subject, "relative_error", max)


def _displacement_cosine(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    return _at_a_time(evidence, subject, "displacement_cosine", min)


def _at_a_time(
    evidence: Evidence, subject: _Subject, series: str, worst: Callable[[Sequence[float]], float]
) -> tuple[float, str]:
    """A series of the agreement at the last shared time up to the wanted one, the worst over seeds."""
    agreement = evidence.agreements[subject.flow or ""]
    until = _until(evidence, subject, agreement)
    index = int((agreement.times <= until).nonzero()[0][-1])
    values = getattr(agreement, series)[subject.parameter][..., index].ravel().tolist()
    return worst(values), f"{subject.parameter}, flow {subject.flow}, at t = {agreement.times[index]:.4g}"


def _half_loss_shift(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    agreement = evidence.agreements[subject.flow or ""]
    shifts = abs(agreement.half_loss_shift).ravel().tolist()
    scope = f"flow {subject.flow}: |t_½ predicted / t_½ trained − 1|"
    return (math.nan if any(map(math.isnan, shifts)) else max(shifts)), scope


def _error_ratio(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    convergence = evidence.convergences.get(subject.flow or "")
    if convergence is None:
        return math.nan, _no_convergence(subject)
    # With three or more learning rates there are several ratios; the claim is about the one farthest from 2.
    return max(convergence.ratios, key=lambda value: abs(math.log(value / 2))), _of_convergence(convergence)


def _error_slope(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    convergence = evidence.convergences.get(subject.flow or "")
    if convergence is None:
        return math.nan, _no_convergence(subject)
    return convergence.slope, _of_convergence(convergence)


def _of_convergence(convergence: Convergence) -> str:
    rates = ", ".join(f"{rate:g}" for rate in convergence.learning_rates)
    return f"{convergence.parameter}, flow {convergence.prediction}, at t = {convergence.time:.4g}, η = {rates}"


def _no_convergence(subject: _Subject) -> str:
    return f"flow {subject.flow} shares no time with two completed trainings"


def _correlation_peak(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    correlation = evidence.correlations[subject.flow or "training"]
    value, time = correlation.peak
    measure = "Pearson" if correlation.measure == "pearson" else "1 − MSE, Pearson being undefined"
    return value, f"{measure}, {correlation.name}, at t = {time:.4g}"


def _last_good_time(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    flow = evidence.flows[subject.flow or ""]
    return float(flow.attributes["last_good_time"]), f"flow {subject.flow}, status {flow.status}"


def _departure(evidence: Evidence, subject: _Subject) -> np.ndarray:
    """When the training's embedding departs from the claim's flow, for each seed; nan where it does not."""
    agreement = evidence.agreements[subject.flow or ""]
    return np.atleast_1d(
        first_passage(agreement.times, agreement.relative_error[subject.parameter], evidence.departure)
    )


def _departure_time(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    scope = f"{subject.parameter}, flow {subject.flow}: relative error passes {evidence.departure:g}, mean over seeds"
    return float(np.mean(_departure(evidence, subject))), scope


def _departure_shift(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    times, losses = evidence.training.times, np.atleast_2d(evidence.training["loss"].to_numpy())
    ends = []
    for loss in losses:
        longest = max(plateaus(times, loss), key=lambda found: found.end - found.start, default=None)
        ends.append(math.nan if longest is None or longest.open_end else longest.end)
    shifts = np.abs(_departure(evidence, subject) / np.array(ends) - 1)
    scope = (
        f"{subject.parameter}, flow {subject.flow}: |departure (error > {evidence.departure:g}) / end of the longest plateau, "
        f"t = {np.mean(ends):.4g}, − 1|"
    )
    return float(np.max(shifts)), scope


def _band_coverage(evidence: Evidence, subject: _Subject) -> tuple[float, str]:
    found = evidence.coverage
    if found is None:
        return math.nan, "no band was predicted"
    where = f"{found.seeds} seeds, {found.times} times, {', '.join(found.observables)}"
    return found.share, f"share inside the predicted {found.level:.0%} band: {where}"


MEASURES: dict[str, _Measure] = {
    "worst-relative-error": _worst_relative_error,
    "relative-error": _relative_error,
    "displacement-cosine": _displacement_cosine,
    "half-loss-shift": _half_loss_shift,
    "error-ratio": _error_ratio,
    "error-slope": _error_slope,
    "signature-correlation-peak": _correlation_peak,
    "last-good-time": _last_good_time,
    "band-coverage": _band_coverage,
    "departure-time": _departure_time,
    "departure-shift": _departure_shift,
}
_OF_ERROR_OVER_RATES = ("error-ratio", "error-slope")
_OF_TRAINING_TOO = ("signature-correlation-peak",)
_WITHOUT_AGREEMENT = ("signature-correlation-peak", "last-good-time")


def check_claims(
    experiment: Experiment, *, predicted: bool = True, flows: bool = True, rates: int | None = None
) -> None:
    """Refuse, before any work, claims that this run could not measure.

    **Arguments:** `predicted`: whether flows predict the times of the training; `flows`: whether any are integrated;
    `rates`: the number of learning rates, by default that of the file.

    **Raises:** `UserError` naming the claim and the nearest right choice.
    """
    for name, claim in experiment.claims.items():
        if claim.measure not in MEASURES:
            raise UserError(
                f"claim {name!r} has an unknown measure {claim.measure!r}; {nearest(claim.measure, MEASURES)}"
            )
        if not predicted and claim.measure not in _WITHOUT_AGREEMENT:
            raise UserError(
                f"claim {name!r} ({claim.measure}) holds a flow against a training, but no flow predicts the times of "
                "this one: it can be held against signatures only"
            )
        if not flows and (claim.flow is not None or claim.measure not in _OF_TRAINING_TOO):
            raise UserError(f"claim {name!r} ({claim.measure}) is about a flow, but none starts where this run starts")
        if claim.measure == "band-coverage" and (experiment.noise is None or experiment.training is None):
            raise UserError(f"claim {name!r} (band-coverage) needs the sections [noise] and [training]")
        if rates is None:
            rates = len(set(experiment.training.learning_rate))
        if claim.measure in _OF_ERROR_OVER_RATES and rates < 2:
            raise UserError(
                f"claim {name!r} ({claim.measure}) needs two different values in {_training_key(experiment)}.learning_rate"
            )


def _training_key(experiment: Experiment) -> str:
    return "sgd" if experiment.sections.training is None else "training"


def evaluate_claims(claims: Mapping[str, ClaimSection], evidence: Evidence, *, parameter: str) -> tuple[Verdict, ...]:
    """Measure every claim.

    **Arguments:** `parameter`: the embedding, which claims are about unless they name another parameter; a claim that
    names no flow is about the first one (a signature correlation: about the training). A measure at a time is taken at
    the claim's `at`, by default where the trained loss has halved, and at the last shared time where it has not.
    """
    verdicts = []
    for name, claim in claims.items():
        flow = claim.flow or (
            None if claim.measure in (*_OF_TRAINING_TOO, "band-coverage") else next(iter(evidence.flows))
        )
        measured, scope = MEASURES[claim.measure](evidence, _Subject(flow, claim.parameter or parameter, claim.at))
        text = claim.remark or name.replace("_", " ").replace("-", " ")
        verdicts.append(Verdict(name, text, claim.measure, scope, measured, claim.comparison, claim.threshold))
    return tuple(verdicts)


def _until(evidence: Evidence, subject: _Subject, agreement: Agreement) -> float:
    if subject.at is not None:
        return subject.at
    return evidence.half_loss if math.isfinite(evidence.half_loss) else float(agreement.times[-1])
