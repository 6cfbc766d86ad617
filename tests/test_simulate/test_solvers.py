"""The matrix-free implicit solver against the explicit one."""

import jax.numpy as jnp
import numpy as np
import pytest

from simulate.flow import integrate


class Coupled:
    """Decay with a rate of its own in each entry, and a nonlinear coupling of all of them."""

    name = "coupled"

    def data(self, dataset):
        return jnp.asarray(dataset)

    def __call__(self, t, parameters, data):
        y = parameters["y"]
        return {"y": jnp.mean(y**2) - data * y - y**3}


@pytest.mark.parametrize("size", [1_500, pytest.param(60_000, marks=pytest.mark.slow)])
def test_a_large_stiff_state_needs_no_matrix_and_agrees_with_the_explicit_solver(size):
    """Rates 1 and 1e4 and a nonlinear coupling of all entries; a dense Jacobian of the larger state takes 29 GB."""
    rates = np.where(np.arange(size) % 2, 1e4, 1.0)
    field = Coupled()
    start = {"y": np.random.default_rng(0).normal(1.0, 0.1, size)}
    options = dict(until=0.2, save=[0.2], rtol=1e-8)
    implicit = integrate(field, rates, start, solver="kvaerno5", **options)
    explicit = integrate(field, rates, start, solver="tsit5", **options)
    assert implicit.attributes["linear_solver"] == "gmres"
    assert implicit.attributes["memory_bytes"] < 60 * 8 * size
    np.testing.assert_allclose(implicit.final["y"], explicit.final["y"], rtol=0, atol=1e-6)
    assert np.abs(explicit.final["y"]).max() > 0.3
    assert implicit.attributes["steps_accepted"] < explicit.attributes["steps_accepted"] / 5
