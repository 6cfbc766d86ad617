"""Minibatch noise: its covariance, the weak order of the paths, the band's coverage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from descent import minibatch_descent

from simulate import exact, fields
from simulate.modified import modified, with_weight_decay
from simulate.noise import (
    covariance_factor,
    coverage,
    entry_observables,
    gradient_noise,
    predict_band,
    subsampled,
)
from simulate.trajectory import Trajectory
from theory import architectures, data, initialise
from theory.data import Dataset
from theory.errors import UserError
from theory.evaluation import Data


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def setting(architecture, seed=0):
    sizes = {"token": 4, "label": 3, "position": 3, "embed": 2, "hidden": 3, "key": 2, "value": 3}
    generator = np.random.default_rng(seed)
    sizes = {a: n for a, n in sizes.items() if a in {*architecture.axes, "label"}}
    parameters = {k: jnp.asarray(generator.normal(0, 0.7, s)) for k, s in architecture.shapes(sizes).items()}
    tokens = generator.integers(0, 4, (7, 3))
    labels = generator.integers(0, 3, tokens.shape if architecture.labels_per_position else 7)
    return parameters, Dataset(tokens, labels, generator.dirichlet(np.ones(7)), n_tokens=4, n_labels=3)


def quickly(function, argument):
    """Compiled without optimisation: each program is run once."""
    return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})(argument)


def flat(values):
    return np.concatenate([np.asarray(values[name]).reshape(len(values[name]), -1) for name in sorted(values)], axis=1)


@pytest.mark.parametrize(
    ("name", "kind"), [("feed_forward", "exact"), ("transformer", "exact"), ("feed_forward", "cut-logits")]
)
def test_the_factor_is_that_of_the_explicit_covariance(float64, name, kind):
    """Against Cov(g_s)/B from the field at each single sample: 1e-12 of the largest entry."""
    architecture = getattr(architectures, name)("tanh")
    parameters, dataset = setting(architecture)
    field = fields.field(architecture, kind, 4)
    arrays, batch = field.data(dataset), 5

    def alone(row):
        return field(0.0, parameters, Data(arrays.tokens[row][None], arrays.labels[row][None], jnp.ones(1)))

    each = flat(quickly(lambda rows: jax.lax.map(alone, rows), jnp.arange(7)))
    centred = each - dataset.weights @ each
    wanted = (centred.T * dataset.weights) @ centred / batch
    factor = flat(quickly(lambda p: covariance_factor(field, p, arrays, batch), parameters))
    assert factor.shape == (7, each.shape[1])
    assert np.abs(factor.T @ factor - wanted).max() < 1e-12 * np.abs(wanted).max()
    normals = np.random.default_rng(1).normal(size=7)
    one = quickly(lambda p: gradient_noise(field, p, arrays, jnp.asarray(normals), batch), parameters)
    found = np.concatenate([np.asarray(one[k]).ravel() for k in sorted(one)])
    np.testing.assert_allclose(found, normals @ factor, rtol=0, atol=1e-12 * np.abs(factor).max())


class Walk:
    """θ falls to the mean of the samples ("additive"), or to 0 at the rate of each sample ("multiplicative")."""

    name, axes = "walk", {"x": ("state",)}

    def __init__(self, kind):
        self.kind = kind

    def data(self, dataset):
        values = jnp.asarray(dataset)
        return Data(values, values, jnp.full(len(values), 1 / len(values)))

    def __call__(self, t, parameters, data):
        x, w = parameters["x"], data.weights
        if self.kind == "multiplicative":
            return {"x": -jnp.sum(w * data.tokens) * x}
        return {"x": jnp.sum(w * data.tokens) - jnp.sum(w) * x}


ADDITIVE, MULTIPLICATIVE = Walk("additive"), Walk("multiplicative")


def moments(kind, values, start, rate, batch, steps):
    """Mean and variance of the iteration itself after so many steps."""
    m, v = values.mean(), values.var() / batch
    if kind == "multiplicative":  # θ ← θ (1 − η x̄)
        mean = start * (1 - rate * m) ** steps
        return mean, start**2 * ((1 - rate * m) ** 2 + rate**2 * v) ** steps - mean**2
    keep = 1 - rate  # θ ← θ + η (x̄ − θ), an Ornstein–Uhlenbeck process in discrete time
    mean = m + (start - m) * keep**steps
    return mean, rate**2 * v * (1 - keep ** (2 * steps)) / (1 - keep**2)


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
@pytest.mark.parametrize("stride", [1, 5])
def test_mean_and_variance_of_an_iteration_in_closed_form(kind, stride):
    """Four standard errors of 20,000 paths, and 1 % for a stride of 5 (h = 0.25).

    A Stratonovich reading of the multiplicative noise would shift the mean by 35 %, 40 standard errors.
    """
    values, rate, batch = np.array([-2.0, 0.5, 1.0, 4.5]), 0.05, 1
    until = 1.0 if kind == "additive" else 2.0
    run = predict_band(
        ADDITIVE if kind == "additive" else MULTIPLICATIVE,
        values,
        {"x": np.array([1.5])},
        learning_rate=rate,
        batch=batch,
        save=[until / 2, until],
        paths=20_000,
        group=20_000,
        stride=stride,
        observables={"place": place},
    )
    allowed = 0.0 if stride == 1 else 0.01
    for i, t in enumerate(run.times):
        mean, variance = moments(kind, values, 1.5, rate, batch, round(t / rate))
        found, spread = run["place"].values[i], run["place_std"].values[i]
        if t == 0:
            assert found == 1.5 and spread < 1e-12
            continue
        assert abs(found - mean) < 4 * np.sqrt(variance / 20_000) + allowed * abs(mean), (t, found, mean)
        heavy = 6 if kind == "multiplicative" else 1  # of the variance's own error: log-normal tails
        assert abs(spread**2 / variance - 1) < 4 * heavy * np.sqrt(2 / 20_000) + 2 * allowed, (t, spread**2, variance)
    assert run["place_lower"].values[-1] < run["place"].values[-1] < run["place_upper"].values[-1]


def place(parameters, data):
    return parameters["x"][0]


def test_a_stride_without_noise_is_of_second_order():
    """Samples that are all equal give no noise. What is left is gradient descent: exactly at a stride of 1, on a linear
    field at a stride of 2 as well, then with the local error h³ (1 − 1/k)(1 − 2/k)/6."""
    strides, until = np.array([1, 2, 4, 8]), 1.28
    errors = []
    for stride in strides.tolist():
        run = predict_band(
            ADDITIVE, np.full(3, 2.0), {"x": np.array([-1.0])},
            learning_rate=0.01, batch=2, save=[until], paths=39, group=39, stride=stride, observables={"place": place},
        )  # fmt: skip
        errors.append(run["place"].values[-1] - (2 - 3 * 0.99**128))
        assert run["place_std"].values[-1] < 1e-13 and run.attributes["steps_accepted"] == 128 // stride
    wanted = -3 * np.exp(-until) * until * (0.01 * strides) ** 2 * (1 - 1 / strides) * (1 - 2 / strides) / 6
    assert np.abs(errors[:2]).max() < 1e-13
    np.testing.assert_allclose(errors[2:], wanted[2:], rtol=0.1)


def test_subsampled_noise_has_the_covariance_of_all_samples(float64):
    """Five samples of six at each step: the mean over 40,000 draws within 3 %, and 20 % off without the factor 5/4."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=6) ** 3
    weights = jnp.asarray(generator.dirichlet(np.ones(6)))
    everything = Data(jnp.asarray(values), jnp.asarray(values), weights)

    def variance(key):
        part = subsampled(everything, key, 5)
        return jnp.sum(covariance_factor(ADDITIVE, {"x": jnp.zeros(1)}, part, 1)["x"] ** 2) * 5 / 4

    found = float(jnp.mean(jax.jit(jax.vmap(variance))(jax.random.split(jax.random.key(0), 40_000))))
    wanted = float(weights @ values**2 - (weights @ values) ** 2)
    assert found == pytest.approx(wanted, rel=0.03)


ENTRIES = ("E[0,0]", "E[2,1]", "U[3,2]")


def covered(
    model, dataset, sizes, *, gamma, seed, rate, batch, until, seeds, paths, decay=0.0, kind="exact", **options
):
    """A band and the share of measurements of SGD inside it, pooled over seeds, eight save times and six observables."""
    start = initialise(model, {**dataset.sizes, **sizes}, gamma=gamma, seed=seed)
    observables = entry_observables(ENTRIES, {name: array.shape for name, array in start.items()})
    save = np.linspace(0, until, 9)
    band = predict_band(
        with_weight_decay(exact(model), decay), dataset, start,
        learning_rate=rate, batch=batch, save=save, paths=paths, observables=observables, save_parameters=["E"], **options,
    )  # fmt: skip
    training = minibatch_descent(
        exact(model), dataset, start,
        rate=rate, batch=batch, save=save, seeds=seeds, decay=decay, observables=observables,
    )  # fmt: skip
    return band, training, coverage(band, training, ["loss", "norm_E", "norm_U", *ENTRIES])


def test_coverage_quickly():
    """64 seeds, through the escape from the plateau; and a band is not simply wide."""
    dataset = data.load("add", numbers=4, length=2)
    band, training, share = covered(
        architectures.feed_forward("gelu"), dataset, {"embed": 4},
        gamma=0.8, seed=0, rate=0.1, batch=4, until=32.0, seeds=64, paths=199, stride=8, decay=0.01,
    )  # fmt: skip
    assert 0.90 <= share <= 0.98, share
    assert band["loss"].values[-1] < 0.8 * band["loss"].values[0]
    halved = band.data.copy()
    for name in ("loss", "norm_E", "norm_U", *ENTRIES):
        for side in ("lower", "upper"):
            halved[f"{name}_{side}"] = (band[f"{name}_{side}"] + band[name]) / 2
    assert coverage(Trajectory(halved), training, ["loss", "norm_E", "norm_U", *ENTRIES]) < 0.8
    assert band["E"].dims == ("time", "token", "embed")
    np.testing.assert_allclose(band["E"].values[:, 2, 1], band["E[2,1]"].values, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "sizes", "gamma", "rate", "batch", "until"),
    [
        ("feed_forward", {"embed": 8}, 0.8, 0.1, 8, 40.0),
        ("feed_forward", {"embed": 8}, 0.8, 0.4, 4, 40.0),
        ("attention", {"embed": 8, "key": 4, "value": 8}, 0.6, 0.1, 16, 20.0),
    ],
)
def test_coverage_pooled_over_seeds(name, sizes, gamma, rate, batch, until, seed):
    """128 seeds of SGD, with the stride found by trial."""
    dataset = data.load("add", numbers=6, length=2)
    model = architectures.feed_forward("gelu") if name == "feed_forward" else architectures.attention()
    _, _, share = covered(
        model, dataset, sizes, gamma=gamma, seed=seed, rate=rate, batch=batch, until=until, seeds=128, paths=399
    )
    assert 0.90 <= share <= 0.98, share


def test_paths_are_reproducible_and_do_not_depend_on_their_number():
    def loss(paths, seed=0, group=16):
        run = predict_band(
            ADDITIVE, np.array([0.0, 1.0]), {"x": np.array([1.0])},
            learning_rate=0.1, batch=1, save=[1.0], paths=paths, seed=seed, stride=2, group=group,
            observables={"place": place},
        )  # fmt: skip
        return run["place"].values[-1], run["place_std"].values[-1]

    assert loss(40) == loss(40) != loss(40, seed=1)
    np.testing.assert_allclose(loss(40), loss(40, group=40), rtol=1e-12)


def test_a_stride_is_found_by_trial():
    """The smaller the noise, the more accurate the path must be; strides of 2 are exact on a linear field."""

    def chosen(scale):
        run = predict_band(
            ADDITIVE, np.array([-scale, scale]), {"x": np.array([1.0])},
            learning_rate=0.01, batch=1, save=[1.0], paths=39, observables={"place": place},
        )  # fmt: skip
        return run.attributes["stride"]

    strides = [chosen(scale) for scale in (1.0, 0.1, 1e-3)]
    assert strides == sorted(strides, reverse=True) and 64 >= strides[0] > strides[1] > strides[2] == 2, strides


def test_equal_requests_compile_once():
    field = Walk("additive")
    call = {"learning_rate": 0.1, "batch": 1, "save": [1.0], "stride": 1, "paths": 39}
    first = predict_band(field, np.array([0.0, 1.0]), {"x": np.ones(1)}, **call)
    other = call | {"learning_rate": 0.05, "batch": 3, "save": [2.0], "stride": None, "seed": 4, "paths": 50}
    again = predict_band(field, np.array([3.0, 1.0]), {"x": np.zeros(1)}, **other)
    assert again.attributes["seconds_compile"] < 0.2 * first.attributes["seconds_compile"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"replacement": False}, "no band is predicted for reshuffled epochs .* about a fifth"),
        ({"batch": 0}, "needs a batch, a whole number of at least 1, found 0"),
        ({"batch": "full"}, "needs a batch, .* found 'full'"),
        ({"paths": 38}, "needs at least 39 paths, found 38"),
        ({"stride": 0}, "stride must be a whole number of at least 1"),
        ({"rank": 1}, "rank must be a whole number of at least 2"),
        ({"save_parameters": ["y"]}, "no parameter 'y' to save"),
        ({"observables": {"norm_x": place}}, "cannot be called 'norm_x'"),
        ({"save": [1e-9]}, "before the first step"),
        ({"learning_rate": 0.0}, "learning_rate must be a positive number"),
    ],
)
def test_mistakes_are_named(change, words):
    call = {"learning_rate": 0.1, "batch": 1, "save": [1.0]} | change
    with pytest.raises(UserError, match=words):
        predict_band(ADDITIVE, np.array([0.0, 1.0]), {"x": np.ones(1)}, **call)


class Normalised(Walk):
    def __call__(self, t, parameters, data):
        return {"x": jnp.sum(data.weights * data.tokens) / jnp.sum(data.weights**2) - parameters["x"]}


class Averaged(Walk):
    def data(self, dataset):
        return jnp.mean(jnp.asarray(dataset))

    def __call__(self, t, parameters, data):
        return {"x": data - parameters["x"]}


def test_fields_that_give_no_noise_are_named():
    call = {"learning_rate": 0.1, "batch": 1, "save": [1.0], "stride": 1}
    values, start = np.array([0.0, 1.0]), {"x": np.ones(1)}
    with pytest.raises(UserError, match="give the plain flow, not 'modified walk'"):
        predict_band(modified(ADDITIVE, 0.1), values, start, **call)
    with pytest.raises(UserError, match="not linear in the weights"):
        predict_band(Normalised("additive"), values, start, **call)
    with pytest.raises(UserError, match="not evaluated on samples"):
        predict_band(Averaged("additive"), values, start, **call)
    # but it has a drift, and the noise may come from elsewhere
    run = predict_band(Averaged("additive"), values, start, sampled=ADDITIVE, **call)
    assert run.status == "completed" and run["norm_x_std"].values[-1] > 0


def test_a_blow_up_of_paths_keeps_what_came_before():
    """θ grows by a factor of 10 to 11 at each step."""
    run = predict_band(
        MULTIPLICATIVE, np.array([-9.0, -10.0]), {"x": np.ones(1)},
        learning_rate=1.0, batch=1, save=[3.0, 5.0, 7.0, 9.0], stride=1,
    )  # fmt: skip
    assert run.status == "blow-up" and run.times.tolist() == [0.0, 3.0, 5.0]
    assert np.isfinite(run["norm_x_upper"].values).all() and "blew up after t = 5" in run.attributes["message"]


def test_entries_by_name():
    found = entry_observables(["loss", "E[1, 0]", "norm_E"], {"E": (2, 3)})
    assert list(found) == ["E[1, 0]"] and found["E[1, 0]"]({"E": np.arange(6).reshape(2, 3)}, None) == 3
    for text, words in [
        ("E[2,0]", r"no entry of E, whose shape is \(2, 3\)"),
        ("los", "did you mean 'loss'"),
        ("V[0]", "E\\[0,1\\]"),
    ]:
        with pytest.raises(UserError, match=words):
            entry_observables([text], {"E": (2, 3)})


def test_coverage_counts_what_lies_inside():
    def trajectory(series, seeds=None, **parameters):
        attributes = {"kind": "flow", "name": "n", "status": "completed"}
        return Trajectory.from_arrays([0.0, 1.0, 2.0], parameters, series, axes={}, attributes=attributes, seeds=seeds)

    band = trajectory({"E[1]_lower": np.zeros(3), "E[1]_upper": np.ones(3)})
    values = np.array([[9.0, 0.5, 2.0], [9.0, 1.0, -1e-9], [9.0, 0.2, 0.3]])
    training = trajectory({"loss": values}, seeds=[3, 4, 5], E=np.stack([values * 0, values], axis=-1))
    assert coverage(band, training, ["E[1]"]) == 4 / 6
    with pytest.raises(UserError, match="holds no 'loss_lower'"):
        coverage(band, training, ["loss"])
