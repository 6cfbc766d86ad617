"""Equations as LaTeX and Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable

import sympy

from theory.evolution import EvolutionEquations
from theory.printing.notation import Group, headline
from theory.printing.writer import Definition, Row, Writer

_GREEK = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "ε": r"\varepsilon", "ζ": r"\zeta", "η": r"\eta",
    "θ": r"\theta", "κ": r"\kappa", "λ": r"\lambda", "μ": r"\mu", "ν": r"\nu", "ξ": r"\xi", "π": r"\pi", "ρ": r"\rho",
    "σ": r"\sigma", "τ": r"\tau", "φ": r"\varphi", "χ": r"\chi", "ψ": r"\psi", "ω": r"\omega", "Γ": r"\Gamma",
    "Δ": r"\Delta", "Θ": r"\Theta", "Λ": r"\Lambda", "Σ": r"\Sigma", "Φ": r"\Phi", "Ψ": r"\Psi", "Ω": r"\Omega",
}  # fmt: skip
# The same in mathematics, where a name with such characters is set upright.
_IN_FORMULAS = {c: rf"\{c}" for c in "_#&%${} "} | {"\\": r"\backslash ", "^": r"\wedge ", "~": r"\sim "}
_ESCAPED = {c: rf"\{c}" for c in "_#&%${}"} | {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
}


def to_latex(equations: EvolutionEquations, parameter: str | None = None) -> str:
    r"""An `align*` for each equation, a row for each term, then the named quantities and a legend.

    Needs the package amsmath; `\allowdisplaybreaks` lets long equations break between pages.
    """
    writer = LatexWriter(equations, parameter)
    blocks = [f"% {headline(equations)}"]
    for name in writer.names:
        rows: list[str] = []
        for group, terms in writer.groups(name):
            for number, row in enumerate(terms):
                note = rf" && \text{{{_text(group.note)}}}" if number == 0 else ""
                rows.append(f"{_signed(row, not rows)}{note}")
        blocks.append(_aligned(_derivative(writer, name), rows or ["0"]))
    defined = writer.definitions()
    if defined:
        rows = [line for d in defined for line in _definition_rows(d)]
        blocks.append("where\n\\begin{align*}\n" + _broken(rows) + "\n\\end{align*}")
    blocks.append("\\begin{itemize}\n" + "\n".join(rf"  \item {line}" for line in writer.legend()) + "\n\\end{itemize}")
    return "\n\n".join(blocks) + "\n"


def to_markdown(equations: EvolutionEquations, parameter: str | None = None) -> str:
    """Markdown: a heading per equation, each group of terms as a displayed formula, and the legend."""
    writer = LatexWriter(equations, parameter)
    blocks = [f"**{headline(equations)}**"]
    for name in writer.names:
        blocks.append(f"### Evolution of `{name}` ({', '.join(equations[name].axes)})")
        groups = writer.groups(name)
        for group, terms in groups:
            rows = [_signed(row, number == 0) for number, row in enumerate(terms)]
            body = _displayed(_part(writer, name, group), rows)
            blocks.append(f"{group.note[:1].upper()}{group.note[1:]}:\n\n$$\n{body}\n$$")
        if not groups:
            blocks.append(f"$$\n{_derivative(writer, name)} = 0\n$$")
    defined = writer.definitions()
    if defined:
        blocks.append("### Named quantities")
        blocks += [f"$$\n{_displayed(d.left, _rows(d))}\n$$" for d in defined]
    blocks.append("### Symbols\n\n" + "\n".join(f"- {line}" for line in writer.legend()))
    return "\n\n".join(blocks) + "\n"


def latex_lines(equations: EvolutionEquations, parameter: str | None = None) -> list[str]:
    """Each group of terms, and each named quantity, as a formula of its own."""
    writer = LatexWriter(equations, parameter)
    lines = []
    for name in writer.names:
        groups = writer.groups(name)
        lines += [f"{_part(writer, name, group)} = {writer.sum_of(rows)}" for group, rows in groups]
        if not groups:
            lines.append(f"{_derivative(writer, name)} = 0")
    return lines + [f"{d.left} = {writer.sum_of(d.rows)}" for d in writer.definitions()]


def _derivative(writer: LatexWriter, name: str) -> str:
    left = writer.left(name, writer.equations[name].axes)
    return rf"\frac{{\mathrm{{d}} {left}}}{{\mathrm{{d}} t}}"


def _part(writer: LatexWriter, name: str, group: Group) -> str:
    """The derivative with the part of it that a group of terms makes up."""
    sub = f"deg {group.degree}" + (f", order {group.order}" if group.order >= 0 else "")
    upper = ["label" if group.part == "label" else "pred", *filter(None, (group.path, group.branch))]
    marks = rf"^{{\text{{{_text(', '.join(upper))}}}}}_{{\text{{{sub}}}}}"
    return rf"\left. {_derivative(writer, name)} \right|{marks}"


def _signed(row: Row, first: bool) -> str:
    # An empty group in front makes + and - binary at the start of a row.
    return row.signed(True) if first and not row.negative else "{}" + row.signed(False)


def _rows(definition: Definition) -> list[str]:
    return [_signed(row, number == 0) for number, row in enumerate(definition.rows)]


def _definition_rows(definition: Definition) -> list[str]:
    rows = _rows(definition)
    return [f"{definition.left} ={{}}& {rows[0]}", *(f"& {row}" for row in rows[1:])]


def _aligned(left: str, rows: list[str]) -> str:
    lines = [f"{left} ={{}}& {rows[0]}", *(f"& {row}" for row in rows[1:])]
    return "\\begin{align*}\n" + _broken(lines) + "\n\\end{align*}"


def _displayed(left: str, rows: list[str]) -> str:
    if len(rows) == 1:
        return f"{left} = {rows[0]}"
    lines = [f"{left} ={{}}& {rows[0]}", *(f"& {row}" for row in rows[1:])]
    return "\\begin{aligned}\n" + _broken(lines) + "\n\\end{aligned}"


def _broken(lines: list[str]) -> str:
    return " \\\\\n".join(f"  {line}" for line in lines)


class LatexWriter(Writer):
    r"""LaTeX: E_{\alpha i}, \left\langle \sum_{s} … \right\rangle, \varphi_{\alpha}^{y;1}(\nu,\beta)."""

    def product(self, pieces: list[str]) -> str:
        spaced = [piece + (" " if piece.startswith(r"\sum") else r" \, ") for piece in pieces[:-1]]
        return "".join([*spaced, *pieces[-1:]])

    def number(self, value: sympy.Expr) -> str:
        names = {s: self.size(str(s).removeprefix("n_")) for s in value.free_symbols}
        return sympy.latex(value, symbol_names=names)

    def size(self, axis: str) -> str:
        usual = self.notation.size_letter(axis) or {"label": r"V_{\mathrm{out}}", "token": r"V_{\mathrm{in}}"}.get(axis)
        return usual or f"n_{{{_upright(axis)}}}"

    def symbol(self, name: str) -> str:
        """Q1 has a superscript, and so has what stands in brackets; a word is upright."""
        match = re.fullmatch(r"([^\W\d_]+)(\d*)('*)(?:\[(.*)\])?", name)
        if match is None:
            return _upright(name)
        letters, digits, primes, inside = match.groups()
        base = _GREEK.get(letters, letters) if len(letters) == 1 else rf"\mathrm{{{letters}}}"
        upper = [r"\prime" * len(primes)] if primes else []
        upper += [f"({digits})"] if digits else []
        upper += [_upright(inside)] if inside else []
        return f"{base}^{{{' '.join(upper)}}}" if upper else base

    def letter(self, text: str) -> str:
        plain = text.rstrip("′")
        return _GREEK.get(plain, plain) + "'" * (len(text) - len(plain))

    def at(self, base: str, place: str) -> str:
        return f"{base}_{{{place}}}"

    def indexed(self, base: str, indices: list[str], power: int) -> str:
        inside = f"{base}_{{{' '.join(indices)}}}" if indices else base
        if power == 1:
            return inside
        return rf"\left({inside}\right)^{{{power}}}" if "^" in base or not indices else f"{inside}^{{{power}}}"

    def indicator(self, first: str, second: str) -> str:
        return rf"\mathbf{{1}}\{{{first} = {second}\}}"

    def sum_over(self, letters: Iterable[str]) -> str:
        return rf"\sum_{{{','.join(letters)}}}"

    def distinct_sum(self, letters: Iterable[str]) -> str:
        letters = tuple(letters)
        inside = r" \neq ".join(letters) if len(letters) == 2 else rf"{','.join(letters)} \text{{ distinct}}"
        return rf"\sum_{{{inside}}}"

    def average(self, body: str) -> str:
        return rf"\left\langle {body} \right\rangle"

    def probability(self, order: int, anchor: str) -> str:
        return self.product([rf"L r_{{{anchor}}}", *(f"(L-{n})" for n in range(1, order + 1))])

    def signature(self, variable: str, order: int, anchor: str, indices: list[str]) -> str:
        upper = f"{variable};{order}" if variable else str(order)
        return rf"\varphi_{{{anchor}}}^{{{upper}}}({','.join(indices)})"

    def call(self, function: str, derivative: int, argument: str) -> str:
        word, _, number = function.partition("_")
        base = rf"F_{{{number}}}" if number else rf"\operatorname{{{word}}}"
        primes = "'" * derivative if derivative < 3 else f"^{{({derivative})}}"
        return rf"{base}{primes}\left({argument}\right)"

    def exponential(self, argument: str) -> str:
        return rf"\exp\left({argument}\right)"

    def fraction(self, upper: str, lower: str) -> str:
        return rf"\frac{{{upper}}}{{{lower}}}"

    def average_words(self) -> list[tuple[str, str]]:
        context, given = r"x_{J_1} = \beta_1, \dots, x_{J_m} = \beta_m", r"x_I = \alpha"
        drawn = r"positions $I, J_1, \dots, J_m$ distinct and uniformly drawn"
        indicators = r"\mathbf{1}\{x_{J_1} = \beta_1\} \cdots \mathbf{1}\{x_{J_m} = \beta_m\}"
        return [
            ("⟨⟩", r"$\left\langle \cdot \right\rangle$: average over the data"),
            ("x_s", r"$x_{s}$: the token at position $s$"),
            ("y", r"$y$: the label"),
            ("y_s", r"$y_{s}$: the label at position $s$"),
            ("1", r"$\mathbf{1}\{\cdot\}$: 1 where the equality holds, 0 elsewhere"),
            ("r", r"$r_{\alpha}$: probability that a uniformly drawn position holds token $\alpha$"),
            ("φy", rf"$\varphi_{{\alpha}}^{{y;m}}(\nu,\beta_1,\dots,\beta_m) = P(y = \nu, {context} \mid {given})$, {drawn}"),
            ("φp", rf"$\varphi_{{\alpha}}^{{p;m}}(\nu,\beta_1,\dots,\beta_m)$: average of $p_{{\nu}} \, {indicators}$ given "
                   rf"${given}$, {drawn}"),
            ("φ", rf"$\varphi_{{\alpha}}^{{m}}(\beta_1,\dots,\beta_m) = P({context} \mid {given})$, {drawn}"),
        ]  # fmt: skip

    def word(self, text: str) -> str:
        return _text(text)

    def list_of(self, symbols: Iterable[str]) -> str:
        return "$, $".join(symbols)

    def meaning(self, symbol: str, words: str) -> str:
        return f"${symbol}$: {words}"

    def equation(self, left: str, right: str) -> str:
        return f"${left} = {right}$"

    def power_of_scale(self, power: str) -> str:
        return rf"$\varepsilon^{{{power}}}$"

    def formula(self, expression: sympy.Expr) -> str:
        return sympy.latex(expression)


def _text(text: str) -> str:
    """A name as text, with what LaTeX would misread written out."""
    return "".join(_ESCAPED.get(c) or (f"${_GREEK[c]}$" if c in _GREEK else c) for c in text)


def _upright(name: str) -> str:
    """A name inside a formula."""
    if name.isascii() and not re.fullmatch(r"[A-Za-z0-9 ,;:()\[\]-]+", name):
        return rf"\mathrm{{{''.join(_IN_FORMULAS.get(c, c) for c in name)}}}"
    return rf"\text{{{_text(name)}}}"
