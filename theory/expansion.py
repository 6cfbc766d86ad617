"""An architecture's values as graded polynomials, each nonlinearity expanded or kept.

*Expanded*: the Taylor series at the degree-0 part of the argument. *Kept*: an opaque symbol, defined by its untruncated
argument and carrying its leading degree. Everything kept, values are a graph of named quantities; this module makes both,
by the same rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from theory import language as lang
from theory.activations import Activation
from theory.algebra.components import ComponentTable, Symbol, place_label
from theory.algebra.polynomials import INFINITE, Algebra, Graded, Polynomial, term_count, truncated
from theory.algebra.scalar import Degree, Scalar
from theory.errors import UserError, nearest
from theory.errors import argument as spelled
from theory.language import LABEL, POSITION, TOKEN, Architecture, Expression

ZERO = 0

# The name of the kept prediction softmax(f).
PREDICTION = "p"


@dataclass(frozen=True)
class PolynomialDefinition:
    """A named quantity that is a sum of contractions, with the symbol's labels free."""

    symbol: Symbol
    value: Graded


@dataclass(frozen=True)
class FunctionDefinition:
    """A named quantity σ^(derivative)(argument), entry by entry."""

    symbol: Symbol
    function: Activation
    derivative: int
    argument: Symbol


@dataclass(frozen=True)
class SoftmaxDefinition:
    """A named quantity softmax(argument) over one label, masked where there is a mask."""

    symbol: Symbol
    argument: Symbol
    over: str
    mask: Symbol | None


@dataclass(frozen=True)
class ConstantDefinition:
    """A fixed array, `build(sizes)` with axes as the symbol's labels; `number` where it is one of positive weight."""

    symbol: Symbol
    build: Callable[[dict[str, int]], np.ndarray]
    number: Scalar | None = None


Definition = PolynomialDefinition | FunctionDefinition | SoftmaxDefinition | ConstantDefinition


class Expansion:
    """The values of one architecture's nodes, in one mode.

    **Arguments:** `architecture`; `degree`: of the loss, or None for everything kept; `keep`: names (or kinds) of the
    nonlinearities to keep; `most`: by node, the degree up to which to know its value (by default what the loss needs);
    `shared`: name what every product and every sum of products is, degree by degree, instead of multiplying it out.
    """

    def __init__(
        self,
        architecture: Architecture,
        degree: Degree | None,
        keep: frozenset[str],
        most: dict[int, Degree] | None = None,
        shared: bool = False,
    ):
        self.architecture = architecture
        self.shared = shared
        self._shared_symbols: dict[tuple, Symbol] = {}
        self.degree = degree
        self.cut = INFINITE if degree is None else degree
        self.table = ComponentTable(architecture.root)
        self.algebra = Algebra(self.table)
        self.definitions: dict[str, Definition] = {}
        self.kept = {id(node) for node in _kept(architecture, degree, keep)}
        self._names = {id(node): name for name, node in architecture.nonlinearities.items()}
        self.per_sample = _depends(architecture, lang.Tokens)
        self.trained = _depends(architecture, lang.Parameter)
        self._consumers = _consumers(architecture)
        # Nodes above a nonlinearity, and nodes whose value has a name of its own.
        self.nonlinear = _depends(architecture, (lang.Elementwise, lang.Softmax))
        self.named: set[int] = set()
        self.tokens = self.table.declare(
            Symbol("X", (POSITION, TOKEN), (architecture.root(POSITION), TOKEN), "tokens", True, hot=1, normalised=1)
        )
        label_axes = (POSITION, LABEL) if architecture.labels_per_position else (LABEL,)
        roots = tuple(architecture.root(a) for a in label_axes)
        hot = len(label_axes) - 1
        self.labels = self.table.declare(Symbol("Y", label_axes, roots, "labels", True, hot=hot, normalised=hot))
        self._parameters = {
            name: Symbol(name, spec.axes, tuple(map(architecture.root, spec.axes)), "parameter", degree=spec.weight)
            for name, spec in architecture.parameters.items()
        }
        self.leading = _leading_degrees(self)
        self.needed = _needed_degrees(self) if degree is not None else dict.fromkeys(self.leading, INFINITE)
        # Values by node: as the mode has them, and (for the arguments of what is kept) with everything kept.
        self._values: dict[int, Graded] = {}
        self._exact: dict[int, Graded] = {}
        if most is not None:
            self.needed = {key: min(self.needed[key], most[key]) for key in self.needed}
        elif degree is not None:
            self._check_leading_parts()
        for node in architecture.nodes:
            self._values[id(node)] = self._value(node)

    def _check_leading_parts(self) -> None:
        """Refuse a kept power such as 1/√, or one of what is kept, whose argument's leading part vanishes identically.

        Its leading degree would be wrong, and with it every budget. What is kept hides whether that is so: the leading parts
        alone are derived with as little kept as can be, at the cost of one forward pass.
        """
        rough = [name for name, node in self.architecture.nonlinearities.items() if _is_rough(node)]
        if len(self.kept) > len(rough) and any(map(_is_power, self.architecture.nonlinearities.values())):
            most = {
                key: self.leading[key] if self.needed[key] >= self.leading[key] else -INFINITE for key in self.leading
            }
            Expansion(self.architecture, self.degree, frozenset(rough), most)

    # -- values --------------------------------------------------------------------------------------------------------

    def value(self, node: Expression) -> Graded:
        """The value of a node, truncated where its mode expands."""
        return self._values[id(node)]

    def exact(self, node: Expression) -> Graded:
        """The untruncated value of a node, everything below it kept: a polynomial in named quantities."""
        if self.degree is None:
            return self._values[id(node)]
        for below in _below(self.architecture, node):
            if id(below) not in self._exact:
                self._exact[id(below)] = self._rule(below, self.exact_of, INFINITE, keep=True)
        return self._exact[id(node)]

    def exact_of(self, node: Expression) -> Graded:
        return self._exact[id(node)]

    def derivative(self, node: lang.Elementwise) -> Graded:
        """σ'(argument), expanded or kept as the node is."""
        cut = self.needed[id(node)] - self.leading[id(node.operand)] if self.degree is not None else INFINITE
        if id(node) in self.kept:
            return self._opaque_function(node, 1)
        return self.named_parts(self._series(node, self.value(node.operand), cut, derivative=1))

    def prediction(self, kind: str) -> Graded:
        """Softmax of the logits: "kept" (of the untruncated logits), "of-truncated-logits", or "expanded"."""
        logits = self.architecture.logits
        if kind == "expanded":
            cut = self.cut - self.leading[id(logits)]
            return self._softmax_series(self.value(logits), logits.axes, LABEL, None, cut, "prediction")
        graded = self.exact(logits) if kind == "kept" else self.value(logits)
        argument = self.name_quantity("f", graded, logits.axes, True)
        return self._softmax_symbol(PREDICTION, argument, LABEL, None)

    def name_quantity(self, name: str, graded: Graded, labels: tuple[str, ...], per_sample: bool) -> Symbol:
        """Define a named quantity by a polynomial; a polynomial that is one symbol already is called by that."""
        same = self._single_symbol(graded, labels)
        if same is not None:
            return same
        degree = min(graded, default=ZERO)
        symbol = self._declare_named(name, labels, per_sample, degree)
        self.definitions.setdefault(symbol.name, PolynomialDefinition(symbol, graded))
        return symbol

    def named_parts(self, graded: Graded, exact: bool = False) -> Graded:
        """The same value with each degree's part called by a name, equal parts by the same one; unshared, as it is.

        A part that is one symbol, or a number, needs none. So each contraction is done once, whatever reads it: this is what
        reverse-mode differentiation does with arrays, at every degree. Where nothing is cut off (`exact`, or without a
        degree) there is no need to know degrees apart, and the whole value gets one name.
        """
        if not self.shared or not graded:
            return graded
        if exact or self.degree is None:
            return self._named_part(min(graded), list(graded.values()))
        return {degree: self._named_part(degree, [part])[degree] for degree, part in graded.items()}

    def _named_part(self, degree: Degree, parts: list[Polynomial]) -> Graded:
        components = [self.table[c] for part in parts for _, product in part for c in product]
        if len(parts) == len(parts[0]) == 1 and len([f for c in components for f in c.factors]) <= 1:
            return {degree: parts[0]}
        part: Polynomial = {}
        for more in parts:
            for monomial, rational in more.items():
                part[monomial] = part.get(monomial, Fraction(0)) + rational
        key = (degree, frozenset(part.items()))
        if key not in self._shared_symbols:
            found = {label for component in components for label in component.labels}
            # Positions first: an array of rows, which matrix products read in order.
            labels = tuple(sorted(found, key=lambda a: (self.architecture.root(a) != POSITION, a)))
            per_sample = self._holds_data({degree: part})
            name = f"h{1 + len(self._shared_symbols)}"
            self._shared_symbols[key] = self._declare_named(name, labels, per_sample, degree)
            self.definitions[name] = PolynomialDefinition(self._shared_symbols[key], {degree: part})
        return self.algebra.symbol(self._shared_symbols[key])

    def _holds_data(self, graded: Graded) -> bool:
        """Whether a value differs from sample to sample."""
        factors = (f for part in graded.values() for _, cs in part for c in cs for f in self.table[c].factors)
        return any(self.table.symbols[name].per_sample for name, _ in factors)

    def _value(self, node: Expression) -> Graded:
        cut = self.needed[id(node)]
        # Not 0: a normaliser's leading degree is negative.
        if cut < self.leading[id(node)]:
            return {}
        keep = id(node) in self.kept
        return self._rule(node, self.value, cut, keep)

    def _rule(self, node: Expression, value: Callable[[Expression], Graded], cut: Degree, keep: bool) -> Graded:
        algebra = self.algebra
        match node:
            case lang.Tokens():
                return algebra.symbol(self.tokens)
            case lang.Parameter(name=name):
                return truncated(algebra.symbol(self._parameters[name]), cut)
            case lang.Constant():
                return algebra.symbol(self._constant(node.name, node.axes, node.build, node.normalised))
            case lang.Number(scalar=scalar, weight=weight):
                if weight:
                    return truncated(algebra.symbol(self._small_number(scalar, weight)), cut)
                return algebra.number(self.root_scalar(scalar))
            case lang.Dot(left=left, right=right, over=over):
                result = algebra.multiply(value(left), value(right), over, cut)
            case lang.Multiply(left=left, right=right):
                result = algebra.multiply(value(left), value(right), (), cut)
            case lang.Add(left=left, right=right):
                result = truncated(algebra.add(value(left), value(right)), cut)
            case lang.Scale(operand=operand, scalar=scalar):
                result = truncated(algebra.scale(value(operand), self.root_scalar(scalar)), cut)
            case lang.Total(operand=operand, over=over):
                result = truncated(algebra.contract(value(operand), (over,)), cut)
            case lang.Rename(operand=operand, mapping=mapping):
                result = truncated(algebra.relabel(value(operand), dict(mapping)), cut)
            case lang.Select(operand=operand, axis=axis, place=place):
                root = self.architecture.root(axis)
                result = truncated(algebra.relabel(value(operand), {axis: place_label(root, place)}), cut)
            case lang.Mark(operand=operand):
                return truncated(value(operand), cut)
            case lang.Elementwise():
                if keep:
                    return self._opaque_function(node, 0)
                result = self._series(node, value(node.operand), cut, derivative=0)
            case lang.Softmax():
                if keep:
                    return self._opaque_softmax(node)
                name = self._names[id(node)]
                result = self._softmax_series(value(node.operand), node.axes, node.over, node.mask, cut, name)
            case _:
                raise AssertionError(f"no rule for {type(node).__name__}")
        if self.shared:
            return self.named_parts(result, exact=cut == INFINITE)
        if cut == INFINITE and term_count(result) > 1 and self._consumers[id(node)] > 1:
            # Multiplied out, depth would explode: a sum that is read more than once gets a name.
            symbol = self.name_quantity(self._fresh_name(node), result, node.axes, id(node) in self.per_sample)
            self.named.add(id(node))
            return algebra.symbol(symbol)
        return result

    # -- kept ----------------------------------------------------------------------------------------------------------

    def _opaque_function(self, node: lang.Elementwise, derivative: int) -> Graded:
        name = self._names[id(node)]
        argument = self._argument(node.operand, name)
        primes = "'" * derivative
        lead = self._opaque_degree(node, derivative)
        symbol = self._declare_named(f"σ{primes}[{name}]", node.axes, id(node) in self.per_sample, lead)
        self.definitions.setdefault(symbol.name, FunctionDefinition(symbol, node.function, derivative, argument))
        return self.algebra.symbol(symbol)

    def _opaque_softmax(self, node: lang.Softmax) -> Graded:
        name = self._names[id(node)]
        argument = self._argument(node.operand, name)
        mask = None
        if node.mask is not None:
            mask = self._constant(node.mask.name, node.mask.axes, node.mask.build, node.mask.normalised)
        return self._softmax_symbol(f"a[{name}]", argument, node.over, mask)

    def _softmax_symbol(self, name: str, argument: Symbol, over: str, mask: Symbol | None) -> Graded:
        labels = argument.labels
        symbol = self.table.declare(
            Symbol(name, labels, argument.axes, "named", argument.per_sample, normalised=labels.index(over))
        )
        self.definitions.setdefault(name, SoftmaxDefinition(symbol, argument, over, mask))
        return self.algebra.symbol(symbol)

    def _argument(self, node: Expression, name: str) -> Symbol:
        return self.name_quantity(f"z[{name}]", self.exact(node), node.axes, id(node) in self.per_sample)

    def _opaque_degree(self, node: lang.Elementwise, derivative: int) -> Degree:
        """The leading degree of σ(h) or σ'(h): with k_0 = the first k ≥ 1 with C_k ≠ 0, k_0·deg h (0 if C_0 ≠ 0) and
        (k_0 − 1)·deg h."""
        return _activation_degree(node.function, self.leading[id(node.operand)], derivative, kept=True)

    def _single_symbol(self, graded: Graded, labels: tuple[str, ...]) -> Symbol | None:
        if term_count(graded) != 1:
            return None
        ((atoms, components), rational) = next(iter(next(iter(graded.values())).items()))
        if atoms or rational != 1 or len(components) != 1:
            return None
        factors = self.table[components[0]].factors
        if len(factors) != 1 or factors[0][1] != labels:
            return None
        symbol = self.table.symbols[factors[0][0]]
        return symbol if symbol.role == "named" and symbol.labels == labels else None

    def _declare_named(self, name: str, labels: tuple[str, ...], per_sample: bool, degree: Degree) -> Symbol:
        axes = tuple(self.architecture.root(a) for a in labels)
        return self.table.declare(Symbol(name, labels, axes, "named", per_sample, degree=degree))

    def _fresh_name(self, node: Expression) -> str:
        return f"h{1 + sum(1 for name in self.definitions if name.startswith('h'))}"

    def _constant(
        self, name: str, labels: tuple[str, ...], build: Callable[..., np.ndarray], normalised: str | None
    ) -> Symbol:
        axes = tuple(map(self.architecture.root, labels))
        slot = None if normalised is None else labels.index(normalised)
        symbol = self.table.declare(Symbol(name, labels, axes, "constant", normalised=slot))
        self.definitions.setdefault(name, ConstantDefinition(symbol, build))
        return symbol

    def _small_number(self, scalar: Scalar, weight: Degree) -> Symbol:
        """A number that counts as of order ε^weight keeps a name, δ, so that its scale can be changed with ε."""
        known = [q for q in self.definitions.values() if isinstance(q, ConstantDefinition) and q.symbol.name[0] == "δ"]
        for definition in known:
            if definition.symbol.degree == weight and definition.number == scalar:
                return definition.symbol
        name = f"δ{len(known) + 1}" if known else "δ"
        symbol = self.table.declare(Symbol(name, (), (), "constant", degree=weight))

        def build(sizes: dict[str, int]) -> np.ndarray:
            return np.asarray(scalar.value(sizes))

        self.definitions[name] = ConstantDefinition(symbol, build, scalar)
        return symbol

    def selector(self, axis: str, place: str) -> Graded:
        """The one-hot vector of a fixed place, its label free."""
        root = self.architecture.root(axis)
        name = place if root == POSITION else place_label(root, place)
        symbol = self.table.declare(Symbol(name, (root,), (root,), "selector", hot=None, normalised=0))
        return self.algebra.symbol(symbol, (axis,))

    def root_scalar(self, scalar: Scalar) -> Scalar:
        """The scalar with sizes of aliases said by their roots."""
        result = Scalar(scalar.rational)
        for name, power in scalar.atoms:
            if name.startswith("|"):
                result = result * self.algebra.size(name[1:-1]) ** power
            else:
                result = result * Scalar(Fraction(1), ((name, power),))
        return result

    # -- expanded ------------------------------------------------------------------------------------------------------

    def _series(self, node: lang.Elementwise, argument: Graded, cut: Degree, derivative: int) -> Graded:
        """Σ_k σ^(k)(h_0)/k! (h − h_0)^k around the degree-0 part h_0 of the argument.

        Where h_0 is a number (most often 0) the coefficients are exact numbers; where it is not, they are opaque. A power
        such as the 1/√ of a normaliser, which has no series at 0, is expanded around the leading part of its argument.
        """
        power = node.function.pure_power
        lead = self.leading[id(node.operand)] if power is not None else 0
        base = argument.get(lead, {})
        rest = {degree: p for degree, p in argument.items() if degree != lead}
        if not base and power is not None:
            if self.needed[id(node.operand)] < lead:
                return {}
            raise UserError(
                f"{node.line}: the leading part (degree {lead}) of what '{self._names[id(node)]}' is applied to vanishes "
                f"identically, so there is nothing to expand it around; derive without {spelled('degree')} (everything kept), "
                f"or take out what cancels"
            )
        number = self._as_number(base)
        if number is not None and power is None and any(name.startswith("|") for name, _ in number.atoms):
            # σ(1/n) of a symbolic size n is no exact number.
            number = None

        def coefficient(k: int) -> Graded:
            order = k + derivative
            falling = _factorial(order) // _factorial(k)
            if number is None:
                return self.algebra.scale(self._opaque_at(node, base, lead, order), Scalar(Fraction(1, _factorial(k))))
            zero = number.rational == 0
            try:
                parts = node.function.coefficient(order) if zero else node.function.at(number, order)
            except UserError as error:
                name = self._names[id(node)]
                raise UserError(
                    f"{node.line}: {error}; keep it ({spelled('keep', name)}), or choose a smooth one such as gelu or tanh"
                ) from error
            graded = self.algebra.add(*(self.algebra.number(c * falling) for c in parts))
            shift = (power - order) * lead if power is not None else 0
            return {degree + shift: p for degree, p in graded.items()}

        start = (power - derivative) * lead if power is not None else 0
        return self._power_sum(rest, coefficient, cut, start, lead)

    def _as_number(self, base: Polynomial) -> Scalar | None:
        """The number that a polynomial is (0 where it is empty), or None."""
        if not base:
            return Scalar(Fraction(0))
        ((atoms, components), rational), *more = base.items()
        return None if components or more else Scalar(rational, atoms)

    def _opaque_at(self, node: lang.Elementwise, base: Polynomial, lead: Degree, order: int) -> Graded:
        """σ^(order) of the leading part of the argument, as a named quantity."""
        name = self._names[id(node)]
        sample = self._holds_data({lead: base})
        centre = self.name_quantity(f"z0[{name}]", {lead: base}, node.axes, sample)
        power = node.function.pure_power
        degree = (power - order) * lead if power is not None else 0
        symbol = self._declare_named(f"σ{order}[{name}]", node.axes, sample, degree)
        self.definitions.setdefault(symbol.name, FunctionDefinition(symbol, node.function, order, centre))
        return self.algebra.symbol(symbol)

    def _power_sum(
        self, argument: Graded, coefficient: Callable[[int], Graded], cut: Degree, start: Degree = 0, drop: Degree = 0
    ) -> Graded:
        """Σ_k coefficient(k) · argument^k up to degree `cut`, where coefficient(k) has degree start − k·drop."""
        result = truncated(coefficient(0), cut)
        power: Graded = self.algebra.number(Scalar(Fraction(1)))
        gain = min(argument, default=INFINITE)
        k = 1
        while power and k * (gain - drop) + start <= cut:
            power = self.named_parts(self.algebra.multiply(power, argument, (), cut - start + k * drop))
            factor = coefficient(k)
            if factor:
                result = self.algebra.add(result, self.algebra.multiply(power, factor, (), cut))
            k += 1
        return result

    def _softmax_series(
        self, scores: Graded, axes: tuple[str, ...], over: str, mask: lang.Constant | None, cut: Degree, name: str
    ) -> Graded:
        """w e^z / Σ w e^z around its value w at the degree-0 part of the scores."""
        algebra = self.algebra
        base, rest = _split_base(scores)
        if base:
            argument = self.name_quantity(f"z0[{name}]", {ZERO: base}, axes, self._holds_data({ZERO: base}))
            symbol = None
            if mask is not None:
                symbol = self._constant(mask.name, mask.axes, mask.build, mask.normalised)
            weights = self._softmax_symbol(f"a0[{name}]", argument, over, symbol)
        elif mask is None:
            weights = algebra.number(algebra.size(over) ** -1)
        else:
            weights = algebra.symbol(self._row_normalised(mask, over))

        def inverse_factorial(k: int) -> Graded:
            return algebra.number(Scalar(Fraction(1, _factorial(k))))

        def alternating(k: int) -> Graded:
            return algebra.number(Scalar(Fraction((-1) ** k)))

        exponential = self._power_sum(rest, inverse_factorial, cut)
        numerator = self.named_parts(algebra.multiply(weights, exponential, (), cut))
        denominator = self.named_parts(algebra.contract(numerator, (over,)))
        remainder = {degree: p for degree, p in denominator.items() if degree > 0}
        inverse = self.named_parts(self._power_sum(remainder, alternating, cut))
        return algebra.multiply(numerator, inverse, (), cut)

    def _row_normalised(self, mask: lang.Constant, over: str) -> Symbol:
        place = mask.axes.index(over)

        def build(sizes: dict[str, int]) -> np.ndarray:
            array = mask.build(sizes)
            return array / array.sum(axis=place, keepdims=True)

        name = f"w[{mask.name}]" if over == mask.axes[-1] else f"w[{mask.name}, {over}]"
        return self._constant(name, mask.axes, build, over)


# -- degrees ---------------------------------------------------------------------------------------------------------


def _leading_degrees(expansion: Expansion) -> dict[int, Degree]:
    """The least degree that each node's value can have."""
    lead: dict[int, Degree] = {}
    for node in expansion.architecture.nodes:
        match node:
            case lang.Parameter(weight=weight):
                degree = weight
            case lang.Dot(left=left, right=right) | lang.Multiply(left=left, right=right):
                degree = min(lead[id(left)] + lead[id(right)], INFINITE)
            case lang.Add(left=left, right=right):
                degree = min(lead[id(left)], lead[id(right)])
            case lang.Elementwise(operand=operand, function=function):
                degree = _activation_degree(function, lead[id(operand)], 0, id(node) in expansion.kept)
            case lang.Softmax() | lang.Tokens() | lang.Constant():
                degree = ZERO
            case lang.Number(scalar=scalar, weight=weight):
                degree = weight if scalar.rational else INFINITE
            case _:
                (operand,) = node.inputs
                degree = lead[id(operand)]
        lead[id(node)] = degree
    return lead


def _activation_degree(function: Activation, argument: Degree, derivative: int, kept: bool) -> Degree:
    if argument == 0:
        return ZERO
    if function.pure_power is not None:
        return (function.pure_power - derivative) * argument
    if argument >= INFINITE:
        return ZERO if not function.vanishes_at_zero else INFINITE
    if derivative == 0:
        return ZERO if not function.vanishes_at_zero else function.leading_power * argument
    return (function.leading_power - 1) * argument


def _needed_degrees(expansion: Expansion) -> dict[int, Degree]:
    """Up to which degree each node's value can matter: the loss degree less the least degree of its adjoint."""
    assert expansion.degree is not None
    lead = expansion.leading
    adjoint: dict[int, Degree] = dict.fromkeys(lead, INFINITE)
    adjoint[id(expansion.architecture.logits)] = ZERO

    def reach(node: Expression, degree: Degree) -> None:
        adjoint[id(node)] = min(adjoint[id(node)], degree)

    for node in reversed(expansion.architecture.nodes):
        own = adjoint[id(node)]
        match node:
            case lang.Dot(left=left, right=right) | lang.Multiply(left=left, right=right):
                reach(left, own + lead[id(right)])
                reach(right, own + lead[id(left)])
            case lang.Elementwise(operand=operand, function=function):
                kept = id(node) in expansion.kept
                reach(operand, own + _activation_degree(function, lead[id(operand)], 1, kept))
            case _:
                for operand in node.inputs:
                    reach(operand, own)
    return {key: expansion.degree - min(degree, INFINITE) for key, degree in adjoint.items()}


# -- structure -------------------------------------------------------------------------------------------------------


def _kept(architecture: Architecture, degree: Degree | None, keep: frozenset[str]) -> list[Expression]:
    named = architecture.nonlinearities
    if degree is None or "all" in keep:
        return list(named.values())
    known = set(named) | {node.name for node in named.values()} | {"prediction", "all"}
    for name in keep:
        if name not in known:
            raise UserError(f"{architecture.name} has no nonlinearity '{name}' to keep; {nearest(name, known)}")
    return [node for name, node in named.items() if name in keep or node.name in keep]


def _is_power(node: Expression) -> bool:
    return isinstance(node, lang.Elementwise) and node.function.pure_power is not None


def _is_rough(node: Expression) -> bool:
    """Whether a nonlinearity has no series, around 0 or around its leading part."""
    return isinstance(node, lang.Elementwise) and not node.function.analytic and not _is_power(node)


def _depends(architecture: Architecture, kind: type[Expression] | tuple[type[Expression], ...]) -> set[int]:
    """The nodes that are of a kind or depend on one that is."""
    found: set[int] = set()
    for node in architecture.nodes:
        if isinstance(node, kind) or any(id(child) in found for child in node.inputs):
            found.add(id(node))
    return found


def _consumers(architecture: Architecture) -> dict[int, int]:
    counts = dict.fromkeys(map(id, architecture.nodes), 0)
    for node in architecture.nodes:
        for child in node.inputs:
            counts[id(child)] += 1
    return counts


def _below(architecture: Architecture, node: Expression) -> list[Expression]:
    wanted = {id(node)}
    for other in reversed(architecture.nodes):
        if id(other) in wanted:
            wanted |= {id(child) for child in other.inputs}
    return [other for other in architecture.nodes if id(other) in wanted]


def _split_base(graded: Graded) -> tuple[Polynomial, Graded]:
    base = graded.get(ZERO, {})
    return base, {degree: p for degree, p in graded.items() if degree != 0}


def _factorial(k: int) -> int:
    return 1 if k < 2 else k * _factorial(k - 1)
