"""Equations as plain text."""

from __future__ import annotations

from theory.algebra.scalar import Scalar
from theory.evolution import EvolutionEquations, NamedQuantity, Term
from theory.expansion import ConstantDefinition, FunctionDefinition, SoftmaxDefinition
from theory.printing.notation import Index, Written, groups, read

_SIZES = {"position": "L", "embed": "d", "label": "V_out", "token": "V_in"}


def to_text(equations: EvolutionEquations, parameter: str | None = None) -> str:
    """All equations, or one parameter's, with the named quantities that they use."""
    names = list(equations) if parameter is None else [parameter]
    lines = [headline(equations), ""]
    for name in names:
        equation = equations[name]
        lines.append(f"d{name}[{', '.join(equation.axes)}]/dt =")
        if not len(equation):
            lines.append("    0   (no term up to this degree)")
        for group, terms in groups(equation, equations):
            order = f"order {group.order}" if group.order >= 0 else ""
            note = (_PARTS[group.part], group.path, group.branch, f"degree {group.degree}", order)
            lines.append(f"    {', '.join(filter(None, note))}:")
            lines += [f"        {write_term(equations, equation.axes, term)}" for term in terms]
        lines.append("")
    defined = [line for quantity in equations.quantities if (line := _definition(equations, quantity))]
    if defined:
        lines += ["where", *(f"    {line}" for line in defined), ""]
    lines.append(_legend(equations))
    return "\n".join(lines).rstrip() + "\n"


_PARTS = {"label": "label-driven", "prediction": "prediction-induced"}


def headline(equations: EvolutionEquations) -> str:
    """One line: the architecture, the loss, and how far the derivation reaches."""
    if equations.degree is None:
        reach = "everything kept (the exact gradient flow)"
    else:
        kept = ", ".join(equations.keep) or "nothing"
        reach = (
            f"loss degree {equations.degree} (right-hand sides to degree {equations.degree} - a for a parameter of weight "
            f"a, 1 by default); kept: {kept}; prediction: {equations.prediction}"
        )
    return f"{equations.architecture.name}, {equations.loss.replace('_', ' ')}, {reach}"


def write_term(equations: EvolutionEquations, axes: tuple[str, ...], term: Term, averaged: bool = True) -> str:
    """One signed term; `averaged`: over the data, as in equations, or at one sample, as in named quantities."""
    reading = read(equations, axes, term)
    sign = "-" if reading.coefficient.rational < 0 else "+"
    absolute = Scalar(abs(reading.coefficient.rational), reading.coefficient.atoms)
    pieces = []
    number = write_scalar(absolute)
    if number != "1" or not (reading.outside or reading.averaged or reading.signature):
        pieces.append(number)
    if reading.signature is not None:
        pieces.append("L·r_α" + "".join(f"·(L-{n})" for n in range(1, reading.signature.order + 1)))
    if reading.sums:
        pieces.append(f"Σ_{{{','.join(reading.sums)}}}")
    if reading.signature is not None and reading.signature_indices:
        inside = f"({','.join(reading.signature_indices)})"
        pieces.append(reading.signature.name + inside)
    if reading.averaged:
        letters = (["≠".join(reading.distinct)] if reading.distinct else []) + list(reading.inner_sums)
        total = f"Σ_{{{','.join(letters)}}} " if letters else ""
        inner = total + " ".join(_written(w) for w in reading.averaged)
        pieces.append(f"⟨{inner}⟩" if averaged else inner)
    pieces += [_written(w) for w in reading.outside]
    return f"{sign} {' '.join(pieces)}"


def _written(factor: Written) -> str:
    if factor.name == "=":
        return f"1{{{_index(factor.indices[0])}={_index(factor.indices[1])}}}"
    if factor.name.startswith("delta["):
        return f"1{{{_index(factor.indices[0])}={_index(factor.indices[1])}}}"
    inside = ",".join(_index(i) for i in factor.indices)
    return f"{factor.name}[{inside}]" if inside else factor.name


def _index(index: Index) -> str:
    return f"{index.text}_{index.of}" if index.of else index.text


def write_scalar(scalar: Scalar) -> str:
    """An exact scalar, sizes by their usual letters."""
    expression = scalar.to_sympy()
    text = str(expression)
    for axis, letter in _SIZES.items():
        text = text.replace(f"n_{axis}", letter)
    return f"({text})" if " " in text else text


def _definition(equations: EvolutionEquations, quantity: object) -> str:
    match quantity:
        case NamedQuantity(symbol=symbol, terms=terms):
            body = " ".join(write_term(equations, symbol.labels, term, False) for term in terms)
            return f"{symbol.name}[{', '.join(symbol.labels)}] = {body.removeprefix('+ ')}"
        case FunctionDefinition(symbol=symbol, function=function, derivative=order, argument=argument):
            primes = {0: "", 1: "'"}.get(order, f"^({order})")
            return f"{symbol.name} = σ{primes}({argument.name}), σ = {function.name}"
        case SoftmaxDefinition(symbol=symbol, argument=argument, over=over, mask=mask):
            return f"{symbol.name} = softmax over {over} of {argument.name}" + (f", mask {mask.name}" if mask else "")
        case ConstantDefinition(symbol=symbol):
            return f"{symbol.name}: a constant with axes ({', '.join(symbol.labels)})"
    return ""


def _legend(equations: EvolutionEquations) -> str:
    parts = [
        "⟨…⟩ averages over the data; x_s is the token at position s, y the label, 1{…} an indicator",
        "L = number of positions, r_α = P(x_I = α), V_in and V_out the numbers of tokens and labels, d the width",
    ]
    if equations.distinct:
        parts.append("φ_α^{y;m}(ν,β…) = P(y=ν, x_J1=β, … | x_I=α) over distinct positions; p instead of y: ⟨p_ν …⟩")
    return "\n".join(parts)
