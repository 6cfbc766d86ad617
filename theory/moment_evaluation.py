"""Numbers for fully expanded equations from moments of the data: the cost does not depend on the number of samples."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from theory.contraction import Contractions, Operand
from theory.evolution import Equation, EvolutionEquations
from theory.moments import Moment, SparseMoment, TermMoment, term_moment

# The axis of a sparse moment's entries.
ENTRY = "entry"


def right_hand_sides(
    equations: EvolutionEquations,
    parameters: Mapping[str, Any],
    moments: Mapping[Moment, Any],
    length: int,
    xp: ModuleType = np,
    epsilon: Any = 1.0,
) -> dict[str, Any]:
    """dθ/dt of every parameter from moments alone.

    **Arguments:** `moments`: from `theory.moments`, each an array with the moment's axes or a `SparseMoment`; `length`: of the
    sequences; others as in `theory.evaluation.right_hand_sides`.

    **Raises:** `UserError` when the equations keep a quantity of the single sample, or the arrays do not fit.
    """
    evaluation = _FromMoments(equations, parameters, moments, length, xp, epsilon)
    return {name: evaluation.equation(equation) for name, equation in equations.items()}


class _FromMoments(Contractions):
    def __init__(
        self,
        equations: EvolutionEquations,
        parameters: Mapping[str, Any],
        moments: Mapping[Moment, Any],
        length: int,
        xp: ModuleType,
        epsilon: Any,
    ):
        self.moments = moments
        self.gathered: dict[tuple, Any] = {}
        super().__init__(equations, parameters, length, xp, epsilon)

    def equation(self, equation: Equation) -> Any:
        """The right-hand side of one equation."""
        total = self.xp.zeros(tuple(self.sizes[a] for a in equation.axes), dtype=self.dtype())
        for term in equation:
            split = term_moment(self.equations, term)
            total = total + self._term(split, equation.axes) * term.coefficient.value(self.sizes)
        return total

    def _term(self, split: TermMoment, axes: tuple[str, ...]) -> Any:
        operands = [self.at_places(name, indices) for name, indices in split.rest]
        if split.moment is None:
            return self.contract(operands, axes)
        values = self.moments[split.moment]
        if not isinstance(values, SparseMoment):
            return self.contract([*operands, (values, split.names)], axes)
        ids = dict(zip(split.names, values.ids, strict=True))
        operands = [self._gathered(factor, ids, split) for factor in split.rest]
        # Axes of the equation that the moment's entries run through are scattered to; the others are contracted as usual.
        hot = tuple(a for a in axes if a in ids)
        kept = tuple(a for a in axes if a not in ids)
        value = self.contract([*operands, (values.values, (ENTRY,))], ((ENTRY, *kept) if hot else kept))
        return self._scattered(value, hot, ids, axes) if hot else value

    def _gathered(self, factor: Any, ids: Mapping[str, Any], split: TermMoment) -> Operand:
        """A factor's array at the entries of a sparse moment, on the axes that these run through."""
        array, names = self.at_places(*factor)
        where = tuple(n for n in dict.fromkeys(names) if n in ids)
        if not where:
            return array, names
        places = {n: split.names.index(n) for n in where}
        key = (factor[0], tuple(places.get(n, n) if n in where else "" for n in names), factor[1], split.moment)
        rest = tuple(n for n in names if n not in ids)
        if key not in self.gathered:
            order = [i for i, n in enumerate(names) if n in ids] + [i for i, n in enumerate(names) if n not in ids]
            index = tuple(ids[n] for n in names if n in ids)
            self.gathered[key] = array.transpose(order)[index]
        return self.gathered[key], (ENTRY, *rest)

    def _scattered(self, value: Any, hot: tuple[str, ...], ids: Mapping[str, Any], axes: tuple[str, ...]) -> Any:
        shape = (*(self.sizes[a] for a in hot), *value.shape[1:])
        index = tuple(ids[a] for a in hot)
        if self.xp is np:
            total = np.zeros(shape, dtype=value.dtype)
            np.add.at(total, index, value)
        else:
            total = self.xp.zeros(shape, dtype=value.dtype).at[index].add(value)
        order = (*hot, *(a for a in axes if a not in hot))
        return total.transpose([order.index(a) for a in axes])
