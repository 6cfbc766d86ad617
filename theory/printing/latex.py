"""Equations as LaTeX and Markdown."""

from __future__ import annotations

import re

import sympy

from theory.algebra.scalar import Scalar
from theory.evolution import EvolutionEquations, NamedQuantity, Term
from theory.expansion import ConstantDefinition, FunctionDefinition, SoftmaxDefinition
from theory.printing.notation import Group, Index, Written, groups, read
from theory.printing.text import headline
from theory.signature_kinds import SignatureKind

_GREEK = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ζ": r"\zeta", "η": r"\eta", "θ": r"\theta",
    "ν": r"\nu", "μ": r"\mu", "λ": r"\lambda", "κ": r"\kappa",
}  # fmt: skip
_SIZES = {"position": "L", "embed": "d", "label": r"V_{\mathrm{out}}", "token": r"V_{\mathrm{in}}"}


def to_latex(equations: EvolutionEquations, parameter: str | None = None) -> str:
    """An `align*` environment for each equation and for the named quantities, and a legend; needs amsmath and amssymb."""
    names = list(equations) if parameter is None else [parameter]
    blocks = [f"% {headline(equations)}"]
    for name in names:
        rows = []
        for group, body in _bodies(equations, name):
            note = _note(group)
            rows.append(rf"  &\quad {body} && \text{{{note}}}")
        left = _left(equations, name)
        if rows:
            blocks.append("\\begin{align*}\n" + f"  {left} ={{}}& \\\\\n" + " \\\\\n".join(rows) + "\n\\end{align*}")
        else:
            blocks.append(f"\\begin{{align*}}\n  {left} &= 0\n\\end{{align*}}")
    defined = [line for quantity in equations.quantities if (line := _definition(equations, quantity))]
    if defined:
        rows = " \\\\\n".join("  " + line.replace(" = ", " &= ", 1) for line in defined)
        blocks.append("where\n\\begin{align*}\n" + rows + "\n\\end{align*}")
    blocks.append(
        "\\begin{itemize}\n" + "\n".join(f"  \\item {line}" for line in _legend(equations)) + "\n\\end{itemize}"
    )
    return "\n\n".join(blocks) + "\n"


def to_markdown(equations: EvolutionEquations, parameter: str | None = None) -> str:
    """Markdown: a heading per equation, each group of terms as a displayed formula, and the legend."""
    names = list(equations) if parameter is None else [parameter]
    blocks = [f"**{headline(equations)}**"]
    for name in names:
        blocks.append(f"### Evolution of `{name}` ({', '.join(equations[name].axes)})")
        parts = [
            f"{_note(group)}:\n\n$$\n{_left(equations, name, group)} = {body}\n$$"
            for group, body in _bodies(equations, name)
        ]
        blocks += parts or [f"$$\n{_left(equations, name)} = 0\n$$"]
    defined = [line for quantity in equations.quantities if (line := _definition(equations, quantity))]
    if defined:
        blocks.append("### Named quantities")
        blocks += [f"$$\n{line}\n$$" for line in defined]
    blocks.append("\n".join(f"- {line}" for line in _legend(equations)))
    return "\n\n".join(blocks) + "\n"


def latex_lines(equations: EvolutionEquations, parameter: str | None = None) -> list[str]:
    """Each group of terms, and each named quantity, as a formula of its own."""
    names = list(equations) if parameter is None else [parameter]
    lines = []
    for name in names:
        bodies = list(_bodies(equations, name))
        lines += [f"{_left(equations, name, group)} = {body}" for group, body in bodies]
        if not bodies:
            lines.append(f"{_left(equations, name)} = 0")
    lines += [line for quantity in equations.quantities if (line := _definition(equations, quantity))]
    return lines


def _bodies(equations: EvolutionEquations, name: str) -> list[tuple[Group, str]]:
    equation = equations[name]
    return [
        (group, _sum(write_term(equations, equation.axes, term) for term in terms))
        for group, terms in groups(equation, equations)
    ]


def _sum(terms) -> str:
    return " ".join(terms).removeprefix("+ ")


def _left(equations: EvolutionEquations, name: str, group: Group | None = None) -> str:
    axes = equations[name].axes
    # The letters of the free axes are the first that any term of this equation uses.
    reading = read(
        equations, axes, Term(Scalar.of(1), (((name, axes),),), equations.architecture.parameters[name].weight, "")
    )
    left = rf"\frac{{\mathrm{{d}} {_written(reading.outside[0])}}}{{\mathrm{{d}} t}}"
    if group is None:
        return left
    sub = rf"\text{{deg {group.degree}" + (f", order {group.order}" if group.order >= 0 else "") + "}"
    upper = [r"\mathrm{label}" if group.part == "label" else r"\mathrm{pred}"]
    upper += [rf"\text{{{word}}}" for word in (group.path, group.branch) if word]
    return rf"\left. {left} \right|^{{{', '.join(upper)}}}_{{{sub}}}"


def _note(group: Group) -> str:
    part = "label-driven" if group.part == "label" else "prediction-induced"
    order = f"order {group.order}" if group.order >= 0 else ""
    return ", ".join(filter(None, (part, group.path, group.branch, f"degree {group.degree}", order)))


def write_term(equations: EvolutionEquations, axes: tuple[str, ...], term: Term, averaged: bool = True) -> str:
    """One signed term; `averaged`: over the data, as in equations, or at one sample, as in named quantities."""
    reading = read(equations, axes, term)
    sign = "-" if reading.coefficient.rational < 0 else "+"
    number = write_scalar(Scalar(abs(reading.coefficient.rational), reading.coefficient.atoms))
    pieces = []
    if number != "1" or not (reading.outside or reading.averaged or reading.signature):
        pieces.append(number)
    if reading.signature is not None:
        pieces.append(r"L r_{\alpha}" + "".join(rf" (L-{n})" for n in range(1, reading.signature.order + 1)))
    if reading.sums:
        pieces.append(rf"\sum_{{{','.join(map(_letter, reading.sums))}}}")
    if reading.signature is not None and reading.signature_indices:
        pieces.append(rf"{_signature(reading.signature)}({','.join(map(_letter, reading.signature_indices))})")
    if reading.averaged:
        letters = [r" \neq ".join(map(_letter, reading.distinct))] if reading.distinct else []
        letters += map(_letter, reading.inner_sums)
        total = rf"\sum_{{{','.join(letters)}}} " if letters else ""
        inner = total + r" \, ".join(_written(w) for w in reading.averaged)
        pieces.append(rf"\left\langle {inner} \right\rangle" if averaged else inner)
    pieces += [_written(w) for w in reading.outside]
    return f"{sign} " + r" \, ".join(pieces)


def _signature(kind: SignatureKind) -> str:
    upper = f"{kind.variable};{kind.order}" if kind.variable else str(kind.order)
    return rf"\varphi_{{\alpha}}^{{{upper}}}"


def _written(factor: Written) -> str:
    if factor.name == "=" or factor.name.startswith("delta["):
        first, second = factor.indices
        return rf"\mathbf{{1}}\{{{_index(first)} = {_index(second)}\}}"
    if factor.name in ("last", "first"):
        return rf"\mathbf{{1}}\{{{_index(factor.indices[0])} = {'L' if factor.name == 'last' else '1'}\}}"
    base = _symbol(factor.name)
    inside = " ".join(_index(i) for i in factor.indices)
    return rf"{base}_{{{inside}}}" if inside else base


def _symbol(name: str) -> str:
    """A symbol's name in LaTeX: Q1 has a superscript, bracketed names become upright superscripts."""
    match = re.fullmatch(r"([A-Za-zσ]+?)(\d*)('*)(?:\[(.*)\])?", name)
    if match is None:
        return rf"\mathrm{{{_escaped(name)}}}"
    letters, digits, primes, inside = match.groups()
    base = r"\sigma" if letters == "σ" else letters if len(letters) == 1 else rf"\mathrm{{{letters}}}"
    upper = [primes.replace("'", r"\prime")] if primes else []
    if digits:
        upper.append(f"({digits})")
    if inside:
        upper.append(rf"\text{{{_escaped(inside)}}}")
    return f"{base}^{{{' '.join(upper)}}}" if upper else base


def _escaped(text: str) -> str:
    return text.replace("_", r"\_").replace("#", r"\#").replace("&", r"\&").replace("%", r"\%")


def _index(index: Index) -> str:
    return f"{_letter(index.text)}_{{{_letter(index.of)}}}" if index.of else _letter(index.text)


def _letter(text: str) -> str:
    plain = text.rstrip("′")
    return _GREEK.get(plain, plain) + "'" * (len(text) - len(plain))


def write_scalar(scalar: Scalar) -> str:
    """An exact scalar, sizes by their usual letters."""
    expression = scalar.to_sympy()
    names = {}
    for symbol in expression.free_symbols:
        axis = str(symbol).removeprefix("n_")
        names[symbol] = _SIZES.get(axis, rf"n_{{\mathrm{{{_escaped(axis)}}}}}")
    return sympy.latex(expression, symbol_names=names)


def _definition(equations: EvolutionEquations, quantity: object) -> str:
    match quantity:
        case NamedQuantity(symbol=symbol, terms=terms):
            body = _sum(write_term(equations, symbol.labels, term, False) for term in terms)
            return f"{_of_labels(equations, symbol.name, symbol.labels)} = {body}"
        case FunctionDefinition(symbol=symbol, function=function, derivative=order, argument=argument):
            primes = "'" * order if order < 3 else f"^{{({order})}}"
            return (
                rf"{_symbol(symbol.name)} = \sigma{primes}\left({_symbol(argument.name)}\right), \quad "
                rf"\sigma(z) = {sympy.latex(function.expression)}"
            )
        case SoftmaxDefinition(symbol=symbol, argument=argument, over=over, mask=mask):
            masked = rf" \text{{ with mask }} {_symbol(mask.name)}" if mask is not None else ""
            return (
                rf"{_symbol(symbol.name)} = \operatorname{{softmax}}_{{\mathrm{{{_escaped(over)}}}}}"
                rf"\left({_symbol(argument.name)}\right){masked}"
            )
        case ConstantDefinition():
            return ""
    return ""


def _of_labels(equations: EvolutionEquations, name: str, labels: tuple[str, ...]) -> str:
    reading = read(equations, labels, Term(Scalar.of(1), (((name, labels),),), equations.symbols[name].degree, ""))
    return _written((*reading.outside, *reading.averaged)[0])


def _legend(equations: EvolutionEquations) -> list[str]:
    lines = [
        r"$\langle\cdot\rangle$: average over the data; $x_s$: token at position $s$; $y$: label; $\mathbf{1}$: indicator",
        r"$L$: number of positions; $r_\alpha = P(x_I = \alpha)$; $V_{\mathrm{in}}$, $V_{\mathrm{out}}$: numbers of tokens and "
        r"labels; $d$: width",
    ]
    if equations.distinct:
        lines.append(
            r"$\varphi_\alpha^{y;m}(\nu,\beta_1,\dots)$: $P(y=\nu, x_{J_1}=\beta_1, \dots \mid x_I=\alpha)$ over distinct "
            r"positions; $\varphi_\alpha^{p;m}$: the same with $p_\nu$ for the label"
        )
    constants = [q.symbol.name for q in equations.quantities if isinstance(q, ConstantDefinition)]
    lines += [rf"${_symbol(name)}$: a constant of the architecture" for name in constants]
    return lines
