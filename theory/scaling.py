"""Scaling laws of the staircase: how the part of each signature order grows with the initial scale, and late.

The order-m part of an embedding's label-driven equation is what depends on exactly m context positions. It is computed
without any series, by Möbius inversion over subsets of context positions. Write dw_α/dt = E[Σ_i 1{x_i=α} g_i(x, y)] and
g_i^S for g_i with the embeddings of all positions outside S ∪ {i} set to zero. Then

    part_T = Σ_{S⊆T} (−1)^{|T∖S|} g_i^S,    g_i = Σ_T part_T  over sets T of context positions,

and for a series part_T collects the monomials in which each position of T occurs, and no other: the sum over distinct
positions that φ_α^{y;|T|} multiplies (exponents l ≥ 0, n_r ≥ 1 of Theorem 1, arXiv 2608.30315). Summed over i and over all
T of size m, only G_a = Σ_{|A|=a} E[label-driven part with the positions outside A set to zero] is needed:

    order-m part = Σ_{a=1}^{m+1} (−1)^{m+1−a} binom(L−a, m+1−a) G_a.

It needs no series, so ReLU has its parts as well.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import sympy

from theory import activations, language
from theory.algebra.scalar import Degree
from theory.architectures import check_labels, feed_forward
from theory.errors import UserError, nearest
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.initial import initialise
from theory.language import LABEL, TOKEN, Architecture
from theory.reverse import LABEL_DRIVEN
from theory.signature_kinds import signature_kind

if TYPE_CHECKING:
    from theory.data import Dataset

# Parts smaller than this, relative to order 0, are taken for the rounding of what cancels in them.
NOISE = 1e-11
# How many scales, the smallest ones above the noise, a slope is fitted on.
FITTED = 3
# Samples evaluated at once.
CHUNK = 8192


def order_parts(
    architecture: Architecture,
    dataset: Dataset,
    parameters: Mapping[str, np.ndarray],
    *,
    orders: int | None = None,
    parameter: str | None = None,
) -> np.ndarray:
    """The exact label-driven part of an embedding's equation, split by signature order.

    **Arguments:** `parameters`: name → array; `orders`: the largest order m, L − 1 by default, when the parts sum to the
    whole; `parameter`: the embedding, by default the first parameter that tokens look up.

    **Returns:** (order, *axes of the parameter).

    **Raises:** `UserError` when the parameter is not an embedding, or also enters otherwise than by looking tokens up.

    See this module for the definition.
    """
    return _OrderParts(architecture, dataset, orders, parameter)(parameters)


class _OrderParts:
    """The split of `order_parts`, its equations derived and its masked samples made once."""

    def __init__(self, architecture: Architecture, dataset: Dataset, orders: int | None, parameter: str | None):
        self.name = embedding(architecture, parameter)
        length = dataset.length
        if orders is not None and (isinstance(orders, bool) or int(orders) != orders or orders < 0):
            raise UserError(f"the largest order is a whole number of at least 0, found {orders}")
        check_labels(architecture, dataset)
        self.orders = min(length - 1, length - 1 if orders is None else int(orders))
        self.length, self.n_tokens = length, dataset.n_tokens
        self.architecture, self.dataset = architecture, dataset
        self.equations = _label_driven(derive(architecture), self.name)
        for term in self.equations[self.name]:
            if signature_kind(term, self.equations.symbols, self.equations[self.name].axes, False) is None:
                raise UserError(
                    f"'{self.name}' of {architecture.name} also enters otherwise than by looking tokens up, so its equation "
                    f"has no order in the context"
                )
        self.masked = [self._masked(count) for count in range(1, self.orders + 2)]

    def __call__(self, parameters: Mapping[str, np.ndarray]) -> np.ndarray:
        # Positions outside a subset hold one more token, whose embedding is zero.
        extended = {name: self._with_zero_token(name, array) for name, array in parameters.items()}
        place = self.architecture.parameters[self.name].axes.index(TOKEN)
        sums = [np.take(self._evaluate(extended, data), np.arange(self.n_tokens), place) for data in self.masked]
        parts = []
        for m in range(self.orders + 1):
            total = np.zeros_like(sums[0])
            for a in range(1, m + 2):
                total += (-1) ** (m + 1 - a) * math.comb(self.length - a, m + 1 - a) * sums[a - 1]
            parts.append(total)
        return np.stack(parts)

    def _evaluate(self, parameters: Mapping[str, np.ndarray], data: Data) -> np.ndarray:
        total = np.zeros(parameters[self.name].shape)
        for start in range(0, len(data.weights), CHUNK):
            rows = slice(start, start + CHUNK)
            part = Data(data.tokens[rows], data.labels[rows], data.weights[rows])
            total += right_hand_sides(self.equations, parameters, part)[self.name]
        return total

    def _with_zero_token(self, name: str, array: np.ndarray) -> np.ndarray:
        axes = self.architecture.parameters[name].axes
        widths = [(0, int(axis == TOKEN)) for axis in axes]
        return np.pad(np.asarray(array, dtype=np.float64), widths)

    def _masked(self, count: int) -> Data:
        """The samples with all but `count` positions set to the zero token, for every choice, equal ones merged."""
        tokens, labels = self.dataset.tokens, self.dataset.labels.reshape(self.dataset.n_samples, -1)
        rows = []
        for subset in itertools.combinations(range(self.length), count):
            masked = np.full_like(tokens, self.n_tokens)
            masked[:, subset] = tokens[:, subset]
            rows.append(np.concatenate([masked, labels], axis=1))
        unique, inverse = np.unique(np.concatenate(rows), axis=0, return_inverse=True)
        weights = np.bincount(inverse.ravel(), weights=np.tile(self.dataset.weights, len(rows)), minlength=len(unique))
        labels = unique[:, self.length :]
        labels = labels if self.dataset.labels_per_position else labels[:, 0]
        return Data(unique[:, : self.length], labels, weights)


def embedding(architecture: Architecture, parameter: str | None = None) -> str:
    """The parameter that tokens look up: the one named, or the first there is.

    **Raises:** `UserError` when there is none, or tokens are tied to another axis (tied embeddings).
    """
    candidates = [name for name, spec in architecture.parameters.items() if TOKEN in spec.axes]
    if parameter is not None and parameter not in candidates:
        raise UserError(f"{architecture.name} has no embedding '{parameter}'; {nearest(parameter, candidates)}")
    if not candidates:
        raise UserError(f"{architecture.name} has no parameter with an axis '{TOKEN}'")
    if architecture.root(LABEL) == TOKEN:
        raise UserError(
            f"{architecture.name} ties its labels to its tokens, so its embedding's equation has no order in the context"
        )
    return parameter or candidates[0]


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OrderScaling:
    """One order's scaling.

    **Arguments:** `order`: m; `degree`: the lowest degree at which its signatures enter the right-hand side, by the
    staircase (None where unknown); `predicted`: that degree less order 0's; `fitted`: the log–log slope in the initial
    scale of RMS(order m)/RMS(order 0), None where the part vanishes; `ratios`: those ratios, scale by scale.
    """

    order: int
    degree: Degree | None
    predicted: Degree | None
    fitted: float | None
    ratios: tuple[float, ...]


@dataclass(frozen=True)
class Hierarchy:
    """Proposition 1, sharpened: the parts of order m of the label-driven equation against the initial scale.

    **Arguments:** `scales`: the initial standard deviations (of a parameter of weight a: their a-th power); `seeds`: whose
    squares are averaged; `rows`: one for each order; `note`: what was predicted without a series, or not at all.
    """

    architecture: str
    parameter: str
    dataset: str
    scales: tuple[float, ...]
    seeds: tuple[int, ...]
    rows: tuple[OrderScaling, ...]
    note: str = ""

    def to_text(self) -> str:
        """The table as aligned text."""
        head = (
            f"order-m part over order-0 part of the label-driven d{self.parameter}/dt, {self.architecture} on {self.dataset}\n"
            f"log-log slope in the initial scale, {min(self.scales):g} to {max(self.scales):g}, {len(self.seeds)} seeds"
        )
        high, low = int(np.argmax(self.scales)), int(np.argmin(self.scales))
        table = [
            ["order", "degree", "predicted", "fitted", f"ratio at {self.scales[high]:g}", f"at {self.scales[low]:g}"]
        ]
        for row in self.rows:
            degree, predicted = ("-" if value is None else str(value) for value in (row.degree, row.predicted))
            fitted = "vanishes" if row.fitted is None else f"{round(row.fitted, 3) + 0.0:.3f}"
            ratios = ["0" if row.fitted is None else f"{row.ratios[n]:.3e}" for n in (high, low)]
            table.append([str(row.order), degree, predicted, fitted, *ratios])
        widths = [max(len(line[n]) for line in table) for n in range(len(table[0]))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in table]
        return "\n".join([head, *lines, *([self.note] if self.note else [])])

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON-able values."""
        rows = [
            {
                "order": row.order,
                "degree": None if row.degree is None else str(row.degree),
                "predicted": None if row.predicted is None else float(row.predicted),
                "fitted": row.fitted,
                "ratios": list(row.ratios),
            }
            for row in self.rows
        ]
        return {
            "architecture": self.architecture,
            "parameter": self.parameter,
            "dataset": self.dataset,
            "scales": list(self.scales),
            "seeds": list(self.seeds),
            "rows": rows,
            "note": self.note,
        }

    def to_json(self, indent: int | None = None) -> str:
        """The table as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)


def hierarchy(
    architecture: Architecture,
    dataset: Dataset,
    sizes: Mapping[str, int],
    *,
    orders: int = 3,
    scales: Sequence[float] = (0.04, 0.02, 0.01, 0.005, 0.0025),
    seeds: Iterable[int] = (0, 1, 2),
    parameter: str | None = None,
    degree: int = 8,
) -> Hierarchy:
    """How fast each signature order vanishes at small initialisation, predicted and measured.

    **Arguments:**

    - `sizes`: axis → size, of the axes that the dataset does not decide.
    - `orders`: the largest order m (L − 1 at most).
    - `scales`: initial standard deviations, at least two; the slope is fitted on the three smallest at which
    the part exceeds rounding.
    - `seeds`: the initial arrays are those of `initialise(scale=1, seed=…)` times the scale.
    - `parameter`: the embedding, by default the first parameter that tokens look up.
    - `degree`: of the loss, up to which the staircase is searched for an order.

    **Returns:** a `Hierarchy`. The prediction is k_m − k_0, k_m the lowest degree at which the staircase has order m: for the
    feed-forward model k_m = min{k ≥ m+1 : C_k ≠ 0}. A function with a kink at 0 has no series; where all of the lowest
    degree passes through it, the prediction is 0 by homogeneity (ReLU: no hierarchy), and none elsewhere.

    Source: arXiv 2608.30315, Proposition 1, which is false for C_1 = 0 as printed.
    """
    ladder = tuple(float(s) for s in scales)
    if len(set(ladder)) < 2 or not all(math.isfinite(s) and s > 0 for s in ladder):
        raise UserError(f"a slope needs at least two different positive scales, found {list(scales)}")
    chosen = tuple(seeds)
    if not chosen:
        raise UserError("a hierarchy needs at least one seed")
    parts = _OrderParts(architecture, dataset, orders, parameter)
    squares = np.zeros((parts.orders + 1, len(ladder)))
    for seed in chosen:
        unit = initialise(architecture, {**sizes, **dataset.sizes}, scale=1.0, seed=seed)
        for n, scale in enumerate(ladder):
            weights = {name: float(spec.weight) for name, spec in architecture.parameters.items()}
            split = parts({name: array * scale ** weights[name] for name, array in unit.items()})
            squares[:, n] += np.mean(split.reshape(len(split), -1) ** 2, axis=1)
    rms = np.sqrt(squares / len(chosen))
    if not np.all(rms[0] > 0):
        raise UserError(f"the order-0 part of {architecture.name} vanishes on {dataset.name}, so no ratio to it exists")
    degrees, note = _predicted(architecture, parts.name, parts.orders, degree)
    rows = []
    for m in range(parts.orders + 1):
        ratios = rms[m] / rms[0]
        above = np.flatnonzero(ratios > NOISE)
        fitted = None
        if len(above) >= 2:
            # The smallest scales are nearest to the law, as long as rounding stays out.
            used = sorted(above, key=lambda n: ladder[n])[:FITTED]
            fitted = float(np.polyfit(np.log(np.array(ladder)[used]), np.log(ratios[used]), 1)[0])
        found, lowest = degrees.get(m), degrees.get(0)
        predicted = None if found is None or lowest is None else found - lowest
        rows.append(OrderScaling(m, found, predicted, fitted, tuple(map(float, ratios))))
    return Hierarchy(architecture.name, parts.name, dataset.name, ladder, chosen, tuple(rows), note)


def _predicted(architecture: Architecture, name: str, orders: int, limit: int) -> tuple[dict[int, Degree], str]:
    """The lowest degree of each order, by the staircase, and a note where it has none to give."""
    named = architecture.nonlinearities.items()
    rough = {key: node for key, node in named if isinstance(node, language.Elementwise) and not node.function.analytic}
    kinked = [key for key, node in rough.items() if _kinked(node.function)]
    if kinked:
        return _by_homogeneity(architecture, name, orders, limit, list(rough))
    if rough:
        return {}, f"{', '.join(rough)}: not analytic at 0, so nothing is predicted"
    found: dict[int, Degree] = {}
    problem: UserError | None = None
    derived = False
    for degree in range(1, limit + 1):
        try:
            equations = derive(architecture, degree)
        except UserError as error:
            problem = problem or error
            continue
        derived = True
        found = _lowest_degrees(_label_driven(equations, name), name, orders)
        if len(found) > orders:
            break
    if not derived and problem is not None:
        raise problem
    missing = [str(m) for m in range(orders + 1) if m not in found]
    note = f"no signature of order {', '.join(missing)} up to loss degree {limit}" if missing else ""
    return found, note


def _lowest_degrees(equations: EvolutionEquations, name: str, orders: int) -> dict[int, Degree]:
    result: dict[int, Degree] = {}
    for step in equations.staircase(name):
        # Sums over positions that are not distinct contain coincidences, which are of lower order.
        covered = (step.signature.order,) if step.signature.distinct else range(step.signature.order + 1)
        for m in covered:
            if m <= orders:
                result[m] = min(result.get(m, step.degree), step.degree)
    return result


def _by_homogeneity(
    architecture: Architecture, name: str, orders: int, limit: int, kinked: list[str]
) -> tuple[dict[int, Degree], str]:
    """All orders at the lowest degree, where all terms of that degree hold a function with a kink at 0."""
    listing = ", ".join(kinked)
    for degree in range(1, limit + 1):
        try:
            equations = _label_driven(derive(architecture, degree, (*kinked, "prediction")), name)
        except UserError:
            continue
        if not len(equations[name]):
            continue
        lowest = equations[name].degrees[0]
        first = equations[name].where(lambda term, lowest=lowest: term.degree == lowest)
        axes = equations[name].axes
        kinds = [signature_kind(term, equations.symbols, axes, False) for term in first]
        if all(kind is not None and kind.weights for kind in kinds):
            note = f"{listing}: not analytic at 0; homogeneous, so every order has the lowest degree: slope 0, no hierarchy"
            return dict.fromkeys(range(orders + 1), lowest), note
        break
    return {}, f"{listing}: not analytic at 0 and not in every term of the lowest degree, so nothing is predicted"


def _kinked(function: activations.Activation) -> bool:
    """Whether a function is no power c·z^k to leading order at 0: its two sides differ there."""
    t = sympy.Symbol("t", positive=True)
    power = function.leading_power
    right, left = (function.expression.subs(activations.z, sign * t) for sign in (1, -1))
    limits = [sympy.limit(sympy.diff(sympy.simplify(side), t, power), t, 0, "+") for side in (right, left)]
    return sympy.simplify(limits[0] - (-1) ** power * limits[1]) != 0


def _label_driven(equations: EvolutionEquations, name: str) -> EvolutionEquations:
    return replace(equations, equations={name: equations[name].label_driven})


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LateRatios:
    """Proposition 2: late, with σ = z^K, every accessible order scales as s_U s_E^{K−1}, up to a prefactor.

    **Arguments:** `power`: K; `length`: L; `prefactors`: binom(L−1, m)·B_m(K) for m = 0 … min(L, K) − 1, with
    B_m(K) = m!·S(K, m+1) read off the staircase (S: Stirling numbers of the second kind).
    """

    power: int
    length: int
    prefactors: tuple[int, ...]

    @property
    def largest(self) -> int:
        """The order of the largest prefactor (not always the highest order that is accessible)."""
        return int(np.argmax(self.prefactors))

    def to_text(self) -> str:
        """The prefactors as text."""
        lines = [f"late prefactors of order m over order 0, sigma = z^{self.power}, L = {self.length}"]
        lines += [
            f"  {m}  {value}" + ("  <- largest" if m == self.largest else "") for m, value in enumerate(self.prefactors)
        ]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The prefactors as JSON-able values."""
        return {
            "power": self.power,
            "length": self.length,
            "prefactors": list(self.prefactors),
            "largest": self.largest,
        }


def late_ratios(power: int, length: int) -> LateRatios:
    """The late prefactors of the feed-forward model with σ = z^K.

    **Arguments:** `power`: K ≥ 1; `length`: L ≥ 1.

    **Raises:** `UserError` for others.

    Source: arXiv 2608.30315, Proposition 2, with the prefactor corrected: printed is (m+1)!·S(K−1, m+1), without the
    binomial.
    """
    for what, value in (("power", power), ("length", length)):
        if isinstance(value, bool) or int(value) != value or value < 1:
            raise UserError(f"late ratios need a {what} of at least 1, found {value}")
    architecture = feed_forward(activations.z ** int(power))
    name = embedding(architecture)
    steps = _label_driven(derive(architecture, int(power) + 1), name).staircase(name)
    by_order = {step.signature.order: step.multiplier for step in steps if step.part == LABEL_DRIVEN}
    found = [
        int(sympy.Integer(math.comb(length - 1, m)) * by_order[m] / by_order[0])
        for m in range(min(int(length), int(power)))
    ]
    return LateRatios(int(power), int(length), tuple(found))
