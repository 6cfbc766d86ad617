"""A gated convolution over positions: what a position writes is gated by itself and its predecessor.

Its staircase: staircase table examples/architectures/gated_convolution.py:gated_convolution --degree 5
"""

from theory.language import Architecture, dot, elementwise, embed, mean, shift


def gated_convolution(activation="sigmoid"):
    """f = U mean_s (V w_{x_s}) ⊙ σ(G_0 w_{x_s} + G_1 w_{x_{s−1}})."""

    def gated_convolution(p, tokens):
        x = embed(p.E, tokens)
        gate = dot(p.G0, x, over="embed") + dot(p.G1, shift(x), over="embed")
        return dot(p.U, mean(dot(p.V, x, over="embed") * elementwise(gate, activation), over="position"), over="hidden")

    inner = ("hidden", "embed")
    return Architecture(
        gated_convolution, {"E": ("token", "embed"), "V": inner, "G0": inner, "G1": inner, "U": ("label", "hidden")}
    )
