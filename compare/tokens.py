"""Prediction against training token by token: a relative error and a direction for each embedding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.comparison import aligned, cosine, jsonable, parameter, relative_error, shared_times
from simulate.trajectory import Trajectory
from theory.errors import UserError
from theory.language import TOKEN


@dataclass(frozen=True)
class TokenAgreement:
    """How far a prediction agrees with the reference for each token α, over the times they share.

    Arrays have axes ([seed,] time, token); `tokens` are the coordinates of the axis `axis`, its numbers where it has none.

    - `relative_error`: ‖ŵ_α − w_α‖ / ‖w_α‖, w the reference.
    - `direction_cosine`: cos(w_α, ŵ_α).
    - `displacement_cosine`: cos(w_α − w_α(0), ŵ_α − ŵ_α(0)); nan at t = 0 and for a token that never moves.
    """

    name: str
    parameter: str
    axis: str
    tokens: tuple[Any, ...]
    times: np.ndarray
    relative_error: np.ndarray
    direction_cosine: np.ndarray
    displacement_cosine: np.ndarray

    def worst(self, index: int) -> tuple[float, Any]:
        """(relative error, token) of the token predicted worst at shared time number `index`, over tokens and seeds."""
        errors = self.relative_error[..., index, :]
        at = np.unravel_index(int(np.argmax(errors)), errors.shape)
        return float(errors[at]), self.tokens[at[-1]]

    def to_dict(self) -> dict[str, Any]:
        names = ("times", "relative_error", "direction_cosine", "displacement_cosine")
        arrays: Mapping[str, Any] = {name: jsonable(getattr(self, name)) for name in names}
        return {
            "name": self.name,
            "parameter": self.parameter,
            "axis": self.axis,
            "tokens": jsonable(list(self.tokens)),
            **arrays,
        }


def token_agreement(
    reference: Trajectory, prediction: Trajectory, *, parameter_name: str, axis: str = TOKEN
) -> TokenAgreement:
    """Relative error and cosines of each row of a parameter.

    **Arguments:** `reference`: with or without a seed axis; `prediction`: without one; `parameter_name`: the embedding;
    `axis`: whose rows are compared ("token", or "label" for an unembedding); all other axes are one vector.

    **Raises:** `UserError` when the parameter lacks `axis`, or as `compare.comparison.compare` does.
    """
    if prediction.seeds is not None:
        raise UserError(f"prediction {prediction.name!r} has a seed axis: only the reference may have one")
    trained, predicted = aligned(reference, prediction, parameter_name)
    labelled = parameter(prediction, parameter_name)
    if axis not in labelled.dims:
        axes = ", ".join(str(dim) for dim in labelled.dims if dim != "time")
        raise UserError(
            f"parameter {parameter_name!r} has the axes ({axes}) and no axis {axis!r} to compare row by row"
        )
    at_reference, at_prediction = shared_times(reference, prediction)
    place = labelled.dims.index(axis) - labelled.ndim
    trained, predicted = (_rows(array, place, labelled.ndim) for array in (trained, predicted))
    # Times are the axis before the rows. Displacements are from each trajectory's own start.
    moved, moved_predicted = trained - trained[..., :1, :, :], predicted - predicted[..., :1, :, :]
    trained, moved = trained[..., at_reference, :, :], moved[..., at_reference, :, :]
    predicted, moved_predicted = predicted[at_prediction], moved_predicted[at_prediction]
    rows = labelled[axis].to_numpy().tolist() if axis in labelled.coords else range(labelled.sizes[axis])
    return TokenAgreement(
        name=prediction.name,
        parameter=parameter_name,
        axis=axis,
        tokens=tuple(rows),
        times=reference.parameter_times[at_reference],
        relative_error=relative_error(trained, predicted),
        direction_cosine=cosine(trained, predicted),
        displacement_cosine=cosine(moved, moved_predicted),
    )


def _rows(array: np.ndarray, place: int, ndim: int) -> np.ndarray:
    """([seed,] time, row, everything else)."""
    leading = array.ndim - ndim + 1
    moved = np.moveaxis(array, place, leading)
    return moved.reshape(*moved.shape[: leading + 1], -1)
