"""The language of architectures: every wrong use is refused with its line; numpy, jax and torch agree."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy
import torch

import theory.language as lang
from theory import architectures, interpret
from theory.activations import activation
from theory.errors import UserError
from theory.language import Architecture, dot, elementwise, embed, last, parameter, rename, select, softmax, total

STOCK = {
    "linear": architectures.linear(),
    "feed_forward": architectures.feed_forward("tanh"),
    "feed_forward_relu": architectures.feed_forward("relu"),
    "emb_mlp": architectures.emb_mlp("gelu"),
    "attention": architectures.attention(),
    "attention_with_positions": architectures.attention(positions=True),
    "transformer": architectures.transformer("silu", blocks=2),
}


def build(function, **parameters):
    return Architecture(function, parameters or {"E": ("token", "embed"), "U": ("label", "embed")}, name="mine")


def arrays(architecture, seed=0, **sizes):
    full = {"token": 5, "label": 6, "position": 3, "embed": 4, "hidden": 7, "key": 2, "value": 8} | sizes
    full = {a: n for a, n in full.items() if a in {*architecture.axes, "label", "position", "token"}}
    rng = np.random.default_rng(seed)
    parameters = {name: rng.normal(size=shape) for name, shape in architecture.shapes(full).items()}
    return parameters, rng.integers(0, full["token"], (11, full["position"])), full


# -- wrong uses --------------------------------------------------------------------------------------------------------

# Each is written so that the line to be named is the one of the mistake.
WRONG = {
    "unknown axis in over=": (
        lambda p, x: dot(p.U, last(embed(p.E, x)), over="embd"),
        ["'embd'", "label, embed", "did you mean 'embed'"],
    ),
    "axis of one operand only": (
        lambda p, x: dot(p.U, last(embed(p.E, x)), over="label"),
        ["right operand has no axis 'label'", "(embed)"],
    ),
    "no axis in over=": (lambda p, x: dot(p.U, last(embed(p.E, x)), over=()), ["at least one axis"]),
    "left-over axis": (
        lambda p, x: p.U * last(embed(p.E, x)),
        ["(label, embed)", "'embed' is left over", "(position, label)"],
    ),
    "no label axis": (lambda p, x: last(embed(p.E, x)), ["(embed)", "logits have the axes (label)"]),
    "unknown parameter": (lambda p, x: dot(p.W, x, over="token"), ["unknown parameter 'W'", "choose one of E, U"]),
    "unknown axis in total": (
        lambda p, x: dot(p.U, total(embed(p.E, x), over="positions"), over="embed"),
        ["total: there is no axis 'positions'", "did you mean 'position'"],
    ),
    "unknown axis in mean": (lambda p, x: lang.mean(embed(p.E, x), over="postion"), ["did you mean 'position'"]),
    "unknown axis in softmax": (lambda p, x: softmax(embed(p.E, x), over="key"), ["softmax: there is no axis 'key'"]),
    "unknown axis in shift": (lambda p, x: lang.shift(p.E, 1), ["shift: there is no axis 'position'"]),
    "adding clashing axes": (lambda p, x: p.U + p.E, ["+:", "(label, embed)", "(token, embed)"]),
    "renaming an axis that is not there": (lambda p, x: rename(p.U, hidden="key"), ["rename", "'hidden'"]),
    "renaming onto an axis that is there": (lambda p, x: rename(p.U, label="embed"), ["there is an axis 'embed'"]),
    "renaming two axes to one": (lambda p, x: rename(p.U, label="a", embed="a"), ["two axes cannot get one name"]),
    "unknown activation": (lambda p, x: elementwise(p.E, "tahn"), ["'tahn'", "did you mean 'tanh'"]),
    "activation in two symbols": (
        lambda p, x: elementwise(p.E, sympy.Symbol("a") * sympy.Symbol("b")),
        ["one symbol", "a, b"],
    ),
    "unknown place": (lambda p, x: select(p.E, "token", "lats"), ["'lats'", "did you mean 'last'"]),
    "select on an axis that is not there": (lambda p, x: select(p.E, "position", "last"), ["select", "'position'"]),
    "last of what has no position": (lambda p, x: last(p.E), ["no axis 'position'"]),
    "table without a token axis": (lambda p, x: embed(p.U, x), ["needs an axis 'token'", "(label, embed)"]),
    "mask that is computed": (
        lambda p, x: softmax(embed(p.E, x), over="position", mask=embed(p.E, x)),
        ["a mask is a constant"],
    ),
    "mask with an axis that the scores lack": (
        lambda p, x: softmax(embed(p.E, x), over="position", mask=lang.causal("query")),
        ["axis 'query' that the scores lack"],
    ),
    "mask without the axis of the softmax": (
        lambda p, x: softmax(embed(p.E, x), over="embed", mask=lang.constant("m", ("position",), np.ones)),
        ["the mask needs the axis 'embed'"],
    ),
    "window without width": (lambda p, x: lang.window("query", width=0), ["at least 1, found 0", "needed"]),
    "power below one": (lambda p, x: p.E**0, ["found 0"]),
    "power that is no whole number": (lambda p, x: p.E**0.5, ["found 0.5", "elementwise"]),
    "dividing by an expression": (lambda p, x: p.E / p.E, ["/ takes a number or a size"]),
    "dividing by zero": (lambda p, x: p.E / 0, ["division by zero"]),
    "a number over an expression": (lambda p, x: 2 / p.E, ["/ takes a number or a size on its right"]),
    "the size of an axis that is not there": (
        lambda p, x: dot(p.U, last(embed(p.E, x)), over="embed") / lang.sqrt(lang.size("embd")),
        ["size('embd')", "did you mean 'embed'"],
    ),
    "scaling by what is no number": (lambda p, x: p.E * True, ["cannot scale by True"]),
    "adding what is no number": (lambda p, x: p.E + float("nan"), ["nan is not a finite number"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_uses_name_the_line_what_was_found_and_what_was_expected(case):
    function, words = WRONG[case]
    with pytest.raises(UserError) as caught:
        build(function)
    sentence = str(caught.value)
    for word in words:
        assert word in sentence, sentence
    number = int(re.search(r"test_language\.py:(\d+)", sentence).group(1))
    first = function.__code__.co_firstlineno
    assert first <= number <= first + 1, sentence


def test_left_over_position_is_a_label_per_position():
    assert not STOCK["attention"].labels_per_position
    assert build(lambda p, x: dot(p.U, embed(p.E, x), over="embed")).labels_per_position


def test_unused_parameter():
    with pytest.raises(UserError, match="'W' of mine is never used"):
        build(lambda p, x: embed(p.E, x), E=("token", "label"), W=("label", "embed"))


@pytest.mark.parametrize(
    ("name", "axes", "words"),
    [
        ("E", ("token", "token"), "'E' names an axis twice"),
        ("_E", ("token", "label"), "identifier without leading underscore, found '_E'"),
        ("1E", ("token", "label"), "identifier"),
        ("X", ("token", "label"), "cannot be called 'X', which stands for the one-hot tokens"),
        ("Y", ("token", "label"), "the one-hot labels"),
        ("p", ("token", "label"), "the prediction"),
        ("f", ("token", "label"), "the logits"),
        ("last", ("token", "label"), "a place"),
        ("E", parameter("token", "label", weight=-1), "weight -1; a weight is 0 or more"),
    ],
)
def test_wrong_parameters(name, axes, words):
    with pytest.raises(UserError, match=words):
        build(lambda p, x: embed(p[name], x), **{name: axes})


def test_a_function_must_return_its_logits():
    with pytest.raises(UserError, match="must return its logits, but returned NoneType"):
        build(lambda p, x: None)


def masked(mask):
    def function(p, x):
        h = embed(p.E, x)
        scores = dot(rename(h, position="query"), h, over="embed")
        a = softmax(scores, over="position", mask=mask)
        return dot(p.U, total(dot(a, h, over="position"), over="query"), over="embed")

    return build(function)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (lambda n: np.tril(np.ones((n, n)), -1), "forbids every place of 'position' for some row"),
        (lambda n: np.eye(n)[:, ::-1] * (n < 5) + np.eye(n) * 0, "forbids every place"),
        (lambda n: np.full((n, n), 0.5), "entries other than 0 and 1"),
        (lambda n: np.ones((n, n + 1)), r"axes \(query, position\) but built an array of shape \(1, 2\)"),
    ],
)
def test_masks_that_cannot_be(rule, words):
    with pytest.raises(UserError, match=words) as caught:
        masked(lang.constant("bad", ("query", "position"), lambda sizes: rule(sizes["query"])))
    assert "test_language.py:" in str(caught.value)


def test_an_alias_is_not_an_axis_of_its_own():
    with pytest.raises(UserError, match="'key' is an axis of its own"):
        build(
            lambda p, x: dot(p.U, rename(last(embed(p.E, x)), embed="key"), over="key"),
            E=("token", "embed"),
            U=("label", "key"),
        )

    def function(p, x):
        h = embed(p.E, x)
        first = total(last(rename(h, embed="a")), over="a")
        second = total(total(rename(h, position="a"), over="a"), over="embed")
        return dot(p.U, last(h), over="embed") * first * second

    with pytest.raises(UserError, match="'a' already is another name of 'embed', not of 'position'"):
        build(function)


def test_two_nonlinearities_of_one_name_are_numbered():
    def function(p, x):
        h = elementwise(last(embed(p.E, x)), "tanh")
        return dot(p.U, elementwise(h, "gelu"), over="embed")

    assert {n: v.function.name for n, v in build(function).nonlinearities.items()} == {
        "activation 1": "tanh",
        "activation 2": "gelu",
    }
    assert set(STOCK["attention"].nonlinearities) == {"attention"}
    assert set(STOCK["transformer"].nonlinearities) == {"attention 1", "activation 1", "attention 2", "activation 2"}


def test_two_nonlinearities_cannot_end_up_with_one_name():
    def function(p, x):
        h = elementwise(elementwise(last(embed(p.E, x)), "tanh"), "tanh")
        return dot(p.U, elementwise(h, "tanh", name="activation 2"), over="embed")

    with pytest.raises(UserError, match="two nonlinearities would be called 'activation 2'") as caught:
        build(function)
    assert "test_language.py:" in str(caught.value)


@pytest.mark.parametrize(("axis", "number"), [("position", 2.0), ("token", 1.0)])
def test_two_constants_of_one_name_are_the_same(axis, number):
    def ones(of=1.0, over="position"):
        return lang.constant("c", (over,), lambda sizes: np.full(sizes[over], of))

    def function(p, x):
        h = embed(p.E, x)
        other = ones(number, axis)
        return dot(p.U, total(h * ones(), over="position"), over="embed") * total(other * ones(), axis)

    with pytest.raises(UserError, match="another constant is called 'c' already, and is different"):
        build(function)
    build(lambda p, x: dot(p.U, total(embed(p.E, x) * ones() * ones(), over="position"), over="embed"))


def test_the_name_prediction_is_taken():
    with pytest.raises(UserError, match="'prediction' belongs to the softmax of the loss") as caught:
        build(lambda p, x: dot(p.U, elementwise(last(embed(p.E, x)), "tanh", name="prediction"), over="embed"))
    assert "test_language.py:" in str(caught.value)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"embd": 3}, "no axis 'embd'; did you mean 'embed'"),
        ({"embed": 0}, "positive whole number, found 0"),
        ({"embed": 2.5}, "positive whole number, found 2.5"),
        ({"embed": True}, "positive whole number, found True"),
        ({"token": 3, "label": 3, "position": 2}, "needs the size of axis 'embed'"),
    ],
)
def test_wrong_sizes(sizes, words):
    with pytest.raises(UserError, match=words):
        STOCK["linear"].shapes(sizes)


def test_an_alias_has_the_size_of_its_root():
    architecture = STOCK["transformer"]
    sizes = {"token": 5, "label": 6, "position": 3, "embed": 4, "hidden": 7, "key": 2, "value": 8}
    assert architecture.root("query") == "position" and "query" not in architecture.axes
    assert architecture.all_sizes(sizes)["query"] == 3
    with pytest.raises(UserError, match="'query' of transformer is another name of 'position'"):
        architecture.all_sizes(sizes | {"query": 4})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"E": None}, "parameter 'E' of linear is missing"),
        ({"V": np.ones((5, 4))}, "no parameter 'V'"),
        ({"E": np.ones((5, 4, 1))}, r"'E' has axes \(token, embed\), but its array has shape \(5, 4, 1\)"),
        ({"E": np.ones((5, 3))}, "on axis 'embed', but axis 'embed' has size 3"),
    ],
)
def test_arrays_that_do_not_fit(change, words):
    architecture = STOCK["linear"]
    parameters, tokens, _ = arrays(architecture)
    parameters = {k: v for k, v in (parameters | change).items() if v is not None}
    with pytest.raises(UserError, match=words):
        interpret.evaluate(architecture, parameters, tokens)


def test_labels_must_fit_the_logits():
    architecture = STOCK["linear"]
    parameters, tokens, _ = arrays(architecture)
    with pytest.raises(UserError, match=r"need labels of shape \(11,\), found \(11, 3\)"):
        interpret.loss(architecture, parameters, tokens, tokens, np.full(11, 1 / 11))


# -- interpretation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STOCK)
def test_numpy_jax_and_torch_agree(name):
    architecture = STOCK[name]
    parameters, tokens, sizes = arrays(architecture)
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 6, tokens.shape if architecture.labels_per_position else tokens.shape[:1])
    weights = rng.dirichlet(np.ones(len(tokens)))
    logits = interpret.evaluate(architecture, parameters, tokens)
    assert logits.shape == (*labels.shape, 6)
    one_hot = np.eye(sizes["token"])[tokens]
    np.testing.assert_allclose(interpret.evaluate(architecture, parameters, one_hot), logits, rtol=1e-12, atol=1e-13)
    tensors = {k: torch.tensor(v) for k, v in parameters.items()}
    with jax.enable_x64(True):
        for given in (tokens, one_hot):
            found = interpret.evaluate(architecture, parameters, jnp.asarray(given), jnp)
            np.testing.assert_allclose(found, logits, rtol=1e-12, atol=1e-13)
        for kind in ("cross_entropy", "squared_error"):
            args = (labels, weights)
            wanted = interpret.loss(architecture, parameters, tokens, *args, kind=kind)
            in_jax = interpret.loss(
                architecture, parameters, jnp.asarray(tokens), *map(jnp.asarray, args), xp=jnp, kind=kind
            )
            in_torch = interpret.loss(
                architecture, tensors, torch.tensor(tokens), *map(torch.tensor, args), xp=torch, kind=kind
            )
            assert float(in_jax) == pytest.approx(wanted, rel=1e-12)
            assert float(in_torch) == pytest.approx(wanted, rel=1e-12)
    for given in (tokens, one_hot):
        found = interpret.evaluate(architecture, tensors, torch.tensor(given), torch)
        np.testing.assert_allclose(found.numpy(), logits, rtol=1e-12, atol=1e-13)


TOKENS_READ = {
    "counted": (
        lambda p, x: dot(p.B, total(x, over="position"), over="token"),
        {"B": ("label", "token")},
        lambda B, one_hot: one_hot.sum(1) @ B.T,
    ),
    "chosen before they are looked up": (
        lambda p, x: embed(p.B, last(x)),
        {"B": ("token", "label")},
        lambda B, one_hot: one_hot[:, -1] @ B,
    ),
    "on the right of a product": (
        lambda p, x: total(dot(p.B, x, over="token"), over="position"),
        {"B": ("token", "label")},
        lambda B, one_hot: one_hot.sum(1) @ B,
    ),
    "with their positions": (
        lambda p, x: dot(x, p.B, over=("position", "token")),
        {"B": ("position", "token", "label")},
        lambda B, one_hot: np.einsum("slv,lvc->sc", one_hot, B),
    ),
}


@pytest.mark.parametrize("case", TOKENS_READ)
def test_tokens_need_not_be_looked_up(case):
    function, axes, by_hand = TOKENS_READ[case]
    architecture = build(function, **axes)
    parameters, tokens, sizes = arrays(architecture)
    one_hot = np.eye(sizes["token"])[tokens]
    wanted = by_hand(parameters["B"], one_hot)
    for given in (tokens, one_hot):
        np.testing.assert_allclose(interpret.evaluate(architecture, parameters, given), wanted, rtol=1e-12)
        found = interpret.evaluate(architecture, {"B": torch.tensor(parameters["B"])}, torch.tensor(given), torch)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_the_loss_is_a_weighted_mean():
    """By hand: −log softmax and ½‖f − e_y‖² of given logits, and a mean over positions."""
    logits = np.array([[1.0, 2.0, -1.0], [0.5, 0.0, 3.0]])
    labels, weights = np.array([0, 2]), np.array([0.3, 0.7])
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    each = -np.log(p[[0, 1], labels])
    assert interpret.loss_of_logits(logits, labels, weights) == pytest.approx(weights @ each, rel=1e-14)
    squares = 0.5 * ((logits - np.eye(3)[labels]) ** 2).sum(1)
    found = interpret.loss_of_logits(logits, labels, weights, kind="squared_error")
    assert found == pytest.approx(weights @ squares, rel=1e-14)
    per_position = interpret.loss_of_logits(logits[None], labels[None], np.ones(1))
    assert per_position == pytest.approx(each.mean(), rel=1e-14)


def test_every_word_of_the_language():
    """Against einsum written by hand: numbers, sizes, powers, mean, shift, window, select and constants."""

    def function(p, x):
        h = embed(p.E, x)
        mixed = lang.shift(h, 1) * lang.constant("slope", ("position",), lambda s: np.arange(1.0, s["position"] + 1))
        first = select(mixed + 2 * h - h**2 / lang.sqrt(lang.size("embed")), "position", "last")
        scores = dot(rename(h, position="query"), h, over="embed") / lang.size("position")
        a = softmax(scores, over="position", mask=lang.window("query", width=2))
        near = lang.mean(dot(a, h, over="position"), over="query")
        return dot(p.U, first - near, over="embed") + 3 + p.b

    architecture = build(function, E=("token", "embed"), U=("label", "embed"), b=("label",))
    parameters, tokens, _ = arrays(architecture)
    E, U, b = parameters["E"], parameters["U"], parameters["b"]
    h = E[tokens]
    before = np.concatenate([np.zeros((11, 1, 4)), h[:, :-1]], axis=1) * np.array([1.0, 2.0, 3.0])[:, None]
    first = (before + 2 * h - h**2 / 2)[:, -1]
    scores = np.einsum("sqe,ske->sqk", h, h) / 3
    allowed = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]])
    e = np.exp(scores) * allowed
    near = np.einsum("sqk,ske->sqe", e / e.sum(-1, keepdims=True), h).mean(1)
    wanted = (first - near) @ U.T + 3 + b
    np.testing.assert_allclose(interpret.evaluate(architecture, parameters, tokens), wanted, rtol=1e-12, atol=1e-12)


def test_softmax_neither_overflows_nor_sees_what_is_masked():
    scores = np.array([[1000.0, -1000.0, 999.0]])
    mask = (np.array([1.0, 1.0, 0.0]), ("position",))
    found, _ = interpret.softmax_over(scores, ("sample", "position"), "position", mask, np)
    np.testing.assert_array_equal(found, [[1.0, 0.0, 0.0]])
    assert interpret.loss_of_logits(scores, np.array([1]), np.ones(1)) == pytest.approx(2000 + np.log1p(np.exp(-1)))


def test_logits_that_ignore_the_tokens():
    architecture = build(lambda p, x: p.b, b=("label",))
    found = interpret.evaluate(architecture, {"b": np.arange(3.0)}, np.zeros((2, 4), dtype=int))
    np.testing.assert_array_equal(found, [[0, 1, 2], [0, 1, 2]])


@pytest.mark.parametrize("name", ["tanh", "gelu", "silu", "relu", "quadratic", "softplus", "sigmoid"])
def test_activations_are_what_torch_calls_them(name):
    at = np.linspace(-3, 3, 41)
    if name == "quadratic":
        wanted = at + at**2 / 2
    else:
        wanted = getattr(torch.nn.functional, name)(torch.tensor(at)).numpy()
    np.testing.assert_allclose(activation(name)(at, np), wanted, rtol=1e-12, atol=1e-15)


# -- loading -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("feedforward", {}, "did you mean 'feed_forward'"),
        ("feed_forward", {"activatoin": "tanh"}, "no option 'activatoin'; did you mean 'activation'"),
        ("feed_forward", {"activation": "gleu"}, "did you mean 'gelu'"),
        ("transformer", {"blocks": 0}, "at least 1, found 0"),
        ("nowhere.py:mine", {}, "no file 'nowhere.py'"),
        ("nowhere.py", {}, "no file 'nowhere.py'"),
    ],
)
def test_loading_what_is_not_there(name, options, words):
    with pytest.raises(UserError, match=words):
        architectures.load(name, **options)


def test_loading_the_users_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from theory.language import Architecture, embed, last\n"
        "def bigram(scale=1):\n"
        "    return Architecture(lambda p, x: scale * last(embed(p.W, x)), {'W': ('token', 'label')}, 'bigram')\n"
        "made = bigram()\n"
        "number = 3\n"
        "def wrong():\n"
        "    return 3\n"
    )
    assert architectures.load(f"{file}:bigram", scale=2).name == "bigram"
    assert architectures.load(f"{file}:made").name == "bigram"
    for attribute, options, words in [
        ("made", {"scale": 2}, "takes no option 'scale'"),
        ("bigam", {}, "did you mean 'bigram'"),
        ("number", {}, "neither an Architecture nor a function"),
        ("wrong", {}, "must return an Architecture, but returned int"),
    ]:
        with pytest.raises(UserError, match=words):
            architectures.load(f"{file}:{attribute}", **options)
