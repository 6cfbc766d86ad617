"""Random architectures: derived equations against two independent routes, for whatever the language can compose.

*Kept*: against reverse-mode differentiation of the interpreted architecture by torch, which compiles nothing. *Expanded*: each
degree against the Taylor coefficient of that same gradient along ε ↦ ε^a θ, read off its values at real ε: interpolation at
Chebyshev points converges geometrically, since the gradient is analytic in ε, and costs a few milliseconds where compiling
Taylor mode costs seconds. It shares with the derivation only the interpreter, and knows its own error. *Mixed*: with one
nonlinearity kept the error must fall with ε at least as fast as the first omitted power.

`make fuzz` draws 200 architectures, `make test-slow` 15.
"""

from __future__ import annotations

import functools
import os
from collections import Counter

import numpy as np
import sympy
import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from numpy.polynomial import chebyshev
from random_architectures import Drawn, architectures

import theory.language as lang
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.interpret import loss

DRAWS = int(os.environ.get("FUZZ_DRAWS", "15"))
KEPT_BOUND = 1e-10
# Of a Taylor coefficient, beside the interpolation's own rounding.
TAYLOR_BOUND = 1e-7
# Where a derivation has this many terms, no further degree is tried.
ENOUGH_TERMS = 120
# One that has more than this is left for the degree before.
MOST_TERMS = 400
HIGHEST = 10
# Where a power of ε is fitted, higher ones would be lost in rounding before they show.
HIGHEST_MIXED = 6
SAMPLES = 5
# Differences below this share of the whole gradient are rounding.
ROUNDING = 1e-12


class Trial:
    """One drawn architecture on random data, with its gradient by torch."""

    def __init__(self, drawn: Drawn, scale: float = 0.5):
        self.drawn, self.architecture, self.loss = drawn, drawn.architecture, drawn.loss
        rng = np.random.default_rng(drawn.seed)
        sizes = self.architecture.all_sizes(drawn.sizes)
        self.parameters = {n: rng.normal(0, scale, s) for n, s in self.architecture.shapes(drawn.sizes).items()}
        self.weights = {name: int(spec.weight) for name, spec in self.architecture.parameters.items()}
        tokens = rng.integers(0, sizes["token"], (SAMPLES, sizes["position"]))
        shape = tokens.shape if self.architecture.labels_per_position else (SAMPLES,)
        n_labels = sizes[self.architecture.root("label")]
        law = rng.random(SAMPLES) + 0.1
        self.data = Data(tokens, rng.integers(0, n_labels, shape), law / law.sum())
        self.tensors = [torch.tensor(value) for value in (tokens, self.data.labels, self.data.weights)]

    def scaled(self, epsilon: float) -> dict[str, np.ndarray]:
        return {name: epsilon ** self.weights[name] * value for name, value in self.parameters.items()}

    def gradient(self, epsilon: float = 1.0) -> dict[str, np.ndarray]:
        """−∇L at ε^a θ."""
        leaves = {name: torch.tensor(value, requires_grad=True) for name, value in self.scaled(epsilon).items()}
        value = loss(self.architecture, leaves, *self.tensors, xp=torch, kind=self.loss, epsilon=epsilon)
        # An architecture may multiply its parameters by what is zero, and then has no gradient.
        found = torch.autograd.grad(-value, list(leaves.values()), materialize_grads=True)
        return {name: gradient.numpy() for name, gradient in zip(leaves, found, strict=True)}

    def derived(self, equations: EvolutionEquations, epsilon: float = 1.0) -> dict[str, np.ndarray]:
        return right_hand_sides(equations, self.scaled(epsilon), self.data, epsilon=epsilon)

    @property
    def kinks(self) -> tuple[str, ...]:
        return tuple(
            name
            for name, node in self.architecture.nonlinearities.items()
            if isinstance(node, lang.Elementwise) and not node.function.analytic and node.function.pure_power is None
        )

    @property
    def is_rich(self) -> bool:
        """Two or more nonlinearities and a contraction over positions."""
        over = [axis for node in self.architecture.nodes for axis in _summed(node)]
        contracted = any(self.architecture.root(axis) == "position" for axis in over)
        return contracted and len(self.architecture.nonlinearities) >= 2


def _summed(node: lang.Expression) -> tuple[str, ...]:
    if isinstance(node, lang.Total):
        return (node.over,)
    # A shift or a rotation is no contraction of the data.
    return node.over if isinstance(node, lang.Dot) and not isinstance(node.left, lang.Constant) else ()


def expanded(trial: Trial, keep: tuple[str, ...], highest: int = HIGHEST) -> EvolutionEquations | None:
    """The derivation to the highest degree that stays small; None where no degree within reach has a term.

    On the way: a derivation to a lower degree is a part of one to a higher, term by term.
    """
    found = None
    for degree in range(1, highest + 1):
        try:
            further = derive(trial.architecture, degree, keep, loss=trial.loss)
        except UserError as error:
            if "no term of the loss" not in str(error):
                raise
            continue
        if found is not None:
            for name, equation in found.items():
                assert equation.terms == further[name].where(lambda t: t.degree in equation.degrees).terms, trial.drawn  # noqa: B023
            if further.term_count > MOST_TERMS:
                break
        found = further
        if found.term_count > ENOUGH_TERMS:
            break
    return found


def taylor(trial: Trial, highest: int, one_sided: bool, lowest: int) -> dict[str, tuple[np.ndarray, np.ndarray]] | None:
    """Parameter → Taylor coefficients of ε^−lowest · (−∇L) and the rounding in each; None where ε is not resolved.

    `one_sided`: with a normaliser the gradient is analytic for ε > 0 alone, and continues through 0 from there.
    """
    points = chebyshev.chebpts1(48)
    for radius in (2.0, 1.0, 0.5, 0.25, 0.1):
        epsilons = radius * ((points + 1) / 2 if one_sided else points)
        gradients = [trial.gradient(float(epsilon)) for epsilon in epsilons]
        result = {}
        for name, value in trial.parameters.items():
            values = np.array([g[name].ravel() * e**-lowest for g, e in zip(gradients, epsilons, strict=True)])
            fitted = chebyshev.chebfit(points, values, len(points) - 1)
            sizes = np.abs(fitted).max(1)
            # The last coefficients are rounding, once those before have decayed to it.
            noise = max(4 * np.finfo(float).eps * float(sizes.max()), 3 * float(sizes[-8:].max()))
            (above,) = np.nonzero(sizes > noise)
            terms = int(above[-1]) + 1 if len(above) else 1
            if not noise <= 1e-12 * sizes.max():
                break
            change = _in_powers(terms, highest, radius, one_sided)
            shape = (highest + 1, *value.shape)
            result[name] = (change.T @ fitted[:terms]).reshape(shape), noise * np.abs(change).sum(0)
        else:
            return result
    return None


@functools.cache
def _in_powers(terms: int, highest: int, radius: float, one_sided: bool) -> np.ndarray:
    """The coefficients of T_n(ε/r), or of T_n(2ε/r − 1), in powers of ε: [n, power]."""
    line = sympy.Poly(2 * sympy.Symbol("e") - 1) if one_sided else sympy.Poly(sympy.Symbol("e"))
    before, now = sympy.Poly(1, line.gen), line
    result = np.zeros((terms, highest + 1))
    for n in range(terms):
        known = [float(c) for c in reversed(before.all_coeffs())][: highest + 1]
        result[n, : len(known)] = known
        before, now = now, 2 * line * now - before
    return result / radius ** np.arange(highest + 1)


def check_kept(trial: Trial) -> float:
    """The worst relative error of the exact equations."""
    wanted = trial.gradient()
    found = trial.derived(derive(trial.architecture, loss=trial.loss))
    largest = max(float(np.linalg.norm(value)) for value in wanted.values())
    assert np.isfinite(largest)
    worst = 0.0
    for name, value in wanted.items():
        size = max(float(np.linalg.norm(value)), 1e-4 * largest, 1e-12)
        worst = max(worst, float(np.linalg.norm(found[name] - value)) / size)
    assert worst <= KEPT_BOUND, (trial.drawn, worst)
    return worst


def check_taylor(trial: Trial, equations: EvolutionEquations) -> tuple[int, float]:
    """The number of coefficients that were told apart from rounding, and the worst relative error of one."""
    assert equations.degree is not None
    degrees = {name: [int(degree) for degree in equation.degrees] for name, equation in equations.items()}
    one_sided = any(
        isinstance(node, lang.Elementwise) and node.function.pure_power is not None for node in trial.architecture.nodes
    )
    lowest = min(0, *(degree for found in degrees.values() for degree in found))
    highest = int(equations.degree)
    coefficients = taylor(trial, highest - lowest, one_sided, lowest)
    if coefficients is None:
        return 0, 0.0
    told, worst = 0, 0.0
    largest = max(float(np.abs(wanted).max()) for wanted, _ in coefficients.values())
    parts = {degree: trial.derived(equations.of_degree(degree)) for degree in range(lowest, highest + 3)}
    for name, (wanted, noise) in coefficients.items():
        weight = trial.weights[name]
        for degree in range(lowest, highest - weight + 1):
            value = parts[degree + weight][name]
            difference = float(np.abs(value - wanted[degree - lowest]).max())
            size, rounding = float(np.abs(value).max()), float(noise[degree - lowest]) + 1e-15 * largest
            assert difference <= TAYLOR_BOUND * size + 10 * rounding, (
                trial.drawn,
                name,
                degree,
                difference,
                size,
                rounding,
            )
            if rounding < 1e-4 * size:
                told += 1
                worst = max(worst, difference / size)
    return told, worst


def check_mixed(trial: Trial, keep: tuple[str, ...], equations: EvolutionEquations) -> int:
    """Parameters whose error was seen to fall with ε at least as fast as the first omitted power."""
    assert equations.degree is not None
    errors: dict[str, list[float]] = {name: [] for name in trial.parameters}
    for step in range(1, 28):
        epsilon = 2.0 ** (-step / 2)
        wanted, found = trial.gradient(epsilon), trial.derived(equations, epsilon)
        # A gradient that cancels to little still carries the rounding of what cancelled.
        rounding = ROUNDING * max(float(np.abs(value).max()) for value in wanted.values())
        for name, value in wanted.items():
            difference = float(np.abs(found[name] - value).max())
            # What is rounding at one scale is rounding at all smaller ones.
            if len(errors[name]) == step - 1 and difference > rounding:
                errors[name].append(difference)
        if all(len(series) < step for series in errors.values()):
            break
    told = 0
    for name, series in errors.items():
        omitted = int(equations.degree) + 1 - trial.weights[name]
        if len(series) >= 5:
            # log error = c + p·log ε + b·ε, the last term being the next order.
            epsilons = 2.0 ** (-np.arange(1, len(series) + 1) / 2)[-6:]
            columns = np.stack([np.ones_like(epsilons), np.log(epsilons), epsilons], axis=1)
            power = float(np.linalg.lstsq(columns, np.log(series[-6:]), rcond=None)[0][1])
            power = max(power, *(-2 * np.diff(np.log2(series))[-3:]))
            assert power >= omitted - 0.4, (trial.drawn, keep, name, omitted, power, series)
            told += 1
    return told


def run(drawn: Drawn, counts: Counter, worst: Counter) -> None:
    """All checks of one draw."""
    trial = Trial(drawn)
    counts["draws"] += 1
    counts["rich"] += trial.is_rich
    worst["kept"] = max(worst["kept"], check_kept(trial))
    try:
        equations = expanded(trial, trial.kinks, HIGHEST_MIXED if trial.kinks else HIGHEST)
    except UserError as error:
        # A normaliser of what vanishes identically has no leading part to expand around: refused, and rightly.
        assert "vanishes identically" in str(error), drawn
        counts["refused"] += 1
        return
    if equations is None:
        counts["no term within reach"] += 1
        return
    if trial.kinks:
        counts["mixed"] += check_mixed(trial, trial.kinks, equations) > 0
        return
    told, error = check_taylor(trial, equations)
    counts["expanded"] += told > 0
    counts["coefficients"] += told
    worst["taylor"] = max(worst["taylor"], error)
    names = list(trial.architecture.nonlinearities)
    if len(names) >= 2:
        keep = (names[drawn.seed % len(names)],)
        mixed = expanded(trial, keep, HIGHEST_MIXED)
        counts["mixed"] += mixed is not None and check_mixed(trial, keep, mixed) > 0


def test_random_architectures():
    counts: Counter = Counter()
    worst: Counter = Counter()
    seen: set[str] = set()

    @settings(
        max_examples=DRAWS,
        derandomize=True,
        deadline=None,
        database=None,
        phases=(Phase.generate,),  # A draft is short as it is, and shrinking it takes minutes.
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(architectures())
    def fuzz(drawn: Drawn) -> None:
        # Hypothesis likes to draw what it has drawn with another seed: count an architecture once.
        assume(drawn.source not in seen)
        run(drawn, counts, worst)
        seen.add(drawn.source)

    fuzz()
    print(f"\n{dict(counts)}, worst errors {dict(worst)}")
    assert counts["draws"] >= DRAWS
    assert counts["rich"] >= counts["draws"] / 2
    assert counts["expanded"] + counts["mixed"] >= counts["draws"] * 0.75
