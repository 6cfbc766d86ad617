"""Errata of the seed paper (arXiv 2608.30315): its printed formulas as data, beside what the engine derives.

Each formula is evaluated as printed, read literally, and compared with the terms of the derived equations that it claims to
equal, on random instances; the measured error alone decides the verdict. The paper's text is not at hand: formulas are
reconstructed from notes that restate them, and a record says so where its equation number or form is not certain.
"""

from theory.errata.records import Case, Correction, Finding, Instance, Measurement, PrintedFormula, examine
from theory.errata.table import RECORDS, Errata, check

__all__ = [
    "RECORDS",
    "Case",
    "Correction",
    "Errata",
    "Finding",
    "Instance",
    "Measurement",
    "PrintedFormula",
    "check",
    "examine",
]
