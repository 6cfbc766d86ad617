"""Architectures of the experiments that are not stock ones."""

from theory.language import Architecture, dot, embed


def bigram():
    """f_s = U w_{x_s}: the linear model of the next token, a label at every position."""

    def bigram(p, tokens):
        return dot(p.U, embed(p.E, tokens), over="embed")

    return Architecture(bigram, {"E": ("token", "embed"), "U": ("label", "embed")})
