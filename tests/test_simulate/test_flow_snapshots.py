"""Snapshots: going on equals going straight through, bit for bit; a killed process; another flow is refused."""

import os
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from simulate.events import norm_passes
from simulate.flow import integrate
from theory.errors import UserError


class Pendulums:
    """Many pendulums; `pace` slows each evaluation down by idle work, so that there is time to kill."""

    name = "pendulums"

    def __init__(self):
        self.traces = 0

    def data(self, dataset):
        return jnp.asarray(dataset)

    def __call__(self, t, parameters, data):
        self.traces += 1
        return {"x": parameters["v"], "v": -data * jnp.sin(parameters["x"])}


FIELD = Pendulums()
START = {"x": np.linspace(0.1, 3.0, 7), "v": np.zeros(7)}
OPTIONS = dict(until=50.0, save=np.linspace(0, 50, 21), rtol=1e-9)


def run(start=START, data=1.0, **options):
    chosen = {**OPTIONS, "events": {"fast": norm_passes(level=1.5, parameter="v")}, **options}
    return integrate(FIELD, data, start, **chosen)


def assert_equal(first, second):
    np.testing.assert_array_equal(first["x"], second["x"])
    np.testing.assert_array_equal(first["v"], second["v"])
    for key in ("status", "stop_time", "steps_accepted", "steps_rejected", "events", "last_good_time"):
        assert first.attributes[key] == second.attributes[key]


@pytest.mark.parametrize("solver", ["tsit5", "kvaerno5"])
def test_going_on_after_too_few_steps_equals_going_straight_through(tmp_path, solver):
    straight = run(solver=solver)
    assert straight.status == "completed" and straight.attributes["events"]["fast"]["time"] is not None
    for limit in (1, 2, 57, 100_000):
        part = run(solver=solver, snapshot=tmp_path / "s", max_steps=limit)
        assert (part.status == "completed") == (limit == 100_000)
    assert_equal(part, straight)
    # a finished flow is not run again: nothing is even compiled when the program is at hand
    again = run(solver=solver, snapshot=tmp_path / "s")
    assert_equal(again, straight)
    assert again.attributes["seconds_run"] == part.attributes["seconds_run"]


def test_another_flow_is_refused_by_what_differs(tmp_path):
    path = tmp_path / "s"
    run(snapshot=path, max_steps=20)
    before = path.read_bytes()
    for change, words in (
        ({"start": {**START, "v": START["v"] + 1e-9}}, "its initial arrays differ"),
        ({"data": 1.1}, "its data differ"),
        ({"rtol": 1e-8}, "its tolerances differ"),
        ({"until": 60.0}, "its end times differ"),
        ({"save": np.linspace(0, 49, 21)}, "its save times differ"),
        ({"blow_up": 10.0}, "its events differ"),
        ({"solver": "dopri5"}, "its equations or versions differ"),
    ):
        with pytest.raises(UserError, match=words):
            run(snapshot=path, **change)
    path.write_bytes(before[: len(before) // 2])
    with pytest.raises(UserError, match="no snapshot of a flow, or damaged"):
        run(snapshot=path)
    with pytest.raises(UserError, match="there is no folder"):
        run(snapshot=tmp_path / "none" / "s")


CHILD = """
import sys
sys.path.insert(0, sys.argv[2])
from test_flow_snapshots import run
run(until=20000.0, snapshot=sys.argv[1], snapshot_seconds=0.0)
"""


def test_a_killed_process_is_taken_up_where_it_was(tmp_path):
    path = tmp_path / "s"
    words = [sys.executable, "-c", CHILD, str(path), os.path.dirname(__file__)]
    with subprocess.Popen(words) as process:
        while not path.exists() and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    resumed = run(until=20000.0, snapshot=path)
    assert_equal(resumed, run(until=20000.0))
