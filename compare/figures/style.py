"""What figures share: colours, lines, bands over seeds, and how axes are finished."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation

from compare.bands import band

TRAINED = "#7a7a7a"
BAND = "#b3161b"
# Okabe and Ito's palette: distinguishable with every common kind of colour vision.
PREDICTED = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Lengths of dash and gap, in line widths; a colour that comes again has another dash.
DASHES = ((4.0, 1.6), (6.0, 1.6, 1.0, 1.6), (1.0, 1.6), (5.0, 1.0, 1.0, 1.0, 1.0, 1.0), (1.0, 1.0), (8.0, 2.0))
COLOUR_MAP = "viridis"  # perceptually uniform, and readable with every common kind of colour vision and in grey
TIME_LABEL = "t = learning rate × step"


@dataclass(frozen=True)
class Style:
    """The line of one prediction: its colour, and the lengths of dash and gap in line widths."""

    color: str
    dash: tuple[float, ...]

    def line(self) -> dict[str, Any]:
        """As matplotlib takes it."""
        return {"color": self.color, "linestyle": (0, self.dash), "linewidth": 1.8}


Styles = Mapping[str, Style]


def styles(names: Iterable[str]) -> dict[str, Style]:
    """A line for each prediction, in this order; give all figures of one run the same mapping, and each keeps its line."""
    found: dict[str, Style] = {}
    for name in names:
        i = len(found)
        rounds, colour = divmod(i, len(PREDICTED))
        found.setdefault(name, Style(PREDICTED[colour], DASHES[(colour + rounds) % len(DASHES)]))
    return found


def shade_seeds(
    ax: Axes, times: np.ndarray, series: np.ndarray, *, color: str = TRAINED, of_mean: bool = True, label: str = ""
) -> None:
    """Bands over seeds of `series` (seed, time), where there are several: light, where single seeds lie, and with
    `of_mean` dark, where their mean lies (see `compare.bands`)."""
    if series.ndim < 2 or len(series) < 2:
        return
    found = band(series)
    share, seeds = f"{100 * found.confidence:g} %", f"{len(series)} seeds"
    light = f"central {share} of {seeds}" + (f", {label}" if label else "")
    ax.fill_between(times, found.quantile_low, found.quantile_high, color=color, alpha=0.2, linewidth=0, label=light)
    if of_mean:
        dark = f"{share} interval of their mean"
        ax.fill_between(times, found.low, found.high, color=color, alpha=0.3, linewidth=0, label=dark)


def middle(series: np.ndarray) -> np.ndarray:
    """The mean over seeds, where there are several; nan where no seed has a number."""
    if series.ndim == 1:
        return series
    there = np.isfinite(series)
    count = there.sum(axis=0)
    return np.divide(
        np.where(there, series, 0.0).sum(axis=0), count, out=np.full(count.shape, math.nan), where=count > 0
    )


def short_name(token: str, most: int = 12) -> str:
    """A token's name as a label: what cannot be printed, a line break say, as a dot, and a long one cut."""
    name = "".join(letter if letter.isprintable() else "·" for letter in token)
    return name if len(name) <= most else name[: most - 1] + "…"


def percent(error: float) -> str:
    return f"{error:.3%}" if error < 0.01 else f"{error:.1%}" if error < 1 else f"{error:.3g} times"


def span(ax: Axes, times: np.ndarray) -> None:
    """From 0 to the last time; a training that failed at once leaves nothing to span."""
    if times[-1] > 0:
        ax.set_xlim(0, float(times[-1]))


def finish(ax: Axes, x: str, y: str, title: str, *, legend: bool = True) -> None:
    """Labels, title, grid, and the legend below the axes, where it hides no data."""
    # Names come from users, and a dollar sign is no formula.
    ax.set_xlabel(x, parse_math=False)
    ax.set_ylabel(y, parse_math=False)
    ax.set_title(title, fontsize="medium", loc="left", parse_math=False)
    ax.grid(True, color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    if legend and ax.get_legend_handles_labels()[0]:
        figure = ax.get_figure()
        assert figure is not None
        # 40 points: tick labels and the label of the axis.
        below = ax.transAxes + ScaledTranslation(0, -40 / 72, figure.dpi_scale_trans)
        drawn = ax.legend(
            fontsize="small",
            frameon=False,
            loc="upper left",
            bbox_to_anchor=(0.0, 0.0),
            bbox_transform=below,
            borderaxespad=0.0,
            borderpad=0.0,
        )
        for text in drawn.get_texts():
            text.set_parse_math(False)
