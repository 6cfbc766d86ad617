"""Random instances: joint laws without structure, in which nothing vanishes by accident."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import sympy

from theory.activations import activation as named_activation
from theory.activations import z
from theory.architectures import load
from theory.data import Dataset
from theory.errata.records import Instance, Shape

# C_1, C_2, …, pairwise different, of both signs, none of them zero.
_COEFFICIENTS = (1, *(Fraction(*pair) for pair in ((1, 2), (-2, 3), (3, 4), (-2, 5), (1, 3), (-3, 7))))


def joint_law(generator: np.random.Generator, shape: Shape) -> Dataset:
    """Every pair of a sequence and a label, with random probabilities."""
    length, n_tokens, n_labels = shape["position"], shape["token"], shape["label"]
    rows = np.array(list(itertools.product(*[range(n_tokens)] * length, range(n_labels))))
    weights = generator.exponential(size=len(rows))
    return Dataset(rows[:, :-1], rows[:, -1], weights / weights.sum(), n_tokens=n_tokens, n_labels=n_labels, exact=True)


def sequence_law(generator: np.random.Generator, shape: Shape) -> Dataset:
    """Random sequences with a label at every position and random probabilities; each token occurs."""
    length, n_tokens, n_labels, samples = shape["position"], shape["token"], shape["label"], shape["sample"]
    tokens = generator.integers(n_tokens, size=(samples, length))
    tokens.flat[:n_tokens] = np.arange(n_tokens)
    labels = generator.integers(n_labels, size=(samples, length))
    weights = generator.exponential(size=samples)
    return Dataset(tokens, labels, weights / weights.sum(), n_tokens=n_tokens, n_labels=n_labels)


def feed_forward(coefficients: tuple[int | Fraction, ...] | str | None = None) -> Callable[..., Instance]:
    """Instances of f = U σ(Σ_i w_{x_i}).

    **Arguments:** `coefficients`: C_1, …, C_K; the name of an activation; "z^K" for that power alone, K being the shape's
    "power"; or None for a polynomial up to that power, all of its coefficients different from zero.
    """

    def sample(generator: np.random.Generator, shape: Shape) -> Instance:
        chosen = (*[0] * (shape["power"] - 1), 1) if coefficients == "z^K" else coefficients
        if isinstance(chosen, str):
            function: str | sympy.Expr = chosen
            series = named_activation(chosen).coefficient
            # Of a named activation it is enough to know which coefficients vanish.
            found = tuple(Fraction(bool(series(k))) for k in range(shape["power"] + 1))
        else:
            found = (Fraction(0), *map(Fraction, chosen or _COEFFICIENTS[: shape["power"]]))
            function = sympy.Add(*(sympy.Rational(c.numerator, c.denominator) * z**k for k, c in enumerate(found)))
        data = joint_law(generator, shape)
        return _instance(generator, "feed_forward", function, shape, data, found)

    return sample


def attention(generator: np.random.Generator, shape: Shape) -> Instance:
    """An instance of the attention model."""
    return _instance(generator, "attention", None, shape, joint_law(generator, shape))


def symmetric_attention(generator: np.random.Generator, shape: Shape) -> Instance:
    """An instance of the attention model with K = Q, hence a symmetric W^{QK} = KᵀQ."""
    instance = attention(generator, shape)
    parameters = {**instance.parameters, "K": instance.parameters["Q"]}
    return Instance(instance.model, None, parameters, instance.data)


def transformer(generator: np.random.Generator, shape: Shape) -> Instance:
    """An instance of the causal transformer of one block."""
    return _instance(generator, "transformer", "tanh", shape, sequence_law(generator, shape))


def _instance(
    generator: np.random.Generator,
    model: str,
    activation: str | sympy.Expr | None,
    shape: Shape,
    data: Dataset,
    coefficients: tuple[Fraction, ...] = (),
) -> Instance:
    architecture = load(model, **({} if activation is None else {"activation": activation}))
    shapes = architecture.shapes({axis: shape[axis] for axis in architecture.axes})
    # Entries of a width's inverse root: attention weights then are neither uniform nor saturated.
    deviation = shape["embed"] ** -0.5
    parameters = {name: generator.normal(0, deviation, size) for name, size in shapes.items()}
    return Instance(model, activation, parameters, data, coefficients)
