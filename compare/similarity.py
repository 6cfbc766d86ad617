"""Similarity of embeddings and of probability signatures, and how well the two agree over time.

Rows of the embeddings are held against order-0 label signatures, rows of the unembedding against trace-back signatures.

Source: arXiv 2608.30315, section on measurements (S^emb, S^sig,(0), ρ_(0)); trace-back: arXiv 2509.20124.
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
from theory.language import LABEL, TOKEN, Architecture

# Cosines of one and the same signature differ by rounding alone, a few 1e-16.
_CONSTANT = 1e-12
_CALLED = {TOKEN: "embedding", LABEL: "unembedding"}


@dataclass(frozen=True)
class SignatureSimilarity:
    """S^sig,(0): cosine matrix of the order-0 label signatures φ_α^{y;0} = P(y | α), or of trace-back signatures ψ_ν.

    `matrix` has axes (token, token) over `tokens`, the indices of the tokens taken; `token_names` names them.
    `left_out` names the tokens that never occur and so have no signature; `rarer` counts those not taken. For trace-back
    signatures they are labels, and `axis` is "label". `like_the_mean` names those that centring leaves no signature.
    """

    matrix: np.ndarray
    tokens: np.ndarray
    token_names: tuple[str, ...]
    left_out: tuple[str, ...]
    rarer: int = 0
    axis: str = TOKEN
    like_the_mean: tuple[str, ...] = ()

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
            notes.append(f"left out because they never occur ({len(self.left_out)}): {_listed(self.left_out)}")
        if self.like_the_mean:
            found = _listed(self.like_the_mean)
            notes.append(f"left out because they have the signature of the mean ({len(self.like_the_mean)}): {found}")
        if self.rarer:
            notes.append(
                f"over the {len(self.tokens)} most frequent {self.axis}s; {self.rarer} rarer ones are not used"
            )
        return "; ".join(notes)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")


def signature_similarity(dataset: Dataset, *, at_most: int = 500, centred: bool = False) -> SignatureSimilarity:
    """Order-0 label-signature similarity of the tokens of `dataset`, the `at_most` most frequent ones.

    **Arguments:** `centred`: of φ_α^{y;0}(ν) − P(y = ν), what a token says of the label beyond its frequency.

    **Raises:** `UserError` when fewer than three tokens occur (two pairs at least are needed).
    """
    probability = signatures.token_probability(dataset)
    signature = signatures.label_signature(dataset, 0, _most_frequent(probability, at_most))
    return _similarity(
        dataset,
        signature,
        signatures.label_probability(dataset) if centred else None,
        left_out=dataset.tokens_that_never_occur(),
        occurring=np.count_nonzero(probability),
    )


def trace_back_similarity(dataset: Dataset, *, at_most: int = 500, centred: bool = False) -> SignatureSimilarity:
    """Similarity of the trace-back signatures ψ_ν(β) = P(x_I = β | y = ν) of the labels, the `at_most` most frequent ones.

    With a label at every position these are the previous-token signatures of the next token.

    **Arguments:** `centred`: of ψ_ν(β) − r_β, what a label says of the tokens beyond their frequency r_β.

    **Raises:** `UserError` when fewer than three labels occur.
    """
    probability = signatures.label_probability(dataset)
    signature = signatures.trace_back(dataset, _most_frequent(probability, at_most))
    return _similarity(
        dataset,
        signature,
        signatures.token_probability(dataset) if centred else None,
        left_out=tuple(dataset.label_names[i] for i in np.flatnonzero(probability == 0)),
        occurring=np.count_nonzero(probability),
    )


def _most_frequent(probability: np.ndarray, at_most: int) -> list[int]:
    """The indices of the `at_most` largest positive entries; ties go to the smaller index, and the order is kept."""
    taken = np.sort(np.argsort(-probability, kind="stable")[:at_most])
    return taken[probability[taken] > 0].tolist()


def _similarity(
    dataset: Dataset,
    signature: signatures.Signature,
    centre: np.ndarray | None,
    *,
    left_out: tuple[str, ...],
    occurring: int | np.integer,
) -> SignatureSimilarity:
    rows: signatures.Signature | np.ndarray = signature
    kept = np.arange(len(signature.tokens))
    if centre is not None:
        rows = signature.array - centre
        # What is left of a signature equal to the mean is rounding, and has no direction.
        kept = np.flatnonzero(np.abs(rows).max(axis=1) > _CONSTANT)
        rows = rows[kept]
    if len(kept) < 3:
        beyond = " with a signature that differs from the mean" if centre is not None else ""
        raise UserError(
            f"similarity needs at least three {signature.axis}s that occur{beyond}, dataset {dataset.name!r} has {len(kept)}"
        )
    names = np.array(signature.tokens, dtype=object)
    return SignatureSimilarity(
        matrix=signatures.cosine_similarity(rows),
        tokens=np.asarray(signature.indices)[kept],
        token_names=tuple(names[kept]),
        left_out=left_out,
        rarer=int(occurring) - len(signature.tokens),
        axis=signature.axis,
        like_the_mean=tuple(np.delete(names, kept)),
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

    Against trace-back signatures `embedding` is the unembedding (axes label, embed).

    **Raises:** `UserError` when `embedding` is no parameter with the axis of the signatures' rows and another one.
    """
    vectors = embeddings(trajectory, embedding, axis=similarity.axis)[..., similarity.tokens, :]
    target = pairs(similarity.matrix)
    ranks = rankdata(target)
    members = vectors.reshape(-1, *vectors.shape[-2:])
    pearson, spearman, one_minus_mse = (np.full(len(members), math.nan) for _ in range(3))
    for i, rows in enumerate(members):
        # Rows of zeros, as of an unembedding that starts there, have no direction.
        if not (np.isfinite(rows).all() and rows.any(axis=-1).all()):
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


def embeddings(trajectory: Trajectory, parameter: str, *, axis: str = TOKEN) -> np.ndarray:
    """The embedding `parameter` over time, all its axes but the token's flattened: ([seed,] time, token, width).

    **Arguments:** `axis`: whose rows they are; "label" for an unembedding.
    """
    array = comparison.parameter(trajectory, parameter)
    others = [name for name in array.dims if name not in ("seed", "time", axis)]
    if axis not in array.dims or not others:
        raise UserError(
            f"parameter {parameter!r} with axes ({', '.join(map(str, array.dims))}) is no {_CALLED[axis]}: "
            f"it needs the axis {axis!r} and another one"
        )
    leading = ["seed", "time"] if "seed" in array.dims else ["time"]
    vectors = array.transpose(*leading, axis, *others).to_numpy()
    return vectors.reshape(*vectors.shape[: len(leading) + 1], -1)


def embedding_norms(trajectory: Trajectory, parameter: str) -> np.ndarray:
    """‖w_α‖ of each token over time: ([seed,] time, token)."""
    return np.linalg.norm(embeddings(trajectory, parameter), axis=-1)


def embedding_parameter(architecture: Architecture) -> str:
    """The name of the parameter that embeds tokens: the first with an axis `token` and another one.

    **Raises:** `UserError` when there is none.
    """
    found = _with_rows(architecture, TOKEN)
    if found is None:
        raise UserError(
            f"{architecture.name} embeds no tokens: none of its parameters has an axis 'token' and another one"
        )
    return found


def unembedding_parameter(architecture: Architecture) -> str:
    """The name of the parameter that reads out labels: the first with an axis `label` and another one.

    **Raises:** `UserError` when there is none, as where the unembedding is the embedding.
    """
    found = _with_rows(architecture, LABEL)
    if found is None:
        raise UserError(
            f"{architecture.name} has no unembedding of its own: none of its parameters has an axis 'label' and another one"
        )
    return found


def _with_rows(architecture: Architecture, axis: str) -> str | None:
    return next(
        (name for name, spec in architecture.parameters.items() if axis in spec.axes and len(spec.axes) > 1), None
    )


def pairs(matrix: np.ndarray) -> np.ndarray:
    """The strict upper triangle a < b of a matrix (token, token), as (pair,)."""
    return matrix[np.triu_indices(len(matrix), k=1)]


def pearson_correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation of two arrays (pair,); nan where one of them is constant."""
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b / size) if size > 0 else math.nan
