"""`[training]` and `[run]` in experiment files, from the file to the report."""

import functools
import json
import os
from contextlib import suppress

import numpy as np
import pytest

from compare.training import train
from simulate.experiment import load_experiment
from simulate.run import run_flows
from simulate.schedule import Schedule
from simulate.trajectory import load_trajectories
from theory.cli import main
from theory.errors import UserError

EXPERIMENT = """
[architecture]
name = "feed_forward"
activation = "gelu"
[sizes]
embed = 6
[data]
task = "add"
numbers = 4
[initial]
scale = 0.2
[flow]
until = 4.0
[save]
count = 5
"""
TRAINING = "[training]\nlearning_rate = 0.1\n"
CLAIM = '[claims.close]\nmeasure = "worst-relative-error"\ncomparison = "<="\nthreshold = 0.05\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(*sections):
        (tmp_path / "file.toml").write_text(EXPERIMENT + "".join(sections), encoding="utf-8")
        return load_experiment(tmp_path / "file.toml")

    return write


@pytest.fixture
def snapshots(tmp_path, write):
    experiment = write(TRAINING)
    train(
        experiment.architecture(),
        experiment.dataset(),
        experiment.initial_parameters(),
        learning_rate=0.1,
        save=[0.0, 1.0, 2.0, 4.0],
        snapshots=tmp_path / "theirs",
    )
    return tmp_path / "theirs"


def summary(path):
    return json.loads((path / "summary.json").read_text(encoding="utf-8"))


def test_a_training_section_resolves_to_itself(tmp_path, write):
    text = (
        TRAINING
        + 'optimizer = "adamw"\nweight_decay = 0.1\nbetas = [0.8, 0.9]\nfrozen = "E"\nseeds_together = "faster"\n'
    )
    experiment = write(text)
    assert experiment.training.frozen == ("E",) and experiment.training.betas == (0.8, 0.9)
    (tmp_path / "resolved.toml").write_text(experiment.to_toml(), encoding="utf-8")
    again = load_experiment(tmp_path / "resolved.toml")
    assert again.training == experiment.training and again.to_toml() == experiment.to_toml()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            TRAINING + "[sgd]\nlearning_rate = 0.1\n",
            r"file.toml: \[training\] and \[sgd\] are two names of one section",
        ),
        ('[sgd]\nlearning_rate = 0.1\noptimizer = "adam"\n', r"call the section \[training\]"),
        (TRAINING + 'optimizer = "adam"\nmomentum = 0.5\n', "momentum belongs to sgd"),
        (TRAINING + "betas = [0.9, 0.9]\n", "sgd has no betas"),
        (TRAINING + 'frozen = "F"\n', r"file.toml:18: \[training\] there is no parameter 'F' .* to keep frozen"),
        (TRAINING + 'frozen = ["E", "U"]\n', "nothing to train"),
        (TRAINING + 'optimiser = "adam"\n', "did you mean 'optimizer'"),
        ('[run]\npath = "a"\nlearning_rat = 0.1\n', "did you mean 'learning_rate'"),
    ],
)
def test_mistakes_get_one_sentence_with_their_place(write, sections, message):
    with pytest.raises(UserError, match=message):
        write(sections)


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time, and are looked at where there are fewer flows than usual."""
    monkeypatch.setattr("compare.run.draw", lambda run: {})


def test_flow_and_training_share_frozen_parameters_and_the_time_of_momentum(tmp_path, write, undrawn):
    write('[sgd]\nlearning_rate = 0.01\nmomentum = 0.5\nfrozen = "E"\n', CLAIM, 'parameter = "U"\n')
    assert main(["compare", "file.toml", "-o", "out", "--quiet"]) == 0
    found = load_trajectories(tmp_path / "out" / "trajectories.nc")
    for run in found.values():
        assert np.all(run["E"].values == run["E"].values[0])
        np.testing.assert_allclose(run.times, [0, 1, 2, 3, 4], rtol=1e-12)
    assert found["sgd-0.01"].attributes["steps"] == 200
    assert summary(tmp_path / "out")["claims"][0]["verdict"] == "holds"


def test_adam_is_held_against_signatures_only_and_says_so(tmp_path, write, capsys):
    write(TRAINING, 'optimizer = "adam"\n')
    assert main(["compare", "file.toml", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert "no predicted time axis: adam is not gradient flow" in out and "against" not in out
    content = summary(tmp_path / "out")
    assert content["trainings"]["adam-0.1"]["table"] == []
    assert content["signature_correlation"]["adam-0.1"]["peak"]["value"] is not None
    assert "no predicted time axis" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    write(TRAINING, 'optimizer = "adam"\n', CLAIM)
    assert main(["compare", "file.toml", "-o", "other"]) == 2
    assert "no flow predicts the times" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_run_is_compared_from_its_start(tmp_path, write, snapshots, undrawn):
    # The run starts elsewhere than the experiment's own initial arrays would: flows start at its step 0.
    experiment = write(TRAINING, CLAIM)
    for path in snapshots.glob("step-*.npz"):
        with np.load(path) as file:
            arrays = dict(file)
        assert arrays["E"].shape == experiment.initial_parameters()["E"].shape
        order = [2, 1, 0, 3, 4, 5]
        np.savez(path, E=arrays["E"][:, order], U=arrays["U"][:, order])
    assert main(["compare", "file.toml", "-o", "out", "--run", "theirs", "--quiet"]) == 0
    found = load_trajectories(tmp_path / "out" / "trajectories.nc")
    assert list(found) == ["exact", "run"]
    np.testing.assert_array_equal(found["exact"]["E"].values[0], found["run"]["E"].values[0])
    assert np.any(found["exact"]["E"].values[0] != experiment.initial_parameters()["E"])
    np.testing.assert_allclose(found["run"].times, [0.0, 1.0, 2.0, 4.0])
    content = summary(tmp_path / "out")
    assert content["claims"][0]["verdict"] == "holds" and content["claims"][0]["measured"] > 1e-5
    assert content["validity_threshold"] == 0.01
    assert "validity = 0.01" in (tmp_path / "out" / "experiment.toml").read_text(encoding="utf-8")
    assert "somebody else's training" in content["question"]
    resolved = load_experiment(tmp_path / "out" / "experiment.toml")
    assert resolved.run_source() == snapshots


def test_a_run_without_its_start_is_held_against_signatures(tmp_path, write, snapshots, capsys):
    (snapshots / "step-000000000.npz").unlink()
    (tmp_path / "rates.csv").write_text("step,learning_rate\n" + "".join(f"{i},0.1\n" for i in range(40)))
    correlation = '[claims.follow]\nmeasure = "signature-correlation-peak"\ncomparison = ">="\nthreshold = 0.0\n'
    write('[run]\npath = "theirs"\nlearning_rate = "rates.csv"\n', correlation)
    assert main(["compare", "file.toml", "-o", "out"]) == 0
    assert "step 0 is missing (the first is step 10): held against signatures only" in capsys.readouterr().out
    content = summary(tmp_path / "out")
    assert content["flows"] == {} and len(content["claims"]) == 1
    assert "step 0 is missing" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    write('[run]\npath = "theirs"\nlearning_rate = 0.1\n', CLAIM)
    assert main(["compare", "file.toml", "-o", "other"]) == 2
    assert "no flow predicts the times" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[run]\npath = "nowhere"\nlearning_rate = 0.1\n', "there is no run"),
        ('[run]\npath = "theirs"\n', "[run] needs a learning_rate"),
        ('[run]\npath = "theirs"\nlearning_rate = "rates.csv"\n', "cannot be read"),
        ('[run]\npath = "theirs"\nlearning_rate = [0.1, 0.1]\n', "wrong length"),
        ('[run]\npath = "theirs"\nlearning_rate = 0.1\ntensors = { E = "wte" }\n', "has no tensor 'wte'"),
    ],
)
def test_a_wrong_run_section_writes_nothing(tmp_path, write, snapshots, capsys, section, message):
    write(section)
    before = sorted(tmp_path.iterdir())
    assert main(["compare", "file.toml", "-o", "out"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


class Killed(BaseException):
    pass


def test_a_killed_comparison_goes_on_where_it_was(tmp_path, write, undrawn, monkeypatch, capsys):
    experiment = write(TRAINING, "batch = 4\nseeds = [0, 1]\n")
    flows = functools.cache(lambda schedule: run_flows(experiment, schedule=Schedule(schedule)))
    monkeypatch.setattr("simulate.run.run_flows", lambda _, schedule, progress: flows(tuple(schedule)))
    parts = experiment.architecture(), experiment.dataset(), experiment.initial_parameters()
    whole = train(*parts, learning_rate=0.1, save=experiment.schedule(), batch=4, seeds=(0, 1))
    with pytest.MonkeyPatch.context() as patch, suppress(Killed):

        def replace(source, target):
            if "step-000000030" in str(target):
                raise Killed
            os.rename(source, target)

        patch.setattr("theory.files.os.replace", replace)
        main(["compare", "file.toml", "-o", "out", "--quiet"])
    assert not (tmp_path / "out").exists() and (tmp_path / ".out.training").is_dir()
    capsys.readouterr()
    assert main(["compare", "file.toml", "-o", "out"]) == 0
    assert "sgd-0.1 went on from step 20" in capsys.readouterr().err
    assert not (tmp_path / ".out.training").exists()
    resumed = load_trajectories(tmp_path / "out" / "trajectories.nc")["sgd-0.1"]
    assert whole["E"].values.tobytes() == resumed["E"].values.tobytes()


NOISE = """
[training]
learning_rate = 0.1
batch = 4
seeds = [{seeds}]
seeds_together = true
[noise]
observables = ["E[0,1]", "U[3,2]"]
[claims.covered]
measure = "band-coverage"
comparison = ">="
threshold = 0.9
[claims.not-too-wide]
measure = "band-coverage"
comparison = "<="
threshold = 0.98
"""


def test_the_predicted_band_is_held_against_real_batches(tmp_path, write, undrawn, capsys):
    """Batches with replacement, 32 seeds: of all measurements 90 to 98 % lie in the predicted 95 % band."""
    write(NOISE.format(seeds=", ".join(map(str, range(32)))))
    assert main(["compare", "file.toml", "-o", "out", "--set", "flow.until=8.0"]) == 0
    out = capsys.readouterr().out
    assert "holds: covered" in out and "holds: not too wide" in out
    found = summary(tmp_path / "out")
    assert found["noise"]["seeds"] == 32 and found["noise"]["times"] == 4
    assert {"loss", "E[0,1]", "U[3,2]", "norm_E"} <= set(found["noise"]["observables"])
    assert found["claims"][0]["measured"] == found["noise"]["coverage"]
    arrays = load_trajectories(tmp_path / "out" / "trajectories.nc")
    inside = [
        (arrays["noise"][f"{name}_lower"].values <= values) & (values <= arrays["noise"][f"{name}_upper"].values)
        for name, values in (("E[0,1]", arrays["sgd-0.1"]["E"].values[..., 0, 1]),)
    ]
    assert 0.85 <= np.mean(inside[0][:, 1:]) <= 1


def test_a_band_needs_noise_and_a_training(write, capsys):
    claim = '[claims.covered]\nmeasure = "band-coverage"\ncomparison = ">="\nthreshold = 0.9\n'
    write(TRAINING, claim)
    assert main(["compare", "file.toml", "-o", "out"]) == 2
    assert "(band-coverage) needs the sections [noise] and [training]" in capsys.readouterr().err


def test_departures_from_flows_of_bounded_order_are_measured(tmp_path, undrawn, monkeypatch, capsys):
    """On its way to the end of a plateau a training departs from the order-0 flow; the file says at what error."""
    claims = """
[claims.departs]
measure = "departure-time"
flow = "order-0"
comparison = "<="
threshold = 40.0
[claims.with-the-plateau]
measure = "departure-shift"
flow = "order-0"
comparison = ">="
threshold = 0.0
"""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "file.toml"
    changed = (EXPERIMENT + TRAINING + claims).replace("until = 4.0", "until = 40.0\norders = [0, 1]\ndeparture = 0.05")
    path.write_text(changed.replace("count = 5", "count = 41"), encoding="utf-8")
    assert main(["compare", "file.toml", "-o", "out"]) == 0
    assert "holds: departs" in capsys.readouterr().out
    found = summary(tmp_path / "out")
    assert found["departures"]["threshold"] == 0.05 and set(found["departures"]["times"]) == {"0", "1"}
    (departed,) = (
        found["departures"]["times"]["0"]
        if isinstance(found["departures"]["times"]["0"], list)
        else (found["departures"]["times"]["0"],)
    )
    assert found["departures"]["times"]["1"] in (None, [None])
    assert found["claims"][0]["measured"] == pytest.approx(departed)
    arrays = load_trajectories(tmp_path / "out" / "trajectories.nc")
    trained, flow = arrays["sgd-0.1"]["E"].values, arrays["order-0"]["E"].values
    error = np.linalg.norm(flow - trained, axis=(1, 2)) / np.linalg.norm(trained, axis=(1, 2))
    times = arrays["order-0"].times
    after = int(np.argmax(error > 0.05))
    assert times[after - 1] <= departed <= times[after]
