"""Events of a flow as data: what is watched, the threshold that is passed, and whether passing it ends the flow.

An event happens at the first time at which its quantity passes its threshold in the stated direction. Passing means
being on the one side at the end of one step and on the other at the end of the next: a quantity that starts beyond its
threshold has to come back first, and one that passes it twice within a single step is not seen. The time is found by
bisection on the solver's own interpolation within the step, so it is as exact as the flow between steps. An event that
does not end the flow changes none of its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from theory.errors import UserError


@dataclass(frozen=True)
class Event:
    """One event. Make it with `loss_falls`, `norm_passes`, `converged` or `crosses`.

    **Arguments:**

    - `quantity`: "loss", "norm" (Frobenius, of `parameter` or of all parameters together), "rate" (the norm of dθ/dt), or
      a function of (parameters, data) that gives a number.
    - `rising`: whether the threshold is passed from below.
    - `factor`, `offset`: the threshold is `factor` × (the quantity at t = 0) + `offset`.
    - `ends`: whether the flow ends there.
    - `text`: the event in words.
    """

    quantity: str | Callable[[Mapping[str, Any], Any], Any]
    rising: bool
    factor: float
    offset: float
    ends: bool
    text: str
    parameter: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What a compiled flow depends on; the threshold and `ends` are numbers that it is handed."""
        return (self.quantity, self.parameter, self.rising)


def loss_falls(
    *, fraction: float | None = None, drop: float | None = None, level: float | None = None, ends: bool = False
) -> Event:
    """Escape: the loss falls to `fraction` of its initial value, by `drop` nats, or to `level`; exactly one is given."""
    chosen, value = _one("a fall of the loss", fraction=fraction, drop=drop, level=level)
    if chosen == "fraction":
        if not 0 < value < 1:
            raise UserError(f"the fraction of the loss must lie between 0 and 1, but is {value!r}")
        return Event("loss", False, value, 0.0, ends, f"the loss falls to {value:g} of its start")
    _positive(f"{chosen} of the loss", value)
    if chosen == "drop":
        return Event("loss", False, 1.0, -value, ends, f"the loss falls by {value:g}")
    return Event("loss", False, 0.0, value, ends, f"the loss falls to {value:g}")


def norm_passes(
    *, level: float | None = None, factor: float | None = None, parameter: str | None = None, ends: bool = False
) -> Event:
    """The Frobenius norm of `parameter` (of all together by default) rises to `level`, or to `factor` times its start."""
    chosen, value = _one("a norm to pass", level=level, factor=factor)
    what = f"the norm of {parameter}" if parameter else "the norm of all parameters"
    if chosen == "level":
        _positive("level of the norm", value)
        return Event("norm", True, 0.0, value, ends, f"{what} passes {value:g}", parameter)
    if not (math.isfinite(value) and value > 1):
        raise UserError(f"the factor of the norm must be greater than 1, but is {value!r}")
    return Event("norm", True, value, 0.0, ends, f"{what} passes {value:g} times its start", parameter)


def converged(*, rate: float, ends: bool = True) -> Event:
    """Convergence: the norm of dθ/dt of all parameters falls to `rate`, after it has been larger.

    A small initialisation starts near a saddle, where dθ/dt is small too: that is no convergence, since nothing has
    fallen yet.
    """
    _positive("rate of convergence", rate)
    return Event("rate", False, 0.0, float(rate), ends, f"the rate of change falls to {rate:g}")


def crosses(
    function: Callable[[Mapping[str, Any], Any], Any], level: float, *, rising: bool = True, ends: bool = False
) -> Event:
    """A function of (parameters, data) rises (or falls) to `level`."""
    if not callable(function) or not (isinstance(level, int | float) and math.isfinite(level)):
        raise UserError("a crossing needs a function of (parameters, data) and a finite level")
    name = getattr(function, "__name__", "the function")
    return Event(function, rising, 0.0, float(level), ends, f"{name} {'rises' if rising else 'falls'} to {level:g}")


def _one(what: str, **given: float | None) -> tuple[str, float]:
    found = [(name, float(value)) for name, value in given.items() if value is not None]
    if len(found) != 1:
        raise UserError(f"{what} needs exactly one of {', '.join(given)}")
    return found[0]


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"the {what} must be a positive number, but is {value!r}")
