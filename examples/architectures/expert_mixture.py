"""A mixture of feed-forward experts, weighted by a softmax gate that reads the same sum of embeddings.

Its staircase: staircase table examples/architectures/expert_mixture.py:expert_mixture --degree 6
"""

from theory.language import Architecture, branch, dot, elementwise, embed, softmax, total


def expert_mixture(activation="tanh"):
    """f = U Σ_e g_e σ(W_e h), g = softmax_e(R h), h = Σ_s w_{x_s}."""

    def expert_mixture(p, tokens):
        h = total(embed(p.E, tokens), over="position")
        gate = softmax(dot(p.R, branch(h, "gate"), over="embed"), over="expert", name="gate")
        each = elementwise(dot(p.W, branch(h, "expert"), over="embed"), activation)
        return dot(p.U, dot(gate, each, over="expert"), over="hidden")

    axes = {"R": ("expert", "embed"), "W": ("expert", "hidden", "embed"), "U": ("label", "hidden")}
    return Architecture(expert_mixture, {"E": ("token", "embed"), **axes})
