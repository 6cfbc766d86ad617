"""Claims of an experiment file against what was measured: claim → measure → threshold → verdict → boundary of what was shown.

A claim names a measure, and where it needs them a flow, a parameter (the embedding by default), tokens, a frequency and a time
`at` (by default where the trained loss has halved, otherwise the last time). Over seeds the worst counts for measures of a flow
against the training, the mean for measures of states.

Of a flow against the training:

- `relative-error`, `worst-relative-error`: ‖θ̂ − θ‖ / ‖θ‖ at the time, or its largest value up to it.
- `token-error`: the largest ‖ŵ_α − w_α‖ / ‖w_α‖ over the tokens at the time.
- `direction-cosine`, `displacement-cosine`: cos(θ, θ̂) and cos(θ − θ_0, θ̂ − θ̂_0) at the time, the smallest over seeds.
- `half-loss-shift`: |t_½ predicted / trained − 1|.
- `escape-shift`, `plateau-shift`: the same of the end of the first plateau, and of the worst plateau (`compare.escape`).
- `departure-time`: when the training departs from a flow "order-m" by more than `flow.departure` (`compare.departures`);
  `departure-shift`: |that time / the end of the training's longest plateau − 1|.
- `procrustes-residual`: of predicted embeddings aligned with the trained ones at the time (`compare.spectra`).
- `error-ratio`, `error-slope`: how the error falls with the learning rate.
- `last-good-time`: how far a flow came. `band-coverage`: share of minibatch training inside its predicted band.

Of embeddings, those of the training or of a flow that the claim names:

- `signature-correlation-peak`, `signature-correlation`: ρ_(0), its maximum over time or at the time (1 − MSE where Pearson is
  undefined); `signature-rank-correlation`: Spearman's at the time.
- `signature-correlation-drop`: its maximum up to the time, less its value there.
- `order-1-probe`, `order-2-probe`: correlation of fitted probes with tokens held out, at the time (`compare.probes`);
  `order-1-probe-pairs`, `order-2-probe-pairs`: with pairs of tokens held out; `order-2-advantage`: the second less the first.
- `fourier-correlation`: ρ_(1),k of the claim's `frequency` k; `fourier-best`: the largest over k ≥ `frequency` (1 by default);
  `fourier-winner`: the k that has it.
- `accuracy`: at the time, and `accuracy-peak`: its maximum; `mean-cosine`: of two embeddings; `group-contrast`: mean cosine
  within the claim's `tokens`, less that between them and all others; `norm-growth`: of the embeddings of these tokens, since
  the start (`compare.outcomes`).
- `order-1-gain`: what order 1 adds to the R² of order 0 for the embedding similarity (`compare.decomposition`).
- `fourier-peak`: the largest share of one frequency in what varies with the token (`compare.spectra`).
- `effective-rank`, `participation-ratio` (`compare.spectra`).
- `label-law-pearson`, `label-law-kl`, `label-law-jsd`: softmax(U w_α) against P(y | α), mean of tokens, or of the claim's
  `tokens` (`compare.label_laws`).
- `attention-entropy` (nats), `attention-mass` of the claim's `tokens` (`compare.attention`).

Of the data alone: `order-0-accuracy`: how often the sum of order-0 signatures decides for the label, the least over the same
task with 2, 3, … numbers up to its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from compare.attention import attention_profile, softmax_over_positions
from compare.comparison import Agreement, Convergence, jsonable, shared_times
from compare.decomposition import similarity_decomposition
from compare.departures import first_passage
from compare.escape import EscapeShift, escape_shift, plateaus
from compare.label_laws import label_law_agreement, readout
from compare.outcomes import accuracy, group_contrast, mean_cosine, norm_growth, order_zero_accuracy
from compare.probes import HoldOut, fourier_correlation, probe_correlation
from compare.similarity import SignatureCorrelation, embeddings
from compare.spectra import effective_rank, fourier_profile, procrustes
from compare.tokens import token_agreement
from simulate.trajectory import Trajectory
from theory.data import load as load_data
from theory.data.dataset import Dataset
from theory.errors import UserError, nearest
from theory.language import TOKEN, Architecture
from theory.signatures import label_signature

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
class Boundary:
    """What a verdict was shown on, and says nothing beyond.

    - `times`: first and last t that entered the number; None where it is about no time of the training.
    - `learning_rates`: of the trainings that entered; None for one that is not known. `seeds`: of the initial arrays and of
      the training's batches. `batch`, `optimizer`, `dtype`: of the main training. `data`: its name, samples and whether
      they are the exact law.
    """

    times: tuple[float, float] | None
    learning_rates: tuple[Any, ...]
    seeds: Mapping[str, Any]
    batch: str | int | None
    optimizer: str | None
    dtype: str | None
    data: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "times": jsonable(self.times),
            "learning_rates": jsonable(self.learning_rates),
            "seeds": jsonable(self.seeds),
            "batch": self.batch,
            "optimizer": self.optimizer,
            "dtype": self.dtype,
            "data": self.data,
        }


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
    boundary: Boundary

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
            "boundary": self.boundary.to_dict(),
        }


@dataclass(frozen=True)
class _Subject:
    """A claim with its defaults filled in."""

    flow: str | None
    parameter: str
    at: float | None
    tokens: tuple[str, ...]
    frequency: int | None = None


@dataclass(frozen=True)
class _Measured:
    """A number, in words where it was taken, and the first and last time that entered it."""

    value: float
    scope: str
    times: tuple[float, float] | None


_Measure = Callable[[Evidence, _Subject], _Measured]


# ---------------------------------------------------------------------------------------------------------------------
# A flow against the training


def _worst_relative_error(evidence: Evidence, subject: _Subject) -> _Measured:
    agreement = evidence.agreements[subject.flow or ""]
    until = _until(evidence, subject, agreement)
    reached = float(agreement.times[_index(agreement.times, until)])
    error = agreement.worst_error(subject.parameter, until=reached)
    scope = f"{subject.parameter}, flow {subject.flow}, largest over 0 ≤ t ≤ {reached:.4g}"
    return _Measured(error, scope, (float(agreement.times[0]), reached))


def _of_series(series: str, worst: Callable[[Sequence[float]], float]) -> _Measure:
    """A series of the agreement at the last shared time up to the wanted one, the worst over seeds."""

    def measure(evidence: Evidence, subject: _Subject) -> _Measured:
        agreement = evidence.agreements[subject.flow or ""]
        index = _index(agreement.times, _until(evidence, subject, agreement))
        values = getattr(agreement, series)[subject.parameter][..., index].ravel().tolist()
        time = float(agreement.times[index])
        return _Measured(worst(values), f"{subject.parameter}, flow {subject.flow}, at t = {time:.4g}", (time, time))

    return measure


def _token_error(evidence: Evidence, subject: _Subject) -> _Measured:
    agreement = evidence.agreements[subject.flow or ""]
    flow = evidence.flows[subject.flow or ""]
    found = token_agreement(evidence.training, flow, parameter_name=subject.parameter)
    index = _index(found.times, _until(evidence, subject, agreement))
    error, token = found.worst(index)
    name = evidence.dataset.token_names[token] if isinstance(token, int) else token
    time = float(found.times[index])
    return _Measured(
        error, f"{subject.parameter} of token {name}, flow {subject.flow}, at t = {time:.4g}", (time, time)
    )


def _half_loss_shift(evidence: Evidence, subject: _Subject) -> _Measured:
    agreement = evidence.agreements[subject.flow or ""]
    scope = f"flow {subject.flow}: |t_½ predicted / t_½ trained − 1|"
    return _Measured(_worst_shift(agreement.half_loss_shift), scope, _span(agreement))


def _escape(evidence: Evidence, subject: _Subject) -> tuple[EscapeShift, str, tuple[float, float]]:
    found = escape_shift(evidence.training, evidence.flows[subject.flow or ""])
    scope = f"flow {subject.flow}, plateaus: |d log loss / d log t| ≤ {found.bound:g}"
    return found, scope, _span(evidence.agreements[subject.flow or ""])


def _escape_shift(evidence: Evidence, subject: _Subject) -> _Measured:
    found, scope, times = _escape(evidence, subject)
    return _Measured(_worst_shift(found.escape_shift), f"end of the first plateau, {scope}", times)


def _plateau_shift(evidence: Evidence, subject: _Subject) -> _Measured:
    found, scope, times = _escape(evidence, subject)
    shifts = found.end_shifts
    value = _worst_shift(shifts) if shifts.size else math.nan
    return _Measured(value, f"worst of the ends of {shifts.shape[1]} plateaus, {scope}", times)


def _departure(evidence: Evidence, subject: _Subject) -> tuple[np.ndarray, str, Agreement]:
    """When the training departs from the claim's flow, for each seed, nan where it does not; and in words."""
    agreement = evidence.agreements[subject.flow or ""]
    times = first_passage(agreement.times, agreement.relative_error[subject.parameter], evidence.departure)
    scope = f"{subject.parameter}, flow {subject.flow}, relative error beyond {evidence.departure:g}"
    if np.isnan(times).any():
        scope += f"; not departed up to t = {agreement.times[-1]:.4g}"
    return np.atleast_1d(times), scope, agreement


def _departure_time(evidence: Evidence, subject: _Subject) -> _Measured:
    times, scope, agreement = _departure(evidence, subject)
    if times.size > 1:
        scope += f"; mean over {times.size} seeds"
    return _Measured(float(times.mean()), scope, _span(agreement))


def _departure_shift(evidence: Evidence, subject: _Subject) -> _Measured:
    times, scope, agreement = _departure(evidence, subject)
    ends = []
    for loss in np.atleast_2d(evidence.training["loss"].to_numpy()):
        longest = max(plateaus(evidence.training.times, loss), key=lambda found: found.end - found.start, default=None)
        ends.append(math.nan if longest is None or longest.open_end else longest.end)
    scope = f"|departure / end of the longest plateau, t = {np.mean(ends):.4g}, − 1|: {scope}"
    return _Measured(_worst_shift(times / np.array(ends) - 1), scope, _span(agreement))


def _procrustes_residual(evidence: Evidence, subject: _Subject) -> _Measured:
    agreement = evidence.agreements[subject.flow or ""]
    flow = evidence.flows[subject.flow or ""]
    ours, theirs = shared_times(evidence.training, flow)
    index = _index(agreement.times, _until(evidence, subject, agreement))
    trained = embeddings(evidence.training, subject.parameter)[..., ours[index], :, :]
    predicted = embeddings(flow, subject.parameter)[theirs[index]]
    residuals = [procrustes(rows, predicted).residual for rows in trained.reshape(-1, *trained.shape[-2:])]
    time = float(agreement.times[index])
    return _Measured(max(residuals), f"{subject.parameter}, flow {subject.flow}, at t = {time:.4g}", (time, time))


def _error_ratio(evidence: Evidence, subject: _Subject) -> _Measured:
    convergence = evidence.convergences.get(subject.flow or "")
    if convergence is None:
        return _no_convergence(subject)
    # With three or more learning rates there are several ratios; the claim is about the one farthest from 2.
    return _of_convergence(max(convergence.ratios, key=lambda value: abs(math.log(value / 2))), convergence)


def _error_slope(evidence: Evidence, subject: _Subject) -> _Measured:
    convergence = evidence.convergences.get(subject.flow or "")
    return _no_convergence(subject) if convergence is None else _of_convergence(convergence.slope, convergence)


def _of_convergence(value: float, convergence: Convergence) -> _Measured:
    rates = ", ".join(f"{rate:g}" for rate in convergence.learning_rates)
    scope = f"{convergence.parameter}, flow {convergence.prediction}, at t = {convergence.time:.4g}, η = {rates}"
    return _Measured(value, scope, (convergence.time, convergence.time))


def _no_convergence(subject: _Subject) -> _Measured:
    return _Measured(math.nan, f"flow {subject.flow} shares no time with two completed trainings", None)


def _last_good_time(evidence: Evidence, subject: _Subject) -> _Measured:
    flow = evidence.flows[subject.flow or ""]
    last = float(flow.attributes["last_good_time"])
    return _Measured(last, f"flow {subject.flow}, status {flow.status}", (float(flow.times[0]), last))


def _band_coverage(evidence: Evidence, subject: _Subject) -> _Measured:
    found = evidence.coverage
    if found is None:
        return _Measured(math.nan, "no band was predicted", None)
    where = f"{found.seeds} seeds, {found.times} times, {', '.join(found.observables)}"
    times = evidence.training.times
    scope = f"share inside the predicted {found.level:.0%} band: {where}"
    return _Measured(found.share, scope, (float(times[0]), float(times[-1])))


# ---------------------------------------------------------------------------------------------------------------------
# Embeddings of the training or of a flow


def _correlation_peak(evidence: Evidence, subject: _Subject) -> _Measured:
    correlation = evidence.correlations[subject.flow or "training"]
    value, time = correlation.peak
    times = (float(correlation.times[0]), float(correlation.times[-1]))
    return _Measured(value, f"{_of_correlation(correlation)}, at t = {time:.4g}", times)


def _correlation(evidence: Evidence, subject: _Subject) -> _Measured:
    correlation = evidence.correlations[subject.flow or "training"]
    return _at(evidence, subject, getattr(correlation, correlation.measure), _of_correlation(correlation))


def _rank_correlation(evidence: Evidence, subject: _Subject) -> _Measured:
    correlation = evidence.correlations[subject.flow or "training"]
    return _at(evidence, subject, correlation.spearman, f"Spearman, {correlation.name}")


def _correlation_drop(evidence: Evidence, subject: _Subject) -> _Measured:
    correlation = evidence.correlations[subject.flow or "training"]
    series = getattr(correlation, correlation.measure)
    index = _state(evidence, subject)[1]
    drop = np.nanmax(series[..., : index + 1], axis=-1, keepdims=True) - series
    return _at(evidence, subject, drop, f"below its maximum until then, {_of_correlation(correlation)}")


def _of_correlation(correlation: SignatureCorrelation) -> str:
    measure = "Pearson" if correlation.measure == "pearson" else "1 − MSE, Pearson being undefined"
    return f"{measure}, {correlation.name}"


def _probe(order: int, hold_out: HoldOut = "tokens") -> _Measure:
    def measure(evidence: Evidence, subject: _Subject) -> _Measured:
        trajectory, index = _state(evidence, subject)
        signature = label_signature(evidence.dataset, order)
        # A fold of tokens needs three of them.
        folds = 5 if hold_out == "pairs" else min(5, len(signature.tokens) // 3)
        found = probe_correlation(
            trajectory, signature, embedding=subject.parameter, at=[index], folds=folds, hold_out=hold_out
        )
        scope = f"held-out Pearson, {folds} folds of {hold_out}, {trajectory.name}"
        return _mean_over_seeds(found.held_out[..., 0], scope, float(found.times[0]))

    return measure


def _order_two_advantage(evidence: Evidence, subject: _Subject) -> _Measured:
    first, second = (_probe(order, "pairs")(evidence, subject) for order in (1, 2))
    scope = f"{second.value:.4g} of order 2 less {first.value:.4g} of order 1, {second.scope}"
    return _Measured(second.value - first.value, scope, second.times)


def _order_one_gain(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = similarity_decomposition(moment, evidence.dataset, embedding=subject.parameter, orders=(0, 1))
    gain = (found.nested_r2[1] - found.nested_r2[0])[..., 0]
    return _mean_over_seeds(gain, f"R² of orders 0 and 1 less that of order 0, {moment.name}", time)


def _fourier(which: Literal["of", "best", "winner"]) -> _Measure:
    def measure(evidence: Evidence, subject: _Subject) -> _Measured:
        moment, time = _moment(evidence, subject)
        signature = label_signature(evidence.dataset, 1)
        found = fourier_correlation(moment, signature, embedding=subject.parameter)
        values = found.pearson[..., 0, :]
        if which == "of":
            scope = f"ρ_(1),k at k = {subject.frequency}, {moment.name}"
            return _mean_over_seeds(values[..., subject.frequency], scope, time)
        least = 1 if subject.frequency is None else subject.frequency
        above = np.where(np.isnan(values), -np.inf, values)[..., least:]
        winners = ", ".join(map(str, np.unique(above.argmax(axis=-1) + least).tolist()))
        scope = f"largest ρ_(1),k over k ≥ {least}, at k = {winners}, {moment.name}"
        return _mean_over_seeds(above.max(axis=-1) if which == "best" else above.argmax(axis=-1) + least, scope, time)

    return measure


def _accuracy(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = accuracy(moment, evidence.architecture, evidence.dataset)[..., 0]
    return _mean_over_seeds(found, f"over the data, {moment.name}", time)


def _accuracy_peak(evidence: Evidence, subject: _Subject) -> _Measured:
    trajectory = evidence.training if subject.flow is None else evidence.flows[subject.flow]
    best = accuracy(trajectory, evidence.architecture, evidence.dataset).max(axis=-1)
    times = trajectory.parameter_times
    scope = f"over the data, largest of {len(times)} times, {trajectory.name}"
    return _Measured(float(np.mean(best)), scope, (float(times[0]), float(times[-1])))


def _mean_cosine(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = mean_cosine(moment, subject.parameter)[..., 0]
    return _mean_over_seeds(found, f"{subject.parameter}, {moment.name}, mean over pairs of tokens", time)


def _group_contrast(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = group_contrast(moment, subject.parameter, evidence.dataset, subject.tokens)[..., 0]
    return _mean_over_seeds(found, f"{subject.parameter}, {moment.name}, {', '.join(subject.tokens)}", time)


def _norm_growth(evidence: Evidence, subject: _Subject) -> _Measured:
    trajectory, index = _state(evidence, subject)
    found = norm_growth(trajectory, subject.parameter, evidence.dataset, subject.tokens)[..., index]
    time = float(trajectory.parameter_times[index])
    return _mean_over_seeds(found, f"{subject.parameter}, {trajectory.name}, mean norm over that at the start", time)


def _order_zero_accuracy(evidence: Evidence, subject: _Subject) -> _Measured:
    options = _numbers_task(evidence.dataset)
    values = {n: order_zero_accuracy(load_data(evidence.dataset.name, numbers=n)) for n in range(2, options + 1)}
    least = min(values, key=lambda n: values[n])
    return _Measured(values[least], f"{evidence.dataset.name}, N = 2 … {options}, least at N = {least}", None)


def _numbers_task(dataset: Dataset) -> int:
    """N of a task over numbers that its name and N determine. **Raises:** `UserError` for another dataset."""
    numbers = dataset.provenance.get("numbers")
    if not isinstance(numbers, int) or load_data(dataset.name, numbers=numbers).sizes != dataset.sizes:
        raise UserError(f"dataset {dataset.name!r} is no task over numbers with its usual outputs")
    return numbers


def _fourier_peak(evidence: Evidence, subject: _Subject) -> _Measured:
    trajectory, index = _state(evidence, subject)
    share = fourier_profile(embeddings(trajectory, subject.parameter)[..., index, :, :]).share
    peaks = ", ".join(map(str, np.unique(share.argmax(axis=-1)).tolist()))
    scope = f"{subject.parameter}, {trajectory.name}, at k = {peaks}"
    return _mean_over_seeds(share.max(axis=-1), scope, float(trajectory.parameter_times[index]))


def _rank(which: str) -> _Measure:
    def measure(evidence: Evidence, subject: _Subject) -> _Measured:
        trajectory, index = _state(evidence, subject)
        found = effective_rank(embeddings(trajectory, subject.parameter)[..., index, :, :])
        scope = f"{subject.parameter}, {trajectory.name}, {which} of singular values"
        return _mean_over_seeds(getattr(found, which), scope, float(trajectory.parameter_times[index]))

    return measure


def _label_law(which: str) -> _Measure:
    def measure(evidence: Evidence, subject: _Subject) -> _Measured:
        moment, time = _moment(evidence, subject)
        agreement = label_law_agreement(moment, evidence.architecture, evidence.dataset)
        values = getattr(agreement, which)[..., 0, :]
        if subject.tokens:
            values = values[..., [agreement.tokens.index(token) for token in subject.tokens]]
        # Tokens of a uniform law have no correlation, in any seed.
        defined = ~np.isnan(values).reshape(-1, values.shape[-1]).all(axis=0)
        scope = f"{moment.name}, mean over {defined.sum()} of {len(defined)} tokens"
        if not defined.any():
            return _Measured(math.nan, scope, (time, time))
        return _mean_over_seeds(values[..., defined].mean(axis=-1), scope, time)

    return measure


def _attention_entropy(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = attention_profile(moment, evidence.architecture, evidence.dataset)
    scope = f"{found.softmax}, {moment.name}, uniform attention {found.uniform_entropy:.4g}"
    return _mean_over_seeds(found.entropy[..., 0], scope, time)


def _attention_mass(evidence: Evidence, subject: _Subject) -> _Measured:
    moment, time = _moment(evidence, subject)
    found = attention_profile(moment, evidence.architecture, evidence.dataset, {"claimed": subject.tokens})
    scope = f"{found.softmax}, {moment.name}, uniform attention {found.uniform_mass['claimed']:.4g}"
    return _mean_over_seeds(found.mass["claimed"][..., 0], scope, time)


def _at(evidence: Evidence, subject: _Subject, series: np.ndarray, scope: str) -> _Measured:
    """A series ([seed,] time) along the trajectory that the claim is about, at its time."""
    trajectory, index = _state(evidence, subject)
    return _mean_over_seeds(series[..., index], scope, float(trajectory.parameter_times[index]))


def _mean_over_seeds(values: np.ndarray, scope: str, time: float) -> _Measured:
    seeds = f", mean of {values.size} seeds" if values.size > 1 else ""
    return _Measured(float(np.mean(values)), f"{scope}, at t = {time:.4g}{seeds}", (time, time))


def _state(evidence: Evidence, subject: _Subject) -> tuple[Trajectory, int]:
    """The trajectory that the claim is about, and the number of the last parameter time up to the claim's time."""
    trajectory = evidence.training if subject.flow is None else evidence.flows[subject.flow]
    wanted = evidence.half_loss if subject.at is None else subject.at
    return trajectory, _index(trajectory.parameter_times, wanted if math.isfinite(wanted) else math.inf)


def _moment(evidence: Evidence, subject: _Subject) -> tuple[Trajectory, float]:
    """That trajectory at that time alone."""
    trajectory, index = _state(evidence, subject)
    dim = "parameter_time" if "parameter_time" in trajectory.data.dims else "time"
    return Trajectory(trajectory.data.isel({dim: [index]})), float(trajectory.parameter_times[index])


# ---------------------------------------------------------------------------------------------------------------------


def _until(evidence: Evidence, subject: _Subject, agreement: Agreement) -> float:
    if subject.at is not None:
        return subject.at
    return evidence.half_loss if math.isfinite(evidence.half_loss) else float(agreement.times[-1])


def _index(times: np.ndarray, until: float) -> int:
    # Times are products like 31400 · 0.001, which differ from what a file states by rounding.
    return int((times <= until + 1e-9 * abs(until)).nonzero()[0][-1])


def _span(agreement: Agreement) -> tuple[float, float]:
    return float(agreement.times[0]), float(agreement.times[-1])


def _worst_shift(shifts: np.ndarray) -> float:
    """The largest modulus; nan where one of the shifts is not known."""
    return float(np.max(np.abs(shifts)))


_OF_A_FLOW: dict[str, _Measure] = {
    "worst-relative-error": _worst_relative_error,
    "relative-error": _of_series("relative_error", max),
    "token-error": _token_error,
    "direction-cosine": _of_series("direction_cosine", min),
    "displacement-cosine": _of_series("displacement_cosine", min),
    "half-loss-shift": _half_loss_shift,
    "escape-shift": _escape_shift,
    "plateau-shift": _plateau_shift,
    "departure-time": _departure_time,
    "departure-shift": _departure_shift,
    "procrustes-residual": _procrustes_residual,
    "error-ratio": _error_ratio,
    "error-slope": _error_slope,
    "last-good-time": _last_good_time,
}
_OF_A_STATE: dict[str, _Measure] = {
    "signature-correlation-peak": _correlation_peak,
    "signature-correlation": _correlation,
    "signature-correlation-drop": _correlation_drop,
    "signature-rank-correlation": _rank_correlation,
    "order-1-probe": _probe(1),
    "order-1-probe-pairs": _probe(1, "pairs"),
    "order-2-probe": _probe(2),
    "order-2-probe-pairs": _probe(2, "pairs"),
    "order-2-advantage": _order_two_advantage,
    "order-1-gain": _order_one_gain,
    "fourier-correlation": _fourier("of"),
    "fourier-best": _fourier("best"),
    "fourier-winner": _fourier("winner"),
    "fourier-peak": _fourier_peak,
    "effective-rank": _rank("entropy"),
    "participation-ratio": _rank("participation"),
    "label-law-pearson": _label_law("pearson"),
    "label-law-kl": _label_law("kl"),
    "label-law-jsd": _label_law("jsd"),
    "attention-entropy": _attention_entropy,
    "attention-mass": _attention_mass,
    "accuracy": _accuracy,
    "accuracy-peak": _accuracy_peak,
    "mean-cosine": _mean_cosine,
    "group-contrast": _group_contrast,
    "norm-growth": _norm_growth,
    "order-0-accuracy": _order_zero_accuracy,
}
MEASURES: dict[str, _Measure] = {**_OF_A_FLOW, **_OF_A_STATE, "band-coverage": _band_coverage}
_OF_ERROR_OVER_RATES = ("error-ratio", "error-slope")
_OF_ROWS = (
    *("token-error", "procrustes-residual", "fourier-peak", "effective-rank", "participation-ratio"),
    *(
        "order-1-probe",
        "order-1-probe-pairs",
        "order-2-probe",
        "order-2-probe-pairs",
        "order-2-advantage",
        "order-1-gain",
    ),
    *("fourier-correlation", "fourier-best", "fourier-winner", "mean-cosine", "group-contrast", "norm-growth"),
)
_HIGHEST_ORDER = {
    **dict.fromkeys(("order-1-probe", "order-1-probe-pairs", "order-1-gain"), 1),
    **dict.fromkeys(("fourier-correlation", "fourier-best", "fourier-winner"), 1),
    **dict.fromkeys(("order-2-probe", "order-2-probe-pairs", "order-2-advantage"), 2),
}
# Whether a measure needs the claim's tokens, or may have them; of all others they are refused.
_TOKENS_NEEDED = ("attention-mass", "group-contrast", "norm-growth")
_TOKENS_ALLOWED = ("label-law-pearson", "label-law-kl", "label-law-jsd")
_FREQUENCY_ALLOWED = ("fourier-correlation", "fourier-best", "fourier-winner")
_WITHOUT_AGREEMENT = (*_OF_A_STATE, "last-good-time")


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
        if not flows and (claim.flow is not None or claim.measure not in _OF_A_STATE):
            raise UserError(f"claim {name!r} ({claim.measure}) is about a flow, but none starts where this run starts")
        try:
            _check_subject(experiment, claim)
        except UserError as error:
            raise UserError(f"claim {name!r} ({claim.measure}): {error}") from None
        if claim.measure == "band-coverage" and (experiment.noise is None or experiment.training is None):
            raise UserError(f"claim {name!r} (band-coverage) needs the sections [noise] and [training]")
        if rates is None:
            rates = len(set(experiment.training.learning_rate))
        if claim.measure in _OF_ERROR_OVER_RATES and rates < 2:
            raise UserError(
                f"claim {name!r} ({claim.measure}) needs two different values in {_training_key(experiment)}.learning_rate"
            )


def _check_subject(experiment: Experiment, claim: ClaimSection) -> None:
    """Refuse what the measure cannot be taken of, in this architecture and on these data."""
    architecture, dataset = experiment.architecture(), experiment.dataset()
    if claim.measure in _OF_ROWS and claim.parameter is not None:
        axes = architecture.parameters[claim.parameter].axes
        if TOKEN not in axes or len(axes) < 2:
            raise UserError(f"{claim.parameter} with the axes ({', '.join(axes)}) has no rows of tokens")
    if claim.measure.startswith("departure") and not (claim.flow or "").startswith("order-"):
        raise UserError('it is about a flow up to a signature order: set flow = "order-0", say')
    order = _HIGHEST_ORDER.get(claim.measure, 0)
    if order > 0 and (dataset.labels_per_position or dataset.length <= order):
        raise UserError(f"dataset {dataset.name!r} has no label signature of order {order}")
    if claim.measure.startswith("label-law"):
        readout(architecture)
    if claim.measure.startswith("attention"):
        softmax_over_positions(architecture)
    if claim.measure in _TOKENS_NEEDED and not claim.tokens:
        raise UserError("it needs the key tokens: names of the tokens that it is about")
    if claim.tokens and claim.measure not in (*_TOKENS_NEEDED, *_TOKENS_ALLOWED):
        raise UserError(f"it takes no tokens, unlike {', '.join((*_TOKENS_NEEDED, *_TOKENS_ALLOWED))}")
    if claim.frequency is not None and claim.measure not in _FREQUENCY_ALLOWED:
        raise UserError(f"it takes no frequency, unlike {', '.join(_FREQUENCY_ALLOWED)}")
    if claim.measure in _FREQUENCY_ALLOWED:
        _check_frequency(claim, dataset.n_tokens // 2)
    if claim.measure == "order-0-accuracy":
        _numbers_task(dataset)
    for token in claim.tokens:
        if token not in dataset.token_names:
            raise UserError(f"there is no token {token!r}; {nearest(token, dataset.token_names)}")


def _check_frequency(claim: ClaimSection, highest: int) -> None:
    if claim.measure == "fourier-correlation" and claim.frequency is None:
        raise UserError("it needs the key frequency: the k of ρ_(1),k")
    if (claim.frequency or 0) > highest:
        raise UserError(f"the frequency is at most {highest}, half the number of tokens, found {claim.frequency}")


def _training_key(experiment: Experiment) -> str:
    return "sgd" if experiment.sections.training is None else "training"


def evaluate_claims(claims: Mapping[str, ClaimSection], evidence: Evidence, *, parameter: str) -> tuple[Verdict, ...]:
    """Measure every claim.

    **Arguments:** `parameter`: the embedding, which claims are about unless they name another parameter; a claim that
    names no flow is about the first one (a measure of embeddings: about the training). A measure at a time is taken at
    the claim's `at`, by default where the trained loss has halved, and at the last shared time where it has not.

    A measure that turns out not to exist on these numbers leaves the claim "undefined", its scope saying why.
    """
    verdicts = []
    for name, claim in claims.items():
        of_flow = claim.measure in _OF_A_FLOW
        flow = claim.flow or (next(iter(evidence.flows)) if of_flow else None)
        try:
            found = MEASURES[claim.measure](
                evidence, _Subject(flow, claim.parameter or parameter, claim.at, tuple(claim.tokens), claim.frequency)
            )
        except UserError as error:
            found = _Measured(math.nan, str(error), None)
        text = claim.remark or name.replace("_", " ").replace("-", " ")
        convergence = evidence.convergences.get(flow or "") if claim.measure in _OF_ERROR_OVER_RATES else None
        boundary = _boundary(evidence, found, convergence)
        verdicts.append(
            Verdict(name, text, claim.measure, found.scope, found.value, claim.comparison, claim.threshold, boundary)
        )
    return tuple(verdicts)


def _boundary(evidence: Evidence, found: _Measured, convergence: Convergence | None) -> Boundary:
    attributes, dataset = evidence.training.attributes, evidence.dataset
    rates = (attributes.get("learning_rate"),) if convergence is None else convergence.learning_rates
    law = "the exact law" if dataset.exact else "a sample"
    return Boundary(
        times=found.times,
        learning_rates=tuple(rates),
        seeds=evidence.seeds,
        batch=attributes.get("batch"),
        optimizer=attributes.get("optimizer"),
        dtype=attributes.get("dtype"),
        data=f"{dataset.name}, {dataset.n_samples} samples, {law}",
    )
