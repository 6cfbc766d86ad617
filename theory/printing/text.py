"""Equations as plain text."""

from __future__ import annotations

from collections.abc import Iterable

import sympy

from theory.evolution import EvolutionEquations
from theory.printing.notation import headline
from theory.printing.writer import Writer


def to_text(equations: EvolutionEquations, parameter: str | None = None) -> str:
    """All equations, or one parameter's, with the named quantities that they use and a legend."""
    writer = TextWriter(equations, parameter)
    lines = [headline(equations), ""]
    for name in writer.names:
        lines.append(f"d{writer.left(name, equations[name].axes)}/dt =")
        groups = writer.groups(name)
        if not groups:
            lines.append("    0   (no term up to this degree)")
        for group, rows in groups:
            lines.append(f"    {group.note}:")
            lines += [f"        {row.signed(first=False)}" for row in rows]
        lines.append("")
    defined = writer.definitions()
    if defined:
        lines += ["where", *(f"    {d.left} = {writer.sum_of(d.rows)}" for d in defined), ""]
    lines += writer.legend()
    return "\n".join(lines).rstrip() + "\n"


class TextWriter(Writer):
    """Plain text: E[α,i], ⟨Σ_{s} …⟩, φ_α^{y;1}(ν,β)."""

    def number(self, value: sympy.Expr) -> str:
        names = {s: sympy.Symbol(self.size(str(s).removeprefix("n_")), positive=True) for s in value.free_symbols}
        text = str(value.xreplace(names))
        return f"({text})" if " " in text else text

    def size(self, axis: str) -> str:
        usual = self.notation.size_letter(axis)
        return usual or {"label": "V_out", "token": "V_in"}.get(axis, f"n_{axis}")

    def symbol(self, name: str) -> str:
        return name

    def letter(self, text: str) -> str:
        return text

    def at(self, base: str, place: str) -> str:
        return f"{base}_{place}"

    def indexed(self, base: str, indices: list[str], power: int) -> str:
        inside = f"{base}[{','.join(indices)}]" if indices else base
        return f"{inside}^{power}" if power > 1 else inside

    def indicator(self, first: str, second: str) -> str:
        return f"1{{{first}={second}}}"

    def sum_over(self, letters: Iterable[str]) -> str:
        return f"Σ_{{{','.join(letters)}}}"

    def distinct_sum(self, letters: Iterable[str]) -> str:
        letters = tuple(letters)
        return f"Σ_{{{'≠'.join(letters)}}}" if len(letters) == 2 else f"Σ_{{{','.join(letters)} distinct}}"

    def average(self, body: str) -> str:
        return f"⟨{body}⟩"

    def probability(self, order: int, anchor: str) -> str:
        return "·".join([f"L·r_{anchor}", *(f"(L-{n})" for n in range(1, order + 1))])

    def signature(self, variable: str, order: int, anchor: str, indices: list[str]) -> str:
        upper = f"{variable};{order}" if variable else str(order)
        return f"φ_{anchor}^{{{upper}}}({','.join(indices)})"

    def call(self, function: str, derivative: int, argument: str) -> str:
        return f"{function}{_primes(derivative)}({argument})"

    def exponential(self, argument: str) -> str:
        return f"exp({argument})"

    def fraction(self, upper: str, lower: str) -> str:
        return f"{upper} / ({lower})"

    def average_words(self) -> list[tuple[str, str]]:
        drawn = "positions I, J1, …, Jm distinct and uniformly drawn"
        return [
            ("⟨⟩", "⟨…⟩: average over the data"),
            ("x_s", "x_s: the token at position s"),
            ("y", "y: the label"),
            ("y_s", "y_s: the label at position s"),
            ("1", "1{…}: 1 where the equality holds, 0 elsewhere"),
            ("r", "r_α: probability that a uniformly drawn position holds token α"),
            ("φy", f"φ_α^{{y;m}}(ν,β1,…,βm) = P(y=ν, x_J1=β1, …, x_Jm=βm | x_I=α), {drawn}"),
            ("φp", f"φ_α^{{p;m}}(ν,β1,…,βm) = average of p_ν 1{{x_J1=β1}} … 1{{x_Jm=βm}} given x_I=α, {drawn}"),
            ("φ", f"φ_α^{{m}}(β1,…,βm) = P(x_J1=β1, …, x_Jm=βm | x_I=α), {drawn}"),
        ]

    def meaning(self, symbol: str, words: str) -> str:
        return f"{symbol}: {words}"

    def equation(self, left: str, right: str) -> str:
        return f"{left} = {right}"

    def power_of_scale(self, power: str) -> str:
        return f"ε^{power}"

    def formula(self, expression: sympy.Expr) -> str:
        return str(expression)


def _primes(derivative: int) -> str:
    return "'" * derivative if derivative < 3 else f"^({derivative})"
