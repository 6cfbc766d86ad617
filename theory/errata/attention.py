"""The attention model read at its last position, f = W^U W^{OV} Σ_s a_s w_{x_s}: Theorem 3 and appendix B.5.

The label-driven term is written in position-specific signatures φ and conditional means ψ of attention weights, as printed:
φ_α^{y;x_s}(ν, β) = P(y=ν, x_s=β | x_I=α), ψ_α^{y,x_s} = E[a_I … | y=ν, x_s=β, x_I=α].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from theory.errata import instances
from theory.errata.derived import label_driven, on_branch
from theory.errata.records import Case, Correction, Instance, PrintedFormula
from theory.signatures import label_signature, position_signature, token_probability

_BETWEEN = "one of (16)–(19); which one the notes do not say"


@dataclass(frozen=True)
class _Model:
    """The products that the paper writes with, and the attention weights of each sample.

    W^{OV} = W^O W^V (embed, embed); W^{QK} = W^{K,T} W^Q (embed, embed); weights a_s (sample, position).
    """

    instance: Instance

    @property
    def embedding(self) -> np.ndarray:
        return self.instance.parameters["E"]

    @property
    def unembedding(self) -> np.ndarray:
        return self.instance.parameters["U"]

    @property
    def ov(self) -> np.ndarray:
        return self.instance.parameters["O"] @ self.instance.parameters["V"]

    @property
    def qk(self) -> np.ndarray:
        return self.instance.parameters["K"].T @ self.instance.parameters["Q"]

    @property
    def root(self) -> float:
        """√d, d the width."""
        return float(np.sqrt(self.embedding.shape[1]))

    @property
    def weights(self) -> np.ndarray:
        at = self.embedding[self.instance.data.tokens]
        scores = np.einsum("sie,ef,sf->si", at, self.qk, at[:, -1]) / self.root
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
        return exponentials / exponentials.sum(axis=1, keepdims=True)

    @property
    def bilinear(self) -> np.ndarray:
        """(w^U_ν)ᵀ W^{OV} w_β: (label, token)."""
        return self.unembedding @ self.ov @ self.embedding.T

    @property
    def occurrence(self) -> np.ndarray:
        """L r_α: (token)."""
        return self.instance.data.length * token_probability(self.instance.data)


def _mean(instance: Instance, shape: tuple[int, ...], entries) -> np.ndarray:
    """E[value | events], from (event indices …, value) per sample; entries for several positions are added up.

    Both sums run over the same entries, so that an event that never happens has mean 0.
    """
    total, count = np.zeros(shape), np.zeros(shape)
    for *index, value in entries:
        np.add.at(total, tuple(index), instance.data.weights * value)
        np.add.at(count, tuple(index), instance.data.weights)
    return np.divide(total, count, out=np.zeros(shape), where=count > 0)


def _value(instance: Instance) -> np.ndarray:
    """L r_α (W^U W^{OV})ᵀ (φ_α^{y;0} ⊙ ψ_α^y)."""
    model, data, attention = _Model(instance), instance.data, _Model(instance).weights
    shape = (data.n_tokens, data.n_labels)
    psi = _mean(instance, shape, ((data.tokens[:, i], data.labels, attention[:, i]) for i in range(data.length)))
    phi = label_signature(data, 0).array
    return model.occurrence[:, None] * ((phi * psi) @ (model.unembedding @ model.ov))


def _key(swapped: bool) -> Callable[[Instance], np.ndarray]:
    """The key term as two contractions, of φ_α^{y;x_L} ⊙ ψ and of Σ_s φ_α^{y;x_L,x_s} ⊙ ψ.

    The second tensor has a value factor (w^U_ν)ᵀ W^{OV} w and an outer factor w. `swapped`: its context indices in the order
    (value, outer), which meet the signature's (x_L, x_s); otherwise outer = x_L, value = x_s.
    """

    def formula(instance: Instance) -> np.ndarray:
        model, data, attention = _Model(instance), instance.data, _Model(instance).weights
        length, tokens, labels, table = data.length, data.tokens, data.labels, model.embedding
        one = (data.n_tokens, data.n_labels, data.n_tokens)
        psi = _mean(instance, one, ((tokens[:, i], labels, tokens[:, -1], attention[:, i]) for i in range(length)))
        phi = position_signature(data, [-1]).array
        bracket = np.einsum("avb,va,be->ae", phi * psi, model.bilinear, table)
        subscripts = "avbc,vb,ce->ae" if swapped else "avbc,vc,be->ae"
        for s in range(length):
            entries = (
                (tokens[:, i], labels, tokens[:, -1], tokens[:, s], attention[:, i] * attention[:, s])
                for i in range(length)
            )
            psi = _mean(instance, (*one, data.n_tokens), entries)
            phi = position_signature(data, [-1, s]).array
            bracket -= np.einsum(subscripts, phi * psi, model.bilinear, table)
        return model.occurrence[:, None] / model.root * (bracket @ model.qk.T)

    return formula


def _key_average(instance: Instance) -> np.ndarray:
    """(L r_α/√d) W^{QK} E[a_I (w^U_y)ᵀ W^{OV} (w_α − w̄) w_{x_L} | α]."""
    model, data, attention = _Model(instance), instance.data, _Model(instance).weights
    at = model.embedding[data.tokens]
    scores = model.bilinear[data.labels[:, None], data.tokens]
    gain = attention * (scores - np.sum(attention * scores, axis=1, keepdims=True))
    outer = np.einsum("s,si,se->sie", data.weights, gain, at[:, -1])
    total = np.zeros_like(model.embedding)
    np.add.at(total, data.tokens, outer)
    return total @ model.qk.T / model.root


def _query(transposed: bool) -> Callable[[Instance], np.ndarray]:
    """The query term as two contractions, of Σ_s φ_{α,x_L}^{y;x_s} ⊙ ψ and of Σ_{s,u} φ_{α,x_L}^{y;x_s,x_u} ⊙ ψ.

    `transposed`: W^{QK,T} in front, otherwise W^{QK}.
    """

    def formula(instance: Instance) -> np.ndarray:
        model, data, attention = _Model(instance), instance.data, _Model(instance).weights
        length, tokens, labels, table = data.length, data.tokens, data.labels, model.embedding
        one = (data.n_tokens, data.n_labels, data.n_tokens)
        bracket = np.zeros_like(table)
        for s in range(length):
            psi = _mean(instance, one, [(tokens[:, -1], labels, tokens[:, s], attention[:, s])])
            phi = position_signature(data, [s], given=-1).array
            bracket += np.einsum("avb,vb,be->ae", phi * psi, model.bilinear, table)
            for u in range(length):
                entries = [(tokens[:, -1], labels, tokens[:, s], tokens[:, u], attention[:, s] * attention[:, u])]
                psi = _mean(instance, (*one, data.n_tokens), entries)
                phi = position_signature(data, [s, u], given=-1).array
                bracket -= np.einsum("avbc,vb,ce->ae", phi * psi, model.bilinear, table)
        at_last = np.bincount(tokens[:, -1], weights=data.weights, minlength=data.n_tokens)
        return at_last[:, None] / model.root * (bracket @ (model.qk if transposed else model.qk.T))

    return formula


def _derived(branch: str) -> Callable[[Instance], np.ndarray]:
    return lambda instance: label_driven(instance, where=on_branch(branch))


def _sum(*formulas: Callable[[Instance], np.ndarray]) -> Callable[[Instance], np.ndarray]:
    return lambda instance: np.sum([formula(instance) for formula in formulas], axis=0)


def _shape(position: int, token: int, label: int, embed: int, key: int, value: int) -> dict[str, int]:
    return {"position": position, "token": token, "label": label, "embed": embed, "key": key, "value": value}


_SHAPES = (_shape(3, 4, 4, 5, 4, 3), _shape(2, 5, 3, 4, 2, 4), _shape(4, 3, 2, 6, 3, 2))
_CASES = (Case(instances.attention, _SHAPES),)

_FRONT = r"\frac{P(x_L = \alpha)}{\sqrt d}\, %s \Bigl(\sum_s \mathcal{Q}^{1} \cdot (\varphi_{\alpha,x_L}^{y;x_s} \odot"
_QUERY = (
    _FRONT
    + r" \psi_{\alpha,x_L}^{y,\to x_s}) - \sum_{s,u} \mathcal{Q}^{2} \cdot (\varphi_{\alpha,x_L}^{y;x_s,x_u} \odot"
    r" \psi_{\alpha,x_L}^{y,\to x_s,x_u})\Bigr), \quad \mathcal{Q}^{1}(\nu,\beta) = \mathcal{Q}^{2}(\nu,\beta,\beta),"
    r" \ \mathcal{Q}^{2}(\nu,\beta_1,\beta_2) = (w^{U,\top}_\nu W^{OV} w_{\beta_1})\, w_{\beta_2}"
)
_KEY = (
    r"\frac{L r_\alpha}{\sqrt d} W^{QK} \Bigl(\mathcal{K}^{1} \cdot (\varphi_\alpha^{y;x_L} \odot \psi_\alpha^{y,x_L}) -"
    r" \sum_s \mathcal{K}^{2} \cdot (\varphi_\alpha^{y;x_L,x_s} \odot \psi_\alpha^{y,x_L,x_s})\Bigr), \quad"
    r" \mathcal{K}^{1}(\nu,\beta) = (w^{U,\top}_\nu W^{OV} w_\alpha)\, w_\beta, \ \mathcal{K}^{2}(\nu,\beta_1,\beta_2) ="
    r" (w^{U,\top}_\nu W^{OV} w_{\beta_%d})\, w_{\beta_%d}"
)
_RECONSTRUCTED = (
    "The notes give this term as an average and say that the paper writes it as contractions of the two signatures; the "
    "tensors are reconstructed from that."
)

RECORDS = (
    PrintedFormula(
        name="theorem-3-value",
        place="Theorem 3, value term",
        equation=_BETWEEN,
        latex=r"L r_\alpha (W^U W^{OV})^\top (\varphi_\alpha^{y;0} \odot \psi_\alpha^{y})",
        formula=_value,
        derived=_derived("value"),
        terms="label-driven terms of the value branch, attention kept",
        cases=_CASES,
        whole=label_driven,
    ),
    PrintedFormula(
        name="theorem-3-key",
        place="Theorem 3, key term, body",
        equation="(19)",
        latex=_KEY % (1, 2),
        formula=_key(swapped=True),
        derived=_derived("key"),
        terms="label-driven terms of the key branch, attention kept",
        cases=_CASES,
        correction=Correction(_KEY % (2, 1), _key(swapped=False)),
        remark="The tensor names its context indices in the order (value factor, outer factor), the signature in the order "
        "(x_L, x_s): read literally, the factors are exchanged. The outer factor is w_{x_L}, the value factor w_{x_s}.",
        note=_RECONSTRUCTED,
        whole=label_driven,
    ),
    PrintedFormula(
        name="theorem-3-key-average",
        place="Theorem 3, key term as an average",
        equation=_BETWEEN,
        latex=r"\frac{L r_\alpha}{\sqrt d} W^{QK}\, \mathbb{E}\bigl[a_I\, w^{U,\top}_y W^{OV} (w_\alpha - \bar w_X)\, w_{x_L}"
        r" \mid \alpha\bigr], \quad \bar w_X = \sum_s a_s w_{x_s}",
        formula=_key_average,
        derived=_derived("key"),
        terms="label-driven terms of the key branch, attention kept",
        cases=_CASES,
        whole=label_driven,
    ),
    PrintedFormula(
        name="b5-key",
        place="Appendix B.5, key term",
        equation="number not in the notes",
        latex=_KEY % (2, 1),
        formula=_key(swapped=False),
        derived=_derived("key"),
        terms="label-driven terms of the key branch, attention kept",
        cases=_CASES,
        note=_RECONSTRUCTED,
        whole=label_driven,
    ),
    PrintedFormula(
        name="theorem-3-query",
        place="Theorem 3, query term, body",
        equation="(19)",
        latex=_QUERY % "W^{QK}",
        formula=_query(transposed=False),
        derived=_derived("query"),
        terms="label-driven terms of the query branch, attention kept",
        cases=(
            Case(instances.attention, _SHAPES, "W^{QK} is any matrix"),
            Case(instances.symmetric_attention, _SHAPES[:1], "W^{QK} is symmetric"),
        ),
        correction=Correction(_QUERY % r"W^{QK,\top}", _query(transposed=True)),
        remark="The score w_{x_s}ᵀ W^{QK} w_{x_L} differentiated by w_{x_L} gives W^{QK,T} w_{x_s}: the matrix must be "
        "transposed, as in (68).",
        note=_RECONSTRUCTED,
        whole=label_driven,
    ),
    PrintedFormula(
        name="b5-query",
        place="Appendix B.5, query term",
        equation="(68)",
        latex=_QUERY % r"W^{QK,\top}",
        formula=_query(transposed=True),
        derived=_derived("query"),
        terms="label-driven terms of the query branch, attention kept",
        cases=_CASES,
        note=_RECONSTRUCTED,
        whole=label_driven,
    ),
    PrintedFormula(
        name="theorem-3",
        place="Theorem 3, value + key + query, body",
        equation="(16)–(19)",
        latex=r"\dot w_\alpha^{y} = \text{value} + \text{key} + \text{query}, \text{ each as printed}",
        formula=_sum(_value, _key(swapped=True), _query(transposed=False)),
        derived=label_driven,
        terms="all label-driven terms, attention kept",
        cases=_CASES,
        correction=Correction(
            r"\dot w_\alpha^{y} = \text{value} + \text{key} + \text{query}, \text{ key and query corrected}",
            _sum(_value, _key(swapped=False), _query(transposed=True)),
        ),
        remark="It inherits the errors of its key and query terms; with both corrected it is exact.",
    ),
)
