"""Somebody else's run: every format, what is checked, and twenty ways in which it can be broken."""

import json
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from compare.comparison import compare
from compare.external import load_run
from compare.similarity import signature_correlation, signature_similarity
from compare.training import train
from simulate import exact, integrate
from simulate.schedule import time_of_step_at_rates
from theory.errors import UserError

RATE, STEPS = 0.1, (0, 10, 20, 30, 40)


@pytest.fixture(scope="module")
def states(small):
    run = train(*small, learning_rate=RATE, save=[RATE * step for step in STEPS])
    return {step: run.parameters(i) for i, step in enumerate(STEPS)}


def write_npz(folder, step, state):
    np.savez(folder / f"step-{step}.npz", **state)


def write_safetensors(folder, step, state):
    save_file({f"model.{name}": value for name, value in state.items()}, folder / f"step{step}.safetensors")


def write_torch(folder, step, state):
    weights = {f"{name}.weight": torch.tensor(value) for name, value in state.items()}
    torch.save({"state_dict": weights, "epoch": 3}, folder / f"ckpt_{step:05d}.pt")


def write_hugging_face(folder, step, state):
    (folder / f"checkpoint-{step}").mkdir()
    save_file(dict(state), folder / f"checkpoint-{step}" / "model.safetensors")
    (folder / f"checkpoint-{step}" / "config.json").write_text("{}")
    torch.save({"momentum": torch.zeros(3)}, folder / f"checkpoint-{step}" / "optimizer.pt")


def write_parts(folder, step, state):
    inside = folder / f"checkpoint-{step}"
    inside.mkdir()
    parts = {name: f"pytorch_model-{i:05d}-of-00002.bin" for i, name in enumerate(state)}
    for name, part in parts.items():
        torch.save({name: torch.tensor(state[name])}, inside / part)
    (inside / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": parts}))


WRITERS = [write_npz, write_safetensors, write_torch, write_hugging_face, write_parts]


@pytest.fixture
def folder(tmp_path, states):
    (tmp_path / "run").mkdir()
    for step, state in states.items():
        write_npz(tmp_path / "run", step, state)
    return tmp_path / "run"


def load(small, source, **options):
    architecture, dataset, _ = small
    return load_run(source, architecture, dataset, **({"learning_rate": RATE} | options))


@pytest.mark.parametrize("write", WRITERS)
def test_every_format_gives_the_run_back_bit_for_bit(small, states, tmp_path, write):
    for step, state in states.items():
        write(tmp_path, step, state)
    tensors = {"E": "model.E", "U": "model.U"} if write is write_safetensors else None
    run = load(small, tmp_path, tensors=tensors)
    np.testing.assert_allclose(run.times, RATE * np.array(STEPS), rtol=1e-15)
    for i, state in enumerate(states.values()):
        for name, value in state.items():
            assert run.parameters(i)[name].tobytes() == value.tobytes()
    assert run.kind == "training" and run.attributes["source"] == "external"
    assert run.attributes["initial_state"] and run.attributes["notes"] == []
    own = train(*small, learning_rate=RATE, save=run.times)
    np.testing.assert_allclose(run["loss"].values, own["loss"].values, rtol=1e-12)
    np.testing.assert_allclose(run["norm_E"].values, own["norm_E"].values, rtol=1e-12)


def test_our_own_snapshots_are_such_a_run(small, tmp_path):
    own = train(*small, learning_rate=RATE, save=[0.0, 1.0, 2.0], snapshots=tmp_path / "run")
    run = load(small, tmp_path / "run")
    assert run["E"].values.tobytes() == own["E"].values.tobytes()
    assert "resume.npz" in run.attributes["notes"][0]


def test_a_run_from_its_start_is_held_against_the_flow(small, folder):
    architecture, dataset, _ = small
    run = load(small, folder)
    flow = integrate(exact(architecture), dataset, run.parameters(0), until=run.times[-1], save=run.times)
    assert compare(run, flow)["exact"].worst_error("E") < 0.01


def test_an_embedding_alone_is_held_against_signatures(small, states, tmp_path):
    _, dataset, _ = small
    for step in STEPS[1:]:
        np.save(tmp_path / f"emb{step}.npy", states[step]["E"])
    run = load(small, tmp_path)
    assert not run.attributes["initial_state"] and "loss" not in run.series_names
    assert any("step 0 is missing (the first is step 10)" in note for note in run.attributes["notes"])
    assert "held against signatures only" in run.summary()
    found = signature_correlation(run, signature_similarity(dataset), embedding="E")
    assert np.isfinite(found.pearson).all()
    # Without other parameters, step 0 is no initial state either.
    np.save(tmp_path / "emb0.npy", states[0]["E"])
    run = load(small, tmp_path)
    assert not run.attributes["initial_state"] and any("no tensor for U" in note for note in run.attributes["notes"])


def test_tensors_are_known_by_name_or_by_shape_and_may_be_transposed(small, states, tmp_path):
    for step in STEPS:
        state = states[step]
        content = {"wte": state["E"].T, "head": state["U"], "scale": np.ones(3), "one": np.array(2.0)}
        np.savez(tmp_path / f"step-{step}.npz", **content)
    run = load(small, tmp_path, sizes={"embed": 6})
    assert run.attributes["tensors"] == {"E": "wte", "U": "head"}
    np.testing.assert_array_equal(run.final["E"], states[40]["E"])
    assert run.attributes["notes"] == ["'wte' is stored transposed"]


# ---------------------------------------------------------------------------------------------------------------------
# Time


def test_varying_rates_sum_to_the_time(small, folder, tmp_path):
    rates = 0.1 * np.linspace(0.0, 1.0, 40)
    expected = [sum(rates[:step]) for step in STEPS]
    (tmp_path / "rates.csv").write_text(
        "step,learning_rate\n" + "".join(f"{i},{r!r}\n" for i, r in enumerate(rates.tolist()))
    )
    (tmp_path / "rates.py").write_text("def rate(step):\n    return 0.1 * step / 39\n")
    for given in (rates, rates.tolist(), lambda step: rates[step], tmp_path / "rates.csv", f"{tmp_path}/rates.py:rate"):
        run = load(small, folder, learning_rate=given)
        np.testing.assert_allclose(run.times, expected, rtol=1e-13)
        assert run.attributes["learning_rate"] is None
    momentum = load(small, folder, learning_rate=rates, momentum=0.75)
    np.testing.assert_allclose(momentum.times, 4 * np.array(expected), rtol=1e-13)
    assert "0.75" in momentum.attributes["time_axis"]
    np.testing.assert_allclose(time_of_step_at_rates(3, [1.0, 2.0, 4.0, 8.0]), 7.0)


def test_a_schedule_of_rates_is_followed_by_the_flow(small, tmp_path):
    # By hand: gradient descent with a warm-up, so that Σ η and not the number of steps is the time.
    from test_training import numpy_gradient

    architecture, dataset, initial = small
    rates = np.concatenate([np.linspace(0.002, 0.04, 60), np.full(140, 0.04)])
    E, U = initial["E"].copy(), initial["U"].copy()
    for step, rate in enumerate([*rates, 0.0]):
        if step % 50 == 0:
            np.savez(tmp_path / f"step-{step}.npz", E=E, U=U)
        dE, dU = numpy_gradient(E, U, dataset.tokens, dataset.labels, dataset.weights)
        E, U = E - rate * dE, U - rate * dU
    run = load(small, tmp_path, learning_rate=rates)
    flow = integrate(exact(architecture), dataset, initial, until=run.times[-1], save=run.times)
    assert compare(run, flow)["exact"].worst_error("E") < 0.005
    # On the axis of a constant rate the same states would be late by a sixth.
    assert abs(load(small, tmp_path, learning_rate=0.04).times[-1] / run.times[-1] - 1) > 0.15


def test_another_optimiser_has_no_predicted_time_axis(small, folder):
    run = load(small, folder, optimizer="adamw")
    assert run.attributes["predicted_time_axis"] is False
    assert "no predicted time axis: adamw" in run.summary()


# ---------------------------------------------------------------------------------------------------------------------
# What is accepted, and said


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_coarse_dtypes_are_accepted_and_said(small, states, tmp_path, dtype):
    for step, state in states.items():
        weights = {name: torch.tensor(value).to(getattr(torch, dtype)) for name, value in state.items()}
        torch.save(weights, tmp_path / f"step-{step}.pt")
    run = load(small, tmp_path)
    notes = run.attributes["notes"]
    assert run.attributes["dtype"] == dtype and run["E"].dtype == np.float64
    assert any(note.startswith(f"stored in {dtype}, so that") for note in notes) == (dtype != "float32")
    assert np.abs(run.final["E"] - states[40]["E"]).max() < 2.0**-8


def test_gaps_and_repeated_states_are_said(small, folder, states):
    for step in (50, 60, 90, 100):
        write_npz(folder, step, states[40])
    notes = load(small, folder).attributes["notes"]
    assert "snapshots are 10 steps apart, but there is a gap from step 60 to 90" in notes
    assert "steps 40 and 50 hold the same numbers" in notes


def test_a_run_that_blew_up_keeps_what_came_before(small, folder, states):
    for step in (30, 40):
        write_npz(folder, step, {**states[step], "U": np.full_like(states[step]["U"], np.nan)})
    run = load(small, folder)
    assert run.status == "blow-up" and run.times[-1] == pytest.approx(2.0)
    assert "stopped being finite after step 20" in run.attributes["message"]


def test_steps_may_be_given(small, states, tmp_path):
    paths = []
    for name, step in zip("abcde", STEPS, strict=True):
        paths.append(tmp_path / f"{name}.npz")
        np.savez(paths[-1], **states[step])
    np.testing.assert_allclose(load(small, paths, steps=STEPS).times, RATE * np.array(STEPS))
    np.testing.assert_allclose(load(small, tmp_path, steps=STEPS).times, RATE * np.array(STEPS))


# ---------------------------------------------------------------------------------------------------------------------
# Corrupted inputs


class Malicious:
    """Unpickled, it makes the file `EXECUTED` in the working directory."""

    def __reduce__(self):
        return (open, ("EXECUTED", "w"))


def truncated(folder, states):
    path = folder / "step-20.npz"
    path.write_bytes(path.read_bytes()[:300])


def rewritten(**change):
    def corrupt(folder, states):
        write_npz(folder, 20, states[20] | {name: make(states[20]) for name, make in change.items()})

    return corrupt


def replaced(name, content):
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


def bare_pickle(path):
    path.write_bytes(pickle.dumps({"E": Malicious()}))


def safetensors_garbage(path):
    path.write_bytes((1 << 60).to_bytes(8, "little") + b"{not json")


def outside(path):
    path.mkdir()
    index = {"weight_map": {"E": "../../secret.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def unreadable(path):
    path.symlink_to(path.with_name("nowhere.npz"))


def emptied(folder, states):
    for path in folder.iterdir():
        path.unlink()


CORRUPTED = {
    "truncated npz": (truncated, {}, r"step-20.npz' is damaged"),
    "pickle in a torch file": (replaced("step-20.pt", pickled_torch), {}, "more than tensors.*was not executed"),
    "pickle in an npz": (replaced("step-20.npz", pickled_npz), {}, "holds 'E' as Python objects.*never executed"),
    "pickle called npz": (replaced("step-20.npz", bare_pickle), {}, "is damaged or no numpy file"),
    "pickle called pt": (replaced("step-20.pt", bare_pickle), {}, "was not executed"),
    "NaN between finite snapshots": (rewritten(E=with_nan), {}, "not finite, between snapshots that are"),
    "NaN at the start": (
        lambda folder, states: write_npz(folder, 0, states[0] | {"E": with_nan(states[0])}),
        {},
        "step-0.npz' holds 1 numbers in 'E' that are not finite",
    ),
    "duplicate steps": (
        lambda folder, states: write_npz(folder, "020", states[20]),
        {},
        "two snapshots are of step 20: 'step-020.npz' and 'step-20.npz'",
    ),
    "wrong vocabulary size": (
        lambda folder, states: write_npz(folder, 0, states[0] | {"E": np.ones((7, 6))}),
        {},
        "wrong vocabulary size: 'E' in .* has 7 rows, but dataset 'add' has 5 tokens",
    ),
    "wrong width": (
        lambda folder, states: None,
        {"sizes": {"embed": 8}},
        r"shape \(5, 6\), but 'E' has \(token 5, embed 8",
    ),
    "shape change in mid-run": (rewritten(U=lambda s: s["U"][:, :4]), {}, "shape of 'U' changes in mid-run"),
    "a tensor lost in mid-run": (
        lambda folder, states: np.savez(folder / "step-20.npz", E=states[20]["E"]),
        {},
        "step-20.npz' has no tensor 'U' for 'U'; it holds E \\(5, 6\\)",
    ),
    "empty directory": (emptied, {}, "holds no snapshot .*it holds nothing"),
    "unreadable file": (replaced("step-20.npz", unreadable), {}, "there is no snapshot .*step-20.npz"),
    "safetensors garbage": (replaced("step-20.safetensors", safetensors_garbage), {}, "no safetensors file"),
    "safetensors truncated": (replaced("step-20.safetensors", b"\x10\0\0\0\0\0\0\0{}"), {}, "no safetensors file"),
    "torch garbage": (replaced("step-20.pth", b"PK\x03\x04" + b"\0" * 50), {}, "is damaged or no torch file"),
    "zero bytes": (replaced("step-20.npz", b""), {}, r"step-20.npz' is empty \(0 bytes\)"),
    "a directory instead of a file": (
        replaced("step-20.npz", lambda path: path.mkdir()),
        {},
        "is no snapshot: it has neither",
    ),
    "an index that points outside": (replaced("checkpoint-20", outside), {}, "points outside its folder"),
    "complex numbers": (rewritten(E=lambda s: s["E"] + 1j), {}, "'E' in .* has dtype complex128"),
    "whole numbers": (rewritten(U=lambda s: np.ones(s["U"].shape, int)), {}, "'U' in .* has dtype int64"),
    "rates of wrong length": (
        lambda *_: None,
        {"learning_rate": [0.1] * 5},
        "wrong length: one is needed for each of 40",
    ),
    "negative rates": (lambda *_: None, {"learning_rate": [0.1] * 39 + [-1.0]}, "that of step 39 is -1.0"),
    "no time passes": (lambda *_: None, {"learning_rate": [0.1] * 30 + [0.0] * 10}, "between steps 30 and 40"),
    "negative rate": (lambda *_: None, {"learning_rate": -0.1}, "learning_rate must be a positive number"),
    "another tensor asked for": (lambda *_: None, {"tensors": {"E": "wte"}}, "has no tensor 'wte' for 'E'"),
    "another parameter asked for": (lambda *_: None, {"tensors": {"W": "E"}}, "no parameter 'W' to read"),
    "no embedding to be found": (
        lambda folder, states: [np.savez(folder / f"step-{s}.npz", a=np.ones(3)) for s in STEPS],
        {},
        r"no tensor of .* can be told to be the embedding 'E'.*it holds a \(3\)",
    ),
    "steps of wrong length": (lambda *_: None, {"steps": [0, 1]}, "2 steps are given for 5 snapshots"),
    "no step in any name": (
        lambda folder, states: [os.rename(p, folder / f"{chr(97 + i)}.npz") for i, p in enumerate(folder.iterdir())],
        {},
        "hold no step, as .*: give steps",
    ),
    "epochs": (lambda folder, states: np.savez(folder / "epoch3.npz", **states[0]), {}, "counts epochs"),
}


@pytest.mark.parametrize(("corrupt", "options", "message"), CORRUPTED.values(), ids=CORRUPTED)
def test_corrupted_runs_get_one_clear_sentence(small, states, folder, monkeypatch, corrupt, options, message):
    monkeypatch.chdir(folder.parent)
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    corrupt(folder, states)
    before = sorted(folder.iterdir())
    with pytest.raises(UserError, match=message) as caught:
        load(small, folder, **options)
    assert "\n" not in str(caught.value)
    assert not (folder.parent / "EXECUTED").exists()
    assert before == sorted(folder.iterdir())


def test_the_malicious_pickle_would_run(tmp_path, monkeypatch):
    """The test above can fail: loaded without care, the same files make `EXECUTED`."""
    monkeypatch.chdir(tmp_path)
    pickled_torch(tmp_path / "evil.pt")
    torch.load(tmp_path / "evil.pt", weights_only=False)["evil"].close()
    assert (tmp_path / "EXECUTED").exists()


def test_missing_step_zero_of_a_listed_run_and_order(small, folder):
    paths = [folder / f"step-{step}.npz" for step in STEPS]
    with pytest.raises(UserError, match=r"out of order: 'step-10.npz' \(step 10\) follows 'step-20.npz' \(step 20\)"):
        load(small, [paths[0], paths[2], paths[1]])
    run = load(small, paths[1:])
    assert not run.attributes["initial_state"] and run.times[0] == pytest.approx(1.0)
    with pytest.raises(UserError, match="the list is empty"):
        load(small, [])
    with pytest.raises(UserError, match="is a file: a run is a folder"):
        load(small, paths[0])
    with pytest.raises(UserError, match="there is no run"):
        load(small, folder / "nowhere")
    with pytest.raises(UserError, match="there is no snapshot"):
        load(small, [folder / "step-50.npz"])


def test_a_file_that_may_not_be_read(small, folder, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(UserError, match="step-0.npz' cannot be read: Permission denied"):
        load(small, folder)
