"""Equations as JSON, under a versioned schema."""

from __future__ import annotations

import json
from typing import Any

from theory.algebra.components import Factor, Symbol
from theory.evolution import EvolutionEquations, NamedQuantity, Term
from theory.expansion import FunctionDefinition, SoftmaxDefinition

SCHEMA = "context-staircase/equations"
VERSION = 1


def to_json(equations: EvolutionEquations, indent: int | None = None) -> str:
    """The equations with exact coefficients: rationals as strings, roots and constants as powers of named atoms."""
    return json.dumps(to_dict(equations), indent=indent, ensure_ascii=False)


def to_dict(equations: EvolutionEquations) -> dict[str, Any]:
    """The same as JSON-able values."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "architecture": equations.architecture.name,
        "degree": None if equations.degree is None else str(equations.degree),
        "keep": list(equations.keep),
        "prediction": equations.prediction,
        "loss": equations.loss,
        "distinct_positions": equations.distinct,
        "symbols": [_symbol(symbol) for symbol in equations.symbols.values()],
        "quantities": [_quantity(quantity) for quantity in equations.quantities],
        "equations": [
            {
                "parameter": name,
                "axes": list(equation.axes),
                "weight": str(equations.architecture.parameters[name].weight),
                "terms": [_term(term) for term in equation],
            }
            for name, equation in equations.items()
        ],
    }


def _term(term: Term) -> dict[str, Any]:
    return {
        "coefficient": {
            "rational": str(term.coefficient.rational),
            "atoms": [[name, str(power)] for name, power in term.coefficient.atoms],
        },
        "components": [[_factor(factor) for factor in component] for component in term.components],
        "degree": str(term.degree),
        "part": term.part,
        "path": term.path,
        "branch": term.branch,
    }


def _factor(factor: Factor) -> dict[str, Any]:
    return {"symbol": factor[0], "indices": list(factor[1])}


def _symbol(symbol: Symbol) -> dict[str, Any]:
    return {
        "name": symbol.name,
        "labels": list(symbol.labels),
        "axes": list(symbol.axes),
        "role": symbol.role,
        "per_sample": symbol.per_sample,
        "one_hot_slot": symbol.hot,
        "normalised_slot": symbol.normalised,
        "degree": str(symbol.degree),
    }


def _quantity(quantity: Any) -> dict[str, Any]:
    match quantity:
        case NamedQuantity(symbol=symbol, terms=terms):
            return {"symbol": symbol.name, "kind": "sum", "terms": [_term(term) for term in terms]}
        case FunctionDefinition(symbol=symbol, function=function, derivative=derivative, argument=argument):
            return {
                "symbol": symbol.name,
                "kind": "function",
                "function": function.name,
                "expression": str(function.expression),
                "derivative": derivative,
                "argument": argument.name,
            }
        case SoftmaxDefinition(symbol=symbol, argument=argument, over=over, mask=mask):
            return {
                "symbol": symbol.name,
                "kind": "softmax",
                "argument": argument.name,
                "over": over,
                "mask": None if mask is None else mask.name,
            }
    return {"symbol": quantity.symbol.name, "kind": "constant"}
