"""Figures of prediction over training, ready to print. Every function draws on the axes it is given and returns them, and
every figure prints the numbers it shows; each works on anybody's trajectories.

Only matplotlib's object interface with the Agg and SVG canvases is used: no window, no global state. `save` writes PNG and
SVG whose bytes depend on the figure alone. The figures of a run of `staircase compare` are made by `compare.drawing`.
"""

from matplotlib.figure import Figure

from compare.figures.components import components
from compare.figures.files import canvas, png, save, svg
from compare.figures.matrices import similarity_matrices
from compare.figures.over_time import correlation, loss, norms, relative_error
from compare.figures.slopes import initial_scale_error, learning_rate_error
from compare.figures.staircase import staircase
from compare.figures.style import PREDICTED, TRAINED, Style, Styles, styles

__all__ = [
    "PREDICTED",
    "TRAINED",
    "Figure",
    "Style",
    "Styles",
    "canvas",
    "components",
    "correlation",
    "initial_scale_error",
    "learning_rate_error",
    "loss",
    "norms",
    "png",
    "relative_error",
    "save",
    "similarity_matrices",
    "staircase",
    "styles",
    "svg",
]
