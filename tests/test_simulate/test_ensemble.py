"""Ensembles: every way gives the members their own numbers, statuses and steps; bands; several devices; the choice."""

import os
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

from simulate import ensemble
from simulate.ensemble import Member, integrate_ensemble
from simulate.events import norm_passes
from simulate.flow import integrate
from theory.errors import UserError


class Powers:
    """y' = y² blows up at 1 / y0: members end at times of their own."""

    name = "powers"

    def data(self, dataset):
        return jnp.asarray(dataset)

    def loss(self, parameters, data):
        return jnp.sum(1 / parameters["y"])

    def __call__(self, t, parameters, data):
        return {"y": data * parameters["y"] ** 2}


FIELD = Powers()
STARTS = [0.05, 0.3, 0.7, 1.3, 2.0]
OPTIONS = dict(until=1.0, save=np.linspace(0, 1, 11), events={"two": norm_passes(level=2.5)})


def members(field=FIELD):
    return [Member(field, {"y": np.full(3, y0)}, {"scale": y0}) for y0 in STARTS]


def check(result):
    data = result.data
    assert data["status"].values.tolist() == ["completed"] * 3 + ["blow-up"] * 2
    assert data["scale"].values.tolist() == STARTS
    for number, y0 in enumerate(STARTS):
        alone = integrate(FIELD, 1.0, {"y": np.full(3, y0)}, **OPTIONS)
        assert data["steps_accepted"].values[number] == alone.attributes["steps_accepted"]
        assert data["steps_rejected"].values[number] == alone.attributes["steps_rejected"]
        np.testing.assert_allclose(data["stop_time"].values[number], alone.attributes["stop_time"], rtol=1e-12)
        np.testing.assert_allclose(result.members[number]["y"], alone["y"], rtol=1e-9)
        happened = alone.attributes["events"]["two"]["time"]
        np.testing.assert_allclose(
            data["event_two"].values[number], np.nan if happened is None else happened, rtol=1e-9
        )
    y = data["norm_y"].values / np.sqrt(3)
    expected = np.array([[y0 / (1 - y0 * t) if t < 1 / y0 else np.nan for t in data["time"].values] for y0 in STARTS])
    np.testing.assert_allclose(y, expected, rtol=1e-6)


@pytest.mark.parametrize("way", ["one-by-one", "vmap", "auto"])
def test_every_way_gives_each_member_its_own_flow(way):
    result = integrate_ensemble(members(), 1.0, way=way, save_parameters="all", **OPTIONS)
    check(result)
    if way == "auto":
        assert "less than 5 s of work" in str(result.choices[0])


def test_processes(monkeypatch):
    result = integrate_ensemble(members(), 1.0, way="processes", processes=2, save_parameters="all", **OPTIONS)
    check(result)


def test_a_trial_chooses_the_fastest_and_says_so(monkeypatch):
    monkeypatch.setattr(ensemble, "_SHORT", 0.0)
    said = []
    result = integrate_ensemble(members(), 1.0, save_parameters="all", say=said.append, **OPTIONS)
    check(result)
    (choice,) = result.choices
    gain = choice.seconds["one-by-one"] / choice.seconds["vmap"]
    assert choice.way == ("vmap" if gain > 1.5 else "one-by-one")
    assert set(choice.seconds) == {"one-by-one", "vmap"} and "too little work for processes" in choice.remark
    assert said == [str(choice)] and said[0].startswith(f"5 members {choice.way}: ")
    assert result.attributes["ways"][0]["way"] == choice.way


@pytest.mark.parametrize("margin", [0.0, 1e9], ids=["the fastest of all", "one by one"])
def test_flows_that_a_trial_of_processes_finished_are_not_integrated_again(margin, monkeypatch):
    monkeypatch.setattr(ensemble, "_SHORT", 0.0)
    monkeypatch.setattr(ensemble, "_START_UP", 0.0)
    monkeypatch.setattr(ensemble, "_MARGIN", margin)
    alone, numbers = ensemble._Group._alone, []
    monkeypatch.setattr(ensemble._Group, "_alone", lambda self, n: numbers.append(n) or alone(self, n))
    result = integrate_ensemble(members(), 1.0, processes=2, save_parameters="all", **OPTIONS)
    check(result)
    (choice,) = result.choices
    assert set(choice.seconds) == {"one-by-one", "vmap", "processes"} and choice.remark == ""
    if margin:
        assert choice.way == "one-by-one" and numbers == [0, 3, 4]
    else:
        assert choice.way == min(choice.seconds, key=lambda way: choice.seconds[way])


def test_bands_are_quantiles_over_the_members_that_got_there():
    result = integrate_ensemble(members(), 1.0, way="one-by-one", **OPTIONS)
    bands = result.bands((0.25, 0.5, 0.75))
    assert bands["members"].values.tolist() == [5] * 5 + [4] * 3 + [3] * 3
    np.testing.assert_allclose(bands["norm_y"].values[:, 0], np.sqrt(3) * np.quantile(STARTS, [0.25, 0.5, 0.75]))
    np.testing.assert_allclose(bands["norm_y"].values[1, -1], np.sqrt(3) * 0.3 / 0.7, rtol=1e-6)


def test_fields_are_groups(monkeypatch):
    mixed = [*members()[:2], *members(Powers())[2:]]
    result = integrate_ensemble(mixed, 1.0, way="vmap", save_parameters="all", **OPTIONS)
    check(result)
    assert [choice.members for choice in result.choices] == [2, 3]


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
import jax
from test_ensemble import OPTIONS, check, members
from simulate.ensemble import integrate_ensemble
assert len(jax.devices()) == 2
check(integrate_ensemble(members(), 1.0, way="vmap", save_parameters="all", **OPTIONS))
print("checked")
"""


def test_several_devices():
    environment = {
        **os.environ,
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "PYTHONPATH": os.pathsep.join(map(str, sys.path)),
    }
    words = [sys.executable, "-c", CHILD, os.path.dirname(__file__)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout == "checked\n", done.stderr


def test_mistakes_are_named():
    with pytest.raises(UserError, match="at least one member"):
        integrate_ensemble([], 1.0, **OPTIONS)
    with pytest.raises(UserError, match="did you mean 'vmap'"):
        integrate_ensemble(members(), 1.0, way="vmapp", **OPTIONS)
    with pytest.raises(UserError, match="parameters at the ends"):
        integrate_ensemble(members(), 1.0, save_parameters="ends", **OPTIONS)


class Holding(Powers):
    """A field with something that belongs to this process alone."""

    name = "holding"

    def __init__(self):
        self.lock = threading.Lock()


def test_a_field_that_no_process_can_be_sent_is_refused_in_one_sentence():
    with pytest.raises(
        UserError, match="the field 'holding' cannot be sent to processes .*lock.*; choose 'auto', 'one"
    ):
        integrate_ensemble(members(Holding()), 1.0, way="processes", **OPTIONS)
