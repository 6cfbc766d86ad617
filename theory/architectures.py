"""The stock architectures: ordinary users of the language, with no privileges."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sympy

from theory.activations import Activation
from theory.errors import UserError, nearest
from theory.language import (
    Architecture,
    ParameterSpec,
    branch,
    causal,
    dot,
    elementwise,
    embed,
    last,
    module,
    rename,
    size,
    softmax,
    sqrt,
    total,
)

Function = str | sympy.Expr | Activation


def linear() -> Architecture:
    """f = U Σ_s w_{x_s}: the feed-forward model without its activation."""

    def linear(p, tokens):
        return dot(p.U, total(embed(p.E, tokens), over="position"), over="embed")

    return Architecture(linear, {"E": ("token", "embed"), "U": ("label", "embed")})


def feed_forward(activation: Function = "gelu") -> Architecture:
    """f = U σ(Σ_s w_{x_s}) (paper 2608.30315, §3.1)."""

    def feed_forward(p, tokens):
        h = total(embed(p.E, tokens), over="position")
        return dot(p.U, elementwise(h, activation), over="embed")

    return Architecture(feed_forward, {"E": ("token", "embed"), "U": ("label", "embed")})


def emb_mlp(activation: Function = "gelu") -> Architecture:
    """f = U σ(W Σ_s w_{x_s}): with a hidden layer (Emb-MLP of arXiv 2502.04375)."""

    def emb_mlp(p, tokens):
        h = dot(p.W, total(embed(p.E, tokens), over="position"), over="embed")
        return dot(p.U, elementwise(h, activation), over="hidden")

    return Architecture(emb_mlp, {"E": ("token", "embed"), "W": ("hidden", "embed"), "U": ("label", "hidden")})


def attention(positions: bool = False) -> Architecture:
    """f = U O Σ_s a_s V w_{x_s}, a = softmax_s((K w_{x_s})·(Q w_{x_L}) / √d), read at the last position (paper, §3.2).

    **Arguments:** `positions`: add learned position vectors to the embeddings.
    """

    def attention(p, tokens):
        x = embed(p.E, tokens)
        if positions:
            x = x + p.P
        q = dot(p.Q, last(branch(x, "query")), over="embed")
        k = dot(p.K, branch(x, "key"), over="embed")
        a = softmax(dot(q, k, over="key") / sqrt(size("embed")), over="position")
        v = dot(p.V, branch(x, "value"), over="embed")
        context = dot(p.O, dot(a, v, over="position"), over="value")
        return dot(p.U, context, over="embed")

    parameters: dict[str, tuple[str, ...] | ParameterSpec] = {
        "E": ("token", "embed"),
        "Q": ("key", "embed"),
        "K": ("key", "embed"),
        "V": ("value", "embed"),
        "O": ("embed", "value"),
        "U": ("label", "embed"),
    }
    if positions:
        parameters["P"] = ("position", "embed")
    return Architecture(attention, parameters)


def transformer(activation: Function = "gelu", blocks: int = 1) -> Architecture:
    """Residual causal blocks of attention and MLP, a label at every position, no normalisation (paper, §3.3)."""
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        raise UserError(f"a transformer has a whole number of blocks of at least 1, found {blocks}")

    def transformer(p, tokens):
        x = embed(p.E, tokens)
        for n in range(1, blocks + 1):
            q = rename(dot(p[f"Q{n}"], branch(x, "query"), over="embed"), position="query")
            k = dot(p[f"K{n}"], branch(x, "key"), over="embed")
            scores = dot(q, k, over="key") / sqrt(size("key"))
            a = softmax(scores, over="position", mask=causal("query"))
            v = dot(p[f"V{n}"], branch(x, "value"), over="embed")
            mixed = rename(dot(a, v, over="position"), query="position")
            x = x + module(dot(p[f"O{n}"], mixed, over="value"), f"attention {n}")
            h = dot(p[f"W{n}"], branch(x, "mlp"), over="embed")
            x = x + module(dot(p[f"M{n}"], elementwise(h, activation), over="hidden"), f"mlp {n}")
        return dot(p.U, x, over="embed")

    parameters: dict[str, tuple[str, ...] | ParameterSpec] = {"E": ("token", "embed")}
    for n in range(1, blocks + 1):
        parameters |= {
            f"Q{n}": ("key", "embed"),
            f"K{n}": ("key", "embed"),
            f"V{n}": ("value", "embed"),
            f"O{n}": ("embed", "value"),
            f"W{n}": ("hidden", "embed"),
            f"M{n}": ("embed", "hidden"),
        }
    parameters["U"] = ("label", "embed")
    return Architecture(transformer, parameters)


STOCK: dict[str, Callable[..., Architecture]] = {
    f.__name__: f for f in (linear, feed_forward, emb_mlp, attention, transformer)
}


def load(name: str, **options: Any) -> Architecture:
    """A stock architecture by name, or the user's own as `file.py:function`.

    **Arguments:** `name`; `options`: passed to the function, e.g. `activation="tanh"`. A user's function returns an
    `Architecture`; a module-level `Architecture` object may be named as well.

    **Raises:** `UserError` for an unknown name, file, function or option.
    """
    if ":" in name:
        path, _, attribute = name.rpartition(":")
        found = _from_file(Path(path), attribute)
        if isinstance(found, Architecture):
            if options:
                raise UserError(f"{name} is an architecture already and takes no option '{sorted(options)[0]}'")
            return found
        function = found
    elif name in STOCK:
        function = STOCK[name]
    else:
        hint = f"; for your own file write {name}:FUNCTION" if name.endswith(".py") else ""
        raise UserError(f"unknown architecture '{name}': {nearest(name, STOCK)}{hint}")
    if not callable(function):
        raise UserError(f"{name} is neither an Architecture nor a function that returns one")
    known = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    for option in options:
        if option not in known and not takes_any:
            raise UserError(f"{name} takes no option '{option}': {nearest(option, known)}")
    result = function(**options)
    if not isinstance(result, Architecture):
        raise UserError(f"{name} must return an Architecture, but returned {type(result).__name__}")
    return result


def _from_file(path: Path, attribute: str) -> Any:
    if not path.is_file():
        raise UserError(f"there is no file '{path}' to read the architecture '{attribute}' from")
    spec = importlib.util.spec_from_file_location(f"_architecture_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"'{path}' is not a Python file")
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    try:
        spec.loader.exec_module(loaded)
    except SyntaxError as error:
        raise UserError(f"{path}:{error.lineno}: {error.msg}") from error
    except ImportError as error:
        raise UserError(f"{path}: {error}") from error
    if not hasattr(loaded, attribute):
        names = [n for n in vars(loaded) if not n.startswith("_")]
        raise UserError(f"{path} defines no '{attribute}': {nearest(attribute, names)}")
    return getattr(loaded, attribute)
