"""Finite learning rates in experiment files and on the command line."""

import json

import numpy as np
import pytest
import typer

from simulate.cli import simulate
from simulate.experiment import load_experiment
from simulate.run import equations_latex, run_flows, run_noise
from simulate.trajectory import load_trajectories
from theory.errors import UserError

TEXT = """\
[architecture]
name = "linear"
[sizes]
embed = 3
[data]
task = "add"
numbers = 3
[initial]
scale = 0.3
[flow]
kinds = ["exact", "modified", "heavy-ball"]
weight_decay = 0.5
momentum = 0.5
until = 2.0
[save]
count = 3
[sgd]
learning_rate = [0.05, 0.1]
batch = 4
[noise]
paths = 39
observables = ["E[0,1]", "loss"]
"""


def load(tmp_path, *changes, overrides=()):
    text = TEXT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "file.toml").write_text(text)
    return load_experiment(tmp_path / "file.toml", overrides)


NO_NOISE = (TEXT[TEXT.index("[noise]") :], "")
NO_SGD = (TEXT[TEXT.index("[sgd]") : TEXT.index("[noise]")], "")
NO_MOMENTUM = ("momentum = 0.5\n", "")


def test_flows_of_a_file(tmp_path):
    """Decay in every flow, and both kinds close to each other at the first learning rate of [sgd]."""
    experiment = load(tmp_path, NO_NOISE)
    assert experiment.learning_rate() == 0.05
    flows = run_flows(experiment)
    assert {kind: flow.status for kind, flow in flows.items()} == dict.fromkeys(experiment.flow.kinds, "completed")
    assert all(flow.parameter_names == ("E", "U") for flow in flows.values())
    ends = {kind: flow.final["E"] for kind, flow in flows.items()}
    near = np.abs(ends["modified"] - ends["heavy-ball"]).max()
    assert 0 < near < 0.2 * np.abs(ends["exact"] - ends["modified"]).max()
    one = ("weight_decay = 0.5", "weight_decay = {U = 0.5}")
    free = run_flows(load(tmp_path, NO_NOISE, one, ('"exact", "modified", "heavy-ball"', '"exact"')))["exact"]
    assert np.linalg.norm(free.final["E"]) > 1.5 * np.linalg.norm(ends["exact"])
    latex = equations_latex(experiment)
    assert latex.count("Weight decay adds") == 3 and latex.count("learning rate 0.05, momentum 0.5") == 2
    assert flows["modified"].attributes["learning_rate"] == 0.05
    again = load_experiment(tmp_path / "file.toml", ["flow.learning_rate=0.1"])
    assert again.learning_rate() == 0.1


def test_a_band_of_a_file(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    experiment = load(tmp_path, NO_MOMENTUM, ('"exact", "modified", "heavy-ball"', '"exact"'))
    band = run_noise(experiment)
    assert band.attributes["batch"] == 4 and band.attributes["learning_rate"] == 0.05
    assert {"loss_lower", "norm_E_upper", "E[0,1]_std"} <= set(band.series_names)
    app = typer.Typer()
    app.command()(simulate)
    with pytest.raises(SystemExit) as stopped:
        app(["file.toml", "-o", "out"])
    assert stopped.value.code == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if line][-4:] == [
        "flow",
        "exact",
        "noise",
        "written",
    ]
    stored = load_trajectories(tmp_path / "out" / "trajectories.nc")
    np.testing.assert_array_equal(stored["noise"]["loss_upper"], band["loss_upper"])
    numbers = json.loads((tmp_path / "out" / "summary.json").read_text())["flows"]["noise"]
    assert (
        numbers["paths"] == 39 and numbers["weight_decay"] == {"E": 0.5, "U": 0.5} and numbers["status"] == "completed"
    )
    assert load_experiment(tmp_path / "out" / "experiment.toml").to_dict() == experiment.to_dict()


def test_what_a_training_has_holds_for_the_flows(tmp_path):
    sgd = ("batch = 4", "weight_decay = 0.25\nmomentum = 0.9\nfrozen = 'U'")
    experiment = load(tmp_path, NO_NOISE, NO_MOMENTUM, ("weight_decay = 0.5\n", ""), sgd)
    assert experiment.weight_decay() == {"E": 0.25} and experiment.momentum() == 0.9
    start = experiment.initial_parameters()
    end = run_flows(experiment)["modified"].final
    np.testing.assert_array_equal(end["U"], start["U"])
    assert np.abs(end["E"] - start["E"]).max() > 0
    other = load_experiment(tmp_path / "file.toml", ["flow.weight_decay=0", "flow.momentum=0"])
    assert other.weight_decay() == {} and other.momentum() == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([NO_NOISE, NO_SGD], "'modified' needs a learning rate: give flow.learning_rate or a section"),
        ([], r"\[noise\] no band is predicted with momentum, which is 0.5"),
        ([NO_MOMENTUM, ("batch = 4", "batch = 4\nreplacement = false")], "no band is predicted for reshuffled epochs"),
        ([NO_MOMENTUM, ("batch = 4", 'batch = "full"')], "the noise needs a batch, .* found 'full'"),
        ([NO_MOMENTUM, ("paths = 39", "paths = 39\nbatch = 8")], "'batch' is 8 here and 4 in the training"),
        ([NO_MOMENTUM, ("paths = 39", "paths = 20")], "at least 39 paths, found 20"),
        ([NO_MOMENTUM, ("E[0,1]", "E[0,3]")], r"'E\[0,3\]' is no entry of E"),
        ([NO_MOMENTUM, ("paths = 39", "path = 39")], r"\[noise\] has no key 'path'; did you mean 'paths'"),
        ([NO_MOMENTUM, ("paths = 39", 'paths = 39\nflow = "cut-logits"')], "'cut-logits' needs a degree"),
        ([("weight_decay = 0.5", "weight_decay = -1")], "weight_decay"),
        ([("weight_decay = 0.5", "weight_decay = {W = 0.1}")], "no parameter 'W' to decay"),
        ([("momentum = 0.5", "momentum = 1")], "momentum should be less than 1"),
    ],
)
def test_mistakes_are_named(tmp_path, changes, words):
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path, *changes)
    assert "\n" not in str(caught.value)


def test_a_band_needs_its_section(tmp_path):
    with pytest.raises(UserError, match=r"a section \[noise\]"):
        run_noise(load(tmp_path, NO_NOISE))
