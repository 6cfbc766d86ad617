"""Derived equations: degrees, modes and refusals; parts add up; the view over distinct positions is the same system."""

import dataclasses
from fractions import Fraction

import numpy as np
import pytest

from theory.algebra.scalar import Scalar
from theory.architectures import attention, emb_mlp, feed_forward, linear, transformer
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.expansion import FunctionDefinition
from theory.language import (
    Architecture,
    constant,
    dot,
    elementwise,
    embed,
    last,
    parameter,
    rename,
    select,
    softmax,
    sqrt,
    total,
)


def attention_without_output():
    def attention_without_output(p, tokens):
        x = embed(p.E, tokens)
        q, k = dot(p.Q, last(x), over="embed"), dot(p.K, x, over="embed")
        a = softmax(dot(q, k, over="key"), over="position")
        return dot(p.U, dot(a, dot(p.V, x, over="embed"), over="position"), over="value")

    axes = {"E": ("token", "embed"), "Q": ("key", "embed"), "K": ("key", "embed"), "V": ("value", "embed")}
    return Architecture(attention_without_output, axes | {"U": ("label", "value")})


def setting(architecture, length=4, seed=0):
    rng = np.random.default_rng(seed)
    sizes = {"token": 3, "label": 4, "position": length, "embed": 2, "hidden": 3, "key": 2, "value": 3}
    sizes = {a: n for a, n in sizes.items() if a in {*architecture.axes, "label"}}
    parameters = {k: rng.normal(size=shape) for k, shape in architecture.shapes(sizes).items()}
    tokens = rng.integers(0, 3, (7, length))
    labels = rng.integers(0, 4, tokens.shape if architecture.labels_per_position else 7)
    return parameters, Data(tokens, labels, rng.dirichlet(np.ones(7)))


def assert_equal(found, wanted, bound=1e-12):
    assert set(found) == set(wanted)
    for name in wanted:
        assert np.linalg.norm(found[name] - wanted[name]) <= bound * max(np.linalg.norm(wanted[name]), 1e-2), name


# -- degrees -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "highest", "degrees"),
    [
        (linear(), 6, [2, 4, 6]),
        (feed_forward("tanh"), 6, [2, 4, 6]),
        (feed_forward("gelu"), 6, [2, 3, 4, 5, 6]),
        (feed_forward("square"), 9, [3, 6, 9]),
        (feed_forward("cube"), 8, [4, 8]),
        (emb_mlp("tanh"), 12, [3, 6, 7, 9, 10, 11, 12]),
        (attention_without_output(), 9, [3, 6, 7, 9]),
        (attention(), 12, [4, 8, 12]),
        (transformer("tanh"), 6, [2, 4, 6]),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_degrees_of_the_loss(architecture, highest, degrees):
    equations = derive(architecture, highest, ())
    assert list(equations.loss_degrees) == degrees
    assert equations["E"].degrees == tuple(d - 1 for d in degrees)
    assert list(equations["E"].by_degree()) == [d - 1 for d in degrees]


def test_degrees_of_the_logits():
    """The label-driven part is linear in the logits: 3, 7, 11 with a hidden layer."""
    assert derive(emb_mlp("tanh"), 12, ()).label_driven.loss_degrees == (3, 7, 11)
    assert derive(attention_without_output(), 9, ()).label_driven.loss_degrees == (3, 7)
    assert derive(feed_forward("cube"), 8, ()).label_driven.loss_degrees == (4,)


def test_a_weight_moves_the_degree():
    """The right-hand side of a parameter of weight a reaches the degree of the loss less a."""
    architecture = Architecture(
        lambda p, x: p.g * last(embed(p.W, x)),
        {"g": parameter("label", weight=0), "W": parameter("token", "label", weight=Fraction(3, 2))},
        name="gained",
    )
    equations = derive(architecture, 3, ())
    assert equations.loss_degrees == (Fraction(3, 2), 3)
    assert equations["g"].degrees == (Fraction(3, 2), 3) and equations["W"].degrees == (0, Fraction(3, 2))


def test_a_zero_has_no_equation():
    architecture = Architecture(
        lambda p, x: 0 * last(embed(p.W, x)) + p.b, {"W": ("token", "label"), "b": ("label",)}, name="zero"
    )
    assert len(derive(architecture)["W"]) == 0 and len(derive(architecture, 2, ())["W"]) == 0


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "arguments", "words"),
    [
        (emb_mlp("tanh"), {"degree": 8, "keep": ()}, "no term of the loss of emb_mlp has degree 8; .* 7 and 9"),
        (emb_mlp("tanh"), {"degree": 2, "keep": ()}, "has degree 2; the nearest is 3"),
        (attention(), {"degree": 10}, "8 and 12"),
        (attention(), {"degree": 5, "keep": "attention"}, "degree 5; the nearest degrees are 4 and 8"),
        (feed_forward("relu"), {"degree": 3}, "'relu' is not analytic at 0 and cannot be expanded; keep it"),
        (feed_forward("tanh"), {"degree": 4, "keep": "actvation"}, "no nonlinearity 'actvation' .*'activation'"),
        (attention(), {"degree": 4, "keep": ("prediction", "atention")}, "did you mean 'attention'"),
        (linear(), {"keep": ("prediction",)}, "without a degree everything is kept"),
        (linear(), {"degree": 0}, "at least 1, found 0"),
        (linear(), {"degree": -2}, "at least 1, found -2"),
        (linear(), {"degree": 2.5}, "at least 1, found 2.5"),
        (linear(), {"degree": True}, "at least 1, found True"),
        (linear(), {"degree": 2, "loss": "crossentropy"}, "unknown loss 'crossentropy'; did you mean 'cross_entropy'"),
        (linear(), {"degree": 2, "prediction": "truncated"}, "unknown prediction 'truncated'"),
        (linear(), {"degree": 2, "prediction": "expanded"}, "contradicts keep="),
        (linear(), {"degree": 2, "keep": (), "prediction": "kept"}, "not kept"),
    ],
)
def test_what_cannot_be_derived(architecture, arguments, words):
    with pytest.raises(UserError, match=words):
        derive(architecture, **arguments)


def test_an_unknown_parameter_is_named():
    equations = derive(linear(), 2)
    with pytest.raises(UserError, match="linear has no parameter 'W'"):
        equations["W"]
    assert list(equations) == ["E", "U"] and len(equations) == 2 and equations["U"].axes == ("label", "embed")
    assert "linear, to loss degree 2, prediction kept" in repr(equations)


@pytest.mark.parametrize("mode", [None, 4])
def test_arrays_that_do_not_fit(mode):
    equations = derive(feed_forward("tanh"), mode)
    parameters, data = setting(equations.architecture)
    with pytest.raises(UserError, match=r"needs labels of shape \(7,\), found \(7, 4\)"):
        right_hand_sides(equations, parameters, dataclasses.replace(data, labels=data.tokens))
    with pytest.raises(UserError, match="parameter 'U' of feed_forward is missing"):
        right_hand_sides(equations, {"E": parameters["E"]}, data)


# -- parts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [(), ("prediction",), ("prediction", "activation"), ("activation",)])
def test_parts_and_degrees_add_up(keep):
    equations = derive(emb_mlp("gelu"), 6, keep)
    parameters, data = setting(equations.architecture)
    whole = right_hand_sides(equations, parameters, data)
    split = [right_hand_sides(p, parameters, data) for p in (equations.label_driven, equations.prediction_induced)]
    assert_equal({name: sum(part[name] for part in split) for name in whole}, whole)
    by_degree = [right_hand_sides(equations.of_degree(d), parameters, data) for d in equations.loss_degrees]
    assert_equal({name: sum(part[name] for part in by_degree) for name in whole}, whole)


def test_each_degree_is_homogeneous():
    equations = derive(attention(), 8, ())
    parameters, data = setting(equations.architecture)
    for degree in equations.loss_degrees:
        part = equations.of_degree(degree)
        at_one = right_hand_sides(part, parameters, data)
        at_half = right_hand_sides(part, {k: v / 2 for k, v in parameters.items()}, data)
        assert_equal({k: v * 2.0 ** (degree - 1) for k, v in at_half.items()}, at_one)


def test_a_derivation_contains_every_shorter_one():
    long = derive(feed_forward("gelu"), 6, ())
    short = derive(feed_forward("gelu"), 4, ())
    for name in short:
        assert short[name].terms == long[name].where(lambda term: term.degree <= 3).terms


def test_keeping_everything_at_a_degree_cuts_nothing():
    """keep="all" at the leading degree: the opaque factors of the unembedding's equation hold all there is."""
    for architecture, degree in [(feed_forward("gelu"), 2), (attention(), 4)]:
        parameters, data = setting(architecture)
        exact = right_hand_sides(derive(architecture), parameters, data)
        kept = derive(architecture, degree, keep="all")
        assert set(kept.keep) == {"all", "prediction"}
        np.testing.assert_allclose(right_hand_sides(kept, parameters, data)["U"], exact["U"], rtol=1e-11, atol=1e-13)


def test_the_squared_error_by_hand():
    """dU/dt = E[(e_y − f) h]."""
    for equations in (
        derive(feed_forward("tanh"), loss="squared_error"),
        derive(linear(), 4, (), loss="squared_error"),
    ):
        parameters, data = setting(equations.architecture)
        h = parameters["E"][data.tokens].sum(1)
        h = np.tanh(h) if equations.architecture.name == "feed_forward" else h
        residual = (np.eye(4)[data.labels] - h @ parameters["U"].T) * data.weights[:, None]
        found = right_hand_sides(equations, parameters, data)["U"]
        np.testing.assert_allclose(found, residual.T @ h, rtol=1e-12, atol=1e-14)


def test_a_label_at_every_position_shares_the_loss():
    """Bigrams by hand: dW/dt[α, ν] = E[1/L Σ_l 1{x_l=α} (1{y_l=ν} − p_ν(α))]."""
    architecture = Architecture(lambda p, x: embed(p.W, x), {"W": ("token", "label")}, name="bigram")
    parameters, data = setting(architecture)
    W = parameters["W"]
    p = np.exp(W) / np.exp(W).sum(1, keepdims=True)
    wanted = np.zeros_like(W)
    for x, y, weight in zip(data.tokens, data.labels, data.weights, strict=True):
        for token, label in zip(x, y, strict=True):
            wanted[token] += weight / 4 * (np.eye(4)[label] - p[token])
    np.testing.assert_allclose(right_hand_sides(derive(architecture), parameters, data)["W"], wanted, rtol=1e-12)


def test_first_and_last_places():
    """f = U (w_{x_1} − 2 w_{x_L}): each place gets its own gradient."""
    architecture = Architecture(
        lambda p, x: dot(p.U, select(embed(p.E, x), "position", "first") - 2 * last(embed(p.E, x)), over="embed"),
        {"E": ("token", "embed"), "U": ("label", "embed")},
        name="ends",
    )
    parameters, data = setting(architecture)
    wanted = np.zeros_like(parameters["E"])
    for x, y, weight in zip(data.tokens, data.labels, data.weights, strict=True):
        push = weight * (parameters["U"][y] - parameters["U"].mean(0))
        wanted[x[0]] += push
        wanted[x[-1]] -= 2 * push
    found = right_hand_sides(derive(architecture, 2, ()), parameters, data)["E"]
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


def test_what_is_added_at_every_position_counts_at_every_position():
    """f = U Σ_l (w_{x_l} + b): db/dt is L times E[Uᵀ(e_y − p)]."""
    architecture = Architecture(
        lambda p, x: dot(p.U, total(embed(p.E, x) + p.b, over="position"), over="embed"),
        {"E": ("token", "embed"), "b": ("embed",), "U": ("label", "embed")},
        name="shifted",
    )
    parameters, data = setting(architecture)
    U = parameters["U"]
    f = (parameters["E"][data.tokens] + parameters["b"]).sum(1) @ U.T
    p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
    wanted = 4 * data.weights @ (np.eye(4)[data.labels] - p) @ U
    for equations in (derive(architecture), derive(architecture, 2)):
        np.testing.assert_allclose(right_hand_sides(equations, parameters, data)["b"], wanted, rtol=1e-12)


def test_coefficients_are_exact():
    """GELU's C_2 = 1/√(2π): the term 2 C_2 of the feed-forward; and the 1/√d of attention, with d a symbol."""
    second = [t for t in derive(feed_forward("gelu"), 3)["E"].label_driven if t.degree == 2]
    assert [(t.coefficient.rational, dict(t.coefficient.atoms)) for t in second] == [
        (1, {"2": Fraction(1, 2), "pi": Fraction(-1, 2)})
    ]
    scores = derive(attention(), 8, ("prediction",))["Q"].label_driven
    assert {dict(t.coefficient.atoms)["|embed|"] for t in scores} == {Fraction(-1, 2)}
    assert {dict(t.coefficient.atoms)["|position|"] for t in scores} == {-1, -2}
    halved = Architecture(
        lambda p, x: dot(p.U, total(embed(p.E, x), over="position"), over="embed") / sqrt(2),
        {"E": ("token", "embed"), "U": ("label", "embed")},
        name="halved",
    )
    (term,) = derive(halved, 2)["U"].label_driven
    assert term.coefficient == Scalar(Fraction(1, 2), (("2", Fraction(1, 2)),))


# -- distinct positions ------------------------------------------------------------------------------------------------


def _weighted(p, x):
    """Positions that a constant weighs beside positions that it does not."""
    h = embed(p.E, x)
    slope = constant("slope", ("position",), lambda sizes: np.arange(1.0, sizes["position"] + 1))
    return dot(p.U, total(h * slope, over="position") * total(h, over="position") ** 2, over="embed")


@pytest.mark.parametrize("length", [1, 2, 4])
@pytest.mark.parametrize(
    ("architecture", "degree", "keep"),
    [
        (feed_forward("gelu"), 5, ("prediction",)),
        (feed_forward("gelu"), 4, ()),
        (emb_mlp("tanh"), 7, ("prediction",)),
        (attention(), 8, ("prediction",)),
        (attention(), 4, ("prediction", "attention")),
        (transformer("quadratic"), 4, ()),
        (Architecture(_weighted, {"E": ("token", "embed"), "U": ("label", "embed")}, name="weighted"), 4, ()),
    ],
    ids=lambda value: getattr(value, "name", None) or str(value),
)
def test_distinct_positions_are_the_same_system(architecture, degree, keep, length):
    equations = derive(architecture, degree, keep)
    distinct = equations.distinct_positions()
    assert isinstance(distinct, EvolutionEquations) and distinct.distinct and not equations.distinct
    parameters, data = setting(architecture, length)
    assert_equal(right_hand_sides(distinct, parameters, data), right_hand_sides(equations, parameters, data))
    assert distinct.distinct_positions() is distinct
    # Parts stay what they were.
    whole = right_hand_sides(equations.label_driven, parameters, data)
    assert_equal(right_hand_sides(distinct.label_driven, parameters, data), whole)


def test_positions_that_weights_touch_keep_their_independent_sums():
    """As in Theorem 3 of the paper: only positions of tokens alone are those of signatures."""
    kept = derive(attention(), keep=None)
    assert all(kept.distinct_positions()[name].terms == kept[name].terms for name in kept)
    # Σ_l slope_l w_l (Σ_m w_m)²: the slope's position stays free to coincide with the two others, which differ.
    weighted = Architecture(_weighted, {"E": ("token", "embed"), "U": ("label", "embed")}, name="weighted")
    terms = derive(weighted, 4).distinct_positions()["U"].label_driven
    shapes = {}
    for term in terms:
        free = [index for name, (index, _) in (f for f in term.factors if f[0] == "X")]
        touched = {ix[0] for name, ix in term.factors if name == "slope"}
        shapes[len(free)] = (term.coefficient.rational, len(touched & set(free)))
    assert shapes == {2: (1, 1), 3: (1, 1)}


# -- depth -------------------------------------------------------------------------------------------------------------


def test_kept_equations_do_not_grow_out_of_hand_with_depth():
    """Multiplied out, four blocks would have 6.5e8 monomials; as a graph of named quantities each block adds the same."""
    counts = [derive(transformer("tanh", blocks)).term_count for blocks in (2, 3, 4, 5)]
    assert len(set(np.diff(counts))) == 1 and counts[-1] < 400


def test_two_equal_activations_can_be_kept_apart():
    def two(p, x):
        inner = elementwise(total(embed(p.E, x), over="position"), "tanh")
        return dot(p.U, elementwise(dot(p.W, rename(inner, embed="inner"), over="inner"), "tanh"), over="embed")

    architecture = Architecture(
        two, {"E": ("token", "embed"), "W": parameter("embed", inner="embed"), "U": ("label", "embed")}
    )

    def kept(keep):
        functions = [q for q in derive(architecture, 3, keep).quantities if isinstance(q, FunctionDefinition)]
        return {name for name in architecture.nonlinearities for q in functions if name in q.symbol.name}

    assert kept(("activation 1",)) == {"activation 1"} and kept(("activation 2",)) == {"activation 1", "activation 2"}
    assert kept(("activation",)) == {"activation 1", "activation 2"} and kept(()) == set()
