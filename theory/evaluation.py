"""Numbers for derived equations: each term's contraction, over numpy or jax arrays.

One-hot factors are never multiplied out: a bound token index gathers rows, a free one scatters sums. Components are shared
between terms, so each is contracted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from types import ModuleType
from typing import Any

import numpy as np

from theory.algebra.components import Factor, is_bound
from theory.contraction import Contractions, Operand
from theory.errors import UserError
from theory.evolution import Equation, EvolutionEquations, NamedQuantity, Term
from theory.language import POSITION, SAMPLE
from theory.positions import distinct_indices

# A one-hot factor without its hot index: its name and other indices.
OneHot = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Data:
    """What the terms average over: tokens (sample, position), labels (sample[, position]), weights (sample)."""

    tokens: Any
    labels: Any
    weights: Any


def right_hand_sides(
    equations: EvolutionEquations, parameters: Mapping[str, Any], data: Data, xp: ModuleType = np, epsilon: Any = 1.0
) -> dict[str, Any]:
    """dθ/dt of every parameter, by its derived equation.

    **Arguments:** `parameters`: name → array; `data`: tokens, labels and weights; `xp`: numpy or jax.numpy;
    `epsilon`: the scale of numbers that have a weight (see `theory.interpret.evaluate`).

    **Returns:** name → array of the parameter's shape. **Raises:** `UserError` when the arrays do not fit.
    """
    architecture = equations.architecture
    shape = tuple(data.labels.shape)
    wanted = tuple(data.tokens.shape) if architecture.labels_per_position else tuple(data.tokens.shape[:1])
    if shape != wanted:
        raise UserError(f"{architecture.name} needs labels of shape {wanted}, found {shape}")
    evaluation = _FromSamples(equations, parameters, data, xp, epsilon)
    return {name: evaluation.equation(equation) for name, equation in equations.items()}


class _FromSamples(Contractions):
    def __init__(
        self, equations: EvolutionEquations, parameters: Mapping[str, Any], data: Data, xp: ModuleType, epsilon: Any
    ):
        self.data = data
        self.components: dict[tuple[Factor, ...], Operand] = {}
        self.gathered: dict[tuple, Operand] = {}
        self.uses = _uses(equations)
        super().__init__(equations, parameters, data.tokens.shape[1], xp, epsilon)

    def operands(self, term: Term) -> list[Operand]:
        """The operands of a term of a named quantity, its sample's axis open."""
        return self._operands(term)[0]

    @property
    def n_samples(self) -> int:
        """How many samples there are."""
        return self.data.tokens.shape[0]

    def size(self, name: str) -> int:
        """The size of an axis that no operand has, open positions among them."""
        return self.sizes[POSITION] if name.startswith("open") else super().size(name)

    def equation(self, equation: Equation) -> Any:
        """The right-hand side of one equation."""
        total = self.xp.zeros(tuple(self.sizes[a] for a in equation.axes), dtype=self.dtype())
        # Terms that scatter by the same one-hot factor are summed before they scatter. The axis is the factor's index: where
        # embeddings are tied, a label's one-hot scatters to the axis of tokens.
        scattered: dict[tuple[OneHot, str], Any] = {}
        for term in equation:
            weight = term.coefficient.value(self.sizes)
            factor = self._scattering(term, equation.axes)
            operands, one_hot = self._operands(term, factor, self.equations.distinct)
            if factor is not None or any(SAMPLE in names for _, names in operands):
                operands.append((self.data.weights, (SAMPLE,)))
            if factor is None:
                total = total + self.contract(operands, equation.axes) * weight
                continue
            hot = factor[1][-1]
            kept = (SAMPLE, *_open(one_hot[1]), *(a for a in equation.axes if a != hot))
            value = self.contract(operands, kept) * weight
            key = (one_hot, hot)
            scattered[key] = scattered[key] + value if key in scattered else value
        for (one_hot, hot), value in scattered.items():
            total = total + self._scatter(one_hot, value, equation.axes.index(hot))
        return total

    # -- terms -----------------------------------------------------------------------------------------------------------

    def _scattering(self, term: Term, axes: tuple[str, ...]) -> Factor | None:
        """The first one-hot factor whose hot index is one of the equation's axes."""
        for component in term.components:
            for name, indices in component:
                hot = self.equations.symbols[name].hot
                # A factor whose position is an axis of the parameter too stays a one-hot array.
                if hot is not None and indices[hot] in axes and all(is_bound(i) or "@" in i for i in indices[:-1]):
                    return name, indices
        return None

    def _operands(
        self, term: Term, scattering: Factor | None = None, distinct: bool = False
    ) -> tuple[list[Operand], OneHot]:
        """The operands of a term; of a scattering factor, its positions kept open."""
        together: list[Factor] = []
        operands: list[Operand] = []
        hot = None if scattering is None else scattering[1][-1]
        offset = 0
        for component in term.components:
            # What shares the scattered index is contracted at the sample's own tokens; a sum over distinct positions ties
            # all components together; what no other term has is left to the order of the whole contraction. Everything else
            # is a component of its own, shared between terms.
            used_once = self.uses[component] == 1
            if distinct or used_once or any(hot in indices for _, indices in component):
                together += [(n, tuple(_moved(i, offset) for i in indices)) for n, indices in component]
                offset += len({i for _, indices in component for i in indices if is_bound(i)})
            else:
                operands.append(self.component(component))
        sources: dict[str, OneHot] = {}
        opened: dict[str, str] = {}
        one_hot: OneHot = ("", ())
        if scattering is not None and hot is not None:
            name, indices = next(f for f in together if f[0] == scattering[0] and f[1][-1] == hot)
            opened = {i: f"open{n}" for n, i in enumerate(indices[:-1]) if is_bound(i)}
            one_hot = (name, tuple(opened.get(i, i) for i in indices[:-1]))
            sources[hot] = one_hot
        if distinct:
            positions = tuple(opened.get(i, i) for i in distinct_indices(self.equations.symbols, together))
            operands += [_pairwise_distinct(positions, self.sizes[POSITION], self.xp)] if len(positions) > 1 else []
        together = [(n, tuple(opened.get(i, i) for i in indices)) for n, indices in together]
        operands += self._resolved(together, sources)
        return operands, one_hot

    def component(self, factors: tuple[Factor, ...]) -> Operand:
        """The value of a component, its free labels (and the sample, where it depends on it) as axes."""
        if factors not in self.components:
            operands = self._resolved(list(factors), {})
            names = {n for _, found in operands for n in found if not is_bound(n)}
            axes = ((SAMPLE,) if SAMPLE in names else ()) + tuple(sorted(names - {SAMPLE}))
            self.components[factors] = (self.contract(operands, axes), axes)
        return self.components[factors]

    def _resolved(self, factors: list[Factor], sources: dict[str, OneHot]) -> list[Operand]:
        """Operands of factors, with rows gathered where a one-hot factor determines an index.

        `sources` maps an index to the one-hot factor that determines it, for indices that are not summed.
        """
        symbols = self.equations.symbols
        sources = dict(sources)
        for name, indices in factors:
            hot = symbols[name].hot
            if hot is None or not is_bound(indices[hot]):
                continue
            sharing = [symbols[n] for n, ix in factors if indices[hot] in ix and symbols[n].hot is None]
            # An array that depends on the sample itself cannot be looked up by the sample's token alone.
            if not any(symbol.per_sample for symbol in sharing):
                sources.setdefault(indices[hot], (name, indices[:hot] + indices[hot + 1 :]))
        operands = []
        for name, indices in factors:
            hot = symbols[name].hot
            if hot is None:
                operands.append(self._gather(name, indices, sources))
                continue
            own = (name, indices[:hot] + indices[hot + 1 :])
            if indices[hot] not in sources:
                operands.append(self._one_hot(own, indices[hot]))
            elif sources[indices[hot]] != own:
                operands.append(self._equal(own, sources[indices[hot]]))
        return operands

    def _gather(self, name: str, indices: tuple[str, ...], sources: dict[str, OneHot]) -> Operand:
        array, axes = self.at_places(name, indices)
        for index in dict.fromkeys(i for i in axes if i in sources):
            key = (name, indices, index, tuple(sources.get(i) for i in indices))
            if key not in self.gathered or axes.count(index) > 1:
                ids, id_axes = self._ids(sources[index])
                while axes.count(index) > 1:
                    array, axes = self.diagonal(array, axes, index)
                moved = self.xp.moveaxis(array, axes.index(index), 0)
                self.gathered[key] = moved[ids], (*id_axes, *(a for a in axes if a != index))
            array, axes = self.gathered[key]
        return array, axes

    def _ids(self, own: OneHot) -> tuple[Any, tuple[str, ...]]:
        """The whole numbers that a one-hot factor encodes."""
        name, rest = own
        array = self.data.tokens if self.equations.symbols[name].role == "tokens" else self.data.labels
        names = [SAMPLE]
        picks: list[Any] = [slice(None)]
        for index in rest:
            if "@" in index:
                picks.append(-1 if index.endswith("@last") else 0)
            else:
                picks.append(slice(None))
                names.append(index)
        return array[tuple(picks)], tuple(names)

    def _one_hot(self, own: OneHot, index: str) -> Operand:
        ids, axes = self._ids(own)
        size = self.sizes[self.equations.symbols[own[0]].axes[-1]]
        return (ids[..., None] == self.xp.arange(size)).astype(self.dtype()), (*axes, index)

    def _equal(self, first: OneHot, second: OneHot) -> Operand:
        """1 where two one-hot factors encode the same number."""
        a, a_axes = self._ids(first)
        b, b_axes = self._ids(second)
        axes = a_axes + tuple(i for i in b_axes if i not in a_axes)
        a = a[tuple(slice(None) if i in a_axes else None for i in axes)]
        order = tuple(b_axes.index(i) for i in axes if i in b_axes)
        b = b.transpose(order)[tuple(slice(None) if i in b_axes else None for i in axes)]
        return (a == b).astype(self.dtype()), axes

    def _scatter(self, own: OneHot, value: Any, place: int) -> Any:
        """Sum rows by the number that a one-hot factor encodes."""
        ids, axes = self._ids(own)
        size = self.sizes[self.equations.symbols[own[0]].labels[-1]]
        tail = value.shape[len(axes) :]
        flat = value.reshape((-1, *tail))
        if self.xp is np:
            total = np.zeros((size, *tail), dtype=flat.dtype)
            np.add.at(total, ids.reshape(-1), flat)
        else:
            total = self.xp.zeros((size, *tail), dtype=flat.dtype).at[ids.reshape(-1)].add(flat)
        return self.xp.moveaxis(total, 0, place)


def _uses(equations: EvolutionEquations) -> Counter[tuple[Factor, ...]]:
    """In how many terms each component stands."""
    named = [
        term for quantity in equations.quantities if isinstance(quantity, NamedQuantity) for term in quantity.terms
    ]
    terms = chain(named, *equations.values())
    return Counter(component for term in terms for component in term.components)


def _open(indices: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(i for i in indices if "@" not in i)


def _moved(index: str, offset: int) -> str:
    return f"#{int(index[1:]) + offset}" if is_bound(index) else index


def _pairwise_distinct(names: tuple[str, ...], length: int, xp: ModuleType) -> Operand:
    """1 where all position indices differ."""
    grids = np.indices((length,) * len(names))
    mask = np.ones((length,) * len(names))
    for n in range(len(names)):
        for m in range(n):
            mask *= grids[n] != grids[m]
    return xp.asarray(mask), names
