"""`check`: every printed formula examined, and the table of what came out."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from theory.errata import attention, feed_forward, transformer
from theory.errata.records import Finding, Measurement, PrintedFormula, examine
from theory.errors import UserError, nearest

RECORDS: tuple[PrintedFormula, ...] = (*feed_forward.RECORDS, *attention.RECORDS, *transformer.RECORDS)

SCHEMA = "context-staircase/errata"
VERSION = 1

_HEADLINE = "printed formulas of arXiv 2608.30315 against the derived equations"
_LATEX_CHARACTERS = {
    "α": r"$\alpha$", "γ": r"$\gamma$", "ε": r"$\varepsilon$", "σ": r"$\sigma$", "φ": r"$\varphi$", "ψ": r"$\psi$",
    "ν": r"$\nu$", "≥": r"$\geq$", "≤": r"$\leq$", "≠": r"$\neq$", "−": "$-$", "·": r"$\cdot$", "→": r"$\to$", "ᵀ": r"$^\top$",
    "²": "$^2$", "³": "$^3$", "¹": "$^1$", "…": r"\dots{}", "–": "--", "‖": r"$\Vert$", "_": r"\_", "^": r"\^{}",
    "{": r"\{", "}": r"\}", "&": r"\&", "%": r"\%", "#": r"\#",
}  # fmt: skip


@dataclass(frozen=True)
class Errata:
    """The findings of one run, in the order of the paper."""

    seed: int
    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, name: str) -> Finding:
        for finding in self.findings:
            if finding.record.name == name:
                return finding
        raise UserError(f"no formula is called '{name}'; {nearest(name, [f.record.name for f in self.findings])}")

    @property
    def flagged(self) -> tuple[Finding, ...]:
        """The formulas that are not right as they stand."""
        return tuple(finding for finding in self.findings if finding.flagged)

    @property
    def unexplained(self) -> tuple[Finding, ...]:
        """Flagged formulas without a remark, or whose correction does not agree with the derived equations either."""
        return tuple(finding for finding in self.findings if not finding.explained)

    def to_text(self) -> str:
        """A table of all formulas, then what is to be said of those that are flagged."""
        rows = [("formula", "equation", "error", "corrected", "verdict")]
        rows += [(f.record.place, f.record.equation, _error(f), _corrected(f), f.verdict) for f in self.findings]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = [f"{_HEADLINE}, seed {self.seed}"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        for finding in self.flagged:
            record = finding.record
            lines += ["", f"{record.place}: {_remark(finding)}"]
            lines += [f"  printed {_values(m.printed)}, derived {_values(m.derived)}" for m in _with_values(finding)]
            if whole := _range([m.of_whole for m in finding.telling]):
                lines.append(f"  error relative to the whole equation: {whole}")
            lines.append(f"  derived: {record.terms}")
            if record.note:
                lines.append(f"  {record.note}")
        return "\n".join(lines)

    def to_markdown(self) -> str:
        """The table printed / derived / numerical error / remark, formulas in LaTeX."""
        lines = [
            f"**{_HEADLINE[0].upper()}{_HEADLINE[1:]}, seed {self.seed}**",
            "",
            "| formula | equation | printed | derived | numerical error | verdict | remark |",
            "| --- | --- | --- | --- | --- | --- | --- |",
        ]
        for finding in self.findings:
            record = finding.record
            right = "as printed"
            error = _error(finding)
            if finding.flagged and record.correction is not None:
                right = f"${record.correction.latex}$"
                error += f"; corrected {_corrected(finding)}"
            cells = (
                record.place,
                record.equation,
                f"${record.latex}$",
                right,
                error,
                finding.verdict,
                " ".join(filter(None, (_remark(finding), record.note))),
            )
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines) + "\n"

    def to_latex(self) -> str:
        """A tabular of all formulas, then the formulas as printed and as derived; needs amsmath and amssymb."""
        lines = [
            f"% {_HEADLINE}, seed {self.seed}",
            r"\begin{tabular}{p{.3\linewidth}p{.2\linewidth}llp{.2\linewidth}}",
            r"formula & equation & error & corrected & verdict \\ \hline",
        ]
        for f in self.findings:
            cells = (f.record.place, f.record.equation, _error(f), _corrected(f), f.verdict)
            lines.append(" & ".join(map(_escaped, cells)) + r" \\")
        lines += [r"\end{tabular}", ""]
        for finding in self.findings:
            record = finding.record
            lines += [
                rf"\paragraph{{{_escaped(record.place)}}} {_escaped(record.equation)}, {_escaped(finding.verdict)}."
            ]
            lines += [r"\[", f"  {record.latex}", r"\]"]
            if finding.flagged:
                lines.append(_escaped(_remark(finding)))
                if record.correction is not None:
                    lines += [r"\[", f"  {record.correction.latex}", r"\]"]
            if record.note:
                lines.append(_escaped(record.note))
            lines.append("")
        return "\n".join(lines)

    def to_json(self, indent: int | None = None) -> str:
        """The findings as JSON (schema "context-staircase/errata"); an error that is not finite is null."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """The same as JSON-able values."""
        return {"schema": SCHEMA, "version": VERSION, "seed": self.seed, "formulas": [_entry(f) for f in self.findings]}


def check(seed: int = 0, records: Sequence[PrintedFormula] = RECORDS) -> Errata:
    """Compare printed formulas with the derived equations on random instances.

    **Arguments:** `seed`: a whole number of at least 0; `records`: by default all.

    **Returns:** `Errata`: per formula its errors, and the verdict that follows from them.

    **Raises:** `UserError` for a seed that is no whole number of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"a seed is a whole number of at least 0, found {seed}")
    return Errata(seed, tuple(examine(record, seed) for record in records))


def _entry(finding: Finding) -> dict[str, Any]:
    record = finding.record
    return {
        "name": record.name,
        "place": record.place,
        "equation": record.equation,
        "printed": record.latex,
        "derived": record.correction.latex if finding.flagged and record.correction is not None else None,
        "derived_from": record.terms,
        "metric": record.metric,
        "bound": record.bound,
        "verdict": finding.verdict,
        "flagged": finding.flagged,
        "explained": finding.explained,
        "remark": _remark(finding),
        "note": record.note,
        "instances": [
            {
                "condition": m.condition,
                "error": _finite(m.error),
                "corrected_error": _finite(m.corrected),
                "error_of_whole": _finite(m.of_whole),
                "printed_values": list(m.printed),
                "derived_values": list(m.derived),
            }
            for m in finding.measurements
        ],
    }


def _remark(finding: Finding) -> str:
    """The remark, which explains a flag and hence stands only where there is one."""
    if not finding.flagged:
        return ""
    return (
        finding.record.remark if finding.explained else "UNEXPLAINED: no correction agrees with the derived equations."
    )


def _error(finding: Finding) -> str:
    return _range([m.error for m in finding.telling])


def _corrected(finding: Finding) -> str:
    errors = [m.corrected for m in finding.measurements if m.corrected is not None]
    return f"{max(errors):.1e}" if finding.flagged and errors else "-"


def _range(errors: Sequence[float | None]) -> str:
    known = [error for error in errors if error is not None]
    if not known:
        return ""
    low, high = f"{min(known):.1e}", f"{max(known):.1e}"
    return high if low == high or float(high) < 1e-9 else f"{low} – {high}"


def _with_values(finding: Finding) -> list[Measurement]:
    return [m for m in finding.telling if m.printed]


def _values(values: Sequence[float]) -> str:
    # Exponents and counts come out of floating point; nine digits show them as what they are.
    return "(" + ", ".join(f"{round(value, 9) + 0.0:.9g}" for value in values) + ")"


def _finite(error: float | None) -> float | None:
    return error if error is not None and math.isfinite(error) else None


def _escaped(text: str) -> str:
    return "".join(_LATEX_CHARACTERS.get(character, character) for character in text)
