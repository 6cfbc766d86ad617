"""One self-contained HTML page about a run: the question, the equations, the numbers, and figures to move through."""

from compare.report.formulas import mathml
from compare.report.interactive import interactive_data
from compare.report.page import ReportFigure, render

__all__ = ["ReportFigure", "interactive_data", "mathml", "render"]
