"""Seeds trained together against the same seeds one by one."""

import numpy as np
import pytest

from compare import seeds as ways
from compare.optimisers import Optimiser
from compare.training import train
from theory import architectures
from theory.data import arithmetic
from theory.initial import initialise

SEEDS = (3, 0, 11)


@pytest.fixture(scope="module")
def attention():
    architecture = architectures.load("attention")
    dataset = arithmetic.add(numbers=4)
    sizes = {axis: 4 for axis in architecture.axes} | dataset.sizes
    return architecture, dataset, initialise(architecture, sizes, scale=0.4, seed=1)


def both(set_up, **options):
    architecture, dataset, initial = set_up
    options = {"learning_rate": 0.1, "save": [0.0, 0.5, 3.0], "batch": 4, "seeds": SEEDS} | options
    return tuple(train(architecture, dataset, initial, together=together, **options) for together in (False, True))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-4)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replacement": False, "batch": 10},
        {"optimizer": Optimiser("sgd", momentum=0.9, weight_decay=0.01)},
        {"optimizer": Optimiser("adamw", weight_decay=0.01), "learning_rate": 0.01},
        {"frozen": ["E"]},
    ],
    ids=["sgd", "reshuffled", "momentum", "adamw", "frozen"],
)
def test_together_is_one_by_one_to_rounding(small, options, dtype, tolerance):
    alone, together = both(small, dtype=dtype, **options)
    assert together.attributes["seeds_together"] and not alone.attributes["seeds_together"]
    for name in ("E", "U"):
        a, b = alone[name].values, together[name].values
        np.testing.assert_array_equal(a[:, 0], b[:, 0])
        assert np.abs(a - b).max() <= tolerance * np.abs(a).max()
    assert np.any(together["U"].values[0, -1] != together["U"].values[1, -1])


def test_attention_together_is_one_by_one_to_rounding(attention):
    alone, together = both(attention)
    for name in alone.parameter_names:
        a, b = alone[name].values, together[name].values
        assert np.abs(a - b).max() <= 1e-12 * np.abs(a).max()


def test_two_runs_together_coincide_bit_for_bit(small):
    architecture, dataset, initial = small
    options = {"learning_rate": 0.1, "save": [3.0], "batch": 4, "seeds": SEEDS, "dtype": "float32", "together": True}
    first, second = (train(architecture, dataset, initial, **options) for _ in range(2))
    assert first["E"].values.tobytes() == second["E"].values.tobytes()


@pytest.mark.parametrize("answer", [True, False])
def test_the_faster_way_is_taken_and_said(small, monkeypatch, answer):
    architecture, dataset, initial = small
    monkeypatch.setattr("compare.training.faster", lambda *_: (answer, {"one_by_one": 1.0, "together": 2.0}))
    options = {"learning_rate": 0.1, "save": [1.0], "batch": 4, "seeds": SEEDS}
    run = train(architecture, dataset, initial, together="faster", **options)
    assert run.attributes["seeds_together"] is answer
    assert run.attributes["seconds_per_step_tried"] == {"one_by_one": 1.0, "together": 2.0}
    known = train(architecture, dataset, initial, together=answer, **options)
    assert run["E"].values.tobytes() == known["E"].values.tobytes()


def test_the_trial_measures_both_ways(small):
    architecture, dataset, initial = small
    problem = ways.Problem(architecture, dataset, initial, 0.1, Optimiser(), 4, True, "float32")
    answer, seconds = ways.faster(problem, range(16), steps=3)
    assert set(seconds) == {"one_by_one", "together"} and all(value > 0 for value in seconds.values())
    assert answer == (seconds["together"] < seconds["one_by_one"])
    alone = train(architecture, dataset, initial, learning_rate=0.1, save=[1.0], together="faster")
    assert "seconds_per_step_tried" not in alone.attributes
