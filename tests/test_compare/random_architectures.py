"""Random well-typed architectures, composed from the language as source text, so that a failure prints what reproduces it.

A draft keeps a pool of values with known axes. Each step draws a word that fits some of them; at the end one value is read
out to logits, and only the lines and parameters that it depends on are kept.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import sympy
from hypothesis import strategies as st

import theory.language as lang
from theory.language import Architecture

FEATURES = ("embed", "hidden", "head")
SMOOTH = (
    "'tanh'", "'gelu'", "'silu'", "'sin'", "'quadratic'", "'softplus'", "'sigmoid'", "'square'", "'cube'",
    "z*exp(-z**2) + z**3", "z/(1 + z**2)", "log(1 + z + z**2)",
)  # fmt: skip
MASKS = ("None", "causal('query')", "window('query', width=2)", "constant('blocks', ('query', 'position'), blocks)")


def blocks(sizes: dict[str, int]) -> np.ndarray:
    """Positions see their own pair of positions and the first one."""
    pair, first = np.arange(sizes["query"]) // 2, np.arange(sizes["position"]) == 0
    return ((pair[:, None] == pair[None, :]) | first[None, :]).astype(float)


def ramp(sizes: dict[str, int]) -> np.ndarray:
    """A weight for each position."""
    return 1.0 + np.arange(sizes["position"]) / 3


@dataclass(frozen=True)
class Value:
    """A line of the draft: its name, its axes and the lines and parameters that it depends on."""

    name: str
    axes: tuple[str, ...]
    lines: frozenset[int]
    parameters: frozenset[str]

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(a for a in self.axes if a in FEATURES)


@dataclass(repr=False)
class Drawn:
    """An architecture with the source that made it, and what to try it on."""

    source: str
    architecture: Architecture
    sizes: dict[str, int]
    loss: str
    seed: int

    def __repr__(self) -> str:
        return f"\n{self.source}\n# sizes {self.sizes}, loss {self.loss}, seed {self.seed}\n"


@dataclass
class _Draft:
    draw: Callable
    lines: list[tuple[str, str]] = field(default_factory=list)
    specs: dict[str, str] = field(default_factory=dict)
    pool: list[Value] = field(default_factory=list)

    def choose(self, choices: Iterable):
        return self.draw(st.sampled_from(tuple(choices)))

    def chance(self, out_of: int) -> bool:
        return self.draw(st.integers(1, out_of)) == out_of

    def put(self, source: str, axes: Iterable[str], *inputs: Value, new: dict[str, str] | None = None) -> Value:
        name = f"v{len(self.lines)}"
        self.specs |= new or {}
        lines = frozenset({len(self.lines)}).union(*(v.lines for v in inputs))
        parameters = frozenset(new or {}).union(*(v.parameters for v in inputs))
        self.lines.append((name, source))
        value = Value(name, tuple(axes), lines, parameters)
        self.pool.append(value)
        return value

    def fresh(self, letter: str) -> str:
        return f"{letter}{1 + sum(name.startswith(letter) for name in self.specs)}"

    def some(self, condition: Callable[[Value], bool]) -> Value | None:
        found = [v for v in self.pool if condition(v)]
        # Recent values are likelier, so that compositions become deep.
        return self.choose(found[-2:] if not self.chance(4) else found) if found else None

    def is_rich(self, value: Value) -> bool:
        """Whether a value holds two nonlinearities and a contraction over positions."""
        sources = [self.lines[n][1] for n in value.lines]
        nonlinear = sum(source.count(word) for source in sources for word in ("softmax(", "elementwise(", "_norm("))
        contracted = any(word in source for source in sources for word in ("over='position'", "over='query'"))
        return nonlinear >= 2 and contracted

    # -- words ---------------------------------------------------------------------------------------------------------

    def linear(self) -> None:
        v = self.some(lambda v: bool(v.features) and len(v.axes) <= 3)
        if v is None:
            return
        axis = self.choose(v.features)
        to = self.choose(a for a in FEATURES if a == axis or a not in v.axes)
        name = self.fresh("W")
        if to == axis:
            spec = f"parameter('{axis}', {axis}_in='{axis}')"
            source = f"dot(p.{name}, rename({v.name}, {axis}='{axis}_in'), over='{axis}_in')"
        else:
            spec, source = f"('{to}', '{axis}')", f"dot(p.{name}, {v.name}, over='{axis}')"
        axes = (*(a for a in v.axes if a != axis), to)
        out = self.put(source, axes, v, new={name: spec})
        if self.chance(4):
            bias = self.fresh("b")
            weight = self.choose((0, 1, 1, 2))
            self.put(f"{out.name} + p.{bias}", axes, out, new={bias: f"parameter('{to}', weight={weight})"})

    def function(self) -> None:
        v = self.some(lambda v: bool(v.axes))
        assert v is not None
        function = "'relu'" if self.chance(12) else self.choose(SMOOTH)
        self.put(f"elementwise({v.name}, {function})", v.axes, v)

    def product(self) -> None:
        v = self.some(lambda v: True)
        assert v is not None
        w = self.some(lambda w: len({*v.axes, *w.axes}) <= 3)
        if w is not None:
            self.put(f"{v.name} * {w.name}", (*v.axes, *(a for a in w.axes if a not in v.axes)), v, w)

    def sum(self) -> None:
        v = self.some(lambda v: True)
        assert v is not None
        w = self.some(lambda w: w is not v and set(w.axes) <= set(v.axes))
        if w is not None:
            sign = self.choose("+-")
            source = f"{v.name} {sign} {w.name}"
            if self.chance(3):
                source = f"{v.name} {sign} module({w.name}, 'module {len(self.lines)}')"
            self.put(source, v.axes, v, w)

    def contraction(self) -> None:
        v = self.some(lambda v: bool(v.axes))
        assert v is not None
        axis = self.choose(v.axes)
        w = self.some(lambda w: axis in w.axes and len({*v.axes, *w.axes}) <= 4)
        if w is not None:
            axes = dict.fromkeys((*v.axes, *w.axes))
            self.put(f"dot({v.name}, {w.name}, over='{axis}')", (a for a in axes if a != axis), v, w)

    def reduction(self) -> None:
        v = self.some(lambda v: "position" in v.axes)
        if v is None:
            return
        source = self.choose(
            (
                f"total({v.name}, over='position')", f"mean({v.name}, over='position')", f"last({v.name})",
                f"select({v.name}, 'position', 'first')",
            )
        )  # fmt: skip
        self.put(source, (a for a in v.axes if a != "position"), v)

    def positional(self) -> None:
        v = self.some(lambda v: "position" in v.axes)
        if v is None:
            return
        word = self.choose(("shift", "ramp", "learned", "rotary"))
        if word == "shift":
            self.put(f"shift({v.name}, {self.choose((1, 2))})", v.axes, v)
        elif word == "ramp":
            self.put(f"{v.name} * constant('ramp', ('position',), ramp)", v.axes, v)
        elif word == "learned":
            axis, name = self.choose((*v.features, None)), self.fresh("P")
            spec = "('position',)" if axis is None else f"('position', '{axis}')"
            self.put(f"{v.name} + p.{name}", v.axes, v, new={name: spec})
        elif v.features:
            self.put(f"rotary({v.name}, '{self.choose(v.features)}', base=7.0)", v.axes, v)

    def attention(self) -> None:
        v = self.some(lambda v: "position" in v.axes and bool(v.features) and len(v.axes) <= 3)
        if v is None:
            return
        axis = self.choose(v.features)
        shared = lambda w: "position" in w.axes and axis in w.axes and set(w.axes) <= set(v.axes)  # noqa: E731
        w = self.some(shared) or v
        scores = f"dot(rename({v.name}, position='query'), {w.name}, over='{axis}')"
        new: dict[str, str] = {}
        if self.chance(3):
            scores += f" / sqrt(size('{axis}'))"
        if self.chance(4):
            name = self.fresh("R")
            new[name] = f"parameter('distance', weight={self.choose((0, 1, 1))})"
            scores += f" + relative(p.{name}, 'distance', 'query')"
        weights = f"softmax({scores}, over='position', mask={self.choose(MASKS)})"
        if self.chance(6):
            weights = f"({scores}) / size('position')"
        carried = lambda u: "position" in u.axes and len({*u.axes, *v.axes}) <= 4  # noqa: E731
        u = self.some(carried) or v
        mixed = f"dot({weights}, {u.name}, over='position')"
        axes = tuple(dict.fromkeys(a for a in (*v.axes, *u.axes) if a not in (axis, "position")))
        if axis in u.axes:
            axes = (*axes, axis)
        if self.chance(4):
            self.put(f"total({mixed}, over='query')", axes, v, w, u, new=new)
        else:
            self.put(f"rename({mixed}, query='position')", ("position", *axes), v, w, u, new=new)

    def gate(self) -> None:
        v = self.some(lambda v: bool(v.features))
        if v is not None:
            self.put(f"softmax({v.name}, over='{self.choose(v.features)}', name='gate')", v.axes, v)

    def norm(self) -> None:
        v = self.some(lambda v: bool(v.features))
        if v is None:
            return
        word, axis = self.choose(("rms_norm", "layer_norm")), self.choose(v.features)
        scale = self.choose(("delta=1, weight=0", "delta=1, weight=0", "delta=0.5"))
        gain, new = "", {}
        if self.chance(3):
            name = self.fresh("g")
            gain, new = f"p.{name}, ", {name: f"parameter('{axis}', weight=0)"}
        self.put(f"{word}({v.name}, '{axis}', {gain}{scale})", v.axes, v, new=new)

    def scaled(self) -> None:
        v = self.some(lambda v: True)
        assert v is not None
        self.put(self.choose((f"{v.name} * 0.5", f"{v.name} / 3 + 1", f"branch({v.name}, 'value') ** 2")), v.axes, v)

    # -- beginning and end -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.put("embed(p.E, x)", ("position", "embed"), new={"E": "('token', 'embed')"})
        if self.chance(4):
            self.put("embed(p.F, x)", ("position", "hidden"), new={"F": "('token', 'hidden')"})

    def read_out(self) -> Value:
        v = self.pool[-1]
        if "position" in v.axes and not self.chance(3):
            self.pool = [v]
            self.reduction()
            v = self.pool[-1]
        if v.features == ("embed",) and self.chance(5):
            if "E" not in v.parameters or not self.chance(2):
                return self.put(f"dot(rename(p.E, token='label'), {v.name}, over='embed')", self._with_label(v), v,
                                new={"E": "('token', 'embed')"})  # fmt: skip
        if v.features:
            spec = ", ".join(f"'{a}'" for a in ("label", *v.features))
            over = ", ".join(f"'{a}'" for a in v.features)
            logits = self.put(f"dot(p.U, {v.name}, over=({over},))", self._with_label(v), v, new={"U": f"({spec})"})
        else:
            logits = self.put(f"p.U * {v.name}", self._with_label(v), v, new={"U": "('label',)"})
        if self.chance(4):
            weight = self.choose((0, 1))
            logits = self.put(
                f"{logits.name} + p.c", logits.axes, logits, new={"c": f"parameter('label', weight={weight})"}
            )
        return logits

    @staticmethod
    def _with_label(v: Value) -> tuple[str, ...]:
        return (*(a for a in v.axes if a == "position"), "label")


@st.composite
def architectures(draw: Callable) -> Drawn:
    """An architecture of three to seven words, its sizes, its loss and a seed of its parameters and data."""
    draft = _Draft(draw)
    draft.begin()
    words = ["linear"] * 3 + ["function"] * 3 + ["attention"] * 4 + ["product", "sum", "sum", "contraction"]
    words += ["reduction", "positional", "gate", "norm", "norm", "scaled"]
    for _ in range(draw(st.integers(3, 7))):
        getattr(draft, draft.choose(words))()
    if not draft.chance(4):
        for _ in range(8):
            if draft.is_rich(draft.pool[-1]):
                break
            getattr(draft, draft.choose(("function", "attention", "norm", "attention")))()
    logits = draft.read_out()
    body = [f"{name} = {source}" for n, (name, source) in enumerate(draft.lines) if n in logits.lines]
    source = "def drawn(p, x):\n" + textwrap.indent("\n".join((*body, f"return {logits.name}")), "    ")
    listing = ", ".join(f"{name!r}: {spec}" for name, spec in draft.specs.items() if name in logits.parameters)
    source += f"\n\narchitecture = Architecture(drawn, {{{listing}}})"
    scope = {name: getattr(lang, name) for name in lang.__all__}
    scope |= {"z": sympy.Symbol("z", real=True), "exp": sympy.exp, "log": sympy.log, "blocks": blocks, "ramp": ramp}
    exec(source, scope)
    made: Architecture = scope["architecture"]
    assert set(made.logits.axes) == set(logits.axes)
    sizes = {axis: draw(st.integers(3 if axis == "label" else 2, 4)) for axis in (*made.axes, "position", "token")}
    if made.root("label") != "label":
        sizes.pop("label", None)
    return Drawn(
        source, made, sizes, draft.choose(("cross_entropy",) * 4 + ("squared_error",)), draw(st.integers(0, 99))
    )
