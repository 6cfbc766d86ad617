"""Probes of higher signature orders: which contraction of φ^{y;m} has the similarity of the embeddings?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from compare.comparison import jsonable
from compare.similarity import embeddings, pairs, pearson_correlation
from simulate.trajectory import Trajectory
from theory.errors import UserError, nearest
from theory.signatures import Signature, cosine_similarity

HoldOut = Literal["tokens", "pairs"]
Objective = Literal["pearson", "mse"]

# As in arXiv 2608.30315: Adam with its usual constants.
_RATE, _STEPS = 0.01, 300
_BETAS, _EPSILON = (0.9, 0.999), 1e-8
# Similarities that differ by no more are the same up to rounding.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class ProbeFit:
    """A probe v fitted so that the cosines of φ_α^{y;m} · v^{⊗m} are those of the embeddings.

    - `vector`: v (context token,), of length 1, fitted on all pairs; cosines do not depend on its size, and for even
      orders not on its sign. `pearson`, `mse`: of these cosines with those of the embeddings, on the pairs it was fitted on.
    - `held_out_pearson`, `held_out_mse`: (fold,), of probes fitted without the fold; `hold_out`: "tokens" or "pairs".
    """

    order: int
    objective: Objective
    hold_out: HoldOut
    vector: np.ndarray
    pearson: float
    mse: float
    held_out_pearson: np.ndarray
    held_out_mse: np.ndarray

    @property
    def mean_held_out_pearson(self) -> float:
        """The mean over folds, the number to report; nan where a fold has none."""
        return float(self.held_out_pearson.mean())

    def to_dict(self) -> dict[str, Any]:
        names = ("vector", "pearson", "mse", "held_out_pearson", "held_out_mse", "mean_held_out_pearson")
        arrays = {name: jsonable(getattr(self, name)) for name in names}
        return {"order": self.order, "objective": self.objective, "hold_out": self.hold_out, **arrays}


def fit_probe(
    signature: Signature,
    similarity: np.ndarray,
    *,
    folds: int = 5,
    hold_out: HoldOut = "tokens",
    objective: Objective = "pearson",
    steps: int = _STEPS,
    starts: int = 4,
    seed: int = 0,
) -> ProbeFit:
    """Fit S^sig,(m)(v), the cosine matrix of h_α = φ_α^{y;m} · v^{⊗m}, to an embedding similarity, cross-validated.

    As in the paper v starts from N(0, 1/|X|) for each of the |X| context tokens and takes 300 steps of Adam at 0.01 on
    Pearson's correlation over the pairs a < b. This has local optima, so that of several starts the best on the fitted
    pairs is kept; the paper does not say that it took more than one. Order 2 uses the same v twice (a rank-one probe, like
    the products of embeddings that φ^{y;2} meets in the flow).

    **Cross-validation.** The paper holds out token *pairs* ("pairs"): then every held-out token was seen in other pairs,
    which fix its row almost, and the held-out number flatters. The default "tokens" holds out tokens: a probe is fitted on
    the pairs with neither token in the fold and judged on those with both in it, so that nothing of a judged token's
    signature or embedding entered. A fold then needs three tokens.

    **Arguments:** `signature`: of order m ≥ 1, with the mode label and m context modes; `similarity`: S^emb (token, token)
    over the signature's rows; `objective`: "pearson", or "mse" (the mean squared difference); `seed`: of starts and folds.

    **Raises:** `UserError` for a signature of order 0, other shapes, too many folds, or a similarity that is the same for
    all pairs (Pearson has no meaning then). Source: arXiv 2608.30315, section on measurements.
    """
    tensor = _tensor(signature)
    n = len(tensor)
    similarity = np.asarray(similarity, dtype=np.float64)
    if similarity.shape != (n, n):
        raise UserError(f"the similarity must have a row and a column for each of {n} tokens, found {similarity.shape}")
    if objective not in ("pearson", "mse"):
        raise UserError(f"unknown objective {objective!r}; {nearest(objective, ('pearson', 'mse'))}")
    if objective == "pearson" and np.ptp(pairs(similarity)) <= _CONSTANT:
        raise UserError('the embedding similarity is the same for all pairs: a probe has no correlation, use "mse"')
    rng = np.random.default_rng(seed)
    every = np.triu(np.ones((n, n), dtype=bool), k=1)
    splits = list(_splits(n, folds, hold_out, rng))
    if starts < 1:
        raise UserError(f"a probe needs at least one start, found {starts}")

    def fitted(on: np.ndarray) -> np.ndarray:
        found = [_fitted(tensor, similarity, on, objective, steps, rng) for _ in range(starts)]
        return min(found, key=lambda v: _value(tensor, v, similarity, on, objective))

    vector = fitted(every)
    fitted_pearson, fitted_mse = _scores(tensor, vector, similarity, every)
    held_out = []
    for fit_on, judge_on in splits:
        held_out.append(_scores(tensor, fitted(fit_on), similarity, judge_on))
    held_out_pearson, held_out_mse = np.array(held_out).T
    return ProbeFit(
        order=signature.order,
        objective=objective,
        hold_out=hold_out,
        vector=vector / np.linalg.norm(vector),
        pearson=fitted_pearson,
        mse=fitted_mse,
        held_out_pearson=held_out_pearson,
        held_out_mse=held_out_mse,
    )


@dataclass(frozen=True)
class ProbeCorrelation:
    """Probes refitted at each time: arrays ([seed,] time), nan where the embeddings have no similarity to fit.

    `fitted` is Pearson's correlation on the pairs fitted on, `held_out` its mean over folds, `held_out_mse` likewise.
    """

    name: str
    order: int
    hold_out: HoldOut
    times: np.ndarray
    fitted: np.ndarray
    held_out: np.ndarray
    held_out_mse: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: jsonable(getattr(self, name)) for name in ("times", "fitted", "held_out", "held_out_mse")}
        return {"name": self.name, "order": self.order, "hold_out": self.hold_out, **arrays}


def probe_correlation(
    trajectory: Trajectory,
    signature: Signature,
    *,
    embedding: str,
    at: Sequence[int] | None = None,
    folds: int = 5,
    hold_out: HoldOut = "tokens",
    starts: int = 4,
    seed: int = 0,
) -> ProbeCorrelation:
    """ρ_(m)(t) of fitted probes along a trajectory, refitted at each time.

    **Arguments:** `at`: numbers of the parameter save times (default: all; each costs (`folds` + 1) × `starts` fits);
    others as for `fit_probe`.
    """
    chosen = list(range(len(trajectory.parameter_times)) if at is None else at)
    rows = embeddings(trajectory, embedding)[..., chosen, :, :][..., signature.indices, :]
    numbers = np.full((*rows.shape[:-2], 3), math.nan)
    for index in np.ndindex(*rows.shape[:-2]):
        similarity = similarity_of(rows[index])
        if similarity is None or np.ptp(pairs(similarity)) <= _CONSTANT:
            continue
        fit = fit_probe(signature, similarity, folds=folds, hold_out=hold_out, starts=starts, seed=seed)
        numbers[index] = fit.pearson, fit.mean_held_out_pearson, fit.held_out_mse.mean()
    return ProbeCorrelation(
        name=trajectory.name,
        order=signature.order,
        hold_out=hold_out,
        times=trajectory.parameter_times[chosen],
        fitted=numbers[..., 0],
        held_out=numbers[..., 1],
        held_out_mse=numbers[..., 2],
    )


@dataclass(frozen=True)
class FourierCorrelation:
    """ρ_(1),k(t): `pearson` ([seed,] time, frequency), k = 0 … ⌊n/2⌋; nan where a similarity is constant or undefined."""

    name: str
    times: np.ndarray
    frequencies: np.ndarray
    pearson: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: jsonable(getattr(self, name)) for name in ("times", "frequencies", "pearson")}
        return {"name": self.name, **arrays}


def fourier_correlation(
    trajectory: Trajectory, signature: Signature, *, embedding: str, cycle: Sequence[str] | None = None
) -> FourierCorrelation:
    """Correlation of S^emb with the cosines of φ_α^{y;1} c_k, c_k(j) = cos(2πkj/n), without any fit.

    **Arguments:** `signature`: of order 1; `cycle`: names of the n tokens in cyclic order, the first of them j = 0 (default:
    all tokens in the order of the vocabulary); other tokens have no part in it.

    **Raises:** `UserError` for a signature of another order, an unknown token, or fewer than three tokens that occur.
    Source: arXiv 2608.30315, section on measurements and figure 4.
    """
    if signature.order != 1:
        raise UserError(f"a Fourier probe contracts a signature of order 1, found order {signature.order}")
    _tensor(signature)
    names = list(signature.mode_names[-1])
    members = names if cycle is None else list(cycle)
    for name in members:
        if name not in names:
            raise UserError(f"the cycle names no token: {name!r}; {nearest(str(name), names)}")
    places = np.array([names.index(name) for name in members])
    n = len(places)
    probes = np.zeros((len(names), n // 2 + 1))
    probes[places] = np.cos(2 * np.pi * np.outer(np.arange(n), np.arange(n // 2 + 1)) / n)
    taken = np.flatnonzero(np.isin(signature.indices, places))
    if len(taken) < 3:
        raise UserError(f"correlation over pairs needs three tokens of the cycle that occur, found {len(taken)}")
    contracted = signature.contract(probes)[taken]
    targets = [similarity_of(contracted[..., k], rounding=1e-12) for k in range(probes.shape[1])]
    rows = embeddings(trajectory, embedding)[..., signature.indices[taken], :]
    found = np.full((*rows.shape[:-2], probes.shape[1]), math.nan)
    for index in np.ndindex(*rows.shape[:-2]):
        similarity = similarity_of(rows[index])
        for k, target in enumerate(targets):
            if similarity is not None and target is not None and np.ptp(pairs(target)) > _CONSTANT:
                found[index][k] = pearson_correlation(pairs(similarity), pairs(target))
    return FourierCorrelation(trajectory.name, trajectory.parameter_times, np.arange(probes.shape[1]), found)


def similarity_of(rows: np.ndarray, *, rounding: float = 0.0) -> np.ndarray | None:
    """The cosine matrix of rows (token, width), or None where a row is zero (up to `rounding`, relative) or not finite."""
    norms = np.linalg.norm(rows, axis=-1)
    if not np.all(np.isfinite(norms)) or np.any(np.abs(rows).max(axis=-1) <= rounding * norms.max()):
        return None
    return cosine_similarity(rows)


def _tensor(signature: Signature) -> np.ndarray:
    """(token, label, context, …)."""
    contexts = tuple(f"context_{r + 1}" for r in range(signature.order))
    if signature.order < 1 or signature.modes != ("label", *contexts):
        raise UserError(
            "a probe contracts the context of a label signature of order at least 1, found a "
            f"{signature.kind} signature of order {signature.order}"
        )
    return signature.array


def _splits(n: int, folds: int, hold_out: str, rng: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(pairs to fit on, pairs to judge on), as boolean matrices (token, token) above the diagonal."""
    above = np.triu(np.ones((n, n), dtype=bool), k=1)
    if hold_out not in ("tokens", "pairs"):
        raise UserError(f"cannot hold out {hold_out!r}; {nearest(hold_out, ('tokens', 'pairs'))}")
    units = n if hold_out == "tokens" else int(above.sum())
    if not 2 <= folds <= units // 3:
        raise UserError(
            f"{units} {hold_out} make 2 … {units // 3} folds of at least three {hold_out}, found folds = {folds}"
        )
    shuffled = rng.permutation(units)
    for fold in range(folds):
        if hold_out == "tokens":
            out = np.zeros(n, dtype=bool)
            out[shuffled[fold::folds]] = True
            yield above & ~out[:, None] & ~out[None, :], above & out[:, None] & out[None, :]
        else:
            row, column = np.nonzero(above)
            judge = np.zeros((n, n), dtype=bool)
            judge[row[shuffled[fold::folds]], column[shuffled[fold::folds]]] = True
            yield above & ~judge, judge


def _contracted(tensor: np.ndarray, vector: np.ndarray, keep: int) -> np.ndarray:
    """All context modes but the first `keep` contracted with the vector."""
    while tensor.ndim > 2 + keep:
        tensor = tensor @ vector
    return tensor


def _cosines(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cosine matrix, unit rows, norms); a row of zeros has the cosine 0."""
    norms = np.linalg.norm(rows, axis=1)
    unit = rows / np.where(norms > 0, norms, 1.0)[:, None]
    return unit @ unit.T, unit, norms


def _scores(tensor: np.ndarray, vector: np.ndarray, similarity: np.ndarray, on: np.ndarray) -> tuple[float, float]:
    """(Pearson, mean squared difference) over the pairs `on`; Pearson is nan where either side is constant."""
    found, target = _cosines(_contracted(tensor, vector, 0))[0][on], similarity[on]
    constant = min(np.ptp(found), np.ptp(target)) <= _CONSTANT
    return math.nan if constant else pearson_correlation(found, target), float(np.mean((found - target) ** 2))


def _value(tensor: np.ndarray, vector: np.ndarray, similarity: np.ndarray, on: np.ndarray, objective: str) -> float:
    """What Adam makes small; inf where it is undefined."""
    correlation, mse = _scores(tensor, vector, similarity, on)
    value = mse if objective == "mse" else -correlation
    return math.inf if math.isnan(value) else value


def _fitted(
    tensor: np.ndarray, similarity: np.ndarray, on: np.ndarray, objective: str, steps: int, rng: np.random.Generator
) -> np.ndarray:
    """v after `steps` steps of Adam."""
    size = tensor.shape[-1]
    vector = rng.normal(0.0, size**-0.5, size)
    first, second = np.zeros(size), np.zeros(size)
    for step in range(1, steps + 1):
        gradient = _gradient(tensor, vector, similarity, on, objective)
        first += (1 - _BETAS[0]) * (gradient - first)
        second += (1 - _BETAS[1]) * (gradient**2 - second)
        corrected = first / (1 - _BETAS[0] ** step), second / (1 - _BETAS[1] ** step)
        vector = vector - _RATE * corrected[0] / (np.sqrt(corrected[1]) + _EPSILON)
    return vector


def _gradient(
    tensor: np.ndarray, vector: np.ndarray, similarity: np.ndarray, on: np.ndarray, objective: str
) -> np.ndarray:
    """d/dv of −Pearson or of the mean squared difference; contexts are exchangeable, so that all m slots give the same."""
    open_slot = _contracted(tensor, vector, 1)
    cosines, unit, norms = _cosines(open_slot @ vector)
    found, target = cosines[on], similarity[on]
    if objective == "mse":
        by_pair = 2 * (found - target) / len(found)
    else:
        centred, centred_target = found - found.mean(), target - target.mean()
        size, size_target = np.linalg.norm(centred), np.linalg.norm(centred_target)
        if size == 0 or size_target == 0:
            return np.zeros(len(vector))
        correlation = centred @ centred_target / (size * size_target)
        by_pair = -(centred_target / size_target - correlation * centred / size) / size
    by_cosine = np.zeros_like(similarity)
    by_cosine[on] = by_pair
    by_unit = (by_cosine + by_cosine.T) @ unit
    by_row = by_unit - unit * np.sum(unit * by_unit, axis=1, keepdims=True)
    by_row /= np.where(norms > 0, norms, 1.0)[:, None]
    return (tensor.ndim - 2) * np.tensordot(by_row, open_slot, axes=((0, 1), (0, 1)))
