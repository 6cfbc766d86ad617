"""Flows from moments of the data: the same flow, at a cost that does not grow with the number of samples."""

import jax
import numpy as np
import pytest

from simulate import fields
from simulate.costs import cheapest, cost, cost_table
from simulate.flow import integrate
from theory.architectures import attention, feed_forward
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.evolution import derive
from theory.initial import initialise


def task(samples, length=3, numbers=5, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, numbers, (samples, length))
    return Dataset(tokens, tokens.sum(1) % numbers, n_tokens=numbers, n_labels=max(8, numbers), name="mod")


def start(architecture, dataset, scale=0.2):
    sizes = dict.fromkeys(architecture.axes, 6) | dataset.sizes
    return initialise(architecture, sizes, scale=scale, seed=1)


@pytest.mark.parametrize("entries", [10**6, 0], ids=["dense", "sparse"])
def test_the_flow_from_moments_is_the_flow_from_samples(entries):
    architecture, dataset = feed_forward("gelu"), task(300)
    initial, equations = start(architecture, dataset), derive(architecture, 4, ())
    runs = [
        integrate(field, dataset, initial, until=6.0, rtol=1e-10)
        for field in (fields.from_samples(equations), fields.from_moments(equations, dense_entries=entries))
    ]
    for name in initial:
        first, second = (run[name].values for run in runs)
        assert np.abs(first[-1] - first[0]).max() > 0.1 * np.abs(first[0]).max()
        np.testing.assert_allclose(second, first, rtol=0, atol=1e-9 * np.abs(first).max())
    np.testing.assert_allclose(runs[1]["loss"].values, runs[0]["loss"].values, rtol=1e-9)


def test_a_step_from_moments_costs_the_same_for_any_number_of_samples():
    architecture = feed_forward("gelu")
    equations = derive(architecture, 4, ())
    few, many = task(1_000), task(100_000)
    initial = start(architecture, few)
    from_moments, from_samples = fields.from_moments(equations), fields.from_samples(equations)
    assert cost(from_moments, few, initial).flops == cost(from_moments, many, initial).flops > 0
    assert cost(from_samples, many, initial).flops > 90 * cost(from_samples, few, initial).flops


def test_the_cheapest_evaluation_is_chosen_and_its_cost_reported():
    architecture = attention()
    equations = derive(architecture, 4, ())
    ways = [fields.from_samples(equations), fields.from_moments(equations)]
    initial = start(architecture, task(10))
    chosen, costs = cheapest(ways, task(5_000), initial)
    assert chosen is ways[1]
    assert costs["moments"].estimate < costs["samples"].estimate
    # Five thousand queries of six numbers are among what evaluation from samples makes.
    assert costs["samples"].largest_intermediate >= 5_000 * 6 * 8
    assert costs["samples"].memory > costs["samples"].largest_intermediate
    lines = cost_table({"expanded": costs}, {"expanded": "moments"}).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["expanded", "samples"], ["expanded", "moments"]]
    assert [line.endswith("chosen") for line in lines] == [False, False, True]
    few, _ = cheapest(ways, task(3, numbers=60), start(architecture, task(3, numbers=60)))
    assert few is ways[0]


def test_the_loss_is_measured_on_the_samples_or_on_some_drawn_by_weight():
    architecture, dataset = feed_forward("gelu"), task(3_000, length=5)
    equations, initial = derive(architecture, 4, ()), start(architecture, dataset)
    exact, moments = fields.exact(architecture), fields.from_moments(equations)
    drawn = fields.from_moments(equations, loss_samples=500)
    with jax.enable_x64(True):
        wanted, whole, some = (float(each.loss(initial, each.data(dataset))) for each in (exact, moments, drawn))
        assert drawn.data(dataset).samples.tokens.shape == (500, 5)
    assert whole == pytest.approx(wanted, rel=1e-12)
    assert some == pytest.approx(wanted, rel=0.05)


def test_equations_that_keep_a_quantity_of_the_sample_have_no_flow_from_moments():
    with pytest.raises(UserError, match="differs from sample to sample"):
        fields.from_moments(derive(feed_forward("tanh"), 4))
