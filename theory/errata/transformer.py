"""The residual transformer: its paths, the direct one, and the early feed-forward and attention paths (eq. 22)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from theory.errata import instances
from theory.errata.derived import label_driven, on_path
from theory.errata.records import Case, Correction, Instance, PrintedFormula
from theory.signatures import next_token_signature, prefix_signature

_PATHS = ("", "attention 1", "mlp 1")
# A derivative by an imaginary step has no cancellation, so the step may be as small as this.
_STEP = 1e-30
# The loss degree at which attention and feed-forward paths first appear.
_EARLY = 4


def _direct(instance: Instance) -> np.ndarray:
    """r_α^{nt} W^{U,T} φ_α^{y;nt}: (token, embed)."""
    return _through(instance, next_token_signature(instance.data), instance.parameters["U"])


def _early_feed_forward(instance: Instance) -> np.ndarray:
    """C_1 r_α^{nt} (W^U W_2 W_1)ᵀ φ_α^{y;nt} for σ = tanh, C_1 = 1."""
    p = instance.parameters
    return _through(instance, next_token_signature(instance.data), p["U"] @ p["M1"] @ p["W1"])


def _early_attention(weighting: str) -> Callable[[Instance], np.ndarray]:
    """P(x_{I_s} = α) (W^U W^{OV})ᵀ P(y_s | x_{I_s} = α)."""

    def formula(instance: Instance) -> np.ndarray:
        p = instance.parameters
        signature = prefix_signature(instance.data, weighting=weighting)
        return _through(instance, signature, p["U"] @ p["O1"] @ p["V1"])

    return formula


def _through(instance: Instance, signature, matrix: np.ndarray) -> np.ndarray:
    result = np.zeros_like(instance.parameters["E"])
    result[signature.indices] = signature.probability[:, None] * (signature.array @ matrix)
    return result


def _paths(instance: Instance) -> np.ndarray:
    """E of the mean over s of (∂h_s/∂w_α)ᵀ w^U_{y_s}, h the embedding, each module's output, and all: (path + 1, token, embed).

    Derivatives by imaginary steps through the model written out here, independent of any derivation.
    """
    data, table = instance.data, instance.parameters["E"]
    outputs = instance.parameters["U"][data.labels]
    result = np.zeros((len(_PATHS) + 1, *table.shape))
    for index in np.ndindex(*table.shape):
        moved = table.astype(complex)
        moved[index] += 1j * _STEP
        written = _modules(instance, moved)
        slopes = [np.einsum("s,spe,spe->", data.weights, outputs, np.imag(h)) / _STEP / data.length for h in written]
        result[(slice(None), *index)] = [*slopes, sum(slopes)]
    return result


def _modules(instance: Instance, table: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The embedding, the attention's and the feed-forward module's output, each (sample, position, embed)."""
    p, tokens = instance.parameters, instance.data.tokens
    embedded = table[tokens]
    queries, keys, values = (np.einsum("spe,ke->spk", embedded, p[name]) for name in ("Q1", "K1", "V1"))
    exponentials = np.exp(np.einsum("sqk,spk->sqp", queries, keys) / np.sqrt(len(p["Q1"])))
    exponentials = exponentials * np.tri(tokens.shape[1])
    weights = exponentials / exponentials.sum(axis=2, keepdims=True)
    attended = np.einsum("sqp,spv,ev->sqe", weights, values, p["O1"])
    hidden = np.tanh(np.einsum("spe,he->sph", embedded + attended, p["W1"]))
    return embedded, attended, np.einsum("sph,eh->spe", hidden, p["M1"])


def _paths_derived(instance: Instance) -> np.ndarray:
    paths = [label_driven(instance, where=on_path(path)) for path in _PATHS]
    return np.stack([*paths, label_driven(instance)])


def _shape(sample: int, position: int, token: int, label: int, embed: int, **others: int) -> dict[str, int]:
    axes = {"sample": sample, "position": position, "token": token, "label": label, "embed": embed}
    return axes | {"key": 3, "value": 2, "hidden": 4} | others


_SHAPES = (_shape(12, 6, 5, 5, 4), _shape(16, 4, 3, 4, 3, value=4), _shape(10, 8, 4, 3, 5, hidden=2))
_SMALL = (_shape(20, 4, 3, 3, 2), _shape(12, 3, 3, 2, 3))

_EQ_22 = (
    r"r_\alpha (W^U W^{OV})^\top \varphi_\alpha^{y;\mathrm{prefix}}, \quad \varphi_\alpha^{y;\mathrm{prefix}}(\nu) ="
    r" P(x_{s+1} = \nu \mid x_{I_s} = \alpha), \ %s"
)

RECORDS = (
    PrintedFormula(
        name="path-sum",
        place="transformer, path decomposition",
        equation="number not in the notes",
        latex=r"\dot w_\alpha^{y} = G^{\mathrm{direct}} + \sum_l G^{\mathrm{attn},l} + \sum_l G^{\mathrm{ffn},l}, \quad"
        r" G^{m} = \mathbb{E}\bigl[(\partial m_s / \partial w_\alpha)^\top w^U_{x_{s+1}}\bigr]",
        formula=_paths,
        derived=_paths_derived,
        terms="label-driven terms by path, and all of them, everything kept",
        cases=(Case(instances.transformer, _SMALL),),
    ),
    PrintedFormula(
        name="direct-path",
        place="transformer, direct path",
        equation="number not in the notes",
        latex=r"G^{\mathrm{direct}} = r_\alpha^{\mathrm{nt}} W^{U,\top} \varphi_\alpha^{y;\mathrm{nt}}",
        formula=_direct,
        derived=lambda instance: label_driven(instance, where=on_path("")),
        terms="label-driven terms that pass through no module",
        cases=(Case(instances.transformer, _SHAPES),),
    ),
    PrintedFormula(
        name="feed-forward-path",
        place="transformer, feed-forward path early",
        equation="number not in the notes",
        latex=r"G^{\mathrm{ffn}} \approx C_1 r_\alpha^{\mathrm{nt}} (W^U W_2 W_1)^\top \varphi_\alpha^{y;\mathrm{nt}}",
        formula=_early_feed_forward,
        derived=lambda instance: label_driven(instance, _EARLY, on_path("mlp 1")),
        terms="label-driven terms of the feed-forward path at its first degree",
        cases=(Case(instances.transformer, _SHAPES),),
        note="The notes say only that the path has effective length 1 and holds the next-token signature alone; the "
        "prefactor is that of Theorem 1 at L = 1.",
    ),
    PrintedFormula(
        name="attention-path",
        place="transformer, attention path early",
        equation="(22)",
        latex=_EQ_22 % r"(s, I_s) \text{ uniform over all pairs } I_s \leq s",
        formula=_early_attention("pair"),
        derived=lambda instance: label_driven(instance, _EARLY, on_path("attention 1")),
        terms="label-driven terms of the attention path at its first degree (uniform causal attention)",
        cases=(Case(instances.transformer, _SHAPES),),
        correction=Correction(
            _EQ_22 % r"s \text{ uniform}, \ I_s \sim \mathrm{Unif}\{1, \dots, s\}", _early_attention("position")
        ),
        remark="Every position s weighs the same in the loss and shares its weight between the s places of its prefix, 1/s "
        "each; uniform pairs count late positions s times.",
        note="The error is one less the cosine, since the printed prefactor is not in the notes; the correction is compared in "
        "full.",
        metric="direction",
    ),
)
