"""Trajectories constructed from plain arrays, whose errors are known."""

import numpy as np

from simulate.trajectory import Trajectory


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
