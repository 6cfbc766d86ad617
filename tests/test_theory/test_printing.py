"""Printed equations mean what they say: LaTeX and text are read back by an independent parser and evaluated.

The parser knows the notation alone: letters, sizes and arrays are looked up in the printed legend, named quantities are
computed from their printed definitions, and signatures φ from a random law by counting.
"""

import functools
import itertools
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.special

from theory.architectures import attention, emb_mlp, feed_forward, transformer
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import EvolutionEquations, derive
from theory.expansion import ConstantDefinition
from theory.language import (
    Architecture,
    branch,
    causal,
    constant,
    dot,
    elementwise,
    embed,
    last,
    module,
    parameter,
    rename,
    rms_norm,
    select,
    softmax,
    total,
)

# Values are arrays of this many axes: the first is the sample, each letter takes one of the others.
AXES = 26
FUNCTIONS = {
    ("tanh", 0): np.tanh,
    ("tanh", 1): lambda z: 1 - np.tanh(z) ** 2,
    ("gelu", 0): lambda z: z * scipy.special.ndtr(z),
    ("gelu", 1): lambda z: scipy.special.ndtr(z) + z * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi),
}
# Functions without a name of their own are called by what the legend says of them.
FORMULAS = {
    "z^{3}": (lambda z: z**3, lambda z: 3 * z**2),
    "z^{2} + z": (lambda z: z**2 + z, lambda z: 2 * z + 1),
}


class Reader:
    """Evaluates one printed formula; `letters`: letter → its values, along an axis of its own."""

    def __init__(self, document, text, letters=None):
        self.document = document
        self.tokens = re.findall(r"\\[A-Za-z]+|\\.|\d+|[^\s]", text.replace(r"\ ", "~"))
        self.tokens = [t for t in self.tokens if t != r"\,"]
        self.letters = dict(letters or {})
        self.place = 0

    def peek(self, ahead=0):
        return self.tokens[self.place + ahead] if self.place + ahead < len(self.tokens) else ""

    def take(self, *expected):
        token = self.peek()
        assert not expected or token in expected, (token, expected, " ".join(self.tokens))
        self.place += 1
        return token

    def group(self):
        """The tokens between braces."""
        self.take("{")
        depth, found = 1, []
        while depth:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            found.append(token)
        return found[:-1]

    def within(self, tokens):
        inner = Reader(self.document, "", self.letters)
        inner.tokens = tokens
        value = inner.expression()
        assert inner.peek() == "", inner.tokens
        return value

    def expression(self, stop=("",)):
        value = 0.0
        while True:
            sign = 1.0
            while self.peek() in ("{", "+", "-"):
                token = self.take()
                if token == "{":
                    self.take("}")
                sign = -sign if token == "-" else sign
            value = value + sign * self.product(stop)
            if self.peek() in stop:
                return value
            if self.peek() == "{":
                assert self.peek(1) == "}" and self.peek(2) in ("+", "-")

    def product(self, stop):
        value = 1.0
        while self.peek() not in ("+", "-", *stop) and not (self.peek() == "{" and self.peek(1) == "}"):
            if self.peek() == r"\sum":
                return value * self.sum_over(stop)
            value = value * self.factor()
        return value

    def sum_over(self, stop):
        self.take(r"\sum")
        self.take("_")
        inside = "".join(self.group())
        distinct = r"\neq" in inside or "distinct" in inside
        names = [n for n in re.split(r",|\\neq", inside.replace(r"\text{distinct}", "")) if n]
        outer = dict(self.letters)
        for name in names:
            assert name not in self.letters, f"{name} is in use already"
            self.letters[name] = self.document.along(name, len(self.letters) + 1)
        value = self.product(stop)
        if distinct:
            for one, other in itertools.combinations(names, 2):
                value = value * (self.letters[one] != self.letters[other])
        axes = tuple(self.axis(name) for name in names)
        value = np.broadcast_to(value, self.full_shape(value, names)).sum(axis=axes, keepdims=True)
        self.letters = outer
        return value

    def axis(self, name):
        return int(np.argmax(np.array(self.letters[name].shape) > 1)) if self.letters[name].size > 1 else AXES - 1

    def full_shape(self, value, names):
        shape = list(np.broadcast_shapes(np.shape(value) or (1,) * AXES, *(self.letters[n].shape for n in names)))
        return tuple(shape)

    def powered(self, value):
        if self.peek() == "^":
            self.take()
            return value ** self.within(self.group() if self.peek() == "{" else [self.take()])
        return value

    def factor(self):
        token = self.peek()
        if token.isdigit():
            return self.powered(float(self.take()))
        if token == r"\frac":
            self.take()
            upper, lower = self.group(), self.group()
            return self.within(upper) / self.within(lower)
        if token == r"\sqrt":
            self.take()
            root = 2.0
            if self.peek() == "[":
                self.take()
                root = float(self.take())
                self.take("]")
            return self.within(self.group()) ** (1 / root)
        if token == "(":
            self.take()
            value = self.expression((")",))
            self.take(")")
            return value
        if token == r"\left":
            self.take()
            opening = self.take("(", r"\langle")
            value = self.expression((r"\right",))
            self.take(r"\right")
            self.take({"(": ")", r"\langle": r"\rangle"}[opening])
            if opening == r"\langle":
                weights = self.document.data.weights.reshape((-1,) + (1,) * (AXES - 1))
                return (value * weights).sum(axis=0, keepdims=True)
            return self.powered(value)
        if token == r"\mathbf":
            self.take()
            assert self.group() == ["1"]
            self.take(r"\{")
            first = self.index()
            self.take("=")
            second = self.index()
            self.take(r"\}")
            return (first == second) * 1.0
        if token == r"\exp":
            self.take()
            return np.exp(self.argument())
        if token == r"\pi":
            self.take()
            return self.powered(np.pi)
        if token == r"\varphi":
            return self.signature()
        return self.tensor()

    def argument(self):
        self.take(r"\left")
        self.take("(")
        value = self.expression((r"\right",))
        self.take(r"\right")
        self.take(")")
        return value

    def base(self):
        name = self.take()
        if name in (r"\mathrm", r"\text", r"\operatorname"):
            name += "{" + "".join(self.group()) + "}"
        if name == "F":
            self.take("_")
            name += "_{" + "".join(self.group()) + "}"
        elif self.peek() == "^":
            upper = self.tokens[self.place + 2]
            if not upper.isdigit() and upper != r"\frac":
                self.take()
                name += "^{" + "".join(self.group()) + "}"
        return name

    def tensor(self):
        name = self.base()
        if name.startswith((r"\operatorname", "F_")):
            derivative = 0
            while self.peek() == "'":
                self.take()
                derivative += 1
            word = re.sub(r"\\operatorname{(.*)}", r"\1", name)
            known = self.document.functions.get(word) or (FUNCTIONS[word, 0], FUNCTIONS[word, 1])
            return known[derivative](self.argument())
        size_name = name
        indices = []
        if self.peek() == "_":
            self.take()
            inside = self.group()
            size_name = f"{name}_{{{''.join(inside)}}}"
            if size_name in self.document.numbers:
                return self.powered(float(self.document.numbers[size_name]))
            reader = Reader(self.document, "", self.letters)
            reader.tokens = inside
            while reader.peek():
                indices.append(reader.index())
        if name in self.document.numbers and not indices:
            return self.powered(float(self.document.numbers[name]))
        if name == "r":
            return self.document.rate[indices[0]]
        array, per_sample = self.document.arrays[name]
        where = ([self.document.samples] if per_sample else []) + indices
        assert array.ndim == len(where), (name, array.shape, len(where))
        return self.powered(array[tuple(where)] if where else array)

    def index(self):
        token = self.take()
        if token in ("x", "y"):
            if self.peek() != "_":
                assert token == "y" and self.document.data.labels.ndim == 1
                return self.document.data.labels[self.document.samples]
            self.take()
            reader = Reader(self.document, "", self.letters)
            reader.tokens = self.group()
            table = {"x": self.document.data.tokens, "y": self.document.data.labels}[token]
            return table[self.document.samples, reader.index()]
        if token.isdigit():
            return np.full((1,) * AXES, int(token) - 1)
        if token == "n" and self.peek() == "_":
            self.take()
            return np.full((1,) * AXES, self.document.numbers["n_{" + "".join(self.group()) + "}"] - 1)
        while self.peek() == "'":
            token += self.take()
        if token not in self.letters and token in self.document.numbers:
            return np.full((1,) * AXES, self.document.numbers[token] - 1)
        return self.letters[token]

    def signature(self):
        self.take(r"\varphi")
        self.take("_")
        anchor = self.letters["".join(self.group())]
        self.take("^")
        variable, _, order = "".join(self.group()).rpartition(";")
        self.take("(")
        indices = [self.index()]
        while self.peek() == ",":
            self.take()
            indices.append(self.index())
        self.take(")")
        return self.document.signature(variable, int(order))[(anchor, *indices)]


def in_latex(name):
    """A parameter's name as it is printed, by hand for those of this file."""
    odd = {"E_0": r"\mathrm{E\_0}", "beta": r"\mathrm{beta}", "weight0": r"\mathrm{weight}^{(0)}"}
    return odd.get(name) or re.sub(r"^([A-Z])(\d+)$", r"\1^{(\2)}", name)


class Document:
    """A printed document: what its legend says of letters and sizes, its equations and its definitions."""

    def __init__(self, text, equations, parameters, data):
        self.data = data
        self.samples = np.arange(len(data.tokens)).reshape((-1,) + (1,) * (AXES - 1))
        items = re.findall(r"\\item \$(.*)", text)
        sizes = sizes_of(equations.architecture)
        self.axes, self.numbers, self.functions = {}, {}, {}
        for item in items:
            if found := re.match(r"(.*)\$: indices of axis (.*)", item):
                for letter in found[1].split("$, $"):
                    assert letter not in self.axes, "a letter of two axes"
                    self.axes[letter] = sizes[found[2].replace(r"\_", "_")]
            elif found := re.match(r"(.*)\$: number of (token|label|position)s", item):
                self.numbers[found[1].replace(" ", "")] = sizes[found[2]]
            elif found := re.match(r"(.*)\$: size of axis (.*)", item):
                self.numbers[found[1].replace(" ", "")] = sizes[found[2].replace(r"\_", "_")]
            elif found := re.match(r"(F_{\d})\\left\(z\\right\) = (.*)\$$", item):
                self.functions[found[1]] = FORMULAS[found[2]]
        self.n_labels = sizes["label"]
        rates = np.zeros(SIZES["token"])
        np.add.at(rates, data.tokens, data.weights[:, None] / data.tokens.shape[1])
        self.rate = rates
        self.arrays = {}
        for name, value in parameters.items():
            self.arrays[in_latex(name)] = (value, False)
        for name, value in FIXED.items():
            self.arrays[name] = (value, False)
        self.equations = {}
        for environment in re.findall(r"(where\n)?\\begin{align\*}\n(.*?)\n\\end{align\*}", text, re.S):
            lines = [re.sub(r"&& \\text{.*}$", "", line) for line in re.split(r" \\\\\n", environment[1])]
            blocks = []
            for line in lines:
                if "={}&" in line:
                    left, right = line.split("={}&")
                    blocks.append([left.strip(), right])
                else:
                    blocks[-1][1] += line.replace("&", "")
            for left, right in blocks:
                if environment[0]:
                    self.define(left, right)
                else:
                    self.equations[left] = right

    def along(self, letter, axis):
        shape = [1] * AXES
        shape[axis] = self.axes[letter]
        return np.arange(self.axes[letter]).reshape(shape)

    def free(self, inside):
        """The letters of a left-hand side, each along an axis."""
        names = re.findall(r"\\[a-z]+'*|[a-z]'*", inside)
        return {name: self.along(name, n + 1) for n, name in enumerate(names)}

    def define(self, left, right):
        name, inside = re.fullmatch(r"(.*?)(?:_{([^{}]*)})?", left).groups()
        letters = self.free(inside or "")
        value = Reader(self, right, letters).expression()
        shape = (len(self.data.tokens), *(self.axes[n] for n in letters))
        value = np.broadcast_to(value, (*shape, *(1,) * (AXES - len(shape))))
        self.arrays[name.replace(r"\ ", "~").replace(" ", "")] = (value.reshape(shape), True)

    def value(self, name):
        """The right-hand side of dE/dt, …"""
        pattern = re.escape(in_latex(name))
        left = next(k for k in self.equations if re.search(rf"mathrm{{d}} {pattern}(_{{[^{{}}]*}})?}}{{", k))
        inside = re.search(rf"mathrm{{d}} {pattern}(?:_{{([^{{}}]*)}})?}}{{", left)[1]
        letters = self.free(inside or "")
        shape = (1, *(self.axes[n] for n in letters))
        value = Reader(self, self.equations[left], letters).expression()
        return np.broadcast_to(value, (*shape, *(1,) * (AXES - len(shape)))).reshape(shape[1:])

    @functools.cache  # noqa: B019
    def signature(self, variable, order):
        """φ_α^{y;m}(ν, β…) by counting over samples and ordered tuples of distinct positions."""
        tokens, labels, weights = self.data.tokens, self.data.labels, self.data.weights
        length = tokens.shape[1]
        head = (self.n_labels,) if variable else ()
        joint = np.zeros((SIZES["token"], *head, *(SIZES["token"],) * order))
        tuples = list(itertools.permutations(range(length), order + 1))
        for s, (row, weight) in enumerate(zip(tokens, weights, strict=True)):
            for places in tuples:
                alpha, *context = row[list(places)]
                if variable == "y":
                    joint[(alpha, labels[s], *context)] += weight / len(tuples)
                elif variable == "p":
                    joint[(alpha, slice(None), *context)] += weight / len(tuples) * self.arrays["p"][0][s]
                else:
                    joint[(alpha, *context)] += weight / len(tuples)
        # A token that never occurs has no signature: its r_α = 0 leaves nothing of it.
        rates = np.where(self.rate > 0, self.rate, 1).reshape((-1,) + (1,) * (joint.ndim - 1))
        return joint / rates


SIZES = {"token": 5, "label": 4, "position": 3, "embed": 2, "key": 2, "value": 3, "hidden": 3, "head_dim": 2}
FIXED = {
    r"\mathrm{causal}^{\text{query,position}}": np.tril(np.ones((3, 3))),
    r"w^{\text{causal[query,position]}}": np.tril(np.ones((3, 3))) / np.arange(1, 4)[:, None],
    r"\mathrm{rope\_2\#}": np.arange(1.0, 7.0).reshape(3, 2),
}


def sizes_of(architecture):
    label = SIZES["token"] if architecture.root("label") == "token" else SIZES["label"]
    known = {*architecture.axes, "token", "label", "position"}
    return architecture.all_sizes({a: n for a, n in {**SIZES, "label": label}.items() if a in known})


def law(architecture, samples=6, seed=2):
    """A random joint law; the last token never occurs."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, SIZES["token"] - 1, (samples, SIZES["position"]))
    labels = rng.integers(
        0, sizes_of(architecture)["label"], tokens.shape if architecture.labels_per_position else samples
    )
    weights = rng.random(samples) + 0.1
    return Data(tokens, labels, weights / weights.sum())


def arrays(architecture, seed=1):
    rng = np.random.default_rng(seed)
    shapes = architecture.shapes(sizes_of(architecture))
    return {name: rng.normal(0, 0.7, shape) for name, shape in shapes.items()}


def tied(activation="tanh"):
    def tied(p, tokens):
        h = elementwise(total(embed(p.E, tokens), over="position"), activation)
        return dot(rename(p.E, token="label"), h, over="embed")

    return Architecture(tied, {"E": ("token", "embed")})


def odd():
    """Names and axes that LaTeX would misread, a scalar parameter, fixed places of two axes, two nameless functions."""

    def odd(p, tokens):
        import sympy

        z = sympy.Symbol("z")
        rope = constant("rope_2#", ("position", "head_dim"), lambda sizes: FIXED[r"\mathrm{rope\_2\#}"])
        x = embed(p.E_0, tokens) * rope
        first = select(x, "position", "first")
        inside = elementwise(total(x, over="position") + first, z**2 + z, name="mixed & 50%")
        outside = elementwise(last(x), z**3)
        return dot(p.U, inside + outside + p.beta * p.weight0, over="head_dim")

    parameters = {"E_0": ("token", "head_dim"), "U": ("label", "head_dim"), "beta": (), "weight0": ("head_dim",)}
    return Architecture(odd, {k: parameter(*v, weight=2 if k == "beta" else 1) for k, v in parameters.items()})


def expanded_causal():
    """Uniform causal averages, whose rows are a fixed array."""

    def expanded_causal(p, tokens):
        x = embed(p.E, tokens)
        q = rename(dot(p.Q, x, over="embed"), position="query")
        a = softmax(dot(q, dot(p.K, x, over="embed"), over="key"), over="position", mask=causal("query"))
        return dot(p.U, rename(dot(a, x, over="position"), query="position"), over="embed")

    names = {"E": ("token", "embed"), "Q": ("key", "embed"), "K": ("key", "embed"), "U": ("label", "embed")}
    return Architecture(expanded_causal, names)


def shared_bias():
    """What all logits share drops out of the label's part: the label is summed away, and co-occurrence remains."""

    def shared_bias(p, tokens):
        h = elementwise(total(embed(p.E, tokens), over="position"), "quadratic")
        return dot(p.U, h, over="embed") + dot(p.c, h, over="embed")

    return Architecture(shared_bias, {"E": ("token", "embed"), "U": ("label", "embed"), "c": ("embed",)})


CASES = {
    "shared bias, distinct": lambda: derive(shared_bias(), 3, ()).distinct_positions(),
    "feed-forward, expanded": lambda: derive(feed_forward("tanh"), 4, ()),
    "feed-forward, expanded, distinct": lambda: derive(feed_forward("tanh"), 4, ()).distinct_positions(),
    "feed-forward, prediction kept": lambda: derive(feed_forward("gelu"), 4),
    "feed-forward, prediction kept, distinct": lambda: derive(feed_forward("gelu"), 4).distinct_positions(),
    "feed-forward, activation kept, distinct": lambda: derive(
        feed_forward("tanh"), 4, ("activation", "prediction")
    ).distinct_positions(),
    "feed-forward, squared error": lambda: derive(feed_forward("tanh"), 4, (), loss="squared_error"),
    "hidden layer, cut logits": lambda: derive(emb_mlp("tanh"), 6, prediction="of-truncated-logits"),
    "attention, all kept, paths": lambda: derive(attention(), paths=True),
    "attention, weights kept, distinct": lambda: derive(attention(), 8, ("attention",)).distinct_positions(),
    "learned positions": lambda: derive(attention(positions=True), 4, ()),
    "learned positions, distinct": lambda: derive(attention(positions=True), 4).distinct_positions(),
    "transformer, all kept": lambda: derive(transformer("gelu")),
    "transformer, paths": lambda: derive(transformer("gelu"), 6, paths=True).distinct_positions(),
    "causal weights, expanded": lambda: derive(expanded_causal(), 4, ()),
    "odd names": lambda: derive(odd(), 3, ("activation", "prediction")),
}


@pytest.fixture(scope="module")
def systems():
    return functools.cache(lambda name: CASES[name]())


@pytest.mark.parametrize("name", CASES)
def test_latex_evaluates_to_the_right_hand_sides(name, systems):
    equations = systems(name)
    parameters, data = arrays(equations.architecture), law(equations.architecture)
    wanted = right_hand_sides(equations, parameters, data)
    document = Document(equations.to_latex(), equations, parameters, data)
    for parameter_name, value in wanted.items():
        np.testing.assert_allclose(document.value(parameter_name), value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("loss_kind", ["cross_entropy", "squared_error"])
def test_tied_embeddings_evaluate_to_the_gradient(loss_kind):
    """One parameter in two places; a linear model under squared error is exact at degree 4."""
    import jax

    from theory.interpret import loss

    kept = loss_kind == "cross_entropy"
    architecture = tied("tanh" if kept else "linear")
    equations = derive(architecture) if kept else derive(architecture, 4, (), loss=loss_kind).distinct_positions()
    parameters, data = arrays(architecture), law(architecture)
    with jax.enable_x64(True):
        gradient = jax.grad(
            lambda p: loss(architecture, p, data.tokens, data.labels, data.weights, xp=jax.numpy, kind=loss_kind)
        )({name: jax.numpy.asarray(value) for name, value in parameters.items()})
    document = Document(equations.to_latex(), equations, parameters, data)
    np.testing.assert_allclose(document.value("E"), -np.asarray(gradient["E"]), rtol=1e-10, atol=1e-10)


def test_functions_are_defined_in_the_legend(systems):
    text = systems("odd names").to_latex()
    found = re.findall(r"\\item \$F_{(.)}\\left\(z\\right\) = (.*)\$\n", text)
    assert sorted(number for number, _ in found) == ["1", "2"] and {formula for _, formula in found} == set(FORMULAS)
    # A function whose name says it all needs no line.
    assert "operatorname{tanh}\\left(z\\right) =" not in systems("hidden layer, cut logits").to_latex()


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(systems, tmp_path):
    """All cases in one document, their staircases beside them, with no package but amsmath."""
    bodies = [systems(name).to_latex() for name in CASES]
    bodies += [systems(name).staircase().to_latex() for name in ("feed-forward, expanded", "transformer, paths")]
    source = (
        "\\documentclass{article}\n\\usepackage{amsmath}\n\\allowdisplaybreaks\n\\begin{document}\n"
        + "\n\n".join(bodies)
        + "\n\\end{document}\n"
    )
    (tmp_path / "equations.tex").write_text(source)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "equations.tex"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert finished.returncode == 0, finished.stdout[-2000:]
    assert (tmp_path / "equations.pdf").stat().st_size > 10_000
    assert "Missing character" not in finished.stdout


@pytest.mark.parametrize("name", CASES)
def test_formulas_convert_to_mathml(name, systems):
    """The report shows each line by latex2mathml; every command must be one that it knows."""
    from latex2mathml.converter import convert

    for line in systems(name).latex_lines():
        assert "\\" not in convert(line)


# -- JSON --------------------------------------------------------------------------------------------------------------


def pre_norm():
    """A normaliser expanded around the stream's leading part: a number of weight 2, opaque derivatives, a mask."""

    def pre_norm(p, tokens):
        x = embed(p.E, tokens)
        h = rms_norm(x, "embed")
        a = softmax(dot(rename(h, position="query"), h, over="embed"), over="position", mask=causal("query"))
        x = x + module(rename(dot(a, branch(h, "value"), over="position"), query="position"), "attention")
        return dot(p.U, x, over="embed")

    return Architecture(pre_norm, {"E": parameter("token", "embed", weight=0), "U": ("label", "embed")})


WRITTEN = {
    **CASES,
    "normaliser": lambda: derive(pre_norm(), 2, paths=True),
    "normaliser, all kept": lambda: derive(pre_norm()),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_json_reads_back_to_identical_equations(name):
    equations = WRITTEN[name]()
    text = equations.to_json()
    read = EvolutionEquations.from_json(text, equations.architecture)
    assert read.identical(equations) and read.to_json() == text
    assert dict(read.symbols) == dict(equations.symbols)
    for parameter_name, equation in equations.items():
        assert read[parameter_name] == equation
    for ours, theirs in zip(read.quantities, equations.quantities, strict=True):
        assert type(ours) is type(theirs) and ours.symbol == theirs.symbol
        if not isinstance(ours, ConstantDefinition):
            assert ours == theirs
    parameters, data = arrays(equations.architecture), law(equations.architecture)
    if equations.architecture.root("label") == "label":
        wanted = right_hand_sides(equations, parameters, data)
        for parameter_name, value in right_hand_sides(read, parameters, data).items():
            np.testing.assert_array_equal(value, wanted[parameter_name])


def test_identical_notices_every_difference():
    equations = derive(feed_forward("tanh"), 4)
    assert equations.identical(derive(feed_forward("tanh"), 4))
    for other in (
        derive(feed_forward("tanh"), 6),
        derive(feed_forward("tanh"), 4, ()),
        derive(feed_forward("tanh"), 4, prediction="of-truncated-logits"),
        derive(feed_forward("tanh"), 4, paths=True),
        derive(feed_forward("silu"), 4),
        equations.distinct_positions(),
        equations.label_driven,
    ):
        assert not equations.identical(other)


def test_constants_are_known_in_a_fresh_process(tmp_path):
    """GELU's series holds π; a process that has derived nothing yet must read it all the same."""
    equations = derive(feed_forward("gelu"), 4)
    (tmp_path / "equations.json").write_text(equations.to_json())
    code = (
        "from theory.architectures import feed_forward; from theory.evolution import EvolutionEquations; "
        f"text = open({str(tmp_path / 'equations.json')!r}).read(); "
        "print(EvolutionEquations.from_json(text, feed_forward('gelu')).to_text('U'))"
    )
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert finished.stdout.rstrip() == equations.to_text("U").rstrip()


def changed(document, *path, value):
    """A document with one place changed; `...` as value takes the place away."""
    document = json.loads(json.dumps(document))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return document


TERM = ("equations", 0, "terms", 0)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        (("schema",), "somebody/else", "of the schema 'context-staircase/equations', found 'somebody/else'"),
        (("version",), 2, "schema version 2 cannot be read; this is version 1"),
        (("version",), ..., "schema version None"),
        (("architecture",), "linear", "those of 'linear', not of 'feed_forward'"),
        (("loss",), "hinge", "at '/loss': expected one of 'cross_entropy', 'squared_error', found \"hinge\""),
        (("paths",), 1, "at '/paths': expected boolean, found 1"),
        (("extra",), 1, "at '/': 'extra' is not known here"),
        ((*TERM, "coefficient", "rational"), "0.5", "/terms/0/coefficient/rational': expected a whole number"),
        ((*TERM, "coefficient", "atoms"), [["|embed|"]], "/atoms/0': expected 2 to 2 entries, found 1"),
        ((*TERM, "coefficient", "atoms"), [["Catalan", "1"]], "a constant 'Catalan'"),
        ((*TERM, "degree"), ..., "/terms/0': 'degree' is missing"),
        ((*TERM, "components", 0, 0, "symbol"), "W", "use 'W' but do not describe it"),
        ((*TERM, "components", 0, 0, "indices"), ["#0", "#1", "#2", "#3"], "but a factor gives 4"),
        (("equations", 0, "axes"), ["token"], "has axes (token, embed) and weight 1, but in the equations (token)"),
        (("equations", 0, "weight"), "2", "weight 1, but in the equations (token, embed) and weight 2"),
        (("equations", 0, "parameter"), "W", "no parameter 'W' that the equations name"),
        (("equations", 0), ..., "hold none for parameter 'E'"),
        (("quantities", 1, "argument"), ..., "/quantities/1': 'argument' is missing"),
        (("quantities", 1, "expression"), "sinh(z)", "applies no 'tanh' (sinh(z))"),
        (("quantities", 1, "derivative"), -1, "/derivative': expected at least 0, found -1"),
        (("symbols", 0, "one_hot_slot"), True, "/one_hot_slot': expected integer or null, found true"),
    ],
)
def test_wrong_json_is_one_clear_sentence(path, value, sentence):
    equations = derive(feed_forward("tanh"), 4)
    text = json.dumps(changed(json.loads(equations.to_json()), *path, value=value))
    with pytest.raises(UserError) as error:
        EvolutionEquations.from_json(text, equations.architecture)
    assert sentence in str(error.value) and "\n" not in str(error.value)


def test_json_of_another_kind_is_refused():
    for text, sentence in (("{", "line 1 is not JSON"), ("[]", "found 'list'"), ("{}", "found None")):
        with pytest.raises(UserError, match=re.escape(sentence)):
            EvolutionEquations.from_json(text, feed_forward("tanh"))


def test_equations_of_another_activation_are_refused():
    text = derive(feed_forward("tanh")).to_json()
    with pytest.raises(UserError, match=r"feed_forward applies no 'tanh'"):
        EvolutionEquations.from_json(text, feed_forward("silu"))
