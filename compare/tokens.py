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


@dataclass(frozen=True)
class BandAgreement:
    """Means of a `TokenAgreement` over bands of frequency, the most frequent tokens first: arrays ([seed,] time, band).

    `tokens`: how many each band has. `probability`: of all of them together. Tokens that never move have no displacement and
    do not enter its mean, which is nan where none of a band has moved.
    """

    times: np.ndarray
    tokens: tuple[int, ...]
    probability: tuple[float, ...]
    relative_error: np.ndarray
    direction_cosine: np.ndarray
    displacement_cosine: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        names = ("times", "tokens", "probability", "relative_error", "direction_cosine", "displacement_cosine")
        return {name: jsonable(getattr(self, name)) for name in names}


def by_frequency(agreement: TokenAgreement, probability: np.ndarray, *, bands: int = 3) -> BandAgreement:
    """Predicted against trained rows by how frequent they are: bands of as many tokens each, those that occur.

    **Arguments:** `probability`: (token,), as `theory.signatures.token_probability` of the data or a marginal of a corpus's
    moments; ties go to the smaller index.

    **Raises:** `UserError` for a probability of another number of tokens, or more bands than tokens that occur.
    """
    probability = np.asarray(probability, dtype=np.float64)
    if probability.shape != (len(agreement.tokens),):
        raise UserError(
            f"the probability must be of {len(agreement.tokens)} tokens, found the shape {probability.shape}"
        )
    order = np.argsort(-probability, kind="stable")
    order = order[probability[order] > 0]
    if not 1 <= bands <= len(order):
        raise UserError(f"bands must be from 1 to {len(order)}, the number of tokens that occur, found {bands}")
    groups = np.array_split(order, bands)

    def means(values: np.ndarray) -> np.ndarray:
        taken = [values[..., group] for group in groups]
        known = [np.isfinite(of_band) for of_band in taken]
        totals = [np.where(is_known, of_band, 0.0).sum(axis=-1) for is_known, of_band in zip(known, taken, strict=True)]
        counts = [is_known.sum(axis=-1) for is_known in known]
        return np.stack(
            [np.where(n > 0, s / np.maximum(n, 1), np.nan) for s, n in zip(totals, counts, strict=True)], axis=-1
        )

    return BandAgreement(
        times=agreement.times,
        tokens=tuple(len(group) for group in groups),
        probability=tuple(float(probability[group].sum()) for group in groups),
        relative_error=means(agreement.relative_error),
        direction_cosine=means(agreement.direction_cosine),
        displacement_cosine=means(agreement.displacement_cosine),
    )


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
