"""Writes README.md: the staircase table and the certificate of each architecture in this folder.

Run with: python examples/architectures/regenerate.py
"""

from __future__ import annotations

import re
from pathlib import Path

from compare.certificate import Certificate, certify
from theory.architectures import load
from theory.evolution import derive
from theory.language import Architecture

FOLDER = Path(__file__).parent
NAMES = ("gated_convolution", "bilinear_pooling", "relative_attention", "expert_mixture", "memory_slots")


def section(name: str) -> str:
    """What README.md says of one architecture."""
    return f"{description(name)}\n{summary(certify(architecture(name), degree=degree(name)))}\n"


def description(name: str) -> str:
    """An architecture in its own words, its formula and its table."""
    sentence, command, formula = _parts(name)
    table = derive(architecture(name), degree(name)).staircase().to_markdown()
    return (
        f"## [{name}]({name}.py)\n\n{sentence}\n\n`{formula}`\n\n"
        f"Staircase of dE/dt to loss degree {degree(name)} (`{command}`):\n\n{table}"
    )


def architecture(name: str) -> Architecture:
    """One of the architectures in this folder."""
    return load(f"{FOLDER / name}.py:{name}")


def degree(name: str) -> int:
    """The degree of the loss in the command that an architecture's file names."""
    return int(_parts(name)[1].rpartition("--degree ")[2])


def _parts(name: str) -> tuple[str, str, str]:
    """From an architecture's file: what it is, the command of its table, and its formula."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    header = re.match(r'"""(.*?)\n\nIts staircase: (.*?)\n"""', source, re.S)
    formula = re.search(r'    """(.*?)\.?"""', source)
    assert header is not None and formula is not None, f"{name}.py lacks its header or its formula"
    return header[1], header[2], formula[1]


def summary(certificate: Certificate) -> str:
    """The certificate in a few lines, without the measured errors, which differ from machine to machine."""
    assert certificate.passed, certificate.to_text()
    counts: dict[str, int] = {}
    for check in certificate.checks:
        counts[check.kind] = counts.get(check.kind, 0) + 1
    slopes = [f"{c.subject}: {c.expected}" for c in certificate.checks if c.kind == "slope"]
    lines = [
        f"Certificate: {len(certificate.checks)} checks, all passed.",
        "",
        f"- {counts['exact']} equations with everything kept equal automatic differentiation to 1e-10;",
        f"- {counts['taylor']} single degrees, expanded to loss degree {certificate.degree}, equal Taylor mode to 1e-10;",
        f"- powers of ε with which the relative error falls: {'; '.join(slopes)}.",
    ]
    return "\n".join([*lines, *(f"- {note}." for note in certificate.notes)])


def readme() -> str:
    """The text of README.md."""
    head = (
        "# Five architectures that no paper wrote down\n\n"
        "Each file holds one, in at most 25 lines; its equations, table and certificate come out of the engine. In the tables\n"
        "a signature φ_α^{y;m} joins the label with m context tokens of token α; `degree` is that of the right-hand side.\n\n"
        "Written by `python examples/architectures/regenerate.py`; a test checks that it is current.\n"
    )
    return "\n".join([head, *map(section, NAMES)])


if __name__ == "__main__":
    (FOLDER / "README.md").write_text(readme(), encoding="utf-8")
