"""Every optimiser against its formula written by hand, and what its time axis is."""

import numpy as np
import pytest
from test_training import numpy_gradient

from compare.optimisers import Optimiser
from compare.training import train
from simulate import exact, integrate
from theory.errors import UserError


def gradients(parameters, dataset):
    dE, dU = numpy_gradient(parameters["E"], parameters["U"], dataset.tokens, dataset.labels, dataset.weights)
    return {"E": dE, "U": dU}


def descend(optimiser, rate, initial, dataset, steps):
    """The update rules of Polyak (1964), Kingma and Ba (2015) and Loshchilov and Hutter (2019)."""
    values = {name: array.copy() for name, array in initial.items()}
    first = {name: np.zeros_like(array) for name, array in initial.items()}
    second = {name: np.zeros_like(array) for name, array in initial.items()}
    for step in range(1, steps + 1):
        for name, slope in gradients(values, dataset).items():
            decay = optimiser.weight_decay * values[name]
            if optimiser.name == "sgd":
                first[name] = optimiser.momentum * first[name] + slope + decay
                values[name] = values[name] - rate * first[name]
                continue
            if optimiser.name == "adam":
                slope = slope + decay
            else:
                values[name] = values[name] - rate * decay
            b1, b2 = optimiser.betas
            first[name] = b1 * first[name] + (1 - b1) * slope
            second[name] = b2 * second[name] + (1 - b2) * slope**2
            mean, square = first[name] / (1 - b1**step), second[name] / (1 - b2**step)
            values[name] = values[name] - rate * mean / (np.sqrt(square) + optimiser.epsilon)
    return values


@pytest.mark.parametrize(
    "optimiser",
    [
        Optimiser("sgd", weight_decay=0.3),
        Optimiser("sgd", momentum=0.8),
        Optimiser("sgd", momentum=0.5, weight_decay=0.2),
        Optimiser("adam"),
        Optimiser("adam", weight_decay=0.4, betas=(0.7, 0.9)),
        Optimiser("adamw", weight_decay=0.4, epsilon=1e-3),
    ],
    ids=str,
)
def test_every_optimiser_is_its_formula(small, optimiser):
    architecture, dataset, initial = small
    run = train(architecture, dataset, initial, learning_rate=0.05, save=[0.0], steps=5, optimizer=optimiser)
    for name, expected in descend(optimiser, 0.05, initial, dataset, 5).items():
        np.testing.assert_allclose(run.final[name], expected, rtol=1e-10, atol=1e-13)
    assert run.attributes["optimizer"] == optimiser.name
    assert run.attributes["optimizer_options"]["weight_decay"] == optimiser.weight_decay


def test_momentum_advances_time_by_more_and_follows_the_flow(small):
    architecture, dataset, initial = small
    flow = integrate(exact(architecture), dataset, initial, until=8.0, save=[0.0, 8.0])
    errors = []
    for rate in (0.02, 0.01):
        run = train(
            architecture,
            dataset,
            initial,
            learning_rate=rate,
            save=[0.0, 8.0],
            optimizer=Optimiser("sgd", momentum=0.6),
        )
        assert run.attributes["steps"] == round(8.0 * 0.4 / rate)
        assert run.times[-1] == pytest.approx(8.0, rel=1e-12)
        errors.append(np.linalg.norm(run.final["E"] - flow.final["E"]) / np.linalg.norm(flow.final["E"]))
    assert errors[0] < 0.02
    assert errors[0] / errors[1] == pytest.approx(2.0, abs=0.25)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_states_that_no_time_axis_is_predicted(small, name):
    architecture, dataset, initial = small
    run = train(architecture, dataset, initial, learning_rate=0.01, save=[0.0, 0.1], optimizer=name)
    assert run.name == name and run.attributes["predicted_time_axis"] is False
    assert "no predicted time axis" in run.summary()
    sgd = train(architecture, dataset, initial, learning_rate=0.01, save=[0.0, 0.1])
    assert sgd.attributes["predicted_time_axis"] is True and "time axis" not in sgd.summary()


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_frozen_parameters_stay_bit_for_bit(small, optimizer):
    architecture, dataset, initial = small
    options = {"learning_rate": 0.1, "save": [0.0, 1.0], "frozen": ["E"]}
    run = train(architecture, dataset, initial, optimizer=optimizer, **options)
    assert run.final["E"].tobytes() == initial["E"].tobytes()
    assert np.any(run.final["U"] != initial["U"])
    assert run.attributes["frozen"] == ["E"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"frozen": ["F"]}, "no parameter 'F' of feed_forward to keep frozen"),
        ({"frozen": ["E", "U"]}, "nothing to train"),
        ({"device": "cuda"}, "device 'cuda' was asked for"),
        ({"device": "gpu"}, "unknown device 'gpu'"),
        ({"together": "fast"}, "together must be"),
    ],
)
def test_mistakes_get_one_clear_sentence(small, monkeypatch, change, message):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    architecture, dataset, initial = small
    with pytest.raises(UserError, match=message):
        train(architecture, dataset, initial, learning_rate=0.1, save=[0.0, 1.0], **change)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"name": "adam", "momentum": 0.5}, "momentum belongs to sgd"),
        ({"weight_decay": -1.0}, "weight_decay must be"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"name": "adam", "betas": (0.9, 1.0)}, "betas must be"),
        ({"name": "adam", "epsilon": 0.0}, "epsilon must be"),
    ],
)
def test_optimiser_options_are_checked(options, message):
    with pytest.raises(UserError, match=message):
        Optimiser(**options)
