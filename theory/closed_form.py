"""Leading order in closed form: the flow of the lowest degree of the loss, read off the derived equations.

At a small initial scale the lowest degree D of the loss governs the flow until escape. D = 2 is linear and is solved by
one eigendecomposition (`leading_order`); D ≥ 3 is scale-free and blows up from its best direction at a known time
(`condensation`). Once the other weights are large, query and key grow linearly again (`second_stage`).

Nothing here knows an architecture: matrices are read by applying the derived right-hand sides to basis arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from theory import language as lang
from theory.algebra.scalar import Scalar
from theory.architectures import check_labels
from theory.errors import NumericalFailure, UserError, argument, nearest
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.language import LABEL, POSITION, TOKEN, Architecture

if TYPE_CHECKING:
    from theory.data import Dataset

Arrays = Mapping[str, np.ndarray]

# Relative size below which a number counts as rounding of zero, and up to which structures are checked.
ROUNDING, AGREEMENT = 1e-13, 1e-9
MAX_LEADING_DEGREE = 12


def leading_equations(architecture: Architecture, loss: str = "cross_entropy") -> EvolutionEquations:
    """The equations of the lowest degree of the loss, everything expanded (p at 1/V_out).

    **Raises:** `UserError` when a nonlinearity has no series at 0, or no degree up to 12 has a term.
    """
    problem: UserError | None = None
    for degree in range(1, MAX_LEADING_DEGREE + 1):
        try:
            return derive(architecture, degree, (), loss=loss)
        except UserError as error:
            problem = problem or error
    assert problem is not None
    raise problem


@dataclass(frozen=True, eq=False)
class LinearFlow:
    """A linear gradient flow dθ/dt = Mθ of some parameters, the others standing still; solved for all times.

    **Arguments:**

    - `architecture`: its name. `kind`: "leading order" or "second stage".
    - `initial`: name → array at t = 0, of all parameters. `moving`: those that move.
    - `axes`: name → axes. `spectators`: axes that all moving parameters share and on which M acts as the identity (the
    width, for E and U), so that M acts on the remaining axes, the *rows*, of all moving parameters together.
    - `matrix`: M, symmetric (row, row). `factor`: the exact number C_1 that the leading terms share, axis sizes aside.
    - `drop`: the fall of the loss, in nats, that `escape_time` waits for by default; None where there is no natural one.

    Times are in units of learning rate × steps.

    Source: for E and U this is Ė = C_1 B U, U̇ = C_1 Bᵀ E with B_αν = L r_α(P(y=ν|α) − 1/V_out), the linearisation of
    arXiv 2608.30315, Theorems 1 and 2, at order 0 (squared error: without 1/V_out).
    """

    architecture: str
    kind: str
    initial: Arrays
    moving: tuple[str, ...]
    axes: Mapping[str, tuple[str, ...]]
    spectators: tuple[str, ...]
    matrix: np.ndarray
    factor: Scalar = field(default=Scalar(Fraction(1)))
    drop: float | None = None

    def at(self, time: float) -> dict[str, np.ndarray]:
        """All parameters at a time: name → array.

        **Raises:** `UserError` for a time that is not finite, `NumericalFailure` where floats overflow.
        """
        if not math.isfinite(time):
            raise UserError(f"a time must be a finite number, found {time}")
        values, vectors = self._modes
        if np.max(np.abs(values), initial=0.0) * abs(time) > 700:
            raise NumericalFailure(f"the linear flow has left the range of floats at t = {time:g}")
        rows = vectors @ (np.exp(values * time)[:, None] * self._amplitudes)
        return {name: array.copy() for name, array in self.initial.items()} | self._layout.arrays(rows)

    @property
    def rates(self) -> np.ndarray:
        """The growth rates, falling: C_1 s_k, the positive eigenvalues of M."""
        values = self._modes[0][::-1]
        return values[values > ROUNDING * np.max(np.abs(values), initial=0.0)]

    def coupling(self, first: str, second: str) -> np.ndarray:
        """The block of M by which `second` drives `first`, (rows of first, rows of second): C_1 B for ("E", "U").

        For the second stage, `coupling("K", "Q")` is F in Ẇ_Q = W_K F, Ẇ_K = W_Q Fᵀ.
        """
        blocks = self._layout.slices
        for name in (first, second):
            if name not in blocks:
                raise UserError(f"the {self.kind} flow does not move '{name}'; {nearest(name, blocks)}")
        return self.matrix[blocks[first], blocks[second]]

    @cached_property
    def sides(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The moving parameters in two groups, each driven by the other alone: (("E",), ("U",)).

        **Raises:** `UserError` where there are no two such groups (tied embeddings drive themselves).
        """
        side: dict[str, int] = {}
        scale = ROUNDING * np.max(np.abs(self.matrix), initial=0.0)
        for start in self.moving:
            pending = [] if start in side else [(start, 0)]
            while pending:
                name, colour = pending.pop()
                if side.setdefault(name, colour) != colour:
                    raise UserError(
                        f"{self.architecture}: '{name}' drives its own side, so no two groups drive each other"
                    )
                for other in self.moving:
                    driven = np.abs(self.coupling(other, name)).max(initial=0.0) > scale
                    if driven and side.get(other) != 1 - colour:
                        pending.append((other, 1 - colour))
        first, second = (tuple(n for n in self.moving if side[n] == colour) for colour in (0, 1))
        return first, second

    def singular(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """a (row, k), rates (k) and b (k, row) of the coupling Σ_k C_1 s_k a_k b_kᵀ between the two sides."""
        blocks = self._layout.slices
        first, second = (np.concatenate([np.arange(self.matrix.shape[0])[blocks[n]] for n in s]) for s in self.sides)
        return np.linalg.svd(self.matrix[np.ix_(first, second)], full_matrices=False)

    def conserved(self, parameters: Arrays) -> np.ndarray:
        """The conserved quantity of this flow, EᵀE − UᵀU: (spectator, spectator), summed over the rows of each side."""
        first, second = self.sides
        rows = self._layout.rows(parameters)
        signed = np.concatenate([np.full(rows[n].shape[0], 1.0 if n in first else -1.0) for n in self.moving])
        stacked = np.concatenate([rows[n] for n in self.moving])
        return stacked.T @ (signed[:, None] * stacked)

    def loss_fall(self, time: float, scale: float = 1.0) -> float:
        """By how much the loss of this flow, ½ θᵀMθ, has fallen since t = 0, the initial arrays multiplied by `scale`."""
        values, _ = self._modes
        weight = np.sum(self._amplitudes**2, axis=1)
        return 0.5 * scale**2 * float(np.sum(values * weight * np.expm1(2 * values * time)))

    def escape_time(self, drop: float | None = None, scale: float = 1.0) -> float:
        """The time at which the loss of this flow has fallen by `drop`.

        **Arguments:** `drop`: in nats, by default half the loss of vanishing logits, ½ ln V_out (¼ for squared error);
        `scale`: multiplies the initial arrays: the ε of t_esc = ln(1/ε)/(C_1 s_1) + const.

        This places the escape up to a constant only: past escape the leading order no longer holds.

        **Raises:** `UserError` when nothing grows.
        """
        from scipy.optimize import brentq

        target = self.drop if drop is None else drop
        if target is None:
            raise UserError(
                f"the escape time of a {self.kind} flow needs {argument('drop')} (a fall of the loss, in nats)"
            )
        if not (math.isfinite(target) and target > 0 and math.isfinite(scale) and scale > 0):
            raise UserError(f"an escape time needs a positive drop and scale, found {target} and {scale}")
        rate = self._growing_rate()
        end = 1 / rate
        while self.loss_fall(end, scale) < target:
            end *= 2
            if rate * end > 300:
                raise NumericalFailure("the initial arrays have no part along the growing directions")
        return float(cast(float, brentq(lambda t: self.loss_fall(t, scale) - target, 0.0, end, xtol=1e-12 * end)))

    @property
    def escape_slope(self) -> float:
        """dt_esc / d ln(1/ε) = 1/(C_1 s_1), reached as ε^(2(1 − s_2/s_1)): slowly where the first two rates are close."""
        return 1 / self._growing_rate()

    def to_dict(self) -> dict[str, Any]:
        """What is known without a time, as JSON-able values."""
        result: dict[str, Any] = {
            "architecture": self.architecture,
            "kind": self.kind,
            "moving": list(self.moving),
            "spectators": list(self.spectators),
            "factor": str(self.factor.to_sympy()),
            "rates": self.rates.tolist(),
        }
        if len(self.rates):
            result["escape_slope"] = self.escape_slope
            if self.drop is not None:
                result["escape_drop"] = self.drop
                result["escape_time"] = self.escape_time()
        return result

    def to_text(self) -> str:
        """The rates and the escape, as text."""
        shown = 8
        lines = [
            f"{self.kind} of {self.architecture}: linear flow of {', '.join(self.moving)}, the same for each "
            f"{', '.join(self.spectators) or 'entry'}; C_1 = {self.factor.to_sympy()}",
        ]
        if not len(self.rates):
            return "\n".join([*lines, "nothing grows: the leading form vanishes on these data"])
        more = f"  … ({len(self.rates)} in all)" if len(self.rates) > shown else ""
        lines.append("growth rates  " + "  ".join(f"{r:.6g}" for r in self.rates[:shown]) + more)
        lines.append(f"escape slope dt/d ln(1/scale) = {self.escape_slope:.6g}")
        if self.drop is not None:
            lines.append(f"escape time (leading loss fallen by {self.drop:.4g}) = {self.escape_time():.6g}")
        return "\n".join(lines)

    @cached_property
    def _layout(self) -> _Layout:
        return _Layout(
            {n: self.axes[n] for n in self.moving}, {n: self.initial[n].shape for n in self.moving}, self.spectators
        )

    @cached_property
    def _modes(self) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.eigh(self.matrix)

    @cached_property
    def _amplitudes(self) -> np.ndarray:
        rows = self._layout.rows(self.initial)
        return self._modes[1].T @ np.concatenate([rows[n] for n in self.moving])

    def _growing_rate(self) -> float:
        if not len(self.rates):
            raise UserError(f"nothing grows: the leading form of {self.architecture} vanishes on these data")
        return float(self.rates[0])


def leading_order(
    architecture: Architecture, dataset: Dataset, initial: Arrays, *, loss: str = "cross_entropy"
) -> LinearFlow:
    """The leading flow where the logits begin at degree 2, in closed form.

    **Arguments:** `initial`: name → array (see `theory.initial.initialise`); `loss`: "cross_entropy" or "squared_error".

    **Returns:** a `LinearFlow`. Any number of parameters may couple; the feed-forward model of arXiv 2608.30315 has E and U
    with M = C_1 B between them, a residual transformer its bigram path, B = P(α, ν) − r_α/V_out.

    **Raises:** `UserError` when the leading degree is another one (naming what to use instead), or a parameter that moves
    has a weight other than 1.
    """
    equations = leading_equations(architecture, loss)
    assert equations.degree is not None
    moving = _moving(equations)
    if equations.degree != 2:
        use = "use condensation() for it" if equations.degree > 2 else "its logits hold a bare bias"
        raise UserError(
            f"the leading form of {architecture.name} has degree {equations.degree} in ({', '.join(moving)}), where a linear "
            f"flow needs degree 2; {use}"
        )
    field = _Field(equations, dataset, initial)

    def apply(arrays: Arrays) -> dict[str, np.ndarray]:
        found = field(arrays)
        return {name: found[name] for name in moving}

    axes = {name: spec.axes for name, spec in architecture.parameters.items()}
    # Where label-driven and prediction-induced parts cancel, rounding is all that is left.
    label = _Field(equations.label_driven, dataset, initial)
    probe = {n: np.random.default_rng([1]).normal(size=initial[n].shape) for n in moving}
    floor = ROUNDING * max(np.abs(label(probe)[n]).max() for n in moving)
    shapes = {n: initial[n].shape for n in moving}
    spectators, matrix = _read(apply, {n: axes[n] for n in moving}, shapes, architecture.name, floor)
    drop = 0.5 * math.log(dataset.n_labels) if loss == "cross_entropy" else 0.25
    return LinearFlow(
        architecture.name,
        "leading order",
        _frozen(initial),
        moving,
        axes,
        spectators,
        _frozen({"M": matrix})["M"],
        _common_factor(equations),
        drop if drop > 0 else None,
    )


def second_stage(
    architecture: Architecture,
    dataset: Dataset,
    parameters: Arrays,
    pair: tuple[str, str] | None = None,
    *,
    loss: str = "cross_entropy",
) -> LinearFlow:
    """Attention's second stage: the other weights O(1) and standing still, query and key small.

    To first order Ẇ_Q = W_K F, Ẇ_K = W_Q Fᵀ: both collapse onto F's top singular pair. F is read off the exact derived
    equations (everything kept), which at W_Q = 0 are linear in W_K, and at W_K = 0 in W_Q.

    **Arguments:** `parameters`: name → array, all of them; those of the pair are the initial values; `pair`: the two
    parameters whose product is the score, by default the two that nothing but one softmax reads.

    **Returns:** a `LinearFlow`; `coupling("K", "Q")` is F (embed of K, embed of Q).

    **Raises:** `UserError` when no pair can be told, or the named ones do not drive each other linearly.

    Source: condensation to rank collapse, arXiv 2510.06954.
    """
    names = _score_pair(architecture) if pair is None else tuple(pair)
    for name in names:
        if name not in architecture.parameters:
            raise UserError(f"{architecture.name} has no parameter '{name}'; {nearest(name, architecture.parameters)}")
    if len(set(names)) != 2:
        raise UserError(f"a second stage is that of two parameters, found ({', '.join(names)})")
    equations = derive(architecture, loss=loss)
    equations = replace(equations, equations={n: equations[n] for n in names})
    field = _Field(equations, dataset, parameters)
    zeros = {n: np.zeros_like(parameters[n]) for n in names}

    def apply(arrays: Arrays) -> dict[str, np.ndarray]:
        first, second = names
        return {
            first: field({first: zeros[first], second: arrays[second]})[first],
            second: field({first: arrays[first], second: zeros[second]})[second],
        }

    still = field(zeros)
    if any(np.abs(still[n]).max() > ROUNDING for n in names):
        raise UserError(
            f"{names[0]} and {names[1]} move even where both vanish: they are not the two factors of a score"
        )
    axes = {name: spec.axes for name, spec in architecture.parameters.items()}
    shapes = {n: parameters[n].shape for n in names}
    spectators, matrix = _read(apply, {n: axes[n] for n in names}, shapes, architecture.name)
    return LinearFlow(
        architecture.name, "second stage", _frozen(parameters), names, axes, spectators, _frozen({"M": matrix})["M"]
    )


@dataclass(frozen=True, eq=False)
class Condensation:
    """The scale-free flow of a leading form h of degree D ≥ 3, from its maximiser on the unit sphere.

    **Arguments:** `architecture`: its name; `degree`: D; `maximum`: h* on the unit sphere of all parameters; `direction`:
    name → array, the maximiser θ*, ‖θ*‖ = 1; `residual`: ‖∇h − D h* θ*‖/(D h*); `starts`: the local maxima that the
    random starts reached, falling.

    A start along θ* stays on it, and blows up at t* = 1/(D(D−2) h* ‖θ_0‖^{D−2}). Any other start of that norm blows up
    later, since d‖θ‖/dt = D h(θ)/‖θ‖ ≤ D h* ‖θ‖^{D−1}; random ones several times, the more the higher D.

    Times are in units of learning rate × steps. Source: Euler's relation ⟨θ, ∇h⟩ = D h; condensation of small
    initialisations as in arXiv 2510.06954.
    """

    architecture: str
    degree: int
    maximum: float
    direction: Arrays
    residual: float
    starts: tuple[float, ...]

    def blow_up_time(self, norm: float = 1.0) -> float:
        """t* of a start along the direction, of Euclidean norm `norm` over all parameters; a lower bound for any other."""
        if not (math.isfinite(norm) and norm > 0):
            raise UserError(f"the initial norm must be a positive number, found {norm}")
        return 1 / (self.degree * (self.degree - 2) * self.maximum * norm ** (self.degree - 2))

    def at(self, time: float, norm: float = 1.0) -> dict[str, np.ndarray]:
        """All parameters at a time, from `norm` times the direction: name → array.

        **Raises:** `NumericalFailure` at the blow-up and after.
        """
        end = self.blow_up_time(norm)
        if not time < end:
            raise NumericalFailure(f"the leading flow blows up at t = {end:g}, before t = {time:g}")
        size = norm * (1 - time / end) ** (-1 / (self.degree - 2))
        return {name: size * array for name, array in self.direction.items()}

    def singular_values(self) -> dict[str, np.ndarray]:
        """The singular values of each array with two axes, falling: condensed arrays have one."""
        return {n: np.linalg.svd(a, compute_uv=False) for n, a in self.direction.items() if a.ndim == 2}

    def to_dict(self) -> dict[str, Any]:
        """The result without its arrays, as JSON-able values."""
        return {
            "architecture": self.architecture,
            "kind": "condensation",
            "degree": self.degree,
            "maximum": self.maximum,
            "residual": self.residual,
            "starts": list(self.starts),
            "blow_up_time_at_norm_1": self.blow_up_time(),
            "norms": {n: float(np.linalg.norm(a)) for n, a in self.direction.items()},
            "second_over_first_singular_value": {n: _second_over_first(s) for n, s in self.singular_values().items()},
        }

    def to_text(self) -> str:
        """The maximum, the blow-up time and the direction's shape, as text."""
        power = self.degree - 2
        lines = [
            f"leading form of {self.architecture}: degree {self.degree}, scale-free",
            f"maximum on the unit sphere h* = {self.maximum:.8g} (reached by "
            f"{sum(s > self.maximum * (1 - 1e-6) for s in self.starts)} of {len(self.starts)} starts)",
            f"blow-up time from it = {self.blow_up_time():.6g} / norm^{power}" if power > 1 else
            f"blow-up time from it = {self.blow_up_time():.6g} / norm",
        ]  # fmt: skip
        ratios = {n: _second_over_first(s) for n, s in self.singular_values().items()}
        lines += [
            f"  {name}: norm {np.linalg.norm(array):.6g}"
            + (f", second singular value {ratios[name]:.1e} of the first" if name in ratios and np.any(array) else "")
            for name, array in self.direction.items()
        ]
        return "\n".join(lines)


def condensation(
    architecture: Architecture,
    dataset: Dataset,
    sizes: Mapping[str, int],
    *,
    starts: int = 8,
    seed: int = 0,
    loss: str = "cross_entropy",
) -> Condensation:
    """The direction in which a leading form of degree D ≥ 3 grows fastest, and when it blows up.

    h = ⟨θ, rhs⟩/D is evaluated through the derived equations and maximised on the unit sphere from several random starts.

    **Arguments:** `sizes`: axis → size, of the axes that the dataset does not decide; `starts`: how many; `seed`.

    **Raises:** `UserError` when the leading degree is below 3, a moving parameter's weight is not 1, or the form vanishes on
    the data; `NumericalFailure` when no start converges.
    """
    from scipy.optimize import minimize

    if isinstance(starts, bool) or int(starts) != starts or starts < 1:
        raise UserError(f"starts must be a whole number of at least 1, found {starts}")
    equations = leading_equations(architecture, loss)
    assert equations.degree is not None
    degree, moving = int(equations.degree), _moving(equations)
    if degree < 3:
        use = "use leading_order() for it" if degree == 2 else "its logits hold a bare bias"
        raise UserError(f"the leading form of {architecture.name} has degree {degree}, which does not condense; {use}")
    shapes = architecture.shapes({**sizes, **dataset.sizes})
    zeros = {name: np.zeros(shape) for name, shape in shapes.items()}
    field = _Field(equations, dataset, zeros)
    flat = _Flat({n: shapes[n] for n in moving})

    def gradient(point: np.ndarray) -> np.ndarray:
        return flat.vector(field(flat.arrays(point)))

    label = _Field(equations.label_driven, dataset, zeros)
    generator = np.random.default_rng([int(seed), degree])
    found: list[tuple[float, float, np.ndarray]] = []
    for _ in range(starts):
        start = generator.normal(size=flat.size)
        start /= np.linalg.norm(start)
        scale = np.linalg.norm(gradient(start))
        if scale <= ROUNDING * np.linalg.norm(flat.vector(label(flat.arrays(start)))):
            raise UserError(f"the leading form of {architecture.name} (degree {degree}) vanishes on {dataset.name}")

        def objective(point: np.ndarray, scale: float = float(scale)) -> tuple[float, np.ndarray]:
            norm = float(np.linalg.norm(point))
            unit = point / norm
            slope = gradient(unit)
            height = unit @ slope / degree
            return float(-height / scale), -(slope - degree * height * unit) / (norm * scale)

        options = {"maxiter": 3000, "maxfun": 6000, "ftol": 1e-15, "gtol": 1e-10, "maxls": 40}
        unit = minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
        unit /= np.linalg.norm(unit)
        slope = gradient(unit)
        height = float(unit @ slope / degree)
        residual = float(np.linalg.norm(slope - degree * height * unit) / max(degree * height, 1e-300))
        found.append((height, residual, unit))
    found.sort(key=lambda item: -item[0])
    height, residual, unit = found[0]
    if height <= 0 or residual > 1e-4:
        raise NumericalFailure(
            f"no start reached a maximum of the leading form of {architecture.name} (residual {residual:.1e}); raise starts="
        )
    direction = _frozen(zeros | flat.arrays(unit))
    return Condensation(architecture.name, degree, height, direction, residual, tuple(h for h, _, _ in found))


# ---------------------------------------------------------------------------------------------------------------------


class _Field:
    """Right-hand sides as a function of some parameters, the others fixed."""

    def __init__(self, equations: EvolutionEquations, dataset: Dataset, parameters: Arrays):
        architecture = equations.architecture
        check_labels(architecture, dataset)
        known = {name: np.asarray(array, dtype=np.float64) for name, array in parameters.items()}
        sizes = lang.add_axis_sizes(architecture, known, dataset.length)
        for axis in (TOKEN, LABEL, POSITION):
            if sizes.get(architecture.root(axis), dataset.sizes[axis]) != dataset.sizes[axis]:
                raise UserError(
                    f"axis '{axis}' has size {dataset.sizes[axis]} in {dataset.name}, but the arrays have "
                    f"{sizes[architecture.root(axis)]}"
                )
        self.equations, self.parameters = equations, known
        self.data = Data(dataset.tokens, dataset.labels, dataset.weights)

    def __call__(self, changed: Arrays) -> dict[str, np.ndarray]:
        return right_hand_sides(self.equations, {**self.parameters, **changed}, self.data)


class _Flat:
    """Arrays as one vector."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]):
        self.shapes = shapes
        self.ends = np.cumsum([math.prod(s) for s in shapes.values()])
        self.size = int(self.ends[-1])

    def vector(self, arrays: Arrays) -> np.ndarray:
        return np.concatenate([arrays[name].ravel() for name in self.shapes])

    def arrays(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        parts = np.split(vector, self.ends[:-1])
        return {n: part.reshape(shape) for (n, shape), part in zip(self.shapes.items(), parts, strict=True)}


class _Layout:
    """Arrays of several parameters as one array (row, spectator)."""

    def __init__(
        self, axes: Mapping[str, tuple[str, ...]], shapes: Mapping[str, tuple[int, ...]], spectators: tuple[str, ...]
    ):
        self.shapes = shapes
        self.order: dict[str, tuple[int, ...]] = {}
        self.slices: dict[str, slice] = {}
        start = 0
        for name, own in axes.items():
            rows = tuple(n for n, a in enumerate(own) if a not in spectators)
            self.order[name] = (*rows, *(own.index(a) for a in spectators))
            count = math.prod(shapes[name][n] for n in rows)
            self.slices[name] = slice(start, start + count)
            start += count
        self.row_count = start
        first = next(iter(axes))
        self.width = math.prod(shapes[first][axes[first].index(a)] for a in spectators)

    def rows(self, arrays: Arrays) -> dict[str, np.ndarray]:
        return {n: arrays[n].transpose(order).reshape(-1, self.width) for n, order in self.order.items()}

    def arrays(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        result = {}
        for name, order in self.order.items():
            moved = rows[self.slices[name]].reshape([self.shapes[name][n] for n in order])
            result[name] = np.ascontiguousarray(moved.transpose(np.argsort(order)))
        return result


def _read(
    apply: Callable[[Arrays], dict[str, np.ndarray]],
    axes: Mapping[str, tuple[str, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    name: str,
    floor: float = 0.0,
) -> tuple[tuple[str, ...], np.ndarray]:
    """The spectator axes and the matrix of a linear map of arrays, checked on random arrays.

    A map whose values stay below `floor` is zero.
    """
    generator = np.random.default_rng([0])
    probe = {n: generator.normal(size=shape) for n, shape in shapes.items()}
    value = apply(probe)
    size = max(np.abs(v).max() for v in value.values())
    if size <= floor:
        apply, size = (lambda arrays: {n: np.zeros_like(a) for n, a in arrays.items()}), 0.0
        value = apply(probe)
    spectators = []
    for axis in axes[next(iter(axes))]:
        if not all(axis in own for own in axes.values()):
            continue
        count = {shapes[n][own.index(axis)] for n, own in axes.items()}
        mix = generator.normal(size=(next(iter(count)),) * 2)
        # Only a map that is the identity on an axis commutes with a random matrix there.
        mixed = apply({n: _along(probe[n], axes[n].index(axis), mix) for n in axes})
        wanted = {n: _along(value[n], axes[n].index(axis), mix) for n in axes}
        if all(np.abs(mixed[n] - wanted[n]).max() <= AGREEMENT * max(size, np.abs(wanted[n]).max()) for n in axes):
            spectators.append(axis)
    layout = _Layout(axes, shapes, tuple(spectators))
    matrix = np.zeros((layout.row_count, layout.row_count))
    # One evaluation reads as many columns as there are spectator entries.
    for start in range(0, layout.row_count, layout.width):
        columns = np.arange(start, min(start + layout.width, layout.row_count))
        basis = np.zeros((layout.row_count, layout.width))
        basis[columns, columns - start] = 1
        found = layout.rows(apply(layout.arrays(basis)))
        matrix[:, columns] = np.concatenate([found[n] for n in axes])[:, columns - start]
    stacked = np.concatenate([layout.rows(value)[n] for n in axes])
    predicted = matrix @ np.concatenate([layout.rows(probe)[n] for n in axes])
    if np.abs(predicted - stacked).max() > AGREEMENT * size:
        raise UserError(f"the equations of {', '.join(axes)} in {name} are not linear in these parameters")
    if np.abs(matrix - matrix.T).max() > AGREEMENT * np.abs(matrix).max(initial=0.0):
        raise UserError(f"{' and '.join(axes)} of {name} do not drive each other by one matrix and its transpose")
    return tuple(spectators), (matrix + matrix.T) / 2


def _along(array: np.ndarray, place: int, matrix: np.ndarray) -> np.ndarray:
    return np.moveaxis(np.tensordot(array, matrix, axes=(place, 0)), -1, place)


def _moving(equations: EvolutionEquations) -> tuple[str, ...]:
    """The parameters that the leading equations move, all of weight 1."""
    moving = tuple(name for name, equation in equations.items() if len(equation))
    used = {f[0] for equation in equations.values() for term in equation for c in term.components for f in c}
    for name, spec in equations.architecture.parameters.items():
        if spec.weight != 1 and (name in used or name in moving):
            raise UserError(
                f"the leading form of {equations.architecture.name} holds '{name}' of weight {spec.weight}; a closed form "
                f"needs weight 1 of every parameter in it"
            )
    return moving


def _common_factor(equations: EvolutionEquations) -> Scalar:
    """The number that all label-driven terms share, axis sizes aside; 1 where they differ."""
    factors = set()
    for equation in equations.label_driven.values():
        for term in equation:
            numbers = tuple(atom for atom in term.coefficient.atoms if not atom[0].startswith("|"))
            factors.add(Scalar(term.coefficient.rational, numbers))
    return factors.pop() if len(factors) == 1 else Scalar.of(1)


def _score_pair(architecture: Architecture) -> tuple[str, str]:
    """The two parameters that are read inside a softmax alone."""
    outside, pending = set(), [architecture.logits]
    while pending:
        node = pending.pop()
        if isinstance(node, lang.Softmax) or id(node) in outside:
            continue
        outside.add(id(node))
        pending += node.inputs
    inside = [n for n in architecture.parameters if n not in _parameters(architecture, outside)]
    if len(inside) != 2:
        have = f"({', '.join(inside)}) are" if inside else "no parameters are"
        raise UserError(
            f"{architecture.name}: {have} read inside softmaxes alone; name the two factors of a score by "
            f"{argument('pair')}"
        )
    return inside[0], inside[1]


def _parameters(architecture: Architecture, nodes: set[int]) -> set[str]:
    return {n.name for n in architecture.nodes if isinstance(n, lang.Parameter) and id(n) in nodes}


def _second_over_first(values: np.ndarray) -> float:
    return float(values[1] / values[0]) if len(values) > 1 and values[0] > 0 else 0.0


def _frozen(arrays: Arrays) -> dict[str, np.ndarray]:
    result = {name: np.array(array, dtype=np.float64) for name, array in arrays.items()}
    for array in result.values():
        array.setflags(write=False)
    return result
