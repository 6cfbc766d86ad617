"""Random architectures: derived equations against two independent routes, for whatever the language can compose.

*Kept*: against reverse-mode differentiation of the interpreted architecture by torch, which compiles nothing. *Expanded*: each
degree against the Taylor coefficient of that same gradient along ε ↦ ε^a θ, read off its values at real ε: interpolation at
Chebyshev points converges geometrically, since the gradient is analytic in ε, and costs a few milliseconds where compiling
Taylor mode costs seconds. It shares with the derivation only the interpreter, and knows its own error.
*Mixed*: with one nonlinearity kept, the coefficients of the truncated right-hand side itself, below the first omitted order,
must be those of the gradient.

`make fuzz` draws 200 architectures, `make test` 15.
"""

from __future__ import annotations

import functools
import os
import time
from collections import Counter
from collections.abc import Callable

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
SAMPLES = 5


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
    def one_sided(self) -> bool:
        """Whether ε ↦ ε^a θ meets what is analytic for ε > 0 alone: a power that is not whole, or a kink."""
        functions = [n.function for n in self.architecture.nodes if isinstance(n, lang.Elementwise)]
        return any(not function.analytic for function in functions)

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


def expanded(trial: Trial, keep: tuple[str, ...]) -> EvolutionEquations | None:
    """The derivation to the highest degree that stays small; None where no degree within reach has a term.

    On the way: a derivation to a lower degree is a part of one to a higher, term by term.
    """
    found = None
    for degree in range(1, HIGHEST + 1):
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


# Parameter → Taylor coefficients, lowest order first, and the rounding in each.
Coefficients = dict[str, tuple[np.ndarray, np.ndarray]]


def taylor(
    function: Callable[[float], dict[str, np.ndarray]],
    lowest: int,
    highest: int,
    one_sided: bool,
    radii: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25, 0.1),
) -> tuple[float, Coefficients] | None:
    """Taylor coefficients of a function of ε from order `lowest` to `highest`, and the radius at which it is resolved.

    None where it is not. `one_sided`: with a normaliser or a kink it is analytic for ε > 0 alone, and continues through 0.
    """
    points = chebyshev.chebpts1(48)
    for radius in radii:
        epsilons = radius * ((points + 1) / 2 if one_sided else points)
        sampled = [function(float(epsilon)) for epsilon in epsilons]
        result = {}
        for name, value in sampled[0].items():
            values = np.array([each[name].ravel() * e**-lowest for each, e in zip(sampled, epsilons, strict=True)])
            fitted = chebyshev.chebfit(points, values, len(points) - 1)
            sizes = np.abs(fitted).max(1)
            # The last coefficients are rounding, once those before have decayed to it.
            noise = max(4 * np.finfo(float).eps * float(sizes.max()), 3 * float(sizes[-8:].max()))
            (above,) = np.nonzero(sizes > noise)
            terms = int(above[-1]) + 1 if len(above) else 1
            if not noise <= 1e-12 * sizes.max():
                break
            change = _in_powers(terms, highest - lowest, radius, one_sided)
            shape = (highest - lowest + 1, *value.shape)
            result[name] = (change.T @ fitted[:terms]).reshape(shape), noise * np.abs(change).sum(0)
        else:
            return radius, result
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


def check_expansion(trial: Trial, keep: tuple[str, ...], equations: EvolutionEquations) -> tuple[int, float]:
    """The number of Taylor coefficients that were told apart from rounding, and the worst relative error of one.

    Fully expanded parts are the coefficients. With something kept, the truncated right-hand sides are functions of ε
    themselves, whose coefficients below the first omitted order are to be those of the gradient.
    """
    assert equations.degree is not None
    degrees = [int(degree) for equation in equations.values() for degree in equation.degrees]
    lowest, highest = min(0, *degrees), int(equations.degree)
    found = taylor(trial.gradient, lowest, highest, trial.one_sided)
    if found is None:
        return 0, 0.0
    radius, wanted = found
    if keep:
        again = taylor(lambda e: trial.derived(equations, e), lowest, highest, trial.one_sided, (radius, radius / 2))
        if again is None:
            return 0, 0.0
        derived = again[1]
    else:
        derived = _homogeneous_parts(trial, equations, lowest, highest)
    told, worst = 0, 0.0
    largest = max(float(np.abs(coefficients).max()) for coefficients, _ in wanted.values())
    for name in trial.parameters:
        for order in range(highest - trial.weights[name] - lowest + 1):
            difference = float(np.abs(derived[name][0][order] - wanted[name][0][order]).max())
            size = float(np.abs(wanted[name][0][order]).max())
            rounding = float(derived[name][1][order] + wanted[name][1][order]) + 1e-15 * largest
            case = (trial.drawn, keep, name, order + lowest, difference, size, rounding)
            assert difference <= TAYLOR_BOUND * size + 10 * rounding, case
            if rounding < 1e-4 * size:
                told += 1
                worst = max(worst, difference / size)
    return told, worst


def _homogeneous_parts(trial: Trial, equations: EvolutionEquations, lowest: int, highest: int) -> Coefficients:
    parts = {d: trial.derived(equations.of_degree(d)) for d in range(lowest, highest + 1 + max(trial.weights.values()))}
    result = {}
    for name, weight in trial.weights.items():
        values = np.array([parts[degree + weight][name] for degree in range(lowest, highest + 1)])
        result[name] = values, np.zeros(len(values))
    return result


def run(drawn: Drawn, counts: Counter, worst: Counter) -> None:
    """All checks of one draw."""
    trial = Trial(drawn)
    counts["draws"] += 1
    counts["rich"] += trial.is_rich
    worst["kept"] = max(worst["kept"], check_kept(trial))
    names = list(trial.architecture.nonlinearities)
    modes = [trial.kinks]
    if len(names) >= 2:
        # Beside the whole expansion, one nonlinearity kept.
        modes.append(tuple(dict.fromkeys((*trial.kinks, names[drawn.seed % len(names)]))))
    told = 0
    for keep in dict.fromkeys(modes):
        try:
            equations = expanded(trial, keep)
        except UserError as error:
            # A normaliser of what vanishes identically has no leading part to expand around: refused, and rightly.
            assert "vanishes identically" in str(error), drawn
            counts["refused"] += 1
            continue
        if equations is None:
            counts["no term within reach"] += 1
            continue
        found, error = check_expansion(trial, keep, equations)
        counts["mixed" if keep else "expanded"] += found > 0
        counts["coefficients"] += found
        worst["taylor"] = max(worst["taylor"], error)
        told += found
    counts["checked by order"] += told > 0


def test_random_architectures():
    counts: Counter = Counter()
    worst: Counter = Counter()
    seen: set[str] = set()
    failures: list[str] = []

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
        started = time.perf_counter()
        seen.add(drawn.source)
        try:
            run(drawn, counts, worst)
        except Exception as error:  # A long run tells every failure, not the first alone.
            failures.append(f"draw {counts['draws']}: {type(error).__name__}: {error}\n{drawn}")
            print(failures[-1], flush=True)
        # Two hundred draws take a while: with -s one sees how far they are, and which are slow.
        print(f"draw {counts['draws']}: {time.perf_counter() - started:.1f} s", flush=True)

    fuzz()
    print(f"\n{dict(counts)}, worst errors {dict(worst)}")
    assert not failures, "\n\n".join(failures)
    assert counts["draws"] >= DRAWS
    assert counts["rich"] >= counts["draws"] / 2
    assert counts["expanded"] >= counts["draws"] * 0.6
    assert counts["checked by order"] >= counts["draws"] * 0.8
