"""The command line of theory: exit status, standard output, empty standard error, files, start-up time."""

import importlib.metadata
import json
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest

import theory
import theory.cli
import theory.data

ROOT = Path(__file__).parents[2]


def run(*words):
    return theory.cli.main(words)


def test_version(capfd):
    assert run("--version") == 0
    assert capfd.readouterr() == (f"staircase {importlib.metadata.version('context-staircase')}\n", "")


def test_no_command_and_unknown_command_exit_with_2(capfd):
    assert run("lst") == 2
    out, err = capfd.readouterr()
    assert out == "" and err == "staircase: staircase has no command lst; did you mean 'list'?\n"
    assert run() == 2
    assert run("derive") == 2
    assert run("derive", "linear", "--degree", "x") == 2
    assert run("derive", "linear", "--format", "word") == 2


def test_list_names_what_can_be_chosen(capfd):
    assert run("list", "--format", "json") == 0
    out, err = capfd.readouterr()
    groups = json.loads(out)
    assert err == ""
    assert {"linear", "feed_forward", "attention", "transformer"} <= set(groups["architectures"])
    assert {"add", "mod", "text"} <= set(groups["tasks"])
    assert {"tanh", "gelu", "relu"} <= set(groups["activations"])
    assert run("list") == 0
    lines = capfd.readouterr().out.splitlines()
    assert "architectures" in lines and any(line.split()[0] == "tanh" for line in lines)


def test_declared_entry_points_resolve():
    """Read from pyproject.toml, so that a wrong declaration fails before the next installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]
    assert project["scripts"] == {"staircase": "theory.cli:main"}
    for group in (theory.cli.COMMANDS, theory.cli.LISTINGS):
        for name, value in points[group].items():
            assert callable(importlib.metadata.EntryPoint(name, value, group).load())
    assert "simulate" in points[theory.cli.COMMANDS] and "solvers" in points[theory.cli.LISTINGS]


def test_signatures_table(capfd):
    assert run("signatures", "add", "--order", "1", "--option", "numbers=2") == 0
    assert capfd.readouterr() == (
        "label signature of order 1, modes (label, context_1)\n"
        "token  P(token)  largest entries\n"
        "1        0.5000  2,1: 0.5000  3,2: 0.5000\n"
        "2        0.5000  3,1: 0.5000  4,2: 0.5000\n",
        "",
    )


def test_signatures_as_json_and_npz(capfd, tmp_path):
    assert run("signatures", "add", "--option", "numbers=3", "--token", "2", "--format", "json") == 0
    content = json.loads(capfd.readouterr().out)
    assert content["dims"] == ["token", "label"]
    np.testing.assert_allclose(content["data"], [[0, 1 / 3, 1 / 3, 1 / 3, 0]], rtol=1e-15)
    target = tmp_path / "s.npz"
    words = ("signatures", "add", "--option", "numbers=3", "--order", "1", "--kind", "co-occurrence")
    assert run(*words, "--format", "npz", "-o", str(target)) == 0
    assert capfd.readouterr() == ("", "")
    with np.load(target) as stored:
        np.testing.assert_allclose(stored["signature"], np.full((3, 3), 1 / 3), rtol=1e-15)
        assert stored["tokens"].tolist() == ["1", "2", "3"]
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


@pytest.mark.parametrize("format", ["text", "latex", "markdown", "json"])
def test_derive_prints_and_writes_the_same(format, capfd, tmp_path):
    words = ("derive", "feed_forward", "--activation", "tanh", "--degree", "4", "--format", format)
    assert run(*words) == 0
    out, err = capfd.readouterr()
    assert err == "" and len(out) > 100 and out.endswith("\n")
    assert run(*words, "-o", str(tmp_path / "file")) == 0
    assert capfd.readouterr() == ("", "")
    assert (tmp_path / "file").read_text() == out


def test_derive_agrees_with_the_library(capfd):
    from theory.architectures import feed_forward
    from theory.evolution import derive

    equations = derive(feed_forward("cube"), 4, ("prediction",)).distinct_positions()
    words = ("derive", "feed_forward", "--option", "activation=cube", "--degree", "4", "--keep", "prediction")
    assert run(*words, "--parameter", "E") == 0
    assert capfd.readouterr().out.rstrip("\n") == equations.to_text("E").rstrip("\n")


@pytest.mark.parametrize("format", ["text", "latex", "markdown", "json"])
def test_table_prints(format, capfd):
    assert run("table", "feed_forward", "--activation", "tanh", "--degree", "4", "--format", format) == 0
    out, err = capfd.readouterr()
    assert err == "" and len(out) > 50


def test_the_loss_and_the_paths_are_chosen_by_flags(capfd):
    from theory.architectures import linear
    from theory.evolution import derive

    assert run("derive", "linear", "--degree", "4", "--loss", "squared_error") == 0
    wanted = derive(linear(), 4, loss="squared_error").distinct_positions().to_text()
    assert capfd.readouterr().out.rstrip("\n") == wanted.rstrip("\n") and "squared error" in wanted
    assert run("table", "attention", "--degree", "8", "--paths") == 0
    rows = capfd.readouterr().out.splitlines()[1:-1]
    assert rows[0].split()[-2:] == ["path", "branch"]
    assert {row.split()[-1] for row in rows[1:]} == {"query", "key", "value"}
    assert run("derive", "linear", "--loss", "squared") == 2
    assert "did you mean 'squared_error'" in capfd.readouterr().err


def test_table_finds_a_degree_by_itself(capfd):
    """Loss degrees of the hidden-layer model: 3, 6, 7, 9, … and none at 8."""
    assert run("table", "emb_mlp", "--activation", "tanh") == 0
    found = capfd.readouterr().out
    assert run("table", "emb_mlp", "--activation", "tanh", "--degree", "9") == 0
    assert capfd.readouterr().out == found


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("derive", "feed_forwrd"), "did you mean 'feed_forward'"),
        (("derive", "feed_forward", "--activation", "tan"), "did you mean 'tanh'"),
        (("derive", "feed_forward", "--option", "activation"), "key=value"),
        (("derive", "feed_forward", "--option", "activation='"), "not a TOML value"),
        (("derive", "feed_forward", "--option", "a=1", "--option", "a=2"), "'a' was given twice"),
        (("derive", "feed_forward", "--activation", "tanh", "--option", "activation=tanh"), "given twice"),
        (("derive", "feed_forward", "--parameter", "W"), "no parameter 'W'"),
        (("derive", "feed_forward", "--parameter", "E", "--format", "json"), "leave --parameter out"),
        (("derive", "nowhere.py:mine"), "no file 'nowhere.py'"),
        (("table", "feed_forward", "--degree", "4", "--parameter", "W"), "no parameter 'W'"),
        (("signatures", "ad"), "did you mean 'add'"),
        (("signatures", "add", "--option", "numbrs=4"), "did you mean 'numbers'"),
        (("signatures", "add", "--format", "npz"), "-o FILE"),
        (("signatures", "add", "-o", "/proc/nowhere/file"), "cannot be written"),
    ],
)
def test_mistakes_are_one_sentence_and_status_2(words, sentence, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*words) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("staircase: ") and sentence in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


MODELS = """\
from theory.language import *


def forward(p, tokens):
    return dot(p.U, total(embed(p.E, tokens), over="position"), over="embed")


AXES = {"E": ("token", "embed"), "U": ("label", "embed")}
model = Architecture(forward, AXES)


def broken():
    return 1 / 0


def wide(width):
    return model


def late():
    def masked(p, tokens):
        fade = constant("fade", ("position",), lambda sizes: 1 / 0 if sizes["position"] > 3 else __import__("numpy").ones(sizes["position"]))
        return dot(p.U, dot(fade, embed(p.E, tokens), over="position"), over="embed")

    return Architecture(masked, AXES)
"""  # noqa: E501


# Every kind of wrong use of the language, each in a function that makes the architecture.
WRONG = """\
import numpy as np
from theory.language import *

AXES = {"E": ("token", "embed"), "U": ("label", "embed")}


def mismatched():
    return Architecture(lambda p, x: dot(p.U, total(embed(p.E, x), over="position"), over="embd"), AXES)


def left_over():
    return Architecture(lambda p, x: p.U * total(embed(p.E, x), over="position"), AXES)


def unknown():
    return Architecture(lambda p, x: dot(p.W, total(embed(p.E, x), over="position"), over="embed"), AXES)


def rough():
    def forward(p, x):
        h = total(embed(p.E, x), over="position")
        return dot(p.U, elementwise(h, "relu", name="gate"), over="embed")

    return Architecture(forward, AXES)


def forbidden():
    def forward(p, x):
        scores = dot(rename(embed(p.E, x), position="query"), embed(p.E, x), over="embed")
        mask = constant("strict", ("query", "position"), lambda sizes: np.tri(sizes["query"], k=-1))
        a = softmax(scores, over="position", mask=mask)
        return dot(p.U, total(dot(a, embed(p.E, x), over="position"), over="query"), over="embed")

    return Architecture(forward, AXES)
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {
        "m.py": MODELS,
        "wrong.py": WRONG,
        "name.py": "x = 1\ny = nothing\n",
        "syntax.py": "\ndef (\n",
        "absent.py": "import no_such_module\n",
        "leaves.py": "import sys\nsys.exit(0)\n",
        "data.py": "def rows():\n    raise KeyError('a')\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("table m.py:forward", "is a function of (p, tokens) and not the Architecture made of it; write m.py:model."),
        ("certify m.py:forward", "is a function of (p, tokens) and not the Architecture made of it; write m.py:model."),
        ("table m.py:nosuch", "m.py defines no 'nosuch'; choose one of broken, late, model, wide."),
        ("table m.py:modle", "m.py defines no 'modle'; did you mean 'model'?"),
        ("table m.py", "an architecture in it; choose one of m.py:model, m.py:broken, m.py:wide, m.py:late."),
        ("table m.py:AXES", "m.py:AXES is neither an Architecture nor a function that returns one; write m.py:model."),
        ("table m.py:wide", "m.py:wide needs the option 'width': --option width=…."),
        ("table m.py:broken", "m.py:13: ZeroDivisionError: division by zero."),
        ("closed-form m.py:late", "m.py:22: ZeroDivisionError: division by zero."),
        ("derive wrong.py:mismatched", "wrong.py:8 `return Architecture(lambda p, x: dot("),
        ("derive wrong.py:mismatched", "the left operand has no axis 'embd'; it has (label, embed); did you mean 'embed'?"),
        ("derive wrong.py:left_over", "wrong.py:12 `return Architecture(lambda p, x: p.U * total("),
        ("derive wrong.py:left_over", "axes (label, embed); logits have the axes (label) or (position, label), so 'embed' is"),
        ("derive wrong.py:unknown", "wrong.py:16 `return Architecture(lambda p, x: dot(p.W, "),
        ("derive wrong.py:unknown", "unknown parameter 'W'; choose one of E, U."),
        ("derive wrong.py:rough --degree 3", "wrong.py:22 `return dot(p.U, elementwise(h, \"relu\", name=\"gate\")"),
        ("table wrong.py:rough --degree 3", "'relu' is not analytic at 0 and cannot be expanded; keep it (--keep gate), or"),
        ("derive wrong.py:forbidden", "wrong.py:31 `a = softmax(scores, over=\"position\", mask=mask)`: mask 'strict' forbids"),
        ("derive wrong.py:forbidden", "each row needs at least one allowed place."),
        ("table name.py:x", "name.py:2: NameError: name 'nothing' is not defined."),
        ("table syntax.py:x", "syntax.py:2: SyntaxError: invalid syntax."),
        ("table absent.py:x", "absent.py:1: ModuleNotFoundError: No module named 'no_such_module'."),
        ("table leaves.py:x", "leaves.py:2: SystemExit: 0."),
        ("signatures data.py:rows", "data.py:2: KeyError: 'a'."),
        ("signatures t.txt", "'t.txt' is no task; for a text write 'text' and --option path=t.txt"),
        ("scaling linear --task t.txt", "for a text write --task text and --task-option path=t.txt"),
        ("scaling linear --task text", "but linear predicts one per sequence; with one per position there is transformer."),
        ("closed-form transformer", "with one per sequence there are linear, feed_forward, emb_mlp, attention."),
        ("derive feed_forward --activation relu --degree 4", "keep it (--keep activation), or choose"),
        ("derive feed_forward --activation tanhh", "feed_forward: unknown activation 'tanhh'; did you mean 'tanh'?"),
        ("derive linear --keep activation", "--keep has no effect; give --degree (of the loss), or --keep all."),
        ("derive feed_forward --degree 1000", "to degree 1000 of the loss would not end; take a degree of at most 100"),
        ("closed-form linear --size embed=1000000000000", "272 TB of memory"),
        ("closed-form linear --size token=3", "the size of axis 'token' comes from the data; what is free is embed."),
        ("closed-form linear --size embed", "an option has the form axis=size, but 'embed' was given."),
        ("closed-form linear --gamma 1 --scale 1", "exactly one of --gamma and --scale."),
        ("signatures add --option numbers=50 --option length=9", "draw some of them: --option samples=10000."),
        ("scaling linear --task-option numbers=50 --task-option length=9", "draw some of them: --task-option samples=10000."),
        ("derive attention --option positions=no", "the option positions of attention is true or false, found 'no'."),
        ("derive", "missing argument 'ARCH' (see staircase derive --help)."),
        ("derive linear --keeep all", "staircase derive has no option --keeep; did you mean '--keep'?"),
        ("derive linear --format wrd", "of staircase derive cannot be 'wrd'; choose one of json, latex, markdown, text."),
        ("certify linear --until 3", "staircase certify has no option --until; choose one of"),
        ("derive linear --degree 0", "invalid value for '--degree'"),
        ("derive linear more", "(see staircase derive --help)."),
        ("new x y", "staircase new has no command x; choose one of architecture, experiment."),
        ("derive linear -o .", "'.' is a directory; name a file in it."),
        ("derive linear -o m.py/a/b", "is not a directory."),
    ],
)  # fmt: skip
def test_what_a_new_user_stumbles_on_is_one_sentence(line, sentence, models, capfd):
    before = sorted(models.iterdir())
    assert run(*line.split()) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.startswith("staircase: ") and err.count("\n") == 1
    assert sentence in err and "Traceback" not in err
    assert [p for p in sorted(models.iterdir()) if p.name != "__pycache__"] == before


def test_python_has_its_own_words():
    from theory.architectures import feed_forward
    from theory.evolution import derive

    with pytest.raises(theory.UserError, match=r"\(keep='activation'\)"):
        derive(feed_forward("relu"), 4)
    with pytest.raises(theory.UserError, match=r"for a text write task='text' and path='t.txt'"):
        theory.data.load("t.txt")


def test_output_is_checked_before_the_work_and_gets_its_folders(models, capfd, monkeypatch):
    with monkeypatch.context() as guarded:
        guarded.setattr("theory.evolution.derive", lambda *_, **__: 1 / 0)
        assert run("derive", "linear", "-o", "/proc/x/y") == 2
        assert "'/proc/x/y' cannot be written" in capfd.readouterr().err
    assert run("derive", "linear", "-o", "deep/er/x.txt") == 0
    assert (models / "deep/er/x.txt").read_text().startswith("linear")
    with monkeypatch.context() as full:
        full.setattr(
            "theory.files.os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        assert run("derive", "linear", "-o", "new/x.txt") == 2
    assert capfd.readouterr().err == "staircase: 'new/x.txt' cannot be written: No space left on device.\n"
    assert not (models / "new").exists()


def test_output_is_named_as_it_was_asked_for(models, capfd):
    assert run("table", "m.py:model") == 0
    assert capfd.readouterr().out.startswith("staircase of dE/dt, m.py:model, ")


def test_memory_that_runs_out_is_a_sentence(capfd, monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("Unable to allocate 7.28 TiB for an array with shape (1000000000000,)")

    monkeypatch.setattr("theory.evolution.derive", refuse)
    assert run("derive", "linear") == 2
    assert "not enough memory: 7.28 TiB were asked for; take smaller" in capfd.readouterr().err


def test_an_error_of_the_program_stays_an_error(monkeypatch):
    monkeypatch.setattr("theory.evolution.derive", lambda *_, **__: {}["x"])
    with pytest.raises(KeyError):
        run("derive", "linear")


def test_a_closed_pipe_ends_in_silence():
    command = f"{sys.executable} -c 'import sys, theory.cli; sys.exit(theory.cli.main([\"list\"]))' | head -n 1"
    finished = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (finished.stdout, finished.stderr) == ("architectures\n", "")


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import theory", ("jax", "torch", "sympy", "numpy", "typer")),
        ("import theory.cli", ("jax", "torch", "sympy", "numpy", "xarray", "matplotlib")),
        ("import theory; theory.derive", ("jax", "torch", "simulate", "compare")),
        ("import simulate", ("jax", "torch", "xarray")),
        ("import simulate; simulate.integrate, simulate.load_experiment, simulate.exact", ("torch", "compare")),
        ("import theory.cli; theory.cli.application()", ("jax", "torch", "sympy", "xarray", "matplotlib")),
    ],
)
def test_imports_stay_apart(statement, absent):
    code = f"import sys; {statement}; print([name for name in {absent!r} if name in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert finished.stdout == "[]\n"


@pytest.mark.parametrize("flag", ["--help", "--version"])
def test_starting_is_quick(flag, capfd):
    """0.25 s where this was written; the bound is for a loaded machine."""
    code = f"import sys, theory.cli; sys.exit(theory.cli.main(['{flag}']))"
    started = time.perf_counter()
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    seconds = time.perf_counter() - started
    print(f"staircase {flag}: {seconds:.2f} s")
    assert finished.returncode == 0 and finished.stderr == "" and finished.stdout != ""
    assert seconds < 2


def test_lazy_names():
    import simulate

    for package in (theory, simulate):
        for name in package.__all__:
            assert getattr(package, name).__name__ == name
            assert name in dir(package)
        with pytest.raises(AttributeError, match="no attribute 'nothing'"):
            getattr(package, "nothing")  # noqa: B009
