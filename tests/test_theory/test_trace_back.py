"""Trace-back signatures in the unembedding's equation, against an independent sum over a random law."""

from __future__ import annotations

import numpy as np
import pytest

from theory.architectures import attention, feed_forward
from theory.data.dataset import from_sequences
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive
from theory.language import Architecture, dot, embed, last, total
from theory.signature_kinds import trace_back_kind
from theory.signatures import trace_back


def test_the_staircase_of_the_unembedding_names_trace_back_signatures() -> None:
    steps = {(step.part, step.signature.name): step for step in derive(feed_forward("quadratic"), 3).staircase("U")}
    assert set(steps) == {
        (part, f"ψ_ν^{{{p}{m}}}") for part, p in (("label", ""), ("prediction", "p;")) for m in (1, 2)
    }
    # z + z²/2: at degree 2 two distinct positions enter with 2!·½ = 1 times binom(L, 2), one with ½.
    assert steps["label", "ψ_ν^{1}"].degree == 1 and steps["label", "ψ_ν^{2}"].degree == 2
    assert steps["label", "ψ_ν^{2}"].multiplier == 1 and steps["label", "ψ_ν^{2}"].positions == "L"
    assert {s.signature.weights for s in derive(attention()).staircase("U")} == {("a[attention]",)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_leading_unembedding_equation_is_its_trace_back_signature(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tokens, labels = rng.integers(0, 4, (12, 3)), rng.integers(0, 5, 12)
    weights = rng.random(12)
    dataset = from_sequences(tokens, labels, weights, n_tokens=4, n_labels=5)
    parameters = {"E": rng.normal(size=(4, 2)), "U": rng.normal(size=(5, 2))}
    leading = derive(feed_forward("tanh"), 2).label_driven.of_degree(2)
    (term,) = leading["U"].terms
    kind = trace_back_kind(term, leading.symbols, leading["U"].axes, True)
    assert kind is not None and (kind.order, kind.anchor, kind.distinct) == (1, "ν", True)
    found = right_hand_sides(leading, parameters, Data(tokens, labels, np.asarray(dataset.weights)))["U"]
    signature = trace_back(dataset)
    wanted = np.zeros_like(found)
    for row, output, probability in zip(signature.array, signature.indices, signature.probability, strict=True):
        # C_1 P(y = ν) L Σ_β ψ_ν(β) w_β
        wanted[output] = 3 * probability * row @ parameters["E"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-15)


def test_a_fixed_place_is_not_counted_as_a_choice() -> None:
    def beside_the_last(p, tokens):
        x = embed(p.E, tokens)
        return dot(p.U, total(x, over="position") * last(x), over="embed")

    model = Architecture(beside_the_last, {"E": ("token", "embed"), "U": ("label", "embed")})
    rows = {row["signature"]: row["multiplier"] for row in derive(model, 3).label_driven.staircase().rows()}
    # L r_α φ_α^{y;x_L} has no choice of place; P(x_L = α) Σ_s φ_{α,x_L}^{y;1} has all L of them.
    assert rows == {"φ_α^{y;x_L}": "1", "φ_{α,x_L}^{y;1}": "1·binom(L,1)"}


def test_a_parameter_with_neither_axis_is_refused() -> None:
    with pytest.raises(UserError, match="'token' or 'label'; those that have one: E, U"):
        derive(attention()).staircase("Q")
