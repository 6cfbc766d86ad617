"""Similarity matrices side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from compare.figures.style import COLOUR_MAP, short_name
from compare.similarity import pairs, pearson_correlation


def similarity_matrices(
    axes: Sequence[Axes], matrices: Sequence[tuple[str, np.ndarray]], token_names: Sequence[str]
) -> Sequence[Axes]:
    """Cosine matrices side by side on one colour scale. The first is the signature's; the title of
    each other one gives its Pearson correlation with it over a < b (1 − MSE where undefined)."""
    target = pairs(matrices[0][1])
    lowest = min(float(matrix.min()) for _, matrix in matrices)
    image = None
    for ax, (name, matrix) in zip(axes, matrices, strict=True):
        image = ax.imshow(matrix, vmin=lowest, vmax=1.0, cmap=COLOUR_MAP)
        title = name
        if matrix is not matrices[0][1]:
            found = pairs(matrix)
            if np.ptp(target) > 1e-12 and np.ptp(found) > 1e-12:
                title += f"\nPearson {pearson_correlation(found, target):.4f}"
            else:
                title += f"\n1 − MSE {1 - np.mean((found - target) ** 2):.4f}"
        ax.set_title(title, fontsize="medium", parse_math=False)
        step = max(1, math.ceil(len(token_names) / 10))
        ticks = range(0, len(token_names), step)
        names = [short_name(token_names[i]) for i in ticks]
        ax.set_xticks(ticks, names, rotation=90, fontsize="small", parse_math=False)
        ax.set_yticks(ticks, names, fontsize="small", parse_math=False)
    figure = axes[-1].get_figure()
    assert figure is not None and image is not None
    figure.colorbar(image, ax=list(axes), label="cosine", shrink=0.8)
    return axes
