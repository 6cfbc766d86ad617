"""Architectures written in the language, each a few lines: every word of it and every item of the theory's scope.

Each entry says how far to expand it (the degree of the loss), which mixed modes to certify beside that, and with which loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import sympy

from theory import architectures
from theory.language import (
    Architecture,
    ParameterSpec,
    branch,
    causal,
    constant,
    constant_number,
    dot,
    elementwise,
    embed,
    last,
    layer_norm,
    mean,
    module,
    parameter,
    relative,
    rename,
    rms_norm,
    rotary,
    select,
    shift,
    size,
    softmax,
    sqrt,
    total,
    window,
)

z = sympy.Symbol("z", real=True)


@dataclass(frozen=True)
class Entry:
    """An architecture, the degree of the loss to expand it to, mixed modes as (keep, degree), and its loss."""

    architecture: Architecture
    degree: int
    modes: tuple[tuple[tuple[str, ...], int], ...] = ()
    loss: str = "cross_entropy"


# What takes longest to certify, and needs no words that the others lack, is left to `make test-slow`.
SLOW = {
    "stock_linear", "stock_feed_forward", "stock_emb_mlp", "stock_attention", "stock_transformer",
    "regression_by_attention", "three_way_table", "normalised_features", "softmax_over_memory",
}  # fmt: skip

ZOO: dict[str, Entry] = {}

Axes = tuple[str, ...] | ParameterSpec


def architecture(
    degree: int, *, keep: Mapping[str, int] | None = None, loss: str = "cross_entropy", **parameters: Axes
):
    """Enter a function of (p, x) into the zoo; `keep` maps what a mixed mode keeps to the degree it is expanded to."""

    def enter(function: Callable) -> Callable:
        made = Architecture(function, parameters)
        modes = tuple(((name,), reach) for name, reach in (keep or {}).items())
        ZOO[made.name] = Entry(made, degree, modes, loss)
        return function

    return enter


E, U = ("token", "embed"), ("label", "embed")


# -- attention ---------------------------------------------------------------------------------------------------------


def attend(q, k, v, mask=None, axis="key", name="attention"):
    """Values at each query, weighted by the softmax of q·k over the positions of k."""
    scores = dot(q, k, over=axis) / sqrt(size(axis))
    return dot(softmax(scores, over="position", mask=mask, name=name), v, over="position")


@architecture(6, keep={"attention": 6}, E=E, QK=parameter("embed", right="embed"), OV=("label", "embed"))
def attention_by_square_matrices(p, x):
    """As the seed paper writes it: w_{x_s}ᵀ W^{QK} w_{x_L}, with a query that looks at the last position alone."""
    h = embed(p.E, x)
    scores = dot(dot(p.QK, rename(last(h), embed="right"), over="right"), h, over="embed") / sqrt(size("embed"))
    return dot(p.OV, dot(softmax(scores, over="position"), h, over="position"), over="embed")


@architecture(
    7,
    keep={"attention": 7},
    E=E,
    Q=("head", "key", "embed"),
    K=("head", "key", "embed"),
    V=("head", "value", "embed"),
    O=("label", "head", "value"),
)
def multi_head(p, x):
    h = embed(p.E, x)
    q = dot(p.Q, branch(last(h), "query"), over="embed")
    k, v = dot(p.K, branch(h, "key"), over="embed"), dot(p.V, branch(h, "value"), over="embed")
    return dot(p.O, attend(q, k, v), over=("head", "value"))


@architecture(
    4,
    E=E,
    Q=parameter("group", "member", "key", "embed", weight=0),
    K=parameter("group", "key", "embed", weight=0),
    V=("group", "label", "embed"),
    gain=parameter("group", "member", weight=0),
)
def grouped_query(p, x):
    h = embed(p.E, x)
    q, k, v = dot(p.Q, last(h), over="embed"), dot(p.K, h, over="embed"), dot(p.V, h, over="embed")
    return total(total(attend(q, k, v) * p.gain, over="member"), over="group")


@architecture(4, E=E, B=("label", "embed"), loss="squared_error")
def two_layers_of_causal_attention(p, x):
    h = embed(p.E, x)
    for layer in (1, 2):
        mixed = attend(rename(h, position="query"), h, h, causal("query"), axis="embed")
        h = h + module(rename(mixed, query="position"), f"attention {layer}")
    return dot(p.B, h, over="embed")


@architecture(4, keep={"attention": 6}, E=E, U=U)
def windowed_attention(p, x):
    h = embed(p.E, x)
    q = rename(h, position="query")
    mixed = attend(q, h, h, window("query", width=2), axis="embed")
    return dot(p.U, rename(mixed, query="position"), over="embed")


@architecture(4, E=E, U=U)
def block_sparse_attention(p, x):
    def blocks(sizes):
        block = np.arange(sizes["query"]) // 2
        strided = np.arange(sizes["position"]) % 3 == 0
        return np.maximum(block[:, None] == block[None, :], strided[None, :]).astype(float)

    h = embed(p.E, x)
    mask = constant("blocks", ("query", "position"), blocks)
    mixed = attend(rename(h, position="query"), h, h, mask, axis="embed")
    return dot(p.U, select(rename(mixed, query="position"), "position", "first"), over="embed")


@architecture(
    4, E=E, Q=parameter("key", "embed", weight=0), K=parameter("key", "embed", weight=0), V=("label", "embed")
)
def rotary_attention(p, x):
    h = embed(p.E, x)
    q = rotary(rename(dot(p.Q, h, over="embed"), position="query"), "key", position="query", base=10.0)
    k = rotary(dot(p.K, h, over="embed"), "key", base=10.0)
    return rename(attend(q, k, dot(p.V, h, over="embed"), causal("query")), query="position")


@architecture(4, E=E, R=("distance",), V=("label", "embed"))
def relative_position_bias(p, x):
    h = embed(p.E, x)
    scores = dot(rename(h, position="query"), h, over="embed") + relative(p.R, "distance", "query")
    mixed = dot(softmax(scores, over="position", mask=causal("query")), h, over="position")
    return dot(p.V, mean(mixed, over="query"), over="embed")


@architecture(4, keep={"attention": 5}, E=E, R=("distance",), b=parameter("position", weight=0), V=("label", "embed"))
def attention_around_a_bias(p, x):
    """Scores whose degree-0 part is not a number: the weights are expanded around its softmax."""
    h = embed(p.E, x)
    scores = dot(rename(h, position="query"), h, over="embed") + relative(p.R, "distance", "query") + p.b
    return dot(p.V, last(rename(dot(softmax(scores, "position"), h, over="position"), query="position")), over="embed")


@architecture(6, E=E, V=("label", "embed"))
def unmasked_attention_summed_over_queries(p, x):
    h = embed(p.E, x)
    return dot(p.V, total(attend(rename(h, position="query"), h, h, axis="embed"), over="query"), over="embed")


@architecture(8, E=E, V=("label", "embed"))
def linear_attention(p, x):
    h = embed(p.E, x)
    scores = dot(last(h), h, over="embed") / size("position")
    return dot(scores, dot(p.V, h, over="embed"), over="position")


@architecture(4, keep={"inner": 6, "outer": 6}, E=E, V=("label", "embed"))
def nested_softmax(p, x):
    h = embed(p.E, x)
    inner = softmax(dot(last(h), h, over="embed"), over="position", name="inner")
    outer = softmax(dot(dot(inner, h, over="position"), h, over="embed") + inner, over="position", name="outer")
    return dot(p.V, dot(outer, h, over="position"), over="embed")


@architecture(6, E=E, M=("embed", "slot"), V=("slot", "label"))
def softmax_over_memory(p, x):
    """A softmax over an axis that is not the position: a learned memory, read by content."""
    read = softmax(dot(p.M, mean(embed(p.E, x), over="position"), over="embed"), over="slot", name="memory")
    return dot(read, p.V, over="slot")


@architecture(6, E=E, U=U)
def soft_vocabulary(p, x):
    """The table is looked up, and multiplied with the stream: which token the context resembles."""
    h = mean(embed(p.E, x), over="position")
    alike = softmax(dot(p.E, h, over="embed"), over="token", name="vocabulary")
    return dot(p.U, dot(alike, p.E, over="token") + h, over="embed")


# -- feed-forward ------------------------------------------------------------------------------------------------------


@architecture(6, keep={"activation": 6}, E=E, W=("hidden", "embed"), M=("embed", "hidden"), U=U)
def residual_mlps(p, x):
    h = total(embed(p.E, x), over="position")
    for layer in (1, 2):
        h = h + module(dot(p.M, elementwise(dot(p.W, h, over="embed"), "tanh"), over="hidden"), f"mlp {layer}")
    return dot(p.U, h, over="embed")


@architecture(7, E=E, G=("hidden", "embed"), W=("hidden", "embed"), D=("label", "hidden"))
def swiglu(p, x):
    h = mean(embed(p.E, x), over="position")
    gate = elementwise(dot(p.G, h, over="embed"), "silu")
    return dot(p.D, gate * dot(p.W, h, over="embed"), over="hidden")


@architecture(6, E=E, P=("position", "embed"), U=U)
def learned_positions(p, x):
    return dot(p.U, total(elementwise(embed(p.E, x) + p.P, "gelu"), over="position"), over="embed")


@architecture(6, E=E, before=("hidden", "embed"), here=("hidden", "embed"), U=("label", "hidden"))
def convolution(p, x):
    h = embed(p.E, x)
    z = dot(p.here, h, over="embed") + dot(p.before, shift(h, 1), over="embed")
    return dot(p.U, elementwise(z, "tanh"), over="hidden")


@architecture(6, E=E, kernel=("tap", "embed"), U=U)
def depthwise_convolution(p, x):
    """A kernel with one tap for each distance, by a fixed array [position, source, tap]."""

    def taps(sizes):
        n = sizes["position"]
        return np.stack([np.eye(n, k=-by) for by in range(sizes["tap"])], axis=-1)

    moved = dot(
        constant("taps", ("position", "source", "tap"), taps), rename(embed(p.E, x), position="source"), "source"
    )
    mixed = total(moved * p.kernel, over="tap")
    return dot(p.U, total(elementwise(mixed, "quadratic"), over="position"), over="embed")


@architecture(8, keep={"activation": 6}, E=E, W=("hidden", "embed"), M=("embed", "hidden"))
def tied_embeddings(p, x):
    h = total(embed(p.E, x), over="position")
    h = h + dot(p.M, elementwise(dot(p.W, h, over="embed"), "gelu"), over="hidden")
    return dot(rename(p.E, token="label"), h, over="embed")


@architecture(5, E=E, W=("hidden", "embed"), b=("hidden",), U=("label", "hidden"), c=("label",))
def small_biases(p, x):
    z = dot(p.W, total(embed(p.E, x), over="position"), over="embed") + p.b
    return dot(p.U, elementwise(z, "gelu"), over="hidden") + p.c


@architecture(
    5, keep={"activation": 5}, E=E, b=parameter("embed", weight=0), U=U, c=parameter("label", weight=0), d=("position",)
)
def biases_of_order_one(p, x):
    """Biases of weight 0 move the point that the activation and the loss are expanded around."""
    h = elementwise(embed(p.E, x) + p.b, "tanh")
    return dot(p.U, dot(p.d, h, over="position"), over="embed") + p.c


@architecture(7, E=E, g=parameter("embed", weight=0), W=parameter("embed", "hidden", weight=2), U=("label", "hidden"))
def gain_of_degree_zero(p, x):
    h = total(embed(p.E, x), over="position") * p.g
    return dot(p.U, elementwise(dot(p.W, h, over="embed"), z + z**2), over="hidden")


@architecture(5, E=E, G=("expert", "embed"), W=("expert", "hidden", "embed"), U=("label", "hidden"), keep={"gate": 6})
def mixture_of_experts(p, x):
    h = total(embed(p.E, x), over="position")
    gate = softmax(dot(p.G, h, over="embed"), over="expert", name="gate")
    experts = elementwise(dot(p.W, h, over="embed"), "tanh")
    return dot(p.U, dot(gate, experts, over="expert"), over="hidden")


@architecture(4, E=E, G=("expert", "embed"), U=("label", "expert"))
def activation_of_a_gate(p, x):
    """An activation around 1/n: a number that holds the size of an axis."""
    gate = softmax(dot(p.G, mean(embed(p.E, x), over="position"), over="embed"), over="expert", name="gate")
    return dot(p.U, elementwise(gate, "softplus"), over="expert")


@architecture(8, E=E, A=("label", "embed"), B=("label", "embed"))
def bilinear_pooling(p, x):
    h = embed(p.E, x)
    return mean(dot(p.A, h, over="embed") * dot(p.B, h, over="embed"), over="position")


@architecture(4, E=E, P=("position", "embed"), U=U)
def product_of_three_streams(p, x):
    h = embed(p.E, x)
    return dot(p.U, total(h * shift(h, 1) * (last(h) + p.P), over="position"), over="embed")


@architecture(6, E=E, U=U)
def any_activation(p, x):
    return dot(p.U, elementwise(total(embed(p.E, x), over="position"), z * sympy.exp(-(z**2)) + z**3), over="embed")


@architecture(6, E=E, F=E, T=("embed", "hidden", "label"))
def three_way_table(p, x):
    h = elementwise(embed(p.E, x), "sin")
    first = rename(select(embed(p.F, x), "position", "first"), embed="right")
    both = dot(p.T, last(h), over="embed")
    return dot(both, elementwise(dot(rename(p.T, embed="right"), first, over="right"), "sin"), over="hidden")


@architecture(4, B=("token", "label"))
def bigram_table(p, x):
    return embed(p.B, x)


@architecture(6, W=("hidden", "label"), b=("hidden",))
def logits_that_ignore_the_tokens(p, x):
    return dot(p.W, elementwise(p.b, "tanh"), over="hidden")


# Kinks have no series: their certificate is the exact one.
@architecture(1, E=E, W=("hidden", "embed"), U=("label", "hidden"), keep={"kink": 6})
def relu_and_maximum(p, x):
    h = elementwise(total(embed(p.E, x), over="position"), sympy.Max(z, -z / 10), name="kink")
    return dot(p.U, elementwise(dot(p.W, h, over="embed"), "relu", name="kink"), over="hidden")


@architecture(6, E=E, W=("hidden", "embed"), U=("label", "hidden"), loss="squared_error", keep={"activation": 6})
def regression(p, x):
    return dot(p.U, elementwise(dot(p.W, total(embed(p.E, x), over="position"), over="embed"), "gelu"), over="hidden")


@architecture(6, E=E, V=("label", "embed"), loss="squared_error")
def regression_by_attention(p, x):
    h = embed(p.E, x)
    mixed = attend(rename(h, position="query"), h, h, causal("query"), axis="embed")
    return dot(p.V, rename(mixed, query="position"), over="embed")


# -- normalisation -----------------------------------------------------------------------------------------------------


@architecture(6, keep={"norm": 4}, E=E, U=U)
def rms_norm_around_zero(p, x):
    return dot(p.U, rms_norm(total(embed(p.E, x), over="position"), "embed", delta=1, weight=0), over="embed")


@architecture(3, E=E, U=U, g=parameter("embed", weight=0))
def rms_norm_of_a_gate(p, x):
    """Expanded around a power of an axis size: the leading part of the gate is 1/|embed|."""
    gate = softmax(total(embed(p.E, x), over="position"), over="embed", name="gate")
    return dot(p.U, rms_norm(gate * gate, "embed", p.g, delta=0.5), over="embed")


@architecture(4, E=E, U=U, g=parameter("embed", weight=0), b=("embed",))
def layer_norm_around_zero(p, x):
    return dot(p.U, layer_norm(embed(p.E, x), "embed", p.g, p.b, delta=1, weight=0), over="embed")


@architecture(4, keep={"norm": 4}, E=E, P=("position", "embed"), W=("embed", "hidden"), M=("embed", "hidden"), U=U)
def rms_norm_around_the_stream(p, x):
    h = embed(p.E, x) + p.P
    h = h + dot(p.M, dot(p.W, h, over="embed"), over="hidden")
    return dot(p.U, rms_norm(h, "embed", delta=0.3), over="embed")


@architecture(4, E=E, W=("hidden", "embed"), g=parameter("hidden", weight=0), b=("hidden",), U=("label", "hidden"))
def layer_norm_around_the_stream(p, x):
    h = total(embed(p.E, x), over="position")
    normed = layer_norm(elementwise(dot(p.W, h, over="embed"), "tanh"), "hidden", p.g, p.b, delta=0.5, weight=4)
    return dot(p.U, normed, over="hidden")


@architecture(
    5,
    keep={"norm": 5, "attention": 4, "activation": 4},
    E=E,
    Q=("key", "embed"),
    K=("key", "embed"),
    V=parameter("embed", right="embed"),
    W=("hidden", "embed"),
    M=("embed", "hidden"),
    U=U,
)
def pre_norm_transformer(p, x):
    h = embed(p.E, x)
    n = rms_norm(h, "embed", delta=0.2)
    q = rename(dot(p.Q, n, over="embed"), position="query")
    mixed = attend(q, dot(p.K, n, over="embed"), rename(n, embed="right"), causal("query"))
    h = h + module(rename(dot(p.V, mixed, over="right"), query="position"), "attention")
    n = rms_norm(h, "embed", delta=0.2)
    h = h + module(dot(p.M, elementwise(dot(p.W, n, over="embed"), "tanh"), over="hidden"), "mlp")
    return dot(p.U, h, over="embed")


@architecture(3, E=parameter("token", "embed", weight=0), W=("hidden", "embed"), M=("embed", "hidden"), U=U)
def norm_of_an_embedding_of_order_one(p, x):
    """Weight 0: the normaliser of the leading part is a named quantity, the layer above a small correction."""
    h = embed(p.E, x)
    n = rms_norm(h, "embed", delta=1e-2, weight=0)
    h = h + dot(p.M, elementwise(dot(p.W, n, over="embed"), "gelu"), over="hidden")
    return dot(p.U, last(rms_norm(h, "embed", delta=1e-2, weight=0)), over="embed")


@architecture(4, keep={"norm": 4}, E=E, G=("hidden", "embed"), U=("label", "hidden"))
def normalised_features(p, x):
    """Small numbers that carry a degree of their own, and a normaliser of a sum over positions."""
    h = dot(p.G, total(embed(p.E, x), over="position"), over="embed")
    return dot(
        p.U, rms_norm(h + constant_number(sympy.Rational(1, 3), 2), "hidden", delta=0.4, weight=4), over="hidden"
    )


# -- stock -------------------------------------------------------------------------------------------------------------

for stock, reach, modes in (
    (architectures.linear(), 6, ()),
    (architectures.feed_forward("cube"), 8, ()),
    (architectures.emb_mlp("softplus"), 5, ()),
    (architectures.attention(positions=True), 8, ((("attention",), 8),)),
    (architectures.transformer("tanh"), 6, ((("attention", "activation"), 6),)),
):
    ZOO[f"stock_{stock.name}"] = Entry(stock, reach, modes)
