"""Figures of prediction over training. Every function draws on the `ax` it is given and returns
it, and every figure prints the number it shows.

Only matplotlib's object interface with the Agg and SVG canvases is used: no window, no global
state. `save` writes PNG and SVG whose bytes depend on the figure alone.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from compare.comparison import Comparison, Convergence, half_loss_time
from compare.similarity import SignatureCorrelation, embedding_norms
from simulate.trajectory import Trajectory

TRAINED = "#7a7a7a"
BAND = "#b3161b"
# Okabe and Ito's palette: distinguishable with every common kind of colour vision.
PREDICTED = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
TIME_LABEL = "t = learning rate × step"


def canvas(columns: int = 1, *, width: float = 6.0, height: float = 3.6) -> tuple[Figure, list]:
    """A figure with `columns` axes side by side, sized in inches for each."""
    figure = Figure(figsize=(width * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(1, columns, i + 1) for i in range(columns)]


def loss(ax: Axes, trained: Trajectory, predictions: Sequence[Trajectory], noise: Trajectory | None = None) -> Axes:
    """Loss of the training and of each flow over t; the legend gives each half-loss time.

    **Arguments:** `noise`: from `simulate.noise.predict_band`; the band in which each seed is predicted to lie is shaded.
    """
    own = _series(trained, "loss")
    ax.plot(
        trained.times,
        _middle(own),
        color=TRAINED,
        linewidth=5,
        alpha=0.6,
        label=f"{trained.name} (trained): {_halves(trained.times, own)}",
    )
    _band(ax, trained.times, own)
    for i, prediction in enumerate(predictions):
        series = _series(prediction, "loss")
        label = f"{prediction.name}: {_halves(prediction.times, series)}"
        ax.plot(prediction.times, series, label=label + _blow_up(prediction), **_style(i))
        _mark_end(ax, prediction, prediction.times, series, i)
    if noise is not None:
        for side, label in (("lower", "predicted 95 % band of a seed"), ("upper", None)):
            ax.plot(noise.times, _series(noise, f"loss_{side}"), color=BAND, linewidth=1, linestyle=":", label=label)
    start = float(_middle(own)[0])
    ax.axhline(start / 2, color="0.6", linewidth=0.8, label=f"half of {start:.4g}")
    # A flow that blows up would stretch the axis until nothing else is visible.
    ax.set_ylim(min(0.0, float(np.nanmin(own))), 1.15 * float(np.nanmax(own)))
    _span(ax, trained.times)
    _finish(ax, TIME_LABEL, "loss (nats)", "Loss: predicted over trained")
    return ax


def relative_error(ax: Axes, comparison: Comparison, parameter: str) -> Axes:
    """Relative error of `parameter` for each flow over t (log scale); the legend gives the worst error up to the time the
    trained loss has halved."""
    half = _finite_mean(comparison.agreements[0].half_loss_reference)
    for i, agreement in enumerate(comparison.agreements):
        error = agreement.relative_error[parameter]
        worst = error if error.ndim == 1 else np.max(error, axis=0)
        shown = (agreement.times > 0) & (worst > 0) & np.isfinite(worst)
        last = float(agreement.times[-1])
        until = min(half, last) if math.isfinite(half) else last
        label = f"{agreement.name}: ≤ {_percent(agreement.worst_error(parameter, until=until))} up to t = {until:.4g}"
        ax.plot(agreement.times[shown], worst[shown], label=label, **_style(i))
    if math.isfinite(half):
        ax.axvline(half, color="0.6", linewidth=0.8, label=f"trained loss halved, t = {half:.4g}")
    threshold = comparison.agreements[0].threshold
    ax.axhline(threshold, color="0.6", linewidth=0.8, linestyle=":", label=f"counts as valid: ≤ {_percent(threshold)}")
    ax.set_yscale("log")
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, min(top, 10.0))
    _finish(ax, TIME_LABEL, f"relative error of {parameter}", "‖predicted − trained‖ / ‖trained‖")
    return ax


def norms(ax: Axes, trained: Trajectory, predictions: Sequence[Trajectory], parameter: str) -> Axes:
    """Mean norm of the token embeddings over t (log scale), with the range over tokens of the
    trained ones; the legend gives the last value of each."""
    own = embedding_norms(trained, parameter)
    by_token = own if own.ndim == 2 else np.nanmean(own, axis=0)
    mean = by_token.mean(axis=-1)
    ax.fill_between(
        trained.parameter_times,
        by_token.min(axis=-1),
        by_token.max(axis=-1),
        color=TRAINED,
        alpha=0.2,
        linewidth=0,
        label="range over tokens, trained",
    )
    ax.plot(
        trained.parameter_times,
        mean,
        color=TRAINED,
        linewidth=5,
        alpha=0.6,
        label=f"{trained.name} (trained): {mean[-1]:.4g} at t = {trained.parameter_times[-1]:.4g}",
    )
    for i, prediction in enumerate(predictions):
        predicted = embedding_norms(prediction, parameter).mean(axis=-1)
        times = prediction.parameter_times
        label = f"{prediction.name}: {predicted[-1]:.4g} at t = {times[-1]:.4g}"
        ax.plot(times, predicted, label=label + _blow_up(prediction), **_style(i))
        _mark_end(ax, prediction, times, predicted, i)
    ax.set_yscale("log")
    ax.set_ylim(0.8 * float(by_token.min()), 1.5 * float(by_token.max()))
    _span(ax, trained.parameter_times)
    _finish(ax, TIME_LABEL, "mean ‖w_α‖", "Embedding norms")
    return ax


def correlation(ax: Axes, trained: SignatureCorrelation, predictions: Sequence[SignatureCorrelation]) -> Axes:
    """ρ_(0)(t), or 1 − MSE where it is undefined; the legend gives each peak and its time."""
    measure = trained.measure
    value, time = trained.peak
    series = getattr(trained, measure)
    ax.plot(
        trained.times,
        _middle(series),
        color=TRAINED,
        linewidth=5,
        alpha=0.6,
        label=f"{trained.name} (trained): peak {value:.4f} at t = {time:.4g}",
    )
    _band(ax, trained.times, series)
    for i, prediction in enumerate(predictions):
        value, time = prediction.peak
        ax.plot(
            prediction.times,
            getattr(prediction, measure),
            label=f"{prediction.name}: peak {value:.4f} at t = {time:.4g}",
            **_style(i),
        )
    name = "ρ₍₀₎ (Pearson)" if measure == "pearson" else "1 − MSE (Pearson undefined)"
    _span(ax, trained.times)
    _finish(ax, TIME_LABEL, name, "Embedding similarity against order-0 signature similarity")
    return ax


def similarity_matrices(
    axes: Sequence[Axes], matrices: Sequence[tuple[str, np.ndarray]], token_names: Sequence[str]
) -> Sequence[Axes]:
    """Cosine matrices side by side on one colour scale. The first is the signature's; the title of
    each other one gives its Pearson correlation with it over a < b (1 − MSE where undefined)."""
    upper = np.triu_indices(len(token_names), k=1)
    target = matrices[0][1][upper]
    lowest = min(float(matrix.min()) for _, matrix in matrices)
    image = None
    for ax, (name, matrix) in zip(axes, matrices, strict=True):
        image = ax.imshow(matrix, vmin=lowest, vmax=1.0, cmap="viridis")
        title = name
        if matrix is not matrices[0][1]:
            pairs = matrix[upper]
            if np.ptp(target) > 1e-12 and np.ptp(pairs) > 1e-12:
                title += f"\nPearson {np.corrcoef(pairs, target)[0, 1]:.4f}"
            else:
                title += f"\n1 − MSE {1 - np.mean((pairs - target) ** 2):.4f}"
        ax.set_title(title, fontsize="medium")
        step = max(1, math.ceil(len(token_names) / 10))
        ticks = range(0, len(token_names), step)
        ax.set_xticks(ticks, [token_names[i] for i in ticks], rotation=90, fontsize="small")
        ax.set_yticks(ticks, [token_names[i] for i in ticks], fontsize="small")
    figure = axes[-1].get_figure()
    assert figure is not None and image is not None
    figure.colorbar(image, ax=list(axes), label="cosine", shrink=0.8)
    return axes


def learning_rate_error(ax: Axes, convergence: Convergence) -> Axes:
    """Error against learning rate on log axes, with the fitted slope."""
    rates, errors = np.array(convergence.learning_rates), np.array(convergence.errors)
    ax.plot(rates, errors, "o", color=PREDICTED[0], label="measured")
    middle = np.exp(np.mean(np.log(errors)) - convergence.slope * np.mean(np.log(rates)))
    line = np.geomspace(rates.min(), rates.max(), 20)
    ax.plot(
        line,
        middle * line**convergence.slope,
        color=TRAINED,
        label=f"fitted slope {convergence.slope:.3f} (a flow's is 1)",
    )
    for rate, error in zip(rates, errors, strict=True):
        ax.annotate(_percent(error), (rate, error), xytext=(6, -10), textcoords="offset points")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
    ax.minorticks_off()
    ax.margins(x=0.25)
    # At least as many decades of error as of learning rate, so that a slope near 0 looks flat.
    span = max(float(np.ptp(np.log(errors))), float(np.ptp(np.log(rates))))
    middle_error = float(np.mean(np.log(errors)))
    ax.set_ylim(math.exp(middle_error - span), math.exp(middle_error + span))
    _finish(
        ax,
        "learning rate η",
        f"relative error of {convergence.parameter}",
        f"{convergence.prediction} against training at t = {convergence.time:.4g}",
    )
    return ax


def png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as PNG bytes."""
    return _render(figure, "png", {"Software": None}, dpi)


def svg(figure: Figure) -> bytes:
    """The figure as SVG bytes, the same for the same figure: fixed element ids and no date."""
    return _render(figure, "svg", {"Date": None, "Creator": None})


def save(figure: Figure, directory: str | os.PathLike[str], name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `directory`, each by rename."""
    written = []
    for suffix, content in ((".png", png(figure)), (".svg", svg(figure))):
        path = Path(directory) / f"{name}{suffix}"
        temporary = path.with_name(f".{path.name}.partial")
        temporary.write_bytes(content)
        temporary.replace(path)
        written.append(path)
    return written


def _render(figure: Figure, kind: str, metadata: dict[str, None], dpi: int = 72) -> bytes:
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "context-staircase", "svg.fonttype": "path"}):
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=dpi)
    return buffer.getvalue()


def _series(trajectory: Trajectory, name: str) -> np.ndarray:
    return trajectory[name].to_numpy()


def _middle(series: np.ndarray) -> np.ndarray:
    return series if series.ndim == 1 else np.nanmean(series, axis=0)


def _band(ax: Axes, times: np.ndarray, series: np.ndarray) -> None:
    """The range over seeds, where there are several."""
    if series.ndim > 1:
        low, high = np.nanmin(series, axis=0), np.nanmax(series, axis=0)
        label = f"range over {len(series)} seeds"
        ax.fill_between(times, low, high, color=TRAINED, alpha=0.2, linewidth=0, label=label)


def _halves(times: np.ndarray, series: np.ndarray) -> str:
    time = _finite_mean(np.asarray(half_loss_time(times, series)))
    return f"halved at t = {time:.4g}" if math.isfinite(time) else "not halved"


def _finite_mean(values: np.ndarray) -> float:
    finite = np.ravel(values)[np.isfinite(np.ravel(values))]
    return float(finite.mean()) if finite.size else math.nan


def _blow_up(prediction: Trajectory) -> str:
    if prediction.status != "blow-up":
        return ""
    return f", blew up after t = {prediction.attributes['last_good_time']:.4g}"


def _percent(error: float) -> str:
    return f"{error:.3%}" if error < 0.01 else f"{error:.1%}" if error < 1 else f"{error:.3g} times"


def _mark_end(ax: Axes, prediction: Trajectory, times: np.ndarray, series: np.ndarray, i: int) -> None:
    """A cross where a flow stopped early."""
    finite = np.flatnonzero(np.isfinite(series))
    if prediction.status == "blow-up" and finite.size:
        last = finite[-1]
        ax.plot(times[last], series[last], "x", color=_style(i)["color"])


def _span(ax: Axes, times: np.ndarray) -> None:
    """From 0 to the last time; a training that failed at once leaves nothing to span."""
    if times[-1] > 0:
        ax.set_xlim(0, float(times[-1]))


def _style(i: int) -> dict:
    return {
        "color": PREDICTED[i % len(PREDICTED)],
        "linestyle": _DASHES[i % len(_DASHES)],
        "linewidth": 1.8,
    }


def _finish(ax: Axes, x: str, y: str, title: str) -> None:
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(title, fontsize="medium", loc="left")
    ax.grid(True, color="0.92", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(fontsize="small", framealpha=0.85, edgecolor="none")
