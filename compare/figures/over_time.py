"""Predictions drawn over trainings along time: loss, error, norms, alignment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from compare.comparison import Comparison, half_loss_time
from compare.figures.style import (
    BAND,
    TIME_LABEL,
    TRAINED,
    Style,
    Styles,
    finish,
    middle,
    percent,
    shade_seeds,
    span,
    styles,
)
from compare.similarity import SignatureCorrelation, embedding_norms
from simulate.trajectory import Trajectory


def _trained_line(series: np.ndarray) -> dict:
    """Wide, so that what predicts it can lie on it; less so over a band of seeds, which it would hide."""
    return {"color": TRAINED, "linewidth": 5 if series.ndim == 1 else 2.5, "alpha": 0.6}


def loss(
    ax: Axes,
    trained: Trajectory,
    predictions: Sequence[Trajectory],
    noise: Trajectory | None = None,
    *,
    lines: Styles | None = None,
) -> Axes:
    """Loss of the training and of each flow over t; the legend gives each half-loss time.

    **Arguments:** `noise`: from `simulate.noise.predict_band`; the band in which each seed is predicted to lie is dotted;
    `lines`: see `styles`, by default one for each prediction in this order.
    """
    own = _series(trained, "loss")
    label = f"{trained.name} (trained): {_halves(trained.times, own)}"
    ax.plot(trained.times, middle(own), label=label, **_trained_line(own))
    shade_seeds(ax, trained.times, own)
    for prediction, style in _styled(predictions, lines):
        series = _series(prediction, "loss")
        label = f"{prediction.name}: {_halves(prediction.times, series)}"
        ax.plot(prediction.times, series, label=label + _blow_up(prediction), **style.line())
        _mark_end(ax, prediction, prediction.times, series, style)
    if noise is not None:
        for side, label in (("lower", "predicted 95 % band of a seed"), ("upper", None)):
            ax.plot(noise.times, _series(noise, f"loss_{side}"), color=BAND, linewidth=1, linestyle=":", label=label)
    start = float(middle(own)[0])
    ax.axhline(start / 2, color="0.6", linewidth=0.8, label=f"half of {start:.4g}")
    # A flow that blows up would stretch the axis until nothing else is visible.
    ax.set_ylim(min(0.0, float(np.nanmin(own))), 1.15 * float(np.nanmax(own)))
    span(ax, trained.times)
    finish(ax, TIME_LABEL, "loss (nats)", "Loss: predicted over trained")
    return ax


def relative_error(ax: Axes, comparison: Comparison, parameter: str, *, lines: Styles | None = None) -> Axes:
    """Relative error of `parameter` for each flow over t (log scale), over seeds their mean; the legend gives the worst
    error up to the time the trained loss has halved."""
    half = _finite_mean(comparison.agreements[0].half_loss_reference)
    for agreement, style in _styled(comparison.agreements, lines):
        error = agreement.relative_error[parameter]
        shown = (agreement.times > 0) & np.all(np.atleast_2d((error > 0) & np.isfinite(error)), axis=0)
        last = float(agreement.times[-1])
        until = min(half, last) if math.isfinite(half) else last
        label = f"{agreement.name}: ≤ {percent(agreement.worst_error(parameter, until=until))} up to t = {until:.4g}"
        ax.plot(agreement.times[shown], middle(error)[shown], label=label, **style.line())
        # Of seeds alone: a t-interval of a mean may reach below 0, which a log axis cannot show.
        shade_seeds(
            ax, agreement.times[shown], error[..., shown], color=style.color, of_mean=False, label=agreement.name
        )
    if math.isfinite(half):
        ax.axvline(half, color="0.6", linewidth=0.8, label=f"trained loss halved, t = {half:.4g}")
    threshold = comparison.agreements[0].threshold
    ax.axhline(threshold, color="0.6", linewidth=0.8, linestyle=":", label=f"counts as valid: ≤ {percent(threshold)}")
    ax.set_yscale("log")
    bottom, top = ax.get_ylim()
    ax.set_ylim(bottom, min(top, 10.0))
    finish(ax, TIME_LABEL, f"relative error of {parameter}", "‖predicted − trained‖ / ‖trained‖")
    return ax


def norms(
    ax: Axes,
    trained: Trajectory,
    predictions: Sequence[Trajectory],
    parameter: str,
    *,
    lines: Styles | None = None,
) -> Axes:
    """Mean norm of the token embeddings over t (log scale), with the range over tokens of the
    trained ones; the legend gives the last value of each."""
    own = embedding_norms(trained, parameter)
    by_token = own if own.ndim == 2 else middle(own)
    mean = by_token.mean(axis=-1)
    times = trained.parameter_times
    ax.fill_between(
        times,
        by_token.min(axis=-1),
        by_token.max(axis=-1),
        color=TRAINED,
        alpha=0.2,
        linewidth=0,
        label="range over tokens, trained",
    )
    ax.plot(
        times, mean, label=f"{trained.name} (trained): {mean[-1]:.4g} at t = {times[-1]:.4g}", **_trained_line(mean)
    )
    # Of seeds alone, as for errors.
    shade_seeds(ax, times, own.mean(axis=-1), of_mean=False)
    for prediction, style in _styled(predictions, lines):
        predicted = embedding_norms(prediction, parameter).mean(axis=-1)
        at = prediction.parameter_times
        label = f"{prediction.name}: {predicted[-1]:.4g} at t = {at[-1]:.4g}"
        ax.plot(at, predicted, label=label + _blow_up(prediction), **style.line())
        _mark_end(ax, prediction, at, predicted, style)
    ax.set_yscale("log")
    ax.set_ylim(0.8 * float(np.nanmin(by_token)), 1.5 * float(np.nanmax(by_token)))
    span(ax, times)
    finish(ax, TIME_LABEL, "mean ‖w_α‖", "Embedding norms")
    return ax


def correlation(
    ax: Axes,
    trained: SignatureCorrelation,
    predictions: Sequence[SignatureCorrelation],
    *,
    lines: Styles | None = None,
) -> Axes:
    """ρ_(0)(t), or 1 − MSE where it is undefined; the legend gives each peak and its time."""
    measure = trained.measure
    value, time = trained.peak
    series = getattr(trained, measure)
    label = f"{trained.name} (trained): peak {value:.4f} at t = {time:.4g}"
    ax.plot(trained.times, middle(series), label=label, **_trained_line(series))
    shade_seeds(ax, trained.times, series)
    for prediction, style in _styled(predictions, lines):
        value, time = prediction.peak
        label = f"{prediction.name}: peak {value:.4f} at t = {time:.4g}"
        ax.plot(prediction.times, getattr(prediction, measure), label=label, **style.line())
    name = "ρ₍₀₎ (Pearson)" if measure == "pearson" else "1 − MSE (Pearson undefined)"
    span(ax, trained.times)
    finish(ax, TIME_LABEL, name, "Embedding similarity against order-0 signature similarity")
    return ax


def _styled(predictions: Sequence, lines: Styles | None) -> list[tuple]:
    """Each prediction with its line."""
    chosen = styles(prediction.name for prediction in predictions) if lines is None else lines
    return [(prediction, chosen[prediction.name]) for prediction in predictions]


def _series(trajectory: Trajectory, name: str) -> np.ndarray:
    return trajectory[name].to_numpy()


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


def _mark_end(ax: Axes, prediction: Trajectory, times: np.ndarray, series: np.ndarray, style: Style) -> None:
    """A cross where a flow stopped early."""
    finite = np.flatnonzero(np.isfinite(series))
    if prediction.status == "blow-up" and finite.size:
        last = finite[-1]
        ax.plot(times[last], series[last], "x", color=style.color)
