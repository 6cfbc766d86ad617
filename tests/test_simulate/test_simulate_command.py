"""`staircase simulate`: exit status, output, the run directory, and what happens when a flow fails."""

import importlib.metadata
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import simulate.snapshots
import theory.cli
from simulate.experiment import load_experiment
from simulate.trajectory import load_trajectories

TEXT = """\
title = "Addition"
[architecture]
name = "feed_forward"
activation = "tanh"
[sizes]
embed = 4
[data]
task = "add"
numbers = 3
[initial]
gamma = 0.8
seed = 3
[flow]
kinds = ["exact", "expanded"]
degree = 4
until = 120.0
[save]
count = 5
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an experiment, and the command line as pyproject.toml declares it."""
    declared = {
        theory.cli.COMMANDS: [("simulate", "simulate.cli:register")],
        theory.cli.LISTINGS: [("solvers", "simulate.solvers:listing")],
    }
    installed = importlib.metadata.entry_points

    def entry_points(group):
        if group not in declared:
            return installed(group=group)
        return [importlib.metadata.EntryPoint(*pair, group) for pair in declared[group]]

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.toml").write_text(TEXT)
    return tmp_path


def test_a_run_directory_with_a_blow_up_that_is_expected(here, capfd):
    assert theory.cli.main(["simulate", "sum.toml", "--set", "flow.expected=blow-up"]) == 0
    out, err = capfd.readouterr()
    lines = out.splitlines()
    assert (
        re.match(r"exact: takes \d+(\.\d+)? kB of memory(, .* are free)?\nexpanded: takes ", err)
        and err.count("\n") == 2
    )
    assert lines[-1] == "written to sum-run" and len(lines) == 10
    assert lines[0] == "one right-hand side" and lines[1].split()[:4] == ["flow", "evaluation", "terms", "Mflop"]
    assert [line.split()[:2] for line in lines[2:5]] == [
        ["exact"] * 2,
        ["expanded", "samples"],
        ["expanded", "moments"],
    ]
    assert sum(line.endswith("chosen") for line in lines) == 1
    lines = lines[6:]
    assert lines[0].split() == "flow status end t last good t loss from to steps rejected compile s run s".split()
    assert lines[1].split()[:3] == ["exact", "completed", "120"]
    assert lines[2].split()[:2] == ["expanded", "blow-up"]

    assert sorted(os.listdir(here)) == ["sum-run", "sum.toml"]
    assert sorted(os.listdir(here / "sum-run")) == [
        "equations.tex",
        "experiment.toml",
        "summary.json",
        "trajectories.nc",
    ]
    equations = (here / "sum-run" / "equations.tex").read_text()
    assert equations.startswith("\\section*{exact}\n") and "\\section*{expanded, degree 4 of the loss}\n" in equations
    assert load_experiment("sum.toml").field("expanded").equations.to_latex().rstrip() in equations
    summary = json.loads((here / "sum-run" / "summary.json").read_text())
    blown = summary["flows"]["expanded"]
    assert blown["status"] == "blow-up" and 0 < blown["stop_time"] < 120
    assert float(lines[2].split()[2]) == pytest.approx(blown["stop_time"], rel=1e-5)
    assert summary["seeds"]["initial"] == 3 and summary["sizes"]["embed"] == 4
    assert summary["versions"]["jax"] == importlib.metadata.version("jax")
    stored = load_trajectories(here / "sum-run" / "trajectories.nc")
    assert list(stored) == ["exact", "expanded"]
    assert stored["exact"]["E"].dims == ("time", "token", "embed")
    assert stored["exact"].times.tolist() == [0.0, 30.0, 60.0, 90.0, 120.0]
    assert stored["expanded"].times[-1] < blown["stop_time"]
    assert summary["flows"]["exact"]["loss_end"] == float(stored["exact"]["loss"][-1])
    assert summary["flows"]["exact"]["loss_end"] < 0.9 * summary["flows"]["exact"]["loss_start"]

    # the resolved file gives the same trajectories, bit for bit
    resolved = load_experiment(here / "sum-run" / "experiment.toml")
    initial = resolved.initial_parameters()
    np.testing.assert_array_equal(stored["exact"].parameters(0)["E"], initial["E"])
    assert theory.cli.main(["simulate", "sum-run/experiment.toml", "-o", "again", "-q"]) == 0
    assert capfd.readouterr() == ("", "")
    again = load_trajectories(here / "again" / "trajectories.nc")
    np.testing.assert_array_equal(again["exact"]["E"], stored["exact"]["E"])


def test_an_unexpected_blow_up_is_status_3_and_keeps_what_was_computed(here, capfd):
    assert theory.cli.main(["simulate", "sum.toml", "-o", "out", "--set", "flow.kinds=expanded"]) == 3
    out, err = capfd.readouterr()
    assert "expanded  blow-up" in out
    assert err.splitlines()[-1].startswith("staircase: expanded: blow-up, ") and err.endswith(
        "What was computed is in out.\n"
    )
    assert (here / "out" / "trajectories.nc").is_file()


def test_an_old_run_is_replaced_only_by_force_and_only_by_a_whole_one(here, capfd, monkeypatch):
    (here / "out").mkdir()
    (here / "out" / "precious").write_text("old")
    words = ["simulate", "sum.toml", "-o", "out", "--set", "flow.kinds=exact", "--set", "flow.until=0.1"]
    assert theory.cli.main(words) == 2
    assert "not empty" in capfd.readouterr().err
    with monkeypatch.context() as broken:
        broken.setattr("simulate.run.json.dumps", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            theory.cli.main([*words, "--force"])
    assert (here / "out" / "precious").read_text() == "old"
    assert theory.cli.main([*words, "--force"]) == 0
    assert "precious" not in os.listdir(here / "out") and "summary.json" in os.listdir(here / "out")
    assert sorted(os.listdir(here)) == ["out", "sum.toml"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["simulate", "none.toml"], "no experiment file 'none.toml'"),
        (["simulate", "sum.toml", "--set", "flow.kind=exact"], "did you mean 'kinds'"),
        (["simulate", "sum.toml", "--set", "data.numbers=-1"], "--set data.numbers=-1: [data]"),
        (["simulate", "sum.toml", "-o", "sum.toml"], "'sum.toml' is a file"),
        (["simulate", "sum.toml", "-o", ".", "--force"], "holds the working directory"),
        (["simulate", "sum.toml", "--set", "flow.until=half-loss"], "staircase: --set flow.until=half-loss: [flow]"),
        (
            ["simulate", "sum.toml", "--set", "architecture.activation=relu"],
            "staircase: --set architecture.activation=relu: [flow]",
        ),
        (["simulate", "sum.toml", "--set", "architecture.activation=relu"], 'keep it (keep = "activation")'),
        (["simulate", "sum.toml", "--set", "flow.degree=1000"], "staircase: --set flow.degree=1000: [flow]"),
        (["simulate", "sum.toml", "--set", "sizes.embed=1000000000000"], "reduce the size of axis 'embed'"),
        (["simulate", "sum.toml", "--set", "save.count=10000000000"], "TB of memory"),
        (["simulate", "sum.toml", "--set", "data.task=t.txt"], 'for a text write task = "text" and path = "t.txt"'),
        (["simulate", "sum.toml", "-o", "/proc/a/b"], "cannot be written"),
    ],
)
def test_mistakes_are_one_sentence_before_any_work(here, capfd, monkeypatch, words, sentence):
    monkeypatch.setattr("simulate.run.run_flows", lambda *_, **__: 1 / 0)
    assert theory.cli.main(words) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("staircase: ") and sentence in err and err.count("\n") == 1
    assert os.listdir(here) == ["sum.toml"]


EVENTS = """
[flow.events.escape]
when = "loss-falls"
fraction = 0.95
[flow.events.tenfold]
when = "norm-passes"
factor = 10.0
parameter = "E"
ends = true
"""


def test_events_of_the_file_are_printed_and_recorded(here, capfd):
    (here / "events.toml").write_text(TEXT + EVENTS)
    words = ["simulate", "events.toml", "-o", "out", "--set", "flow.kinds=exact", "--set", "data.numbers=2"]
    assert theory.cli.main(words) == 0
    lines = capfd.readouterr().out.splitlines()
    summary = json.loads((here / "out" / "summary.json").read_text())["flows"]["exact"]
    time = summary["events"]["escape"]["time"]
    assert 0 < time < 120 and lines[-3] == f"exact: escape at t = {time:.8g} (the loss falls to 0.95 of its start)"
    assert lines[-2] == "exact: tenfold did not happen (the norm of E passes 10 times its start)"
    resolved = load_experiment(here / "out" / "experiment.toml")
    assert resolved.events() == load_experiment("events.toml").events()
    ended = [*words[:3], "ended", *words[4:], "--set", "flow.events.escape.ends=true"]
    assert theory.cli.main(ended) == 0
    summary = json.loads((here / "ended" / "summary.json").read_text())["flows"]["exact"]
    assert summary["status"] == "event" and summary["stop_time"] == time
    capfd.readouterr()
    for change, sentence in (
        ("flow.events.escape.fractoin=0.5", "did you mean 'fraction'"),
        ("flow.events.escape.fraction=2.0", "[flow.events.escape] the fraction of the loss must lie between"),
        ("flow.events.escape.rate=2.0", "loss-falls does not take 'rate'"),
        ("flow.events.escape.when=loss", "did you mean 'loss-falls'"),
        ("flow.events.tenfold.parameter=F", "[flow] the event 'tenfold' names no parameter: 'F'"),
    ):
        assert theory.cli.main([*words, "--force", "--set", change]) == 2
        err = capfd.readouterr().err
        assert sentence in err and err.count("\n") == 1, err


def equal_runs(first, second):
    ours, theirs = (load_trajectories(path / "trajectories.nc") for path in (first, second))
    for flow in theirs:
        np.testing.assert_array_equal(ours[flow]["E"], theirs[flow]["E"])
        for key in ("status", "stop_time", "steps_accepted", "steps_rejected", "events"):
            assert ours[flow].attributes[key] == theirs[flow].attributes[key]


def test_a_run_that_took_too_many_steps_is_resumed(here, capfd):
    words = ["simulate", "sum.toml", "--set", "flow.expected=blow-up", "-q", "-o"]
    assert theory.cli.main([*words, "straight"]) == 0
    assert theory.cli.main([*words, "out", "--set", "flow.max_steps=20"]) == 3
    assert sorted(os.listdir(here / "out.partial")) == ["exact.npz", "expanded.npz", "experiment.toml"]
    assert json.loads((here / "out" / "summary.json").read_text())["flows"]["exact"]["status"] == "max-steps"
    capfd.readouterr()
    assert theory.cli.main([*words, "out", "--force", "--resume", "--set", "flow.rtol=1e-7"]) == 2
    assert "is of another experiment: flow.rtol was 1e-08 and is 1e-07; restore it" in capfd.readouterr().err
    assert theory.cli.main([*words, "new", "--resume"]) == 2
    assert "no unfinished run in 'new.partial' to resume" in capfd.readouterr().err
    (here / "fresh.partial").mkdir()
    assert theory.cli.main([*words, "fresh"]) == 2
    assert "an unfinished run in 'fresh.partial': go on with it by --resume" in capfd.readouterr().err
    assert theory.cli.main([*words, "out", "--resume"]) == 0
    equal_runs(here / "out", here / "straight")
    assert not (here / "out.partial").exists()


def test_a_killed_command_is_resumed_and_finished_flows_are_not_run_again(here, monkeypatch):
    """Killed when the first flow is whole and the second under way; each has its snapshot."""
    words = ["simulate", "sum.toml", "-q", "--set", "flow.expected=blow-up"]
    assert theory.cli.main([*words, "-o", "straight"]) == 0
    code = (
        "import os, signal, sys, simulate.flow as flow\nfrom theory.cli import main\n"
        "inner = flow._segments\n"
        "def segments(compiled, plan, state, shown):\n"
        "    for number, state in enumerate(inner(compiled, plan, state, shown)):\n"
        "        yield state\n"
        "        if plan.problem.field.name == 'expanded' and number == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "flow._segments = segments\n"
        "flow.Snapshot.due = lambda self, seconds: True\n"
        "main(sys.argv[1:])"
    )
    path = os.pathsep.join(map(str, sys.path))
    killed = subprocess.run([sys.executable, "-c", code, *words, "-o", "out"], env={**os.environ, "PYTHONPATH": path})
    assert killed.returncode == -signal.SIGKILL and not (here / "out").exists()
    before = {name: (here / "out.partial" / f"{name}.npz").read_bytes() for name in ("exact", "expanded")}
    written = []
    write = simulate.snapshots.Snapshot.write
    monkeypatch.setattr(
        simulate.snapshots.Snapshot, "write", lambda self, *a: (written.append(self.path.stem), write(self, *a))
    )
    assert theory.cli.main([*words, "-o", "out", "--resume"]) == 0
    assert set(written) == {"expanded"} and before["exact"]
    equal_runs(here / "out", here / "straight")


def test_half_loss_out_of_reach_is_status_3(here, capfd):
    words = ["simulate", "sum.toml", "--set", "flow.until=half-loss", "--set", "flow.max_time=0.5"]
    assert theory.cli.main(words) == 3
    out, err = capfd.readouterr()
    assert out.startswith("one right-hand side") and "did not fall to 0.5 of its start by max_time = 0.5" in err
    assert os.listdir(here) == ["sum.toml"]


def test_solvers_are_listed(here, capfd):
    assert theory.cli.main(["list"]) == 0
    out, err = capfd.readouterr()
    assert err == "" and re.search(r"solvers\n  tsit5 +explicit", out)
    assert theory.cli.main(["simulate"]) == 2


def test_a_time_that_no_step_is_short_for(here, capfd):
    words = ["simulate", "sum.toml", "-q", "--set", "flow.kinds=exact", "--set", "flow.until=1e300"]
    assert theory.cli.main(words) == 3
    assert "until = 1e+300 is too far for this flow" in capfd.readouterr().err


def test_parents_are_made_and_a_full_disk_leaves_nothing(here, capfd, monkeypatch):
    words = ["simulate", "sum.toml", "-q", "-o", "a/b", "--set", "flow.kinds=exact", "--set", "flow.until=0.1"]
    with monkeypatch.context() as full:
        full.setattr("os.posix_fallocate", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        assert theory.cli.main(words) == 2
    assert capfd.readouterr() == ("", "staircase: 'a/b' cannot be written: No space left on device.\n")
    assert os.listdir(here / "a") == ["b.partial"]  # the flow is not lost
    assert theory.cli.main([*words, "--resume"]) == 0
    assert os.listdir(here / "a") == ["b"]
    assert "summary.json" in os.listdir(here / "a" / "b")
