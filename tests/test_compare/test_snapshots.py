"""A killed training goes on from its last snapshot and ends bit for bit as if it had not been killed."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from compare import snapshots as module
from compare.optimisers import Optimiser
from compare.training import train
from theory.errors import UserError

CASES = {
    "full batch, momentum": {"optimizer": Optimiser("sgd", momentum=0.6, weight_decay=0.01)},
    "replacement, adam": {"optimizer": "adam", "batch": 4, "seeds": (0, 5), "dtype": "float32"},
    "reshuffled": {"batch": 7, "replacement": False, "seeds": (2, 1)},
    "together, momentum": {
        "batch": 7,
        "replacement": False,
        "seeds": (2, 1),
        "together": True,
        "dtype": "float32",
        "optimizer": Optimiser("sgd", momentum=0.5),
    },
    "frozen, adamw": {"optimizer": "adamw", "frozen": ["E"]},
}
OPTIONS = {"learning_rate": 0.1, "save": [0.0, 0.3, 1.0, 2.5]}


class Killed(BaseException):
    pass


def same(one, other):
    assert one.data.equals(other.data)
    for name in one.data.data_vars:
        assert one[name].values.tobytes() == other[name].values.tobytes()


def killed_at(monkeypatch, place, number):
    """Stop at the `number`-th renaming of a file called like `place`."""
    seen = [0]

    def replace(source, target):
        if place in str(target):
            seen[0] += 1
            if seen[0] == number:
                raise Killed
        os.rename(source, target)

    monkeypatch.setattr("theory.files.os.replace", replace)


@pytest.mark.parametrize("place", ["step-", "resume"])
@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_killed_run_ends_bit_for_bit_like_an_unbroken_one(small, tmp_path, options, place, number):
    options = OPTIONS | options
    whole = train(*small, **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, place, number)
        train(*small, snapshots=tmp_path / "run", **options)
    resumed = train(*small, snapshots=tmp_path / "run", **options)
    same(whole, resumed)
    if number > 1:
        momentum = resumed.attributes["optimizer_options"].get("momentum", 0.0)
        steps = np.rint(whole.times * (1 - momentum) / 0.1)
        assert resumed.attributes["resumed_from_step"] == steps[number - 2]
    same(whole, train(*small, snapshots=tmp_path / "run", **options))


@pytest.mark.parametrize("options", CASES.values(), ids=CASES)
def test_a_run_killed_between_save_times_goes_on_from_there(small, tmp_path, options):
    options = OPTIONS | {"save": [0.0, 20.0]} | options
    whole = train(*small, **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        killed_at(patch, "resume", 4)
        train(*small, snapshots=tmp_path / "run", snapshot_seconds=0.0, **options)
    resumed = train(*small, snapshots=tmp_path / "run", **options)
    assert 0 < resumed.attributes["resumed_from_step"] < whole.attributes["steps"]
    same(whole, resumed)


CHILD = """
import sys
from compare.training import train
from theory import architectures
from theory.data import arithmetic
from theory.initial import initialise
architecture, dataset = architectures.load("feed_forward"), arithmetic.add(numbers=5)
initial = initialise(architecture, {**dataset.sizes, "embed": 6}, scale=0.3, seed=3)
train(architecture, dataset, initial, learning_rate=0.1, save=[0.0, 0.3, 1.0, 100000.0], batch=4, seeds=(0, 5),
      snapshots=sys.argv[1], snapshot_seconds=0.0)
"""


def test_sigkill_in_mid_run(small, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path / "run")])
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "run" / "step-000000010.npz").exists():
            assert child.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(0.2)
    finally:
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    with np.load(tmp_path / "run" / "resume.npz", allow_pickle=False) as file:
        reached = json.loads(str(file["description"]))["step"]
    assert 10 <= reached < 1_000_000
    # The rest of a run that would take an hour is cut off: it goes on to where it can be compared.
    path = tmp_path / "run" / "run.json"
    description = json.loads(path.read_text())
    end = reached + 50
    description["save_steps"][-1] = end
    path.write_text(json.dumps(description))
    options = {"learning_rate": 0.1, "save": [0.0, 0.3, 1.0], "steps": end, "batch": 4, "seeds": (0, 5)}
    resumed = train(*small, snapshots=tmp_path / "run", **options)
    assert resumed.attributes["resumed_from_step"] == reached
    same(train(*small, **options), resumed)


def test_a_full_disk_is_one_sentence_and_loses_nothing(small, tmp_path):
    options = OPTIONS | {"snapshots": tmp_path / "run"}
    whole = train(*small, **OPTIONS)

    class Full(module.Snapshots):
        def save(self, step, *arguments):
            # Files cannot grow any more: what a full disk does to a write.
            if step == 10:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            super().save(step, *arguments)

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("compare.training.Snapshots", Full)
            with pytest.raises(UserError, match="was not written: .*; training can be resumed from step 3"):
                train(*small, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    names = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert names == ["resume.npz", "run.json", "step-000000000.npz", "step-000000003.npz"]
    same(whole, train(*small, **options))


def test_an_unwritable_place_is_refused_before_any_work(small, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for place, message in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "full", "something other than snapshots"),
        (tmp_path / "missing" / "run", "cannot be made for snapshots: No such file"),
    ):
        with pytest.raises(UserError, match=message):
            train(*small, snapshots=place, **OPTIONS)
    assert (tmp_path / "file").read_text() == (tmp_path / "full" / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.2}, "learning_rate is 0.1 there and 0.2 here"),
        ({"optimizer": "adam"}, "another training: optimizer is"),
        ({"batch": 5}, "another training: batch is 4 there and 5 here"),
        ({"seeds": (1,)}, r"another training: seeds is \[0\] there and \[1\] here"),
        ({"dtype": "float32"}, "another training: dtype is"),
    ],
)
def test_snapshots_of_another_training_are_left_alone(small, tmp_path, change, message):
    options = OPTIONS | {"batch": 4, "snapshots": tmp_path / "run"}
    train(*small, **options)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with pytest.raises(UserError, match=message):
        train(*small, **(options | change))
    architecture, dataset, initial = small
    with pytest.raises(UserError, match="another training: gradient at the start is"):
        train(architecture, dataset, {**initial, "E": initial["E"] + 1e-15}, **options)
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}


@pytest.mark.parametrize("name", ["resume.npz", "step-000000003.npz", "run.json"])
@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\x80\x04garbage" * 40])
def test_damaged_snapshots_are_named(small, tmp_path, name, damage):
    options = OPTIONS | {"snapshots": tmp_path / "run"}
    train(*small, **options)
    path = tmp_path / "run" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(UserError, match=f"{name}' is damaged: remove the folder"):
        train(*small, **options)


def test_a_stopped_run_stops_again(small, tmp_path):
    options = {"learning_rate": 1.0, "save": np.linspace(0, 400, 101), "half_loss": True}
    whole = train(*small, snapshots=tmp_path / "run", **options)
    again = train(*small, snapshots=tmp_path / "run", **options)
    assert whole.attributes["stopped_by"] == again.attributes["stopped_by"] == "half-loss"
    same(whole, again)


def test_a_trial_is_made_once_only(small, tmp_path, monkeypatch):
    options = OPTIONS | {"batch": 4, "seeds": (0, 1), "together": "faster", "snapshots": tmp_path / "run"}
    monkeypatch.setattr("compare.training.faster", lambda *_: (True, {}))
    first = train(*small, **options)
    monkeypatch.setattr("compare.training.faster", lambda *_: pytest.fail("a second trial"))
    same(first, train(*small, **options))
