"""`[sweep]`: the members, their fields and starts, what is stored and printed, going on, and mistakes."""

import importlib.metadata
import json
from typing import Any

import jax
import jax.flatten_util
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import simulate.snapshots
import theory.cli
from simulate.experiment import load_experiment
from simulate.fields import exact
from simulate.flow import integrate
from simulate.modified import heavy_ball
from simulate.run import run_sweep, sweep_table
from simulate.trajectory import load_trajectories
from theory.errors import UserError
from theory.initial import initialise

TEXT = """\
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
until = 20.0
[save]
count = 3
"""
SWEEP = """
[sweep]
seeds = [1, 2]
gamma = [0.6, 0.9]
parameters = ["E", "U"]
"""
LABELS = [(0.6, 1), (0.6, 2), (0.9, 1), (0.9, 2)]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with an experiment, and the command line as pyproject.toml declares it."""
    declared = [importlib.metadata.EntryPoint("simulate", "simulate.cli:register", theory.cli.COMMANDS)]
    installed = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda group: declared if group == theory.cli.COMMANDS else installed(group=group),
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sum.toml").write_text(TEXT + SWEEP)
    return tmp_path


def test_a_sweep_is_run_stored_printed_and_summed_up(here, capfd):
    assert theory.cli.main(["simulate", "sum.toml"]) == 0
    lines = capfd.readouterr().out.splitlines()
    sweep = json.loads((here / "sum-run" / "summary.json").read_text())["sweep"]
    stored = load_trajectories(here / "sum-run" / "trajectories.nc")
    assert list(stored) == ["exact", "sweep"]
    data = stored["sweep"].data
    assert data["E"].dims == ("member", "time", "token", "embed") and data["U"].dims[0] == "member"
    assert list(zip(data["gamma"].values, data["seed"].values, strict=True)) == LABELS
    assert "learning_rate" not in data.variables and data["quantile"].values.tolist() == [0.05, 0.5, 0.95]

    own = load_experiment("sum.toml")
    for number, (gamma, seed) in enumerate(LABELS):
        start = initialise(own.architecture(), own.sizes(), gamma=gamma, seed=seed)
        alone = integrate(own.field("exact"), own.dataset(), start, until=20.0, save=[0, 10, 20])
        np.testing.assert_allclose(data["E"].values[number], alone["E"], rtol=1e-12)
        member = sweep["members"][number]
        assert (member["gamma"], member["seed"], member["status"]) == (gamma, seed, "completed")
        for key in ("steps_accepted", "steps_rejected"):
            assert member[key] == alone.attributes[key] == data[key].values[number]
        assert member["loss_end"] == data["loss"].values[number, -1]

    expected = np.quantile(data["loss"].values, [0.05, 0.5, 0.95], axis=0)
    np.testing.assert_allclose(data["band_loss"], expected, rtol=1e-14)
    np.testing.assert_allclose(sweep["bands"]["loss"], expected, rtol=1e-14)
    assert sweep["bands"]["times"] == [0, 10, 20] and sweep["bands"]["members"] == [4, 4, 4]
    assert data["band_members"].values.tolist() == [4, 4, 4] and "band_loss" not in stored["sweep"].series_names

    (way,) = sweep["ways"]
    assert way["way"] == "one-by-one" and way["ratio"] == 1.0 and way["members"] == 4
    table = lines[next(n for n, line in enumerate(lines) if line.startswith("sweep of the exact flow: ")) :]
    assert table[0].startswith("sweep of the exact flow: 4 members one-by-one: 1.00 times as fast as one by one")
    assert "less than 5 s of work" in table[0]
    assert table[1].split() == "gamma seed status end t loss to steps rejected".split()
    for line, member in zip(table[2:6], sweep["members"], strict=True):
        keys = ("gamma", "seed", "status", "stop_time", "loss_end", "steps_accepted", "steps_rejected")
        wanted = [f"{member[k]:.6g}" if isinstance(member[k], float) else str(member[k]) for k in keys]
        assert line.split() == wanted
    middle = f"{expected[1, -1]:.6g} (0.5)"
    assert table[6].startswith("loss at t = 20, quantiles over 4 members: ") and middle in table[6]

    # the resolved file is the same sweep
    resolved = load_experiment(here / "sum-run" / "experiment.toml")
    assert resolved.sweep == load_experiment("sum.toml").sweep


def solved(field, dataset, start, times):
    """E at the times, by scipy."""
    with jax.enable_x64(True):
        data, (flat, unravel) = field.data(dataset), jax.flatten_util.ravel_pytree(start)
        rate = jax.jit(lambda y: jax.flatten_util.ravel_pytree(field(0.0, unravel(y), data))[0])
        found = solve_ivp(lambda t, y: np.asarray(rate(y)), (0, times[-1]), flat, t_eval=times, rtol=1e-9, atol=1e-12)
        return np.stack([unravel(y)["E"] for y in found.y.T])


def test_each_learning_rate_is_a_field_of_its_own(here):
    """Of heavy-ball members, which also start with velocities of their own."""
    linear = (TEXT + SWEEP).replace('"feed_forward"\nactivation = "tanh"', '"linear"')
    (here / "sum.toml").write_text(linear)  # compiles faster
    change = [
        "flow.solver=bosh3",
        "flow.kinds=heavy-ball",
        "flow.learning_rate=0.1",
        "flow.momentum=0.5",
        "flow.until=2.0",
    ]
    swept = ["sweep.learning_rate=[0.2, 0.4]", "sweep.gamma=0.7", "sweep.seeds=2"]
    experiment = load_experiment("sum.toml", [*change, *swept])
    sweep = run_sweep(experiment)
    assert sweep.data["learning_rate"].values.tolist() == [0.2, 0.4] and sweep.data["seed"].values.tolist() == [2, 2]
    assert [choice.members for choice in sweep.choices] == [1, 1]
    assert "sweep of the heavy-ball flow at learning rate 0.4: 1 members" in sweep_table(experiment, sweep)
    field, dataset = heavy_ball(exact(experiment.architecture()), 0.4, 0.5), experiment.dataset()
    start = field.start(initialise(experiment.architecture(), experiment.sizes(), gamma=0.7, seed=2), dataset)
    np.testing.assert_allclose(sweep.data["E"].values[1], solved(field, dataset, start, [0, 1, 2]), rtol=1e-5)
    assert np.abs(sweep.data["E"].values[0] - sweep.data["E"].values[1])[-1].max() > 1e-6


def test_fields_at_learning_rates_are_made_once(here):
    experiment = load_experiment("sum.toml", ["flow.kinds=modified", "flow.learning_rate=0.1"])
    fields: list[Any] = [experiment.field("modified", rate) for rate in (None, 0.2, 0.4)]
    assert [field.learning_rate for field in fields] == [0.1, 0.2, 0.4]
    assert experiment.sweep_labels()[0] == {"learning_rate": 0.1, "gamma": 0.6, "seed": 1}
    assert experiment.field("modified", 0.2) is fields[1] and experiment.field("modified", 0.1) is fields[0]
    assert fields[1].field is fields[0].field


def test_many_members_are_summed_up_and_failures_are_counted(here, capfd):
    words = ["simulate", "sum.toml", "--set", "sweep.seeds=[1, 2, 3, 4, 5, 6, 7]", "--set", "flow.max_steps=45"]
    assert theory.cli.main(words) == 3
    out, err = capfd.readouterr()
    members = json.loads((here / "sum-run" / "summary.json").read_text())["sweep"]["members"]
    over = sum(member["status"] == "max-steps" for member in members)
    assert 0 < over < 14 and f"{over} members of the sweep: max-steps; see summary.json. What was" in err
    (line,) = [line for line in out.splitlines() if line.startswith("14 members: ")]
    assert f"{over} max-steps" in line and f"{14 - over} completed" in line
    steps = [member["steps_accepted"] for member in members]
    assert f"steps {min(steps)} to {max(steps)}, rejected " in line and "gamma  seed" not in out
    assert (here / "sum-run.partial").is_dir()


def test_a_sweep_goes_on_and_whole_members_are_not_run_again(here, capfd, monkeypatch):
    words = ["simulate", "sum.toml", "-q", "-o"]
    assert theory.cli.main([*words, "straight"]) == 0
    assert theory.cli.main([*words, "out", "--set", "flow.max_steps=45", "--set", "flow.expected=blow-up"]) == 3
    written = []
    write = simulate.snapshots.Snapshot.write
    monkeypatch.setattr(
        simulate.snapshots.Snapshot, "write", lambda self, *a: (written.append(self.path.stem), write(self, *a))
    )
    before = json.loads((here / "out" / "summary.json").read_text())["sweep"]["members"]
    assert theory.cli.main([*words, "out", "--resume"]) == 0
    unfinished = {f"sweep-{n}" for n, member in enumerate(before) if member["status"] == "max-steps"}
    assert 0 < len(unfinished) < 4 and {name for name in written if name.startswith("sweep")} == unfinished
    ours, theirs = (load_trajectories(here / run / "trajectories.nc")["sweep"].data for run in ("out", "straight"))
    assert ours.equals(theirs)
    assert not (here / "out.partial").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("sweep.seed=1", "[sweep] has no key 'seed'; did you mean 'seeds'"),
        ("sweep.seeds=[1, 1]", "[sweep] seeds names one value twice"),
        ("sweep.seeds=[-1]", "sweep.seeds should be greater than or equal to 0"),
        ("sweep.gamma=[]", "sweep.gamma"),
        ("sweep.scale=[0.1]", "[sweep] takes gamma or scale, not both"),
        ("sweep.quantiles=[0.9, 0.1]", "[sweep] quantiles must be increasing"),
        ("sweep.quantiles=[1.5]", "sweep.quantiles should be less than or equal to 1"),
        ("sweep.way=vmapp", "sweep.way cannot be 'vmapp'; did you mean 'vmap'"),
        ("sweep.flow=exat", "[sweep] 'flow' names no flow that is integrated: 'exat'; did you mean 'exact'"),
        ("sweep.learning_rate=[0.1, 0.2]", "[sweep] the flow 'exact' takes no 'learning_rate'"),
        ("sweep.parameters=F", "[sweep] there is no parameter 'F' to save"),
    ],
)
def test_mistakes_are_one_sentence(here, change, sentence):
    with pytest.raises(UserError) as caught:
        load_experiment("sum.toml", [change])
    assert sentence in str(caught.value) and f"--set {change}" in str(caught.value)


OWN = """\
import numpy as np
from theory.language import Architecture, causal, dot, elementwise, embed, last, rename, softmax


def squared(h):
    return dot(h, h, over="embed")


def attended(p, tokens):
    x = embed(p.E, tokens)
    before = rename(x, position="key")
    a = softmax(dot(x, before, over="embed"), over="key", mask=causal("position", "key"))
    h = last(dot(a, before, over="key"))
    return dot(p.U, elementwise(h, "tanh") * squared(h), over="embed")


model = Architecture(attended, {"E": ("token", "embed"), "U": ("label", "embed")})
"""


@pytest.mark.parametrize("name", ["feed_forward", "own.py:model"])
def test_processes_take_local_functions_and_files_of_the_user(here, name):
    """Sweep in processes: masks and stock architectures are functions inside functions, a file no module of theirs."""
    (here / "own.py").write_text(OWN)
    text = TEXT if name == "feed_forward" else TEXT.replace('activation = "tanh"\n', "")
    (here / "sum.toml").write_text(text.replace("feed_forward", name) + SWEEP)
    options = ["flow.until=2.0", "save.count=3"]
    apart, alone = (
        run_sweep(load_experiment("sum.toml", [*options, f"sweep.way={way}"])) for way in ("processes", "one-by-one")
    )
    assert [choice.way for choice in apart.choices] == ["processes"]
    for found, wanted in zip(apart.members, alone.members, strict=True):
        np.testing.assert_array_equal(found["E"], wanted["E"])
        assert found.attributes["steps_accepted"] == wanted.attributes["steps_accepted"]


def test_what_is_not_swept_is_that_of_initial(here):
    (here / "sum.toml").write_text(TEXT + "[sweep]\nscale = [0.1, 0.2]\n")
    assert load_experiment("sum.toml").sweep_labels() == [{"scale": 0.1, "seed": 3}, {"scale": 0.2, "seed": 3}]
    with pytest.raises(UserError, match=r"needs a section \[sweep\]"):
        (here / "sum.toml").write_text(TEXT)
        run_sweep(load_experiment("sum.toml"))
