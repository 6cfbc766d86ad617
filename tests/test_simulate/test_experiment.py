"""Experiment files: what they resolve to, and one sentence for every mistake, with its line."""

import numpy as np
import pytest

from simulate.experiment import key_lines, load_experiment
from simulate.rundir import run_directory
from theory.errors import NumericalFailure, UserError

TEXT = """\
title = "Addition"

[architecture]
name = "feed_forward"
activation = "tanh"

[sizes]
embed = 6

[data]
task = "add"
numbers = 4

[initial]
gamma = 0.8
seed = 3

[flow]
kinds = ["exact", "cut-logits"]
degree = 4
until = 2.0

[save]
count = 5

[sgd]
learning_rate = 0.1

[claims.close]
measure = "relative error"
threshold = 0.01
comparison = "<="
"""


def load(tmp_path, old="", new="", *overrides):
    assert old in TEXT
    (tmp_path / "file.toml").write_text(TEXT.replace(old, new, 1) if old else TEXT + new)
    return load_experiment(tmp_path / "file.toml", overrides)


def test_values_and_defaults(tmp_path):
    experiment = load(tmp_path)
    assert experiment.architecture().name == "feed_forward"
    assert experiment.sizes() == {"embed": 6, "token": 4, "label": 7, "position": 2}
    assert experiment.dataset() is experiment.dataset()
    shapes = {name: array.shape for name, array in experiment.initial_parameters().items()}
    assert shapes == {"E": (4, 6), "U": (7, 6)}
    assert experiment.schedule().times.tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    assert experiment.flow.rtol == 1e-8 and experiment.flow.solver == "tsit5"
    assert experiment.training.learning_rate == (0.1,) and experiment.training.batch == "full"
    assert experiment.claims["close"].threshold == 0.01
    assert experiment.field("cut-logits").name == "cut-logits"
    assert experiment.field("cut-logits") is experiment.field("cut-logits")


def test_equal_seeds_give_equal_arrays_and_others_do_not(tmp_path):
    first, second = (load(tmp_path).initial_parameters()["E"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    other = load(tmp_path, "", "", "initial.seed=4").initial_parameters()["E"]
    assert np.abs(other - first).min() > 0


def test_resolved_file_loads_to_the_same_experiment(tmp_path):
    experiment = load(
        tmp_path,
        "count = 5",
        "times = [0.0, 1e-7, 1]",
        "flow.rtol=1e-10",
        'title="a \\"quoted\\" title"',
        'claims.close.remark="näher"',
    )
    (tmp_path / "resolved.toml").write_text(experiment.to_toml(), encoding="utf-8")
    again = load_experiment(tmp_path / "resolved.toml")
    assert again.to_dict() == experiment.to_dict()
    assert again.flow.rtol == 1e-10 and again.save.times == (0.0, 1e-7, 1.0)
    assert again.to_toml() == experiment.to_toml()


def test_overrides_are_typed_by_toml(tmp_path):
    experiment = load(
        tmp_path,
        "",
        "",
        "sgd.learning_rate=[0.05, 0.1]",
        "sgd.seeds = [1, 2]",
        "flow.solver=dopri5",
        "sizes.embed=3",
        "save.spacing='log'",
        "flow.expected=blow-up",
    )
    assert experiment.training.learning_rate == (0.05, 0.1) and experiment.training.seeds == (1, 2)
    assert experiment.flow.solver == "dopri5" and experiment.flow.expected == ("blow-up",)
    assert experiment.sizes()["embed"] == 3 and experiment.save.spacing == "log"


def test_own_files_are_found_beside_the_experiment(tmp_path):
    (tmp_path / "models.py").write_text("from theory.architectures import linear\n\ndef mine():\n    return linear()\n")
    (tmp_path / "rows.csv").write_text("x1,x2,y\n1,2,a\n2,1,b\n")
    for key in ("name = ", "activation = "):
        assert key in TEXT
    text = TEXT.replace('name = "feed_forward"\nactivation = "tanh"', 'name = "models.py:mine"')
    text = (
        text.replace('task = "add"\nnumbers = 4', 'task = "rows.csv"').replace('"cut-logits"', "").replace(", ]", "]")
    )
    (tmp_path / "file.toml").write_text(text)
    experiment = load_experiment(tmp_path / "file.toml")
    assert experiment.dataset().n_samples == 2 and experiment.architecture().name == "models.py:mine"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "resolved.toml").write_text(experiment.to_toml())
    assert load_experiment(elsewhere / "resolved.toml").dataset().n_samples == 2


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("gamma", "gama", "file.toml:15", r"\[initial\] has no key 'gama'; did you mean 'gamma'\?"),
        ("[flow]", "[flwo]", "file.toml:18", "no section or key 'flwo'; did you mean 'flow'"),
        ("degree = 4", "", "file.toml:18", "'cut-logits' needs a degree"),
        ("until = 2.0", "", "file.toml:18", r"\[flow\] needs the key 'until'"),
        ("until = 2.0", 'until = "half"', "file.toml:21", "cannot be 'half'; did you mean 'half-loss'"),
        ("until = 2.0", 'until = "half-loss"', "file.toml:18", "needs a max_time"),
        ("until = 2.0", "until = nan", "file.toml:21", "finite number .* but is nan"),
        ("until = 2.0", "until = -1", "file.toml:21", "greater than 0"),
        ('"cut-logits"', '"cut-logit"', "file.toml:19", "did you mean 'cut-logits'"),
        ("numbers", "nubers", "file.toml:12", r"\[data\] .*did you mean 'numbers'"),
        ("numbers = 4", "numbers = -4", "file.toml:12", "-4"),
        ('task = "add"', 'task = "ad"', "file.toml:1[01]", "did you mean 'add'"),
        ('"tanh"', '"tan"', "file.toml:[345]", "unknown activation 'tan'.* did you mean 'tanh'"),
        ("embed =", "embd =", "file.toml:8", "did you mean 'embed'"),
        ("count = 5", 'count = "x"', "file.toml:24", "save.count should be a valid integer, but is 'x'"),
        ("count = 5", "times = [0, 3, 1]", "file.toml:23", "1 follows 3"),
        ("count = 5", "times = [0, 3]", "file.toml:24", "lies beyond flow.until = 2"),
        ("count = 5", "count = 5\ntimes = [0]", "file.toml:23", "not both"),
        ("count = 5", 'parameters = ["W"]', "file.toml:23", "no parameter 'W' to save"),
        ("seed = 3", "scale = 0.1", "file.toml:14", "exactly one of gamma and scale"),
        ("seed = 3", "seed = true", "file.toml:16", "valid integer, but is True"),
        ("degree = 4", "degree = 5", "file.toml:20", "nearest degrees are 4 and 6"),
        ("learning_rate = 0.1", "learning_rate = 0", "file.toml:27", "greater than 0, but is 0"),
        ("learning_rate = 0.1", "learning_rate = 0.1\nbatch = 'ful'", "file.toml:28", "'full'"),
        ("learning_rate = 0.1", "learning_rate = 0.1\nseeds = [1, 1]", "file.toml:26", "one seed twice"),
        ('comparison = "<="', 'comparison = "<"', "file.toml:32", "cannot be '<'"),
        ("threshold = 0.01", "", "file.toml:29", r"\[claims.close\] needs the key 'threshold'"),
        ("threshold = 0.01", 'threshold = 0.01\nflow = "expanded"', "file.toml:29", "names no flow that is integrated"),
        ("threshold = 0.01", 'threshold = 0.01\nparameter = "W"', "file.toml:29", "names no parameter: 'W'"),
        ("title = ", "title ", "file.toml is", "not valid TOML"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path, old, new, place, words):
    with pytest.raises(UserError, match=rf"(?s)^\S*{place}\b.*{words}") as caught:
        load(tmp_path, old, new)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("sgd.lerning_rate=0.1", "^--set sgd.lerning_rate=0.1: .* did you mean 'learning_rate'"),
        ("flow.rtol=2", "^--set flow.rtol=2: flow.rtol should be less than 1, but is 2"),
        ("flow", "takes section.key=value"),
        ("flow.rtol=", "takes section.key=value"),
        ("flow.rtol=[1", "not a TOML value"),
        ("title.x=3", "'title' is a value and not a section"),
        ("flow.solver=tsit", "did you mean 'tsit5'"),
        ("flow.expected=blowup", "did you mean 'blow-up'"),
    ],
)
def test_mistaken_overrides_are_named(tmp_path, override, words):
    with pytest.raises(UserError, match=words):
        load(tmp_path, "", "", override)


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="no experiment file"):
        load_experiment(tmp_path / "none.toml")


def test_lines_of_keys():
    lines = key_lines('a.b = 1\n[t]\n"c d" = 2 # x = 3\n[t.u]\n  e=4\n[[v]]\n')
    assert lines == {("a",): 1, ("a", "b"): 1, ("t",): 2, ("t", "c d"): 3, ("t", "u"): 4, ("t", "u", "e"): 5, ("v",): 6}


def test_half_loss_is_found_on_the_exact_flow(tmp_path):
    experiment = load(tmp_path, "until = 2.0", 'until = "half-loss"\nmax_time = 1e4')
    field, data = experiment.field("exact"), experiment.dataset()
    from simulate.flow import integrate

    end = experiment.until()
    run = integrate(field, data, experiment.initial_parameters(), until=end, save=experiment.schedule())
    assert run.times[-1] == end
    assert float(run["loss"][-1] / run["loss"][0]) == pytest.approx(0.5, rel=1e-6)
    with pytest.raises(NumericalFailure, match="by max_time = 1"):
        load(tmp_path, "until = 2.0", 'until = "half-loss"\nmax_time = 1.0').until()


def test_run_directory_is_whole_or_absent(tmp_path):
    with run_directory(tmp_path / "run") as target:
        (target / "a").write_text("1")
        assert not (tmp_path / "run").exists()
    assert (tmp_path / "run" / "a").read_text() == "1"
    with pytest.raises(UserError, match="not empty"), run_directory(tmp_path / "run"):
        pass
    with pytest.raises(KeyError), run_directory(tmp_path / "run", force=True) as target:
        (target / "a").write_text("2")
        raise KeyError
    assert (tmp_path / "run" / "a").read_text() == "1"
    with run_directory(tmp_path / "run", force=True) as target:
        (target / "b").write_text("3")
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "b"]
    with pytest.raises(UserError, match="is a file"), run_directory(tmp_path / "run" / "b"):
        pass
    with run_directory(tmp_path / "x" / "y") as target:
        (target / "c").write_text("4")
    assert (tmp_path / "x" / "y" / "c").read_text() == "4"
    with pytest.raises(KeyError), run_directory(tmp_path / "new" / "y") as target:
        raise KeyError
    assert not (tmp_path / "new").exists()
