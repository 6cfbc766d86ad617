"""Equations written out entry by entry in sympy, exactly, for small axis sizes.

The other way round from the rest of this package, where tensors stay whole: here every entry of every parameter is a symbol
`E[0,1]`, every sum is carried out over an enumerated law, and what comes out can be differentiated, solved or compared with
a series made by hand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import opt_einsum
import sympy
from sympy.polys.rings import PolyElement, PolyRing

from theory.activations import z
from theory.algebra.components import Factor
from theory.algebra.scalar import Scalar
from theory.architectures import check_labels
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.evolution import EvolutionEquations, NamedQuantity, Term
from theory.expansion import ConstantDefinition, FunctionDefinition, SoftmaxDefinition
from theory.language import LABEL, POSITION, TOKEN, Architecture
from theory.positions import distinct_indices

# Beyond this many parameter entries the expressions are of no use to anybody.
MOST_ENTRIES = 400
# A float that is the nearest to a fraction with a denominator up to this stands for that fraction.
_LARGEST_DENOMINATOR = 1_000_000

Named = tuple[np.ndarray, tuple[str, ...]]


def parameter_symbols(architecture: Architecture, sizes: Mapping[str, int]) -> dict[str, sympy.Array]:
    """The symbols that stand for the parameters' entries, `E[0,1]`, as arrays of the parameters' shapes."""
    result = {}
    for name, shape in architecture.shapes(sizes).items():
        symbols = [
            sympy.Symbol(f"{name}[{','.join(map(str, place))}]" if place else name, real=True)
            for place in np.ndindex(*shape)
        ]
        result[name] = sympy.Array(symbols, shape) if shape else sympy.Array(symbols[0])
    return result


def to_sympy(equations: EvolutionEquations, sizes: Mapping[str, int], dataset: Dataset) -> dict[str, sympy.Array]:
    """Every right-hand side dθ/dt, entry by entry.

    **Arguments:** `sizes`: axis → size, for the axes that the data do not decide; `dataset`: the law that averages are over,
    its weights read as fractions.

    **Returns:** parameter → array of its shape, of expressions in the symbols of `parameter_symbols`. What is expanded is a
    polynomial; kept nonlinearities stay as the functions that they are.

    **Raises:** `UserError` for sizes that do not fit, labels of the wrong shape, and more than 400 parameter entries.
    """
    architecture = equations.architecture
    full = architecture.all_sizes({**sizes, **_data_sizes(architecture, dataset)})
    shapes = architecture.shapes(full)
    count = sum(math.prod(shape) for shape in shapes.values())
    if count > MOST_ENTRIES:
        raise UserError(
            f"to_sympy writes out every entry, and {architecture.name} has {count} at these sizes, more than "
            f"{MOST_ENTRIES}; choose smaller ones"
        )
    check_labels(architecture, dataset)
    totals = {name: np.zeros(shape, dtype=object) for name, shape in shapes.items()}
    symbols = parameter_symbols(architecture, full)
    for tokens, labels, weight in zip(dataset.tokens, dataset.labels, dataset.weights, strict=True):
        if weight == 0:
            continue
        sample = _Sample(equations, full, symbols, tokens, np.atleast_1d(labels))
        share = _exact(float(weight))
        for name, equation in equations.items():
            totals[name] = totals[name] + share * sample.expressions(equation.terms, equation.axes)
    result = {}
    for name, total in totals.items():
        entries = [sympy.sympify(e) for e in np.asarray(total, dtype=object).ravel()]
        result[name] = sympy.Array(entries, shapes[name]) if shapes[name] else sympy.Array(entries[0])
    return result


def _data_sizes(architecture: Architecture, dataset: Dataset) -> dict[str, int]:
    sizes = {axis: n for axis, n in dataset.sizes.items() if architecture.root(axis) == axis}
    if architecture.root(LABEL) != LABEL and dataset.n_labels > sizes[architecture.root(LABEL)]:
        raise UserError(
            f"{architecture.name} takes its labels from axis '{architecture.root(LABEL)}', which is too short"
        )
    return sizes


def _exact(value: float) -> sympy.Expr:
    """The fraction that a float was made from, where it is a simple one, else the float's own exact value."""
    simple = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    exact = simple if float(simple) == value else Fraction(value)
    return sympy.Integer(exact.numerator) / exact.denominator


class _Sample:
    """All quantities at one sample, as polynomials whose generators are parameter entries, kept values and surds."""

    def __init__(
        self,
        equations: EvolutionEquations,
        sizes: Mapping[str, int],
        parameters: Mapping[str, sympy.Array],
        tokens: np.ndarray,
        labels: np.ndarray,
    ):
        self.equations, self.sizes = equations, sizes
        # Generators that are no parameter entries → what they stand for, in terms of parameter entries.
        self.meaning: dict[sympy.Symbol, sympy.Expr] = {}
        self.opaque: dict[str, np.ndarray] = {}
        self.surds: dict[sympy.Expr, sympy.Symbol] = {}
        for quantity in equations.quantities:
            if isinstance(quantity, FunctionDefinition | SoftmaxDefinition):
                self._declare(quantity.symbol.name, self._shape(quantity.symbol.labels))
        every = [t for equation in equations.values() for t in equation]
        every += [t for q in equations.quantities if isinstance(q, NamedQuantity) for t in q.terms]
        for scalar in {t.coefficient for t in every} | {
            q.number for q in equations.quantities if isinstance(q, ConstantDefinition) and q.number is not None
        }:
            self._split(scalar)
        entries = [e for array in parameters.values() for e in sympy.flatten(array)]
        opaque = [e for array in self.opaque.values() for e in array.ravel()]
        self.ring = PolyRing([*entries, *opaque, *self.surds.values()], sympy.QQ)
        self.arrays: dict[str, np.ndarray] = {
            name: self._polynomials(np.array(sympy.flatten(array), dtype=object), self._shape_of(name))
            for name, array in parameters.items()
        }
        self.arrays["X"] = (tokens[:, None] == np.arange(sizes[TOKEN])).astype(int).astype(object)
        one_hot = (labels[:, None] == np.arange(sizes[LABEL])).astype(int).astype(object)
        self.arrays["Y"] = one_hot if equations.architecture.labels_per_position else one_hot[0]
        for quantity in equations.quantities:
            self._define(quantity)

    def expressions(self, terms: Sequence[Term], axes: tuple[str, ...]) -> np.ndarray:
        """A sum of terms, entry by entry, in terms of parameter entries."""
        # Arithmetic on arrays without axes leaves bare entries.
        total = np.asarray(self._sum(terms, axes, self.equations.distinct), dtype=object)
        result = np.empty(total.shape, dtype=object)
        for place in np.ndindex(*total.shape):
            result[place] = self._expression(total[place])
        return result

    # -- definitions -----------------------------------------------------------------------------------------------------

    def _define(self, quantity: Any) -> None:
        symbol = quantity.symbol
        shape = self._shape(symbol.labels)
        if isinstance(quantity, NamedQuantity):
            self.arrays[symbol.name] = np.asarray(self._sum(quantity.terms, symbol.labels, False), dtype=object)
            return
        if isinstance(quantity, ConstantDefinition):
            if quantity.number is not None:
                self.arrays[symbol.name] = self._filled((), [self._number(quantity.number)])
                return
            values = np.asarray(quantity.build(dict(self.sizes)), dtype=float)
            self.arrays[symbol.name] = self._filled(shape, [self.ring(_exact(v)) for v in values.ravel().tolist()])
            return
        argument = self.arrays[quantity.argument.name]
        inner = np.empty(shape, dtype=object)
        for place in np.ndindex(*shape):
            inner[place] = self._expression(argument[place])
        if isinstance(quantity, FunctionDefinition):
            outer = quantity.function.derivative(quantity.derivative)
            made: list[Any] = [outer.subs(z, value) for value in inner.ravel()]
        else:
            made = self._softmax(quantity, inner)
        for generator, value in zip(self.opaque[symbol.name].ravel(), made, strict=True):
            self.meaning[generator] = value
        self.arrays[symbol.name] = self._polynomials(self.opaque[symbol.name].ravel(), shape)

    def _softmax(self, quantity: SoftmaxDefinition, scores: np.ndarray) -> list[sympy.Expr]:
        labels = quantity.symbol.labels
        raised = np.empty(scores.shape, dtype=object)
        for place in np.ndindex(*scores.shape):
            raised[place] = sympy.exp(scores[place])
        if quantity.mask is not None:
            allowed = self.arrays[quantity.mask.name]
            order = [labels.index(a) for a in quantity.mask.labels]
            for place in np.ndindex(*scores.shape):
                if allowed[tuple(place[n] for n in order)] == 0:
                    raised[place] = sympy.Integer(0)
        whole = raised.sum(axis=labels.index(quantity.over), keepdims=True)
        return list((raised / whole).ravel())

    # -- polynomials -----------------------------------------------------------------------------------------------------

    def _sum(self, terms: Sequence[Term], axes: tuple[str, ...], distinct: bool) -> np.ndarray:
        total = self._filled(self._shape(axes), [self.ring(0)] * math.prod(self._shape(axes)))
        for term in terms:
            factors = list(term.factors)
            operands = [self._operand(factor) for factor in factors]
            positions = distinct_indices(self.equations.symbols, factors) if distinct else []
            if len(positions) > 1:
                places = np.indices((self.sizes[POSITION],) * len(positions))
                apart = np.ones(places.shape[1:], dtype=int)
                for n in range(len(positions)):
                    for m in range(n):
                        apart *= places[n] != places[m]
                operands.append((apart.astype(object), tuple(positions)))
            total = total + _contract(operands, axes, self.sizes) * self._number(term.coefficient)
        return total

    def _operand(self, factor: Factor) -> Named:
        name, indices = factor
        symbol = self.equations.symbols[name]
        if symbol.role == "selector":
            array = np.eye(self.sizes[symbol.axes[0]], dtype=int)[-1 if name == "last" else 0].astype(object)
        elif symbol.role == "delta":
            array = np.eye(self.sizes[symbol.axes[0]], dtype=int).astype(object)
        else:
            array = self.arrays[name]
        picks = tuple((-1 if i.endswith("@last") else 0) if "@" in i else slice(None) for i in indices)
        # A scalar's entry comes back bare.
        return np.asarray(array[picks], dtype=object), tuple(i for i in indices if "@" not in i)

    def _split(self, scalar: Scalar) -> tuple[Any, Any]:
        """Rational and irrational part of a scalar at the sample's sizes; the latter is remembered as a generator."""
        value: Any = scalar.to_sympy()
        value = value.subs({s: self.sizes[str(s).removeprefix("n_")] for s in value.free_symbols})
        rational, surd = value.as_coeff_Mul()
        if surd != 1 and surd not in self.surds:
            generator = sympy.Dummy(f"surd{len(self.surds)}")
            self.surds[surd] = generator
            self.meaning[generator] = surd
        return rational, surd

    def _number(self, scalar: Scalar) -> PolyElement:
        rational, surd = self._split(scalar)
        one = self.ring.one if surd == 1 else self.ring(self.surds[surd])
        return one * self.ring.domain.from_sympy(rational)

    def _expression(self, polynomial: Any) -> Any:
        return self.ring(polynomial).as_expr().xreplace(self.meaning)

    def _polynomials(self, generators: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return self._filled(shape, [self.ring(g) for g in generators])

    def _filled(self, shape: tuple[int, ...], values: Sequence[Any]) -> np.ndarray:
        result = np.empty(math.prod(shape), dtype=object)
        for n, value in enumerate(values):
            result[n] = value
        return result.reshape(shape)

    def _declare(self, name: str, shape: tuple[int, ...]) -> None:
        self.opaque[name] = self._filled(shape, [sympy.Dummy(f"{name}{place}") for place in np.ndindex(*shape)])

    def _shape(self, labels: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(self.sizes[label] for label in labels)

    def _shape_of(self, parameter: str) -> tuple[int, ...]:
        return self._shape(self.equations.architecture.parameters[parameter].axes)


def _contract(operands: list[Named], axes: tuple[str, ...], sizes: Mapping[str, int]) -> np.ndarray:
    """Sum the product of arrays of objects over all names but `axes`; an axis that none has is repeated."""
    present = {name for _, names in operands for name in names}
    ones = [(np.ones(sizes[a], dtype=int).astype(object), (a,)) for a in axes if a not in present]
    operands = [*operands, *ones]
    if not operands:
        return np.array(1, dtype=object)
    letters: dict[str, str] = {}
    for _, names in operands:
        for name in names:
            letters.setdefault(name, opt_einsum.get_symbol(len(letters)))
    left = ",".join("".join(letters[n] for n in names) for _, names in operands)
    right = "".join(letters[a] for a in axes)
    return np.asarray(opt_einsum.contract(f"{left}->{right}", *(array for array, _ in operands), backend="object"))
