"""`staircase new` writes files that work as they stand; `staircase derive --positions`."""

import json

import pytest

import theory.cli
from theory.architectures import load
from theory.evolution import derive


def run(*words):
    return theory.cli.main(words)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_architecture_derives_and_certifies(folder, capfd):
    from compare.certificate import certify

    assert run("new", "architecture", "shiny") == 0
    assert capfd.readouterr() == ("written to shiny.py; next: staircase table shiny.py:shiny\n", "")
    assert run("derive", "shiny.py:shiny", "--degree", "4") == 0
    assert capfd.readouterr().out.startswith("shiny, cross entropy, loss degree 4")
    assert run("table", "shiny.py:shiny") == 0
    assert "φ_{α,x_L}^{y;0}" in capfd.readouterr().out
    architecture = load("shiny.py:shiny", activation="gelu")
    assert architecture.name == "shiny"
    assert certify(load("shiny.py:shiny"), degree=4).passed


def test_a_new_architecture_is_clean_code(folder):
    import subprocess
    import sys

    assert run("new", "architecture", "shiny", "-o", "other.py") == 0
    assert "other.py:shiny" in (folder / "other.py").read_text()
    for words in (
        ["check", "--select", "E,F,I,UP,B,W", "--line-length", "120"],
        ["format", "--check", "--line-length", "120"],
    ):
        finished = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--isolated", "other.py"], capture_output=True, text=True
        )
        assert finished.returncode == 0, finished.stdout + finished.stderr


def test_a_new_experiment_runs(folder, capfd):
    assert run("new", "experiment", "try-1") == 0
    assert capfd.readouterr() == ("written to try-1.toml; next: staircase simulate try-1.toml\n", "")
    assert run("simulate", "try-1.toml", "--set", "flow.until=2.0", "--set", "flow.kinds=['exact']") == 0
    assert "exact  completed" in capfd.readouterr().out
    assert (folder / "try-1-run" / "summary.json").is_file()


def test_nothing_is_overwritten(folder, capfd):
    (folder / "mine.py").write_text("mine")
    (folder / "mine.toml").write_text("mine")
    for kind, path in (("architecture", "mine.py"), ("experiment", "mine.toml")):
        assert run("new", kind, "mine") == 2
        assert capfd.readouterr() == (
            "",
            f"staircase: '{path}' is there already and is not overwritten; choose another with --output FILE.\n",
        )
        assert (folder / path).read_text() == "mine"
    assert sorted(path.name for path in folder.iterdir()) == ["mine.py", "mine.toml"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("architecture", "a-b"), "'a-b' is not a Python identifier; 'a_b' would do"),
        (("architecture", "1a"), "'1a' is not a Python identifier"),
        (("architecture", "class"), "'class' is a word of Python's own; 'class_' would do"),
        (("architecture", "embed"), "'embed' is a name that the new file uses for something else"),
        (("architecture", "mine", "-o", "/proc/nowhere/mine.py"), "cannot be written"),
        (("experiment", "a/b"), "made of letters, digits, - and _, found 'a/b'"),
    ],
)
def test_bad_names_are_one_sentence_and_status_2(words, sentence, folder, capfd):
    assert run("new", *words) == 2
    out, err = capfd.readouterr()
    assert out == "" and sentence in err and err.startswith("staircase: ") and err.count("\n") == 1
    assert list(folder.iterdir()) == []


# -- derive --positions ------------------------------------------------------------------------------------------------

WORDS = ("derive", "feed_forward", "--activation", "tanh", "--degree", "4")


@pytest.mark.parametrize("format", ["text", "latex", "markdown", "json"])
def test_positions_are_distinct_unless_told_otherwise(format, capfd):
    found = {}
    for positions in ("default", "distinct", "independent"):
        words = () if positions == "default" else ("--positions", positions)
        assert run(*WORDS, "--format", format, *words) == 0
        found[positions], err = capfd.readouterr()
        assert err == ""
    equations = derive(load("feed_forward", activation="tanh"), 4)
    assert found["default"] == found["distinct"] != found["independent"]
    if format == "json":
        assert [json.loads(found[p])["distinct_positions"] for p in ("default", "independent")] == [True, False]
    else:
        printed = {"text": equations.to_text, "latex": equations.to_latex, "markdown": equations.to_markdown}[format]()
        assert found["independent"] == printed
        assert ("φ_α" in found["default"]) or (r"\varphi" in found["default"])


def test_too_many_terms_are_left_independent_with_a_note(capfd, monkeypatch):
    equations = derive(load("feed_forward", activation="tanh"), 4)
    assert equations.distinct_positions().term_count - equations.term_count > 0
    monkeypatch.setattr(theory.cli, "MOST_DISTINCT", 15)
    assert run(*WORDS) == 0
    out, err = capfd.readouterr()
    assert out == equations.to_text()
    assert err.startswith("note: positions are summed independently") and "more than 15 terms" in err
    assert err.count("\n") == 1
    assert run(*WORDS, "--positions", "distinct") == 0
    assert capfd.readouterr() == (equations.distinct_positions().to_text(), "")


def test_the_limit_keeps_derive_quick(capfd):
    """The whole view has 9,023 terms; noticing that takes a fraction of making them."""
    import time

    started = time.perf_counter()
    assert run("derive", "feed_forward", "--activation", "tanh", "--degree", "10", "--keep", "activation") == 0
    kept = time.perf_counter() - started
    assert capfd.readouterr().err == ""
    equations = derive(load("feed_forward", activation="tanh"), 10, ())
    started = time.perf_counter()
    assert not theory.cli._few_when_distinct(equations)
    print(f"kept {kept:.2f} s, noticed in {time.perf_counter() - started:.2f} s")
    assert time.perf_counter() - started < 30
