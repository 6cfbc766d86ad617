"""Sums over independent positions rewritten as sums over distinct ones, those of probability signatures.

A product of sums over positions contains coincidences: Σ_l Σ_m F_l G_m = Σ_{l≠m} F_l G_m + Σ_l F_l G_l. Rewriting over all
set partitions of the positions that touch tokens alone is what puts the exponents l and n_r into Theorem 1 of the paper.
Positions that touch anything else (attention weights, masks, labels, a fixed place) keep their independent sums, as in the
paper's position-specific signatures.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING

from theory.algebra.components import ComponentTable, Factor, RawFactor, Symbol, is_bound
from theory.algebra.scalar import Scalar
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
    merged: dict[tuple, Scalar] = {}
    for term in terms:
        for coefficient, components in _partitions(table, term):
            key = (components, term.degree, term.part, term.path, term.branch, coefficient.atoms)
            before = merged.get(key, Scalar(Fraction(0)))
            merged[key] = Scalar(before.rational + coefficient.rational, coefficient.atoms)
    made = [
        Term(coefficient, tuple(sorted(table[c].factors for c in components)), degree, part, path, branch)
        for (components, degree, part, path, branch, _), coefficient in merged.items()
        if coefficient.rational
    ]
    return tuple(sorted(made, key=_order))


def _partitions(table: ComponentTable, term: Term) -> list[tuple[Scalar, tuple[int, ...]]]:
    factors = list(term.factors)
    positions = distinct_indices(table.symbols, factors)
    number = {i: n for n, i in enumerate(dict.fromkeys(i for _, ix in factors for i in ix if is_bound(i)))}
    raw: tuple[RawFactor, ...] = tuple((name, tuple(number.get(i, i) for i in ix)) for name, ix in factors)
    # Each state: an assignment of positions to blocks, as factors in which merged positions share one index.
    states: dict[tuple[tuple[RawFactor, ...], tuple[int, ...]], int] = {(raw, ()): 1}
    for position in positions:
        index = number[position]
        following: dict[tuple[tuple[RawFactor, ...], tuple[int, ...]], int] = {}
        for (state, blocks), count in states.items():
            choices = [(state, (*blocks, index))]
            choices += [(_merged(state, index, block), blocks) for block in blocks]
            for choice in choices:
                following[choice] = following.get(choice, 0) + count
        states = following
    result: dict[tuple[tuple, tuple[int, ...]], Scalar] = {}
    for (state, _), count in states.items():
        rational, atoms, components = table.from_factors(state)
        value = Scalar(rational, atoms) * term.coefficient * count
        key = (value.atoms, components)
        before = result.get(key, Scalar(Fraction(0), value.atoms))
        result[key] = Scalar(before.rational + value.rational, value.atoms)
    return [(coefficient, components) for (_, components), coefficient in result.items()]


def _merged(factors: tuple[RawFactor, ...], old: int, new: int) -> tuple[RawFactor, ...]:
    return tuple((name, tuple(new if i == old else i for i in indices)) for name, indices in factors)
