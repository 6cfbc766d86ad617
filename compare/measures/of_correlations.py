"""How the similarity of rows of a parameter follows that of signatures (`compare.similarity`); over seeds the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from compare.measures.evidence import Evidence, Measured, Subject, along, of_mean_curve, state
from compare.similarity import (
    SignatureCorrelation,
    SignatureSimilarity,
    signature_correlation,
    signature_similarity,
    trace_back_similarity,
    unembedding_parameter,
)
from simulate.trajectory import Trajectory


def correlation_peak(evidence: Evidence, subject: Subject) -> Measured:
    """`signature-correlation-peak`: the maximum over time of ρ_(0), over seeds that of their mean curve."""
    return _peak_of(evidence.correlations[subject.flow or "training"])


def correlation(evidence: Evidence, subject: Subject) -> Measured:
    """`signature-correlation`: ρ_(0), or 1 − MSE where Pearson is undefined."""
    return _at_time_of(evidence, subject, evidence.correlations[subject.flow or "training"])


@dataclass(frozen=True)
class CorrelationWith:
    """`…-correlation-peak` and `…-correlation` of rows of a parameter with signatures other than φ_α^{y;0} as it stands.

    `similarity`: of the signatures, with the option `centred`; see `compare.similarity`.
    """

    similarity: Callable[..., SignatureSimilarity]
    centred: bool = False

    def peak(self, evidence: Evidence, subject: Subject) -> Measured:
        """The maximum over time, over seeds that of their mean curve."""
        return _peak_of(self._found(evidence, subject, state(evidence, subject)[0]))

    def at_time(self, evidence: Evidence, subject: Subject) -> Measured:
        """At the claim's time; 1 − MSE where Pearson is undefined."""
        return _at_time_of(evidence, subject, self._found(evidence, subject, state(evidence, subject)[0]))

    def _found(self, evidence: Evidence, subject: Subject, trajectory: Trajectory) -> SignatureCorrelation:
        similarity = self.similarity(evidence.dataset, centred=self.centred)
        parameter = subject.parameter
        # A claim is about the embedding unless it says otherwise; a check has refused what has no such rows.
        if similarity.axis not in evidence.architecture.parameters[parameter].axes:
            parameter = unembedding_parameter(evidence.architecture)
        return signature_correlation(trajectory, similarity, embedding=parameter)


CENTRED = CorrelationWith(signature_similarity, centred=True)
TRACED = CorrelationWith(trace_back_similarity)
CENTRED_TRACED = CorrelationWith(trace_back_similarity, centred=True)


def _peak_of(found: SignatureCorrelation) -> Measured:
    value, time = found.peak
    times = (float(found.times[0]), float(found.times[-1]))
    peaks = np.fmax.reduce(getattr(found, found.measure), axis=-1)
    return of_mean_curve(value, peaks, f"{_of_correlation(found)}, at t = {time:.4g}", times)


def _at_time_of(evidence: Evidence, subject: Subject, found: SignatureCorrelation) -> Measured:
    return along(evidence, subject, getattr(found, found.measure), _of_correlation(found))


def rank_correlation(evidence: Evidence, subject: Subject) -> Measured:
    """`signature-rank-correlation`: Spearman's."""
    found = evidence.correlations[subject.flow or "training"]
    return along(evidence, subject, found.spearman, f"Spearman, {found.name}")


def correlation_drop(evidence: Evidence, subject: Subject) -> Measured:
    """`signature-correlation-drop`: the maximum of ρ_(0) up to the time, less its value there."""
    found = evidence.correlations[subject.flow or "training"]
    series = getattr(found, found.measure)
    index = state(evidence, subject)[1]
    drop = np.nanmax(series[..., : index + 1], axis=-1, keepdims=True) - series
    return along(evidence, subject, drop, f"below its maximum until then, {_of_correlation(found)}")


def _of_correlation(correlation: SignatureCorrelation) -> str:
    measure = "Pearson" if correlation.measure == "pearson" else "1 − MSE, Pearson being undefined"
    return f"{measure}, {correlation.name}"
