"""Error against learning rate and against initial scale, with fitted slopes."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator

from compare.comparison import Convergence
from compare.figures.style import PREDICTED, TRAINED, finish, percent
from compare.initial_scale import ScaleConvergence


def learning_rate_error(ax: Axes, convergence: Convergence, *, color: str = PREDICTED[0]) -> Axes:
    """Error against learning rate on log axes, with the fitted slope."""
    rates, errors = np.array(convergence.learning_rates), np.array(convergence.errors)
    _points(ax, rates, errors, color)
    label = f"fitted slope {convergence.slope:.3f} (a flow's is 1)"
    _fitted(ax, rates, errors, convergence.slope, label)
    title = f"{convergence.prediction} against training at t = {convergence.time:.4g}"
    finish(ax, "learning rate η", f"relative error of {convergence.parameter}", title)
    return ax


def initial_scale_error(ax: Axes, convergence: ScaleConvergence, *, color: str = PREDICTED[0]) -> Axes:
    """Error against the scale ε of the initial parameters on log axes, with the slope fitted to the smallest scales."""
    scales, errors = np.array(convergence.scales), np.array(convergence.errors)
    _points(ax, scales, errors, color)
    fitted = np.array(convergence.fitted, dtype=bool)
    if fitted.any():
        label = f"fitted slope {convergence.slope:.2f}"
        if fitted.sum() < len(scales):
            label += f", of the {fitted.sum()} smallest"
        _fitted(ax, scales[fitted], errors[fitted], convergence.slope, label)
    finish(
        ax,
        "initial scale ε, relative to the run's" if convergence.relative else "initial scale ε",
        f"relative error of {convergence.quantity}",
        f"{convergence.prediction} against {convergence.reference}",
    )
    return ax


def _points(ax: Axes, x: np.ndarray, errors: np.ndarray, color: str) -> None:
    ax.plot(x, errors, "o", color=color, label="measured")
    for value, error in zip(x, errors, strict=True):
        ax.annotate(
            percent(error) if error >= 1e-5 else f"{error:.1e}",
            (value, error),
            xytext=(7, -9),
            textcoords="offset points",
            fontsize="small",
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(x, [f"{value:.2g}" for value in x], fontsize="small")
    ax.minorticks_off()
    ax.margins(x=0.25)
    # At least as many decades of error as of x, so that a slope near 0 looks flat.
    spread = max(float(np.ptp(np.log(errors))) * 1.25, float(np.ptp(np.log(x))))
    centre = (math.log(errors.min()) + math.log(errors.max())) / 2
    ax.set_ylim(math.exp(centre - 0.6 * spread), math.exp(centre + 0.6 * spread))
    if spread < math.log(100):
        # Powers of ten alone would leave one tick or none.
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))


def _fitted(ax: Axes, x: np.ndarray, errors: np.ndarray, slope: float, label: str) -> None:
    factor = np.exp(np.mean(np.log(errors)) - slope * np.mean(np.log(x)))
    line = np.geomspace(x.min(), x.max(), 20)
    ax.plot(line, factor * line**slope, color=TRAINED, label=label, zorder=1)
