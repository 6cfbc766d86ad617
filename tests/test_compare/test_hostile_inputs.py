"""Every broken input in one place: each ends in one clear sentence or a clean resume, and nothing is lost or executed.

Runs made elsewhere, from Python and on the command line; run directories of our own; places that cannot be written; killed
trainings. What is accepted: test_external, test_snapshots, test_report.
"""

import base64
import errno
import gc
import json
import math
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from report_pages import FIGURE, run_directory
from safetensors.torch import save_file
from snapshot_files import RATE, STEPS, write_npz

from compare import figures
from compare.external import load_run
from compare.report.directory import report_of
from compare.reproduce import load
from compare.training import train
from simulate.experiment import load_experiment
from simulate.trajectory import Trajectory, load_trajectories, save_trajectories
from theory.cli import main
from theory.errors import UserError

EXAMPLES = Path(__file__).parents[2] / "examples"

# ---------------------------------------------------------------------------------------------------------------------
# Ways to break a run of five snapshots


class Malicious:
    """Unpickled, it makes the file `EXECUTED` in the working directory."""

    def __reduce__(self):
        return (open, ("EXECUTED", "w"))


def intact(folder, states):
    pass


def truncated(folder, states):
    path = folder / "step-20.npz"
    path.write_bytes(path.read_bytes()[:300])


def one_bit(folder, states):
    path = folder / "step-20.npz"
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(bytes(content))


def rewritten(**change):
    def corrupt(folder, states):
        write_npz(folder, 20, states[20] | {name: make(states[20]) for name, make in change.items()})

    return corrupt


def replaced(name, content):
    """Instead of step-20.npz something else: bytes, or a function that makes it."""

    def corrupt(folder, states):
        (folder / "step-20.npz").unlink()
        content(folder / name) if callable(content) else (folder / name).write_bytes(content)

    return corrupt


def with_nan(state):
    E = state["E"].copy()
    E[1, 2] = np.nan
    return E


def pickled_torch(path):
    torch.save({"E": torch.zeros(5, 6), "evil": Malicious()}, path)


def pickled_npz(path):
    np.savez(path, allow_pickle=True, E=np.array([Malicious()], dtype=object))


def pickled_npy(path):
    np.save(path, np.array([Malicious()], dtype=object), allow_pickle=True)


def bare_pickle(path):
    path.write_bytes(pickle.dumps({"E": Malicious()}))


def sparse(path):
    torch.save({"E": torch.ones(5, 6).to_sparse(), "U": torch.ones(6, 9)}, path)


def meta(path):
    torch.save({"E": torch.ones(5, 6, device="meta"), "U": torch.ones(6, 9)}, path)


def huge(path):
    """A header that promises 7 TB."""
    np.save(path, np.zeros((5, 6)))
    path.write_bytes(path.read_bytes().replace(b"(5, 6)", b"(9999999, 99999)")[:200])


def index_of(weight_map):
    def make(path):
        path.mkdir()
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    return make


def part_of_parts(path):
    index_of({"E": "a.safetensors", "U": "b.safetensors"})(path)
    save_file({"E": torch.ones(5, 6)}, path / "a.safetensors")


def deep_index(path):
    path.mkdir()
    (path / "model.safetensors.index.json").write_text("[" * 100_000)


def dangling(path):
    path.symlink_to(path.with_name("nowhere.npz"))


def emptied(folder, states):
    for path in folder.iterdir():
        path.unlink()


def renamed(name):
    return lambda folder, states: (folder / "step-20.npz").rename(folder / name)


def added(name, step):
    return lambda folder, states: np.savez(folder / name, **states[step])


def rates_file(content):
    return lambda folder, states: (folder.parent / "rates.csv").write_bytes(content)


@dataclass
class Broken:
    """How a run is broken, the arguments of `load_run` that go with it, and what the sentence says."""

    corrupt: Any
    message: str
    options: dict[str, Any] = field(default_factory=dict)
    # Experiment files have types of their own, so that some mistakes are told before the run is read.
    command: bool = True


RATES = {"learning_rate": "rates.csv"}
RUNS = {
    "truncated npz": Broken(truncated, r"step-20.npz' is damaged"),
    "one flipped bit": Broken(one_bit, r"step-20.npz' is damaged"),
    "zero bytes": Broken(replaced("step-20.npz", b""), r"step-20.npz' is empty \(0 bytes\)"),
    "text called npz": Broken(
        replaced("step-20.npz", b"my weights"), "no numpy file .it begins with b'my weigh'.: write one with numpy.savez"
    ),
    "a header of terabytes": Broken(replaced("step-20.npy", huge), "step-20.npy' is damaged"),
    "pickle in a torch file": Broken(replaced("step-20.pt", pickled_torch), "more than tensors.*was not executed"),
    "pickle in an npz": Broken(replaced("step-20.npz", pickled_npz), "holds 'E' as Python objects.*never executed"),
    "pickle in an npy": Broken(replaced("step-20.npy", pickled_npy), "as Python objects, a pickle, .*never executed"),
    "pickle called npz": Broken(
        replaced("step-20.npz", bare_pickle), "no numpy file .a pickle, which is never executed"
    ),
    "pickle called npy": Broken(
        replaced("step-20.npy", bare_pickle), "no numpy file .a pickle, which is never executed"
    ),
    "pickle called pt": Broken(replaced("step-20.pt", bare_pickle), "was not executed"),
    "pickle called bin": Broken(replaced("step-20.bin", bare_pickle), "was not executed"),
    "pickle called safetensors": Broken(replaced("step-20.safetensors", bare_pickle), "no safetensors file"),
    "torch garbage": Broken(replaced("step-20.pth", b"PK\x03\x04" + b"\0" * 50), "is damaged or no torch file"),
    "a sparse tensor": Broken(
        replaced("step-20.pt", sparse), "'E' in .*step-20.pt' is stored as sparse_coo: save it dense"
    ),
    "a meta tensor": Broken(
        replaced("step-20.pt", meta), "'E' in .*step-20.pt' is a meta tensor: a shape without numbers"
    ),
    "safetensors garbage": Broken(
        replaced("step-20.safetensors", (1 << 60).to_bytes(8, "little") + b"{not json"), "no safetensors file"
    ),
    "safetensors truncated": Broken(replaced("step-20.safetensors", b"\x10\0\0\0\0\0\0\0{}"), "no safetensors file"),
    "an index to another folder": Broken(
        replaced("checkpoint-20", index_of({"E": "../../secret.safetensors"})), "points outside its folder, at '../../s"
    ),
    "an index to the parent": Broken(
        replaced("checkpoint-20", index_of({"E": ".."})), r"outside its folder, at '\.\.'"
    ),
    "an index to nothing": Broken(replaced("checkpoint-20", index_of({"E": ""})), "points outside its folder, at ''"),
    "an index to an absolute path": Broken(
        replaced("checkpoint-20", index_of({"E": "/etc/passwd"})), "points outside its folder, at '/etc/passwd'"
    ),
    "a part that is missing": Broken(
        replaced("checkpoint-20", part_of_parts),
        "lacks the file 'b.safetensors' that model.safetensors.index.json promises, with 'U'",
    ),
    "a part without its tensor": Broken(
        replaced(
            "checkpoint-20",
            lambda path: (
                part_of_parts(path),
                save_file({"E": torch.ones(5, 6)}, path / "b.safetensors"),
            ),
        ),
        "b.safetensors' lacks the tensor 'U' that its index promises",
    ),
    "an index nested without end": Broken(replaced("checkpoint-20", deep_index), "is damaged: it needs a weight_map"),
    "a link to nowhere": Broken(replaced("step-20.npz", dangling), "there is no snapshot .*step-20.npz"),
    "a directory instead of a file": Broken(
        replaced("step-20.npz", lambda path: path.mkdir()), "is no snapshot: it has neither"
    ),
    "an empty directory": Broken(emptied, "holds no snapshot .*it holds nothing"),
    "NaN between finite snapshots": Broken(rewritten(E=with_nan), "not finite, between snapshots that are"),
    "NaN at the start": Broken(
        lambda folder, states: write_npz(folder, 0, states[0] | {"E": with_nan(states[0])}),
        "step-0.npz' holds 1 numbers in 'E' that are not finite",
    ),
    "wrong vocabulary size": Broken(
        lambda folder, states: write_npz(folder, 0, states[0] | {"E": np.ones((7, 6))}),
        "wrong vocabulary size: 'E' in .* has 7 rows, but dataset 'add' has 5 tokens",
    ),
    "wrong width": Broken(intact, r"shape \(5, 6\), but 'E' has \(token 5, embed 8", {"sizes": {"embed": 8}}),
    "shape change in mid-run": Broken(rewritten(U=lambda s: s["U"][:, :4]), "shape of 'U' changes in mid-run"),
    "a tensor lost in mid-run": Broken(
        lambda folder, states: np.savez(folder / "step-20.npz", E=states[20]["E"]),
        "step-20.npz' has no tensor 'U' for 'U'; it holds E \\(5, 6\\)",
    ),
    "complex numbers": Broken(rewritten(E=lambda s: s["E"] + 1j), "'E' in .* has dtype complex128"),
    "whole numbers": Broken(rewritten(U=lambda s: np.ones(s["U"].shape, int)), "'U' in .* has dtype int64"),
    "duplicate steps": Broken(
        added("step-020.npz", 20), "two snapshots are of step 20: 'step-020.npz' and 'step-20.npz'"
    ),
    "a step beyond every training": Broken(
        renamed("step-100000000000000000000.npz"), "would be of step 100000000000000000000, more than 1,000,000,000"
    ),
    "no step in any name": Broken(
        lambda folder, states: [os.rename(p, folder / f"{chr(97 + i)}.npz") for i, p in enumerate(folder.iterdir())],
        "hold no step, as .*: give steps",
    ),
    "epochs": Broken(added("epoch3.npz", 0), "counts epochs"),
    "steps of wrong length": Broken(intact, "2 steps are given for 5 snapshots", {"steps": [0, 1]}),
    "steps out of order": Broken(intact, "snapshots are out of order", {"steps": [0, 10, 30, 20, 40]}),
    "a negative step": Broken(intact, "whole number of at least 0, found -1", {"steps": [-1, 0, 1, 2, 3]}),
    "steps that are no list": Broken(intact, "steps must be a list .*found 40", {"steps": 40}, command=False),
    "no embedding to be found": Broken(
        lambda folder, states: [np.savez(folder / f"step-{s}.npz", a=np.ones(3)) for s in STEPS],
        r"no tensor of .* can be told to be the embedding 'E'.*it holds a \(3\)",
    ),
    "another tensor asked for": Broken(intact, "has no tensor 'wte' for 'E'", {"tensors": {"E": "wte"}}),
    "another parameter asked for": Broken(intact, "no parameter 'W' to read", {"tensors": {"W": "E"}}),
    "an unknown axis": Broken(
        intact, "has no axis 'embd'; did you mean 'embed'", {"sizes": {"embd": 6}}, command=False
    ),
    "a size that the data deny": Broken(
        intact, "'token' cannot have size 7: it is 5 in dataset 'add'", {"sizes": {"token": 7}}, command=False
    ),
    "a size that is no number": Broken(
        intact, "a positive whole number, found True", {"sizes": {"embed": True}}, False
    ),
    "rates of wrong length": Broken(intact, "wrong length: one is needed for each of 40", {"learning_rate": [0.1] * 5}),
    "negative rates": Broken(intact, "that of step 39 is -1.0", {"learning_rate": [0.1] * 39 + [-1.0]}),
    "no time passes": Broken(intact, "between steps 30 and 40", {"learning_rate": [0.1] * 30 + [0.0] * 10}),
    "a negative rate": Broken(
        intact, "learning_rate must be a positive number", {"learning_rate": -0.1}, command=False
    ),
    "a rate that ends time": Broken(intact, "makes times infinite: 40 steps of it", {"learning_rate": 1e308}),
    "rates that end time": Broken(
        intact, "sum to infinity: the largest of them is 1e.308", {"learning_rate": [1e308] * 40}
    ),
    "true as a rate": Broken(intact, "one number for each step, found True", {"learning_rate": True}, command=False),
    "true as rates": Broken(intact, "one number for each step", {"learning_rate": [True] * 40}, command=False),
    "words as rates": Broken(intact, "one number for each step", {"learning_rate": ["0.1"] * 40}, command=False),
    "no rate": Broken(intact, "one number for each step, found None", {"learning_rate": None}, command=False),
    "rates with a hole": Broken(
        rates_file(b"step,learning_rate\n0,0.1\n2,0.1\n"), "rates.csv:3: there must be a line for each step", RATES
    ),
    "rates in other columns": Broken(
        rates_file(b"a,b\n0,0.1\n"), "needs the columns step and learning_rate; it has", RATES
    ),
    "rates that are words": Broken(rates_file(b"step,learning_rate\n0,x\n"), "rates.csv:2: .* must be numbers", RATES),
    "rates that are binary": Broken(rates_file(b"step\xff\xfe\0"), "rates.csv' is not UTF-8", RATES),
    "rates that are empty": Broken(rates_file(b""), "rates.csv' is empty", RATES),
    "no file of rates": Broken(intact, "there is no file .*rates.csv", RATES),
    "an unknown optimiser": Broken(intact, "unknown optimizer 'adm'; did you mean 'adam'", {"optimizer": "adm"}, False),
    "momentum that is a word": Broken(intact, "momentum must lie in .0, 1.", {"momentum": "0.9"}, command=False),
}


@pytest.fixture
def here(folder, monkeypatch):
    """The folder of snapshots; the working directory is the one around it, and torch is told to trust every pickle."""
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    return folder


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("broken", RUNS.values(), ids=RUNS)
def test_a_broken_run_gets_one_clear_sentence_in_python(small, states, here, broken):
    architecture, dataset, _ = small
    broken.corrupt(here, states)
    before = contents(here.parent)
    with pytest.raises(UserError, match=broken.message) as caught:
        load_run(here, architecture, dataset, **({"learning_rate": RATE} | broken.options))
    assert "\n" not in str(caught.value) and "allow_pickle" not in str(caught.value)
    assert before == contents(here.parent)


EXPERIMENT = """
[architecture]
name = "feed_forward"
[sizes]
embed = 6
[data]
task = "add"
numbers = 5
[initial]
scale = 0.3
[flow]
until = 1.0
[run]
path = "run"
learning_rate = 0.1
"""


def run_options(options):
    """The same arguments as words of the command line."""
    for key, value in options.items():
        for axis, size in value.items() if key == "sizes" else ():
            yield f"sizes.{axis}={size}"
        for parameter, tensor in value.items() if key == "tensors" else ():
            yield f"run.tensors.{parameter}={json.dumps(tensor)}"
        if key not in ("sizes", "tensors"):
            yield f"run.{key}={json.dumps(value)}"


ON_THE_COMMAND_LINE = {name: broken for name, broken in RUNS.items() if broken.command}


@pytest.mark.parametrize("broken", ON_THE_COMMAND_LINE.values(), ids=ON_THE_COMMAND_LINE)
def test_a_broken_run_gets_one_clear_sentence_on_the_command_line(states, here, capfd, broken):
    (here.parent / "file.toml").write_text(EXPERIMENT)
    broken.corrupt(here, states)
    before = contents(here.parent)
    words = [word for each in run_options(broken.options) for word in ("--set", each)]
    assert main(["compare", "file.toml", "-o", "out", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    assert re.search(broken.message, err), err
    assert before == contents(here.parent) and not (here.parent / "out").exists()


def test_an_experiment_file_may_begin_with_a_byte_order_mark(here):
    (here.parent / "file.toml").write_text("\ufeff" + EXPERIMENT.lstrip(), encoding="utf-8")
    assert load_experiment(here.parent / "file.toml").run_source() == here


def test_the_malicious_pickle_would_run(tmp_path, monkeypatch):
    """The tests above can fail: loaded without care, the same files make `EXECUTED`."""
    monkeypatch.chdir(tmp_path)
    pickled_torch(tmp_path / "evil.pt")
    torch.load(tmp_path / "evil.pt", weights_only=False)["evil"].close()
    assert (tmp_path / "EXECUTED").exists()


def test_a_file_that_may_not_be_read(small, folder, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match="step-0.npz' cannot be read: Permission denied"):
        load_run(folder, *small[:2], learning_rate=RATE)


def test_a_missing_step_zero_is_said_and_leaves_the_signatures(small, folder):
    (folder / "step-0.npz").unlink()
    run = load_run(folder, *small[:2], learning_rate=RATE)
    assert not run.attributes["initial_state"] and run.times[0] == pytest.approx(1.0)
    assert "step 0 is missing (the first is step 10): held against signatures only" in run.attributes["notes"]


# ---------------------------------------------------------------------------------------------------------------------
# Files of our own that were damaged


@pytest.fixture
def trajectories(small, tmp_path):
    run = train(*small, learning_rate=RATE, save=[0.0, 1.0])
    save_trajectories(tmp_path / "own.nc", {"sgd": run, "again": run})
    return tmp_path / "own.nc"


def attributes_set_to(text):
    def damage(path):
        with h5py.File(path, "r+") as file:
            if text is None:
                del file["sgd"].attrs["attributes_json"]
            else:
                file["sgd"].attrs["attributes_json"] = text

    return damage


def without_times(path):
    with h5py.File(path, "r+") as file:
        for name in list(file["sgd"]):
            del file["sgd"][name]


def cut_to(share):
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


TRAJECTORIES = {
    "half of it": (cut_to(0.5), "own.nc' cannot be read as netCDF: .*truncated file"),
    "nothing of it": (cut_to(0.0), "own.nc' cannot be read as netCDF"),
    "text": (lambda path: path.write_text("times"), "own.nc' cannot be read as netCDF"),
    "a pickle": (bare_pickle, "own.nc' cannot be read as netCDF"),
    "attributes that are no JSON": (attributes_set_to("{"), "'sgd' of .* is damaged: its attributes are no JSON"),
    "attributes that are numbers": (attributes_set_to(3), "'sgd' of .* is damaged: its attributes are no JSON"),
    "attributes that are a list": (attributes_set_to("[]"), "is damaged: its attributes are no JSON object"),
    "attributes nested without end": (attributes_set_to("[" * 60_000), "is damaged: its attributes are no JSON"),
    "attributes of something else": (attributes_set_to('{"kind": 1}'), "its attributes lack kind, name, status"),
    "no attributes": (attributes_set_to(None), "'sgd' of .* is damaged: it has no attributes"),
    "no times": (without_times, "is damaged: it has no times"),
    "no file": (lambda path: path.unlink(), "there is no trajectory file .*own.nc"),
}


@pytest.mark.parametrize(("damage", "message"), TRAJECTORIES.values(), ids=TRAJECTORIES)
def test_damaged_trajectories_are_one_sentence(trajectories, capfd, damage, message):
    if damage is without_times:
        # Its attributes are whole: only the numbers are gone.
        assert list(load_trajectories(trajectories)) == ["sgd", "again"]
    damage(trajectories)
    with pytest.raises(UserError, match=message) as caught:
        load_trajectories(trajectories)
    assert "\n" not in str(caught.value)
    del caught
    gc.collect()
    # Nothing else is printed, by readers that were collected half open either.
    assert capfd.readouterr() == ("", "")


def test_an_undamaged_group_beside_a_damaged_one_can_be_read(trajectories):
    attributes_set_to("{")(trajectories)
    assert Trajectory.load(trajectories, group="again").name == "sgd"
    with pytest.raises(UserError, match="has no trajectory 'sg'; did you mean 'sgd'"):
        Trajectory.load(trajectories, group="sg")


# ---------------------------------------------------------------------------------------------------------------------
# Run directories of which a report is written


@pytest.fixture
def run(tmp_path):
    return run_directory(tmp_path / "a-run")


def edited(name, change):
    """A JSON file of the run after `change(content)`, or with what that returns in its place."""

    def damage(run):
        content = json.loads((run / name).read_text())
        returned = change(content)
        (run / name).write_text(json.dumps(content if returned is None else returned))

    return damage


def summary(change):
    return edited("summary.json", change)


def moving(change):
    return edited("interactive.json", change)


def without(*keys):
    """Without the entry that the keys lead to."""

    def change(content):
        for key in keys[:-1]:
            content = content[key]
        del content[keys[-1]]

    return change


def with_(value, *keys):
    def change(content):
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


def text_of(name, content):
    return lambda run: (run / name).write_bytes(content)


def figure_called(name):
    """The summary names a figure outside of `figures`, and there is one."""

    def damage(run):
        (run / "secret.svg").write_bytes(FIGURE.svg)
        summary(with_(name, "figures", 0, "name"))(run)

    return damage


BOMB = base64.b64encode(zlib.compress(bytes(50_000_000))).decode()
SUMMARY_IS, MOVING_IS = "summary.json' is damaged", "interactive.json' is damaged"
DIRECTORIES = {
    "no summary": (lambda run: (run / "summary.json").unlink(), "is no run directory: it has no summary.json"),
    "a summary cut off": (text_of("summary.json", b'{"kind": "compa'), "summary.json' cannot be read: Unterminated"),
    "a binary summary": (text_of("summary.json", b"\x80\x04\xff"), "summary.json' cannot be read: 'utf-8' codec"),
    "a summary nested without end": (text_of("summary.json", b"[" * 100_000), "summary.json' cannot be read: maximum"),
    "a summary that is a list": (text_of("summary.json", b"[]"), "holds no comparison"),
    "the summary of something else": (summary(with_("simulation", "kind")), "holds no comparison"),
    "no figures": (summary(without("figures")), f"{SUMMARY_IS}.*: figures: field required"),
    "no claims": (summary(without("claims")), f"{SUMMARY_IS}.*: claims: field required"),
    "no versions": (summary(without("versions")), f"{SUMMARY_IS}.*: versions: field required"),
    "trainings that are null": (summary(with_(None, "trainings")), f"{SUMMARY_IS}.*: trainings: .* dictionary"),
    "claims that are words": (summary(with_(["a"], "claims")), f"{SUMMARY_IS}.*: claims.0: "),
    "a claim without threshold": (summary(without("claims", 0, "threshold")), "claims.0.threshold: field required"),
    "a claim of another kind": (summary(with_("<", "claims", 1, "comparison")), "claims.1.comparison: input should be"),
    "a verdict of its own": (summary(with_("proven", "claims", 0, "verdict")), "claims.0.verdict: input should be"),
    "seeds by another rule": (
        summary(with_("best", "claims", 1, "over_seeds", "rule")),
        f"{SUMMARY_IS}: KeyError: 'best'",
    ),
    "a boundary that is a word": (summary(with_("all", "claims", 0, "boundary")), f"{SUMMARY_IS}: TypeError"),
    "parameters without axes": (summary(without("set_up", "parameters", "E", "axes")), "set_up.parameters.E.axes"),
    "a run without alignment": (
        summary(without("signature_correlation", "exact")),
        f"{SUMMARY_IS}: signature_correlation lacks 'exact'",
    ),
    "braces that do not close": (
        summary(with_(["\\frac{1}{2"], "equations", 0, "lines")),
        f"{SUMMARY_IS}: formula has unbalanced braces",
    ),
    "an equation that is a number": (summary(with_([3], "equations", 0, "lines")), "equations.0.lines.0: .* string"),
    "a figure in the parent": (figure_called("../secret"), "figures.0.name: string should match"),
    "a figure at an absolute path": (figure_called("/etc/passwd"), "figures.0.name: string should match"),
    "a figure that is missing": (lambda run: (run / "figures" / "loss.svg").unlink(), "loss.svg' is missing"),
    "a figure cut off": (
        text_of("figures/loss.svg", b"<svg xmlns='http://www.w3.org/2000/svg'><g>"),
        "loss.svg' is damaged",
    ),
    "a binary figure": (text_of("figures/loss.svg", b"\x89PNG\r\n\x1a\n\0\0"), "loss.svg' is damaged, or no SVG"),
    "an empty figure": (text_of("figures/loss.svg", b""), "loss.svg' is damaged, or no SVG"),
    "a figure that is a page": (
        text_of("figures/loss.svg", b"<html></html>"),
        "loss.svg' is no SVG: its root is 'html'",
    ),
    "a moving figure cut off": (text_of("interactive.json", b'{"runs": ['), "interactive.json' cannot be read"),
    "moving figures that are a list": (text_of("interactive.json", b"[]"), f"{MOVING_IS}.*: the whole: "),
    "moving figures without anything": (text_of("interactive.json", b"{}"), f"{MOVING_IS}.*: runs: field required"),
    "no run to move": (moving(with_([], "runs")), f"{MOVING_IS}.*: runs: list should have at least 1"),
    "no matrices": (moving(without("matrices")), f"{MOVING_IS}.*: matrices: field required"),
    "a number that is none": (moving(with_(math.nan, "matrices", "low")), f"{MOVING_IS}.*: matrices.low: .*finite"),
    "a start beyond the times": (moving(with_(9, "start")), f"{MOVING_IS}: start: there are 9 times"),
    "a curve of no run": (moving(with_(4, "panels", 0, "curves", 0, "run")), "curves.0.run: there is no run 4"),
    "a matrix of no run": (moving(with_(-1, "matrices", "runs", 0, "run")), "runs.0.run: there is no run -1"),
    "a matrix that is no base64": (moving(with_("§", "matrices", "signature")), f"{MOVING_IS}: matrices.signature: "),
    "a matrix that is no deflate": (
        moving(with_("AAAA", "matrices", "signature")),
        f"{MOVING_IS}: matrices.signature: ",
    ),
    "a matrix too short": (moving(with_([], "matrices", "tokens")), "0 bytes are needed, but it holds more"),
    "a matrix of gigabytes": (
        moving(with_(BOMB, "matrices", "runs", 0, "frames")),
        "bytes are needed, but it holds more",
    ),
    "a curve cut off": (moving(with_("AAAAAAAA", "panels", 0, "curves", 0, "t")), "times and values differ in number"),
    "a colour that is style": (moving(with_("red;x:y", "runs", 0, "color")), "runs.0.color: string should match"),
}


def test_the_run_that_is_damaged_below_is_whole(run):
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert 'id="interactive"' in page and "data:image/svg+xml" in page and "<math" in page


@pytest.mark.parametrize(("damage", "message"), DIRECTORIES.values(), ids=DIRECTORIES)
def test_a_report_of_a_damaged_run_is_one_sentence_and_leaves_the_old_page(run, capfd, damage, message):
    (run / "report.html").write_text("the old page")
    damage(run)
    before = contents(run)
    assert main(["report", str(run)]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err
    assert before == contents(run)
    with pytest.raises(UserError, match=message):
        report_of(run)


REPRODUCED = {"kind": "reproduction", "name": "small", "setting": "full", "title": "Small", "has_quick": False}
RESULTS = {
    "a result cut off": (b'{"kind": "repro', "small.json' cannot be read"),
    "a binary result": (b"\x80\x04\xff", "small.json' cannot be read"),
    "a result that is a list": (b"[]", "small.json' is damaged: it holds no JSON object"),
    "a result of something else": (b'{"kind": "comparison"}', "small.json' is no result of `staircase reproduce"),
    "a result without parts": (json.dumps(REPRODUCED | {"claims": []}).encode(), "are damaged, .*KeyError: 'parts'"),
    "a result with claims of words": (
        json.dumps(REPRODUCED | {"claims": ["a"], "parts": {}}).encode(),
        "are damaged, .*TypeError",
    ),
}


@pytest.mark.parametrize(("content", "message"), RESULTS.values(), ids=RESULTS)
def test_damaged_results_make_no_table(tmp_path, capfd, content, message):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "small.json").write_bytes(content)
    (tmp_path / "README.md").write_text("the old table")
    shutil.copy(EXAMPLES / "staircase" / "three-tokens.toml", tmp_path)
    before = contents(tmp_path)
    assert main(["reproduce", "--table", "--directory", str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err
    assert before == contents(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "summary.json' cannot be read"),
        (b"3", "summary.json' is damaged: it holds no JSON object"),
        (b"{}", "are damaged, or of another version .*: run them again with --force"),
        (b'{"claims": []}', "are damaged, or of another version"),
        (b'{"claims": 3}', "are damaged, or of another version"),
    ],
)
def test_kept_runs_that_are_damaged_are_not_taken_for_results(tmp_path, capfd, content, message):
    reproduction = load("three-tokens", EXAMPLES / "staircase", quick=True)
    for name, experiment in reproduction.parts.items():
        (tmp_path / reproduction.label / name).mkdir(parents=True)
        (tmp_path / reproduction.label / name / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
        (tmp_path / reproduction.label / name / "summary.json").write_bytes(content)
    before = contents(tmp_path)
    words = ["three-tokens", "--quick", "--directory", str(EXAMPLES / "staircase"), "-o", str(tmp_path)]
    assert main(["reproduce", *words]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err
    assert before == contents(tmp_path)


# ---------------------------------------------------------------------------------------------------------------------
# Places that cannot be written, full disks, and killed commands

TRAINED = """
[architecture]
name = "feed_forward"
[sizes]
embed = 6
[data]
task = "add"
numbers = 4
[initial]
scale = 0.2
[flow]
kinds = []
until = 4.0
[save]
count = 5
[training]
learning_rate = 0.1
batch = 4
seeds = [0, 1]
"""


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A folder with an experiment that trains in a moment, and draws one small figure."""

    def draw(run):
        figure, (ax,) = figures.canvas(width=1.0, height=1.0)
        ax.plot([0, 1])
        return {"one": (figure, "a line")}

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("compare.run.draw", draw)
    (tmp_path / "file.toml").write_text(TRAINED)
    return tmp_path


COMPARE = ["compare", "file.toml", "-o", "out", "--quiet"]


def same_trajectories(one, other):
    one, other = load_trajectories(one / "trajectories.nc"), load_trajectories(other / "trajectories.nc")
    assert list(one) == list(other)
    for name, run in one.items():
        assert set(run.data.variables) == set(other[name].data.variables)
        for variable in run.data.variables:
            assert run.data[variable].values.tobytes() == other[name].data[variable].values.tobytes()


def no_space(*arguments, **options):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_from(name):
    """A disk on which there is no room for the files that are called like `name`, nor for any after them."""
    full = []

    def is_full(path):
        full.extend([path] if name in Path(path).name else [])
        return bool(full)

    def fill(patch):
        for method in ("write_text", "write_bytes"):
            write = getattr(Path, method)
            patch.setattr(
                Path, method, lambda self, *a, write=write, **o: (no_space if is_full(self) else write)(self, *a, **o)
            )
        fallocate, fdopen = os.posix_fallocate, os.fdopen

        def of_handle(handle):
            return os.readlink(f"/proc/self/fd/{handle}")

        patch.setattr(os, "posix_fallocate", lambda h, *a: (no_space if is_full(of_handle(h)) else fallocate)(h, *a))
        patch.setattr(os, "fdopen", lambda h, *a, **o: (no_space if is_full(of_handle(h)) else fdopen)(h, *a, **o))

    return fill


FILES = {
    "run.json": 0,
    "step-000000020": 10,
    "resume.npz": 0,
    "experiment.toml": 40,
    "trajectories.nc": 40,
    "equations.tex": 40,
    "one.png": 40,
    "one.svg": 40,
    "interactive.json": 40,
    "summary.json": 40,
    "report.html": 40,
}


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are not to be had here")
@pytest.mark.parametrize(("name", "reached"), FILES.items(), ids=FILES)
def test_a_full_disk_leaves_nothing_half_written_and_no_training_is_lost(trained, capfd, name, reached):
    with pytest.MonkeyPatch.context() as patch:
        full_from(name)(patch)
        assert main(COMPARE) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and "No space left on device" in err, err
    left = {path.relative_to(trained).parts[0] for path in trained.rglob("*") if path.is_file()}
    assert left <= {"file.toml", ".out.training"} and not (trained / "out").exists()
    kept = [path for path in trained.rglob("resume.npz")]
    if reached:
        with np.load(kept[0]) as file:
            assert json.loads(str(file["description"]))["step"] == reached
    assert main([word for word in COMPARE if word != "--quiet"]) == 0
    assert (f"went on from step {reached}" in capfd.readouterr().err) == bool(reached)
    assert {path.name for path in trained.iterdir()} == {"file.toml", "out"}
    # The rest of the tests compare with what an unbroken run gives.
    assert main(["compare", "file.toml", "-o", "whole", "--quiet"]) == 0
    same_trajectories(trained / "out", trained / "whole")


def occupied(folder):
    (folder / "out").mkdir()
    (folder / "out" / "mine").write_text("mine")


def linked(folder):
    (folder / "elsewhere").mkdir()
    (folder / "out").symlink_to(folder / "elsewhere")


PLACES = {
    "a file": (lambda folder: (folder / "out").write_text("mine"), "out", "'out' is a file; name a directory"),
    "below a file": (lambda folder: (folder / "a").write_text("mine"), "a/out", "a' is not a directory"),
    "not empty": (occupied, "out", "'out' is not empty; name another, or replace it with --force"),
    "a link": (linked, "out", "'out' is a link; name the directory"),
    "a link to nowhere": (lambda folder: (folder / "out").symlink_to(folder / "gone"), "out", "'out' is a file"),
    "a name too long": (lambda folder: None, "o" * 300, "cannot be read or written: File name too long"),
    "around the working directory": (lambda folder: None, "..", "holds the working directory"),
}


@pytest.mark.parametrize(("prepare", "place", "message"), PLACES.values(), ids=PLACES)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    trained, capfd, monkeypatch, prepare, place, message
):
    prepare(trained)
    before = contents(trained)
    monkeypatch.setattr("compare.run.run_comparison", lambda *_, **__: pytest.fail("work was begun"))
    assert main(["compare", "file.toml", "-o", place]) == 2
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1 and re.search(message, err), err
    assert before == contents(trained)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EROFS, errno.EDQUOT], ids=["forbidden", "read-only", "quota"])
def test_a_folder_in_which_nothing_can_be_made_is_refused_before_any_work(trained, capfd, monkeypatch, error):
    def refuse(*arguments, **options):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    monkeypatch.setattr("compare.run.run_comparison", lambda *_, **__: pytest.fail("work was begun"))
    assert main(COMPARE) == 2
    assert re.search(f"nothing can be made in .* .{os.strerror(error)}.", capfd.readouterr().err)
    assert {path.name for path in trained.iterdir()} == {"file.toml"}


def test_a_report_is_not_written_over_a_directory_and_a_full_disk_leaves_the_old_one(run, capfd):
    (run / "report.html").write_text("the old page")
    before = contents(run)
    assert main(["report", str(run), "-o", str(run / "figures")]) == 2
    assert "is a directory" in capfd.readouterr().err
    with pytest.MonkeyPatch.context() as patch:
        full_from("report.html")(patch)
        assert main(["report", str(run)]) == 2
    assert "report.html' cannot be written: No space left on device" in capfd.readouterr().err
    assert before == contents(run)


KILLED = """
import os, signal, sys
import compare.run, compare.seeds
from theory.cli import main
inner = compare.seeds.OneByOne.advance_to
def advance_to(self, step):
    inner(self, step)
    if step > 20:
        os.kill(os.getpid(), signal.SIGKILL)
compare.seeds.OneByOne.advance_to = advance_to
compare.run.draw = lambda run: {}
main(sys.argv[1:])
"""


def test_a_command_killed_in_mid_training_goes_on_and_ends_bit_for_bit_alike(trained, capfd):
    words = [*COMPARE, "--set", 'flow.kinds=["exact"]']
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    killed = subprocess.run([sys.executable, "-c", KILLED, *words], env=environment, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (trained / "out").exists() and (trained / ".out.training").is_dir()
    assert main([word for word in words if word != "--quiet"]) == 0
    assert "sgd-0.1 went on from step 20" in capfd.readouterr().err
    assert {path.name for path in trained.iterdir()} == {"file.toml", "out"}
    assert main(["compare", "file.toml", "-o", "whole", "--quiet", "--set", 'flow.kinds=["exact"]']) == 0
    same_trajectories(trained / "out", trained / "whole")
    one, other = (json.loads((trained / name / "summary.json").read_text()) for name in ("out", "whole"))
    assert one["signature_correlation"] == other["signature_correlation"]
    for name in ("comparison", "table", "loss", "times"):
        assert one["trainings"]["sgd-0.1"][name] == other["trainings"]["sgd-0.1"][name]
