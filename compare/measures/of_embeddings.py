"""Measures of embeddings, those of the training or of a flow that the claim names, and of data alone; over seeds the mean."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from compare.attention import attention_profile
from compare.decomposition import similarity_decomposition
from compare.label_laws import label_law_agreement
from compare.measures.evidence import (
    Evidence,
    Measured,
    Subject,
    Take,
    mean_at,
    mean_of_seeds,
    moment,
    state,
)
from compare.outcomes import (
    accuracy,
    group_contrast,
    mean_cosine,
    norm_growth,
    order_correlation,
    order_zero_accuracy,
)
from compare.probes import HoldOut, fourier_correlation, probe_correlation
from compare.similarity import embeddings
from compare.spectra import effective_rank, fourier_profile
from theory.data import load as load_data
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.signatures import label_signature


def probe(order: int, hold_out: HoldOut = "tokens") -> Take:
    """`order-1-probe`, …: correlation of fitted probes with what was held out (`compare.probes`)."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        trajectory, index = state(evidence, subject)
        signature = label_signature(evidence.dataset, order)
        # A fold of tokens needs three of them.
        folds = 5 if hold_out == "pairs" else min(5, len(signature.tokens) // 3)
        found = probe_correlation(
            trajectory, signature, embedding=subject.parameter, at=[index], folds=folds, hold_out=hold_out
        )
        scope = f"held-out Pearson, {folds} folds of {hold_out}, {trajectory.name}"
        return mean_at(found.held_out[..., 0], scope, float(found.times[0]))

    return take


def order_two_advantage(evidence: Evidence, subject: Subject) -> Measured:
    """`order-2-advantage`: the probe of order 2 less that of order 1, pairs held out."""
    first, second = (probe(order, "pairs")(evidence, subject) for order in (1, 2))
    scope = f"{second.value:.4g} of order 2 less {first.value:.4g} of order 1, {second.scope}"
    by_seed = None if second.by_seed is None or first.by_seed is None else second.by_seed - first.by_seed
    return Measured(second.value - first.value, scope, second.times, by_seed, second.rule)


def order_one_gain(evidence: Evidence, subject: Subject) -> Measured:
    """`order-1-gain`: what order 1 adds to the R² of order 0 for the embedding similarity (`compare.decomposition`)."""
    at_time, time = moment(evidence, subject)
    found = similarity_decomposition(at_time, evidence.dataset, embedding=subject.parameter, orders=(0, 1))
    gain = (found.nested_r2[1] - found.nested_r2[0])[..., 0]
    return mean_at(gain, f"R² of orders 0 and 1 less that of order 0, {at_time.name}", time)


def fourier(which: Literal["of", "best", "winner"]) -> Take:
    """`fourier-correlation`: ρ_(1),k of the claim's frequency; `fourier-best`: the largest; `fourier-winner`: whose it is."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        at_time, time = moment(evidence, subject)
        signature = label_signature(evidence.dataset, 1)
        found = fourier_correlation(at_time, signature, embedding=subject.parameter)
        values = found.pearson[..., 0, :]
        if which == "of":
            return mean_at(values[..., subject.frequency], f"ρ_(1),k at k = {subject.frequency}, {at_time.name}", time)
        least = 1 if subject.frequency is None else subject.frequency
        above = np.where(np.isnan(values), -np.inf, values)[..., least:]
        winner = above.argmax(axis=-1) + least
        at_k = ", ".join(map(str, np.unique(winner).tolist()))
        scope = f"largest ρ_(1),k over k ≥ {least}, at k = {at_k}, {at_time.name}"
        return mean_at(above.max(axis=-1) if which == "best" else winner, scope, time)

    return take


def fourier_peak(evidence: Evidence, subject: Subject) -> Measured:
    """`fourier-peak`: the largest share of one frequency in what varies with the token (`compare.spectra`)."""
    trajectory, index = state(evidence, subject)
    share = fourier_profile(embeddings(trajectory, subject.parameter)[..., index, :, :]).share
    peaks = ", ".join(map(str, np.unique(share.argmax(axis=-1)).tolist()))
    scope = f"{subject.parameter}, {trajectory.name}, at k = {peaks}"
    return mean_at(share.max(axis=-1), scope, float(trajectory.parameter_times[index]))


def rank(which: str) -> Take:
    """`effective-rank`, `participation-ratio` (`compare.spectra`)."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        trajectory, index = state(evidence, subject)
        found = effective_rank(embeddings(trajectory, subject.parameter)[..., index, :, :])
        scope = f"{subject.parameter}, {trajectory.name}, {which} of singular values"
        return mean_at(getattr(found, which), scope, float(trajectory.parameter_times[index]))

    return take


def label_law(which: str) -> Take:
    """`label-law-pearson`, …: softmax(U w_α) against P(y | α), mean of tokens, or of the claim's (`compare.label_laws`)."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        at_time, time = moment(evidence, subject)
        agreement = label_law_agreement(at_time, evidence.architecture, evidence.dataset)
        values = getattr(agreement, which)[..., 0, :]
        if subject.tokens:
            values = values[..., [agreement.tokens.index(token) for token in subject.tokens]]
        # Tokens of a uniform law have no correlation, in any seed.
        defined = ~np.isnan(values).reshape(-1, values.shape[-1]).all(axis=0)
        scope = f"{at_time.name}, mean over {defined.sum()} of {len(defined)} tokens"
        if not defined.any():
            return Measured(math.nan, scope, (time, time))
        return mean_at(values[..., defined].mean(axis=-1), scope, time)

    return take


def attention_entropy(evidence: Evidence, subject: Subject) -> Measured:
    """`attention-entropy`, in nats (`compare.attention`)."""
    at_time, time = moment(evidence, subject)
    found = attention_profile(at_time, evidence.architecture, evidence.dataset)
    scope = f"{found.softmax}, {at_time.name}, uniform attention {found.uniform_entropy:.4g}"
    return mean_at(found.entropy[..., 0], scope, time)


def attention_mass(evidence: Evidence, subject: Subject) -> Measured:
    """`attention-mass` of the claim's tokens (`compare.attention`)."""
    at_time, time = moment(evidence, subject)
    found = attention_profile(at_time, evidence.architecture, evidence.dataset, {"claimed": subject.tokens})
    scope = f"{found.softmax}, {at_time.name}, uniform attention {found.uniform_mass['claimed']:.4g}"
    return mean_at(found.mass["claimed"][..., 0], scope, time)


def label_accuracy(evidence: Evidence, subject: Subject) -> Measured:
    """`accuracy`: how often the largest logit is the label's."""
    at_time, time = moment(evidence, subject)
    found = accuracy(at_time, evidence.architecture, evidence.dataset)[..., 0]
    return mean_at(found, f"over the data, {at_time.name}", time)


def accuracy_peak(evidence: Evidence, subject: Subject) -> Measured:
    """`accuracy-peak`: its maximum over time."""
    trajectory = evidence.training if subject.flow is None else evidence.flows[subject.flow]
    best = accuracy(trajectory, evidence.architecture, evidence.dataset).max(axis=-1)
    times = trajectory.parameter_times
    scope = f"over the data, largest of {len(times)} times, {trajectory.name}"
    return mean_of_seeds(best, scope, (float(times[0]), float(times[-1])))


def cosine_of_pairs(evidence: Evidence, subject: Subject) -> Measured:
    """`mean-cosine`: of two embeddings."""
    at_time, time = moment(evidence, subject)
    found = mean_cosine(at_time, subject.parameter)[..., 0]
    return mean_at(found, f"{subject.parameter}, {at_time.name}, mean over pairs of tokens", time)


def contrast(evidence: Evidence, subject: Subject) -> Measured:
    """`group-contrast`: mean cosine within the claim's tokens, less that between them and all others."""
    at_time, time = moment(evidence, subject)
    found = group_contrast(at_time, subject.parameter, evidence.dataset, subject.tokens)[..., 0]
    return mean_at(found, f"{subject.parameter}, {at_time.name}, {', '.join(subject.tokens)}", time)


def kept_order(*, cyclic: bool) -> Take:
    """`ordered-similarity`, `cyclic-similarity`: cosine against closeness of the claim's tokens, in the order named."""

    def take(evidence: Evidence, subject: Subject) -> Measured:
        at_time, time = moment(evidence, subject)
        found = order_correlation(at_time, subject.parameter, evidence.dataset, subject.tokens, cyclic=cyclic)
        scope = f"{subject.parameter}, {at_time.name}, {', '.join(subject.tokens)}"
        return mean_at(found[..., 0], scope, time)

    return take


def growth(evidence: Evidence, subject: Subject) -> Measured:
    """`norm-growth`: of the embeddings of the claim's tokens, since the start."""
    trajectory, index = state(evidence, subject)
    found = norm_growth(trajectory, subject.parameter, evidence.dataset, subject.tokens)[..., index]
    scope = f"{subject.parameter}, {trajectory.name}, mean norm over that at the start"
    return mean_at(found, scope, float(trajectory.parameter_times[index]))


def signatures_decide(evidence: Evidence, subject: Subject) -> Measured:
    """`order-0-accuracy`: how often the sum of order-0 signatures decides for the label, the least over N."""
    numbers = numbers_task(evidence.dataset)
    values = {n: order_zero_accuracy(load_data(evidence.dataset.name, numbers=n)) for n in range(2, numbers + 1)}
    least = min(values, key=lambda n: values[n])
    return Measured(values[least], f"{evidence.dataset.name}, N = 2 … {numbers}, least at N = {least}", None)


def numbers_task(dataset: Dataset) -> int:
    """N of a task over numbers that its name and N determine. **Raises:** `UserError` for another dataset."""
    numbers = dataset.provenance.get("numbers")
    if not isinstance(numbers, int) or load_data(dataset.name, numbers=numbers).sizes != dataset.sizes:
        raise UserError(f"dataset {dataset.name!r} is no task over numbers with its usual outputs")
    return numbers
