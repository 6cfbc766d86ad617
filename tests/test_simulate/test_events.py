"""Events: times by root finding against closed forms, which of them end the flow, and that recording changes nothing."""

import jax.numpy as jnp
import numpy as np
import pytest

from simulate.events import Event, converged, crosses, loss_falls, norm_passes
from simulate.flow import integrate
from theory.errors import UserError


class Logistic:
    """y' = rate · y (1 − y): y = 1 / (1 + (1/y0 − 1) e^(−rate t))."""

    name = "logistic"

    def data(self, dataset):
        return jnp.asarray(dataset)

    def loss(self, parameters, data):
        return jnp.sum((1 - parameters["y"]) ** 2)

    def __call__(self, t, parameters, data):
        return {"y": data * parameters["y"] * (1 - parameters["y"])}


FIELD, Y0 = Logistic(), 1e-3


def half(parameters, data):
    return jnp.sum(parameters["y"])


def run(events, **options):
    return integrate(FIELD, 1.0, {"y": np.array([Y0])}, **{"until": 30.0, "rtol": 1e-10, **options}, events=events)


def time_of(y):
    return np.log(y / (1 - y) * (1 / Y0 - 1))


ALL = {
    "escape": loss_falls(fraction=0.9),
    "drop": loss_falls(drop=0.5),
    "low": loss_falls(level=0.25),
    "norm": norm_passes(level=0.3),
    "hundred": norm_passes(factor=100, parameter="y"),
    "half": crosses(half, 0.5),
    "converged": converged(rate=1e-3, ends=False),
    "never": norm_passes(level=2.0),
}
WHEN = {
    "escape": time_of(1 - np.sqrt(0.9) * (1 - Y0)),
    "drop": time_of(1 - np.sqrt((1 - Y0) ** 2 - 0.5)),
    "low": time_of(0.5),
    "norm": time_of(0.3),
    "hundred": time_of(0.1),
    "half": time_of(0.5),
    "converged": time_of((1 + np.sqrt(1 - 4e-3)) / 2),
}


def test_every_event_has_its_time_and_changes_no_number():
    watched = run(ALL)
    assert watched.status == "completed"
    for name, entry in watched.attributes["events"].items():
        assert entry["text"] == ALL[name].text and entry["ends"] is False
        if name == "never":
            assert entry["time"] is None
        else:
            assert entry["time"] == pytest.approx(WHEN[name], rel=1e-8), name
    plain = run({})
    np.testing.assert_array_equal(watched["y"], plain["y"])
    assert watched.attributes["steps_accepted"] == plain.attributes["steps_accepted"]


def test_a_flow_ends_at_the_first_event_that_ends_it():
    ending = {**ALL, "converged": converged(rate=1e-3), "half": crosses(half, 0.5, ends=True)}
    stopped = run(ending, save_parameters="ends")
    found = stopped.attributes["events"]
    assert stopped.status == "event"
    assert stopped.attributes["message"].startswith("'half' ended the flow: half rises to 0.5 at t = 6.9")
    assert stopped.attributes["stop_time"] == found["half"]["time"] == pytest.approx(time_of(0.5), rel=1e-8)
    np.testing.assert_allclose(stopped.final["y"], 0.5, rtol=1e-9)
    assert found["converged"]["time"] is None and found["norm"]["time"] == pytest.approx(time_of(0.3), rel=1e-8)
    np.testing.assert_array_equal(stopped.times, np.linspace(0, 30, 101)[np.linspace(0, 30, 101) <= time_of(0.5)])


def test_a_start_near_a_saddle_is_no_convergence():
    """dθ/dt = 1e-3 at the start, less than the rate asked for: convergence is the fall back below it."""
    result = run({"converged": converged(rate=2e-3)})
    assert result.attributes["stop_time"] == pytest.approx(time_of((1 + np.sqrt(1 - 8e-3)) / 2), rel=1e-8)


def test_other_thresholds_compile_nothing():
    run({"escape": loss_falls(fraction=0.9), "norm": norm_passes(level=0.3)})
    again = run({"a": loss_falls(drop=0.5, ends=True), "b": norm_passes(factor=2.0)})
    assert again.attributes["seconds_compile"] == 0.0 and again.status == "event"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: loss_falls(), "exactly one of fraction, drop, level"),
        (lambda: loss_falls(fraction=1.5), "between 0 and 1, but is 1.5"),
        (lambda: norm_passes(factor=0.5), "greater than 1"),
        (lambda: norm_passes(level=-1.0), "must be a positive number"),
        (lambda: converged(rate=0.0), "must be a positive number"),
        (lambda: run({"blow-up": norm_passes(level=1.0)}), "cannot be called 'blow-up'"),
        (lambda: run({"z": norm_passes(level=1.0, parameter="z")}), "names no parameter: 'z'"),
        (lambda: run({"z": 3.0}), "made with a function of simulate.events"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(UserError, match=words):
        make()


def test_events_are_immutable_data():
    assert loss_falls(drop=1.0) == Event("loss", False, 1.0, -1.0, False, "the loss falls by 1")
    with pytest.raises(AttributeError):
        ALL["norm"].offset = 1.0  # pyright: ignore[reportAttributeAccessIssue]
