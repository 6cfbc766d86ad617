"""What an unembedding says of a single embedding, softmax(U w_α), against the label law P(y | α)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import entr, rel_entr, softmax

from compare import comparison
from compare.comparison import cosine, jsonable
from compare.similarity import embedding_parameter
from simulate.trajectory import Trajectory
from theory import language
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.language import LABEL, TOKEN, Architecture, Expression
from theory.signatures import label_signature


@dataclass(frozen=True)
class LabelLawAgreement:
    """softmax(U w_α) against P(y | α) for each token that occurs; arrays ([seed,] time, token).

    - `pearson`: over the labels; nan where one of the two laws is uniform.
    - `kl`: KL(P(y | α) ‖ softmax(U w_α)) in nats.
    - `jsd`: the Jensen–Shannon divergence in nats, between 0 and ln 2.
    """

    name: str
    times: np.ndarray
    tokens: tuple[str, ...]
    pearson: np.ndarray
    kl: np.ndarray
    jsd: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        arrays = {name: jsonable(getattr(self, name)) for name in ("times", "pearson", "kl", "jsd")}
        return {"name": self.name, "tokens": list(self.tokens), **arrays}


def label_law_agreement(trajectory: Trajectory, architecture: Architecture, dataset: Dataset) -> LabelLawAgreement:
    """How far U w_α alone, without context, activation or attention, gives the label law of α along a trajectory.

    Source: arXiv 2608.30315, figure 2A; divergences with natural logarithms.

    **Raises:** `UserError` for an architecture whose unembedding does not read the axis of the embeddings.
    """
    embedding, unembedding, label, width = readout(architecture)
    signature = label_signature(dataset, 0)
    law = signature.array
    lead = ("seed", "time") if trajectory.seeds is not None else ("time",)
    read = comparison.parameter(trajectory, unembedding).transpose(*lead, label, ...).to_numpy()
    rows = (
        comparison.parameter(trajectory, embedding).transpose(*lead, TOKEN, width).to_numpy()[..., signature.indices, :]
    )
    predicted = softmax(np.asarray(rows @ np.swapaxes(read, -1, -2), dtype=np.float64), axis=-1)
    # Entries of a uniform law differ by rounding alone.
    spread = np.minimum(np.ptp(predicted, axis=-1), np.ptp(law, axis=-1)) * law.shape[-1] > 1e-12
    centred, centred_law = (p - p.mean(axis=-1, keepdims=True) for p in (predicted, law))
    middle = (law + predicted) / 2
    jsd = entr(middle).sum(-1) - (entr(law).sum(-1) + entr(predicted).sum(-1)) / 2
    return LabelLawAgreement(
        name=trajectory.name,
        times=trajectory.parameter_times,
        tokens=signature.tokens,
        pearson=np.where(spread, cosine(np.broadcast_to(centred_law, centred.shape), centred), np.nan),
        kl=rel_entr(law, predicted).sum(axis=-1),
        jsd=np.maximum(jsd, 0.0),
    )


def readout(architecture: Architecture) -> tuple[str, str, str, str]:
    """(embedding, unembedding, the unembedding's axis of labels, the embedding's other axis).

    **Raises:** `UserError` when the logits are no product of the two axes' matrix with something.
    """
    embedding = embedding_parameter(architecture)
    axes = architecture.parameters[embedding].axes
    refusal = UserError(
        f"softmax(U w) needs logits that are a product of an unembedding with the axes of the embeddings {embedding} "
        f"({', '.join(axes)}); the last product of {architecture.name} reads something else"
    )
    if len(axes) != 2:
        raise refusal
    width = next(axis for axis in axes if axis != TOKEN)
    logits = architecture.logits
    while isinstance(logits, language.Mark):
        logits = logits.operand
    if not isinstance(logits, language.Dot):
        raise refusal
    for side in (logits.left, logits.right):
        found = _matrix(side)
        if found is not None and sorted(found[1]) == sorted((LABEL, width)):
            name, renamed = found
            own = architecture.parameters[name].axes
            return embedding, name, own[renamed.index(LABEL)], width
    raise refusal


def _matrix(expression: Expression) -> tuple[str, tuple[str, ...]] | None:
    """A parameter and its axes as they are called here; a tied unembedding is the embedding with its tokens renamed."""
    if isinstance(expression, language.Rename) and isinstance(expression.operand, language.Parameter):
        return expression.operand.name, expression.axes
    return (expression.name, expression.axes) if isinstance(expression, language.Parameter) else None
