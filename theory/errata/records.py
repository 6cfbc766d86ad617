"""A printed formula as data, what is measured of it, and the verdict that follows from the measured error."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

import numpy as np
import sympy

from theory.data import Dataset

# Two ways of writing one number differ by rounding alone.
BOUND = 1e-12
# Values are shown where there are so few of them.
_SHOWN = 8

Metric = Literal["relative", "exponent bound", "direction"]


@dataclass(frozen=True, eq=False)
class Instance:
    """One random instance: a stock model, its arrays, and a joint law.

    **Arguments:** `model`, `activation`: what `theory.architectures.load` makes the architecture of; `parameters`: name →
    array; `data`: the joint law of tokens and labels; `coefficients`: C_0, C_1, …, C_K of the activation, for formulas
    that are written in them.
    """

    model: str
    activation: str | sympy.Expr | None
    parameters: Mapping[str, np.ndarray]
    data: Dataset
    coefficients: tuple[Fraction, ...] = ()

    @property
    def power(self) -> int:
        """K, the highest power of a polynomial activation."""
        return len(self.coefficients) - 1


Formula = Callable[[Instance], np.ndarray]
Shape = Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Case:
    """Where a formula is tried: an instance of each shape, under one condition.

    **Arguments:** `sample`: makes an instance of a random generator and a shape (axis → size); `shapes`; `condition`: what
    distinguishes this case from the record's others, as a verdict would say it.
    """

    sample: Callable[[np.random.Generator, Shape], Instance]
    shapes: tuple[Shape, ...]
    condition: str = ""


@dataclass(frozen=True, eq=False)
class Correction:
    """What stands in place of a formula that is flagged: LaTeX and numbers."""

    latex: str
    formula: Formula
    metric: Metric = "relative"


@dataclass(frozen=True, eq=False)
class PrintedFormula:
    """A formula of the seed paper, and the terms of the derived equations that it claims to equal.

    **Arguments:**

    - `name`: an identifier; `place`: where the paper has it; `equation`: its number, as far as it is known.
    - `latex`, `formula`: as printed, read literally.
    - `derived`: the same quantity by the engine's derived equations; `terms`: which of their terms, in words.
    - `cases`: where both are evaluated; `metric`, `bound`: how far apart they may be to agree.
    - `correction`, `remark`: what is right instead and why, shown where the measured error flags the formula.
    - `note`: what is to be known in any case (what was reconstructed, and how).
    - `whole`: what the error may be compared with beside the derived quantity, where that is one of several parts.

    Source: arXiv 2608.30315.
    """

    name: str
    place: str
    equation: str
    latex: str
    formula: Formula
    derived: Formula
    terms: str
    cases: tuple[Case, ...]
    correction: Correction | None = None
    remark: str = ""
    note: str = ""
    metric: Metric = "relative"
    bound: float = BOUND
    whole: Formula | None = None


@dataclass(frozen=True)
class Measurement:
    """What was measured on one instance.

    **Arguments:** `error`: of the printed formula; `corrected`: of the correction, if there is one; `of_whole`: the printed
    formula's error relative to the whole equation, if it is one part of several; `printed`, `derived`: the values, where they
    are few.
    """

    condition: str
    error: float
    corrected: float | None
    of_whole: float | None
    printed: tuple[float, ...]
    derived: tuple[float, ...]


@dataclass(frozen=True)
class Finding:
    """A printed formula with what was measured of it, and the verdict that follows."""

    record: PrintedFormula = field(repr=False)
    measurements: tuple[Measurement, ...]

    @property
    def verdict(self) -> str:
        """ "agrees", "differs", or "agrees only if …", by the conditions under which every error is within the bound."""
        largest: dict[str, float] = {}
        for measured in self.measurements:
            largest[measured.condition] = max(largest.get(measured.condition, 0.0), measured.error)
        within = [condition for condition, error in largest.items() if error <= self.record.bound]
        if len(within) == len(largest):
            return "agrees"
        return f"agrees only if {' or '.join(within)}" if within else "differs"

    @property
    def flagged(self) -> bool:
        """Whether the printed formula is not right as it stands."""
        return self.verdict != "agrees"

    @property
    def explained(self) -> bool:
        """Whether a flagged formula has a remark, and a correction that agrees with the derived equations everywhere."""
        corrected = [m.corrected for m in self.measurements]
        right = all(error is not None and error <= self.record.bound for error in corrected)
        return not self.flagged or (bool(self.record.remark) and right)

    @property
    def telling(self) -> tuple[Measurement, ...]:
        """The measurements that the verdict rests on: those beyond the bound, or all where there are none."""
        beyond = tuple(m for m in self.measurements if m.error > self.record.bound)
        return beyond or self.measurements


def examine(record: PrintedFormula, seed: int = 0) -> Finding:
    """Evaluate a printed formula, its derived counterpart and its correction on random instances.

    The instances depend on the seed and the record's name alone.
    """
    generator = np.random.default_rng([seed, zlib.crc32(record.name.encode())])
    measurements = [
        _measured(record, case.condition, case.sample(generator, shape))
        for case in record.cases
        for shape in case.shapes
    ]
    return Finding(record, tuple(measurements))


def _measured(record: PrintedFormula, condition: str, instance: Instance) -> Measurement:
    printed, derived = record.formula(instance), record.derived(instance)
    corrected = of_whole = None
    if record.correction is not None:
        corrected = distance(record.correction.metric, record.correction.formula(instance), derived)
    if record.whole is not None:
        of_whole = float(np.linalg.norm(printed - derived) / np.linalg.norm(record.whole(instance)))
    few = derived.ndim == 1 and derived.size <= _SHOWN
    return Measurement(
        condition,
        distance(record.metric, printed, derived),
        corrected,
        of_whole,
        tuple(map(float, np.ravel(printed))) if few else (),
        tuple(map(float, np.ravel(derived))) if few else (),
    )


def distance(metric: Metric, printed: np.ndarray, derived: np.ndarray) -> float:
    """How far a printed quantity is from the derived one.

    "relative": ‖printed − derived‖ / ‖derived‖; "direction": one less their cosine; "exponent bound": where an O(ε^q) claims
    too high a power q of the initial scale, by how much of it at most (a lower power is a true bound).
    """
    if printed.shape != derived.shape:
        raise ValueError(f"the printed quantity has shape {printed.shape}, the derived one {derived.shape}")
    if not (np.isfinite(printed).all() and np.isfinite(derived).all()):
        return float("inf")
    size = float(np.linalg.norm(derived))
    if metric == "exponent bound":
        excess = np.maximum(printed - derived, 0)
        return float(np.max(excess / np.where(printed > 0, printed, 1), initial=0.0))
    if size == 0:
        return 0.0 if not printed.any() else float("inf")
    if metric == "direction":
        other = float(np.linalg.norm(printed))
        # Half the squared distance of unit arrays: one less the cosine without cancellation.
        return float(np.sum((printed / other - derived / size) ** 2) / 2) if other else float("inf")
    return float(np.linalg.norm(printed - derived)) / size
