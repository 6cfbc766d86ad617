"""Small set-ups shared by the tests of compare."""

import numpy as np
import pytest

from simulate.trajectory import Trajectory
from theory import architectures
from theory.data import arithmetic
from theory.initial import initialise


@pytest.fixture(scope="session")
def small():
    """Feed-forward GELU on addition, N = 5, width 6."""
    architecture = architectures.load("feed_forward")
    dataset = arithmetic.add(numbers=5)
    initial = initialise(architecture, {**dataset.sizes, "embed": 6}, scale=0.3, seed=3)
    return architecture, dataset, initial


def build(
    times,
    parameters,
    loss,
    *,
    axes=None,
    name="sgd",
    kind="training",
    status="completed",
    learning_rate=0.1,
    seeds=None,
    parameter_times=None,
):
    """A trajectory from plain arrays."""
    times = np.asarray(times, dtype=float)
    return Trajectory.from_arrays(
        times,
        parameters,
        {"loss": np.asarray(loss, dtype=float)},
        axes=axes or {"E": ("token", "embed")},
        attributes={
            "kind": kind,
            "name": name,
            "status": status,
            "last_good_time": float(times[-1]),
            "learning_rate": learning_rate,
        },
        seeds=seeds,
        parameter_times=parameter_times,
    )
