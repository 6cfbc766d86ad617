"""Attention by learned relative biases alone, no queries and no keys, before a quadratic activation.

Its staircase: staircase table examples/architectures/relative_attention.py:relative_attention --degree 4
"""

from theory.language import Architecture, causal, dot, elementwise, embed, module, relative, rename, softmax


def relative_attention(activation="quadratic"):
    """f_s = U (w_{x_s} + M σ(V Σ_u a_su w_{x_u})), a_s = softmax_u of b_{s−u} over u ≤ s; a label at every position."""

    def relative_attention(p, tokens):
        x = embed(p.E, tokens)
        value = rename(dot(p.V, x, over="embed"), position="source")
        scores = relative(p.b, "offset", "position", "source")
        mixed = dot(softmax(scores, over="source", mask=causal("position", "source")), value, over="source")
        x = x + module(dot(p.M, elementwise(mixed, activation), over="hidden"), "mixing")
        return dot(p.U, x, over="embed")

    axes = {"V": ("hidden", "embed"), "M": ("embed", "hidden"), "U": ("label", "embed"), "b": ("offset",)}
    return Architecture(relative_attention, {"E": ("token", "embed"), **axes})
