"""The staircase in time: which signature orders the embeddings follow, and when training leaves each flow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from compare.alignment import OrderAlignment
from compare.departures import Departures
from compare.figures.style import PREDICTED, TIME_LABEL, TRAINED, Styles, finish, middle, shade_seeds, span
from simulate.trajectory import Trajectory

_MARKERS = ("", "o", "s", "^")


def staircase(
    axes: Sequence[Axes],
    trained: Trajectory,
    alignments: Sequence[OrderAlignment],
    departures: Departures | None = None,
    *,
    lines: Styles | None = None,
) -> Sequence[Axes]:
    """Loss above, alignment of the embeddings with the signatures of each order below; vertical lines mark when the
    training departs from the flow of each order, in the colour of that order.

    **Arguments:** `axes`: two, with one time axis; `alignments`: see `compare.alignment.order_alignments`; `departures`:
    see `compare.departures.departures`; the mean over seeds is marked; `lines`: of flows, see `styles`: an order has the
    colour of the flow "order-m" there, and one that no flow stops at a colour of its own.
    """
    upper, lower = axes
    orders = {alignment.order for alignment in alignments} | set(departures.times if departures else ())
    colours = _colours(orders, lines or {})
    if "loss" in trained.series_names:
        own = trained["loss"].to_numpy()
        upper.plot(trained.times, middle(own), color=TRAINED, linewidth=5, alpha=0.6, label=f"{trained.name} (trained)")
        shade_seeds(upper, trained.times, own)
    for alignment in alignments:
        color = colours[alignment.order]
        values = middle(alignment.values)
        finite = np.isfinite(values)
        label = f"order {alignment.order}: {alignment.measure}"
        if finite.any():
            peak = int(np.nanargmax(values))
            label += f"; peak {values[peak]:.3f} at t = {alignment.times[peak]:.4g}"
        marker = _MARKERS[min(alignment.order, len(_MARKERS) - 1)]
        lower.plot(alignment.times, values, color=color, linewidth=1.8, marker=marker, markersize=4, label=label)
        shade_seeds(
            lower, alignment.times, alignment.values, color=color, of_mean=False, label=f"order {alignment.order}"
        )
    if departures is not None:
        _mark_departures(axes, departures, colours)
    lower.axhline(1.0, color="0.6", linewidth=0.8)
    lowest = min((float(np.nanmin(a.values)) for a in alignments if np.isfinite(a.values).any()), default=0.0)
    lower.set_ylim(max(-1.0, min(0.0, lowest - 0.05)), 1.05)
    for ax in axes:
        span(ax, trained.times)
    title = "Loss"
    if departures is not None:
        title += f"; a departure: the error of {departures.parameter} passes {departures.threshold:g}"
    finish(upper, TIME_LABEL, "loss (nats)", title)
    finish(lower, TIME_LABEL, "alignment (1: perfect)", "Alignment of the embeddings with signatures, by order")
    return axes


def _mark_departures(axes: Sequence[Axes], departures: Departures, colours: Mapping[int, str]) -> None:
    upper, lower = axes
    for order, times in departures.times.items():
        known = np.ravel(times)[np.isfinite(np.ravel(times))]
        if known.size:
            time = float(known.mean())
            line = {"color": colours[order], "linewidth": 1.4, "linestyle": (0, (3, 2))}
            upper.axvline(time, label=f"departs from the order-{order} flow: t = {time:.4g}", **line)
            lower.axvline(time, **line)
        else:
            label = f"does not depart from the order-{order} flow up to t = {departures.until[order]:.4g}"
            upper.plot([], [], " ", label=label)


def _colours(orders: Iterable[int], lines: Styles) -> dict[int, str]:
    used = [style.color for style in lines.values()]
    free = [color for color in PREDICTED if color not in used] or list(PREDICTED)
    found = {}
    for order in sorted(orders):
        flow = lines.get(f"order-{order}")
        found[order] = free[0] if flow is None else flow.color
        free = [color for color in free if color != found[order]] or list(PREDICTED)
    return found
