"""The derived side: terms of the engine's equations, chosen by part, path, branch, order or power, and evaluated."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import sympy

from theory.architectures import load
from theory.errata.records import Instance
from theory.evaluation import Data, right_hand_sides
from theory.evolution import Equation, EvolutionEquations, Term, derive
from theory.reverse import LABEL_DRIVEN, PREDICTION_INDUCED
from theory.signature_kinds import signature_kind

EMBEDDING, UNEMBEDDING = "E", "U"

Condition = Callable[[Term], bool]


def label_driven(
    instance: Instance, degree: int | None = None, where: Condition | None = None, order: int | None = None
) -> np.ndarray:
    """Terms of E[(∂f/∂w_α)ᵀ e_y], evaluated: (token, embed).

    **Arguments:** `degree`: of the loss, with the prediction kept; None keeps everything; `where`: a condition on terms, which
    know their path and branch; `order`: only terms with a signature of this order over distinct positions.
    """
    return _evaluated(instance, _equations(instance, degree, None, LABEL_DRIVEN, order is not None), where, order)


def prediction_induced(instance: Instance, power: int, order: int | None = None) -> np.ndarray:
    """What is subtracted from the label-driven terms, E[(∂f/∂w_α)ᵀ p], at one power of the logits in p: (token, embed).

    Everything is expanded, up to the last degree that this power has for a polynomial activation.
    """
    degree = (power + 1) * (instance.power + 1)
    equations = _equations(instance, degree, (), PREDICTION_INDUCED, order is not None)

    def of_power(term: Term) -> bool:
        # The Jacobian and each of the logits bring one factor U.
        return sum(name == UNEMBEDDING for name, _ in term.factors) == power + 1

    return -_evaluated(instance, equations, of_power, order)


def highest_order(instance: Instance, part: Callable[[int], np.ndarray]) -> int:
    """The highest order m for which `part(m)` does not vanish; no signature has more context tokens than 2K − 1 and L."""
    return max(m for m in range(instance.data.length + 2 * instance.power) if part(m).any())


def on_branch(branch: str) -> Condition:
    """Terms that read the embedding by one branch (value, key, query)."""
    return lambda term: term.branch == branch


def on_path(path: str) -> Condition:
    """Terms of one path: the last module that wrote to the stream ("" for none)."""
    return lambda term: term.path == path


def multipliers(instance: Instance, orders: range) -> np.ndarray:
    """The staircase's multipliers of φ^{y;m} at degree K, less the factor K·C_K: (order)."""
    power = instance.power
    equations = _equations(instance, power + 1, None, LABEL_DRIVEN, True)
    top = equations[EMBEDDING].where(lambda term: term.degree == power)
    found = {step.signature.order: float(step.multiplier) for step in _with(equations, top).staircase(EMBEDDING)}
    return np.array([found.get(m, 0.0) for m in orders]) / float(power * instance.coefficients[power])


def _evaluated(
    instance: Instance, equations: EvolutionEquations, where: Condition | None, order: int | None
) -> np.ndarray:
    equation = equations[EMBEDDING]
    if where is not None:
        equation = equation.where(where)
    if order is not None:

        def of_order(term: Term) -> bool:
            kind = signature_kind(term, equations.symbols, equation.axes, True)
            return kind is not None and kind.order == order

        equation = equation.where(of_order)
    data = Data(instance.data.tokens, instance.data.labels, instance.data.weights)
    return right_hand_sides(_with(equations, equation), instance.parameters, data)[EMBEDDING]


def _with(equations: EvolutionEquations, equation: Equation) -> EvolutionEquations:
    return replace(equations, equations={EMBEDDING: equation})


def _equations(
    instance: Instance, degree: int | None, keep: tuple[str, ...] | None, part: str, distinct: bool
) -> EvolutionEquations:
    return _derived(instance.model, instance.activation, degree, keep, part, distinct)


@functools.cache
def _derived(
    model: str,
    activation: str | sympy.Expr | None,
    degree: int | None,
    keep: tuple[str, ...] | None,
    part: str,
    distinct: bool,
) -> EvolutionEquations:
    # They depend on neither shapes nor data, so all instances share them.
    if distinct:
        return _derived(model, activation, degree, keep, part, False).distinct_positions()
    options = {} if activation is None else {"activation": activation}
    equations = derive(load(model, **options), degree, keep, paths=True)
    return _with(equations, equations[EMBEDDING].where(lambda term: term.part == part))
