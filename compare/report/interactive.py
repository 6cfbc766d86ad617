"""What the page's interactive figures show, as compact JSON: similarity matrices over time, and curves.

Cosines are quantised over the range in use (16 bits where they are few, otherwise 8), the strict upper triangle alone;
frames are stored as differences from the one before, which are small, and deflated. All of it is decoded by `page.js`.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np

from compare.bands import band
from compare.comparison import Comparison
from compare.figures.style import COLOUR_MAP, TRAINED, Styles, middle, styles
from compare.similarity import SignatureCorrelation, SignatureSimilarity, embedding_norms, embeddings
from simulate.trajectory import Trajectory
from theory.errors import UserError

MOST_TOKENS, MOST_TIMES = 200, 100
# Points of a curve: more than a panel has pixels to show.
MOST_POINTS = 400
# Deflated matrices of all runs together: 6 MB as base64, of a page that stays below 10 MB. Runs beyond it are left out.
MATRIX_BYTES = 4_500_000
# Quantised values up to which 16 bits are spent on each.
_FINE = 600_000
_OTHER_TRAININGS = ("#8a6d3b", "#5b7f95", "#87648c", "#6b8e23")


@dataclass(frozen=True)
class _Run:
    trajectory: Trajectory
    trained: bool
    color: str
    dash: tuple[float, ...]
    width: float


def interactive_data(
    similarity: SignatureSimilarity,
    trainings: Sequence[Trajectory],
    predictions: Sequence[Trajectory] = (),
    *,
    embedding: str,
    comparison: Comparison | None = None,
    correlations: Mapping[str, SignatureCorrelation] | None = None,
    lines: Styles | None = None,
    most_tokens: int = MOST_TOKENS,
    most_times: int = MOST_TIMES,
) -> dict[str, Any]:
    """The interactive figures of trainings and predictions, for `compare.report.render`.

    **Arguments:** `similarity`: of the signatures, which decides the tokens; `trainings`: the first is the main one, whose
    save times the slider moves over; of several seeds the first is shown; `embedding`: the parameter; `comparison`: of the
    main training, for the panel of errors; `correlations`: by name of the trajectory, for the panel of alignments; `lines`:
    the predictions' lines, as in the static figures; `most_tokens`, `most_times`: what the matrices are thinned to, the
    first tokens of `similarity` and evenly spread times.

    **Raises:** `UserError` without a training or with two trajectories of one name.
    """
    if not trainings:
        raise UserError("the interactive figures need a training")
    names = [trajectory.name for trajectory in (*trainings, *predictions)]
    if len(set(names)) < len(names):
        raise UserError(f"every trajectory of a report needs a name of its own, found {', '.join(names)}")
    chosen = styles(prediction.name for prediction in predictions) if lines is None else lines
    runs = [
        _Run(
            training,
            True,
            TRAINED if i == 0 else _OTHER_TRAININGS[(i - 1) % len(_OTHER_TRAININGS)],
            (),
            4.5 if i == 0 else 2.5,
        )
        for i, training in enumerate(trainings)
    ]
    runs += [_Run(p, False, chosen[p.name].color, chosen[p.name].dash, 2.0) for p in predictions]
    found = correlations or {}
    panels = [
        _loss_panel(runs),
        _error_panel(runs, comparison, embedding),
        _norm_panel(runs, embedding),
        _alignment_panel(runs, found),
    ]
    main = trainings[0]
    times = main.parameter_times[_thinned(len(main.parameter_times), most_times)]
    return {
        "runs": [
            {
                "name": run.trajectory.name,
                "trained": run.trained,
                "color": run.color,
                "dash": list(run.dash),
                "width": run.width,
            }
            for run in runs
        ],
        "times": times.tolist(),
        "start": _start(times, found.get(main.name)),
        "panels": [panel for panel in panels if panel["curves"]],
        "matrices": _matrices(runs, similarity, times, embedding, most_tokens),
        "colours": _base64(_colours()),
    }


def _thinned(count: int, most: int) -> np.ndarray:
    """Numbers of at most `most` of `count` things, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def _start(times: np.ndarray, correlation: SignatureCorrelation | None) -> int:
    """Where the slider stands at first: the training's peak alignment, as in the static figure."""
    moment = float(times[-1]) if correlation is None else correlation.peak[1]
    return int(np.flatnonzero(times <= moment * (1 + 1e-9))[-1]) if moment >= times[0] else 0


# ---------------------------------------------------------------------------------------------------------------------
# Matrices


def _matrices(
    runs: Sequence[_Run], similarity: SignatureSimilarity, times: np.ndarray, embedding: str, most_tokens: int
) -> dict[str, Any]:
    count = min(most_tokens, len(similarity.tokens))
    tokens = similarity.tokens[:count]
    upper = np.triu_indices(count, k=1)
    signature = similarity.matrix[:count, :count][upper]
    frames = [_frames(run.trajectory, times, embedding, tokens, upper) for run in runs]
    finite = [signature, *(values[np.isfinite(values)] for _, values in frames)]
    low = min(float(values.min()) for values in finite if values.size)
    # Cosines that are all 1 leave no range to quantise.
    low = min(low, 1.0 - 1e-6)
    total = sum(values.size for _, values in frames)
    levels = 65_535 if total <= _FINE else 255
    packed, left_out, used = [], [], 0
    # The main training and the first prediction before all others.
    firsts = {next((i for i, run in enumerate(runs) if run.trained is trained), None) for trained in (True, False)}
    for i in sorted(range(len(runs)), key=lambda i: (i not in firsts, i)):
        run, (own, values) = runs[i], frames[i]
        content = _packed(_quantised(values, low, levels))
        if packed and used + len(content) > MATRIX_BYTES:
            left_out.append(run.trajectory.name)
            continue
        used += len(content)
        seed = None if run.trajectory.seeds is None else run.trajectory.seeds[0]
        packed.append({"run": i, "times": own.tolist(), "seed": seed, "frames": _base64(content)})
    notes = []
    if count < len(similarity.tokens) + similarity.rarer:
        every = len(similarity.tokens) + similarity.rarer
        notes.append(
            f"Matrices and the numbers below them are of {count} of {every} tokens that occur; curves are of all."
        )
    if left_out:
        notes.append(f"Matrices of {', '.join(left_out)} are left out: they would make the page too large.")
    return {
        "tokens": list(similarity.token_names[:count]),
        "low": low,
        "levels": levels,
        "constant": similarity.constant,
        "signature": _base64(_packed(_quantised(signature[None], low, levels))),
        "runs": packed,
        "notes": notes,
    }


def _frames(
    trajectory: Trajectory, times: np.ndarray, embedding: str, tokens: np.ndarray, upper: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """(frame times, cosines (frame, pair)) at the last stored time up to each of `times`; a run that ended has fewer."""
    stored = trajectory.parameter_times
    tolerance = 1e-9 * float(max(times[-1], stored[-1]))
    at = np.searchsorted(stored, times + tolerance, side="right") - 1
    # Past its end a run shows nothing, rather than its last state for another time.
    at = at[times <= stored[-1] + tolerance]
    rows = embeddings(trajectory, embedding)
    rows = (rows if trajectory.seeds is None else rows[0])[at][:, tokens]
    with np.errstate(all="ignore"):
        largest = np.abs(rows).max(axis=-1, keepdims=True, initial=0.0)
        rows = rows / largest
        unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        found = np.array([(each @ each.T)[upper] for each in unit]).reshape(len(at), len(upper[0]))
    # Nor before its start.
    found[at < 0] = math.nan
    return stored[at], np.clip(found, -1.0, 1.0)


def _quantised(values: np.ndarray, low: float, levels: int) -> np.ndarray:
    """0 where there is no number, otherwise 1 … levels for low … 1."""
    kind = np.uint16 if levels > 255 else np.uint8
    scaled = np.rint((np.nan_to_num(values, nan=low) - low) / (1.0 - low) * (levels - 1)) + 1
    return np.where(np.isfinite(values), scaled, 0).astype(kind)


def _packed(frames: np.ndarray) -> bytes:
    """Differences of one frame from the one before, high bytes before low ones, deflated."""
    moved = frames.copy()
    # Unsigned arithmetic wraps around, here and in the page.
    moved[1:] -= frames[:-1]
    planes = moved.reshape(-1).astype(f"<u{frames.dtype.itemsize}").view(np.uint8).reshape(-1, frames.dtype.itemsize)
    return zlib.compress(np.ascontiguousarray(planes.T).tobytes(), 9)


def _colours() -> bytes:
    return (matplotlib.colormaps[COLOUR_MAP](np.arange(256), bytes=True)[:, :3]).astype(np.uint8).tobytes()


# ---------------------------------------------------------------------------------------------------------------------
# Curves


def _loss_panel(runs: Sequence[_Run]) -> dict[str, Any]:
    curves = [
        _curve(i, run.trajectory.times, run.trajectory["loss"].to_numpy())
        for i, run in enumerate(runs)
        if "loss" in run.trajectory.series_names
    ]
    return _panel("loss", "Loss", "Loss (nats)", curves)


def _error_panel(runs: Sequence[_Run], comparison: Comparison | None, embedding: str) -> dict[str, Any]:
    numbers = {run.trajectory.name: i for i, run in enumerate(runs)}
    agreements = () if comparison is None else comparison.agreements
    curves = [
        _curve(numbers[agreement.name], agreement.times, agreement.relative_error[embedding])
        for agreement in agreements
        if agreement.name in numbers
    ]
    return _panel("error", "Error", f"Relative error of {embedding}", curves, log=True)


def _norm_panel(runs: Sequence[_Run], embedding: str) -> dict[str, Any]:
    curves = [
        _curve(i, run.trajectory.parameter_times, embedding_norms(run.trajectory, embedding).mean(axis=-1))
        for i, run in enumerate(runs)
    ]
    return _panel("norm", "Norms", "Mean norm of the embeddings, ‖w_α‖", curves, log=True)


def _alignment_panel(runs: Sequence[_Run], correlations: Mapping[str, SignatureCorrelation]) -> dict[str, Any]:
    known = {i: correlations[r.trajectory.name] for i, r in enumerate(runs) if r.trajectory.name in correlations}
    pearson = all(found.measure == "pearson" for found in known.values())
    measure = "pearson" if pearson else "one_minus_mse"
    name = "ρ₍₀₎" if pearson else "1 − MSE"
    curves = [_curve(i, found.times, getattr(found, measure)) for i, found in known.items()]
    return _panel("alignment", "Alignment", f"Alignment with order-0 signatures, {name}", curves)


def _panel(key: str, title: str, quantity: str, curves: Iterable[dict], *, log: bool = False) -> dict[str, Any]:
    return {"key": key, "title": title, "quantity": quantity, "log": log, "curves": list(curves)}


def _curve(run: int, times: np.ndarray, series: np.ndarray) -> dict[str, Any]:
    """Times and values, the mean over seeds with the band in which single seeds lie."""
    at = _thinned(len(times), MOST_POINTS)
    curve: dict[str, Any] = {"run": run, "t": _floats(times[at]), "v": _floats(middle(series)[at])}
    if series.ndim > 1 and len(series) > 1:
        found = band(series[:, at])
        curve |= {"low": _floats(found.quantile_low), "high": _floats(found.quantile_high)}
    return curve


def _floats(values: np.ndarray) -> str:
    largest = float(np.finfo(np.float32).max)
    values = np.where(np.abs(values) <= largest, values, math.nan)
    return _base64(values.astype("<f4").tobytes())


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
