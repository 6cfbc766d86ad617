"""Predicted and trained embeddings in one frame of principal components."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from compare.figures.style import TRAINED, Styles, finish, short_name, styles
from compare.spectra import principal_components, procrustes

# So many names can be read at once.
_NAMED = 24


def components(
    ax: Axes,
    trained: tuple[str, np.ndarray],
    predictions: Sequence[tuple[str, np.ndarray]],
    token_names: Sequence[str],
    *,
    lines: Styles | None = None,
) -> Axes:
    """The first two principal components of the trained embeddings, and predicted ones in the same frame.

    Each prediction is moved onto the trained embeddings by an orthogonal Procrustes alignment (shift and rotation, no
    scale) in all its dimensions before it is projected; the legend gives the residual, ‖aligned − trained‖² relative to
    the spread of the trained ones, and the axes the share of variance that they explain. Thin lines join a token's two
    places.

    **Arguments:** `trained` and `predictions`: (name, rows (token, width)), rows in the order of `token_names`; `lines`:
    see `compare.figures.styles`.

    **Raises:** `UserError` for rows that are all the same, of other shapes or not finite.
    """
    own_name, own = trained
    own = np.asarray(own, dtype=np.float64)
    found = principal_components(own, count=2)
    chosen = styles(name for name, _ in predictions) if lines is None else lines
    ax.scatter(*found.scores.T, s=60, color=TRAINED, alpha=0.6, linewidths=0, label=f"{own_name} (trained)")
    residuals = []
    for name, rows in predictions:
        moved = procrustes(own, rows)
        places = (moved.aligned - found.mean) @ found.directions.T
        color = chosen[name].color
        both = np.stack([found.scores, places])
        ax.plot(both[..., 0], both[..., 1], color=color, linewidth=0.6)
        ax.scatter(
            *places.T, s=22, marker="x", color=color, linewidths=1.2, label=f"{name}: residual {moved.residual:.3g}"
        )
        residuals.append(f"{moved.residual:.3g}")
    # Where there are too many, those farthest out: the others lie on each other.
    for i in np.argsort(-np.linalg.norm(found.scores, axis=1), kind="stable")[:_NAMED]:
        name, (x, y) = short_name(token_names[int(i)]), found.scores[i]
        ax.annotate(name, (x, y), xytext=(5, 4), textcoords="offset points", fontsize="x-small", parse_math=False)
    ax.margins(0.08)
    shares = [f"{share:.1%} of the variance" for share in found.explained]
    title = "Embeddings, principal components of the trained ones"
    if residuals:
        title += f"\nProcrustes-aligned; residual {', '.join(residuals)}"
    finish(ax, f"component 1 ({shares[0]})", f"component 2 ({shares[1]})", title)
    return ax
