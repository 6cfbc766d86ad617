"""Prediction against training, in numbers: errors, directions, escape times, validity windows.

Everything is matched by name and axis, never by position: parameters by their name, array
dimensions by their axis name, rows by the coordinate of the axis where there is one, and times by
their value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from simulate.trajectory import Trajectory
from theory.errors import UserError, nearest

# Two times are the same when they differ by rounding alone: t = η·step carries about one ulp,
# an integrator's save time none.
_TIME_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Agreement:
    """How far one prediction agrees with the reference, over the times they share.

    **Fields** (arrays have axes ([seed,] time), the seed axis standing where the reference has
    several seeds; `nan` where a number is undefined):

    - `times`: shared times, t = learning rate × step.
    - `relative_error[parameter]`: ‖θ̂ − θ‖ / ‖θ‖, Frobenius norm, θ the reference.
    - `direction_cosine[parameter]`: cos(θ, θ̂).
    - `displacement_cosine[parameter]`: cos(θ − θ_0, θ̂ − θ̂_0); undefined at t = 0.
    - `displacement_null[parameter]`, `displacement_null_std[parameter]`: mean and standard
      deviation of the same cosine when the prediction's rows (tokens, labels, …) are matched at
      random, exactly, over all permutations: what is left when only the common direction is right.
    - `reference_loss`, `predicted_loss`: the losses at the shared times.
    - `half_loss_reference`, `half_loss_predicted`: the times at which each loss has halved, on
      the trajectory's own save times; `half_loss_shift` = predicted / reference − 1.
    - `validity_window[parameter]`: the last shared time up to which the error has always stayed
      at or below `threshold` (for every seed); `nan` where it never did.
    """

    name: str
    kind: str
    status: str
    last_good_time: float
    times: np.ndarray
    relative_error: Mapping[str, np.ndarray]
    direction_cosine: Mapping[str, np.ndarray]
    displacement_cosine: Mapping[str, np.ndarray]
    displacement_null: Mapping[str, np.ndarray]
    displacement_null_std: Mapping[str, np.ndarray]
    reference_loss: np.ndarray
    predicted_loss: np.ndarray
    half_loss_reference: np.ndarray
    half_loss_predicted: float
    threshold: float
    validity_window: Mapping[str, float] = field(default_factory=dict)

    @property
    def half_loss_shift(self) -> np.ndarray:
        return self.half_loss_predicted / self.half_loss_reference - 1.0

    def worst_error(self, parameter: str, *, until: float = math.inf) -> float:
        """The largest relative error of `parameter` over shared times ≤ `until` and seeds."""
        if parameter not in self.relative_error:
            raise UserError(
                f"no error was computed for parameter {parameter!r}; {nearest(parameter, self.relative_error)}"
            )
        return float(np.max(self.relative_error[parameter][..., self.times <= until]))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values; `nan` becomes null, infinities become strings."""
        return {
            "name": self.name,
            "kind": self.kind,
            "status": self.status,
            "last_good_time": jsonable(self.last_good_time),
            "times": jsonable(self.times),
            "relative_error": jsonable(self.relative_error),
            "direction_cosine": jsonable(self.direction_cosine),
            "displacement_cosine": jsonable(self.displacement_cosine),
            "displacement_null": jsonable(self.displacement_null),
            "displacement_null_std": jsonable(self.displacement_null_std),
            "reference_loss": jsonable(self.reference_loss),
            "predicted_loss": jsonable(self.predicted_loss),
            "half_loss_time": {
                "reference": jsonable(self.half_loss_reference),
                "predicted": jsonable(self.half_loss_predicted),
                "relative_shift": jsonable(self.half_loss_shift),
            },
            "validity": {
                "threshold": jsonable(self.threshold),
                "window": jsonable(self.validity_window),
            },
        }


@dataclass(frozen=True)
class Comparison:
    """One reference (usually a training run) against any number of predictions."""

    reference: str
    agreements: tuple[Agreement, ...]

    def __getitem__(self, name: str) -> Agreement:
        for agreement in self.agreements:
            if agreement.name == name:
                return agreement
        raise UserError(f"no prediction named {name!r}; {nearest(name, [a.name for a in self.agreements])}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "reference": self.reference,
            "predictions": {a.name: a.to_dict() for a in self.agreements},
        }

    def rows(self) -> list[dict[str, str]]:
        """One row of printed numbers for each prediction and parameter, the worst over seeds."""
        rows = []
        for agreement in self.agreements:
            halved = np.ravel(agreement.half_loss_reference)
            halved = halved[np.isfinite(halved)]
            until = float(halved.mean()) if halved.size else float(agreement.times[-1])
            shifts = np.ravel(agreement.half_loss_shift)
            shift = float(shifts[np.argmax(np.abs(shifts))])
            for parameter, error in agreement.relative_error.items():
                cosine = agreement.displacement_cosine[parameter][..., -1]
                null = agreement.displacement_null[parameter][..., -1]
                rows.append(
                    {
                        "prediction": agreement.name,
                        "status": agreement.status,
                        "parameter": parameter,
                        "worst error to half loss": _number(agreement.worst_error(parameter, until=until)),
                        "error at last shared time": _number(float(np.max(error[..., -1]))),
                        "last shared time": _number(float(agreement.times[-1])),
                        f"valid (≤ {agreement.threshold:g}) until": _number(agreement.validity_window[parameter]),
                        "displacement cosine": _cosine_number(float(np.min(cosine))),
                        "its null": _cosine_number(float(np.max(null))),
                        "half-loss shift": _number(shift),
                    }
                )
        return rows

    def table(self) -> str:
        """The rows as aligned plain text."""
        rows = self.rows()
        headings = list(rows[0])
        widths = [max(len(h), *(len(row[h]) for row in rows)) for h in headings]
        lines = ["  ".join(h.ljust(w) for h, w in zip(headings, widths, strict=True))]
        lines.append("  ".join("─" * w for w in widths))
        for row in rows:
            lines.append("  ".join(row[h].ljust(w) for h, w in zip(headings, widths, strict=True)))
        return "\n".join(line.rstrip() for line in lines)


def compare(reference: Trajectory, *predictions: Trajectory, threshold: float = 0.05) -> Comparison:
    """Compare predictions with a reference trajectory over the times each shares with it.

    **Arguments:**

    - `reference`: the trained trajectory, with or without a leading seed axis.
    - `predictions`: flows (or other trainings), each without a seed axis, with distinct names.
    - `threshold`: relative error up to which a prediction counts as valid; declare it before
      looking at the numbers.

    **Returns:** a `Comparison`. Units of time: t = learning rate × step.

    **Raises:** `UserError` when a parameter or axis is missing on one side, when sizes or
    coordinates of an axis differ, or when no time is shared; the message names them.
    """
    if not predictions:
        raise UserError("compare needs at least one prediction beside the reference")
    if not threshold > 0:
        raise UserError(f"threshold must be positive, found {threshold!r}")
    names = [prediction.name for prediction in predictions]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two predictions are named {name!r}: give each its own name")
    return Comparison(
        reference=reference.name,
        agreements=tuple(_agreement(reference, p, threshold) for p in predictions),
    )


def _agreement(reference: Trajectory, prediction: Trajectory, threshold: float) -> Agreement:
    if prediction.seeds is not None:
        raise UserError(f"prediction {prediction.name!r} has a seed axis: only the reference may have one")
    ours, theirs = reference.parameter_names, prediction.parameter_names
    for name in ours:
        if name not in theirs:
            raise UserError(
                f"prediction {prediction.name!r} lacks parameter {name!r} of "
                f"{reference.name!r}; {nearest(name, theirs)}"
            )
    for name in theirs:
        if name not in ours:
            raise UserError(
                f"reference {reference.name!r} lacks parameter {name!r} of prediction "
                f"{prediction.name!r}; {nearest(name, ours)}"
            )
    at_reference, at_prediction = shared_times(reference, prediction)
    times = reference.parameter_times[at_reference]
    errors: dict[str, np.ndarray] = {}
    directions: dict[str, np.ndarray] = {}
    displacements: dict[str, np.ndarray] = {}
    nulls: dict[str, np.ndarray] = {}
    null_stds: dict[str, np.ndarray] = {}
    windows: dict[str, float] = {}
    time_axis = 0 if reference.seeds is None else 1
    for name in ours:
        trained, predicted = aligned(reference, prediction, name)
        # Displacements are from each trajectory's own start, whether or not that time is shared.
        moved = np.take(trained - np.take(trained, [0], time_axis), at_reference, time_axis)
        moved_predicted = (predicted - predicted[:1])[at_prediction]
        trained, predicted = np.take(trained, at_reference, time_axis), predicted[at_prediction]
        flat, flat_predicted = (_flat(array, predicted.ndim) for array in (trained, predicted))
        errors[name] = relative_error(flat, flat_predicted)
        directions[name] = cosine(flat, flat_predicted)
        displacements[name] = cosine(*(_flat(array, predicted.ndim) for array in (moved, moved_predicted)))
        nulls[name], null_stds[name] = _matching_null(moved, moved_predicted)
        windows[name] = validity_window(times, errors[name], threshold)
    return Agreement(
        name=prediction.name,
        kind=prediction.kind,
        status=prediction.status,
        last_good_time=float(prediction.attributes["last_good_time"]),
        times=times,
        relative_error=errors,
        direction_cosine=directions,
        displacement_cosine=displacements,
        displacement_null=nulls,
        displacement_null_std=null_stds,
        reference_loss=_loss(reference)[..., _match(times, reference.times)[1]],
        predicted_loss=_loss(prediction)[..., _match(times, prediction.times)[1]],
        half_loss_reference=np.asarray(half_loss_time(reference.times, _loss(reference))),
        half_loss_predicted=float(half_loss_time(prediction.times, _loss(prediction))),
        threshold=threshold,
        validity_window=windows,
    )


def shared_times(reference: Trajectory, prediction: Trajectory) -> tuple[np.ndarray, np.ndarray]:
    """Indices into the two `parameter_times` of the times both have, up to rounding.

    **Raises:** `UserError` when no time after the start is shared, unless one of the two failed before its first one.
    """
    ours, theirs = reference.parameter_times, prediction.parameter_times
    at_ours, at_theirs = _match(ours, theirs)
    excused = any(run.status != "completed" and len(run.parameter_times) == 1 for run in (reference, prediction))
    if len(at_ours) == 0 or not (excused or np.any(ours[at_ours] > 0)):
        raise UserError(
            f"{reference.name!r} and {prediction.name!r} share no time after t = 0: "
            f"the first was saved at t = {_listing(ours)}, the second at t = {_listing(theirs)}; "
            "save both on one schedule"
        )
    return at_ours, at_theirs


def _match(ours: np.ndarray, theirs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices (i, j) with ours[i] = theirs[j] up to rounding; both arrays are increasing."""
    if len(ours) == 0 or len(theirs) == 0:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    right = np.clip(np.searchsorted(theirs, ours), 0, len(theirs) - 1)
    left = np.maximum(right - 1, 0)
    closer = np.where(np.abs(theirs[left] - ours) < np.abs(theirs[right] - ours), left, right)
    tolerance = _TIME_TOLERANCE * max(float(ours[-1]), float(theirs[-1]))
    matched = np.flatnonzero(np.abs(theirs[closer] - ours) <= tolerance)
    return matched, closer[matched]


def half_loss_time(times: np.ndarray, loss: np.ndarray) -> np.ndarray | float:
    """First time at which the loss has fallen to half of its first value.

    **Arguments:** `times` (time,); `loss` ([seed,] time).

    **Returns:** the crossing, interpolated linearly between the two save times around it; `nan`
    where the loss never halves; one number for each seed where there are several.
    """
    if loss.ndim > 1:
        return np.array([half_loss_time(times, member) for member in loss])
    below = np.flatnonzero(loss <= 0.5 * loss[0])
    if below.size == 0 or not loss[0] > 0:
        return math.nan
    after = int(below[0])
    before = after - 1
    fraction = (loss[before] - 0.5 * loss[0]) / (loss[before] - loss[after])
    return float(times[before] + fraction * (times[after] - times[before]))


def validity_window(times: np.ndarray, error: np.ndarray, threshold: float) -> float:
    """Last time up to which `error` ([seed,] time) has never exceeded `threshold`."""
    worst = error if error.ndim == 1 else np.max(error, axis=0)
    broken = np.flatnonzero(~(worst <= threshold))
    if broken.size == 0:
        return float(times[-1])
    return float(times[broken[0] - 1]) if broken[0] > 0 else math.nan


@dataclass(frozen=True)
class Convergence:
    """Error of a prediction against trainings at several learning rates, at one shared time.

    `slope` is the least-squares slope of log error against log learning rate (1 is expected for a
    gradient flow); `ratios` are errors at successive learning rates divided by each other, scaled
    to a halving: (error ratio)^(ln 2 / ln(η ratio)).
    """

    prediction: str
    parameter: str
    time: float
    learning_rates: tuple[float, ...]
    errors: tuple[float, ...]
    ratios: tuple[float, ...]
    slope: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "prediction": self.prediction,
            "parameter": self.parameter,
            "time": jsonable(self.time),
            "learning_rates": jsonable(self.learning_rates),
            "errors": jsonable(self.errors),
            "ratio_when_halved": jsonable(self.ratios),
            "slope": jsonable(self.slope),
        }


def common_times(prediction: Trajectory, trainings: Sequence[Trajectory]) -> np.ndarray:
    """The stored times after t = 0 that `prediction` shares with every training, up to rounding."""
    times = prediction.parameter_times
    shared = set(range(len(times)))
    for run in trainings:
        shared &= set(_match(run.parameter_times, times)[1].tolist())
    found = times[sorted(shared)]
    return found[found > 0]


def learning_rate_convergence(
    prediction: Trajectory,
    trainings: Sequence[Trajectory],
    *,
    parameter: str,
    until: float = math.inf,
) -> Convergence:
    """Error of `prediction` at the last time ≤ `until` that it shares with every training.

    **Arguments:** `trainings`: two or more runs from the same initial arrays, each with its own `learning_rate`; with
    several seeds the error is averaged over them.

    **Raises:** `UserError` for fewer than two different learning rates, an unknown parameter, or no shared time.
    """
    rates = [float(run.attributes["learning_rate"]) for run in trainings]
    if len(set(rates)) < 2:
        raise UserError(f"convergence needs two different learning rates, found {rates}")
    common = common_times(prediction, trainings)
    common = common[common <= until]
    if not common.size:
        raise UserError(
            f"{prediction.name!r} and the trainings at learning rates {sorted(rates)} share no time in (0, {until:g}]"
        )
    time = float(common[-1])
    found = []
    for run in trainings:
        agreement = _agreement(run, prediction, threshold=1.0)
        if parameter not in agreement.relative_error:
            raise UserError(f"no parameter {parameter!r}; {nearest(parameter, agreement.relative_error)}")
        index = int(np.argmin(np.abs(agreement.times - time)))
        found.append(float(np.mean(agreement.relative_error[parameter][..., index])))
    order = np.argsort(rates)[::-1]
    etas = np.array(rates)[order]
    errors = np.array(found)[order]
    ratios = (errors[:-1] / errors[1:]) ** (math.log(2) / np.log(etas[:-1] / etas[1:]))
    slope = np.polyfit(np.log(etas), np.log(errors), 1)[0]
    return Convergence(
        prediction=prediction.name,
        parameter=parameter,
        time=float(time),
        learning_rates=tuple(etas.tolist()),
        errors=tuple(errors.tolist()),
        ratios=tuple(ratios.tolist()),
        slope=float(slope),
    )


def jsonable(value: Any) -> Any:
    """Numbers, arrays and mappings as plain JSON values: nan → null, ±inf → "inf"/"-inf"."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, np.generic):
        return jsonable(value.item())
    if isinstance(value, float):
        if math.isnan(value):
            return None
        return value if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    return value


def aligned(reference: Trajectory, prediction: Trajectory, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Both arrays, ([seed,] time, axes in the prediction's order)."""
    predicted = parameter(prediction, name)
    trained = _in_axes_of(parameter(reference, name), predicted, name, reference, prediction)
    return trained.to_numpy(), predicted.to_numpy()


def parameter(trajectory: Trajectory, name: str) -> xr.DataArray:
    """A parameter over `trajectory.parameter_times`, with axes ([seed,] time, its own axes)."""
    if name not in trajectory.parameter_names:
        raise UserError(
            f"trajectory {trajectory.name!r} has no parameter {name!r}; {nearest(name, trajectory.parameter_names)}"
        )
    array = trajectory[name]
    return array.rename(parameter_time="time") if "parameter_time" in array.dims else array


def _in_axes_of(
    trained: xr.DataArray,
    predicted: xr.DataArray,
    name: str,
    reference: Trajectory,
    prediction: Trajectory,
) -> xr.DataArray:
    """`trained` reordered to the axes and the coordinates of `predicted`."""
    axes = [axis for axis in predicted.dims if axis != "time"]
    found = [axis for axis in trained.dims if axis not in ("time", "seed")]
    if set(axes) != set(found):
        raise UserError(
            f"parameter {name!r} has axes {tuple(found)} in {reference.name!r} but {tuple(axes)} in {prediction.name!r}"
        )
    for axis in axes:
        if trained.sizes[axis] != predicted.sizes[axis]:
            raise UserError(
                f"axis {axis!r} of parameter {name!r} has size {trained.sizes[axis]} in "
                f"{reference.name!r} but {predicted.sizes[axis]} in {prediction.name!r}"
            )
        if axis in trained.coords and axis in predicted.coords:
            wanted, there = predicted[axis].to_numpy(), trained[axis].to_numpy()
            if set(wanted.tolist()) != set(there.tolist()):
                raise UserError(
                    f"axis {axis!r} of parameter {name!r} names other rows in "
                    f"{reference.name!r} than in {prediction.name!r}"
                )
            if not np.array_equal(wanted, there):
                trained = trained.sel({axis: wanted})
    leading = ["seed", "time"] if "seed" in trained.dims else ["time"]
    return trained.transpose(*leading, *axes)


def _flat(array: np.ndarray, predicted_ndim: int) -> np.ndarray:
    """([seed,] time, everything else)."""
    leading = array.ndim - (predicted_ndim - 1)
    return array.reshape(*array.shape[:leading], -1)


def relative_error(reference: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """‖predicted − reference‖ / ‖reference‖ over the last axis; 0 where both are 0, inf where the reference alone is."""
    distance = np.linalg.norm(predicted - reference, axis=-1)
    size = np.broadcast_to(np.linalg.norm(reference, axis=-1), distance.shape)
    return np.divide(distance, size, out=np.where(distance == 0, 0.0, np.inf), where=size > 0)


def cosine(reference: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """The cosine of the two over the last axis; nan where one of them is 0."""
    product = np.sum(reference * predicted, axis=-1)
    size = np.linalg.norm(reference, axis=-1) * np.linalg.norm(predicted, axis=-1)
    return np.divide(product, size, out=np.full(product.shape, np.nan), where=size > 0)


def _matching_null(trained: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the cosine over random matchings of the first axis.

    With K = trained · predictedᵀ over rows and π a uniform permutation, Σ_a K[a, π(a)] has mean
    ΣK / n and variance Σ(doubly centred K)² / (n − 1) (Hoeffding 1951).
    """
    rows = predicted.shape[1] if predicted.ndim > 1 else 1
    by_row = trained.reshape(*trained.shape[: trained.ndim - predicted.ndim + 1], rows, -1)
    by_row_predicted = predicted.reshape(predicted.shape[0], rows, -1)
    kernel = by_row @ np.swapaxes(by_row_predicted, -1, -2)
    size = np.linalg.norm(_flat(trained, predicted.ndim), axis=-1) * np.linalg.norm(
        _flat(predicted, predicted.ndim), axis=-1
    )
    nowhere = np.full(size.shape, np.nan)
    mean = np.divide(kernel.sum(axis=(-1, -2)) / rows, size, out=nowhere.copy(), where=size > 0)
    centred = kernel - kernel.mean(axis=-1, keepdims=True)
    centred = centred - centred.mean(axis=-2, keepdims=True)
    deviation = np.sqrt(np.sum(centred**2, axis=(-1, -2)) / max(rows - 1, 1))
    return mean, np.divide(deviation, size, out=nowhere, where=size > 0)


def _loss(trajectory: Trajectory) -> np.ndarray:
    return trajectory["loss"].to_numpy()


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"


def _cosine_number(value: float) -> str:
    # Six decimals: more would print rounding errors of a cosine that is 0.
    return "–" if math.isnan(value) else f"{value + 0.0:.6f}".replace("-0.000000", "0.000000")


def _listing(times: np.ndarray) -> str:
    shown = ", ".join(f"{t:g}" for t in times[:5])
    return shown + (", …" if len(times) > 5 else "")
