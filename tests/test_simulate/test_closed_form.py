import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

from simulate import fields
from simulate.flow import integrate, time_of_loss
from theory import architectures, derive, interpret
from theory.closed_form import condensation, leading_equations, leading_order, second_stage
from theory.data import Dataset, load
from theory.errors import NumericalFailure, UserError
from theory.evaluation import Data, right_hand_sides
from theory.initial import initialise
from theory.language import Architecture, dot, elementwise, embed, parameter, rename, total
from theory.signatures import label_signature

ADD = load("add", numbers=4)
ATTENTION = {"embed": 5, "key": 3, "value": 4}


def next_token_law(tokens=5, length=4, samples=30):
    r = np.random.default_rng(0)
    return Dataset(
        r.integers(0, tokens, (samples, length)),
        r.integers(0, tokens, (samples, length)),
        n_tokens=tokens,
        n_labels=tokens,
    )


def with_positions():
    def with_positions(p, tokens):
        return dot(p.U, elementwise(total(embed(p.E, tokens) + p.P, over="position"), "gelu"), over="embed")

    return Architecture(
        with_positions, {"E": ("token", "embed"), "P": ("position", "embed"), "U": ("label", "embed")}
    )  # fmt: skip


def tied():
    def tied(p, tokens):
        h = total(embed(p.E, tokens), over="position")
        return dot(rename(p.E, token="label"), elementwise(h, "tanh"), over="embed")

    return Architecture(tied, {"E": ("token", "embed")})


def assert_follows(trajectory, at, tolerance=1e-6):
    for n, time in enumerate(trajectory.times):
        predicted = at(float(time))
        for name, array in trajectory.parameters(n).items():
            error = np.linalg.norm(predicted[name] - array) / np.linalg.norm(array)
            assert error < tolerance, (name, time, error)


def test_the_linear_flow_is_the_integrated_one():
    architecture, dataset = architectures.feed_forward("gelu"), ADD
    initial = initialise(architecture, {**dataset.sizes, "embed": 3}, scale=1e-2)
    flow = leading_order(architecture, dataset, initial)
    until = 4 * flow.escape_slope
    field = fields.field(architecture, "expanded", 2)
    trajectory = integrate(field, dataset, initial, until=until, save=[until / 2, until], rtol=1e-11)
    assert trajectory.status == "completed"
    assert_follows(trajectory, flow.at)
    # It has grown: the agreement is not that of standing still.
    grown = trajectory.parameters(1)["E"]
    assert np.linalg.norm(grown) > 3 * np.linalg.norm(initial["E"])
    before = flow.conserved(initial)
    for found in (flow.at(until), trajectory.parameters(1)):
        assert np.abs(flow.conserved(found) - before).max() < 1e-8 * np.linalg.norm(grown) ** 2


MORE = {
    "feed_forward tanh": (architectures.feed_forward("tanh"), ADD, "cross_entropy", (("E",), ("U",))),
    "linear": (architectures.linear(), load("add", numbers=4, n_outputs=9), "cross_entropy", (("E",), ("U",))),
    "transformer": (architectures.transformer(), next_token_law(), "cross_entropy", (("E",), ("U",))),
    "positions": (with_positions(), ADD, "cross_entropy", (("E", "P"), ("U",))),
    "tied": (tied(), load("mod", numbers=4, modulus=3, n_outputs=4), "cross_entropy", None),
    "squared error": (architectures.feed_forward("tanh"), ADD, "squared_error", (("E",), ("U",))),
}


@pytest.mark.parametrize("case", MORE)
def test_other_linear_flows(case):
    # Integrated by scipy from the derived right-hand sides, which saves a compilation each.
    architecture, dataset, loss, sides = MORE[case]
    sizes = {**dataset.sizes, **ATTENTION, "hidden": 2}
    initial = initialise(architecture, {a: n for a, n in sizes.items() if a in architecture.axes}, scale=1e-2)
    flow = leading_order(architecture, dataset, initial, loss=loss)
    assert flow.spectators == ("embed",)
    equations = derive(architecture, 2, (), loss=loss)
    data = Data(dataset.tokens, dataset.labels, dataset.weights)
    ends = np.cumsum([a.size for a in initial.values()])[:-1]

    def unpack(vector):
        parts = np.split(vector, ends)
        return {n: p.reshape(a.shape) for (n, a), p in zip(initial.items(), parts, strict=True)}

    def slope(t, vector):
        return np.concatenate([v.ravel() for v in right_hand_sides(equations, unpack(vector), data).values()])

    until = 3 * flow.escape_slope
    start = np.concatenate([a.ravel() for a in initial.values()])
    end = solve_ivp(slope, (0, until), start, method="DOP853", rtol=1e-11, atol=1e-14).y[:, -1]
    for name, array in unpack(end).items():
        np.testing.assert_allclose(flow.at(until)[name], array, atol=1e-7 * np.linalg.norm(end))
    if sides is None:
        with pytest.raises(UserError, match="drives its own side"):
            flow.conserved(initial)
    else:
        assert flow.sides == sides
        change = flow.conserved(unpack(end)) - flow.conserved(initial)
        assert np.abs(change).max() < 1e-8 * np.linalg.norm(end) ** 2


def test_the_formula_in_singular_vectors():
    architecture = architectures.feed_forward("gelu")
    initial = initialise(architecture, {**ADD.sizes, "embed": 3}, scale=1e-2)
    flow = leading_order(architecture, ADD, initial)
    signature = label_signature(ADD, 0)
    b = ADD.length * signature.probability[:, None] * (signature.array - 1 / ADD.n_labels)
    rate = 0.5
    assert float(flow.factor.to_sympy()) == rate
    np.testing.assert_allclose(flow.coupling("E", "U"), rate * b, atol=1e-15)
    np.testing.assert_allclose(flow.coupling("U", "E"), rate * b.T, atol=1e-15)
    left, s, right = np.linalg.svd(b, full_matrices=False)
    np.testing.assert_allclose(flow.rates, rate * s[s > 1e-12], rtol=1e-12)
    np.testing.assert_allclose(flow.singular()[1], rate * s, atol=1e-14)
    time = 30.0
    grown = (np.cosh(rate * s * time) - 1)[:, None] * (left.T @ initial["E"])
    expected = initial["E"] + left @ (grown + np.sinh(rate * s * time)[:, None] * (right @ initial["U"]))
    np.testing.assert_allclose(flow.at(time)["E"], expected, rtol=1e-10)
    assert flow.sides == (("E",), ("U",))
    np.testing.assert_allclose(
        flow.conserved(initial), initial["E"].T @ initial["E"] - initial["U"].T @ initial["U"], atol=1e-18
    )


def test_the_fall_of_the_loss_is_that_of_the_exact_loss_at_small_scale():
    architecture = architectures.feed_forward("tanh")
    initial = initialise(architecture, {**ADD.sizes, "embed": 3}, scale=1e-3)
    flow = leading_order(architecture, ADD, initial)

    def loss(time, scale=1.0):
        arrays = {name: scale * array for name, array in flow.at(time).items()}
        return interpret.loss(architecture, arrays, ADD.tokens, ADD.labels, ADD.weights)

    time = 2 * flow.escape_slope
    assert flow.loss_fall(0.0) == 0.0
    assert flow.loss_fall(time) == pytest.approx(loss(0.0) - loss(time), rel=1e-3)
    assert flow.loss_fall(time, 2.0) == pytest.approx(loss(0.0, 2.0) - loss(time, 2.0), rel=1e-3)


def test_the_best_of_several_maxima_is_taken():
    # With σ = z³ each hidden unit may hold any of several local maxima.
    r = np.random.default_rng(0)
    dataset = Dataset(r.integers(0, 5, (40, 3)), r.integers(0, 4, 40), n_tokens=5, n_labels=4)
    found = condensation(architectures.feed_forward("cube"), dataset, {"embed": 2}, starts=6)
    assert min(found.starts) < 0.95 * max(found.starts)
    assert found.maximum == max(found.starts) == found.starts[0]


def test_the_bigram_path_has_no_factor_of_length():
    dataset = next_token_law()
    architecture = architectures.transformer()
    initial = initialise(architecture, {**dataset.sizes, **ATTENTION, "hidden": 4}, scale=1e-2)
    flow = leading_order(architecture, dataset, initial)
    joint = np.zeros((5, 5))
    np.add.at(joint, (dataset.tokens.ravel(), dataset.labels.ravel()), 1 / dataset.tokens.size)
    np.testing.assert_allclose(flow.coupling("E", "U"), joint - joint.sum(1, keepdims=True) / 5, atol=1e-15)
    assert flow.moving == ("E", "U")
    assert flow.factor.to_sympy() == 1
    np.testing.assert_array_equal(flow.at(1.0)["W1"], initial["W1"])


def test_escape_time_in_the_leading_and_in_the_exact_flow():
    architecture, dataset = architectures.feed_forward("tanh"), load("sub", numbers=5)
    initial = initialise(architecture, {**dataset.sizes, "embed": 6}, scale=1e-2)
    flow = leading_order(architecture, dataset, initial)
    assert flow.loss_fall(flow.escape_time()) == pytest.approx(0.5 * math.log(dataset.n_labels), rel=1e-9)
    assert flow.escape_slope == pytest.approx(1 / np.linalg.norm(flow.coupling("E", "U"), 2), rel=1e-12)
    field = fields.exact(architecture)
    # A fall that the first direction makes by itself.
    drop = 0.2
    leading, exact = [], []
    for scale in (1.0, 1e-1, 1e-2):
        leading.append(flow.escape_time(drop, scale))
        start = {name: scale * array for name, array in initial.items()}
        exact.append(time_of_loss(field, dataset, start, max_time=2000.0, drop=drop))
    for times in (leading, exact):
        np.testing.assert_allclose(np.diff(times) / np.log(10), flow.escape_slope, rtol=0.05)
    assert 1 < exact[0] / leading[0] < 1.8


def test_escape_slope_where_two_rates_are_close():
    dataset = load("add", numbers=20)
    architecture = architectures.feed_forward("tanh")
    initial = initialise(architecture, {**dataset.sizes, "embed": 32}, scale=1e-2)
    flow = leading_order(architecture, dataset, initial)
    # The number of the calibration: 22.2.
    assert flow.escape_slope == pytest.approx(22.2, abs=0.05)
    times = [flow.escape_time(scale=scale) for scale in (1.0, 1e-1, 1e-2)]
    np.testing.assert_allclose(np.diff(times) / np.log(10), flow.escape_slope, rtol=0.05)


CONDENSING = {
    3: (architectures.emb_mlp("tanh"), {"embed": 4, "hidden": 3}, 1),
    4: (architectures.attention(), ATTENTION, ADD.length),
}


@pytest.mark.parametrize("degree", CONDENSING)
def test_condensation(degree):
    architecture, sizes, length = CONDENSING[degree]
    found = condensation(architecture, ADD, sizes, starts=4)
    assert found.degree == degree
    # A product of matrices: the top singular value of B, shared out equally.
    signature = label_signature(ADD, 0)
    b = ADD.length * signature.probability[:, None] * (signature.array - 1 / ADD.n_labels) / length
    assert found.maximum == pytest.approx(np.linalg.norm(b, 2) / degree ** (degree / 2), rel=1e-10)
    assert all(s[1] < 1e-6 for s in found.singular_values().values())
    assert sum(np.linalg.norm(a) ** 2 for a in found.direction.values()) == pytest.approx(1)

    norm = 0.1
    end = found.blow_up_time(norm)
    field = fields.field(architecture, "expanded", degree)
    start = {name: norm * array for name, array in found.direction.items()}
    # Parameters that stand still at 0 have no scale of their own for the tolerance.
    trajectory = integrate(
        field, ADD, start, until=1.5 * end, save=[0.5 * end, 0.9 * end], rtol=1e-11, atol=1e-13, blow_up=1e5
    )
    assert trajectory.status == "blow-up"
    assert trajectory.attributes["stop_time"] == pytest.approx(end, rel=1e-3)
    for n, time in enumerate(trajectory.times):
        predicted = found.at(float(time), norm)
        for name, array in trajectory.parameters(n).items():
            assert np.linalg.norm(predicted[name] - array) <= 1e-6 * np.linalg.norm(array) + 1e-12
    # No start of the same norm blows up earlier.
    late = []
    for seed in (0, 1):
        random = {
            name: array * np.any(found.direction[name])
            for name, array in initialise(architecture, {**ADD.sizes, **sizes}, scale=1.0, seed=seed).items()
        }
        size = math.sqrt(sum(np.sum(a**2) for a in random.values()))
        random = {name: norm / size * array for name, array in random.items()}
        other = integrate(field, ADD, random, until=20 * end, save=[0.0, end], rtol=1e-11, atol=1e-13, blow_up=1e5)
        assert other.status == "blow-up"
        late.append(other.attributes["stop_time"] / end)
    assert all(1.2 < ratio < 10 for ratio in late), late


class Frozen:
    """A field in which only some parameters move."""

    name = "frozen"

    def __init__(self, field, moving):
        self.field, self.moving = field, moving

    def data(self, dataset):
        return self.field.data(dataset)

    def __call__(self, t, parameters, data):
        found = self.field(t, parameters, data)
        return {n: v if n in self.moving else jnp.zeros_like(v) for n, v in found.items()}


@pytest.mark.parametrize("name", ["attention", "transformer"])
def test_second_stage(name):
    if name == "attention":
        architecture, dataset, sizes, pair = architectures.attention(), ADD, ATTENTION, ("Q", "K")
    else:
        architecture, dataset = architectures.transformer(), next_token_law()
        sizes, pair = {**ATTENTION, "hidden": 4}, ("Q1", "K1")
    query, key = pair
    outer = initialise(architecture, {**dataset.sizes, **sizes}, scale=0.9, seed=3)
    initial = outer | {n: 1e-8 * outer[n] for n in pair}
    flow = second_stage(architecture, dataset, initial)
    assert (flow.moving, flow.spectators) == (pair, ("key",))

    # F against automatic differentiation of the interpreted loss, its orientation included.
    data = fields.as_data(architecture, dataset)

    def loss(w_q, w_k):
        arrays = {n: jnp.asarray(a) for n, a in outer.items()} | {query: w_q, key: w_k}
        return interpret.loss(architecture, arrays, data.tokens, data.labels, data.weights, xp=jnp)

    with jax.enable_x64(True):
        zero = jnp.zeros(outer[query].shape)
        mixed = -jax.jit(jax.jacobian(jax.grad(loss, 1), 0))(zero, zero)
    f = flow.coupling(key, query)
    np.testing.assert_allclose(f, np.asarray(mixed)[0, :, 0, :], atol=1e-14)
    assert np.abs(f - f.T).max() > 0.1 * np.abs(f).max()

    left, s, right = np.linalg.svd(f)
    if name == "attention":
        until = 6 / s[0]
        field = Frozen(fields.exact(architecture), pair)
        trajectory = integrate(field, dataset, initial, until=until, save=[until / 2, until], rtol=1e-11)
        assert_follows(trajectory, flow.at)
    late = flow.at(40 / (s[0] - s[1]))
    for array, vector in ((late[query], right[0]), (late[key], left[:, 0])):
        _, values, vectors = np.linalg.svd(array)
        assert values[1] < 1e-6 * values[0]
        assert abs(vectors[0] @ vector) == pytest.approx(1, abs=1e-6)


def test_structures_that_have_no_closed_form_are_refused():
    mlp, sizes = architectures.emb_mlp("tanh"), {"embed": 3, "hidden": 2}
    with pytest.raises(UserError, match=r"degree 3 in \(E, W, U\).*condensation"):
        leading_order(mlp, ADD, initialise(mlp, {**ADD.sizes, **sizes}, scale=0.1))
    with pytest.raises(UserError, match="degree 2, which does not condense; use leading_order"):
        condensation(architectures.linear(), ADD, {"embed": 3})
    with pytest.raises(UserError, match="not analytic"):
        leading_equations(architectures.feed_forward("relu"))
    two = architectures.transformer(blocks=2)
    arrays = initialise(two, {**next_token_law().sizes, **ATTENTION, "hidden": 4}, scale=0.5)
    with pytest.raises(UserError, match=r"Q1, K1, Q2, K2\) are read inside softmaxes alone"):
        second_stage(two, next_token_law(), arrays)
    assert second_stage(two, next_token_law(), arrays, ("Q2", "K2")).spectators == ("key",)
    with pytest.raises(UserError, match="move even where both vanish"):
        second_stage(two, next_token_law(), arrays, ("Q1", "U"))
    with pytest.raises(UserError, match="no parameter 'R'"):
        second_stage(two, next_token_law(), arrays, ("R", "U"))
    attention = architectures.attention()
    arrays = initialise(attention, {**ADD.sizes, **ATTENTION}, scale=0.5)
    with pytest.raises(UserError, match="needs drop="):
        second_stage(attention, ADD, arrays).escape_time()
    with pytest.raises(UserError, match="label per sequence"):
        second_stage(two, ADD, initialise(two, {**ADD.sizes, **ATTENTION, "hidden": 4}, scale=0.5), ("Q1", "K1"))


def test_a_parameter_of_weight_zero_is_refused():
    def gained(p, tokens):
        return dot(p.U, total(embed(p.E, tokens), over="position") * p.g, over="embed")

    spec = {"E": ("token", "embed"), "U": ("label", "embed"), "g": parameter("embed", weight=0)}
    architecture = Architecture(gained, spec)
    with pytest.raises(UserError, match="holds 'g' of weight 0"):
        leading_order(architecture, ADD, initialise(architecture, {**ADD.sizes, "embed": 2}, scale=0.1))


def test_a_leading_form_that_vanishes():
    # Modular addition with as many outputs as numbers: P(y|α) = 1/V_out.
    dataset = load("mod", numbers=4)
    architecture = architectures.feed_forward("tanh")
    initial = initialise(architecture, {**dataset.sizes, "embed": 2}, scale=0.1)
    flow = leading_order(architecture, dataset, initial)
    assert len(flow.rates) == 0
    assert "nothing grows" in flow.to_text()
    with pytest.raises(UserError, match="nothing grows"):
        flow.escape_time()
    np.testing.assert_allclose(flow.at(50.0)["E"], initial["E"], atol=1e-15)
    with pytest.raises(UserError, match=r"degree 4\) vanishes on mod"):
        condensation(architectures.attention(), dataset, ATTENTION)


def test_results_print_and_refuse_what_lies_beyond_them():
    found = condensation(*CONDENSING[3][:1], ADD, CONDENSING[3][1], starts=2)
    assert "h* = " in found.to_text() and found.to_dict()["degree"] == 3
    with pytest.raises(NumericalFailure, match="blows up at"):
        found.at(found.blow_up_time())
    architecture = architectures.linear()
    flow = leading_order(architecture, ADD, initialise(architecture, {**ADD.sizes, "embed": 2}, scale=0.1))
    assert "escape slope" in flow.to_text() and flow.to_dict()["moving"] == ["E", "U"]
    with pytest.raises(NumericalFailure, match="range of floats"):
        flow.at(1e6)
    with pytest.raises(ValueError, match="read-only"):
        flow.initial["E"][0, 0] = 1.0
