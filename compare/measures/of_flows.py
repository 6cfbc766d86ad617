"""Measures of a flow against the training; over seeds the worst counts, unless their docstring says otherwise."""

from __future__ import annotations

import math

import numpy as np

from compare.comparison import Agreement, Convergence, shared_times
from compare.departures import first_passage
from compare.escape import EscapeShift, escape_shift, plateaus
from compare.measures.evidence import (
    Evidence,
    Measured,
    Subject,
    Take,
    last_up_to,
    mean_of_seeds,
    span,
    wanted_time,
    worst_of_seeds,
)
from compare.similarity import embeddings
from compare.spectra import procrustes
from compare.tokens import by_frequency, token_agreement
from theory.signatures import token_probability


def worst_error(evidence: Evidence, subject: Subject) -> Measured:
    """`worst-relative-error`: ‖θ̂ − θ‖ / ‖θ‖, its largest value up to the time."""
    agreement = evidence.agreements[subject.flow or ""]
    last = last_up_to(agreement.times, wanted_time(evidence, subject, agreement))
    reached = float(agreement.times[last])
    errors = agreement.relative_error[subject.parameter][..., : last + 1].max(axis=-1)
    scope = f"{subject.parameter}, flow {subject.flow}, largest over 0 ≤ t ≤ {reached:.4g}"
    return worst_of_seeds(errors, scope, (float(agreement.times[0]), reached))


def of_series(series: str, *, largest: bool) -> Take:
    """A series of the agreement at the last shared time up to the claim's; `largest`: whether large is bad."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        agreement = evidence.agreements[subject.flow or ""]
        index = last_up_to(agreement.times, wanted_time(evidence, subject, agreement))
        time = float(agreement.times[index])
        values = getattr(agreement, series)[subject.parameter][..., index]
        scope = f"{subject.parameter}, flow {subject.flow}, at t = {time:.4g}"
        return worst_of_seeds(values, scope, (time, time), largest=largest)

    return take


def token_error(evidence: Evidence, subject: Subject) -> Measured:
    """`token-error`: the largest ‖ŵ_α − w_α‖ / ‖w_α‖ over the tokens."""
    agreement = evidence.agreements[subject.flow or ""]
    flow = evidence.flows[subject.flow or ""]
    found = token_agreement(evidence.training, flow, parameter_name=subject.parameter)
    index = last_up_to(found.times, wanted_time(evidence, subject, agreement))
    token = found.worst(index)[1]
    name = evidence.dataset.token_names[token] if isinstance(token, int) else token
    time = float(found.times[index])
    scope = f"{subject.parameter} of token {name}, flow {subject.flow}, at t = {time:.4g}"
    return worst_of_seeds(found.relative_error[..., index, :].max(axis=-1), scope, (time, time))


def of_band(series: str, band: int, *, largest: bool) -> Take:
    """`frequent-token-cosine`, `rare-token-cosine`, …: mean over a third of the tokens (`compare.tokens.by_frequency`).

    **Arguments:** `series`: of `BandAgreement`; `band`: 0 for the most frequent third; `largest`: whether large is bad.
    """

    def take(evidence: Evidence, subject: Subject) -> Measured:
        agreement = evidence.agreements[subject.flow or ""]
        flow = evidence.flows[subject.flow or ""]
        by_token = token_agreement(evidence.training, flow, parameter_name=subject.parameter)
        found = by_frequency(by_token, token_probability(evidence.dataset))
        index = last_up_to(found.times, wanted_time(evidence, subject, agreement))
        time = float(found.times[index])
        share = f"{found.tokens[band]} tokens of probability {found.probability[band]:.4g}"
        scope = f"{subject.parameter}, flow {subject.flow}, mean of {share}, at t = {time:.4g}"
        return worst_of_seeds(getattr(found, series)[..., index, band], scope, (time, time), largest=largest)

    return take


def half_loss_shift(evidence: Evidence, subject: Subject) -> Measured:
    """`half-loss-shift`: |t_½ predicted / trained − 1|."""
    agreement = evidence.agreements[subject.flow or ""]
    scope = f"flow {subject.flow}: |t_½ predicted / t_½ trained − 1|"
    return worst_of_seeds(np.abs(agreement.half_loss_shift), scope, span(agreement))


def _escape(evidence: Evidence, subject: Subject) -> tuple[EscapeShift, str, tuple[float, float]]:
    found = escape_shift(evidence.training, evidence.flows[subject.flow or ""])
    scope = f"flow {subject.flow}, plateaus: |d log loss / d log t| ≤ {found.bound:g}"
    return found, scope, span(evidence.agreements[subject.flow or ""])


def first_escape_shift(evidence: Evidence, subject: Subject) -> Measured:
    """`escape-shift`: |predicted / trained − 1| of the end of the first plateau (`compare.escape`)."""
    found, scope, times = _escape(evidence, subject)
    return worst_of_seeds(np.abs(found.escape_shift), f"end of the first plateau, {scope}", times)


def plateau_shift(evidence: Evidence, subject: Subject) -> Measured:
    """`plateau-shift`: the same of the plateau whose end is predicted worst."""
    found, scope, times = _escape(evidence, subject)
    shifts = np.abs(found.end_shifts)
    values = shifts.max(axis=-1) if shifts.size else np.full(len(shifts), math.nan)
    return worst_of_seeds(values, f"worst of the ends of {shifts.shape[1]} plateaus, {scope}", times)


def _departure(evidence: Evidence, subject: Subject) -> tuple[np.ndarray, str, Agreement]:
    """When the training departs from the claim's flow, for each seed, nan where it does not; and in words."""
    agreement = evidence.agreements[subject.flow or ""]
    times = first_passage(agreement.times, agreement.relative_error[subject.parameter], evidence.departure)
    scope = f"{subject.parameter}, flow {subject.flow}, relative error beyond {evidence.departure:g}"
    if np.isnan(times).any():
        scope += f"; not departed up to t = {agreement.times[-1]:.4g}"
    return np.atleast_1d(times), scope, agreement


def departure_time(evidence: Evidence, subject: Subject) -> Measured:
    """`departure-time`: from a flow "order-m", by more than `flow.departure` (`compare.departures`); the mean of the seeds."""
    times, scope, agreement = _departure(evidence, subject)
    return mean_of_seeds(times, scope, span(agreement))


def departure_shift(evidence: Evidence, subject: Subject) -> Measured:
    """`departure-shift`: |that time / the end of the training's longest plateau − 1|."""
    times, scope, agreement = _departure(evidence, subject)
    ends = []
    for loss in np.atleast_2d(evidence.training["loss"].to_numpy()):
        longest = max(plateaus(evidence.training.times, loss), key=lambda found: found.end - found.start, default=None)
        ends.append(math.nan if longest is None or longest.open_end else longest.end)
    scope = f"|departure / end of the longest plateau, t = {np.mean(ends):.4g}, − 1|: {scope}"
    return worst_of_seeds(np.abs(times / np.array(ends) - 1), scope, span(agreement))


def procrustes_residual(evidence: Evidence, subject: Subject) -> Measured:
    """`procrustes-residual`: of predicted embeddings aligned with the trained ones (`compare.spectra`)."""
    agreement = evidence.agreements[subject.flow or ""]
    flow = evidence.flows[subject.flow or ""]
    ours, theirs = shared_times(evidence.training, flow)
    index = last_up_to(agreement.times, wanted_time(evidence, subject, agreement))
    trained = embeddings(evidence.training, subject.parameter)[..., ours[index], :, :]
    predicted = embeddings(flow, subject.parameter)[theirs[index]]
    residuals = [procrustes(rows, predicted).residual for rows in trained.reshape(-1, *trained.shape[-2:])]
    time = float(agreement.times[index])
    return worst_of_seeds(
        np.array(residuals), f"{subject.parameter}, flow {subject.flow}, at t = {time:.4g}", (time, time)
    )


def error_ratio(evidence: Evidence, subject: Subject) -> Measured:
    """`error-ratio`: by what the error, averaged over seeds, falls when the learning rate halves."""
    convergence = evidence.convergences.get(subject.flow or "")
    if convergence is None:
        return _no_convergence(subject)
    # With three or more learning rates there are several ratios; the claim is about the one farthest from 2.
    return _of_convergence(max(convergence.ratios, key=lambda value: abs(math.log(value / 2))), convergence)


def error_slope(evidence: Evidence, subject: Subject) -> Measured:
    """`error-slope`: the slope of log error, averaged over seeds, against log learning rate."""
    convergence = evidence.convergences.get(subject.flow or "")
    return _no_convergence(subject) if convergence is None else _of_convergence(convergence.slope, convergence)


def _of_convergence(value: float, convergence: Convergence) -> Measured:
    rates = ", ".join(f"{rate:g}" for rate in convergence.learning_rates)
    scope = f"{convergence.parameter}, flow {convergence.prediction}, at t = {convergence.time:.4g}, η = {rates}"
    return Measured(value, scope, (convergence.time, convergence.time))


def _no_convergence(subject: Subject) -> Measured:
    return Measured(math.nan, f"flow {subject.flow} shares no time with two completed trainings", None)


def last_good_time(evidence: Evidence, subject: Subject) -> Measured:
    """`last-good-time`: how far a flow came."""
    flow = evidence.flows[subject.flow or ""]
    last = float(flow.attributes["last_good_time"])
    return Measured(last, f"flow {subject.flow}, status {flow.status}", (float(flow.times[0]), last))


def band_coverage(evidence: Evidence, subject: Subject) -> Measured:
    """`band-coverage`: share of minibatch training inside its predicted band, pooled over seeds."""
    found = evidence.coverage
    if found is None:
        return Measured(math.nan, "no band was predicted", None)
    where = f"{found.seeds} seeds, {found.times} times, {', '.join(found.observables)}"
    times = evidence.training.times
    scope = f"share inside the predicted {found.level:.0%} band: {where}"
    return Measured(found.share, scope, (float(times[0]), float(times[-1])))
