"""Equations written out in sympy equal the series of the explicit loss, exactly.

The series is made here by hand, from the formula of each model: logits as matrices of symbols, every parameter times ε,
products cut after the loss degree, log Σ exp by its own series. It shares nothing with the derivation.
"""

import numpy as np
import pytest
import sympy
from sympy.polys.rings import PolyRing

from theory.architectures import attention, emb_mlp, feed_forward, transformer
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.evolution import derive
from theory.language import Architecture, causal, constant, dot, embed, rename, rms_norm, select, softmax
from theory.printing.sympy import parameter_symbols

Z = sympy.Symbol("z")
# Stands for the one irrational number that a model holds.
SURD = sympy.Symbol("surd")

# Probabilities that no float represents; the last row never occurs.
LAW = Dataset([[0, 1], [1, 1], [1, 0], [0, 0]], [0, 1, 1, 0], [1 / 2, 1 / 3, 1 / 6, 0], n_tokens=2, n_labels=2)
WEIGHTS = [sympy.Rational(1, 2), sympy.Rational(1, 3), sympy.Rational(1, 6)]


class Series:
    """A power series in ε, cut: its coefficients are polynomials in the parameters' entries."""

    def __init__(self, parts):
        self.parts = list(parts)

    def __add__(self, other):
        if not isinstance(other, Series):
            return Series([self.parts[0] + other, *self.parts[1:]])
        return Series(a + b for a, b in zip(self.parts, other.parts, strict=True))

    __radd__ = __add__

    def __sub__(self, other):
        return self + other * -1

    def __mul__(self, other):
        if not isinstance(other, Series):
            return Series(a * other for a in self.parts)
        return Series(
            sum((self.parts[m] * other.parts[n - m] for m in range(n + 1)), 0 * self.parts[0])
            for n in range(len(self.parts))
        )

    __rmul__ = __mul__


def composed(function, argument, surd=None):
    """function(argument) by its Taylor series at 0; the argument has no part of degree 0."""
    assert argument.parts[0] == 0
    ring, degree = argument.parts[0].ring, len(argument.parts) - 1
    series = sympy.series(function, Z, 0, degree + 1).removeO()
    result, power = argument * 0, argument * 0 + ring.one
    for k in range(degree + 1):
        coefficient = sympy.expand(series.coeff(Z, k))
        # Rational, or rational times the surd.
        number = ring(coefficient) if coefficient.is_Rational else ring(sympy.simplify(coefficient / surd)) * ring(SURD)
        result = result + power * number
        power = power * argument
    return result


def loss_series(logits_of, ring, kind):
    """The loss; `logits_of(tokens)`: a list of logits."""
    loss = 0
    for row, label, weight in zip(LAW.tokens[:3], LAW.labels[:3], WEIGHTS, strict=True):
        logits = logits_of([int(t) for t in row])
        if kind == "squared_error":
            errors = [f + ring(-int(c == label)) for c, f in enumerate(logits)]
            loss += sum(e * e for e in errors) * ring(weight / 2)
            continue
        mean = sum(composed(sympy.exp(Z), f) for f in logits) * ring(sympy.Rational(1, len(logits)))
        loss += (composed(sympy.log(1 + Z), mean + ring(-1)) - logits[label]) * ring(weight)
    return sum(loss.parts, ring.zero)


def feed_forward_logits(p, function, surd=None):
    def logits(row):
        a = [composed(function, sum(p["E"][t, i] for t in row), surd) for i in range(2)]
        return [sum(p["U"][v, i] * a[i] for i in range(2)) for v in range(2)]

    return logits


def emb_mlp_logits(p, function):
    def logits(row):
        h = [sum(p["E"][t, i] for t in row) for i in range(2)]
        a = [composed(function, sum(p["W"][n, i] * h[i] for i in range(2))) for n in range(2)]
        return [sum(p["U"][v, n] * a[n] for n in range(2)) for v in range(2)]

    return logits


def attention_logits(p):
    """Two positions, widths of 1 but for the embedding's 2; the surd is 1/√2."""

    def logits(row):
        x = [[p["E"][t, i] for i in range(2)] for t in row]
        ring = x[0][0].parts[0].ring
        q = sum(p["Q"][0, i] * x[-1][i] for i in range(2))
        z = [q * sum(p["K"][0, i] * w[i] for i in range(2)) * ring(SURD) for w in x]
        e = [composed(sympy.exp(Z), s) for s in z]
        half = ring(sympy.Rational(1, 2))
        inverse = composed(1 / (1 + Z), sum(e) * half + ring(-1)) * half
        v = [sum(p["V"][0, i] * w[i] for i in range(2)) for w in x]
        context = sum(e[s] * v[s] for s in range(2)) * inverse
        return [sum(p["U"][c, i] * p["O"][i, 0] * context for i in range(2)) for c in range(2)]

    return logits


def assert_equal_to_the_series(equations, sizes, logits_of, kind="cross_entropy", surd=1):
    symbols = parameter_symbols(equations.architecture, {**sizes, "token": 2, "label": 2, "position": 2})
    entries = [s for array in symbols.values() for s in sympy.flatten(array)]
    ring = PolyRing([*entries, SURD], sympy.QQ)
    degree = int(equations.degree)
    small = {}
    for name, array in symbols.items():
        small[name] = np.empty(array.shape, dtype=object)
        for place in np.ndindex(*array.shape):
            small[name][place] = Series([ring.zero, ring(array[place]), *[ring.zero] * (degree - 1)])
    loss = loss_series(logits_of(small), ring, kind)
    written = equations.to_sympy(sizes, LAW)
    assert set(written) == set(symbols)
    for name, array in symbols.items():
        assert written[name].shape == array.shape
        for symbol, entry in zip(sympy.flatten(array), sympy.flatten(written[name]), strict=True):
            wanted = -loss.diff(ring(symbol)).as_expr().subs(SURD, surd)
            assert sympy.expand(entry - wanted) == 0, (name, symbol)


@pytest.mark.parametrize("kind", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("distinct", [False, True])
@pytest.mark.parametrize("activation", ["tanh", "quadratic"])
def test_feed_forward(activation, kind, distinct):
    function = {"tanh": sympy.tanh(Z), "quadratic": Z + Z**2 / 2}[activation]
    equations = derive(feed_forward(activation), 4, (), loss=kind)
    equations = equations.distinct_positions() if distinct else equations
    assert_equal_to_the_series(equations, {"embed": 2}, lambda p: feed_forward_logits(p, function), kind)


def test_irrational_coefficients_are_exact():
    gelu = Z * (1 + sympy.erf(Z / sympy.sqrt(2))) / 2
    equations = derive(feed_forward("gelu"), 4, ())
    surd = sympy.sqrt(2 / sympy.pi)
    assert_equal_to_the_series(equations, {"embed": 2}, lambda p: feed_forward_logits(p, gelu, surd), surd=surd)


def test_hidden_layer():
    equations = derive(emb_mlp("tanh"), 6, ())
    sizes = {"embed": 2, "hidden": 2}
    assert_equal_to_the_series(equations, sizes, lambda p: emb_mlp_logits(p, sympy.tanh(Z)))


def test_attention():
    equations = derive(attention(), 8, ())
    sizes = {"embed": 2, "key": 1, "value": 1}
    assert_equal_to_the_series(equations, sizes, attention_logits, surd=1 / sympy.sqrt(2))


@pytest.mark.parametrize("keep", [None, "prediction"])
def test_kept_functions_stay_functions(keep):
    """Exact gradients at 30 digits, of the loss as sympy writes it; a kept prediction differs beyond the cut alone."""
    architecture = feed_forward("quadratic")
    symbols = parameter_symbols(architecture, {"token": 2, "label": 2, "position": 2, "embed": 1})
    loss = sympy.Integer(0)
    for row, label, weight in zip(LAW.tokens[:3], LAW.labels[:3], WEIGHTS, strict=True):
        h = sum(symbols["E"][int(t), 0] for t in row)
        f = [symbols["U"][c, 0] * (h + h**2 / 2) for c in range(2)]
        loss += weight * (sympy.log(sum(map(sympy.exp, f))) - f[label])
    # The quadratic ends at degree 3 of the logits, so with p kept nothing is cut from degree 3 on.
    equations = derive(architecture) if keep is None else derive(architecture, 3, keep)
    written = equations.to_sympy({"embed": 1}, LAW)
    entries = [s for array in symbols.values() for s in sympy.flatten(array)]
    point = {s: sympy.Rational(n + 1, 7) for n, s in enumerate(entries)}
    for name, array in symbols.items():
        for symbol, entry in zip(sympy.flatten(array), sympy.flatten(written[name]), strict=True):
            assert entry.has(sympy.exp) and entry.free_symbols <= set(entries)
            difference = (entry + sympy.diff(loss, symbol)).subs(point)
            assert abs(sympy.N(difference, 30)) < sympy.Rational(1, 10**25)


def masked():
    """A causal softmax, a normaliser, a fixed array, a trace, a scalar parameter, a label at every position."""

    def masked(p, tokens):
        x = rms_norm(embed(p.E, tokens), "embed", delta=0.5)
        scores = dot(rename(x, position="query"), x, over="embed")
        a = softmax(scores, over="position", mask=causal("query"))
        mixed = rename(dot(a, x, over="position"), query="position")
        slope = constant("slope", ("position",), lambda sizes: np.arange(1.0, sizes["position"] + 1) / 3)
        return dot(p.U, mixed * slope * p.b, over="embed")

    return Architecture(masked, {"E": ("token", "embed"), "U": ("label", "embed"), "b": ()})


def read_last():
    """Positions of which only the last is read: an indicator in their own equation."""

    def read_last(p, tokens):
        return dot(p.U, select(embed(p.E, tokens) + p.P, "position", "last"), over="embed")

    return Architecture(read_last, {"E": ("token", "embed"), "P": ("position", "embed"), "U": ("label", "embed")})


@pytest.mark.parametrize(
    ("architecture", "degree", "keep", "paths"),
    [
        (read_last(), 4, (), False),
        (masked(), None, None, False),
        (masked(), 2, ("attention",), False),
        (transformer("tanh"), 6, (), True),
    ],
)
def test_values_equal_the_numerical_evaluation(architecture, degree, keep, paths):
    from theory.evaluation import Data, right_hand_sides

    labels = [[0, 1], [1, 0]] if architecture.labels_per_position else [0, 1]
    law = Dataset([[0, 1], [1, 1]], labels, [1 / 3, 2 / 3], n_tokens=2, n_labels=2)
    equations = derive(architecture, degree, keep, paths=paths)
    sizes = {a: 1 if a != "embed" else 2 for a in architecture.axes if a not in law.sizes and architecture.root(a) == a}
    symbols = parameter_symbols(architecture, {**sizes, **law.sizes})
    rng = np.random.default_rng(0)
    values = {name: rng.normal(0, 0.7, array.shape) for name, array in symbols.items()}
    entries = [s for array in symbols.values() for s in sympy.flatten(array)]
    point = [v for name in symbols for v in values[name].ravel()]
    wanted = right_hand_sides(equations, values, Data(law.tokens, law.labels, law.weights))
    for name, array in equations.to_sympy(sizes, law).items():
        found = sympy.lambdify(entries, sympy.flatten(array) or [array[()]], cse=True)(*point)
        np.testing.assert_allclose(found, wanted[name].ravel(), rtol=1e-10, atol=1e-12)


def test_misuse_is_one_sentence():
    equations = derive(feed_forward("tanh"), 4)
    with pytest.raises(UserError, match="needs the size of axis 'embed'"):
        equations.to_sympy({}, LAW)
    with pytest.raises(UserError, match="did you mean 'embed'"):
        equations.to_sympy({"embd": 2}, LAW)
    with pytest.raises(UserError, match="has 404 at these sizes, more than 400"):
        equations.to_sympy({"embed": 101}, LAW)
    with pytest.raises(UserError, match="one label per sequence, but transformer predicts one per position"):
        derive(transformer("tanh"), 4).to_sympy({"embed": 1, "key": 1, "value": 1, "hidden": 1}, LAW)
