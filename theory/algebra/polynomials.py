"""Polynomials of tensors, graded by their power of the initial scale ε.

A polynomial maps monomials `(atoms, components)` to rationals; a graded polynomial maps a degree to a polynomial. Both are
plain dictionaries that the functions here never change in place once returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from theory.algebra.components import ComponentTable, Symbol
from theory.algebra.scalar import Atoms, Degree, Scalar, multiply_atoms, size_atom

Monomial = tuple[Atoms, tuple[int, ...]]
Polynomial = dict[Monomial, Fraction]
Graded = dict[Degree, Polynomial]

INFINITE: Degree = 10**9


@dataclass(eq=False)
class Algebra:
    """Addition, multiplication with contraction, and relabelling of graded polynomials over one table of components."""

    table: ComponentTable
    _joins: dict[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]], tuple[Fraction, Atoms, tuple[int, ...]]] = (
        field(default_factory=dict)
    )

    def symbol(self, symbol: Symbol, labels: tuple[str, ...] | None = None) -> Graded:
        """A single factor with its labels free, at the symbol's degree."""
        self.table.declare(symbol)
        factor = (symbol.name, labels if labels is not None else symbol.labels)
        rational, atoms, components = self.table.from_factors([factor])
        return {symbol.degree: {(atoms, components): rational}}

    def number(self, scalar: Scalar) -> Graded:
        """A bare number, of degree 0."""
        return {0: {(scalar.atoms, ()): scalar.rational}} if scalar.rational else {}

    def add(self, *graded: Graded) -> Graded:
        """The sum."""
        result: Graded = {}
        for part in graded:
            for degree, polynomial in part.items():
                target = result.setdefault(degree, {})
                for monomial, rational in polynomial.items():
                    target[monomial] = target.get(monomial, 0) + rational
        return _without_zeros(result)

    def scale(self, graded: Graded, scalar: Scalar) -> Graded:
        """The product with a number."""
        if not scalar.rational:
            return {}
        if not scalar.atoms:
            return {d: {m: r * scalar.rational for m, r in p.items()} for d, p in graded.items()}
        result: Graded = {}
        for degree, polynomial in graded.items():
            target = result.setdefault(degree, {})
            for (atoms, components), rational in polynomial.items():
                more, product = multiply_atoms(atoms, scalar.atoms)
                key = (product, components)
                target[key] = target.get(key, 0) + rational * scalar.rational * more
        return _without_zeros(result)

    def multiply(self, left: Graded, right: Graded, contract: tuple[str, ...] = (), cut: Degree = INFINITE) -> Graded:
        """The product, summed over the labels in `contract`, up to degree `cut`."""
        contract = tuple(sorted(contract))
        result: Graded = {}
        for first, p in left.items():
            for second, q in right.items():
                if first + second > cut:
                    continue
                target = result.setdefault(first + second, {})
                for (atoms_p, components_p), rational_p in p.items():
                    for (atoms_q, components_q), rational_q in q.items():
                        rational, atoms, components = self._join(components_p, components_q, contract)
                        value = rational_p * rational_q * rational
                        for more in (atoms_p, atoms_q):
                            if more:
                                extra, atoms = multiply_atoms(atoms, more)
                                value *= extra
                        key = (atoms, components)
                        target[key] = target.get(key, 0) + value
        return _without_zeros(result)

    def _join(
        self, left: tuple[int, ...], right: tuple[int, ...], contract: tuple[str, ...]
    ) -> tuple[Fraction, Atoms, tuple[int, ...]]:
        key = (left, right, contract)
        found = self._joins.get(key)
        if found is None:
            found = self._joins[key] = self.table.join(left + right, contract)
        return found

    def contract(self, graded: Graded, labels: tuple[str, ...]) -> Graded:
        """The sum over labels; over one that a monomial lacks, its size."""
        return self.multiply(graded, {0: {((), ()): Fraction(1)}}, labels) if labels else graded

    def relabel(self, graded: Graded, mapping: Mapping[str, str]) -> Graded:
        """Rename free labels, all at once; a new name may be a fixed place."""
        names = tuple(sorted((old, new) for old, new in mapping.items() if old != new))
        if not names:
            return graded
        result: Graded = {}
        for degree, polynomial in graded.items():
            target = result.setdefault(degree, {})
            for (atoms, components), rational in polynomial.items():
                moved: list[int] = []
                for component in components:
                    if any(old in self.table[component].labels for old, _ in names):
                        more, extra, made = self.table.relabel(component, names)
                        whole, atoms = multiply_atoms(atoms, extra)
                        rational *= more * whole
                        moved += made
                    else:
                        moved.append(component)
                more, extra, joined = self.table.join(tuple(moved))
                whole, product = multiply_atoms(atoms, extra)
                key = (product, joined)
                target[key] = target.get(key, 0) + rational * more * whole
        return _without_zeros(result)

    def size(self, axis: str) -> Scalar:
        """The size of an axis as a scalar."""
        return Scalar(Fraction(1), ((size_atom(self.table.root(axis)), 1),))


def truncated(graded: Graded, cut: Degree) -> Graded:
    """The parts of degree at most `cut`."""
    return {degree: polynomial for degree, polynomial in graded.items() if degree <= cut}


def term_count(graded: Graded) -> int:
    """How many monomials there are."""
    return sum(len(polynomial) for polynomial in graded.values())


def _without_zeros(graded: Graded) -> Graded:
    result = {}
    for degree, polynomial in graded.items():
        if 0 in polynomial.values():
            polynomial = {m: r for m, r in polynomial.items() if r}
        if polynomial:
            result[degree] = polynomial
    return result
