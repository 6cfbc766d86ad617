"""Elementwise functions: any sympy expression in z, with its exact series and its values in numpy, jax and torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any

import sympy

from theory.algebra.scalar import Degree, Scalar, sum_of_scalars, whole_or_fraction
from theory.errors import UserError, nearest

z = sympy.Symbol("z", real=True)

_half = sympy.Rational(1, 2)

# Written with tanh where a textbook writes exp(-z): equal, and without overflow far from the origin.
NAMED: dict[str, sympy.Expr] = {
    "linear": z,
    "tanh": sympy.tanh(z),
    "gelu": z * (1 + sympy.erf(z / sympy.sqrt(2))) * _half,
    "silu": z * (1 + sympy.tanh(z * _half)) * _half,
    "sigmoid": (1 + sympy.tanh(z * _half)) * _half,
    "softplus": sympy.log(1 + sympy.exp(z)),
    "erf": sympy.erf(z),
    "sin": sympy.sin(z),
    "exp": sympy.exp(z),
    "quadratic": z + z**2 * _half,
    "square": z**2,
    "cube": z**3,
    "relu": sympy.Max(z, 0),
}

_NOT_ANALYTIC = (sympy.Max, sympy.Min, sympy.Abs, sympy.sign, sympy.Heaviside, sympy.Piecewise)


@dataclass(frozen=True)
class Activation:
    """An elementwise function σ(z).

    **Arguments:** `name`: how equations and `keep=` call it; `expression`: a sympy expression in `theory.activations.z`.
    """

    name: str
    expression: sympy.Expr

    @property
    def analytic(self) -> bool:
        """Whether σ has a Taylor series at 0 (ReLU and its kin have none)."""
        return not self.expression.has(*_NOT_ANALYTIC) and self.pure_power is None

    def coefficient(self, order: int) -> tuple[Scalar, ...]:
        """C_k of σ(z) = Σ_k C_k z^k at z = 0, exactly, as a sum of scalars (empty when C_k = 0).

        Raises `UserError` when σ is not analytic at 0.
        """
        if not self.analytic:
            raise UserError(f"the activation '{self.name}' is not analytic at 0 and cannot be expanded")
        return _coefficients(self.expression, self.name, _rounded_up(order))[order]

    @property
    def pure_power(self) -> Degree | None:
        """r where σ(z) = c·z^r with r no whole number of at least 0 (a normaliser), else None."""
        return _pure_power(self.expression)

    def at(self, centre: Scalar, order: int) -> tuple[Scalar, ...]:
        """σ^(order)(c)/order! at an exact number c, as a sum of scalars; c may hold axis sizes where σ is a pure power."""
        power = self.pure_power
        try:
            if power is None:
                value = self.derivative(order).subs(z, centre.to_sympy()) / sympy.factorial(order)
                return tuple(sum_of_scalars(sympy.expand(value)))
            # σ(z) = σ(1) z^r, and the coefficient is σ(1) binomial(r, order) c^(r − order).
            binomial = math.prod((Fraction(power - k) / (k + 1) for k in range(order)), start=Fraction(1))
            factor = centre ** (power - order) * binomial
            return tuple(factor * one for one in sum_of_scalars(self.expression.subs(z, 1)))
        except TypeError as error:
            raise UserError(f"the activation '{self.name}' has no Taylor series at {centre.to_sympy()}") from error

    @property
    def leading_power(self) -> int:
        """The first k ≥ 1 with C_k ≠ 0, or the one-sided first power where σ is not analytic (1 for ReLU)."""
        return _leading_power(self.expression, self.analytic)

    @property
    def vanishes_at_zero(self) -> bool:
        """Whether σ(0) = 0."""
        return _vanishes_at_zero(self.expression)

    def derivative(self, order: int) -> sympy.Expr:
        """The expression of the order-th derivative of σ."""
        return _derivative(self.expression, order)

    def __call__(self, values: Any, xp: ModuleType, derivative: int = 0) -> Any:
        """σ (or its derivative) of an array, with the functions of the array namespace `xp`."""
        return _numeric(self.derivative(derivative), xp.__name__)(values)


def activation(function: str | sympy.Expr | Activation) -> Activation:
    """Look a function up by name, or make one of a sympy expression in one symbol.

    **Raises:** `UserError` for an unknown name, and for an expression with no or several symbols.
    """
    if isinstance(function, Activation):
        return function
    if isinstance(function, str):
        if function not in NAMED:
            raise UserError(f"unknown activation '{function}'; {nearest(function, NAMED)}")
        return Activation(function, NAMED[function])
    expression = sympy.sympify(function)
    symbols = sorted(expression.free_symbols, key=str)
    if len(symbols) != 1:
        found = ", ".join(map(str, symbols)) or "none"
        raise UserError(f"an activation is an expression in one symbol, but {expression} has: {found}")
    return Activation(str(expression), expression.subs(symbols[0], z))  # pyright: ignore[reportArgumentType]


@functools.cache
def _vanishes_at_zero(expression: sympy.Expr) -> bool:
    return bool(sympy.simplify(expression.subs(z, 0)) == 0)


@functools.cache
def _pure_power(expression: sympy.Expr) -> Degree | None:
    _, rest = expression.as_independent(z, as_Add=False)
    base, power = rest.as_base_exp()
    if base != z or not isinstance(power, sympy.Rational) or (power.is_integer and power >= 0):
        return None
    return whole_or_fraction(Fraction(int(power.p), int(power.q)))


def _rounded_up(order: int) -> int:
    # One series computation serves all neighbouring orders.
    return max(8, 4 * ((order + 4) // 4))


@functools.cache
def _coefficients(expression: sympy.Expr, name: str, order: int) -> list[tuple[Scalar, ...]]:
    # A symbol without assumptions: sympy's series is faster and surer on it.
    t = sympy.Symbol("t")
    plain = expression.subs(z, t)
    if plain.is_polynomial(t):
        polynomial = sympy.Poly(plain, t)
        exact = [polynomial.coeff_monomial(t**k) for k in range(order + 1)]
    else:
        try:
            series = sympy.series(plain, t, 0, order + 1).removeO()
            exact = [sympy.expand(series).coeff(t, k) for k in range(order + 1)]
        except (ValueError, TypeError, NotImplementedError) as error:
            raise UserError(f"the activation '{name}' has no Taylor series at 0: {error}") from error
    try:
        return [tuple(sum_of_scalars(c)) for c in exact]
    except TypeError as error:
        raise UserError(f"the activation '{name}' has no finite Taylor series at 0: {error}") from error


@functools.cache
def _leading_power(expression: sympy.Expr, analytic: bool) -> int:
    powers = []
    for sign in (1,) if analytic else (1, -1):
        t = sympy.Symbol("t", positive=True)
        one_sided = sympy.simplify(expression.subs(z, sign * t))
        for k in range(1, 13):
            if sympy.limit(sympy.diff(one_sided, t, k), t, 0, "+") != 0:
                powers.append(k)
                break
    if not powers:
        raise UserError(f"the activation {expression} is constant to order 12 at 0")
    return min(powers)


@functools.cache
def _derivative(expression: sympy.Expr, order: int) -> sympy.Expr:
    if order == 0:
        return expression
    return sympy.diff(_derivative(expression, order - 1), z)


def _array_or_number(function: Callable[[Any], Any], number: Callable[[float], float]) -> Any:
    # Constants such as sqrt(2) reach the same name as arrays do, and torch takes only arrays.
    return lambda x: number(x) if isinstance(x, (int, float)) else function(x)


@functools.cache
def _numeric(expression: sympy.Expr, namespace: str) -> Callable[[Any], Any]:
    """A function of arrays; `namespace` is numpy, jax.numpy or torch."""
    import importlib

    xp = importlib.import_module(namespace)
    if namespace == "numpy":
        from scipy.special import erf
    elif namespace == "jax.numpy":
        erf = importlib.import_module("jax.scipy.special").erf
    else:
        erf = xp.special.erf

    def maximum(*parts: Any) -> Any:
        # Not xp.maximum: its gradient where the parts are equal differs between jax (1/2) and torch.
        result = parts[-1]
        for part in reversed(parts[:-1]):
            result = xp.where(part - result > 0, part, result)
        return result

    def minimum(*parts: Any) -> Any:
        return -maximum(*(-part for part in parts))

    arrays = {
        "erf": erf,
        "tanh": xp.tanh,
        "exp": xp.exp,
        "log": xp.log,
        "sqrt": xp.sqrt,
        "sin": xp.sin,
        "cos": xp.cos,
        "sinh": xp.sinh,
        "cosh": xp.cosh,
        "atan": xp.arctan,
    }
    functions: dict[str, Any] = {
        "Max": maximum,
        "Min": minimum,
        "Heaviside": lambda x, at_zero=0: xp.where(x > 0, xp.ones_like(x), xp.zeros_like(x)),
        "Abs": xp.abs,
        "pi": math.pi,
    }
    for name, function in arrays.items():
        functions[name] = _array_or_number(function, getattr(math, name))
    # lambdify writes sign() for bare numbers only.
    expression = expression.replace(sympy.sign, lambda argument: 2 * sympy.Heaviside(argument) - 1)  # pyright: ignore
    if expression.has(sympy.DiracDelta):
        # The second derivative of a kink: zero wherever it is defined.
        expression = expression.replace(  # pyright: ignore
            lambda e: isinstance(e, sympy.DiracDelta), lambda e: sympy.Integer(0)
        )
    raw = sympy.lambdify(z, expression, modules=[functions], cse=True)

    def evaluate(values: Any) -> Any:
        result = raw(values)
        # A constant derivative comes back as a bare number.
        return result if hasattr(result, "shape") and result.shape == values.shape else result + 0 * values

    return evaluate
