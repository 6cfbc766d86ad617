"""Embeddings of fixed signatures with a trainable scalar, w_α = λ R φ_α v (arXiv 2608.30315), written with `fixed`."""

import numpy as np
import pytest

from compare.certificate import certify
from compare.comparison import compare
from compare.training import train
from simulate import exact, integrate
from theory import derive, initialise, signatures
from theory.data import arithmetic
from theory.errors import UserError
from theory.language import Architecture, dot, elementwise, embed, fixed, total

WIDTH = 6


@pytest.fixture(scope="module")
def dataset():
    return arithmetic.add(numbers=5)


@pytest.fixture(scope="module")
def table(dataset):
    """R φ_α^{y;0}, R a random matrix."""
    signature = signatures.label_signature(dataset, 0).array
    return signature @ np.random.default_rng(0).normal(size=(signature.shape[1], WIDTH))


@pytest.fixture(scope="module")
def model(table):
    def scaled_signatures(p, tokens):
        x = embed(fixed("signatures", ("token", "embed"), table), tokens) * p.scale
        return dot(p.U, elementwise(total(x, "position"), "tanh"), over="embed")

    return Architecture(scaled_signatures, {"scale": (), "U": ("label", "embed")})


def test_the_equations_are_exact(model):
    assert certify(model, degree=4).passed
    text = derive(model, degree=4).to_text("scale")
    assert "signatures: fixed array with axes (token, embed)" in text


@pytest.mark.parametrize("together", [False, True])
def test_training_follows_the_flow(model, dataset, table, together):
    initial = initialise(model, dataset.sizes, scale=0.3, seed=2)
    assert initial["scale"].shape == () and model.shapes(dataset.sizes)["U"] == (9, WIDTH)
    flow = integrate(exact(model), dataset, initial, until=4.0, save=[0.0, 4.0])
    options = {"batch": 4000, "seeds": (0, 1), "together": True} if together else {}
    run = train(model, dataset, initial, learning_rate=0.01, save=[0.0, 4.0], **options)
    agreement = compare(run, flow)["exact"]
    # A batch's noise moves the small scalar by some percent.
    assert agreement.worst_error("U") < 0.02 and agreement.worst_error("scale") < (0.1 if together else 0.02)
    # By hand: the logits of the written-out model, with λ times the table for embeddings.
    E, U = run.parameters(0, seed=0 if together else None)["scale"] * table, initial["U"]
    logits = np.tanh(E[dataset.tokens].sum(axis=1)) @ U.T
    top = logits.max(axis=-1)
    losses = top + np.log(np.exp(logits - top[:, None]).sum(-1)) - logits[np.arange(len(logits)), dataset.labels]
    assert np.ravel(run["loss"].values)[0] == pytest.approx(losses @ dataset.weights, rel=1e-12)


def test_a_frozen_scalar_leaves_the_rest_to_be_trained(model, dataset):
    initial = initialise(model, dataset.sizes, scale=0.3)
    run = train(model, dataset, initial, learning_rate=0.1, save=[0.0, 1.0], frozen=["scale"])
    assert run["scale"].values[-1] == initial["scale"] and np.any(run["U"].values[-1] != initial["U"])


def test_sizes_that_contradict_a_fixed_array_are_named(model, dataset, table):
    with pytest.raises(UserError, match="axis 'token' .* has size 5 in a fixed array, but 6 elsewhere"):
        initialise(model, {**dataset.sizes, "token": 6}, scale=0.3)
    with pytest.raises(UserError, match=r"test_fixed_embeddings.py.*'t' has the axes \(token\)"):
        fixed("t", ("token",), table)
    with pytest.raises(UserError, match="not finite"):
        fixed("t", ("token", "embed"), np.full((2, 2), np.nan))

    def two(p, tokens):
        one = embed(fixed("a", ("token", "embed"), np.ones((3, 2))), tokens)
        other = embed(fixed("b", ("token", "embed"), np.ones((4, 2))), tokens)
        return dot(p.U, total(one + other, "position"), over="embed")

    with pytest.raises(UserError, match="axis 'token' has size 4 in 'b', but 3 in another fixed array"):
        Architecture(two, {"U": ("label", "embed")})
