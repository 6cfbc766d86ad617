"""Files to begin with: an architecture that derives and certifies as it stands, an experiment that runs as it stands."""

from __future__ import annotations

import keyword
from pathlib import Path

from theory.errors import UserError, argument

ARCHITECTURE = '''"""{name}: say in one line what is new about it.

Try it with

    staircase derive {file}:{name} --degree 4      its equations, up to degree 4 of the loss
    staircase table {file}:{name}                  which signature enters at what degree
    staircase certify {file}:{name}                its equations against automatic differentiation
"""

from theory.language import Architecture, dot, elementwise, embed, last, mean, module


def {name}(activation="tanh"):
    """f = U (x + M σ(W x)), x = w at the last position + the mean of w: replace this by your own formula.

    Options such as `activation` are set by `--activation gelu` or `--option activation=gelu`.
    """

    def {name}(p, tokens):
        # Every axis has a name. `embed` looks up a row of a table (axes token, …) at each position.
        x = embed(p.E, tokens)  # position, embed
        x = last(x) + mean(x, over="position")  # embed
        # `dot` sums the axes named in over= and aligns all others.
        h = dot(p.W, x, over="embed")  # hidden
        # `module` names what is added to the stream, so that `--paths` can tell its terms apart.
        x = x + module(dot(p.M, elementwise(h, activation), over="hidden"), "mlp")
        # Logits have the axis label, or position and label where every position has a label.
        return dot(p.U, x, over="embed")

    # The sizes of token, label and position come from the data, all others from the [sizes] of an experiment.
    # parameter("token", "embed", weight=0) declares one that does not start small (default: weight 1, θ ~ ε).
    return Architecture(
        {name},
        {{
            "E": ("token", "embed"),
            "W": ("hidden", "embed"),
            "M": ("embed", "hidden"),
            "U": ("label", "embed"),
        }},
    )
'''

EXPERIMENT = """# {name}: say in one line what it asks.
# Integrate the flows:              staircase simulate {file}
# Train beside them and compare:    staircase compare {file}
title = "{name}"

[architecture]
name = "feed_forward"        # a stock name (see `staircase list`), or "file.py:function" beside this file
activation = "gelu"          # options of the architecture

[sizes]
embed = 16                   # the axes that the data do not decide

[data]
task = "add"                 # see `staircase list`
numbers = 6                  # options of the task: labels are sums of two numbers from 1 to 6
length = 2

[initial]
gamma = 0.8                  # W_ij ~ N(0, d_in^(-2 gamma)); above 1/2 is small
seed = 0

[flow]
kinds = ["exact", "cut-logits"]  # also "kept-prediction" and "expanded"
degree = 4                   # of the loss, for every kind but "exact"
until = 20.0                 # time = learning rate × step; or "half-loss", with max_time

[save]
count = 41                   # this many times from 0 to the end

[sgd]
learning_rate = 0.1
batch = "full"

# What you expect, with a threshold fixed before the run; repeat for more claims.
[claims.flow-predicts-training]
measure = "worst-relative-error"
flow = "exact"
parameter = "E"
comparison = "<="
threshold = 0.05
"""


def architecture_file(name: str, output: Path | None = None) -> tuple[Path, str]:
    """The path and the text of a new architecture's file, NAME.py by default.

    **Raises:** `UserError` for a name that Python does not take, and for a file that is there already.
    """
    _check_name(name)
    path = output or Path(f"{name}.py")
    _check_absent(path)
    return path, ARCHITECTURE.format(name=name, file=path)


def experiment_file(name: str, output: Path | None = None) -> tuple[Path, str]:
    """The path and the text of a new experiment's file, NAME.toml by default; raises as `architecture_file` does."""
    if not name or not all(c.isalnum() or c in "_-" for c in name):
        raise UserError(f"an experiment's name is made of letters, digits, - and _, found {name!r}")
    path = output or Path(f"{name}.toml")
    _check_absent(path)
    return path, EXPERIMENT.format(name=name, file=path)


def _check_name(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        reason = "a word of Python's own" if keyword.iskeyword(name) else "not a Python identifier"
        fixed = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        fixed = f"{fixed}_" if keyword.iskeyword(fixed) else fixed
        hint = f"; {fixed!r} would do" if fixed.isidentifier() else ""
        raise UserError(f"an architecture is named like a Python function, and {name!r} is {reason}{hint}")
    if name in {"p", "tokens", "activation", "Architecture", "dot", "elementwise", "embed", "last", "mean", "module"}:
        raise UserError(f"{name!r} is a name that the new file uses for something else; choose another")


def _check_absent(path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise UserError(
            f"{str(path)!r} is there already and is not overwritten; choose another with {argument('output', 'FILE')}"
        )
