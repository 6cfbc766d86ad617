"""Certificates: a derived system of equations held against automatic differentiation, exactly and order by order.

Three checks, for any architecture. *Exact*: with everything kept the derived right-hand sides equal reverse-mode
differentiation of the interpreted architecture. *Taylor*: each degree of each expanded right-hand side equals its Taylor
coefficient along ε ↦ ε^a θ, by jax's Taylor mode, which shares no code with the derivation. *Slope*: the relative error of a
truncated right-hand side falls with ε by the power that the derivation predicts.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from theory.algebra.scalar import Degree
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.expansion import FunctionDefinition
from theory.interpret import loss
from theory.language import Architecture, Elementwise

# Stated before any run: rounding of float64 with room for cancellation, and the tolerance of a fitted power.
EXACT_BOUND = 1e-10
TAYLOR_BOUND = 1e-10
SLOPE_TOLERANCE = 0.15
# Errors are relative to what is compared, or to this share of the largest coefficient where that vanishes by cancellation:
# rounding of the largest, 1e-16, is 1e-12 of it.
FLOOR = 1e-4
# Slopes are fitted to errors above rounding (a hundred times what the exact check measured, within these bounds) and below
# the largest that the leading power still governs. The smaller the better: at power 6 an error of 1e-11 still has ε = 0.015.
SLOPE_RANGE = (1e-13, 1e-11, 1e-3)
# How many errors, the smallest in the range, a slope is fitted to.
_POINTS = 4
# From one ε to the next: half a halving, since at a power of 12 whole ones would leave two errors in the range.
_RATIO = math.sqrt(2)


@dataclass(frozen=True)
class Check:
    """One comparison: what was measured, against which expectation, and whether it passed."""

    kind: str
    subject: str
    measured: float
    expected: str
    passed: bool
    note: str = ""


@dataclass(frozen=True)
class Certificate:
    """The outcome of `certify`: all checks, with the sizes and seed that reproduce them."""

    architecture: str
    degree: Degree | None
    sizes: Mapping[str, int]
    seed: int
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed; without any check nothing is certified."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def to_text(self) -> str:
        """A table of the checks, worst first within each kind."""
        reach = "nothing expanded" if self.degree is None else f"expanded to loss degree {self.degree}"
        sizes = ", ".join(f"{axis} {n}" for axis, n in sorted(self.sizes.items()))
        lines = [f"certificate of {self.architecture}: {reach} (sizes: {sizes}; seed {self.seed})"]
        width = max((len(check.subject) for check in self.checks), default=0)
        for check in self.checks:
            mark = "pass" if check.passed else "FAIL"
            note = f"  ({check.note})" if check.note else ""
            lines.append(
                f"  {mark}  {check.kind:<6} {check.subject:<{width}}  {check.measured:10.3g}  {check.expected}{note}"
            )
        lines += [f"  note  {note}" for note in self.notes]
        lines.append(
            "certified" if self.passed else f"NOT CERTIFIED: {len(self.failures)} of {len(self.checks)} failed"
        )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The certificate as JSON-able values."""
        return {
            "architecture": self.architecture,
            "degree": None if self.degree is None else str(self.degree),
            "sizes": dict(self.sizes),
            "seed": self.seed,
            "passed": self.passed,
            "checks": [vars(check) for check in self.checks],
            "notes": list(self.notes),
        }


def certify(
    architecture: Architecture,
    *,
    degree: int | None = None,
    keep: tuple[str, ...] = (),
    sizes: Mapping[str, int] | None = None,
    samples: int = 9,
    seed: int = 0,
    loss_kind: str = "cross_entropy",
    equations: Mapping[str, EvolutionEquations] | None = None,
) -> Certificate:
    """Hold the derived equations of an architecture against automatic differentiation, on random data and parameters.

    **Arguments:** `degree`: of the loss, up to which to expand (by default four past the leading one, or further until
    every equation has a term); `keep`: nonlinearities that stay kept while the rest is expanded; `sizes`: axis → size (by
    default small and all different); `samples`: of the random joint law; `seed`; `loss_kind`: as in `theory.derive`;
    `equations`: certify these instead of freshly derived ones, by mode ("kept", "expanded").

    **Returns:** a `Certificate`; look at `.passed`.
    """
    given = dict(equations or {})
    rng = np.random.default_rng(seed)
    chosen = _sizes(architecture, sizes)
    data = _random_law(architecture, chosen, samples, rng)
    # Of order one, so that no degree hides behind another.
    parameters = {name: rng.normal(0.0, 0.7, shape) for name, shape in architecture.shapes(chosen).items()}
    notes: list[str] = []
    kept = given.get("kept") or derive(architecture, loss=loss_kind)
    checks = _exact_checks(architecture, kept, parameters, data, loss_kind)
    rough = [
        f"'{name}' ({node.function.name})"
        for name, node in architecture.nonlinearities.items()
        if isinstance(node, Elementwise)
        and not node.function.analytic
        and node.function.pure_power is None
        and not {name, node.name} & set(keep)
    ]
    reach: Degree | None = None
    if rough:
        notes.append(f"not expanded: {', '.join(rough)} is not analytic at 0, so there is no series to check")
    else:
        expanded = given.get("expanded")
        if expanded is None:
            chosen_degree = degree if degree is not None else _telling_degree(architecture, kept, keep, loss_kind)
            expanded = derive(architecture, chosen_degree, keep, loss=loss_kind)
        reach = expanded.degree
        singular = _singular(expanded)
        if singular or expanded.keep:
            why = f"'{singular}' is expanded around its leading part" if singular else "quantities are kept"
            notes.append(f"no Taylor coefficients, since {why}: the slope behind every degree is checked instead")
        else:
            checks += _taylor_checks(architecture, expanded, parameters, data, loss_kind, chosen["token"])
        every_cut = bool(singular or expanded.keep)
        rounding = max(check.measured for check in checks if check.kind == "exact")
        slopes, more = _slope_checks(architecture, expanded, parameters, data, loss_kind, every_cut, rounding)
        checks += slopes
        notes += more
    return Certificate(architecture.name, reach, chosen, seed, tuple(checks), tuple(notes))


def gradient_flow(
    architecture: Architecture, parameters: Mapping[str, Any], data: Data, kind: str, epsilon: float = 1.0
) -> dict[str, Any]:
    """−∇L by reverse-mode differentiation of the interpreted architecture, float64."""
    import jax

    with jax.enable_x64(True):
        gradient = _compiled_gradient(architecture, kind)
        found = gradient(dict(parameters), data.tokens, data.labels, data.weights, epsilon)
        return {name: np.asarray(value) for name, value in found.items()}


@functools.lru_cache(maxsize=64)
def _compiled_gradient(architecture: Architecture, kind: str) -> Any:
    # One compilation serves all the scales of a slope.
    import jax
    import jax.numpy as jnp

    def minus_loss(p: Any, tokens: Any, labels: Any, weights: Any, epsilon: Any) -> Any:
        return -loss(architecture, p, tokens, labels, weights, xp=jnp, kind=kind, epsilon=epsilon)

    # Optimised, although that costs time: unoptimised, the compiler returned non-finite gradients for a table read twice.
    return jax.jit(jax.grad(minus_loss))


def taylor_coefficients(
    architecture: Architecture, parameters: Mapping[str, Any], data: Data, highest: int, kind: str, vocabulary: int
) -> list[dict[str, Any]]:
    """The Taylor coefficients of −∇L along ε ↦ ε^a θ at ε = 0, orders 0 … `highest`, by jax's Taylor mode."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.jet import jet

    weights = {name: spec.weight for name, spec in architecture.parameters.items()}
    if any(weight.denominator != 1 for weight in weights.values()):
        raise UserError(f"{architecture.name} has a parameter whose weight is no whole number: no series in ε")
    with jax.enable_x64(True):
        # One-hot arrays, since Taylor mode has no rule for gathering rows.
        tokens = jnp.asarray(np.eye(vocabulary)[np.asarray(data.tokens)])
        labels, law = jnp.asarray(data.labels), jnp.asarray(data.weights)
        arrays = {name: jnp.asarray(v) for name, v in parameters.items()}

        def along(epsilon: Any) -> dict[str, Any]:
            scaled = {name: epsilon ** int(weights[name]) * v for name, v in arrays.items()}
            return jax.grad(lambda p: -loss(architecture, p, tokens, labels, law, xp=jnp, kind=kind, epsilon=epsilon))(
                scaled
            )

        direction = [1.0] + [0.0] * (highest - 1)
        # Run once: what the compiler would save in running it would spend in optimising.
        once = jax.jit(lambda: jet(along, (0.0,), (direction,)), compiler_options={"xla_backend_optimization_level": 0})
        first, rest = once()
        result = [{name: np.asarray(value) for name, value in first.items()}]
        for order in range(highest):
            factor = math.factorial(order + 1)
            result.append({name: np.asarray(value[order]) / factor for name, value in rest.items()})
        return result


def relative_error(found: Any, wanted: Any, floor: float = 0.0) -> float:
    """‖found − wanted‖ / max(‖wanted‖, floor), 0 when both vanish."""
    difference = float(np.linalg.norm(np.asarray(found) - np.asarray(wanted)))
    scale = max(float(np.linalg.norm(wanted)), floor)
    if not np.isfinite(difference):
        return math.inf
    return 0.0 if difference == 0 else difference / scale if scale else math.inf


def _exact_checks(
    architecture: Architecture, equations: EvolutionEquations, parameters: Mapping[str, Any], data: Data, kind: str
) -> list[Check]:
    derived = right_hand_sides(equations, parameters, data)
    wanted = gradient_flow(architecture, parameters, data, kind)
    # Against the whole gradient's size as well: a parameter may have no gradient at all.
    floor = FLOOR * max(float(np.linalg.norm(value)) for value in wanted.values())
    checks = []
    for name in architecture.parameters:
        error = relative_error(derived[name], wanted[name], floor)
        checks.append(Check("exact", f"d{name}/dt", error, f"<= {EXACT_BOUND:g}", error <= EXACT_BOUND))
    return checks


def _taylor_checks(
    architecture: Architecture,
    equations: EvolutionEquations,
    parameters: Mapping[str, Any],
    data: Data,
    kind: str,
    vocabulary: int,
) -> list[Check]:
    assert equations.degree is not None
    highest = int(equations.degree)
    wanted = taylor_coefficients(architecture, parameters, data, highest, kind, vocabulary)
    checks = []
    # Against the size of all coefficients: those of one parameter may cancel at every order.
    floor = FLOOR * max(float(np.linalg.norm(value)) for coefficients in wanted for value in coefficients.values())
    for name, spec in architecture.parameters.items():
        for order in range(highest - int(spec.weight) + 1):
            part = equations.of_degree(order + spec.weight)
            derived = right_hand_sides(part, parameters, data)[name]
            error = relative_error(derived, wanted[order][name], floor)
            if len(part[name]) or error > TAYLOR_BOUND:
                passed = error <= TAYLOR_BOUND
                checks.append(Check("taylor", f"d{name}/dt, degree {order}", error, f"<= {TAYLOR_BOUND:g}", passed))
    return checks


def _slope_checks(
    architecture: Architecture,
    equations: EvolutionEquations,
    parameters: Mapping[str, Any],
    data: Data,
    kind: str,
    every_cut: bool,
    rounding: float,
) -> tuple[list[Check], list[str]]:
    """The power of ε with which the relative error of truncated right-hand sides falls.

    Of the whole derivation, and, with `every_cut`, of its truncation after each degree: a wrong coefficient at any degree
    then shows in the slope of the cut behind it.
    """
    assert equations.degree is not None
    further = _further(architecture, equations, kind)
    low = float(np.clip(100 * rounding, *SLOPE_RANGE[:2]))
    present = _present_degrees(further, parameters, data)
    scale = _along(equations, parameters, data)
    cuts = {name: equation.degrees if every_cut else equation.degrees[-1:] for name, equation in equations.items()}
    errors: dict[tuple[str, Degree], list[_Error]] = {(n, d): [] for n in cuts for d in cuts[n]}
    weights = {name: float(spec.weight) for name, spec in architecture.parameters.items()}
    for step in range(0, 60):
        epsilon = _RATIO**-step
        scaled = {name: epsilon ** weights[name] * v for name, v in parameters.items()}
        wanted = gradient_flow(architecture, scaled, data, kind, epsilon)
        parts = scale(epsilon, scaled)
        for (name, cut), series in errors.items():
            derived = sum(value for degree, value in parts[name].items() if degree <= cut)
            series.append(_Error.of(epsilon, derived, wanted[name]))
        # Far enough when errors reach rounding, or, at low powers, when ε itself is small against 1.
        small = epsilon < 2.0**-8
        if all(e[-1].relative < low or (small and len(_usable(e, low)) > _POINTS) for e in errors.values()):
            break
    checks, notes = [], []
    for name in architecture.parameters:
        if not equations[name].degrees:
            notes.append(f"d{name}/dt has no term up to loss degree {equations.degree}")
        for cut in cuts[name]:
            subject = f"d{name}/dt" + (f", cut at degree {cut}" if every_cut else "")
            nothing_omitted = not any(degree > cut for degree in further[name].degrees)
            check = _slope(subject, errors[name, cut], cut, present[name], low, nothing_omitted)
            if check is None:
                notes.append(f"{subject}: too few errors between {low:.1g} and {SLOPE_RANGE[-1]:g} for a slope")
            else:
                checks.append(check)
    return checks, notes


def _along(equations: EvolutionEquations, parameters: Mapping[str, Any], data: Data) -> Any:
    """ε, scaled parameters ↦ parameter → degree → that part of the right-hand side.

    Fully expanded parts are homogeneous and evaluated once; what holds kept quantities is evaluated at every scale.
    """
    split = {degree: equations.of_degree(degree) for degree in equations.loss_degrees}
    weights = {name: spec.weight for name, spec in equations.architecture.parameters.items()}

    def evaluated(values: Mapping[str, Any], epsilon: float = 1.0) -> dict[str, dict[Degree, Any]]:
        result: dict[str, dict[Degree, Any]] = {name: {} for name in equations}
        for degree, part in split.items():
            for name, value in right_hand_sides(part, values, data, epsilon=epsilon).items():
                if len(part[name]):
                    result[name][degree - weights[name]] = value
        return result

    if equations.keep:
        return lambda epsilon, scaled: evaluated(scaled, epsilon)
    once = evaluated(parameters)
    return lambda epsilon, scaled: {
        name: {degree: epsilon ** float(degree) * value for degree, value in parts.items()}
        for name, parts in once.items()
    }


def _present_degrees(
    equations: EvolutionEquations, parameters: Mapping[str, Any], data: Data
) -> dict[str, tuple[Degree, ...]]:
    """The degrees of each right-hand side whose terms do not cancel at these sizes (with two labels, odd ones may)."""
    found: dict[str, tuple[Degree, ...]] = {}
    parts = _along(equations, parameters, data)(1.0, parameters)
    for name, by_degree in parts.items():
        norms = {degree: float(np.linalg.norm(value)) for degree, value in by_degree.items()}
        largest = max(norms.values(), default=0.0)
        found[name] = tuple(degree for degree in sorted(norms) if norms[degree] > 1e-10 * largest)
    return found


_DIGITS_LOST = 1e-10


@dataclass(frozen=True)
class _Error:
    """What a truncated right-hand side lacks at one ε: the array, its relative norm, and the norm it is relative to."""

    epsilon: float
    lacking: Any
    relative: float
    norm: float

    @classmethod
    def of(cls, epsilon: float, derived: Any, wanted: Any) -> _Error:
        lacking = np.asarray(wanted) - np.asarray(derived)
        return cls(epsilon, lacking, relative_error(derived, wanted), float(np.linalg.norm(wanted)))


def _usable(series: list[_Error], low: float) -> list[_Error]:
    return [error for error in series if low <= error.relative <= SLOPE_RANGE[-1]]


def _without_next_power(series: list[_Error], leading: float, following: float) -> list[_Error]:
    """The series with the power of ε that follows the leading one eliminated between neighbours (Richardson).

    A leading coefficient that happens to be small beside the next shows its power only at an ε where rounding has taken over.
    With r = _RATIO, r^q x(ε/r) − x(ε) holds no c ε^q, and what it leaves of c ε^p is divided out. Rounding grows by
    1/(1 − r^(p−q)) in it; a wrong coefficient of any other power stays.
    """
    found = []
    for larger, smaller in itertools.pairwise(series):
        rest = (_RATIO**following * smaller.lacking - larger.lacking) / (_RATIO**following - _RATIO**leading)
        found.append(_Error(smaller.epsilon, rest, relative_error(rest, 0 * rest, smaller.norm), smaller.norm))
    return found


def _slope(
    subject: str,
    series: list[_Error],
    cut: Degree,
    degrees: tuple[Degree, ...],
    low: float,
    nothing_omitted: bool,
) -> Check | None:
    omitted = [degree for degree in degrees if degree > cut]
    if nothing_omitted:
        worst = max((error.relative for error in series if error.epsilon <= 0.5), default=series[-1].relative)
        return Check("slope", subject, worst, "no omitted term: equal", worst <= EXACT_BOUND)
    smallest = min(error.relative for error in series)
    if smallest <= _DIGITS_LOST and series[-1].relative > series[-2].relative / 2:
        # A gradient that cancels (z − sin z at small z) loses digits as ε falls, so that its error stops falling: errors are
        # those of truncation up to there, and clear of it. No wrong term is as small as that.
        series = series[: [error.relative for error in series].index(smallest) + 1]
        low = max(low, 30 * smallest)
    if smallest > SLOPE_RANGE[-1]:
        # No approach at all: the terms are wrong, not too few the errors.
        return Check("slope", subject, smallest, f"an error below {SLOPE_RANGE[-1]:g}", False)
    if not omitted or degrees[0] > cut:
        return None
    # Degrees come in whole steps, or in those of the parameters' weights.
    step = min([Fraction(1), *(after - before for before, after in itertools.pairwise(degrees))])
    usable = _usable(_without_next_power(series, float(omitted[0]), float(omitted[0] + step)), low)[-_POINTS:]
    if len(usable) < _POINTS:
        return None
    power = float(omitted[0] - degrees[0])
    epsilons, errors = np.log([[error.epsilon, error.relative] for error in usable]).T
    slope = float(np.polyfit(epsilons, errors, 1)[0])
    return Check("slope", subject, slope, f"{power:g} ± {SLOPE_TOLERANCE:g}", abs(slope - power) <= SLOPE_TOLERANCE)


def _further(architecture: Architecture, equations: EvolutionEquations, kind: str) -> EvolutionEquations:
    """The equations to the next degrees, far enough that each parameter's first omitted degree is among them."""
    assert equations.degree is not None
    further: EvolutionEquations = equations
    # The gap between degrees of the loss is at most its leading degree.
    reach = max(5, equations.loss_degrees[0]) if equations.loss_degrees else 5
    for degree in range(int(equations.degree) + 1, int(equations.degree + reach) + 1):
        further = _derived_to(architecture, degree, equations.keep, kind) or further
        if all(
            any(d > equations.degree - spec.weight for d in further[name].degrees)
            for name, spec in architecture.parameters.items()
        ):
            break
    return further


def _derived_to(architecture: Architecture, degree: int, keep: tuple[str, ...], kind: str) -> EvolutionEquations | None:
    try:
        return derive(architecture, degree, keep, loss=kind)
    except UserError:
        # No term of this degree: the next one decides.
        return None


def _telling_degree(architecture: Architecture, kept: EvolutionEquations, keep: tuple[str, ...], kind: str) -> int:
    """Four degrees past the leading one, and further until there are two degrees and every equation has a term.

    At the leading degree alone a wrong 1/k! passes unseen. The second one is at most twice the first, where the softmax of
    the loss supplies it; an equation that has no term even with everything kept, or none in eight degrees, is not waited for.
    """
    found: EvolutionEquations | None = None
    degree = 0
    while True:
        degree += 1
        found = _derived_to(architecture, degree, keep, kind) or found
        if found is None:
            if degree == 16:
                raise UserError(f"no term of the loss of {architecture.name} has a degree up to 16")
            continue
        lead = found.loss_degrees[0]
        waiting = any(not len(found[name]) for name in found if len(kept[name])) and degree < lead + 8
        alone = len(found.loss_degrees) < 2 and degree < 2 * lead
        if degree >= lead + 4 and not waiting and not alone:
            assert found.degree is not None
            return int(found.degree)


def _singular(equations: EvolutionEquations) -> str:
    """A normaliser that is expanded around a leading part of positive degree, so that ε = 0 is no regular point."""
    for quantity in equations.quantities:
        if isinstance(quantity, FunctionDefinition) and quantity.symbol.degree < 0:
            return quantity.symbol.name
    for node in equations.architecture.nodes:
        if isinstance(node, Elementwise) and node.function.pure_power is not None:
            if any(term.degree < 0 for equation in equations.values() for term in equation):
                return node.name
    return ""


def _sizes(architecture: Architecture, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Small sizes, all different, so that no axis can pass for another."""
    chosen = {"token": 5, "label": 6, "position": 3}
    others = [a for a in architecture.axes if a not in chosen]
    chosen |= {axis: size for axis, size in zip(others, (4, 7, 2, 8, 9, 10, 11, 12), strict=False)}
    chosen |= architecture.fixed_sizes | dict(sizes or {})
    if architecture.root("label") != "label":
        chosen["label"] = chosen[architecture.root("label")]
    known = {*architecture.axes, "token", "label", "position"}
    return architecture.all_sizes({axis: n for axis, n in chosen.items() if axis in known})


def _random_law(architecture: Architecture, sizes: Mapping[str, int], samples: int, rng: np.random.Generator) -> Data:
    tokens = rng.integers(0, sizes["token"], (samples, sizes["position"]))
    shape = tokens.shape if architecture.labels_per_position else (samples,)
    weights = rng.random(samples) + 0.1
    return Data(tokens, rng.integers(0, sizes["label"], shape), weights / weights.sum())
