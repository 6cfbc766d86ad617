"""How an architecture is written: a plain function over named axes, traced once.

The notation is that of named tensors (Chiang, Rush and Barak, arXiv 2102.13196): every axis has a name, `dot` sums the
axes named in `over=` and aligns the others. The set of operations is small and closed, so that one description serves
the symbolic derivation, jax, torch and numpy alike (see `theory.interpret` and `theory.expansion`).
"""

from __future__ import annotations

import copy
import inspect
import linecache
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

import numpy as np
import sympy

from theory.activations import Activation, activation
from theory.algebra.scalar import Degree, Scalar, ScalarLike, size, sqrt, whole_or_fraction
from theory.errors import UserError, nearest

__all__ = [
    "Architecture", "Expression", "ParameterSpec", "add_axis_sizes", "branch", "causal", "constant", "dot",
    "elementwise", "embed", "fixed", "last", "layer_norm", "mean", "module", "parameter", "relative", "rename", "rms_norm",
    "rotary", "select", "shift", "size", "softmax", "sqrt", "total", "window",
]  # fmt: skip

SAMPLE = "sample"
TOKEN, POSITION, LABEL = "token", "position", "label"


@dataclass(frozen=True, eq=False)
class Expression:
    """A node of a traced architecture. `axes` are its named axes (the sample axis is implicit); `line` is where it was
    written."""

    axes: tuple[str, ...]
    line: str = field(repr=False)

    @property
    def inputs(self) -> tuple[Expression, ...]:
        return ()

    def __add__(self, other: Expression | ScalarLike) -> Expression:
        if not isinstance(other, Expression):
            other = constant_number(other)
        return _add(self, other)

    __radd__ = __add__

    def __sub__(self, other: Expression | ScalarLike) -> Expression:
        return self + (-other)

    def __rsub__(self, other: Expression | ScalarLike) -> Expression:
        return -self + other

    def __neg__(self) -> Expression:
        return _scaled(self, -1)

    def __mul__(self, other: Expression | ScalarLike) -> Expression:
        if isinstance(other, Expression):
            return Multiply(_union(self.axes, other.axes), _line(), self, other)
        return _scaled(self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: ScalarLike) -> Expression:
        if isinstance(other, Expression):
            _fail("/ takes a number or a size on its right; write an elementwise power for the reciprocal")
        if not Scalar.of(other).rational:
            _fail("division by zero")
        return _scaled(self, 1 / Scalar.of(other))

    def __rtruediv__(self, other: ScalarLike) -> Expression:
        _fail("/ takes a number or a size on its right; write an elementwise power for the reciprocal")

    def __pow__(self, power: int) -> Expression:
        if not isinstance(power, int) or power < 1:
            _fail(f"** takes a whole power of at least 1, found {power}; use elementwise() for others")
        result = self
        for _ in range(power - 1):
            result = result * self
        return result


@dataclass(frozen=True, eq=False)
class Tokens(Expression):
    """The one-hot tokens X[sample, position, token]."""


@dataclass(frozen=True, eq=False)
class Parameter(Expression):
    """A trained array; `weight` a says that it is of order ε^a at initialisation."""

    name: str
    weight: Degree = 1


@dataclass(frozen=True, eq=False)
class Constant(Expression):
    """A fixed array, built from the axis sizes; `normalised` is the axis over which it sums to 1, if any; `shape` is its
    own where it fixes the sizes of its axes."""

    name: str
    build: Callable[[Mapping[str, int]], np.ndarray]
    normalised: str | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class Number(Expression):
    """An exact scalar with no axes; of `weight` a it counts as of order ε^a, and is scaled so in certificates."""

    scalar: Scalar
    weight: Degree = 0


@dataclass(frozen=True, eq=False)
class Dot(Expression):
    """Σ_over left * right."""

    left: Expression
    right: Expression
    over: tuple[str, ...]

    @property
    def inputs(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Multiply(Expression):
    """left * right, aligned by axis name."""

    left: Expression
    right: Expression

    @property
    def inputs(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class Add(Expression):
    """left + right; the axes of `right` are among those of `left`."""

    left: Expression
    right: Expression

    @property
    def inputs(self) -> tuple[Expression, ...]:
        return (self.left, self.right)


@dataclass(frozen=True, eq=False)
class _Unary(Expression):
    operand: Expression

    @property
    def inputs(self) -> tuple[Expression, ...]:
        return (self.operand,)


@dataclass(frozen=True, eq=False)
class Scale(_Unary):
    """An exact scalar times the operand."""

    scalar: Scalar


@dataclass(frozen=True, eq=False)
class Total(_Unary):
    """The sum over one axis."""

    over: str


@dataclass(frozen=True, eq=False)
class Rename(_Unary):
    """The operand with axes renamed, `mapping` = ((old, new), …)."""

    mapping: tuple[tuple[str, str], ...]


@dataclass(frozen=True, eq=False)
class Select(_Unary):
    """The operand at one place ("first", "last") of an axis."""

    axis: str
    place: str


@dataclass(frozen=True, eq=False)
class Softmax(_Unary):
    """w e^z / Σ w e^z over one axis, w the 0/1 mask (1 where there is none)."""

    over: str
    mask: Constant | None
    name: str


@dataclass(frozen=True, eq=False)
class Elementwise(_Unary):
    """An activation applied to each entry."""

    function: Activation
    name: str


@dataclass(frozen=True, eq=False)
class Mark(_Unary):
    """The operand itself, marked for reading equations by path.

    `kind` is "module" (what writes to the residual stream) or "branch" (the way in which a module reads it).
    """

    kind: str
    name: str


# ---------------------------------------------------------------------------------------------------------------------
# The words of the language


def dot(left: Expression, right: Expression, over: str | tuple[str, ...]) -> Expression:
    """Σ over the named axes of left · right; other shared axes align.

    **Arguments:** `left`, `right`: expressions; `over`: the axes to sum, each an axis of both.

    **Raises:** `UserError` naming the line when an axis of `over` is missing from an operand.
    """
    axes = (over,) if isinstance(over, str) else tuple(over)
    if not axes:
        _fail("dot needs at least one axis in over=")
    for axis in axes:
        for side, operand in (("left", left), ("right", right)):
            if axis not in operand.axes:
                _fail(
                    f"dot(over='{axis}'): the {side} operand has no axis '{axis}'; it has "
                    f"({', '.join(operand.axes) or 'none'}); {nearest(axis, operand.axes)}"
                )
    kept = tuple(a for a in _union(left.axes, right.axes) if a not in axes)
    return Dot(kept, _line(), left, right, axes)


def embed(table: Expression, tokens: Expression) -> Expression:
    """The rows of `table` (axes token, …) at each position's token: w_{x_s}."""
    if TOKEN not in table.axes:
        _fail(f"embed: the table needs an axis '{TOKEN}'; it has ({', '.join(table.axes)})")
    return dot(tokens, table, over=TOKEN)


def total(operand: Expression, over: str) -> Expression:
    """The sum over one axis."""
    _need(operand, over, "total")
    return Total(tuple(a for a in operand.axes if a != over), _line(), operand, over)


def mean(operand: Expression, over: str) -> Expression:
    """The mean over one axis."""
    return total(operand, over) / size(over)


def rename(operand: Expression, **axes: str) -> Expression:
    """Rename axes, `rename(x, position="query")`: the new name is an alias with the size of the old one."""
    for old, new in axes.items():
        _need(operand, old, "rename")
        if new in operand.axes and new not in axes:
            _fail(f"rename({old}='{new}'): there is an axis '{new}' already")
    if len(set(axes.values())) != len(axes):
        _fail("rename: two axes cannot get one name")
    renamed = tuple(axes.get(a, a) for a in operand.axes)
    return Rename(renamed, _line(), operand, tuple(axes.items()))


def select(operand: Expression, axis: str, place: str) -> Expression:
    """The operand at the "first" or "last" place of an axis."""
    _need(operand, axis, "select")
    if place not in ("first", "last"):
        _fail(f"select: unknown place '{place}'; {nearest(place, ('first', 'last'))}")
    return Select(tuple(a for a in operand.axes if a != axis), _line(), operand, axis, place)


def last(operand: Expression) -> Expression:
    """The operand at the last position."""
    return select(operand, POSITION, "last")


def softmax(scores: Expression, over: str, mask: Expression | None = None, name: str = "attention") -> Expression:
    """Softmax weights over one axis, w e^z / Σ w e^z with a 0/1 `mask` w.

    **Arguments:** `scores`: z; `over`: the axis that the weights sum to 1 over; `mask`: a constant whose axes are among
    those of the scores (see `causal`, `window`); `name`: what `keep=` calls it.
    """
    _need(scores, over, "softmax")
    if mask is not None:
        if not isinstance(mask, Constant):
            _fail("softmax: a mask is a constant (causal(), window() or constant()), not a computed expression")
        _contained(mask.axes, scores.axes, "softmax: the mask")
        if over not in mask.axes:
            _fail(f"softmax: the mask needs the axis '{over}'; it has ({', '.join(mask.axes)})")
    return Softmax(scores.axes, _line(), scores, over, mask, name)


def elementwise(operand: Expression, function: str | sympy.Expr | Activation, name: str = "activation") -> Expression:
    """An elementwise function: a name (tanh, gelu, …) or any sympy expression in one symbol."""
    try:
        chosen = activation(function)
    except UserError as error:
        _fail(str(error))
    return Elementwise(operand.axes, _line(), operand, chosen, name)


def constant(
    name: str,
    axes: tuple[str, ...],
    build: Callable[[Mapping[str, int]], np.ndarray],
    normalised: str | None = None,
) -> Constant:
    """A fixed array (mask, rotation, shift): `build(sizes)` makes it, `sizes` mapping axis names to their sizes.

    `normalised` names an axis over which it sums to 1 whatever the sizes, if there is one.
    """
    return Constant(tuple(axes), _line(), name, build, normalised)


def fixed(name: str, axes: tuple[str, ...], array: np.ndarray) -> Constant:
    """A fixed array of given numbers, whose shape fixes the sizes of its axes.

    A trainable scalar times a fixed table is an embedding of fixed signatures, w_α = λ R φ_α v:
    `embed(fixed("signatures", ("token", "embed"), table), tokens) * p.scale` with a parameter `"scale": ()`.
    """
    values = np.array(array, dtype=np.float64)
    axes = tuple(axes)
    if values.ndim != len(axes):
        _fail(f"fixed: '{name}' has the axes ({', '.join(axes)}), but its array has shape {values.shape}")
    if not np.isfinite(values).all():
        _fail(f"fixed: '{name}' holds numbers that are not finite")
    return Constant(axes, _line(), name, lambda sizes: values.copy(), None, values.shape)


def constant_number(value: ScalarLike, weight: Degree = 0) -> Expression:
    """A bare number as an expression; `weight` says what power of the initial scale it is counted as."""
    try:
        return Number((), _line(), Scalar.of(value), whole_or_fraction(weight))
    except TypeError as error:
        _fail(str(error))


def rms_norm(
    operand: Expression,
    over: str,
    gain: Expression | None = None,
    delta: ScalarLike = 1e-5,
    weight: Degree = 2,
    name: str = "norm",
) -> Expression:
    """x / √(mean x² + δ) over one axis, times a gain where there is one.

    **Arguments:** `delta`: δ; `weight`: the power of ε that δ counts as. With weight 2 (as large as a small stream squared)
    and with weight 2 beside a stream of order 1, the expansion is around the stream's leading part; with weight 0 it is
    around δ, which serves only while the stream is small against √δ. `name`: what `keep=` calls it.
    """
    _need(operand, over, "rms_norm")
    square = mean(operand * operand, over) + constant_number(delta, weight)
    normalised = operand * elementwise(square, sympy.Symbol("z", real=True) ** sympy.Rational(-1, 2), name)
    return normalised if gain is None else normalised * gain


def layer_norm(
    operand: Expression,
    over: str,
    gain: Expression | None = None,
    bias: Expression | None = None,
    delta: ScalarLike = 1e-5,
    weight: Degree = 2,
    name: str = "norm",
) -> Expression:
    """(x − mean x) / √(var x + δ) over one axis, times a gain, plus a bias; arguments as in `rms_norm`."""
    _need(operand, over, "layer_norm")
    normalised = rms_norm(operand - mean(operand, over), over, gain, delta, weight, name)
    return normalised if bias is None else normalised + bias


def rotary(operand: Expression, axis: str, position: str = POSITION, base: float = 10_000.0) -> Expression:
    """Rotate pairs (i, i + n/2) of an axis by angles that grow with the position (RoPE, arXiv 2104.09864).

    The size of the axis is even; an odd last entry stays as it is.
    """
    _need(operand, axis, "rotary")
    _need(operand, position, "rotary")
    turned = f"{axis}_turned"

    def build(sizes: Mapping[str, int]) -> np.ndarray:
        n = sizes[axis]
        half = n // 2
        angles = np.arange(sizes[position])[:, None] * base ** (-np.arange(half) / max(half, 1))
        rotation = np.tile(np.eye(n), (sizes[position], 1, 1))
        for i in range(half):
            c, s = np.cos(angles[:, i]), np.sin(angles[:, i])
            rotation[:, i, i], rotation[:, i, i + half] = c, -s
            rotation[:, i + half, i], rotation[:, i + half, i + half] = s, c
        return rotation

    turn = constant(f"rotary{base:g}[{position},{axis}]", (position, axis, turned), build)
    return dot(turn, rename(operand, **{axis: turned}), over=turned)


def relative(bias: Expression, offset: str, query: str, key: str = POSITION) -> Expression:
    """A learned bias for each distance `query − key`, as scores [query, key].

    `bias` has the axis `offset`; distances at and beyond its last place share that, later keys share the first.
    """
    _need(bias, offset, "relative")

    def build(sizes: Mapping[str, int]) -> np.ndarray:
        distance = np.arange(sizes[query])[:, None] - np.arange(sizes[key])[None, :]
        return np.eye(sizes[offset])[np.clip(distance, 0, sizes[offset] - 1)]

    return dot(constant(f"distance[{query},{key},{offset}]", (query, key, offset), build, offset), bias, over=offset)


def causal(query: str, key: str = POSITION) -> Constant:
    """The mask [query, key] that lets a position see itself and the positions before it."""
    return constant(
        f"causal[{query},{key}]",
        (query, key),
        lambda sizes: np.tril(np.ones((sizes[query], sizes[key]))),
    )


def window(query: str, key: str = POSITION, width: int = 1) -> Constant:
    """The mask [query, key] that lets a position see itself and the `width - 1` positions before it."""
    if width < 1:
        _fail(f"window: a width of at least 1 is needed, found {width}")

    def build(sizes: Mapping[str, int]) -> np.ndarray:
        full = np.ones((sizes[query], sizes[key]))
        return np.tril(full) - np.tril(full, -width)

    return constant(f"window{width}[{query},{key}]", (query, key), build)


def shift(operand: Expression, by: int = 1, axis: str = POSITION) -> Expression:
    """The operand `by` places later on an axis, zero where nothing moves in (a building block of convolutions)."""
    _need(operand, axis, "shift")
    source = f"{axis}_before"
    moves = constant(f"shift{by}[{axis},{source}]", (axis, source), lambda sizes: np.eye(sizes[axis], k=-by))
    return dot(moves, rename(operand, **{axis: source}), over=source)


def module(operand: Expression, name: str) -> Expression:
    """Mark what a module writes to the residual stream; terms then know their path (see `derive(paths=True)`)."""
    return Mark(operand.axes, _line(), operand, "module", name)


def branch(operand: Expression, name: str) -> Expression:
    """Mark the way in which a module reads its input ("value", "key", "query")."""
    return Mark(operand.axes, _line(), operand, "branch", name)


def parameter(*axes: str, weight: Degree = 1, **aliases: str) -> ParameterSpec:
    """Declare a parameter of given axes and weight a (θ ~ ε^a at initialisation).

    `aliases` adds axes that have the size of others: `parameter("embed", right="embed")` is a square matrix, to be met by
    an operand whose "embed" was renamed to "right".
    """
    return ParameterSpec((*axes, *aliases), whole_or_fraction(weight), tuple(aliases.items()))


# ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ParameterSpec:
    """The axes of a parameter and its weight a in the small-initialisation scale, θ ~ ε^a (1 by default, 0 = not small)."""

    axes: tuple[str, ...]
    weight: Degree = 1
    aliases: tuple[tuple[str, str], ...] = ()


class _Parameters:
    """What an architecture's function receives as `p`: parameters by attribute."""

    def __init__(self, parameters: Mapping[str, ParameterSpec]):
        self._nodes = {name: Parameter(spec.axes, name, name, spec.weight) for name, spec in parameters.items()}

    def __getattr__(self, name: str) -> Expression:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._nodes:
            _fail(f"unknown parameter '{name}'; {nearest(name, self._nodes)}")
        return self._nodes[name]

    def __getitem__(self, name: str) -> Expression:
        return getattr(self, name)


# Names that equations give to what is no parameter.
_TAKEN = {
    "X": "the one-hot tokens",
    "Y": "the one-hot labels",
    "f": "the logits",
    "p": "the prediction",
    "first": "a place",
    "last": "a place",
}


class Architecture:
    """A model, written once: named parameters and a function `f(p, tokens)` that returns its logits.

    **Arguments:** `function`: takes the parameters (by attribute) and the one-hot tokens (axes position, token), and
    returns logits with axes (label) or (position, label); `parameters`: name → axes, or name → `parameter(...)` for a
    weight other than 1; `name`: how output calls it (the function's name by default).

    **Raises:** `UserError` naming the line, what was found and what was expected.
    """

    def __init__(
        self,
        function: Callable[[_Parameters, Expression], Expression],
        parameters: Mapping[str, tuple[str, ...] | ParameterSpec],
        name: str | None = None,
    ):
        own_name = getattr(function, "__name__", type(function).__name__)
        self.name = name or ("architecture" if own_name == "<lambda>" else own_name)
        self.function = function
        self._named = name is not None
        self.parameters: dict[str, ParameterSpec] = {}
        for key, spec in parameters.items():
            spec = spec if isinstance(spec, ParameterSpec) else ParameterSpec(tuple(spec))
            if not key.isidentifier() or key.startswith("_"):
                raise UserError(f"a parameter's name is an identifier without leading underscore, found '{key}'")
            if key in _TAKEN:
                raise UserError(f"a parameter cannot be called '{key}', which stands for {_TAKEN[key]} in equations")
            if len(set(spec.axes)) != len(spec.axes):
                raise UserError(f"parameter '{key}' names an axis twice ({', '.join(spec.axes)}); rename one")
            if spec.weight < 0:
                raise UserError(f"parameter '{key}' has weight {spec.weight}; a weight is 0 or more")
            self.parameters[key] = spec
        traced = function(_Parameters(self.parameters), Tokens((POSITION, TOKEN), self.name))
        if not isinstance(traced, Expression):
            raise UserError(f"{self.name} must return its logits, but returned {type(traced).__name__}")
        extra = set(traced.axes) - {POSITION, LABEL}
        if LABEL not in traced.axes or extra:
            raise UserError(
                f"{traced.line}: {self.name} returns axes ({', '.join(traced.axes)}); logits have the axes (label) or "
                f"(position, label)" + (f", so '{sorted(extra)[0]}' is left over" if extra else "")
            )
        self.logits: Expression = traced
        self.nodes: tuple[Expression, ...] = tuple(_topological(traced))
        self.labels_per_position: bool = POSITION in traced.axes
        self._roots = _axis_roots(self.nodes, self.parameters)
        unused = set(self.parameters) - {n.name for n in self.nodes if isinstance(n, Parameter)}
        if unused:
            raise UserError(f"parameter '{sorted(unused)[0]}' of {self.name} is never used in its logits")
        self.nonlinearities: dict[str, Elementwise | Softmax] = _named_nonlinearities(self.nodes)
        self.fixed_sizes: dict[str, int] = _fixed_sizes(self)
        _check_sizes(self)
        _check_constants(self)
        _check_masks(self)

    def __repr__(self) -> str:
        listing = ", ".join(f"{name}({', '.join(spec.axes)})" for name, spec in self.parameters.items())
        return f"Architecture({self.name}: {listing})"

    def called(self, name: str, *fine: str) -> Architecture:
        """The same architecture under the name `name`, unless it was named when made or has one of the names `fine`."""
        if self._named or self.name in fine:
            return self
        other = copy.copy(self)
        other.name = name
        return other

    def root(self, axis: str) -> str:
        """The axis whose size an axis has: itself, or the one it was renamed from."""
        return self._roots.get(axis, axis)

    @property
    def axes(self) -> tuple[str, ...]:
        """The root axes, whose sizes must be known to evaluate the architecture."""
        return tuple(sorted({self.root(a) for node in self.nodes for a in node.axes}))

    def all_sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """`sizes` with every alias, and what fixed arrays say, filled in.

        **Raises:** `UserError` for a size that is missing, not a positive whole number, or of an unknown axis.
        """
        known = set(self.axes) | {POSITION, TOKEN, LABEL}
        for axis, found in sizes.items():
            if axis not in known and axis not in self._roots:
                raise UserError(f"{self.name} has no axis '{axis}'; {nearest(axis, known)}")
            if isinstance(found, bool) or int(found) != found or found < 1:
                raise UserError(f"the size of axis '{axis}' must be a positive whole number, found {found}")
        for axis, found in self.fixed_sizes.items():
            if sizes.get(axis, found) != found:
                raise UserError(
                    f"axis '{axis}' of {self.name} has size {found} in a fixed array, but {sizes[axis]} elsewhere"
                )
        sizes = {**self.fixed_sizes, **sizes}
        missing = [a for a in self.axes if a not in sizes]
        if missing:
            raise UserError(f"{self.name} needs the size of axis '{missing[0]}' (its axes: {', '.join(self.axes)})")
        for alias, root in self._roots.items():
            if alias in sizes and sizes[alias] != sizes[root]:
                raise UserError(
                    f"axis '{alias}' of {self.name} is another name of '{root}', but their sizes differ: "
                    f"{sizes[alias]} and {sizes[root]}"
                )
        return {
            **{a: int(n) for a, n in sizes.items()},
            **{a: int(sizes[r]) for a, r in self._roots.items()},
        }

    def trained(self, frozen: Iterable[str] = ()) -> tuple[str, ...]:
        """The parameters that move when those of `frozen` keep their initial arrays.

        **Raises:** `UserError` when `frozen` names no parameter, or leaves none to train.
        """
        frozen = tuple(frozen)
        for name in frozen:
            if name not in self.parameters:
                raise UserError(
                    f"there is no parameter {name!r} of {self.name} to keep frozen; {nearest(name, self.parameters)}"
                )
        left = tuple(name for name in self.parameters if name not in frozen)
        if not left:
            raise UserError(f"every parameter of {self.name} is frozen: there is nothing to train")
        return left

    def shapes(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """The shape of each parameter, given the size of each axis."""
        full = self.all_sizes(sizes)
        return {name: tuple(full[a] for a in spec.axes) for name, spec in self.parameters.items()}


def add_axis_sizes(architecture: Architecture, parameters: Mapping[str, object], length: int) -> dict[str, int]:
    """The size of every axis, read off the parameters' shapes and the sequence length.

    **Raises:** `UserError` for a missing or unknown parameter, a wrong number of axes, or sizes that contradict each other.
    """
    sizes = {architecture.root(POSITION): length}
    for name in parameters:
        if name not in architecture.parameters:
            raise UserError(f"{architecture.name} has no parameter '{name}'; {nearest(name, architecture.parameters)}")
    for name, spec in architecture.parameters.items():
        if name not in parameters:
            raise UserError(f"parameter '{name}' of {architecture.name} is missing")
        shape = tuple(getattr(parameters[name], "shape", ()))
        if len(shape) != len(spec.axes):
            raise UserError(f"parameter '{name}' has axes ({', '.join(spec.axes)}), but its array has shape {shape}")
        for axis, found in zip(spec.axes, shape, strict=True):
            root = architecture.root(axis)
            if sizes.setdefault(root, int(found)) != int(found):
                raise UserError(
                    f"parameter '{name}' has size {found} on axis '{axis}', but axis '{root}' has size {sizes[root]}"
                )
    return architecture.all_sizes(sizes)


def _topological(root: Expression) -> Iterator[Expression]:
    """Every node below `root`, inputs first; iterative, so that depth is not bounded by the interpreter's stack."""
    seen: set[int] = set()
    stack: list[tuple[Expression, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            yield node
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        stack.append((node, True))
        children = node.inputs
        if isinstance(node, Softmax) and node.mask is not None:
            children = (*children, node.mask)
        stack.extend((child, False) for child in reversed(children))


def _axis_roots(nodes: Iterable[Expression], parameters: Mapping[str, ParameterSpec]) -> dict[str, str]:
    """Alias → root. The aliases belong to one architecture: two of them may use one name for different axes."""
    declared = {axis for spec in parameters.values() for axis in spec.axes} | {POSITION, TOKEN}
    roots: dict[str, str] = {}
    for name, spec in parameters.items():
        for alias, axis in spec.aliases:
            if roots.setdefault(alias, axis) != axis:
                raise UserError(f"parameter '{name}': axis '{alias}' already is another name of '{roots[alias]}'")
    declared -= set(roots)
    nodes = tuple(nodes)
    for node in nodes:
        if not isinstance(node, Rename):
            continue
        for old, new in node.mapping:
            root = roots.get(old, old)
            if new == root:
                continue
            if roots.setdefault(new, root) != root:
                raise UserError(f"{node.line}: axis '{new}' already is another name of '{roots[new]}', not of '{root}'")
            if new in declared and new != LABEL:
                raise UserError(
                    f"{node.line}: '{new}' is an axis of its own; rename '{old}' to a name that no parameter has"
                )
    return roots


def _named_nonlinearities(nodes: Iterable[Expression]) -> dict[str, Elementwise | Softmax]:
    """Nonlinearities by unique name; of several with one name, the n-th is called "name n"."""
    found = [n for n in nodes if isinstance(n, (Elementwise, Softmax))]
    names = [n.name for n in found]
    result: dict[str, Elementwise | Softmax] = {}
    for index, node in enumerate(found):
        count = names[: index + 1].count(node.name)
        name = node.name if names.count(node.name) == 1 else f"{node.name} {count}"
        if name == "prediction":
            raise UserError(f"{node.line}: the name 'prediction' belongs to the softmax of the loss; choose another")
        if name in result:
            raise UserError(f"{node.line}: two nonlinearities would be called '{name}'; choose another name for one")
        result[name] = node
    return result


def _fixed_sizes(architecture: Architecture) -> dict[str, int]:
    """Root axis → size, as fixed arrays say."""
    found: dict[str, int] = {}
    for node in architecture.nodes:
        if isinstance(node, Constant) and node.shape is not None:
            for axis, size_ in zip(node.axes, node.shape, strict=True):
                if found.setdefault(architecture.root(axis), size_) != size_:
                    raise UserError(
                        f"{node.line}: axis '{axis}' has size {size_} in '{node.name}', but "
                        f"{found[architecture.root(axis)]} in another fixed array"
                    )
    return found


def _check_sizes(architecture: Architecture) -> None:
    known = {*architecture.axes, *architecture._roots}
    for node in architecture.nodes:
        for name, _ in node.scalar.atoms if isinstance(node, (Scale, Number)) else ():
            if name.startswith("|") and name[1:-1] not in known:
                raise UserError(
                    f"{node.line}: size('{name[1:-1]}'): there is no such axis; {nearest(name[1:-1], known)}"
                )


def _check_constants(architecture: Architecture) -> None:
    """Equations know a constant by its name, so two that share one must be the same array."""
    first: dict[str, Constant] = {}
    for node in architecture.nodes:
        if not isinstance(node, Constant):
            continue
        other = first.setdefault(node.name, node)
        # Rules for every size, like masks.
        same = (other.axes, other.normalised) == (node.axes, node.normalised) and all(
            np.array_equal(node.build(sizes), other.build(sizes))
            for n in ((1, 2, 3) if other is not node else ())
            for sizes in [dict.fromkeys((*architecture.axes, *architecture._roots), n)]
        )
        if not same:
            raise UserError(f"{node.line}: another constant is called '{node.name}' already, and is different")


def _check_masks(architecture: Architecture) -> None:
    for node in architecture.nodes:
        if isinstance(node, Softmax) and node.mask is not None:
            # A mask is a rule for every size; trying a few finds rows that forbid everything.
            for n in (1, 2, 3, 5) if node.mask.shape is None else (1,):
                mask = node.mask.build({a: n for a in node.mask.axes})
                if node.mask.shape is None and mask.shape != (n,) * len(node.mask.axes):
                    raise UserError(
                        f"{node.mask.line}: constant '{node.mask.name}' has axes ({', '.join(node.mask.axes)}) but "
                        f"built an array of shape {mask.shape}"
                    )
                if not np.all((mask == 0) | (mask == 1)):
                    raise UserError(f"{node.mask.line}: mask '{node.mask.name}' has entries other than 0 and 1")
                if not np.all(mask.any(axis=node.mask.axes.index(node.over))):
                    raise UserError(
                        f"{node.line}: mask '{node.mask.name}' forbids every place of '{node.over}' for some row; each "
                        f"row needs at least one allowed place"
                    )


def _add(left: Expression, right: Expression) -> Expression:
    if set(right.axes) <= set(left.axes):
        return Add(left.axes, _line(), left, right)
    if set(left.axes) <= set(right.axes):
        return Add(right.axes, _line(), right, left)
    _fail(
        f"+: the axes of one operand must contain the other's; found ({', '.join(left.axes)}) and ({', '.join(right.axes)})"
    )


def _scaled(operand: Expression, value: ScalarLike) -> Expression:
    try:
        return Scale(operand.axes, _line(), operand, Scalar.of(value))
    except TypeError as error:
        _fail(f"cannot scale by {value!r}: {error}")


def _union(left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
    return left + tuple(a for a in right if a not in left)


def _need(operand: Expression, axis: str, word: str) -> None:
    if axis not in operand.axes:
        _fail(
            f"{word}: there is no axis '{axis}'; the axes found are ({', '.join(operand.axes) or 'none'}); "
            f"{nearest(axis, operand.axes)}"
        )


def _contained(inner: tuple[str, ...], outer: tuple[str, ...], what: str) -> None:
    left_over = [a for a in inner if a not in outer]
    if left_over:
        _fail(f"{what} has an axis '{left_over[0]}' that the scores lack; they have ({', '.join(outer)})")


_PACKAGE = __file__.rpartition("language.py")[0]


def _line() -> str:
    """Where the user wrote the operation: the first frame outside this package's language."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    if frame is None:
        return "unknown line"
    name, number = frame.f_code.co_filename, frame.f_lineno
    if name.startswith(_PACKAGE):
        return frame.f_code.co_name  # a stock architecture: its lines say nothing to the user
    text = linecache.getline(name, number).strip()
    short = name.rsplit("/", 1)[-1]
    return f"{short}:{number}" + (f" `{text}`" if text else "")


def _fail(message: str) -> NoReturn:
    raise UserError(f"{_line()}: {message}") from (sys.exception() if hasattr(sys, "exception") else None)
