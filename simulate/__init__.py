"""Integrate evolution equations and the exact gradient flow; labelled trajectories.

Names are imported when first used, so that `import simulate` loads neither jax nor xarray.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulate.experiment import Experiment as Experiment
    from simulate.experiment import load_experiment as load_experiment
    from simulate.fields import exact as exact
    from simulate.fields import from_samples as from_samples
    from simulate.flow import integrate as integrate
    from simulate.flow import time_of_loss as time_of_loss
    from simulate.schedule import Schedule as Schedule
    from simulate.schedule import step_of_time as step_of_time
    from simulate.schedule import time_of_step as time_of_step
    from simulate.trajectory import Trajectory as Trajectory

_HOME = {
    "Experiment": "simulate.experiment",
    "Schedule": "simulate.schedule",
    "Trajectory": "simulate.trajectory",
    "exact": "simulate.fields",
    "from_samples": "simulate.fields",
    "integrate": "simulate.flow",
    "load_experiment": "simulate.experiment",
    "step_of_time": "simulate.schedule",
    "time_of_loss": "simulate.flow",
    "time_of_step": "simulate.schedule",
}

__all__ = [
    "Experiment",
    "Schedule",
    "Trajectory",
    "exact",
    "from_samples",
    "integrate",
    "load_experiment",
    "step_of_time",
    "time_of_loss",
    "time_of_step",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
