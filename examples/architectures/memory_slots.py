"""Memory slots: each is filled from all positions by its address, and the last token reads them through a residual stream.

Its staircase: staircase table examples/architectures/memory_slots.py:memory_slots --degree 6
"""

from theory.language import Architecture, branch, dot, embed, last, mean, module, parameter, softmax


def memory_slots():
    """f = U (w_{x_L} + O Σ_m r_m mean_s (S_m·w_{x_s}) V w_{x_s}), r = softmax_m(S_m·w_{x_L}); the addresses S start large."""

    def memory_slots(p, tokens):
        x = embed(p.E, tokens)
        address = dot(p.S, branch(x, "address"), over="embed")
        slots = mean(address * dot(p.V, branch(x, "content"), over="embed"), over="position")
        read = softmax(dot(p.S, last(branch(x, "reader")), over="embed"), over="slot", name="read")
        memory = dot(p.O, dot(read, slots, over="slot"), over="value")
        return dot(p.U, last(x) + module(memory, "memory"), over="embed")

    small = {"E": ("token", "embed"), "V": ("value", "embed"), "O": ("embed", "value"), "U": ("label", "embed")}
    return Architecture(memory_slots, {**small, "S": parameter("slot", "embed", weight=0)})
