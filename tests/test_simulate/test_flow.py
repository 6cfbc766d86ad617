"""Integration: closed forms, orders of accuracy, failure as data, save times, one compilation."""

import math
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

from simulate import flow, memory
from simulate.flow import integrate, saved_bytes, time_of_loss
from simulate.schedule import Schedule
from simulate.solve import block_norm
from theory.errors import NumericalFailure, UserError


class Field:
    """A field from a plain function of (t, parameters, data), counting how often it is traced."""

    def __init__(self, function, name="test", loss=None, axes=None):
        self.function, self.name, self.traces = function, name, 0
        if loss is not None:
            self.loss = loss
        if axes is not None:
            self.axes = axes

    def data(self, dataset):
        return {key: jnp.asarray(value) for key, value in dataset.items()}

    def __call__(self, t, parameters, data):
        self.traces += 1
        return self.function(t, parameters, data)


LINEAR = Field(lambda t, p, d: {"y": d["A"] @ p["y"]}, axes={"y": ("state",)})
# One field for most tests, since each new one is compiled: y' = rate · y^power · (1 − gate · y).
POWER = Field(
    lambda t, p, d: {"y": d["rate"] * p["y"] ** d["power"] * (1 - d["gate"] * p["y"])},
    loss=lambda p, d: jnp.sum((1 - p["y"]) ** 2),
)
TWO = Field(lambda t, p, d: {"a": d["a"] * p["a"], "b": d["b"] * p["b"] + d["c"]})


def power_flow(y0, *, rate=1.0, power=1.0, gate=0.0, **options):
    data = {"rate": rate, "power": power, "gate": gate}
    return integrate(POWER, data, {"y": np.atleast_1d(y0)}, **options)


def oscillator(n=6):
    generator = np.random.default_rng(1)
    matrix = generator.normal(size=(n, n))
    return (matrix - matrix.T) - 0.1 * np.eye(n), generator.normal(size=n)


def logistic(t, y0):
    return 1 / (1 + (1 / y0 - 1) * np.exp(-t))


def test_linear_flow_is_the_matrix_exponential():
    matrix, start = oscillator()
    times = [0.0, 0.3, 1.7, 4.0]
    result = integrate(LINEAR, {"A": matrix}, {"y": start}, until=4.0, save=times, rtol=1e-11, solver="dopri8")
    exact = np.stack([scipy.linalg.expm(matrix * t) @ start for t in times])
    np.testing.assert_allclose(result.final["y"], exact[-1], rtol=0, atol=1e-10)
    # between its long steps this solver interpolates to lower order than it integrates
    np.testing.assert_allclose(result["y"].values, exact, rtol=0, atol=2e-8)
    assert result["y"].dims == ("time", "state")
    assert (result.kind, result.name, result.status) == ("flow", "test", "completed")


def test_agrees_with_scipy_dop853():
    """Another implementation of another method at a tighter tolerance: 1e-8, as in diffrax's own suite."""

    def pendulum(t, p, d):
        return {"x": p["v"], "v": -d["g"] * jnp.sin(p["x"])}

    start = {"x": np.array([0.4, 2.9]), "v": np.array([0.0, 0.3])}
    times = np.linspace(0, 8, 9)
    ours = integrate(Field(pendulum), {"g": 1.3}, start, until=8.0, save=times, rtol=1e-11)
    theirs = scipy.integrate.solve_ivp(
        lambda t, y: np.concatenate([y[2:], -1.3 * np.sin(y[:2])]),
        (0, 8),
        np.concatenate([start["x"], start["v"]]),
        method="DOP853",
        t_eval=times,
        rtol=1e-12,
        atol=1e-13,
    )
    found = np.concatenate([ours["x"].values, ours["v"].values], axis=1)
    np.testing.assert_allclose(found, theirs.y.T, rtol=0, atol=1e-8)


def test_error_follows_the_tolerance():
    """The controlled estimate is the local error of the embedded fourth-order solution, h^5 ~ rtol; the fifth-order
    solution is carried on and has the global error h^5. Slope 1; jumps in the number of steps come on top: ± .2."""
    matrix, start = oscillator()
    exact = scipy.linalg.expm(matrix * 3.0) @ start
    rtols = np.geomspace(1e-5, 1e-10, 6)
    errors = []
    for rtol in rtols:
        run = integrate(LINEAR, {"A": matrix}, {"y": start}, until=3.0, save=[3.0], rtol=rtol)
        errors.append(np.abs(run.final["y"] - exact).max())
    slope = np.polyfit(np.log(rtols), np.log(errors), 1)[0]
    assert abs(slope - 1) < 0.2, (slope, errors)
    assert errors[-1] < 100 * rtols[-1]


@pytest.mark.parametrize(
    ("solver", "order", "rtols"),
    [
        ("bosh3", 3, np.geomspace(1e-5, 1e-9, 5)),
        ("tsit5", 5, np.geomspace(1e-6, 1e-11, 6)),
        ("dopri8", 8, np.geomspace(1e-7, 1e-11, 5)),
        ("kvaerno5", 5, np.geomspace(1e-6, 1e-10, 5)),
    ],
)
def test_error_falls_with_the_steps_by_the_solvers_order(solver, order, rtols):
    """Halving the mean step divides the error by 2^order. Step sizes vary along the flow and come in whole numbers: ± 20 %
    below, while above a solver may do better than its name on a linear flow."""
    matrix, start = oscillator()
    exact = scipy.linalg.expm(matrix * 6.0) @ start
    steps, errors = [], []
    for rtol in rtols:
        run = integrate(LINEAR, {"A": matrix}, {"y": start}, until=6.0, save=[6.0], rtol=rtol, solver=solver)
        steps.append(run.attributes["steps_accepted"])
        errors.append(np.abs(run.final["y"] - exact).max())
    slope = -np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert 0.8 * order < slope < 1.25 * order, (slope, steps, errors)


@pytest.mark.parametrize(("solver", "linear"), [("kvaerno5", "dense"), ("kvaerno5-gmres", "gmres")])
def test_implicit_solver_on_a_stiff_flow(solver, linear):
    rates = np.array([1.0, 1e4])
    field = Field(lambda t, p, d: {"y": -d["rates"] * p["y"]})
    run = integrate(
        field, {"rates": rates}, {"y": np.ones(2)}, until=2.0, save=[2.0], rtol=1e-6, solver=solver,
    )  # fmt: skip
    assert run.attributes["linear_solver"] == linear
    np.testing.assert_allclose(run.final["y"][0], np.exp(-2.0), rtol=1e-5)
    assert run.attributes["steps_accepted"] < 500  # explicit stability alone would ask for > 5,000


def outer(parameters, data):
    return parameters["y"][:, None] * parameters["y"]


def undefined(parameters, data):
    return jnp.sum(parameters["y"]) * jnp.nan


OBSERVABLES = {"outer": outer, "undefined": undefined}


def test_logistic_with_loss_norms_and_observables():
    run = power_flow(
        1e-3,
        gate=1.0,
        until=12.0,
        rtol=1e-10,
        observables=OBSERVABLES,
        axes={"outer": ("row", "column")},
    )
    exact = logistic(run.times[:, None], 1e-3)
    np.testing.assert_allclose(run["y"].values, exact, rtol=1e-8)
    np.testing.assert_allclose(run["loss"], ((1 - exact) ** 2).sum(1), rtol=1e-6, atol=1e-14)
    np.testing.assert_allclose(run["norm_y"], np.sqrt((exact**2).sum(1)), rtol=1e-8)
    np.testing.assert_allclose(run["outer"], exact[:, :, None] * exact[:, None], rtol=2e-8)
    assert run["outer"].dims == ("time", "row", "column")
    # an observable that is undefined does not cut the trajectory
    assert run.status == "completed" and len(run.times) == 101 and run.times[-1] == 12.0
    assert np.isnan(run["undefined"]).all()


@pytest.mark.parametrize("y0", [0.5, 3.0])
def test_blow_up_is_a_status_with_its_time(y0):
    times = np.linspace(0, 2 / y0, 101)
    run = power_flow(y0, power=2.0, until=times[-1], save=times)
    assert run.status == "blow-up"
    # at a norm of 1e6 · max(1, y0) what is left of the time is 1 / norm
    assert run.attributes["stop_time"] == pytest.approx(1 / y0, rel=5e-6)
    assert "norm passed" in run.attributes["message"]
    before = times[times < 1 / y0 - 1e-9]
    np.testing.assert_array_equal(run.times, before)
    assert run.attributes["last_good_time"] == before[-1]
    assert run.attributes["requested_times"] == times.tolist()
    np.testing.assert_allclose(run["y"].values[:, 0], y0 / (1 - y0 * before), rtol=1e-6)


def test_slow_blow_up_is_seen_by_collapsing_steps():
    """y' = y^21 has y ~ (t* − t)^(−1/20): its norm never passes 1e6 in floating point."""
    run = power_flow(1.0, power=21.0, until=1.0)
    assert run.status == "blow-up"
    assert run.attributes["stop_time"] == pytest.approx(1 / 20, rel=1e-6)
    assert np.isfinite(run["y"].values).all() and run.times[-1] == pytest.approx(0.05, abs=0.0101)


def test_ends_of_a_blown_up_flow_are_the_start_and_the_stop():
    run = power_flow(1.0, power=2.0, until=2.0, save_parameters="ends")
    np.testing.assert_allclose(run.parameter_times, [0.0, 1.0], rtol=5e-6)
    # the norm that stops the flow, up to the growth within its last step
    assert 1e6 < run.final["y"][0] < 1.2e6


def test_wall_in_the_right_hand_side_is_a_collapse_not_a_blow_up():
    run = power_flow(1.0, rate=-1.0, power=-0.5, until=5.0)
    assert run.status == "step-collapse"
    assert run.attributes["stop_time"] == pytest.approx(2 / 3, rel=1e-4)
    assert "not finite" in run.attributes["message"]


def test_non_finite_start_derivative():
    run = power_flow(-1.0, power=0.5, until=5.0)
    assert run.status == "non-finite" and run.times.tolist() == [0.0]
    assert run.attributes["steps_accepted"] + run.attributes["steps_rejected"] == 0
    np.testing.assert_array_equal(run.final["y"], [-1.0])


def test_too_few_steps_keep_what_was_computed():
    run = power_flow(1.0, rate=-1.0, until=50.0, max_steps=40)
    assert run.status == "max-steps"
    assert run.attributes["steps_accepted"] + run.attributes["steps_rejected"] == 40
    assert 0 < run.attributes["last_good_time"] <= run.attributes["stop_time"] < 50
    assert len(run.times) < len(run.attributes["requested_times"]) == 101
    np.testing.assert_allclose(run.final["y"], np.exp(-run.times[-1]), rtol=1e-5)
    assert "raise max_steps" in run.attributes["message"]


@pytest.mark.parametrize(
    ("until", "save"),
    [
        (2.0, [0.0, 0.7, 2.0]),
        (2.0, [2.0]),
        (2.0, [0.7]),
        (2.0, [0.0]),
        (0.0, None),
        (0.1 * 3, [0.0, 0.3, 0.1 * 3]),
        (0.3, [0.0, 0.1, 0.1 * 3]),
        (2.0, [1e-12, 2e-12, 2.0]),
        (2.0, Schedule.log(2.0, count=3)),
    ],
)
def test_edge_cases_of_save_times(until, save):
    run = power_flow(0.1, gate=1.0, until=until, save=save)
    expected = [0.0] if save is None else [min(t, until) for t in save]
    assert run.status == "completed"
    assert run.times.tolist() == expected
    np.testing.assert_allclose(run["y"].values[:, 0], logistic(run.times, 0.1), rtol=1e-7)


def two_flow(a, b, *, constant, rates, until, **options):
    data = dict(zip(("a", "b", "c"), (*rates, constant), strict=True))
    return integrate(TWO, data, {"a": a, "b": b}, until=until, save=[0.0, until], save_parameters=["a"], **options)


def test_start_is_kept_bit_for_bit_and_chosen_parameters_only():
    start = np.random.default_rng(0).normal(size=50) * 1e-5
    run = two_flow(start, np.zeros(3), rates=(-1.0, 1.0), constant=1.0, until=1.0)
    assert run.parameter_names == ("a",)
    np.testing.assert_array_equal(run.parameters(0)["a"], start)
    np.testing.assert_allclose(run["norm_b"], [0.0, np.sqrt(3) * (np.e - 1)], rtol=1e-7)


def test_fixed_point_stays():
    run = power_flow(0.3, rate=0.0, until=1e4)
    assert run.status == "completed"
    np.testing.assert_array_equal(run["y"].values, 0.3)


def test_restart_continues_the_same_flow():
    matrix, start = oscillator()
    data = {"A": matrix}
    middle = integrate(LINEAR, data, {"y": start}, until=4.0, save=[2.5], rtol=1e-10)
    whole = integrate(LINEAR, data, {"y": start}, until=4.0, save=[4.0], rtol=1e-10)
    half = integrate(LINEAR, data, {"y": start}, until=2.5, save=[2.5], rtol=1e-10)
    rest = integrate(LINEAR, data, half.final, until=1.5, save=[1.5], rtol=1e-10)
    np.testing.assert_allclose(half.final["y"], middle.final["y"], rtol=0, atol=1e-8)
    np.testing.assert_allclose(rest.final["y"], whole.final["y"], rtol=0, atol=1e-8)


def test_tolerance_follows_the_initial_scale_of_each_parameter():
    """A tiny block next to a large one keeps its own relative accuracy: b grows from 1e-9 by e^10."""
    start, options = (np.ones(50), np.full(3, 1e-9)), dict(rates=(-1.0, 1.0), constant=0.0, until=10.0)
    run = two_flow(*start, **options)
    np.testing.assert_allclose(run["norm_b"][-1], np.sqrt(3) * 1e-9 * np.exp(10), rtol=1e-6)
    atol = run.attributes["atol"]
    assert 0.7 <= atol["a"] / 1e-8 <= 1.42 and 0.7 <= atol["b"] / 1e-17 <= 1.42
    coarse = two_flow(*start, **options, atol=1e-3)
    assert coarse.attributes["steps_accepted"] < run.attributes["steps_accepted"]


def test_a_small_parameter_is_not_drowned_in_the_error_norm():
    assert float(block_norm({"large": jnp.zeros(1000), "small": jnp.full(3, 2.0)})) == 2.0


def test_second_call_compiles_nothing():
    power_flow(0.1, until=1, observables=OBSERVABLES)
    traces = POWER.traces
    assert traces > 0
    again = power_flow(
        np.array([3.0]),
        rate=-2.0,
        until=3.0,
        rtol=1e-5,
        atol=1e-9,
        blow_up=1e4,
        save=Schedule.log(3.0),
        observables=dict(OBSERVABLES),
    )
    assert POWER.traces == traces
    assert again.attributes["seconds_compile"] == 0.0
    np.testing.assert_allclose(again.final["y"], 3 * np.exp(-6), rtol=1e-3)


def test_two_runs_are_identical():
    runs = [power_flow(0.1, gate=1.0, until=3.0) for _ in range(2)]
    np.testing.assert_array_equal(runs[0]["y"], runs[1]["y"])


def test_float64_is_local_to_the_call():
    before = jnp.ones(1).dtype
    run = power_flow(0.1, until=1.0)
    assert run["y"].dtype == np.float64
    assert jnp.ones(1).dtype == before and jax.config.jax_enable_x64 is False


DATA = {"rate": 1.0, "power": 1.0, "gate": 1.0}


def test_float32_warns_and_obeys():
    with pytest.warns(UserWarning, match="integrating in float32") as caught:
        run = integrate(POWER, DATA, {"y": np.array([0.1])}, until=1.0, rtol=1e-4, dtype="float32")
    assert caught[0].filename == __file__
    assert run["y"].dtype == np.float32
    np.testing.assert_allclose(run.final["y"], logistic(1.0, 0.1), rtol=1e-4)
    with pytest.warns(UserWarning, match="'y' is float32 and has been rounded") as caught:
        integrate(POWER, DATA, {"y": np.array([0.1], np.float32)}, until=1.0)
    assert caught[0].filename == __file__


def test_parameters_at_the_ends_only():
    run = power_flow(1.0, until=1.0, save_parameters="ends")
    assert run.parameter_times.tolist() == [0.0, 1.0] and len(run["loss"]) == 101
    np.testing.assert_allclose(run["y"][:, 0], [1.0, np.e], rtol=1e-7)


def test_memory_is_known_beforehand():
    start, schedule = {"a": np.ones(50), "b": np.ones((3, 2))}, Schedule.linear(1.0, count=7)
    assert saved_bytes(start, schedule) == 8 * 7 * 56
    assert saved_bytes(start, schedule, "ends") == 8 * 2 * 56
    assert saved_bytes(start, schedule, ["a"]) == 8 * 7 * 50
    assert power_flow(0.1, until=1.0)["y"].nbytes == saved_bytes({"y": np.ones(1)}, Schedule.linear(1.0))


def test_memory_is_counted_by_the_compiler_and_refused_in_a_sentence(monkeypatch):
    large = {"y": np.full(1000, 0.1)}
    predicted = flow.predicted_bytes(POWER, DATA, large, until=1.0)
    saved = saved_bytes(large, Schedule.linear(1.0))
    assert saved < predicted < 2 * saved
    assert integrate(POWER, DATA, large, until=1.0).attributes["memory_bytes"] == predicted
    monkeypatch.setattr(memory, "available_bytes", lambda: predicted - 1)
    with pytest.raises(
        UserError, match=r"the test flow would take 9\d\d kB of memory, but 9\d\d kB are free: save fewer"
    ):
        integrate(POWER, DATA, large, until=1.0)
    monkeypatch.setattr(memory, "available_bytes", lambda: saved - 1)
    with pytest.raises(UserError, match="saving the test flow would take 808 kB"):
        integrate(POWER, DATA, large, until=1.0)


def test_the_machine_says_how_much_memory_is_free():
    free = memory.available_bytes()
    assert free is None or 1e6 < free < 1e15


def test_time_of_half_loss_and_of_one_nat():
    # 1 − y = e^-t from y = 0 needs y' = 1 − y: power 0, gate 1; the loss e^-2t halves at ln 2 / 2
    data, start = DATA | {"power": 0.0}, {"y": np.array([0.0, 0.0])}
    half = time_of_loss(POWER, data, start, max_time=10.0, fraction=0.5)
    assert half == pytest.approx(math.log(2) / 2, rel=1e-8)
    nat = time_of_loss(POWER, data, start, max_time=10.0, drop=1.5)
    assert nat == pytest.approx(math.log(2 / 0.5) / 2, rel=1e-7)
    with pytest.raises(NumericalFailure, match=r"started at 2 and was .* at t = 0.1, so it did not"):
        time_of_loss(POWER, data, start, max_time=0.1, fraction=0.5)
    with pytest.raises(UserError, match="has no loss"):
        time_of_loss(TWO, {}, start, max_time=0.1, fraction=0.5)


def test_progress_is_for_terminals_only(monkeypatch, capfd):
    options = dict(gate=1.0, until=20.0, rtol=1e-12, progress=True)
    power_flow(0.1, **options)
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    power_flow(0.1, **options)
    out, err = capfd.readouterr()
    shares = [int(share) for share in re.findall(r"integrating +(\d+) %", err)]
    assert out == "" and shares[-1] == 100 and len(shares) > 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"until": -1.0}, "until must be a time"),
        ({"until": math.inf}, "until must be a time"),
        ({"save": [0.0, 3.0]}, "last save time 3 lies beyond the end of the flow 1"),
        ({"save": [0.5, 0.5]}, "strictly increasing"),
        ({"solver": "tsit"}, "did you mean 'tsit5'"),
        ({"rtol": 0.0}, "rtol"),
        ({"atol": -1.0}, "atol"),
        ({"max_steps": 0}, "max_steps"),
        ({"blow_up": 0.5}, "blow_up"),
        ({"dtype": "float46"}, "did you mean 'float64'"),
        ({"observables": {"loss": outer}}, "'loss'"),
        ({"observables": {"norm_y": outer}}, "'norm_y'"),
        ({"save_parameters": "end"}, "'all', 'ends' or a list"),
        ({"save_parameters": ["z"]}, "no parameter 'z' to save"),
        ({"initial": {}}, "at least one parameter"),
        ({"initial": {"y": np.array([np.nan])}}, "'y' has values that are not finite"),
        ({"initial": {"y": np.array([1j])}}, "must be real"),
        ({"initial": {"y": np.ones(1), "z": np.ones(1)}}, "derivatives of y, but .* are y, z"),
        ({"field": Field(lambda t, p, d: {"y": jnp.ones(3)})}, r"of 'y' of shape \(3,\)"),
    ],
)  # fmt: skip
def test_mistakes_are_named(change, words):
    call = {"field": POWER, "initial": {"y": np.array([0.1])}, "until": 1.0} | change
    with pytest.raises(UserError, match=words):
        integrate(call.pop("field"), DATA, call.pop("initial"), **call)
