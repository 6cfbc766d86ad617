"""How much of the embeddings' similarity each signature order explains."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import lsq_linear

from compare.comparison import jsonable
from compare.probes import similarity_of
from compare.similarity import embeddings, pairs
from simulate.trajectory import Trajectory
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.signatures import cosine_similarity, label_signature

_CONSTANT = 1e-12


@dataclass(frozen=True)
class SimilarityDecomposition:
    """S^emb over the pairs a < b, explained by the similarities S^sig,(m) of signatures of several orders.

    Arrays have axes ([seed,] time); nan where S^emb is undefined or the same for all pairs.

    - `weight[m]` ≥ 0: S^emb ≈ constant + Σ_m weight[m] · S^sig,(m), least squares with weights that are not negative (the
      constant may have any sign); nan for an order whose similarity is the same for all pairs (order 0 of modular
      addition), which the constant takes up.
    - `r2`: 1 − residual / variance of that fit.
    - `nested_r2[m]`: R² of ordinary least squares on the orders ≤ m and a constant, weights of any sign. Its steps are what
      an order adds to those below it: variance that two orders share counts for the lower one.
    """

    name: str
    times: np.ndarray
    weight: Mapping[int, np.ndarray]
    r2: np.ndarray
    nested_r2: Mapping[int, np.ndarray]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "times": jsonable(self.times),
            "weight": jsonable(self.weight),
            "r2": jsonable(self.r2),
            "nested_r2": jsonable(self.nested_r2),
        }


def similarity_decomposition(
    trajectory: Trajectory, dataset: Dataset, *, embedding: str, orders: Sequence[int] = (0, 1)
) -> SimilarityDecomposition:
    """Decompose the embedding similarity by signature order along a trajectory.

    S^sig,(m) is the cosine matrix of the whole label signature φ_α^{y;m}, all contexts kept apart, without a probe (see
    `compare.probes` for those). Pairs are not independent, so that R² is a description and no test.

    **Arguments:** `orders`: 0 … L − 1, distinct.

    **Raises:** `UserError` for repeated orders, fewer pairs than columns, or an order that does not exist. Source: ours.
    """
    orders = sorted(orders)
    if not orders or len(set(orders)) < len(orders):
        raise UserError(f"a decomposition needs distinct orders, found {orders}")
    found = [label_signature(dataset, order) for order in orders]
    tokens = found[0].indices
    columns = np.stack([pairs(cosine_similarity(signature)) for signature in found], axis=1)
    if len(columns) <= len(orders) + 1:
        raise UserError(f"{len(tokens)} tokens make {len(columns)} pairs, too few to tell {len(orders)} orders apart")
    centred = columns - columns.mean(axis=0)
    varies = np.ptp(columns, axis=0) > _CONSTANT
    centred[:, ~varies] = 0.0
    rows = embeddings(trajectory, embedding)[..., tokens, :]
    lead = rows.shape[:-2]
    weight, nested = (np.full((*lead, len(orders)), math.nan) for _ in range(2))
    r2 = np.full(lead, math.nan)
    for index in np.ndindex(*lead):
        similarity = similarity_of(rows[index])
        if similarity is None or np.ptp(pairs(similarity)) <= _CONSTANT:
            continue
        # A constant beside the columns is the same as centring all of them.
        target = pairs(similarity) - pairs(similarity).mean()
        total = float(target @ target)
        fitted = np.zeros(len(orders))
        if varies.any():
            fitted[varies] = lsq_linear(centred[:, varies], target, bounds=(0, np.inf), method="bvls").x
        weight[index] = np.where(varies, fitted, math.nan)
        r2[index] = 1 - float(np.sum((target - centred @ fitted) ** 2)) / total
        for m in range(len(orders)):
            left = centred[:, : m + 1]
            nested[index][m] = 1 - float(np.sum((target - left @ np.linalg.lstsq(left, target)[0]) ** 2)) / total
    return SimilarityDecomposition(
        name=trajectory.name,
        times=trajectory.parameter_times,
        weight={order: weight[..., i] for i, order in enumerate(orders)},
        r2=r2,
        nested_r2={order: nested[..., i] for i, order in enumerate(orders)},
    )
