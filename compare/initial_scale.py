"""How the error of a prediction falls with the scale of the initial parameters: right-hand sides, and whole flows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.certificate import gradient_flow, relative_error
from compare.comparison import compare, jsonable
from simulate.trajectory import Trajectory
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations

if TYPE_CHECKING:
    from theory.data import Dataset

# Of the run's own scale, at which right-hand sides are evaluated.
SCALES = tuple(2.0**-k for k in range(-1, 6))
# A slope is fitted on so many of the smallest scales, and on errors that rounding (float64) does not govern.
FITTED, NOISE = 4, 1e-11


@dataclass(frozen=True)
class ScaleConvergence:
    """Errors of one prediction at several initial scales, in increasing order of scale.

    - `quantity`: what the error is of, e.g. "dE/dt at the start"; `reference`: what it is held against.
    - `scales`, `errors`: (scale,); `fitted`: which of them the slope is fitted to.
    - `slope`: least squares of log error against log scale; nan where fewer than two can be fitted. An expansion that
      leaves out the first term r degrees above the leading one has slope r.
    - `relative`: whether scales are relative to a run's own (weights of degree a are multiplied by ε^a).
    """

    prediction: str
    reference: str
    quantity: str
    scales: tuple[float, ...]
    errors: tuple[float, ...]
    fitted: tuple[bool, ...]
    slope: float
    relative: bool

    def to_dict(self) -> dict[str, Any]:
        names = ("prediction", "reference", "quantity", "scales", "errors", "fitted", "slope", "relative")
        return {name: jsonable(getattr(self, name)) for name in names}


def right_hand_side_errors(
    equations: EvolutionEquations,
    dataset: Dataset,
    initial: Mapping[str, np.ndarray],
    *,
    parameter: str,
    name: str = "derived",
    scales: Sequence[float] = SCALES,
) -> ScaleConvergence | None:
    """The relative error of a derived equation against the exact gradient, at the scaled initial parameters ε^a θ_0.

    a is the weight of each parameter: 1, or 0 where its initial size is not small. The first omitted term governs at small
    ε; the error at ε = 1 is what the truncation costs at the start of the run.

    **Arguments:** `parameter`: whose equation; `name`: what to call the prediction; `scales`: the values of ε.

    **Returns:** None where nothing is left out, or where errors exist at fewer than two scales.
    """
    if equations.degree is None:
        return None
    architecture = equations.architecture
    weights = {key: float(spec.weight) for key, spec in architecture.parameters.items()}
    data = Data(dataset.tokens, dataset.labels, dataset.weights)
    pairs = []
    for scale in sorted(scales):
        scaled = {key: scale ** weights[key] * np.asarray(value, np.float64) for key, value in initial.items()}
        wanted = gradient_flow(architecture, scaled, data, equations.loss, scale)[parameter]
        found = right_hand_sides(equations, scaled, data, epsilon=scale)[parameter]
        error = relative_error(found, wanted)
        if NOISE < error < math.inf:
            pairs.append((scale, error))
    if len(pairs) < 2:
        return None
    return _convergence(pairs, name, "the exact gradient", f"d{parameter}/dt at the start", relative=True)


def initial_scale_convergence(
    runs: Iterable[tuple[float, Trajectory, Trajectory]], *, parameter: str, until: float = math.inf
) -> ScaleConvergence:
    """The largest relative error of `parameter` up to `until`, over runs from initial parameters of several scales.

    **Arguments:** `runs`: (scale, reference, prediction) for each scale, compared at the times the two share; over seeds
    of the reference the worst counts.

    **Raises:** `UserError` for fewer than two different scales or an unknown parameter.
    """
    found, names = [], set()
    for scale, reference, prediction in runs:
        if not scale > 0:
            raise UserError(f"an initial scale must be positive, found {scale!r}")
        agreement = compare(reference, prediction).agreements[0]
        found.append((float(scale), agreement.worst_error(parameter, until=until)))
        names.add((reference.name, prediction.name))
    if len({scale for scale, _ in found}) < max(2, len(found)):
        raise UserError(f"convergence needs two or more different initial scales, found {[s for s, _ in found]}")
    if len(names) > 1:
        listed = sorted({" against ".join(reversed(pair)) for pair in names})
        raise UserError(f"all scales must be of one prediction and one reference, found {', '.join(listed)}")
    reference, prediction = names.pop()
    reach = "" if math.isinf(until) else f" up to t = {until:.4g}"
    return _convergence(sorted(found), prediction, reference, f"{parameter}{reach}", relative=False)


def _convergence(
    pairs: Sequence[tuple[float, float]], prediction: str, reference: str, quantity: str, *, relative: bool
) -> ScaleConvergence:
    scales, errors = (np.array(values) for values in zip(*pairs, strict=True))
    usable = np.flatnonzero((errors > NOISE) & np.isfinite(errors))[:FITTED]
    fitted = np.isin(np.arange(len(scales)), usable)
    slope = math.nan
    if len(usable) > 1:
        slope = float(np.polyfit(np.log(scales[usable]), np.log(errors[usable]), 1)[0])
    return ScaleConvergence(
        prediction,
        reference,
        quantity,
        tuple(scales.tolist()),
        tuple(errors.tolist()),
        tuple(fitted.tolist()),
        slope,
        relative,
    )
