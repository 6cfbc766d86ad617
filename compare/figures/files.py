"""Figures made and written: sizes, PNG and SVG."""

from __future__ import annotations

import io
import os
import warnings
from pathlib import Path

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def canvas(columns: int = 1, *, rows: int = 1, width: float = 6.0, height: float = 4.2) -> tuple[Figure, list]:
    """A figure with `columns` axes side by side and `rows` below each other, sized in inches for each; axes row by row."""
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(rows, columns, i + 1) for i in range(columns * rows)]


def png(figure: Figure, *, dpi: int = 144) -> bytes:
    """The figure as PNG bytes."""
    return _render(figure, "png", {"Software": None}, dpi)


def svg(figure: Figure) -> bytes:
    """The figure as SVG bytes, the same for the same figure: fixed element ids and no date."""
    return _render(figure, "svg", {"Date": None, "Creator": None})


def save(figure: Figure, directory: str | os.PathLike[str], name: str) -> list[Path]:
    """Write `name`.png and `name`.svg into `directory`, each by rename."""
    written = []
    for suffix, content in ((".png", png(figure)), (".svg", svg(figure))):
        path = Path(directory) / f"{name}{suffix}"
        temporary = path.with_name(f".{path.name}.partial")
        temporary.write_bytes(content)
        temporary.replace(path)
        written.append(path)
    return written


def _render(figure: Figure, kind: str, metadata: dict[str, None], dpi: int = 72) -> bytes:
    buffer = io.BytesIO()
    with (
        matplotlib.rc_context({"svg.hashsalt": "context-staircase", "svg.fonttype": "path"}),
        warnings.catch_warnings(),
    ):
        # A letter that no font has is drawn as a box, which says as much.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, metadata=metadata, dpi=dpi)
    return buffer.getvalue()
