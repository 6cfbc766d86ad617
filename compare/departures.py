"""When a training departs from flows in which embeddings see signatures of few context tokens: the staircase in time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.comparison import Agreement, jsonable
from theory.errors import UserError, nearest

_ORDER = re.compile(r"order-(\d+)")


@dataclass(frozen=True)
class Departures:
    """Departure times by signature order.

    `times[m]` ([seed]): the first time at which the relative error of `parameter` against the flow "order-m" exceeds
    `threshold`, linear between shared times; nan where it does not up to `until[m]`, the last shared time. t = learning
    rate × step.
    """

    parameter: str
    threshold: float
    times: Mapping[int, np.ndarray]
    until: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "parameter": self.parameter,
            "threshold": self.threshold,
            "times": jsonable(self.times),
            "until": jsonable(self.until),
        }


def departures(agreements: Iterable[Agreement], threshold: float, *, parameter: str) -> Departures:
    """Departure times from every flow named "order-m" (see `simulate.orders`), by m; other flows are passed over.

    The flow of order m holds the signatures of at most m context tokens, the training holds all: their distance becomes
    visible when orders above m matter. Signature orders that enter one after the other have increasing departure times.

    **Arguments:** `agreements`: of one training with its flows; `threshold`: on ‖θ̂ − θ‖ / ‖θ‖, declared before the run
    (`flow.departure` of an experiment file); `parameter`: the embedding.

    **Raises:** `UserError` when no flow is named "order-m", for an unknown parameter or a threshold that is not positive.
    Source: the orders are those of arXiv 2608.30315, Theorem 1; the departure time is ours.
    """
    if not threshold > 0:
        raise UserError(f"the threshold of a departure must be positive, found {threshold!r}")
    times, until = {}, {}
    for agreement in agreements:
        matched = _ORDER.fullmatch(agreement.name)
        if matched is None:
            continue
        if parameter not in agreement.relative_error:
            raise UserError(
                f"no error was computed for parameter {parameter!r}; {nearest(parameter, agreement.relative_error)}"
            )
        order = int(matched[1])
        times[order] = first_passage(agreement.times, agreement.relative_error[parameter], threshold)
        until[order] = float(agreement.times[-1])
    if not times:
        raise UserError('departure times need flows up to a signature order, named "order-0", …: set flow.orders')
    return Departures(parameter, threshold, dict(sorted(times.items())), dict(sorted(until.items())))


def first_passage(times: np.ndarray, series: np.ndarray, threshold: float) -> np.ndarray:
    """The first time at which `series` ([seed,] time) exceeds `threshold`, linear between save times; nan where never.

    A value that is not a number, or infinite, counts as beyond the threshold at its own time.
    """
    if series.ndim > 1:
        return np.array([first_passage(times, member, threshold) for member in series])
    beyond = np.flatnonzero(~(series <= threshold))
    if not beyond.size:
        return np.array(math.nan)
    after = int(beyond[0])
    if after == 0 or not math.isfinite(series[after]):
        return np.array(float(times[after]))
    before = after - 1
    fraction = (threshold - series[before]) / (series[after] - series[before])
    return np.array(float(times[before] + fraction * (times[after] - times[before])))
