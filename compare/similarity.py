"""Similarity of embeddings and of probability signatures, and how well the two agree over time.

Source: arXiv 2608.30315, section on measurements (S^emb, S^sig,(0), ρ_(0)).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from compare import comparison
from compare.comparison import jsonable
from simulate.trajectory import Trajectory
from theory import signatures
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.language import TOKEN, Architecture

# Cosines of one and the same signature differ by rounding alone, a few 1e-16.
_CONSTANT = 1e-12


@dataclass(frozen=True)
class SignatureSimilarity:
    """S^sig,(0): cosine matrix of the order-0 label signatures φ_α^{y;0} = P(y | α), uncentred.

    `matrix` has axes (token, token) over `tokens`, the indices of the tokens taken; `token_names` names them.
    `left_out` names the tokens that never occur and so have no signature; `rarer` counts those not taken.
    """

    matrix: np.ndarray
    tokens: np.ndarray
    token_names: tuple[str, ...]
    left_out: tuple[str, ...]
    rarer: int = 0

    @property
    def constant(self) -> bool:
        """Whether every pair has the same similarity, so that no correlation is defined."""
        return bool(np.ptp(pairs(self.matrix)) <= _CONSTANT)

    @property
    def note(self) -> str:
        """What is undefined or left out, in words; empty when nothing is."""
        notes = []
        if self.constant:
            notes.append(
                "the signature similarity is the same for every pair, so Pearson and Spearman are undefined: "
                "1 − MSE is reported"
            )
        if self.left_out:
            names = ", ".join(self.left_out[:20]) + (", …" if len(self.left_out) > 20 else "")
            notes.append(f"left out because they never occur ({len(self.left_out)}): {names}")
        if self.rarer:
            notes.append(f"over the {len(self.tokens)} most frequent tokens; {self.rarer} rarer ones are not used")
        return "; ".join(notes)


def signature_similarity(dataset: Dataset, *, at_most: int = 500) -> SignatureSimilarity:
    """Order-0 label-signature similarity of the tokens of `dataset`, the `at_most` most frequent ones.

    **Raises:** `UserError` when fewer than three tokens occur (two pairs at least are needed).
    """
    probability = signatures.token_probability(dataset)
    # Ties go to the smaller index, and the tokens keep their order.
    taken = np.sort(np.argsort(-probability, kind="stable")[:at_most])
    signature = signatures.label_signature(dataset, 0, taken[probability[taken] > 0].tolist())
    if len(signature.tokens) < 3:
        raise UserError(
            f"similarity needs at least three tokens that occur, dataset {dataset.name!r} has {len(signature.tokens)}"
        )
    return SignatureSimilarity(
        matrix=signatures.cosine_similarity(signature),
        tokens=np.asarray(signature.indices),
        token_names=signature.tokens,
        left_out=dataset.tokens_that_never_occur(),
        rarer=int(np.count_nonzero(probability)) - len(signature.tokens),
    )


@dataclass(frozen=True)
class SignatureCorrelation:
    """ρ_(0)(t): how the embedding similarity of a trajectory correlates with the signatures'.

    Arrays have axes ([seed,] time) and run over the pairs a < b of occurring tokens. `pearson`
    and `spearman` are `nan` throughout where the signature similarity is constant (modular
    addition, for one); `one_minus_mse` = 1 − mean (S^emb − S^sig)² is always defined. `note` says
    in words what was left undefined or out.
    """

    name: str
    times: np.ndarray
    pearson: np.ndarray
    spearman: np.ndarray
    one_minus_mse: np.ndarray
    left_out: tuple[str, ...]
    note: str

    @property
    def measure(self) -> str:
        """The measure to read: `"pearson"`, or `"one_minus_mse"` where Pearson is undefined."""
        return "one_minus_mse" if np.all(np.isnan(self.pearson)) else "pearson"

    @property
    def peak(self) -> tuple[float, float]:
        """(value, time) of the maximum over time of `measure`, averaged over seeds."""
        series = getattr(self, self.measure)
        mean = series if series.ndim == 1 else np.nanmean(series, axis=0)
        at = int(np.nanargmax(mean))
        return float(mean[at]), float(self.times[at])

    def to_dict(self) -> dict[str, Any]:
        value, time = self.peak
        return {
            "name": self.name,
            "measure": self.measure,
            "peak": {"value": jsonable(value), "time": jsonable(time)},
            "times": jsonable(self.times),
            "pearson": jsonable(self.pearson),
            "spearman": jsonable(self.spearman),
            "one_minus_mse": jsonable(self.one_minus_mse),
            "left_out": list(self.left_out),
            "note": self.note,
        }


def signature_correlation(
    trajectory: Trajectory, similarity: SignatureSimilarity, *, embedding: str
) -> SignatureCorrelation:
    """ρ_(0)(t) of the parameter `embedding` (axes token, embed) along `trajectory`.

    **Raises:** `UserError` when `embedding` is no parameter with a token axis and another one.
    """
    vectors = embeddings(trajectory, embedding)[..., similarity.tokens, :]
    target = pairs(similarity.matrix)
    ranks = rankdata(target)
    members = vectors.reshape(-1, *vectors.shape[-2:])
    pearson, spearman, one_minus_mse = (np.full(len(members), math.nan) for _ in range(3))
    for i, rows in enumerate(members):
        if not np.all(np.isfinite(rows)):
            continue
        measured = pairs(signatures.cosine_similarity(rows))
        one_minus_mse[i] = 1.0 - np.mean((measured - target) ** 2)
        if not similarity.constant:
            pearson[i] = pearson_correlation(measured, target)
            spearman[i] = pearson_correlation(rankdata(measured), ranks)
    shape = vectors.shape[:-2]
    return SignatureCorrelation(
        name=trajectory.name,
        times=trajectory.parameter_times,
        pearson=pearson.reshape(shape),
        spearman=spearman.reshape(shape),
        one_minus_mse=one_minus_mse.reshape(shape),
        left_out=similarity.left_out,
        note=similarity.note,
    )


def embeddings(trajectory: Trajectory, parameter: str) -> np.ndarray:
    """The embedding `parameter` over time, all its axes but the token's flattened: ([seed,] time, token, width)."""
    array = comparison.parameter(trajectory, parameter)
    others = [axis for axis in array.dims if axis not in ("seed", "time", "token")]
    if "token" not in array.dims or not others:
        raise UserError(
            f"parameter {parameter!r} with axes ({', '.join(map(str, array.dims))}) is no embedding: "
            "it needs the axis 'token' and another one"
        )
    leading = ["seed", "time"] if "seed" in array.dims else ["time"]
    vectors = array.transpose(*leading, "token", *others).to_numpy()
    return vectors.reshape(*vectors.shape[: len(leading) + 1], -1)


def embedding_norms(trajectory: Trajectory, parameter: str) -> np.ndarray:
    """‖w_α‖ of each token over time: ([seed,] time, token)."""
    return np.linalg.norm(embeddings(trajectory, parameter), axis=-1)


def embedding_parameter(architecture: Architecture) -> str:
    """The name of the parameter that embeds tokens: the first with an axis `token` and another one.

    **Raises:** `UserError` when there is none.
    """
    for name, spec in architecture.parameters.items():
        if TOKEN in spec.axes and len(spec.axes) > 1:
            return name
    raise UserError(f"{architecture.name} embeds no tokens: none of its parameters has an axis 'token' and another one")


def pairs(matrix: np.ndarray) -> np.ndarray:
    """The strict upper triangle a < b of a matrix (token, token), as (pair,)."""
    return matrix[np.triu_indices(len(matrix), k=1)]


def pearson_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation of two arrays (pair,); nan where one of them is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b / size) if size > 0 else math.nan
