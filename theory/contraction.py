"""Contractions of parameters, constants and named quantities: what evaluation from samples and from moments share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import opt_einsum

from theory.evolution import EvolutionEquations, NamedQuantity, Term
from theory.expansion import ConstantDefinition, FunctionDefinition, SoftmaxDefinition
from theory.interpret import softmax_over
from theory.language import SAMPLE, add_axis_sizes

# An operand: its array and the names of its axes ("sample", a label, or a bound index).
Operand = tuple[Any, tuple[str, ...]]


class Contractions:
    """The arrays of one system's symbols, and sums of products of them; each array is made once.

    Subclasses say how data enter: `operands` of a term of a named quantity, and `n_samples`, where there are samples.
    """

    def __init__(
        self, equations: EvolutionEquations, parameters: Mapping[str, Any], length: int, xp: ModuleType, epsilon: Any
    ):
        self.equations, self.parameters, self.xp, self.epsilon = equations, parameters, xp, epsilon
        self.sizes = add_axis_sizes(equations.architecture, parameters, length)
        self.named: dict[str, Operand] = {}
        for quantity in equations.quantities:
            self.named[quantity.symbol.name] = self._quantity(quantity)

    def operands(self, term: Term) -> list[Operand]:
        """The operands of a term of a named quantity."""
        return [self.at_places(name, indices) for name, indices in term.factors]

    @property
    def n_samples(self) -> int:
        """How many samples there are."""
        raise AssertionError("a quantity of the single sample in an evaluation without samples")

    def diagonal(self, array: Any, axes: tuple[str, ...], index: str) -> Operand:
        """An array that has one index twice, with that index once, at the end."""
        first = axes.index(index)
        second = axes.index(index, first + 1)
        rest = tuple(a for n, a in enumerate(axes) if n not in (first, second))
        return self.xp.diagonal(array, axis1=first, axis2=second), (*rest, index)

    def at_places(self, name: str, indices: tuple[str, ...]) -> Operand:
        """A symbol's array with fixed places taken; repeated indices are left to the contraction."""
        array, axes = self.array(name)
        offset = 1 if axes[:1] == (SAMPLE,) else 0
        picks: list[Any] = [slice(None)] * offset
        names = list(axes[:offset])
        for index in indices:
            if "@" in index:
                picks.append(-1 if index.endswith("@last") else 0)
            else:
                picks.append(slice(None))
                names.append(index)
        return array[tuple(picks)], tuple(names)

    def array(self, name: str) -> Operand:
        """A symbol's array and the names of its axes."""
        symbol = self.equations.symbols[name]
        if symbol.role == "parameter":
            return self.parameters[name], symbol.labels
        if symbol.role == "selector":
            size = self.sizes[symbol.axes[0]]
            return self.xp.eye(size, dtype=self.dtype())[-1 if name.endswith("last") else 0], symbol.labels
        if symbol.role == "delta":
            return self.xp.eye(self.sizes[symbol.axes[0]], dtype=self.dtype()), symbol.labels
        return self.named[name]

    # -- named quantities ------------------------------------------------------------------------------------------------

    def _quantity(self, quantity: Any) -> Operand:
        xp = self.xp
        match quantity:
            case ConstantDefinition(symbol=symbol, build=build):
                array = xp.asarray(build(self.sizes), dtype=self.dtype())
                return (array * self.epsilon ** float(symbol.degree) if symbol.degree else array), symbol.labels
            case FunctionDefinition(function=function, derivative=derivative, argument=argument):
                array, axes = self.named[argument.name]
                return function(array, xp, derivative), axes
            case SoftmaxDefinition(argument=argument, over=over, mask=mask):
                array, axes = self.named[argument.name]
                return softmax_over(array, axes, over, None if mask is None else self.named[mask.name], xp)
            case NamedQuantity(symbol=symbol, terms=terms):
                axes = ((SAMPLE,) if symbol.per_sample else ()) + symbol.labels
                total = 0.0
                for term in terms:
                    operands = self.operands(term)
                    if symbol.per_sample and not any(SAMPLE in names for _, names in operands):
                        operands.append((xp.ones(self.n_samples, dtype=self.dtype()), (SAMPLE,)))
                    total = total + self.contract(operands, axes) * term.coefficient.value(self.sizes)
                return total, axes
        raise AssertionError(f"no rule for {type(quantity).__name__}")

    def contract(self, operands: list[Operand], axes: tuple[str, ...]) -> Any:
        """Sum the product of operands over all names but `axes`; an axis that no operand has is repeated."""
        present = {n for _, names in operands for n in names}
        missing = [a for a in axes if a not in present]
        operands = operands + [(self.xp.ones(self.size(a), dtype=self.dtype()), (a,)) for a in missing]
        if not operands:
            return self.xp.ones((), dtype=self.dtype())
        letters: dict[str, str] = {}
        for _, names in operands:
            for name in names:
                letters.setdefault(name, opt_einsum.get_symbol(len(letters)))
        subscripts = ",".join("".join(letters[n] for n in names) for _, names in operands)
        out = "".join(letters[a] for a in axes)
        arrays = [array for array, _ in operands]
        expression = _expression(f"{subscripts}->{out}", tuple(tuple(array.shape) for array in arrays))
        return expression(*arrays)

    def size(self, name: str) -> int:
        """The size of an axis that no operand has."""
        return self.n_samples if name == SAMPLE else self.sizes[name]

    def dtype(self) -> Any:
        """The type of the parameters."""
        return next(iter(self.parameters.values())).dtype


@functools.lru_cache(maxsize=100_000)
def _expression(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> Callable[..., Any]:
    """A contraction in a good order; finding the order costs more than small contractions themselves."""
    return opt_einsum.contract_expression(subscripts, *shapes)
