"""Published experiments run again: the command, quick settings and variants, verdicts, and the committed table."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from compare.reproduce import RESULTS, gathered, load, page, results, verdict
from compare.spectra import effective_rank
from compare.training import train
from simulate.experiment import load_experiment, variants_of
from simulate.trajectory import load_trajectories
from theory.cli import main
from theory.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMITTED = sorted(path.parent for path in EXAMPLES.glob(f"*/{RESULTS}"))

FILE = """
title = "Small modular addition"
[architecture]
name = "feed_forward"
activation = "relu"
[sizes]
embed = 6
[data]
task = "mod"
numbers = 5
n_outputs = 11
[initial]
scale = 0.05
[flow]
kinds = []
until = 8.0
[save]
times = [0.0, 4.0, 8.0]
[training]
learning_rate = 0.5
batch = 5
seeds = [0, 1, 2, 3, 4]
starts = "own"
[claims.parallel]
paper = "early embeddings are nearly parallel"
measure = "signature-correlation"
at = 8.0
comparison = ">="
threshold = 0.8
condition = "there are unused outputs"
control = "all-used"
[claims.rank]
measure = "effective-rank"
comparison = ">="
threshold = 1.0
[quick]
flow.until = 4.0
save.times = [0.0, 4.0]
[quick.claims.parallel]
at = 4.0
threshold = 0.1
[variants.all-used.data]
n_outputs = 5
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "small.toml").write_text(FILE, encoding="utf-8")
    return tmp_path / "files"


def test_variants_and_the_quick_setting_change_what_they_state(folder):
    path = folder / "small.toml"
    assert variants_of(path) == ("all-used",)
    plain, quick = load_experiment(path), load_experiment(path, quick=True)
    assert (plain.flow.until, quick.flow.until) == (8.0, 4.0) and quick.save.times == (0.0, 4.0)
    assert plain.claims["parallel"].threshold == 0.8 and quick.claims["parallel"].threshold == 0.1
    assert quick.claims["parallel"].paper == plain.claims["parallel"].paper and set(quick.claims) == set(plain.claims)
    # The variant has the claim that it is the control of, without its condition, in the setting asked for.
    other = load_experiment(path, quick=True, variant="all-used")
    assert set(other.claims) == {"parallel"} and other.claims["parallel"].condition is None
    assert other.claims["parallel"].threshold == 0.1 and other.dataset().n_labels == 5 and other.flow.until == 4.0
    assert plain.dataset().n_labels == 11
    again = load_experiment_text(path.with_name("resolved.toml"), plain.to_toml())
    assert again.to_dict() == plain.to_dict()


def load_experiment_text(path, text):
    path.write_text(text, encoding="utf-8")
    return load_experiment(path)


def test_the_line_of_a_mistake_in_a_quick_setting_or_a_variant_is_named(folder):
    path = folder / "small.toml"
    path.write_text(FILE.replace("flow.until = 4.0", 'flow.until = "soon"'), encoding="utf-8")
    line = FILE.splitlines().index("flow.until = 4.0") + 1
    load_experiment(path)
    with pytest.raises(UserError, match=rf"small.toml:{line}: flow.until .*'soon'"):
        load_experiment(path, quick=True)
    path.write_text(FILE.replace('control = "all-used"', 'control = "all-usd"'), encoding="utf-8")
    with pytest.raises(UserError, match="no variant as its control: 'all-usd'; did you mean 'all-used'"):
        load_experiment(path)
    path.write_text(FILE, encoding="utf-8")
    with pytest.raises(UserError, match="no variant 'all_used'; did you mean 'all-used'"):
        load_experiment(path, variant="all_used")


def test_an_experiment_to_reproduce_needs_claims_seeds_and_starts(folder):
    path = folder / "small.toml"
    for old, new, message in [
        ("seeds = [0, 1, 2, 3, 4]", "seeds = [0, 1, 2, 3]", "at least 5 seeds"),
        ('starts = "own"', 'starts = "shared"', 'starts = "own"'),
        ('control = "all-used"\n', "", "variant 'all-used': claims nothing"),
        ('measure = "effective-rank"', 'measure = "effective-rnk"', "did you mean 'effective-rank'"),
        ('measure = "effective-rank"', 'measure = "relative-error"', "no flow predicts"),
    ]:
        path.write_text(FILE.replace(old, new), encoding="utf-8")
        with pytest.raises(UserError, match=re.escape(message)):
            load("small", folder)


def test_seeds_with_starts_of_their_own_are_what_each_is_alone(folder):
    experiment = load_experiment(folder / "small.toml")
    starts = experiment.starts()
    options = {"learning_rate": 0.5, "save": [0.0, 2.0], "batch": 5}
    whole = [
        train(
            experiment.architecture(), experiment.dataset(), starts, seeds=(0, 1, 2, 3, 4), together=together, **options
        )
        for together in (False, True)
    ]
    for seed in (0, 3):
        alone = train(experiment.architecture(), experiment.dataset(), starts[seed], seeds=(seed,), **options)
        np.testing.assert_array_equal(whole[0]["E"].values[seed], alone["E"].values)
        np.testing.assert_allclose(whole[1]["E"].values[seed], alone["E"].values, rtol=1e-9, atol=1e-12)
    assert np.any(whole[1]["E"].values[0, 0] != whole[1]["E"].values[1, 0])
    # Full batches differ in nothing but the start.
    full = options | {"batch": "full"}
    train(experiment.architecture(), experiment.dataset(), starts, seeds=(0, 1, 2, 3, 4), **full)
    with pytest.raises(UserError, match="full-batch"):
        train(experiment.architecture(), experiment.dataset(), starts[0], seeds=(0, 1), **full)
    with pytest.raises(UserError, match="each of 2 seeds needs its own"):
        train(experiment.architecture(), experiment.dataset(), starts, seeds=(0, 1), **options)


def test_no_flow_is_of_seeds_with_starts_of_their_own(folder, capsys, tmp_path):
    path = folder / "small.toml"
    path.write_text(FILE.replace("kinds = []", 'kinds = ["exact"]'), encoding="utf-8")
    with pytest.raises(UserError, match=r"small.toml:\d+: \[flow\] 'kinds' must be \[\]"):
        load_experiment(path)
    path.write_text(FILE, encoding="utf-8")
    assert main(["simulate", str(path), "-o", str(tmp_path / "flows")]) == 2
    assert "integrates no flow" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "options", "wanted"),
    [
        ([0.9, 0.95], {}, "reproduced"),
        ([0.9, 0.7], {}, "not reproduced"),
        ([0.9, None], {}, "undefined"),
        ([0.9, "inf"], {}, "reproduced"),
        ([0.9, 0.95], {"condition": "V > N"}, "reproduced only if V > N"),
        ([0.9, 0.95], {"condition": "V > N", "control": [0.1, 0.9]}, "reproduced only if V > N"),
        ([0.9, 0.95], {"condition": "V > N", "control": [0.1, None]}, "reproduced only if V > N"),
        # It holds without as well: the condition is none.
        ([0.9, 0.95], {"condition": "V > N", "control": [0.8, 0.9]}, "reproduced"),
        ([0.9, 0.7], {"condition": "V > N", "control": [0.1, 0.1]}, "not reproduced"),
        ([3.0, 4.0, 3.0], {"threshold": 2, "distinct": True}, "reproduced"),
        ([3.0, 3.0, 3.0], {"threshold": 2, "distinct": True}, "not reproduced"),
    ],
)
def test_verdicts(values, options, wanted):
    threshold = options.pop("threshold", 0.8)
    assert verdict(values, ">=", threshold, **options) == wanted
    if not options.get("distinct"):
        mirrored = [-v if isinstance(v, float) else {"inf": "-inf"}.get(v) for v in values]
        control = options.pop("control", None)
        control = control and [None if v is None else -v for v in control]
        assert verdict(mirrored, "<=", -threshold, control=control, **options) == wanted


def test_the_command_lists_runs_keeps_and_tabulates(folder, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "--directory", str(folder)]
    assert main(words) == 0
    assert capsys.readouterr().out == "small  Small modular addition\n"
    assert main([*words, "smal"]) == 2
    assert "did you mean 'small'?" in capsys.readouterr().err
    assert main(["reproduce"]) == 2
    assert capsys.readouterr().err == (
        "staircase: there are no experiment files in 'examples/staircase': name their folder with --directory.\n"
    )
    assert main([*words, "small", "--all"]) == 2
    assert "name one experiment, or give --all" in capsys.readouterr().err

    assert main([*words, "--all", "--quick", "-o", "out", "--record"]) == 0
    out, err = capsys.readouterr()
    assert err == "small-quick: main\nsmall-quick: all-used\n"
    assert "small-quick: reproduced: rank (main)" in out
    runs = tmp_path / "out" / "small-quick"
    assert {path.name for path in runs.iterdir()} == {"main", "all-used", "summary.json"}
    assert (runs / "all-used" / "report.html").is_file()
    kept = json.loads((folder / RESULTS / "small-quick.json").read_text(encoding="utf-8"))
    assert kept == json.loads((runs / "summary.json").read_text(encoding="utf-8"))
    # The numbers are those of the run: effective ranks of each seed's embeddings at the last time.
    training = load_trajectories(runs / "main" / "trajectories.nc")["sgd-0.5"]
    for seed in range(5):
        claim = next(claim for claim in kept["claims"] if claim["name"] == "rank")
        wanted = effective_rank(training["E"].values[seed, -1]).entropy
        assert claim["measured"][str(seed)] == pytest.approx(wanted, rel=1e-12)
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert "| early embeddings are nearly parallel | parallel | not run | **" in page and "without (all-used)" in page
    before = {path: path.stat().st_mtime_ns for path in runs.glob("*/*")}

    # What is there is not run again, what changed is refused without --force, and the table is made of what is kept.
    assert main([*words, "small", "--quick", "-o", "out"]) == 0
    assert capsys.readouterr().err == "" and {p: p.stat().st_mtime_ns for p in runs.glob("*/*")} == before
    (folder / "small.toml").write_text(FILE.replace("scale = 0.05", "scale = 0.06"), encoding="utf-8")
    assert main([*words, "small", "--quick", "-o", "out"]) == 2
    assert "not empty" in capsys.readouterr().err
    (folder / "README.md").unlink()
    assert main([*words, "--table"]) == 0
    assert (folder / "README.md").read_text(encoding="utf-8") == page


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_the_committed_table_is_that_of_the_committed_results(folder):
    found = results(folder)
    assert found and (folder / "README.md").read_text(encoding="utf-8") == page(folder)
    names = {path.stem for path in folder.glob("*.toml")}
    assert {name for name, _ in found} <= names


@pytest.mark.parametrize(
    "path",
    [path for folder in COMMITTED for path in sorted((folder / RESULTS).glob("*.json"))],
    ids=lambda path: path.stem,
)
def test_a_committed_result_is_of_the_experiment_file_as_it_stands(path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    reproduction = load(kept["name"], path.parents[1], quick=kept["setting"] == "quick")
    assert reproduction.label == path.stem
    summaries = {
        part: {
            "claims": [_of_run(claim, claim["measured"]) for claim in kept["claims"] if claim["part"] == part],
            "cpu_seconds": kept["parts"][part]["cpu_seconds"],
            "versions": kept["versions"],
        }
        for part in kept["parts"]
    }
    for claim in kept["claims"]:
        if claim["control"] is not None:
            summaries[claim["control"]["variant"]]["claims"].append(_of_run(claim, claim["control"]["measured"]))
    assert gathered(reproduction, summaries) == kept


def _of_run(claim, values):
    """A claim of a result as the summary of a run holds it."""
    return claim | {"over_seeds": {"rule": "worst", "values": values}}


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_every_committed_experiment_loads_in_both_settings(folder):
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        assert content["title"]
        for quick in (False, True):
            reproduction = load(path.stem, folder, quick=quick)
            claims = [claim for part in reproduction.parts.values() for claim in part.claims.values()]
            assert all(claim.remark for claim in claims) and any(claim.paper for claim in claims)
