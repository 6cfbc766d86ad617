import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import sympy

import theory.cli
from theory import architectures, derive
from theory.activations import activation, z
from theory.data import Dataset, load
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.initial import initialise
from theory.language import Architecture, dot, elementwise, embed, parameter, rename, total
from theory.scaling import Hierarchy, hierarchy, late_ratios, order_parts
from theory.signature_kinds import signature_kind

# Stated beforehand: a fitted slope may differ from the law by this much.
TOLERANCE = 0.15


def random_law(length=3, tokens=4, labels=3, samples=40, per_position=False, seed=0):
    r = np.random.default_rng(seed)
    shape = (samples, length) if per_position else (samples,)
    weights = r.random(samples)
    return Dataset(
        r.integers(0, tokens, (samples, length)),
        r.integers(0, labels, shape),
        weights / weights.sum(),
        n_tokens=tokens,
        n_labels=labels,
    )


def data_of(dataset):
    return Data(dataset.tokens, dataset.labels, dataset.weights)


@pytest.mark.parametrize("name", ["feed_forward", "attention"])
def test_parts_sum_to_the_label_driven_equation(name):
    dataset = random_law()
    architecture = architectures.load(name)
    parameters = initialise(architecture, {**dataset.sizes, "embed": 3, "key": 2, "value": 2} if name == "attention" else
                            {**dataset.sizes, "embed": 3}, scale=0.8)  # fmt: skip
    parts = order_parts(architecture, dataset, parameters)
    whole = right_hand_sides(derive(architecture).label_driven, parameters, data_of(dataset))["E"]
    assert parts.shape == (3, 4, 3)
    np.testing.assert_allclose(parts.sum(0), whole, atol=1e-13)
    assert all(np.abs(part).max() > 1e-3 for part in parts)
    np.testing.assert_allclose(order_parts(architecture, dataset, parameters, orders=1), parts[:2], atol=1e-14)


def test_parts_equal_the_derived_terms_of_each_signature_order():
    dataset = random_law(length=4)
    architecture = architectures.feed_forward(z / 2 + z**2 / 3 - z**3 / 5 + z**4 / 7)
    parameters = initialise(architecture, {**dataset.sizes, "embed": 3}, scale=0.9)
    parts = order_parts(architecture, dataset, parameters)
    equations = derive(architecture, 5).distinct_positions().label_driven
    axes = equations["E"].axes
    for m in range(4):
        one = replace(
            equations,
            equations={
                "E": equations["E"].where(lambda t, m=m: signature_kind(t, equations.symbols, axes, True).order == m)
            },
        )
        np.testing.assert_allclose(parts[m], right_hand_sides(one, parameters, data_of(dataset))["E"], atol=1e-12)


@pytest.mark.parametrize("function", ["relu", "tanh"])
def test_parts_equal_inclusion_exclusion_written_out(function):
    dataset = random_law(length=3, samples=12)
    architecture = architectures.feed_forward(function)
    parameters = initialise(architecture, {**dataset.sizes, "embed": 3}, scale=1.0)
    embedding, unembedding = parameters["E"], parameters["U"]
    slope = activation(function)
    expected = np.zeros((3, 4, 3))
    for tokens, label, weight in zip(dataset.tokens, dataset.labels, dataset.weights, strict=True):
        for i in range(3):
            context = [j for j in range(3) if j != i]
            for m in range(3):
                for chosen in itertools.combinations(context, m):
                    for count in range(m + 1):
                        for kept in itertools.combinations(chosen, count):
                            h = embedding[tokens[[i, *kept]]].sum(0)
                            value = unembedding[label] * slope(h, np, 1)
                            expected[m, tokens[i]] += weight * (-1) ** (m - count) * value
    np.testing.assert_allclose(order_parts(architecture, dataset, parameters), expected, atol=1e-14)


# Orders 1, 2, 3: k_m − k_0 with k_m = min{k ≥ m+1 : C_k ≠ 0}; ReLU: no hierarchy.
@pytest.mark.parametrize("seeds", [(0,), (1, 2)])
@pytest.mark.parametrize(
    ("function", "slopes"),
    [("tanh", (2, 2, 4)), ("gelu", (1, 3, 3)), ("silu", (1, 3, 3)), ("relu", (0, 0, 0)), (z**4, (0, 0, 0))],
)
def test_proposition_1(function, slopes, seeds):
    dataset = load("add", numbers=3, length=4)
    found = hierarchy(architectures.feed_forward(function), dataset, {"embed": 5}, seeds=seeds)
    assert tuple(row.predicted for row in found.rows) == (0, *slopes)
    np.testing.assert_allclose([row.fitted for row in found.rows], (0, *slopes), atol=TOLERANCE)
    assert ("no hierarchy" in found.note) == (function == "relu")


def test_degrees_are_those_of_the_right_hand_side():
    dataset = load("add", numbers=3, length=3)
    found = hierarchy(architectures.feed_forward(z**3), dataset, {"embed": 4}, seeds=(0,))
    assert [row.degree for row in found.rows] == [3, 3, 3]
    found = hierarchy(architectures.feed_forward("gelu"), dataset, {"embed": 4}, seeds=(0,))
    assert [row.degree for row in found.rows] == [1, 2, 4]


@pytest.mark.parametrize(
    ("architecture", "sizes", "slopes"),
    [
        (architectures.emb_mlp("tanh"), {"embed": 4, "hidden": 3}, (0, 4, 4)),
        (architectures.attention(), {"embed": 4, "key": 2, "value": 2}, (0, 4, 4)),
        (architectures.emb_mlp("relu"), {"embed": 4, "hidden": 3}, (0, 0, 0)),
    ],
)
def test_proposition_1_of_other_architectures(architecture, sizes, slopes):
    found = hierarchy(architecture, load("add", numbers=3, length=3), sizes, orders=2)
    assert tuple(row.predicted for row in found.rows) == slopes
    np.testing.assert_allclose([row.fitted for row in found.rows], slopes, atol=TOLERANCE)


def test_a_parameter_of_weight_two_scales_with_the_square():
    def heavy(p, tokens):
        h = dot(p.W, total(embed(p.E, tokens), over="position"), over="embed")
        return dot(p.U, elementwise(h, "gelu"), over="hidden")

    axes = {"E": ("token", "embed"), "W": parameter("hidden", "embed", weight=2), "U": ("label", "hidden")}
    sizes = {"embed": 4, "hidden": 3}
    found = hierarchy(Architecture(heavy, axes), load("add", numbers=3), sizes, scales=(0.2, 0.1, 0.05))
    assert [row.predicted for row in found.rows] == [0, 3]
    assert found.rows[1].fitted == pytest.approx(3, abs=TOLERANCE)


def test_an_order_may_come_before_order_0():
    # Pairs of distinct positions at degree 2, single positions at degree 3.
    def pairs(p, tokens):
        w = embed(p.E, tokens)
        h = total(w, over="position")
        return dot(p.U, h * h - total(w * w, over="position") + total(w**3, over="position"), over="embed")

    architecture = Architecture(pairs, {"E": ("token", "embed"), "U": ("label", "embed")})
    found = hierarchy(architecture, load("add", numbers=3), {"embed": 4})
    assert [(row.degree, row.predicted) for row in found.rows] == [(3, 0), (2, -1)]
    assert found.rows[1].fitted == pytest.approx(-1, abs=TOLERANCE)


def test_the_slope_is_that_of_the_smallest_scales():
    found = hierarchy(
        architectures.feed_forward("tanh"),
        load("add", numbers=3, length=3),
        {"embed": 4},
        scales=(0.005, 4.0, 2.0, 1.0, 0.02, 0.01),
    )
    np.testing.assert_allclose([row.fitted for row in found.rows], (0, 2, 2), atol=0.01)


def test_a_transformer_with_a_label_at_every_position():
    dataset = random_law(per_position=True)
    sizes = {"embed": 4, "key": 2, "value": 2, "hidden": 3}
    found = hierarchy(
        architectures.transformer("tanh"), dataset, sizes, orders=1, scales=(0.1, 0.05, 0.025), seeds=(0, 1)
    )
    assert [row.predicted for row in found.rows] == [0, 6]
    assert found.rows[1].fitted == pytest.approx(6, abs=TOLERANCE)
    kinked = hierarchy(
        architectures.transformer("relu"), dataset, sizes, orders=1, scales=(0.1, 0.05, 0.025), seeds=(0, 1)
    )
    assert [row.predicted for row in kinked.rows] == [None, None]
    assert "nothing is predicted" in kinked.note
    assert kinked.rows[1].fitted == pytest.approx(4, abs=TOLERANCE)


def test_orders_that_vanish_are_said_to():
    found = hierarchy(architectures.feed_forward("quadratic"), load("add", numbers=3, length=4), {"embed": 4})
    assert [row.fitted is None for row in found.rows] == [False, False, True, True]
    assert [row.degree for row in found.rows] == [1, 2, None, None]
    assert "order 2, 3" in found.note
    assert found.to_text().count("vanishes") == 2


def test_a_function_without_kink_at_zero_is_not_called_homogeneous():
    # Order 0 from z, all others from the cube, which has no series at 0.
    function = z + sympy.Max(z, 0) ** 3
    found = hierarchy(architectures.feed_forward(function), load("add", numbers=3, length=3), {"embed": 4})
    assert [row.predicted for row in found.rows] == [None] * 3
    assert "nothing is predicted" in found.note
    np.testing.assert_allclose([row.fitted for row in found.rows], (0, 2, 2), atol=TOLERANCE)


def test_hierarchy_prints():
    found = hierarchy(architectures.feed_forward("tanh"), load("add", numbers=3), {"embed": 4})
    assert isinstance(found, Hierarchy)
    lines = found.to_text().splitlines()
    assert lines[2].split()[:4] == ["order", "degree", "predicted", "fitted"]
    assert lines[4].split()[:3] == ["1", "3", "2"]
    assert json.loads(found.to_json())["rows"][1]["predicted"] == 2.0


@pytest.mark.parametrize(
    ("power", "length", "prefactors"), [(5, 4, (1, 45, 150, 60)), (4, 4, (1, 21, 36, 6)), (2, 4, (1, 3))]
)
def test_proposition_2(power, length, prefactors):
    late = late_ratios(power, length)
    assert late.prefactors == prefactors
    assert late.largest == int(np.argmax(prefactors))
    assert f"{late.largest}  {max(prefactors)}  <- largest" in late.to_text()


@pytest.mark.parametrize(("power", "length"), [(2, 3), (3, 3), (5, 4)])
def test_late_ratios_are_those_of_equal_embeddings(power, length):
    dataset = load("add", numbers=2, length=length)
    architecture = architectures.feed_forward(z**power)
    parameters = initialise(architecture, {**dataset.sizes, "embed": 3}, scale=1.0)
    parameters["E"] = np.full((2, 3), 1.7)
    parts = order_parts(architecture, dataset, parameters)
    late = late_ratios(power, length)
    for m in range(length):
        prefactor = late.prefactors[m] if m < len(late.prefactors) else 0
        np.testing.assert_allclose(parts[m], prefactor * parts[0], atol=1e-10 * np.abs(parts).max())
    # All of them as s_U s_E^(K−1).
    doubled = order_parts(architecture, dataset, parameters | {"E": 2 * parameters["E"]})
    np.testing.assert_allclose(doubled, 2.0 ** (power - 1) * parts, rtol=1e-9, atol=1e-9 * np.abs(parts).max())


def test_late_ratios_hold_the_binomial():
    assert late_ratios(3, 5).prefactors == tuple(math.comb(4, m) * b for m, b in enumerate((1, 3, 2)))


def tied():
    def tied(p, tokens):
        h = elementwise(total(embed(p.E, tokens), over="position"), "tanh")
        return dot(rename(p.E, token="label"), h, over="embed")

    return Architecture(tied, {"E": ("token", "embed")})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: order_parts(tied(), d, {"E": np.ones((4, 2))}), "ties its labels"),
        (lambda d: hierarchy(architectures.linear(), d, {"embed": 2}, parameter="U"), "no embedding 'U'"),
        (lambda d: hierarchy(architectures.linear(), d, {"embed": 2}, scales=(0.1,)), "two different positive scales"),
        (lambda d: hierarchy(architectures.linear(), d, {"embed": 2}, seeds=()), "at least one seed"),
        (lambda d: hierarchy(architectures.linear(), d, {"embed": 2}, orders=-1), "at least 0"),
        (lambda d: hierarchy(architectures.transformer(), d, {"embed": 2}), "label per sequence"),
        (lambda d: late_ratios(0, 3), "at least 1"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(UserError, match=message):
        call(random_law(labels=4))


def run(*words):
    return theory.cli.main(words)


def test_the_scaling_command(capfd):
    assert run("scaling", "feed_forward", "--activation", "tanh", "--size", "embed=4", "--seeds", "1") == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert [line.split()[1:3] for line in out.splitlines()[3:]] == [["1", "0"], ["3", "2"], ["3", "2"], ["5", "4"]]
    words = ("--task", "mul", "--task-option", "numbers=3", "--orders", "1", "--format", "json")
    assert run("scaling", "linear", *words) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["dataset"] == "mul"
    assert [row["fitted"] for row in found["rows"]] == [0.0, None]


def test_the_closed_form_command(capfd, tmp_path):
    words = ("--task", "add", "--task-option", "numbers=20", "--size", "embed=4")
    assert run("closed-form", "feed_forward", "--activation", "tanh", *words) == 0
    out, err = capfd.readouterr()
    assert err == "" and "dt/d ln(1/scale) = 22.19" in out
    target = tmp_path / "attention.json"
    assert run("closed-form", "attention", "--format", "json", "-o", str(target)) == 0
    assert json.loads(target.read_text())["degree"] == 4
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("closed-form", "linear", "--size", "embd=3"), "no axis 'embd'"),
        (("closed-form", "linear", "--size", "embed=x"), "must be a whole number"),
        (("closed-form", "linear", "--gamma", "1", "--scale", "1"), "exactly one of --gamma and --scale"),
        (("closed-form", "feed_forward", "--activation", "relu"), "not analytic"),
        (("scaling", "transformer"), "one label per sequence"),
    ],
)
def test_mistakes_on_the_command_line(words, message, capfd):
    assert run(*words) == 2
    out, err = capfd.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
