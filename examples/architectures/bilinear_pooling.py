"""Bilinear pooling of pairs of tokens, read out by the embeddings themselves: tied unembedding, labels are tokens.

Its staircase: staircase table examples/architectures/bilinear_pooling.py:bilinear_pooling --degree 6
"""

from theory.language import Architecture, dot, embed, mean, rename


def bilinear_pooling():
    """f_ν = w_ν · C (A h ⊙ B h), h = mean_s w_{x_s}."""

    def bilinear_pooling(p, tokens):
        h = mean(embed(p.E, tokens), over="position")
        pair = dot(p.A, h, over="embed") * dot(p.B, h, over="embed")
        return dot(rename(p.E, token="label"), dot(p.C, pair, over="rank"), over="embed")

    factor = ("rank", "embed")
    return Architecture(bilinear_pooling, {"E": ("token", "embed"), "A": factor, "B": factor, "C": ("embed", "rank")})
