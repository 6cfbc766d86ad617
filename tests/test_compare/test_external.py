"""Somebody else's run: every format, and what is accepted and said (what is refused: test_hostile_inputs)."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from snapshot_files import RATE, STEPS, write_hugging_face, write_npz, write_parts, write_safetensors, write_torch

from compare.comparison import compare
from compare.external import load_run
from compare.similarity import signature_correlation, signature_similarity
from compare.training import train
from simulate import exact, integrate
from simulate.schedule import time_of_step_at_rates
from theory.errors import UserError

WRITERS = [write_npz, write_safetensors, write_torch, write_hugging_face, write_parts]


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
    # Spreadsheets put a byte order mark before the first column, and people a space before the second.
    table = (tmp_path / "rates.csv").read_text().replace(",", ", ")
    (tmp_path / "rates.csv").write_text("\ufeff" + table, encoding="utf-8")
    np.testing.assert_allclose(load(small, folder, learning_rate=tmp_path / "rates.csv").times, expected, rtol=1e-13)
    single = load(small, folder, learning_rate=np.float32(0.125))
    assert single.times[-1] == 5.0 and single.attributes["learning_rate"] == 0.125
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


# A dtype and what it rounds to, by the number of bits of its fraction.
ROUNDED = {
    "float64": None,
    "float32": None,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}


@pytest.mark.parametrize("write", ["torch", "safetensors"])
@pytest.mark.parametrize(("dtype", "rounded"), ROUNDED.items())
def test_coarse_dtypes_are_accepted_and_said(small, states, tmp_path, write, dtype, rounded):
    for step, state in states.items():
        weights = {name: torch.tensor(value).to(getattr(torch, dtype)) for name, value in state.items()}
        if write == "torch":
            torch.save(weights, tmp_path / f"step-{step}.pt")
        else:
            save_file(weights, tmp_path / f"step-{step}.safetensors")
    run = load(small, tmp_path)
    assert run.attributes["dtype"] == dtype and run["E"].dtype == np.float64
    said = [note for note in run.attributes["notes"] if note.startswith("stored in")]
    assert said == (
        [] if rounded is None else [f"stored in {dtype}, so that numbers are good to a relative {rounded:.0e}"]
    )
    # Of numbers that are not too small for the dtype to hold.
    E, exact = run.final["E"], states[40]["E"]
    large = np.abs(exact) > 0.05
    assert large.sum() > 20 and np.abs(E / exact - 1)[large].max() <= (rounded or 1e-7)


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
# Order


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
