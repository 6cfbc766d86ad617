"""The stock architectures: ordinary users of the language, with no privileges."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

import sympy

from theory.activations import Activation
from theory.errors import UserError, argument, nearest, one_of
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
from theory.python_files import failures_told, functions_of, load_file

if TYPE_CHECKING:
    from theory.data.dataset import Dataset

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
    if not isinstance(positions, bool):
        raise UserError(f"the option positions of attention is true or false, found {positions!r}")

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
    `Architecture`; a module-level `Architecture` object may be named as well. Unless it was given a name of its own, or its
    function is called so already, output calls it `file.py:function`.

    **Raises:** `UserError` for an unknown name, file, function or option, and for whatever fails in the user's file.
    """
    if name in STOCK:
        function, others = STOCK[name], {}
    else:
        path, attribute = _split(name)
        defined = load_file(path)
        others = _architectures(defined)
        function = _attribute(defined, path, attribute)
        if isinstance(function, Architecture):
            if options:
                raise UserError(f"{name} is an architecture already and takes no option {sorted(options)[0]!r}")
            return function.called(f"{path.name}:{attribute}", attribute)
        if not inspect.isroutine(function):
            raise UserError(
                f"{name} is neither an Architecture nor a function that returns one{_instead(name, others)}"
            )
    known = inspect.signature(function).parameters
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    _check_factory(name, function, options, others)
    for option in options:
        if option not in known and not takes_any:
            choice = nearest(option, known) if known else "it takes none"
            raise UserError(f"{name} takes no option {option!r}; {choice}")
    with failures_told(name):
        result = function(**options)
    if not isinstance(result, Architecture):
        raise UserError(
            f"{name} must return an Architecture, but returned {type(result).__name__}{_instead(name, others)}"
        )
    return result if name in STOCK else result.called(f"{path.name}:{attribute}", attribute)


class Predicts(Protocol):
    """Whatever has a name and predicts one label per sequence or per position."""

    @property
    def name(self) -> str: ...
    @property
    def labels_per_position(self) -> bool: ...


def check_labels(architecture: Predicts, dataset: Dataset) -> None:
    """Refuse a dataset whose labels are not what an architecture predicts.

    **Raises:** `UserError` naming the stock architectures that would fit.
    """
    if architecture.labels_per_position == dataset.labels_per_position:
        return
    have, want = ("position", "sequence") if dataset.labels_per_position else ("sequence", "position")
    fitting = [name for name, make in STOCK.items() if make().labels_per_position == dataset.labels_per_position]
    raise UserError(
        f"{dataset.name} has one label per {have}, but {architecture.name} predicts one per {want}; with one per {have} there "
        f"{'is' if len(fitting) == 1 else 'are'} {', '.join(fitting)}"
    )


def _split(name: str) -> tuple[Path, str]:
    """File and attribute of a reference `file.py:attribute`."""
    if ":" in name:
        path, _, attribute = name.rpartition(":")
        return Path(path), attribute
    if not name.endswith(".py"):
        raise UserError(f"unknown architecture {name!r}; {nearest(name, STOCK)}")
    defined = load_file(name)
    raise UserError(f"{name} is a file and not an architecture in it{_instead(name, _choices(defined))}")


def _architectures(defined: ModuleType) -> dict[str, Architecture]:
    return {name: value for name, value in vars(defined).items() if isinstance(value, Architecture)}


def _choices(defined: ModuleType) -> list[str]:
    """What of a file could be meant: its architectures, and its functions save those that architectures are made of."""
    architectures = _architectures(defined)
    used = [architecture.function for architecture in architectures.values()]
    return [*architectures, *(name for name, value in functions_of(defined).items() if value not in used)]


def _attribute(defined: ModuleType, path: Path, attribute: str) -> Any:
    if not hasattr(defined, attribute):
        raise UserError(f"{path} defines no {attribute!r}; {nearest(attribute, _choices(defined))}")
    return getattr(defined, attribute)


def _instead(name: str, choices: Iterable[str]) -> str:
    """The architectures of a file that could have been meant, as the end of a sentence."""
    path = name.partition(".py")[0] + ".py"
    names = [f"{path}:{choice}" for choice in choices]
    if not names:
        return ""
    return f"; write {names[0]}" if len(names) == 1 else f"; {one_of(names)}"


def _check_factory(
    name: str, function: Callable[..., Any], options: Mapping[str, Any], others: Mapping[str, Architecture]
) -> None:
    """Refuse a function of logits where one that returns an Architecture is meant, and a missing option."""
    missing = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in options
    ]
    made = [key for key, architecture in others.items() if architecture.function is function]
    if made or len(missing) == 2:
        rest = (
            _instead(name, made or others)
            or f"; write model = Architecture({name.rpartition(':')[2]}, …) and name that"
        )
        raise UserError(f"{name} is a function of ({', '.join(missing)}) and not the Architecture made of it{rest}")
    if missing:
        raise UserError(f"{name} needs the option {missing[0]!r}: {argument(missing[0], '…', of='architecture')}")
