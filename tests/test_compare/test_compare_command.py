"""The commands from end to end, on a model small enough for seconds."""

import json
import re
import shutil

import numpy as np
import pytest

from compare.measures import MEASURES
from compare.run import run_comparison, shared_schedules
from simulate.experiment import load_experiment
from simulate.schedule import Schedule
from simulate.trajectory import load_trajectories
from theory.cli import main
from theory.errors import UserError

EXPERIMENT = """
title = "Small <addition>"
[architecture]
name = "feed_forward"
activation = "gelu"
[sizes]
embed = 8
[data]
task = "add"
numbers = 4
[initial]
scale = 0.2
[flow]
kinds = ["exact", "expanded"]
degree = 3
until = 60.0
expected = ["blow-up"]
validity = 0.02
[save]
count = 16
[sgd]
learning_rate = [0.2, 0.4]
[claims.follows]
remark = "the exact flow follows <SGD>"
measure = "worst-relative-error"
comparison = "<="
threshold = 0.05
[claims.halves]
measure = "error-ratio"
comparison = ">="
threshold = 1.8
[claims.too_good]
measure = "relative-error"
parameter = "U"
at = 10.0
comparison = "<="
threshold = 1e-9
[claims.similarity]
measure = "signature-correlation-peak"
comparison = ">="
threshold = 0.5
[claims.shift]
measure = "half-loss-shift"
comparison = "<="
threshold = 0.05
[claims.slope]
measure = "error-slope"
comparison = ">="
threshold = 0.9
[claims.direction]
measure = "displacement-cosine"
comparison = ">="
threshold = 0.99
[claims.blow_up]
measure = "last-good-time"
flow = "expanded"
comparison = "<="
threshold = 59.0
"""


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    path = tmp_path_factory.mktemp("experiment") / "small.toml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(experiment):
    directory = experiment.parent / "run"
    assert main(["compare", str(experiment), "-o", str(directory), "--quiet"]) == 0
    return directory


def test_a_run_directory_is_whole(run):
    assert sorted(path.name for path in run.iterdir()) == [
        "equations.tex",
        "experiment.toml",
        "figures",
        "interactive.json",
        "report.html",
        "summary.json",
        "trajectories.nc",
    ]
    assert [path.name for path in run.parent.iterdir() if path.name.startswith(".")] == []
    trajectories = load_trajectories(run / "trajectories.nc")
    assert list(trajectories) == ["exact", "expanded", "sgd-0.2", "sgd-0.4"]
    starts = [trajectory.parameters(0)["E"].tobytes() for trajectory in trajectories.values()]
    assert len(set(starts)) == 1
    names = {path.stem for path in (run / "figures").iterdir()}
    assert names == {
        *(
            "loss",
            "relative-error",
            "embedding-norms",
            "signature-correlation",
            "similarity",
            "unembedding-similarity",
            "components",
        ),
        *("learning-rate-exact", "initial-scale-expanded"),
    }


def test_the_summary_holds_the_numbers_that_the_arrays_give(run):
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    trajectories = load_trajectories(run / "trajectories.nc")
    exact, trained = trajectories["exact"]["E"].values, trajectories["sgd-0.2"]["E"].values
    errors = np.linalg.norm(exact - trained, axis=(1, 2)) / np.linalg.norm(trained, axis=(1, 2))
    stored = summary["trainings"]["sgd-0.2"]["comparison"]["exact"]["relative_error"]["E"]
    np.testing.assert_allclose(stored, errors, rtol=1e-10, atol=1e-14)
    assert {"initial", "sgd"} <= set(summary["seeds"])
    assert {"torch", "jax", "python"} <= set(summary["versions"])
    assert {"flows", "sgd-0.2", "sgd-0.4"} <= set(summary["seconds"])
    assert summary["learning_rate_convergence"]["exact"]["slope"] == pytest.approx(1.0, abs=0.1)
    expanded = summary["flows"]["expanded"]
    assert expanded["status"] == "blow-up" and expanded["half_loss_time"] is None


def test_how_long_a_flow_is_valid_is_measured_by_the_threshold_of_the_file(run):
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    found = summary["trainings"]["sgd-0.2"]["comparison"]["expanded"]
    errors = np.array(found["relative_error"]["E"])
    assert summary["validity_threshold"] == found["validity"]["threshold"] == 0.02
    first_beyond = int(np.argmax(errors > 0.02))
    assert 0 < first_beyond < len(errors) and found["validity"]["window"]["E"] == found["times"][first_beyond - 1]
    assert "valid (≤ 0.02) until" in (run / "report.html").read_text(encoding="utf-8")


def test_every_measure_is_claimed_and_judged(run):
    claims = json.loads((run / "summary.json").read_text(encoding="utf-8"))["claims"]
    assert {claim["measure"] for claim in claims} <= set(MEASURES)  # all of them: test_claims
    verdicts = {claim["name"]: claim["verdict"] for claim in claims}
    assert verdicts.pop("too_good") == "fails"
    assert set(verdicts.values()) == {"holds"}, claims
    by_name = {claim["name"]: claim for claim in claims}
    assert "at t = 8" in by_name["too_good"]["scope"]
    assert by_name["follows"]["claim"] == "the exact flow follows <SGD>"
    assert by_name["blow_up"]["measured"] == load_trajectories(run / "trajectories.nc")["expanded"].times[-1]


def test_the_report_can_be_written_anew(run, tmp_path, capsys):
    before = (run / "report.html").read_text(encoding="utf-8")
    assert "<math" in before and "Small &lt;addition&gt;" in before and "<SGD>" not in before
    assert main(["report", str(run), "-o", str(tmp_path / "again.html")]) == 0
    assert (tmp_path / "again.html").read_text(encoding="utf-8") == before
    still = tmp_path / "still"
    shutil.copytree(run, still)
    (still / "interactive.json").unlink()
    assert main(["report", str(still)]) == 0
    without = (still / "report.html").read_text(encoding="utf-8")
    assert "<script" not in without and "<math" in without and 'id="interactive"' in before
    (still / "interactive.json").write_text("{", encoding="utf-8")
    assert main(["report", str(still)]) == 2
    assert "interactive.json' cannot be read" in capsys.readouterr().err
    assert main(["report", str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_batches_and_seeds_change_the_training_only(experiment, run, tmp_path, capsys):
    words = ["--set", 'flow.kinds=["exact"]', "--set", "claims.blow_up.flow=exact"]
    words += ["--set", "sgd.batch=4", "--set", "sgd.seeds=[0, 1]"]
    assert main(["compare", str(experiment), "-o", str(tmp_path / "run"), *words]) == 0
    out, err = capsys.readouterr()
    assert "holds: similarity" in out and "fails: too good" in out
    assert err == "sgd-0.2: 300 steps for each of 2 seeds\nsgd-0.4: 150 steps for each of 2 seeds\n"
    first, second = (load_trajectories(path / "trajectories.nc") for path in (run, tmp_path / "run"))
    for name in ("E", "U"):
        assert first["exact"][name].values.tobytes() == second["exact"][name].values.tobytes()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    errors = summary["trainings"]["sgd-0.4"]["comparison"]["exact"]["relative_error"]["E"]
    assert len(errors) == 2 and errors[0] != errors[1]


def test_a_failed_training_keeps_its_results_and_ends_with_status_3(experiment, tmp_path, capsys):
    words = ["compare", str(experiment), "-o", str(tmp_path / "run"), "--quiet", "--set", 'flow.kinds=["exact"]']
    words += ["--set", "claims.blow_up.flow=exact", "--set", "sgd.learning_rate=[50.0, 100.0]"]
    words += ["--set", "architecture.activation=cube", "--set", "initial.scale=0.5", "--set", "flow.until=600.0"]
    assert main(words) == 3
    assert "What was computed is in" in capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["trainings"]["sgd-50"]["status"] == "blow-up"
    undefined = {claim["name"] for claim in summary["claims"] if claim["verdict"] == "undefined"}
    assert {"halves", "slope"} <= undefined


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("claims.follows.measure=worst-relative-eror", "did you mean 'worst-relative-error'"),
        ("sgd.learning_rate=0.2", "needs two different values in sgd.learning_rate"),
        ("sgd.learning_rate=[0.2, 0.2]", "needs two different values"),
        ("sgd.learning_rate=-0.1", "greater than 0"),
        ("sgd.batch=0", "sgd.batch"),
        ("sgd.seeds=[1, 2]", "full-batch training draws none"),
        ('save.parameters="ends"', "needs every parameter at every save time"),
        ("sgd.learning_rat=0.1", "did you mean 'learning_rate'"),
    ],
)
def test_mistakes_are_found_before_any_work(experiment, tmp_path, capsys, override, message):
    assert main(["compare", str(experiment), "-o", str(tmp_path / "run"), "--set", override]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_occupied_directory_is_left_alone(experiment, run, capsys):
    before = (run / "summary.json").read_bytes()
    assert main(["compare", str(experiment), "-o", str(run)]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (run / "summary.json").read_bytes() == before


def test_an_experiment_without_training_is_refused(experiment, tmp_path, capsys):
    path = tmp_path / "bare.toml"
    path.write_text(EXPERIMENT[: EXPERIMENT.index("[sgd]")], encoding="utf-8")
    assert main(["compare", str(path), "-o", str(tmp_path / "run")]) == 2
    assert "needs a section [sgd]" in capsys.readouterr().err


def test_flows_hold_every_time_of_every_training():
    shared, own = shared_schedules(Schedule.linear(6.0, count=11), (0.1, 0.3))
    np.testing.assert_allclose(own[0.1].times, own[0.3].times, rtol=1e-12)
    assert len(shared) == len(own[0.3])
    shared, own = shared_schedules(Schedule.linear(6.0, count=11), (0.25, 0.2))
    for schedule in own.values():
        gaps = np.abs(shared.times[None, :] - schedule.times[:, None]).min(axis=1)
        assert gaps.max() < 1e-9
    assert len(shared) > len(own[0.2])


def test_a_training_that_would_not_end_is_refused_before_any_work(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    monkeypatch.setattr("simulate.run.run_flows", lambda *_, **__: 1 / 0)
    assert main(["compare", "e.toml", "--set", "sgd.learning_rate=[1e-12, 2e-12]"]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert "needs 6e+13 steps to reach t = 60, more than 1,000,000,000; take a larger learning_rate" in err
    assert [path.name for path in tmp_path.iterdir()] == ["e.toml"]


def test_steps_are_announced_and_long_trainings_estimated(tmp_path, monkeypatch):
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    lines = []
    monkeypatch.setattr("simulate.run.run_flows", lambda *_, **__: 1 / 0)
    for override in (), ("sgd.learning_rate=[1e-4, 2e-4]",):
        with pytest.raises(ZeroDivisionError):
            run_comparison(load_experiment(tmp_path / "e.toml", override), announce=lines.append)
    assert lines[:2] == ["sgd-0.2: 300 steps", "sgd-0.4: 150 steps"]
    assert re.fullmatch(r"sgd-0.0001: 600,000 steps, about [\d.]+ (s|minutes|hours)", lines[2]), lines


def test_a_sweep_is_left_to_simulate_and_the_cache_is_used(experiment, tmp_path, capsys, monkeypatch):
    def stopped(*_, **__):
        raise UserError("stopped here")

    enabled = []
    monkeypatch.setattr("simulate.cache.enable", lambda: enabled.append(True))
    monkeypatch.setattr("compare.run.run_comparison", stopped)
    assert main(["compare", str(experiment), "-o", str(tmp_path / "out"), "--set", "sweep.seeds=[1, 2]"]) == 2
    assert "[sweep] is left out here: staircase simulate runs it" in capsys.readouterr().err and enabled == [True]
