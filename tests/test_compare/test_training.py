import math

import numpy as np
import pytest
import torch

from compare.batches import batches
from compare.module import ArchitectureModule
from compare.training import train
from simulate.schedule import Schedule
from theory import architectures, interpret
from theory.data import arithmetic
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.initial import initialise


def numpy_gradient(E, U, tokens, labels, weights):
    """Gradient of Σ_s P(s) (−log softmax(U gelu(Σ E_x))_y), written by hand."""
    h = E[tokens].sum(axis=1)
    cdf = 0.5 * (1 + np.vectorize(math.erf)(h / math.sqrt(2)))
    g = h * cdf
    slope = cdf + h * np.exp(-(h**2) / 2) / math.sqrt(2 * math.pi)
    f = g @ U.T
    p = np.exp(f - f.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    p *= weights[:, None]
    dE = np.zeros_like(E)
    np.add.at(dE, tokens, ((p @ U) * slope)[:, None, :])
    return dE, p.T @ g


def weighted(dataset):
    weights = np.random.default_rng(0).uniform(0.1, 1.0, dataset.n_samples)
    weights[3] = 0.0
    return Dataset(
        tokens=dataset.tokens,
        labels=dataset.labels,
        weights=weights / weights.sum(),
        n_tokens=dataset.n_tokens,
        n_labels=dataset.n_labels,
    )


def test_two_steps_equal_gradient_descent_written_by_hand(small):
    architecture, dataset, initial = small
    dataset = weighted(dataset)
    run = train(architecture, dataset, initial, learning_rate=0.3, save=[0.0, 0.3, 0.6])
    E, U = initial["E"].copy(), initial["U"].copy()
    for step in (1, 2):
        dE, dU = numpy_gradient(E, U, dataset.tokens, dataset.labels, dataset.weights)
        E, U = E - 0.3 * dE, U - 0.3 * dU
        saved = run.parameters(step)
        np.testing.assert_allclose(saved["E"], E, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(saved["U"], U, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(run.times, [0.0, 0.3, 0.6], rtol=1e-15)
    np.testing.assert_allclose(
        run["loss"].values[2],
        interpret.loss(architecture, {"E": E, "U": U}, dataset.tokens, dataset.labels, dataset.weights),
        rtol=1e-13,
    )


def test_labels_at_every_position_average_over_positions():
    architecture = architectures.load("transformer")
    rng = np.random.default_rng(1)
    dataset = Dataset(tokens=rng.integers(0, 4, (6, 3)), labels=rng.integers(0, 4, (6, 3)), n_tokens=4, n_labels=4)
    sizes = {axis: 3 for axis in architecture.axes} | dataset.sizes
    initial = initialise(architecture, sizes, scale=0.2)
    run = train(architecture, dataset, initial, learning_rate=0.1, save=[0.0, 0.1])
    logits = interpret.evaluate(architecture, initial, dataset.tokens)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    by_hand = -np.take_along_axis(log_p, dataset.labels[..., None], -1).mean()
    assert run["loss"].values[0] == pytest.approx(by_hand, rel=1e-13)


@pytest.mark.parametrize("batch", ["full", 4])
def test_step_zero_is_the_initial_arrays_bit_for_bit(small, batch):
    architecture, dataset, initial = small
    run = train(architecture, dataset, initial, learning_rate=0.1, batch=batch, save=[0.5])
    assert run.times[0] == 0.0
    for name, array in run.parameters(0).items():
        assert array.dtype == np.float64
        assert array.tobytes() == initial[name].tobytes()


def test_training_leaves_the_given_arrays_alone(small):
    architecture, dataset, initial = small
    before = {name: array.copy() for name, array in initial.items()}
    train(architecture, dataset, initial, learning_rate=0.5, save=[1.0])
    for name, array in before.items():
        np.testing.assert_array_equal(initial[name], array)


def test_a_tenth_of_the_learning_rate_gives_the_same_curve_in_time(small):
    architecture, dataset, initial = small
    schedule = Schedule.linear(4.0, count=6)
    coarse, fine, finest = (
        train(architecture, dataset, initial, learning_rate=rate, save=schedule)["E"].values
        for rate in (0.4, 0.04, 0.01)
    )
    moved = np.linalg.norm(finest[-1] - finest[0])
    error_coarse = np.linalg.norm(coarse[-1] - finest[-1]) / moved
    error_fine = np.linalg.norm(fine[-1] - finest[-1]) / moved
    assert error_coarse < 0.05
    # O(η): (0.4 − 0.01) / (0.04 − 0.01) = 13.
    assert error_coarse / error_fine == pytest.approx(13, rel=0.1)


def test_batches_with_replacement_are_unbiased():
    probabilities = np.array([0.5, 0.0, 0.3, 0.2])
    stream = batches(probabilities, 8, seed=1)
    counted = np.zeros(4)
    rounds = 4000
    for _ in range(rounds):
        rows, weights = next(stream)
        np.add.at(counted, rows, weights)
        assert weights.sum() == pytest.approx(1.0)
    mean = counted / rounds
    deviation = np.sqrt(probabilities * (1 - probabilities) / (8 * rounds))
    assert mean[1] == 0.0
    assert np.all(np.abs(mean - probabilities) <= 4 * deviation)


def test_batches_without_replacement_cover_every_epoch_once():
    probabilities = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    stream = batches(probabilities, 2, replacement=False, seed=5)
    for _ in range(3):
        epoch = [next(stream) for _ in range(3)]
        rows = np.concatenate([rows for rows, _ in epoch])
        assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]
        # Over an epoch each row counts in proportion to its probability.
        for rows, weights in epoch:
            np.testing.assert_allclose(weights * len(rows), 5 * probabilities[rows])


def test_a_batch_gradient_is_the_mean_over_its_rows(small):
    architecture, dataset, initial = small
    run = train(architecture, dataset, initial, learning_rate=0.2, batch=3, seeds=(7,), save=[0.2])
    rows, _ = next(batches(dataset.weights, 3, seed=7))
    dE, _ = numpy_gradient(initial["E"], initial["U"], dataset.tokens[rows], dataset.labels[rows], np.full(3, 1 / 3))
    np.testing.assert_allclose(run.parameters(1)["E"], initial["E"] - 0.2 * dE, rtol=1e-12)


def test_seeds_change_batches_only_and_lead_every_array(small):
    architecture, dataset, initial = small
    options = {"learning_rate": 0.2, "batch": 4, "save": [0.0, 1.0]}
    many = train(architecture, dataset, initial, seeds=(0, 1), **options)
    assert many["E"].dims == ("seed", "time", "token", "embed")
    assert many["loss"].dims == ("seed", "time")
    np.testing.assert_array_equal(many["E"].values[0, 0], many["E"].values[1, 0])
    assert np.any(many["E"].values[0, 1] != many["E"].values[1, 1])
    alone = train(architecture, dataset, initial, seeds=(1,), **options)
    np.testing.assert_array_equal(alone["E"].values, many["E"].sel(seed=1).values)


def test_blow_up_keeps_everything_before_it(small):
    architecture, dataset, initial = small
    large = {name: 30 * array for name, array in initial.items()}
    run = train(architecture, dataset, large, learning_rate=1e160, save=Schedule.linear(1e161))
    assert run.status == "blow-up"
    assert run.attributes["blow_up_seeds"] == [0]
    assert "blow_up_seeds" in run.attributes and run.attributes["last_good_time"] == run.times[-1]
    assert np.all(np.isfinite(run["E"].values)) and np.all(np.isfinite(run["loss"].values))
    np.testing.assert_array_equal(run.parameters(0)["E"], large["E"])


def test_half_loss_stops_at_the_first_save_time_below_half(small):
    architecture, dataset, initial = small
    schedule = Schedule.linear(400.0, count=101)
    run = train(architecture, dataset, initial, learning_rate=1.0, save=schedule, half_loss=True)
    loss = run["loss"].values
    assert run.attributes["stopped_by"] == "half-loss"
    assert loss[-1] <= 0.5 * loss[0] < loss[-2]
    assert run.times[-1] < 400


@pytest.mark.parametrize("end", [{"steps": 7}, {"until": 0.7}])
def test_the_end_is_always_saved(small, end):
    architecture, dataset, initial = small
    run = train(architecture, dataset, initial, learning_rate=0.1, save=[0.0, 0.5, 3.0], **end)
    np.testing.assert_allclose(run.times, [0.0, 0.5, 0.7])
    assert run.attributes["steps"] == 7


def test_observables_see_arrays_by_name(small):
    architecture, dataset, initial = small
    run = train(
        architecture,
        dataset,
        initial,
        learning_rate=0.1,
        save=[0.0, 0.2],
        observables={"size_E": lambda p, data: np.linalg.norm(p["E"]) * data.n_samples},
    )
    expected = np.linalg.norm(run["E"].values, axis=(1, 2)) * dataset.n_samples
    np.testing.assert_allclose(run["size_E"].values, expected)
    np.testing.assert_allclose(run["norm_E"].values * dataset.n_samples, expected)
    with pytest.raises(UserError, match="that name is taken"):
        train(
            architecture,
            dataset,
            initial,
            learning_rate=0.1,
            save=[0.1],
            observables={"norm_U": lambda p, data: 0.0},
        )


def test_global_settings_of_torch_are_left_as_they_were(small):
    architecture, dataset, initial = small
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    train(architecture, dataset, initial, learning_rate=0.2, save=[0.2], threads=3)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


def test_two_runs_coincide_bit_for_bit(small):
    architecture, dataset, initial = small
    options = {"learning_rate": 0.2, "batch": 4, "save": [0.0, 2.0], "dtype": "float32"}
    first = train(architecture, dataset, initial, **options)
    second = train(architecture, dataset, initial, **options)
    assert first["E"].values.tobytes() == second["E"].values.tobytes()
    exact = train(architecture, dataset, initial, **(options | {"dtype": "float64"}))
    distance = np.abs(first["E"].values - exact["E"].values).max()
    assert 0 < distance < 1e-5


def test_module_is_the_architecture(small):
    architecture, dataset, initial = small
    module = ArchitectureModule(architecture, initial)
    assert list(module.state_dict()) == ["E", "U"]
    with torch.no_grad():
        logits = module(torch.tensor(dataset.tokens)).numpy()
    np.testing.assert_allclose(logits, interpret.evaluate(architecture, initial, dataset.tokens), rtol=1e-13)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": -0.1}, "learning_rate must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
        ({"batch": 0}, "batch must be 'full' or a whole number"),
        ({"batch": 26, "replacement": False}, "a batch of 26 cannot be drawn"),
        ({"seeds": (0, 1)}, "full-batch training draws none"),
        ({"seeds": (-1,)}, "a seed is a whole number"),
        ({"seeds": (1, 1), "batch": 4}, "seeds must differ"),
        ({"seeds": ()}, "at least one seed"),
        ({"steps": 3, "until": 1.0}, "not both"),
        ({"steps": 0}, "steps must be a whole number"),
        ({"until": -1.0}, "until must be a positive time"),
        ({"threads": 0}, "threads must be a whole number"),
        ({"dtype": "float46"}, "did you mean 'float64'"),
        ({"save": [1.0, 0.5]}, "strictly increasing"),
    ],
)
def test_mistakes_get_one_clear_sentence(small, change, message):
    architecture, dataset, initial = small
    options = {"learning_rate": 0.1, "save": [0.0, 1.0]} | change
    with pytest.raises(UserError, match=message):
        train(architecture, dataset, initial, **options)


def test_data_that_do_not_fit_are_named(small):
    architecture, _, initial = small
    with pytest.raises(UserError, match="'E' has 5 places on axis 'token'.*has 6"):
        train(architecture, arithmetic.add(numbers=6), initial, learning_rate=0.1, save=[1.0])
    with pytest.raises(UserError, match="did you mean 'E'"):
        ArchitectureModule(architecture, {**initial, "EE": initial["E"]})
    with pytest.raises(UserError, match="no initial array is given for parameter 'U'"):
        ArchitectureModule(architecture, {"E": initial["E"]})
    module = ArchitectureModule(architecture, initial)
    with pytest.raises(UserError, match="shape"):
        module.load({**initial, "E": initial["E"][:2]})
