"""Certificates pass for stock and users' architectures, and fail loudly for wrong equations."""

import dataclasses
import json
import math
from fractions import Fraction

import numpy as np
import pytest
import sympy

import compare.certificate as certificate
from compare.certificate import Certificate, certify, gradient_flow, relative_error, taylor_coefficients
from theory import architectures
from theory.algebra.scalar import Scalar
from theory.cli import main
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive
from theory.language import (
    Architecture,
    causal,
    dot,
    elementwise,
    embed,
    last,
    mean,
    parameter,
    rename,
    rms_norm,
    select,
    shift,
    size,
    softmax,
    sqrt,
    total,
    window,
)

ACTIVATIONS = ("tanh", "gelu", "silu", "quadratic")


def passes(architecture, **options):
    found = certify(architecture, **options)
    assert found.passed, found.to_text()
    return found


# -- stock architectures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", ["feed_forward", "emb_mlp"])
def test_feed_forward_models(name, activation):
    found = passes(architectures.load(name, activation=activation))
    kinds = {(check.kind, check.subject.split(",")[0]) for check in found.checks}
    parameters = architectures.load(name).parameters
    assert kinds == {(kind, f"d{p}/dt") for kind in ("exact", "taylor", "slope") for p in parameters}
    # Every size differs, so that no axis can pass for another.
    assert len(set(found.sizes.values())) == len(found.sizes)


@pytest.mark.parametrize("options", [{}, {"positions": True}], ids=["attention", "with positions"])
def test_attention(options):
    assert passes(architectures.attention(**options)).degree == 8


def test_linear():
    passes(architectures.linear())
    # Nothing is omitted, so that there is no slope: equality.
    found = passes(architectures.linear(), loss_kind="squared_error")
    assert {check.expected for check in found.checks if check.kind == "slope"} == {"no omitted term: equal"}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_transformer(activation):
    passes(architectures.transformer(activation), degree=6 if activation == "tanh" else 4)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_transformer_as_far_as_its_queries(activation):
    assert passes(architectures.transformer(activation)).degree == 8


@pytest.mark.slow
def test_two_blocks():
    passes(architectures.transformer("tanh", blocks=2), degree=6)


# -- users' architectures ----------------------------------------------------------------------------------------------


def summed_attention():
    """Unmasked attention whose output is summed over its queries: uniform weights then sum to 1, not to 1/L."""

    def summed_attention(p, tokens):
        x = embed(p.E, tokens)
        scores = dot(rename(dot(p.Q, x, over="embed"), position="query"), dot(p.K, x, over="embed"), over="key")
        a = softmax(scores, over="position")
        mixed = total(dot(a, x, over="position"), over="query")
        return dot(p.U, mixed, over="embed")

    axes = {"E": ("token", "embed"), "Q": ("key", "embed"), "K": ("key", "embed"), "U": ("label", "embed")}
    return Architecture(summed_attention, axes)


def two_heads():
    """Two heads with learned positions, causal, a label at every position, nothing shared with the stock models."""

    def two_heads(p, tokens):
        x = embed(p.E, tokens) + p.P
        q = rename(dot(p.WQ, x, over="width"), position="asking")
        k = dot(p.WK, x, over="width")
        a = softmax(dot(q, k, over="key") / sqrt(size("key")), over="position", mask=causal("asking"))
        v = dot(p.WV, x, over="width")
        heads = dot(a, v, over="position")
        return rename(dot(p.WO, heads, over=("head", "value")), asking="position")

    return Architecture(
        two_heads,
        {
            "E": ("token", "width"),
            "P": ("position", "width"),
            "WQ": ("head", "key", "width"),
            "WK": ("head", "key", "width"),
            "WV": ("head", "value", "width"),
            "WO": ("label", "head", "value"),
        },
    )


def test_attention_summed_over_its_queries():
    passes(summed_attention(), degree=6)


def test_two_heads_with_learned_positions():
    found = passes(two_heads(), sizes={"head": 2, "position": 3, "label": 4}, degree=7)
    assert {c.subject for c in found.checks if c.kind == "slope"} >= {f"d{name}/dt" for name in two_heads().parameters}


def _own(function, **parameters):
    return Architecture(function, parameters, name="own")


TABLE = {"E": ("token", "embed"), "U": ("label", "embed")}


def _biased(p, x):
    h = elementwise(total(embed(p.E, x), over="position") + p.b, "gelu")
    return dot(p.U, h, over="embed") + p.c


def _products(p, x):
    """Powers, numbers, differences, a shift and two places of one axis."""
    h = embed(p.E, x)
    mixed = (h + 2 * shift(h)) * (1 - h) - h**3 / size("position")
    return dot(p.U, last(mixed) * select(h, "position", "first") + mean(mixed, "position"), over="embed")


def _windowed(p, x):
    h = embed(p.E, x)
    a = softmax(dot(rename(h, position="query"), h, over="embed"), over="position", mask=window("query", width=2))
    return dot(p.U, rename(dot(a, h, over="position"), query="position"), over="embed")


def _two_layers(p, x):
    h = elementwise(total(embed(p.E, x), over="position"), "tanh", name="inner")
    return dot(p.U, elementwise(dot(p.W, h, over="embed"), "sigmoid", name="outer"), over="hidden")


def _tied(p, x):
    h = elementwise(total(embed(p.E, x), over="position"), "gelu")
    return dot(rename(p.E, token="label"), h, over="embed")


def _place_by_place(p, x):
    """A table over tokens and labels read at two places: each look-up has its own rows."""
    table = embed(p.W, x)
    return total(embed(p.g, x), over="position") * (last(table) + 3 * select(table, "position", "first"))


def _roots(p, x):
    h = total(embed(p.E, x), over="position") + p.c
    return dot(p.U, rms_norm(h, "embed"), over="embed")


def _two_ways(p, x):
    """One mask, normalised over either of its axes."""
    h = embed(p.E, x)
    scores = dot(rename(h, position="query"), h, over="embed")
    ways = [softmax(scores, over=axis, mask=causal("query")) for axis in ("position", "query")]
    mixed = sum((total(dot(a, h, over="position"), over="query") for a in ways[1:]), start=0 * total(h, "position"))
    return dot(p.U, mixed + total(dot(ways[0], h, over="position"), over="query"), over="embed")


def _copied(p, x):
    """The last token raises its own logit: tokens and labels share one vocabulary."""
    return last(embed(p.D, x)) + dot(p.b, p.b, over="width") * rename(last(x), token="label")


OWN = {
    "a mask normalised both ways": (_own(_two_ways, **TABLE), {"degree": 6}),
    "the last token copied": (_own(_copied, D=("token", "label"), b=("width",)), {"degree": 6}),
    "counted tokens": (
        _own(
            lambda p, x: dot(p.U, dot(p.B, total(x, over="position"), over="token") ** 2, over="embed"),
            B=("embed", "token"),
            U=("label", "embed"),
        ),
        {"degree": 6},
    ),
    "a table over places and tokens": (
        _own(
            lambda p, x: dot(p.U, dot(x, p.M, over=("position", "token")), over="embed"),
            M=("position", "token", "embed"),
            U=("label", "embed"),
        ),
        {"degree": 6},
    ),
    "last places of two axes": (
        _own(
            lambda p, x: select(p.W, "hidden", "last") * select(last(embed(p.E, x)), "embed", "last"),
            W=("label", "hidden"),
            E=("token", "embed"),
        ),
        {"degree": 6},
    ),
    "biases of weight 0": (_own(_biased, **TABLE, b=parameter("embed", weight=0), c=parameter("label", weight=2)), {}),
    "small biases": (_own(_biased, **TABLE, b=("embed",), c=("label",)), {"degree": 5}),
    "products, shift and places": (_own(_products, **TABLE), {"degree": 5}),
    "a window, labels per position": (_own(_windowed, **TABLE), {"degree": 6}),
    "squared error": (_own(_windowed, **TABLE), {"degree": 6, "loss_kind": "squared_error"}),
    "two activations, σ(0) ≠ 0": (
        _own(_two_layers, E=("token", "embed"), W=("hidden", "embed"), U=("label", "hidden")),
        {"degree": 5},
    ),
    "tied embeddings": (_own(_tied, E=("token", "embed")), {"degree": 6}),
    "one table at two places": (_own(_place_by_place, g=("token",), W=("token", "label")), {"degree": 6}),
    "root mean square around a leading part": (
        _own(_roots, **TABLE, c=parameter("embed", weight=0)),
        {"degree": 3},
    ),
}


@pytest.mark.parametrize("case", OWN)
def test_users_architectures(case):
    architecture, options = OWN[case]
    passes(architecture, **options)


@pytest.mark.parametrize("keep", [("activation",), ("attention",), ("prediction",)], ids=lambda keep: keep[0])
def test_mixed_modes(keep):
    """Some kept, the rest expanded: the slope behind every degree."""
    found = passes(architectures.transformer("tanh"), keep=keep, degree=4)
    assert "quantities are kept" in found.notes[0] and {c.kind for c in found.checks} == {"exact", "slope"}


def test_relu_is_certified_where_it_is_kept():
    found = passes(architectures.feed_forward("relu"))
    assert found.degree is None and {check.kind for check in found.checks} == {"exact"}
    assert found.notes == ("not expanded: 'activation' (relu) is not analytic at 0, so there is no series to check",)


@pytest.mark.parametrize("degree", [4, 6])
def test_every_degree_of_an_activation_without_first_power(degree):
    """σ(z) = z³ e^z: σ' loses its highest powers if its series is cut too early."""
    z = sympy.Symbol("z")
    passes(architectures.feed_forward(z**3 * sympy.exp(z)), degree=degree)


@pytest.mark.parametrize("degree", [2, 4])
def test_a_small_coefficient_before_a_large_one(degree):
    """The first omitted power rules only where the second, 300 times larger, is at last below it: its slope is fitted still."""
    z = sympy.Symbol("z")
    found = passes(architectures.feed_forward(z + z**2 / 300 + z**3), degree=degree)
    assert {check.expected[:1] for check in found.checks if check.kind == "slope"} == {"1" if degree == 2 else "3"}


# -- failures ----------------------------------------------------------------------------------------------------------


def changed(equations, parameter, change):
    """The same equations with the terms of one of them changed."""
    terms = tuple(change(list(equations[parameter].terms)))
    edited = dataclasses.replace(equations[parameter], terms=terms)
    return dataclasses.replace(equations, equations={**equations.equations, parameter: edited})


def with_first(term_change):
    return lambda terms: [term_change(terms[0]), *terms[1:]]


def scaled(factor):
    return lambda term: dataclasses.replace(term, coefficient=term.coefficient * factor)


def other_place(term):
    """X at its own position read at the last one instead."""
    components = tuple(
        tuple((n, ("position@last", *ix[1:])) if n == "X" else (n, ix) for n, ix in c) for c in term.components
    )
    return dataclasses.replace(term, components=components)


WRONG = {
    "a coefficient a thousandth too large": with_first(scaled(Fraction(1001, 1000))),
    "a sign": with_first(scaled(-1)),
    "a dropped term": lambda terms: terms[1:],
    "a term twice": lambda terms: [terms[0], *terms],
    "the highest degree's last term dropped": lambda terms: sorted(terms, key=lambda t: t.degree)[:-1],
    "a size": with_first(scaled(size("embed"))),
    "a fixed place": with_first(other_place),
}


# One architecture for all of these, since its gradient is compiled once.
GELU = architectures.feed_forward("gelu")


def test_right_equations_pass():
    assert certify(GELU, equations={"kept": derive(GELU), "expanded": derive(GELU, 5, ())}).passed


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("mode", ["kept", "expanded"])
def test_wrong_equations_fail(mode, case):
    right = {"kept": derive(GELU), "expanded": derive(GELU, 5 if mode == "expanded" else 2, ())}
    found = certify(GELU, equations=right | {mode: changed(right[mode], "E", WRONG[case])})
    assert not found.passed
    assert {check.subject.split("/")[0] for check in found.failures} == {"dE"}
    kinds = {check.kind for check in found.failures}
    assert kinds <= ({"exact"} if mode == "kept" else {"taylor", "slope"}) and kinds & {"exact", "taylor"}
    text = found.to_text()
    assert "FAIL" in text and text.endswith(f"NOT CERTIFIED: {len(found.failures)} of {len(found.checks)} failed")


def test_a_wrong_coefficient_at_the_highest_degree_shows_in_the_slope_alone():
    """Where quantities are kept there is no Taylor coefficient: the power with which the error falls must tell."""
    right = derive(GELU, 5, ("prediction",))
    last_scaled = changed(right, "U", lambda terms: [*terms[:-1], scaled(Fraction(11, 10))(terms[-1])])
    assert last_scaled["U"].terms[-1].degree == 4
    found = certify(GELU, equations={"expanded": last_scaled})
    assert {(check.kind, check.subject) for check in found.failures} == {("slope", "dU/dt, cut at degree 4")}


def test_a_wrong_coefficient_at_a_cut_shows_in_its_slope():
    """Where quantities are kept there is no Taylor coefficient: the slope must notice, and an error that stays large."""
    right = derive(GELU, 5, ("prediction",))
    for change in (with_first(scaled(Fraction(11, 10))), lambda terms: terms[1:]):
        found = certify(GELU, equations={"expanded": changed(right, "U", change)})
        assert not found.passed and {check.kind for check in found.failures} == {"slope"}
    assert certify(GELU, equations={"expanded": right}).passed


def test_equations_that_lose_a_whole_degree_fail():
    """No term at all at a degree at which there should be one."""
    architecture = architectures.feed_forward("tanh")
    right = derive(architecture, 4, ())
    empty = changed(right, "E", lambda terms: [t for t in terms if t.degree != 3])
    found = certify(architecture, equations={"expanded": empty})
    assert "dE/dt, degree 3" in {check.subject for check in found.failures if check.kind == "taylor"}


def test_equations_that_are_no_numbers_fail():
    architecture = architectures.linear()
    right = derive(architecture)
    wrong = changed(right, "U", with_first(scaled(Scalar(Fraction(10) ** 400))))
    with np.errstate(all="ignore"):
        try:
            found = certify(architecture, equations={"kept": wrong})
        except OverflowError:
            return
    assert not found.passed


def test_nothing_checked_is_nothing_certified():
    assert not Certificate("nothing", None, {}, 0, (), ()).passed


def test_relative_error():
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.ones(2), np.zeros(2)) == math.inf
    assert relative_error(np.array([np.nan, 1]), np.ones(2)) == math.inf
    assert relative_error(np.array([3.0]), np.array([2.0])) == 0.5
    assert relative_error(np.array([1e-9]), np.array([0.0]), floor=1.0) == 1e-9


def test_the_certificate_as_json():
    found = passes(architectures.linear(), degree=2)
    written = json.loads(json.dumps(found.to_dict()))
    assert written["passed"] and written["degree"] == "2" and len(written["checks"]) == len(found.checks)
    assert found.to_text().splitlines()[-1] == "certified"


# -- its own references ------------------------------------------------------------------------------------------------


def _small():
    rng = np.random.default_rng(0)
    data = Data(rng.integers(0, 5, (6, 3)), rng.integers(0, 4, 6), rng.dirichlet(np.ones(6)))
    return data, {"E": rng.normal(size=(5, 2)), "U": rng.normal(size=(4, 2))}


def test_taylor_coefficients_by_hand():
    """f = U Σ w: −∂L/∂U at orders 1 and 3 are E[(e_y − 1/V) h] and −E[(f − mean f)/V h]."""
    data, parameters = _small()
    h = parameters["E"][data.tokens].sum(1)
    f = h @ parameters["U"].T
    found = taylor_coefficients(architectures.linear(), parameters, data, 3, "cross_entropy", 5)
    first = ((np.eye(4)[data.labels] - 0.25) * data.weights[:, None]).T @ h
    third = -((f - f.mean(1, keepdims=True)) / 4 * data.weights[:, None]).T @ h
    for order, wanted in enumerate([np.zeros((4, 2)), first, np.zeros((4, 2)), third]):
        np.testing.assert_allclose(found[order]["U"], wanted, rtol=1e-12, atol=1e-13)


def test_gradient_flow_goes_down():
    """A finite difference of the loss along dθ/dt is −‖∇L‖²."""
    from theory.interpret import loss

    data, parameters = _small()
    architecture = architectures.feed_forward("tanh")
    flow = gradient_flow(architecture, parameters, data, "cross_entropy")
    step = 1e-6

    def at(t):
        moved = {k: v + t * flow[k] for k, v in parameters.items()}
        return loss(architecture, moved, data.tokens, data.labels, data.weights)

    slope = (at(step) - at(-step)) / (2 * step)
    assert slope == pytest.approx(-sum((v**2).sum() for v in flow.values()), rel=1e-8)


def test_a_weight_that_is_no_whole_number_has_no_taylor_series():
    architecture = Architecture(
        lambda p, x: dot(p.U, last(embed(p.E, x)), over="embed"),
        {"E": ("token", "embed"), "U": parameter("label", "embed", weight=Fraction(1, 2))},
        name="half",
    )
    data, parameters = _small()
    with pytest.raises(UserError, match="no whole number"):
        taylor_coefficients(architecture, parameters, data, 2, "cross_entropy", 5)
    assert right_hand_sides(derive(architecture, Fraction(3, 2), ()), parameters, data)["U"].shape == (4, 2)


def test_bounds_are_those_that_were_stated():
    assert (certificate.EXACT_BOUND, certificate.TAYLOR_BOUND) == (1e-10, 1e-10)
    assert certificate.SLOPE_TOLERANCE == 0.15 and certificate.SLOPE_RANGE[-1] == 1e-3


BREAKABLE = {
    "feed_forward": (architectures.feed_forward("gelu"), 5, (), "cross_entropy"),
    "prediction kept": (architectures.feed_forward("gelu"), 5, ("prediction",), "cross_entropy"),
    "activation kept": (architectures.emb_mlp("tanh"), 6, ("activation",), "cross_entropy"),
    "squared error": (architectures.emb_mlp("quadratic"), 8, (), "squared_error"),
}


@pytest.mark.parametrize("view", ["as derived", "distinct positions"])
@pytest.mark.parametrize("case", BREAKABLE)
def test_a_random_term_that_is_off_by_a_hundredth_is_found(case, view):
    """In every parameter's equation in turn, whatever the mode: no wrong equation is certified."""
    architecture, degree, keep, loss = BREAKABLE[case]
    derived = derive(architecture, degree, keep, loss=loss)
    if view == "distinct positions":
        derived = derived.distinct_positions()

    def certified(**equations):
        return certify(architecture, degree=degree, keep=keep, loss_kind=loss, equations=equations).passed

    assert certified(expanded=derived)
    rng = np.random.default_rng(5)
    for name, equation in derived.items():
        at = int(rng.integers(len(equation.terms)))
        terms = list(equation.terms)
        terms[at] = scaled(Fraction(101, 100))(terms[at])
        edited = dataclasses.replace(equation, terms=tuple(terms))
        assert not certified(expanded=dataclasses.replace(derived, equations={**derived.equations, name: edited}))


def test_a_gradient_that_cancels_is_certified_up_to_the_digits_that_it_keeps():
    """z − sin z loses digits as ε falls; errors that stop falling there are no wrong power."""
    z = sympy.Symbol("z")
    for keep in ((), ("prediction",)):
        found = certify(architectures.feed_forward(z - sympy.sin(z)), keep=keep)
        assert found.passed, found.to_text()
        assert sum(check.kind == "slope" for check in found.checks) >= 2


def test_the_degree_that_is_chosen_holds_a_second_one_however_far():
    """Loss degrees 7 and 14: at the leading one alone a wrong coefficient of the next powers would pass."""
    assert certify(architectures.emb_mlp("cube")).degree == 14


def test_a_parameter_whose_gradient_vanishes_is_not_waited_for():
    """A bias that shifts all scores of a row alike has no gradient, at any degree."""

    def shifted(p, x):
        w = embed(p.E, x)
        query = dot(p.Q, last(w), over="embed")
        scores = dot(query, dot(p.K, w, over="embed"), over="key") + dot(p.b, query, over="key")
        return dot(p.U, dot(softmax(scores, over="position"), w, over="position"), over="embed")

    axes = {
        "E": ("token", "embed"),
        "Q": ("key", "embed"),
        "K": ("key", "embed"),
        "b": ("key",),
        "U": ("label", "embed"),
    }
    found = certify(Architecture(shifted, axes))
    assert found.degree == 6 and found.passed, found.to_text()
    assert any("db/dt has no term" in note for note in found.notes)


def test_the_command_certifies_what_its_flags_say(capsys):
    assert main(["certify", "linear", "--loss", "squared_error"]) == 0
    assert "no omitted term: equal" in capsys.readouterr().out
    assert main(["certify", "feed_forward", "--degree", "4", "--keep", "prediction"]) == 0
    assert "cut at degree" in capsys.readouterr().out
    assert main(["certify", "feed_forward", "--degree", "4", "--keep", "predicton"]) == 2
    assert "did you mean 'prediction'" in capsys.readouterr().err
