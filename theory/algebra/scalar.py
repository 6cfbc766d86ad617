"""Exact scalars: a rational times rational powers of atoms (axis sizes, primes, pi, ...).

GELU's series holds 1/sqrt(2 pi) and attention holds 1/sqrt(|embed|), so rationals alone are not enough, and general
sympy arithmetic is far too slow for the inner loop of a derivation. A scalar is therefore `(Fraction, atoms)`, where
`atoms` is a sorted tuple of `(name, power)`. Axis sizes are the atoms `|axis|`; they stay symbols.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import sympy

# Whole powers and degrees are ints: equal to the Fractions they stand for, and much quicker to hash.
Degree = int | Fraction
Atoms = tuple[tuple[str, Degree], ...]
ScalarLike = Union["Scalar", int, float, Fraction, "sympy.Expr"]

# What each numeric atom stands for. Append-only and written by `_atom` alone: a cache of constants, not state.
_NUMBERS: dict[str, sympy.Expr] = {}


def size_atom(axis: str) -> str:
    """The name of the atom that stands for the size of `axis`."""
    return f"|{axis}|"


@functools.cache
def multiply_atoms(left: Atoms, right: Atoms) -> tuple[Fraction, Atoms]:
    """Multiply two products of atoms; whole powers of primes go into the returned rational."""
    powers: dict[str, Degree] = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + power
    rational = Fraction(1)
    kept = []
    for name, power in powers.items():
        if name.isdigit():
            whole = math.floor(power)
            rational *= Fraction(int(name)) ** whole
            power -= whole
        if power:
            kept.append((name, whole_or_fraction(power)))
    return rational, tuple(sorted(kept))


def whole_or_fraction(value: Degree) -> Degree:
    """A rational, as an int where it is whole."""
    return value.numerator if value.denominator == 1 else value


@dataclass(frozen=True)
class Scalar:
    """An exact number `rational * prod(atom ** power)`, positive atoms only."""

    rational: Fraction
    atoms: Atoms = ()

    @staticmethod
    def of(value: ScalarLike) -> Scalar:
        """Read an int, Fraction, float (by its shortest decimal), sympy number or Scalar.

        Raises `TypeError` when the value is a sum such as 1 + sqrt(2) (see `sum_of_scalars`) or no number at all.
        """
        if isinstance(value, Scalar):
            return value
        if isinstance(value, bool):
            raise TypeError("a truth value is not a number")
        if isinstance(value, (int, Fraction)):
            return Scalar(Fraction(value))
        if isinstance(value, float):
            if not math.isfinite(value):
                raise TypeError(f"{value} is not a finite number")
            return Scalar(Fraction(repr(value)))
        parts = sum_of_scalars(value)
        if len(parts) != 1:
            raise TypeError(f"{value} is a sum; a scalar is a product")
        return parts[0]

    def __mul__(self, other: ScalarLike) -> Scalar:
        if not _is_scalar_like(other):
            return NotImplemented
        other = Scalar.of(other)
        rational, atoms = multiply_atoms(self.atoms, other.atoms)
        return Scalar(self.rational * other.rational * rational, atoms)

    __rmul__ = __mul__

    def __truediv__(self, other: ScalarLike) -> Scalar:
        if not _is_scalar_like(other):
            return NotImplemented
        return self * Scalar.of(other) ** -1

    def __rtruediv__(self, other: ScalarLike) -> Scalar:
        return Scalar.of(other) * self**-1

    def __neg__(self) -> Scalar:
        return Scalar(-self.rational, self.atoms)

    def __pow__(self, power: int | Fraction) -> Scalar:
        power = Fraction(power)
        result = _rational_power(self.rational, power)
        for name, exponent in self.atoms:
            rational, atoms = multiply_atoms(result.atoms, ((name, exponent * power),))
            result = Scalar(result.rational * rational, atoms)
        return result

    def value(self, sizes: Mapping[str, int]) -> float:
        """The number as a float, with `sizes` giving the size of each axis named in the atoms."""
        result = float(self.rational)
        for name, power in self.atoms:
            result *= atom_value(name, sizes) ** float(power)
        return result

    def to_sympy(self) -> sympy.Expr:
        """The same number in sympy; the size of an axis is the positive integer symbol `n_axis`."""
        import sympy

        result: sympy.Expr = sympy.Rational(self.rational.numerator, self.rational.denominator)
        for name, power in self.atoms:
            result *= atom_to_sympy(name) ** sympy.Rational(power.numerator, power.denominator)
        return result


def size(axis: str) -> Scalar:
    """The size of a named axis, as an exact symbol: `1 / sqrt(size("embed"))`."""
    return Scalar(Fraction(1), ((size_atom(axis), 1),))


def sqrt(value: ScalarLike) -> Scalar:
    """The exact square root of a scalar."""
    return Scalar.of(value) ** Fraction(1, 2)


@functools.cache
def atom_to_sympy(name: str) -> sympy.Expr:
    """The sympy symbol or constant that an atom stands for."""
    import sympy

    if name.startswith("|"):
        return sympy.Symbol(f"n_{name[1:-1]}", positive=True, integer=True)
    return sympy.Integer(name) if name.isdigit() else _NUMBERS[name]


def atom_value(name: str, sizes: Mapping[str, int]) -> float:
    """The value of an atom as a float."""
    if name.startswith("|"):
        return float(sizes[name[1:-1]])
    return float(name) if name.isdigit() else float(_NUMBERS[name])


def sum_of_scalars(value: sympy.Expr | Scalar | int | float | Fraction) -> list[Scalar]:
    """Write an exact sympy number as a sum of scalars: 1/2 + sqrt(2/pi) has two."""
    import sympy

    if isinstance(value, (Scalar, int, float, Fraction)):
        scalar = Scalar.of(value)
        return [scalar] if scalar.rational else []
    expanded = sympy.expand(sympy.sympify(value))
    if expanded.free_symbols or expanded.is_real is False or expanded.has(sympy.zoo, sympy.nan, sympy.oo):
        raise TypeError(f"{value} is not a finite real number")
    merged: dict[Atoms, Fraction] = {}
    for term in sympy.Add.make_args(expanded):
        scalar = Scalar(Fraction(1))
        for factor in sympy.Mul.make_args(term):
            scalar = scalar * _atom(factor)
        merged[scalar.atoms] = merged.get(scalar.atoms, Fraction(0)) + scalar.rational
    return [Scalar(rational, atoms) for atoms, rational in merged.items() if rational]


def _is_scalar_like(value: object) -> bool:
    if isinstance(value, (Scalar, int, float, Fraction)):
        return True
    return type(value).__module__.startswith("sympy.") and getattr(value, "is_number", False)


def _atom(factor: sympy.Expr) -> Scalar:
    import sympy

    if isinstance(factor, sympy.Rational):
        return Scalar(Fraction(int(factor.p), int(factor.q)))
    if isinstance(factor, sympy.Float):
        return Scalar(Fraction(repr(float(factor))))
    base, power = factor.as_base_exp()
    if isinstance(base, sympy.Rational) and isinstance(power, sympy.Rational) and base > 0:
        return _rational_power(Fraction(int(base.p), int(base.q)), Fraction(int(power.p), int(power.q)))
    if not isinstance(power, sympy.Rational):
        base, power = factor, sympy.Integer(1)
    sign = 1
    if base.is_negative:
        # Atoms are positive, so that rational powers of them stay real.
        if not power.is_integer:
            raise TypeError(f"{factor} is not a real number")
        base, sign = -base, (-1) ** int(power)
    name = str(base)
    _NUMBERS[name] = base
    exponent = whole_or_fraction(Fraction(int(power.p), int(power.q)))
    return Scalar(Fraction(sign), ((name, exponent),))


def _rational_power(base: Fraction, power: Fraction) -> Scalar:
    if power.denominator == 1:
        return Scalar(base ** int(power))
    if base <= 0:
        raise TypeError(f"({base})^({power}) is not a positive real number")
    from sympy import factorint

    result = Scalar(Fraction(1))
    for number, sign in ((base.numerator, 1), (base.denominator, -1)):
        for prime, multiplicity in factorint(number).items():
            rational, atoms = multiply_atoms((), ((str(prime), sign * multiplicity * power),))
            merged_rational, merged = multiply_atoms(result.atoms, atoms)
            result = Scalar(result.rational * rational * merged_rational, merged)
    return result
