"""Equations as JSON, under a versioned schema.

The document (`equations.schema.json` beside this module is its JSON Schema) holds everything but arrays and functions: the
settings of the derivation; `symbols`, each with its axes, role and leading degree; `quantities`, the definitions of named
quantities in order (a sum of terms, a function of another quantity, a softmax, or a fixed array); `equations`, one for each
parameter. Coefficients are exact: a rational as a string, and powers of axis sizes ("|embed|"), primes and constants ("pi").
Fixed arrays and activations are taken from the architecture when a document is read.

A change of meaning, or of what is required, raises `VERSION`.
"""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

from theory.algebra.components import Factor, Symbol
from theory.algebra.scalar import Degree, Scalar, atom_to_sympy, whole_or_fraction
from theory.errors import UserError, nearest
from theory.evolution import Equation, EvolutionEquations, NamedQuantity, Quantity, Term
from theory.expansion import ConstantDefinition, Expansion, FunctionDefinition, SoftmaxDefinition
from theory.language import Architecture, Elementwise
from theory.printing.schema import equations_schema, validate
from theory.reverse import residuals

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
        "paths": equations.paths,
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


def from_json(text: str, architecture: Architecture) -> EvolutionEquations:
    """Read equations back; `equations.identical(...)` holds between them and those that were written.

    **Arguments:** `text`: what `to_json` wrote; `architecture`: the one that it was derived from, whose fixed arrays and
    activations the equations use.

    **Raises:** `UserError` for text that is no JSON, another schema or version, a place that does not fit the schema, and
    an architecture that does not fit the equations.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"equations cannot be read: line {error.lineno} is not JSON ({error.msg})") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise UserError(f"equations are JSON of the schema '{SCHEMA}', found {found!r}")
    if document.get("version") != VERSION:
        raise UserError(
            f"equations of schema version {document.get('version')!r} cannot be read; this is version {VERSION}"
        )
    validate(document, equations_schema())
    return _Reader(document, architecture).equations()


class _Reader:
    """Reads a document that fits the schema."""

    def __init__(self, document: dict[str, Any], architecture: Architecture):
        self.document, self.architecture = document, architecture
        self._check_architecture()
        degree = document["degree"]
        self.degree = None if degree is None else _rational(degree)
        # Values and residual give the fixed arrays, and register the constants in the activations' series.
        expansion = Expansion(architecture, self.degree, frozenset(document["keep"]))
        residuals(expansion, document["prediction"], document["loss"])
        self.constants = {
            name: definition
            for name, definition in expansion.definitions.items()
            if isinstance(definition, ConstantDefinition)
        }
        self.symbols = {entry["name"]: _read_symbol(entry) for entry in document["symbols"]}

    def equations(self) -> EvolutionEquations:
        document = self.document
        return EvolutionEquations(
            self.architecture,
            self.degree,
            tuple(document["keep"]),
            document["prediction"],
            document["loss"],
            document["paths"],
            {
                entry["parameter"]: Equation(entry["parameter"], tuple(entry["axes"]), self._terms(entry["terms"]))
                for entry in document["equations"]
            },
            tuple(map(self._quantity, document["quantities"])),
            self.symbols,
            document["distinct_positions"],
        )

    def _check_architecture(self) -> None:
        name = self.document["architecture"]
        if name != self.architecture.name:
            raise UserError(f"the equations are those of '{name}', not of '{self.architecture.name}'")
        specs = {
            entry["parameter"]: (tuple(entry["axes"]), Fraction(entry["weight"]))
            for entry in self.document["equations"]
        }
        known = {name: (spec.axes, spec.weight) for name, spec in self.architecture.parameters.items()}
        for parameter, found in specs.items():
            if parameter not in known:
                raise UserError(
                    f"{name} has no parameter '{parameter}' that the equations name; {nearest(parameter, known)}"
                )
            if found != known[parameter]:
                raise UserError(
                    f"parameter '{parameter}' of {name} has axes ({', '.join(known[parameter][0])}) and weight "
                    f"{known[parameter][1]}, but in the equations ({', '.join(found[0])}) and weight {found[1]}"
                )
        for parameter in known:
            if parameter not in specs:
                raise UserError(f"the equations hold none for parameter '{parameter}' of {name}")

    def _terms(self, entries: list[dict[str, Any]]) -> tuple[Term, ...]:
        return tuple(map(self._term, entries))

    def _term(self, entry: dict[str, Any]) -> Term:
        components = tuple(tuple(map(self._factor, component)) for component in entry["components"])
        return Term(
            _read_scalar(entry["coefficient"]),
            components,
            _rational(entry["degree"]),
            entry["part"],
            entry["path"],
            entry["branch"],
        )

    def _factor(self, entry: dict[str, Any]) -> Factor:
        symbol = self._known(entry["symbol"])
        if len(entry["indices"]) != len(symbol.labels):
            raise UserError(
                f"'{symbol.name}' has {len(symbol.labels)} axes, but a factor gives {len(entry['indices'])}"
            )
        return symbol.name, tuple(entry["indices"])

    def _known(self, name: str) -> Symbol:
        if name not in self.symbols:
            raise UserError(f"the equations use '{name}' but do not describe it; {nearest(name, self.symbols)}")
        return self.symbols[name]

    def _quantity(self, entry: dict[str, Any]) -> Quantity:
        symbol = self._known(entry["symbol"])
        if entry["kind"] == "sum":
            return NamedQuantity(symbol, self._terms(entry["terms"]))
        if entry["kind"] == "softmax":
            mask = None if entry["mask"] is None else self._known(entry["mask"])
            return SoftmaxDefinition(symbol, self._known(entry["argument"]), entry["over"], mask)
        if entry["kind"] == "function":
            for node in self.architecture.nonlinearities.values():
                if isinstance(node, Elementwise) and str(node.function.expression) == entry["expression"]:
                    if node.function.name == entry["function"]:
                        argument = self._known(entry["argument"])
                        return FunctionDefinition(symbol, node.function, entry["derivative"], argument)
            raise UserError(
                f"{self.architecture.name} applies no '{entry['function']}' ({entry['expression']}), which the equations use"
            )
        if symbol.name not in self.constants:
            raise UserError(f"{self.architecture.name} has no fixed array '{symbol.name}', which the equations use")
        return self.constants[symbol.name]


def _rational(text: str) -> Degree:
    return whole_or_fraction(Fraction(text))


def _read_scalar(entry: dict[str, Any]) -> Scalar:
    atoms = tuple((name, _rational(power)) for name, power in entry["atoms"])
    for name, _ in atoms:
        try:
            atom_to_sympy(name)
        except KeyError:
            raise UserError(
                f"the equations hold a constant '{name}' that the architecture's functions do not"
            ) from None
    return Scalar(Fraction(entry["rational"]), atoms)


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


def _read_symbol(entry: dict[str, Any]) -> Symbol:
    return Symbol(
        entry["name"],
        tuple(entry["labels"]),
        tuple(entry["axes"]),
        entry["role"],
        entry["per_sample"],
        entry["one_hot_slot"],
        entry["normalised_slot"],
        _rational(entry["degree"]),
    )


def _quantity(quantity: Quantity) -> dict[str, Any]:
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
        case ConstantDefinition(symbol=symbol):
            return {"symbol": symbol.name, "kind": "constant"}
