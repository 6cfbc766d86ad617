"""Sums over independent positions rewritten as sums over distinct ones, those of probability signatures.

A product of sums over positions contains coincidences: Σ_l Σ_m F_l G_m = Σ_{l≠m} F_l G_m + Σ_l F_l G_l. Rewriting over all
set partitions of the positions that touch tokens alone is what puts the exponents l and n_r into Theorem 1 of the paper.
Positions that touch anything else (attention weights, masks, labels, a fixed place) keep their independent sums, as in the
paper's position-specific signatures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from theory.algebra.components import ComponentTable, Factor, Reduced, Symbol, is_bound
from theory.algebra.scalar import Atoms, Scalar
from theory.language import POSITION

if TYPE_CHECKING:
    from theory.evolution import EvolutionEquations, Term


def distinct_indices(symbols: Mapping[str, Symbol], factors: list[Factor]) -> list[str]:
    """The summed positions that touch one-hot tokens alone, in order of appearance."""
    candidates: dict[str, bool] = {}
    for name, indices in factors:
        symbol = symbols[name]
        for slot, index in enumerate(indices):
            if is_bound(index) and symbol.axes[slot] == POSITION:
                candidates[index] = candidates.get(index, True) and symbol.role == "tokens"
    return [index for index, alone in candidates.items() if alone]


def distinct_terms(equations: EvolutionEquations, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Terms equal to the given ones, with sums over pairwise distinct positions.

    One position is added at a time and like terms are merged after each, which keeps the number of partitions in hand.
    """
    from theory.evolution import Term, _order

    table = ComponentTable(equations.architecture.root, dict(equations.symbols))
    table.declare(_BLOCK)
    steps = _Steps(table)
    merged: dict[tuple, Scalar] = {}
    for term in terms:
        for coefficient, components in _partitions(table, steps, term):
            key = (components, term.degree, term.part, term.path, term.branch, coefficient.atoms)
            before = merged.get(key, Scalar(Fraction(0)))
            merged[key] = Scalar(before.rational + coefficient.rational, coefficient.atoms)
    made = [
        Term(coefficient, tuple(sorted(table[c].factors for c in components)), degree, part, path, branch)
        for (components, degree, part, path, branch, _), coefficient in merged.items()
        if coefficient.rational
    ]
    return tuple(sorted(made, key=_order))


def _partitions(table: ComponentTable, steps: _Steps, term: Term) -> list[tuple[Scalar, tuple[int, ...]]]:
    """The term's sums over set partitions of its positions, equal ones counted together.

    A position that is set apart from all earlier ones is marked by a factor of its own; canonical forms then find the
    partitions that symmetry makes equal while there are few, not after all have been written out.
    """
    numbers = {i: n for n, i in enumerate(dict.fromkeys(i for _, ix in term.factors for i in ix if is_bound(i)))}
    raw = [(name, tuple(numbers.get(i, i) for i in ix)) for name, ix in term.factors]
    rational, atoms, components = table.from_factors(raw)
    states: dict[tuple[int, ...], Scalar] = {components: Scalar(rational, atoms) * term.coefficient}
    while True:
        following: dict[tuple[Atoms, tuple[int, ...]], Fraction] = {}
        for state, coefficient in states.items():
            at = next((n for n, c in enumerate(state) if steps.open_and_apart(c)[0]), None)
            if at is None:
                return [(coefficient, steps.unmarked(state)) for state, coefficient in states.items()]
            for (rational, atoms, made), used in steps.choices(state, at):
                rest = [c for n, c in enumerate(state) if n not in used]
                value = coefficient * Scalar(rational, atoms)
                key = (value.atoms, tuple(sorted((*rest, *made))))
                following[key] = following.get(key, Fraction(0)) + value.rational
        # One term's coefficients differ by rationals only: the atoms are the same in every state.
        states = {components: Scalar(rational, atoms) for (atoms, components), rational in following.items()}


_BLOCK = Symbol("apart", (POSITION,), (POSITION,), "mark")


class _Steps:
    """What setting a position apart, or merging it with one set apart, makes of components: each worked out once."""

    def __init__(self, table: ComponentTable):
        self.table = table
        self._positions: dict[int, tuple[list[int], list[int]]] = {}
        self._made: dict[tuple[int, ...], Reduced] = {}

    def open_and_apart(self, component: int) -> tuple[list[int], list[int]]:
        """A component's positions that touch tokens alone: those still to be placed, and those set apart."""
        if component not in self._positions:
            factors = self.table.raw(component)
            apart = [ix[0] for name, ix in factors if name == _BLOCK.name and isinstance(ix[0], int)]
            named = [
                (n, tuple(f"#{i}" if isinstance(i, int) else i for i in ix)) for n, ix in factors if n != _BLOCK.name
            ]
            alone = [int(i[1:]) for i in distinct_indices(self.table.symbols, named)]
            self._positions[component] = [i for i in alone if i not in apart], apart
        return self._positions[component]

    def choices(self, state: tuple[int, ...], at: int) -> Iterator[tuple[Reduced, set[int]]]:
        """The first open position of component `at`: set apart, or merged with each that is; with the places used up."""
        component = state[at]
        position = self.open_and_apart(component)[0][0]
        key = (component,)
        if key not in self._made:
            self._made[key] = self.table.from_factors([*self.table.raw(component), (_BLOCK.name, (position,))])
        yield self._made[key], {at}
        for other_at, other in enumerate(state):
            for block in self.open_and_apart(other)[1]:
                same = other_at == at
                key = (component, other, block, same)
                if key not in self._made:
                    factors = self.table.raw(component)
                    if not same:
                        offset = 1 + max(i for _, ix in factors for i in ix if isinstance(i, int))
                        factors, block = factors + self.table.raw(other, offset), block + offset
                    merged = [(n, tuple(block if i == position else i for i in ix)) for n, ix in factors]
                    self._made[key] = self.table.from_factors(merged)
                yield self._made[key], {at, other_at}

    def unmarked(self, state: tuple[int, ...]) -> tuple[int, ...]:
        """The components without their marks."""
        result: list[int] = []
        for component in state:
            key = (component, -1)
            if key not in self._made:
                factors = [f for f in self.table.raw(component) if f[0] != _BLOCK.name]
                self._made[key] = self.table.from_factors(factors)
            result += self._made[key][2]
        return tuple(sorted(result))
