"""Architectures of the experiments that are not stock ones."""

import numpy as np
import sympy

from theory import architectures, data, signatures
from theory.errors import UserError, nearest
from theory.language import Architecture, ParameterSpec, dot, elementwise, embed, fixed, rename, total


def power(exponent):
    """The feed-forward model with σ(z) = z^K (activation sweep of arXiv 2608.30315)."""
    return architectures.feed_forward(sympy.Symbol("z") ** exponent)


def fixed_embeddings(kind, numbers, gain=1.0, seed=0):
    """f = U relu(Σ_s λ w_{x_s}) with a trainable scalar λ that starts at 1 (figure 8 of arXiv 2608.30315). E is to be frozen.

    `kind`: "signature", w_α = R φ_α^{y;1} v of modular addition of `numbers` numbers, where the rows of E are the columns of R
    and v is drawn with `seed`; "random", w_α is a row of E. The paper gives no scale; here φ_α^{y;1} v has mean square norm 1,
    so that w_α is as long as a row of E, and both are multiplied by `gain`.
    """
    if kind not in ("signature", "random"):
        raise UserError(f"unknown kind of fixed embeddings {kind!r}; {nearest(kind, ('signature', 'random'))}")
    signature = signatures.label_signature(data.load("mod", numbers=numbers), 1)
    rows = signature.contract(np.random.default_rng(seed).normal(size=numbers))
    rows /= np.sqrt(np.mean(np.sum(rows**2, axis=1)))

    def fixed_embeddings(p, tokens):
        if kind == "signature":
            x = dot(
                embed(fixed("signatures", ("token", "output"), rows), tokens),
                rename(p.E, token="output"),
                over="output",
            )
        else:
            x = embed(p.E, tokens)
        return dot(p.U, elementwise(gain * p.scale * total(x, over="position"), "relu"), over="embed")

    # The scalar is a gain and not small: weight 0 makes it start at 1.
    parameters = {"E": ("token", "embed"), "scale": ParameterSpec((), weight=0), "U": ("label", "embed")}
    return Architecture(fixed_embeddings, parameters)
