"""What every written form of equations has in common: the order of a term's pieces, definitions, and the legend."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sympy

from theory.algebra.scalar import Scalar
from theory.evolution import EvolutionEquations, NamedQuantity, Quantity, Term
from theory.expansion import ConstantDefinition, FunctionDefinition, SoftmaxDefinition
from theory.printing.notation import (
    Group,
    Index,
    Notation,
    Reading,
    Written,
    axes_in_coefficients,
    function_names,
    symbols_in_use,
)

_PLURAL = {"token": "tokens", "label": "labels", "position": "positions"}


@dataclass(frozen=True)
class Row:
    """One signed term; `first` terms of a sum do without a plus sign."""

    negative: bool
    body: str

    def signed(self, first: bool) -> str:
        """The term with its sign."""
        return f"- {self.body}" if self.negative else self.body if first else f"+ {self.body}"


@dataclass(frozen=True)
class Definition:
    """A named quantity: its left side, and the rows of its right side."""

    left: str
    rows: tuple[Row, ...]


class Writer:
    """Writes terms, definitions and a legend; subclasses say how each piece looks.

    **Arguments:** `equations`; `parameter`: only this parameter's equation.
    """

    def __init__(self, equations: EvolutionEquations, parameter: str | None = None):
        self.equations = equations
        self.notation = Notation(equations, parameter)
        self.names = self.notation.names
        self.functions = function_names(equations)
        self._averages = False

    # -- pieces that subclasses write ------------------------------------------------------------------------------------

    def product(self, pieces: list[str]) -> str:
        """Pieces, sum signs among them, one after the other."""
        return " ".join(pieces)

    def number(self, value: sympy.Expr) -> str:
        """An exact positive number; axis sizes are the symbols that `size` names."""
        raise NotImplementedError

    def size(self, axis: str) -> str:
        """The size of an axis."""
        raise NotImplementedError

    def symbol(self, name: str) -> str:
        """A symbol without its indices."""
        raise NotImplementedError

    def letter(self, text: str) -> str:
        """An index letter."""
        raise NotImplementedError

    def at(self, base: str, place: str) -> str:
        """The token or label at a position."""
        raise NotImplementedError

    def indexed(self, base: str, indices: list[str], power: int) -> str:
        """A tensor's entry to a power."""
        raise NotImplementedError

    def indicator(self, first: str, second: str) -> str:
        """1 where both are equal."""
        raise NotImplementedError

    def sum_over(self, letters: Iterable[str]) -> str:
        """The sign of a sum over letters."""
        raise NotImplementedError

    def distinct_sum(self, letters: Iterable[str]) -> str:
        """The sign of a sum over pairwise distinct letters."""
        raise NotImplementedError

    def average(self, body: str) -> str:
        """The average over the data."""
        raise NotImplementedError

    def probability(self, order: int, anchor: str) -> str:
        """L r_α (L − 1) … (L − order)."""
        raise NotImplementedError

    def signature(self, variable: str, order: int, anchor: str, indices: list[str]) -> str:
        """φ_α^{y;m}(ν, β, …)."""
        raise NotImplementedError

    def call(self, function: str, derivative: int, argument: str) -> str:
        """A derivative of a function at an argument."""
        raise NotImplementedError

    def exponential(self, argument: str) -> str:
        """exp."""
        raise NotImplementedError

    def fraction(self, upper: str, lower: str) -> str:
        """A quotient of two products or sums of one term."""
        raise NotImplementedError

    # -- terms -----------------------------------------------------------------------------------------------------------

    def rows(self, axes: tuple[str, ...], terms: Iterable[Term], averaged: bool = True) -> list[Row]:
        """Terms as rows; `averaged`: over the data, as in equations, or at one sample, as in named quantities."""
        return [self._row(self.notation.read(axes, term), averaged) for term in terms]

    def groups(self, name: str) -> list[tuple[Group, list[Row]]]:
        """The rows of one parameter's equation, by group."""
        equation = self.equations[name]
        return [(group, self.rows(equation.axes, terms)) for group, terms in self.notation.groups(equation)]

    def sum_of(self, rows: Iterable[Row]) -> str:
        """All rows in one line."""
        return " ".join(row.signed(n == 0) for n, row in enumerate(rows)) or "0"

    def left(self, name: str, labels: tuple[str, ...]) -> str:
        """A symbol with the first letters of its axes."""
        return self.written(self.notation.left(name, labels))

    def _row(self, reading: Reading, averaged: bool) -> Row:
        rational = reading.coefficient.rational
        value = self._number(Scalar(abs(rational), reading.coefficient.atoms))
        pieces = []
        if value != "1" or not (reading.written or reading.signature or reading.sums):
            pieces.append(value)
        if reading.signature is not None:
            pieces.append(self.probability(reading.signature.order, self.letter(reading.anchor)))
        if reading.sums:
            pieces.append(self.sum_over(map(self.letter, reading.sums)))
        if reading.signature is not None and reading.signature_indices:
            letters = [self.letter(i) for i in reading.signature_indices]
            kind = reading.signature
            pieces.append(self.signature(kind.variable, kind.order, self.letter(reading.anchor), letters))
        if reading.averaged:
            inner = [self.distinct_sum(map(self.letter, reading.distinct))] if reading.distinct else []
            inner += [self.sum_over(map(self.letter, reading.inner_sums))] if reading.inner_sums else []
            body = self.product([*inner, *map(self.written, reading.averaged)])
            self._averages |= averaged
            pieces.append(self.average(body) if averaged else body)
        pieces += [self.written(w) for w in reading.outside]
        return Row(rational < 0, self.product(pieces))

    def written(self, factor: Written) -> str:
        """One factor."""
        indices = [self.index(i) for i in factor.indices]
        if factor.name == "=":
            return self.indicator(*indices)
        return self.indexed(self.symbol(factor.name), indices, factor.power)

    def index(self, index: Index) -> str:
        """One index."""
        if index.text == "first":
            return "1"
        if index.text == "last":
            return self.size(index.of)
        if not index.is_data:
            return self.letter(index.text)
        if not index.of:
            return index.text
        place = {"@first": "1", "@last": self.size("position")}.get(index.of)
        return self.at(index.text, place or self.letter(index.of))

    def _number(self, scalar: Scalar) -> str:
        return self.number(scalar.to_sympy())

    # -- definitions -----------------------------------------------------------------------------------------------------

    def definitions(self) -> list[Definition]:
        """The named quantities that the shown equations need, in order; constants are in the legend."""
        return [d for q in self.notation.quantities if (d := self._definition(q)) is not None]

    def _definition(self, quantity: Quantity) -> Definition | None:
        symbol = quantity.symbol
        left = self.left(symbol.name, symbol.labels)
        match quantity:
            case NamedQuantity(terms=terms):
                return Definition(left, tuple(self.rows(symbol.labels, terms, averaged=False)))
            case FunctionDefinition(function=function, derivative=order, argument=argument):
                inside = self.left(argument.name, argument.labels)
                return Definition(left, (Row(False, self.call(self.functions[function.name], order, inside)),))
            case SoftmaxDefinition(argument=argument, over=over, mask=mask):
                letters = dict(zip(symbol.labels, self.notation.left(symbol.name, symbol.labels).indices, strict=True))
                summed = {**letters, over: self.notation.another(symbol.labels, over)}

                def weight(names: dict[str, Index]) -> str:
                    inside = Written(argument.name, tuple(names[a] for a in argument.labels))
                    masked = [] if mask is None else [Written(mask.name, tuple(names[a] for a in mask.labels))]
                    return self.product([*map(self.written, masked), self.exponential(self.written(inside))])

                below = self.product([self.sum_over([self.letter(summed[over].text)]), weight(summed)])
                return Definition(left, (Row(False, self.fraction(weight(letters), below)),))
        return None

    # -- legend ----------------------------------------------------------------------------------------------------------

    def average_words(self) -> list[tuple[str, str]]:
        """The legend of averages, signatures and indicators: (key, symbol and meaning), all of them."""
        raise NotImplementedError

    def legend(self) -> list[str]:
        """What each symbol stands for, of those that were written; to be asked for after everything else is written."""
        notation = self.notation
        readings = notation.readings
        indices = [i for r in readings for w in r.written for i in w.indices]
        places = {(i.text, bool(i.of)) for i in indices if i.is_data}
        met = {f"{text}_s" if of else text for text, of in places}
        met |= {f"φ{r.signature.variable}" for r in readings if r.signature is not None and r.signature_indices}
        met |= {"r"} if any(r.signature is not None for r in readings) else set()
        met |= {"⟨⟩"} if self._averages else set()
        met |= {"1"} if any(w.name == "=" for r in readings for w in r.written) else set()
        lines = [line for key, line in self.average_words() if key in met]
        for axis in axes_in_coefficients(notation):
            what = f"number of {_PLURAL[axis]}" if axis in _PLURAL else f"size of axis {self.word(axis)}"
            lines.append(self.meaning(self.size(axis), what))
        for axis, letters in notation.letters.items():
            lines.append(self.meaning(self.list_of(map(self.letter, letters)), f"indices of axis {self.word(axis)}"))
        used = symbols_in_use(notation)
        for name in dict.fromkeys((*self.names, *(n for n, s in used.items() if s.role == "parameter"))):
            spec = self.equations.architecture.parameters[name]
            weight = "" if spec.weight == 1 else f", of order {self.power_of_scale(str(spec.weight))}"
            lines.append(self.meaning(self.symbol(name), f"parameter with {self._axes(spec.axes)}{weight}"))
        for quantity in notation.quantities:
            if isinstance(quantity, ConstantDefinition):
                axes = self._axes(quantity.symbol.labels)
                lines.append(self.meaning(self.symbol(quantity.symbol.name), f"fixed array with {axes}"))
        shown = {q.function.name: q.function for q in notation.quantities if isinstance(q, FunctionDefinition)}
        lines += [
            self.equation(self.call(self.functions[name], 0, "z"), self.formula(function.expression))
            for name, function in shown.items()
            if str(function.expression) != f"{name}(z)"
        ]
        return lines

    def _axes(self, axes: tuple[str, ...]) -> str:
        return f"axes ({', '.join(map(self.word, axes))})" if axes else "no axis"

    def word(self, text: str) -> str:
        """A name as running text."""
        return text

    def list_of(self, symbols: Iterable[str]) -> str:
        """Symbols one after the other."""
        return ", ".join(symbols)

    def meaning(self, symbol: str, words: str) -> str:
        """One entry of the legend."""
        raise NotImplementedError

    def equation(self, left: str, right: str) -> str:
        """One entry of the legend that is an equation."""
        raise NotImplementedError

    def power_of_scale(self, power: str) -> str:
        """ε to a power."""
        raise NotImplementedError

    def formula(self, expression: sympy.Expr) -> str:
        """A function's expression in z."""
        raise NotImplementedError
