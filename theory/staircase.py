"""The staircase: for each signature, the lowest degree at which it enters an embedding's equation, and its multiplier."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sympy

from theory.algebra.scalar import Degree, Scalar
from theory.errors import UserError
from theory.evolution import EvolutionEquations, Term
from theory.signature_kinds import SignatureKind, signature_kind, trace_back_kind


@dataclass(frozen=True)
class Step:
    """One step: a signature of one part, where it first enters, and what multiplies it there.

    **Arguments:** `degree`: of the right-hand side; `terms`: those of that degree; `all_degrees`: every degree at which the
    signature enters, up to the derivation's; `path`, `branch`: as in `theory.reverse`.
    """

    part: str
    signature: SignatureKind
    degree: Degree
    terms: tuple[Term, ...]
    all_degrees: tuple[Degree, ...]
    path: str = ""
    branch: str = ""

    @property
    def positions(self) -> str:
        """How many places free context tokens can take: L − 1 beside a token that is anywhere itself, else L."""
        return "L-1" if self.signature.anchor == "I" else "L"

    @property
    def free(self) -> int:
        """How many context tokens have no fixed place: only these are counted by a binomial."""
        return self.signature.order - len(self.signature.places) if self.signature.distinct else 0

    @property
    def multiplier(self) -> sympy.Expr:
        """The sum of the terms' coefficients times m!, so that the signature of order m enters with binom(L−1, m)
        times it (binom(L, m) for trace-back).

        For the feed-forward model of the paper this is k·C_k·B_m(k), with B_m(k) = m!·S(k, m+1), k = degree.
        """
        total = sympy.Add(*self._coefficients())
        return sympy.nsimplify(total) if total.is_Rational else sympy.simplify(total)

    def _coefficients(self) -> list[sympy.Expr]:
        factor = math.factorial(self.free)
        return [Scalar(t.coefficient.rational * factor, t.coefficient.atoms).to_sympy() for t in self.terms]

    @property
    def multipliers(self) -> tuple[sympy.Expr, ...]:
        """What the table shows: the `multiplier`, or each term's where their sum is 0 although the terms are there."""
        if self.multiplier != 0:
            return (self.multiplier,)
        return tuple(dict.fromkeys(self._coefficients()))


@dataclass(frozen=True)
class Staircase:
    """The staircase of one parameter's equation, lowest steps first."""

    architecture: str
    parameter: str
    degree: Degree | None
    steps: tuple[Step, ...]

    def __iter__(self) -> Iterator[Step]:
        return iter(self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def rows(self) -> list[dict[str, str]]:
        """The table as strings, column by column."""
        rows = []
        for step in self.steps:
            m = step.signature.order
            binomial = f"·binom({step.positions},{step.free})" if step.free else ""
            rows.append(
                {
                    "part": step.part,
                    "signature": step.signature.name,
                    "order": str(m),
                    "degree": str(step.degree),
                    "also at": ", ".join(str(d) for d in step.all_degrees if d != step.degree) or "-",
                    "terms": str(len(step.terms)),
                    "multiplier": ", ".join(f"{multiplier}{binomial}" for multiplier in step.multipliers),
                    "weights": ", ".join(step.signature.weights) or "-",
                }
                | ({"path": step.path or "-", "branch": step.branch or "-"} if self._has_paths else {})
            )
        return rows

    @property
    def _has_paths(self) -> bool:
        return any(step.path or step.branch for step in self.steps)

    def to_text(self) -> str:
        """The table as aligned text."""
        reach = "everything kept" if self.degree is None else f"loss degree {self.degree}"
        head = f"staircase of d{self.parameter}/dt, {self.architecture}, {reach}"
        rows = self.rows()
        if not rows:
            return head + "\n(no term holds a token of its own: see the named quantities)"
        columns = list(rows[0])
        widths = {c: max(len(c), *(len(row[c]) for row in rows)) for c in columns}
        lines = [head, "  ".join(c.ljust(widths[c]) for c in columns).rstrip()]
        lines += ["  ".join(row[c].ljust(widths[c]) for c in columns).rstrip() for row in rows]
        apart = ", each by itself where the sum is 0" if any(len(step.multipliers) > 1 for step in self.steps) else ""
        lines.append(f"orders of L and more vanish; the multiplier is the sum of the terms' coefficients{apart}")
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """The table in Markdown."""
        rows = self.rows()
        if not rows:
            return "no term holds a token of its own\n"
        columns = list(rows[0])
        lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
        lines += ["| " + " | ".join(row[c].replace("|", "\\|") for c in columns) + " |" for row in rows]
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """The table as a LaTeX tabular."""
        lines = [r"\begin{tabular}{llrrrl}", r"part & signature & degree & also at & terms & multiplier \\ \hline"]
        for step, row in zip(self.steps, self.rows(), strict=True):
            binomial = rf" \binom{{{step.positions}}}{{{step.free}}}" if step.free else ""
            name = step.signature.name.replace("φ", r"\varphi").replace("α", r"\alpha").replace("·ψ", r"\,\psi")
            name = name.replace("ψ", r"\psi").replace("ν", r"\nu")
            multiplier = ", ".join(f"{sympy.latex(multiplier)}{binomial}" for multiplier in step.multipliers)
            lines.append(
                f"{row['part']} & ${name}$ & {row['degree']} & {row['also at']} & {row['terms']} & "
                rf"${multiplier}$ \\"
            )
        return "\n".join([*lines, r"\end{tabular}"]) + "\n"

    def to_json(self, indent: int | None = None) -> str:
        """The table as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False)

    def to_dict(self) -> dict[str, Any]:
        """The table as JSON-able values."""
        return {
            "architecture": self.architecture,
            "parameter": self.parameter,
            "degree": None if self.degree is None else str(self.degree),
            "steps": self.rows(),
        }


def staircase(equations: EvolutionEquations, parameter: str | None = None) -> Staircase:
    """The staircase of an embedding's equation, or of an unembedding's (trace-back signatures).

    **Arguments:** `parameter`: by default the first parameter that tokens look up.

    **Raises:** `UserError` when the parameter has neither an axis that tokens look up nor the axis of the labels.
    """
    candidates = [name for name, equation in equations.items() if {"token", "label"} & set(equation.axes)]
    name = parameter or next((name for name in candidates if "token" in equations[name].axes), None)
    if name is None or not {"token", "label"} & set(equations[name].axes):
        have = f"; those that have one: {', '.join(candidates)}" if candidates else ""
        raise UserError(f"a staircase needs a parameter with an axis 'token' or 'label'{have}")
    kind_of = signature_kind if "token" in equations[name].axes else trace_back_kind
    distinct = equations.distinct_positions()
    groups: dict[tuple[str, str, str, SignatureKind], list[Term]] = {}
    for term in distinct[name]:
        kind = kind_of(term, distinct.symbols, distinct[name].axes, True)
        if kind is not None:
            groups.setdefault((term.part, term.path, term.branch, kind), []).append(term)
    steps = []
    for (part, path, branch, kind), terms in groups.items():
        lowest = min(term.degree for term in terms)
        first = tuple(term for term in terms if term.degree == lowest)
        steps.append(Step(part, kind, lowest, first, tuple(sorted({t.degree for t in terms})), path, branch))
    steps.sort(key=lambda s: (s.part, s.path, s.branch, s.degree, s.signature))
    return Staircase(equations.architecture.name, name, equations.degree, tuple(steps))
