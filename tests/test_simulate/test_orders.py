"""Flows cut at a signature order: exact against derived equations, and the departures that they measure."""

import dataclasses

import jax
import numpy as np
import pytest

from simulate import fields
from simulate.experiment import load_experiment
from simulate.orders import up_to_order
from theory.architectures import attention, feed_forward, linear, transformer
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive
from theory.language import Architecture, dot, elementwise, embed, total
from theory.signature_kinds import signature_kind


def task(length=4, numbers=3, samples=30, per_position=False, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, numbers, (samples, length))
    labels = rng.integers(0, 4, tokens.shape if per_position else samples)
    return Dataset(tokens, labels, rng.dirichlet(np.ones(samples)), n_tokens=numbers, n_labels=4)


def start(architecture, dataset, scale=0.6, seed=1):
    rng = np.random.default_rng(seed)
    sizes = {axis: 3 for axis in architecture.axes} | dataset.sizes
    return {name: scale * rng.normal(size=shape) for name, shape in architecture.shapes(sizes).items()}


def value(field, parameters, dataset):
    with jax.enable_x64(True):
        return {name: np.asarray(array) for name, array in field(0.0, parameters, field.data(dataset)).items()}


def plain(dataset):
    return Data(dataset.tokens, dataset.labels, dataset.weights)


def deep():
    def deep(p, x):
        h = elementwise(dot(p.W, total(embed(p.E, x), over="position"), over="embed"), "quadratic")
        return dot(p.U, elementwise(h, "quadratic"), over="hidden")

    return Architecture(deep, {"E": ("token", "embed"), "W": ("hidden", "embed"), "U": ("label", "hidden")})


def derived(architecture, degree, order, parameters, dataset):
    """dE/dt of the derived equations over distinct positions, terms of at most `order` context tokens."""
    equations = derive(architecture, degree).distinct_positions()
    equation = equations["E"]
    kinds = {id(t): signature_kind(t, equations.symbols, equation.axes, True) for t in equation}
    cut = equation.where(lambda term: kinds[id(term)].order <= order)
    assert 0 < len(cut) < len(equation)
    equations = dataclasses.replace(equations, equations={"E": cut})
    return right_hand_sides(equations, parameters, plain(dataset))["E"]


# With polynomial nonlinearities the derived equations end at a degree, and nothing is cut by it.
@pytest.mark.parametrize(("architecture", "degree"), [(feed_forward("cube"), 4), (deep(), 9)], ids=["flat", "deep"])
@pytest.mark.parametrize("order", [0, 1])
def test_embeddings_follow_the_derived_equations_cut_at_that_order(architecture, degree, order):
    dataset = task()
    parameters = start(architecture, dataset)
    wanted = derived(architecture, degree, order, parameters, dataset)
    found = value(up_to_order(architecture, order), parameters, dataset)
    whole = value(fields.exact(architecture), parameters, dataset)
    np.testing.assert_allclose(found["E"], wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    assert np.abs(whole["E"] - wanted).max() > 1e-2 * np.abs(wanted).max()
    for name in set(found) - {"E"}:
        np.testing.assert_allclose(found[name], whole[name], rtol=0, atol=1e-12 * np.abs(whole[name]).max())


def test_a_series_cut_at_that_order_converges_to_the_exact_kernels():
    """What the derivation to one degree leaves out falls with the initial scale by at least two more degrees (GELU)."""
    architecture, dataset = feed_forward("gelu"), task()
    errors = []
    for scale in (0.1, 0.05):
        parameters = start(architecture, dataset, scale=scale)
        wanted = derived(architecture, 5, 1, parameters, dataset)
        found = value(up_to_order(architecture, 1), parameters, dataset)["E"]
        errors.append(np.linalg.norm(found - wanted) / np.linalg.norm(found))
    # The right-hand side starts at degree 1 and is known to degree 4; GELU's next power is the sixth: degree 6.
    assert errors[0] < 1e-2 and errors[1] < errors[0] / 2**4


@pytest.mark.parametrize("architecture", [feed_forward("relu"), attention(), transformer()], ids=lambda a: a.name)
def test_from_order_l_minus_1_on_it_is_the_exact_flow(architecture):
    dataset = task(length=3, per_position=architecture.labels_per_position)
    parameters = start(architecture, dataset)
    exact = value(fields.exact(architecture), parameters, dataset)
    for order in (2, 7):
        found = value(up_to_order(architecture, order), parameters, dataset)
        for name, array in exact.items():
            np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-12 * np.abs(array).max())
    below = value(up_to_order(architecture, 1), parameters, dataset)["E"]
    assert np.abs(below - exact["E"]).max() > 1e-3 * np.abs(exact["E"]).max()


def test_a_linear_model_sees_order_0_alone():
    """∂f/∂w is the same whatever the context, but p is not: label and predicted signatures are those of order 0."""
    dataset, architecture = task(), linear()
    parameters = start(architecture, dataset)
    found, exact = (value(f, parameters, dataset) for f in (up_to_order(architecture, 0), fields.exact(architecture)))
    for name in exact:
        np.testing.assert_allclose(found[name], exact[name], atol=1e-13)


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(UserError, match="whole number of at least 0, found -1"):
        up_to_order(feed_forward("tanh"), -1)
    without = Architecture(lambda p, x: p.b, {"b": ("label",)}, "bias")
    with pytest.raises(UserError, match="bias has no parameter with the axis 'token'"):
        up_to_order(without, 0)
    dataset, architecture = task(length=40), feed_forward("tanh")
    with pytest.raises(UserError, match="order 3 of 40 positions need 102091 evaluations"):
        value(up_to_order(architecture, 3), start(architecture, dataset), dataset)


EXPERIMENT = """
[architecture]
name = "feed_forward"
[sizes]
embed = 4
[data]
task = "mod"
numbers = 3
length = 3
[initial]
gamma = 0.8
[flow]
orders = [0, 1, "all"]
until = 1.0
"""


def test_experiments_name_their_orders(tmp_path):
    path = tmp_path / "orders.toml"
    path.write_text(EXPERIMENT)
    experiment = load_experiment(path)
    assert experiment.flow.flows == ("exact", "order-0", "order-1")
    assert [experiment.field(name).name for name in experiment.flow.flows] == ["exact", "order-0", "order-1"]
    assert load_experiment(path, ['flow.orders=["all", 2]', "flow.kinds=expanded", "flow.degree=4"]).flow.flows == (
        "expanded",
        "exact",
        "order-2",
    )
    for wrong, message in (
        ("flow.orders=[0, 0]", "names one order twice"),
        ("flow.orders=[-1]", "whole numbers of at least 0 and 'all', but found -1"),
        ('flow.orders=["most"]', "whole numbers of at least 0 and 'all', but found 'most'"),
        ("flow.departure=1.5", "less than 1"),
    ):
        with pytest.raises(UserError, match=message):
            load_experiment(path, [wrong])
