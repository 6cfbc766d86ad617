"""Attention by class and label laws of single embeddings, on parameters for which both are known by hand."""

import json
import math

import numpy as np
import pytest
from constructed import build
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy, pearsonr

from compare import attention as measured_attention
from compare.attention import attention_profile
from compare.label_laws import label_law_agreement
from theory import architectures
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.language import Architecture, dot, elementwise, embed, module, rename, softmax, total

DATA = Dataset(
    tokens=np.array([[0, 1, 2], [2, 2, 0], [1, 3, 3]]),
    labels=np.array([0, 1, 1]),
    weights=np.array([0.5, 0.3, 0.2]),
    token_names=("a", "b", "c", "d"),
)
MODEL = architectures.attention()
WIDTH_ONE = {"E": (4, 1), "Q": (1, 1), "K": (1, 1), "V": (1, 1), "O": (1, 1), "U": (2, 1)}


def along(model, states, times, **options):
    """A trajectory of given states."""
    axes = {name: spec.axes for name, spec in model.parameters.items()}
    arrays = {name: np.stack([state[name] for state in states]) for name in axes}
    return build(times, arrays, np.ones(len(times)), axes=axes, **options)


def scores_are_products(values):
    """Width one, Q = K = 1: the score of x_s seen from x_L is E[x_s] E[x_L]."""
    return {name: np.ones(shape) for name, shape in WIDTH_ONE.items()} | {"E": np.array(values, float)[:, None]}


def test_without_scores_attention_is_uniform_and_its_entropy_ln_n():
    run = along(MODEL, [scores_are_products([0, 0, 0, 0])], [0])
    found = attention_profile(run, MODEL, DATA, {"first": ["a"], "pair": ["b", "d"]})
    assert found.entropy[0] == pytest.approx(math.log(3)) and found.uniform_entropy == pytest.approx(math.log(3))
    # Places of "a": 1, 1, 0 of 3; of b and d: 1, 0, 3; of the rest c: 1, 2, 0.
    expected = {"first": (0.5 + 0.3) / 3, "pair": (0.5 + 0.2 * 3) / 3, "rest": (0.5 + 0.3 * 2) / 3}
    for name, mass in expected.items():
        assert found.mass[name][0] == pytest.approx(mass)
        assert found.uniform_mass[name] == pytest.approx(mass)
    assert found.classes == {"first": ("a",), "pair": ("b", "d"), "rest": ("c",)}
    assert found.softmax == "attention"


def test_mass_and_entropy_by_hand():
    values = [0.3, -1.0, 2.0, 0.7]
    run = along(MODEL, [scores_are_products([0] * 4), scores_are_products(values)], [0, 1])
    found = attention_profile(run, MODEL, DATA, {"ab": ["a", "b"], "cd": ["c", "d"]})
    mass, whole, between, within = 0.0, 0.0, 0.0, np.zeros(2)
    for tokens, weight in zip(DATA.tokens, DATA.weights, strict=True):
        a = np.exp([values[x] * values[tokens[-1]] for x in tokens])
        a /= a.sum()
        of_class = [a[tokens < 2], a[tokens >= 2]]
        mass += weight * of_class[0].sum()
        whole += weight * entropy(a)
        between += weight * entropy([part.sum() for part in of_class])
        within += [weight * part.sum() * entropy(part) if len(part) else 0.0 for part in of_class]
    assert found.mass["ab"][1] == pytest.approx(mass) and found.mass["cd"][1] == pytest.approx(1 - mass)
    assert found.entropy[1] == pytest.approx(whole)
    assert found.between[1] == pytest.approx(between)
    np.testing.assert_allclose([found.within["ab"][1], found.within["cd"][1]], within)
    assert found.between[1] + within.sum() == pytest.approx(whole)
    assert whole < found.uniform_entropy
    json.dumps(found.to_dict(), allow_nan=False)


def test_attention_to_one_place_has_no_entropy_and_chunks_change_nothing(monkeypatch):
    run = along(MODEL, [scores_are_products([0, 0, 0, 60]), scores_are_products([1, 2, 3, 4])], [0, 1])
    whole = attention_profile(run, MODEL, DATA)
    assert list(whole.mass) == ["rest"] and whole.mass["rest"][1] == pytest.approx(1.0)
    monkeypatch.setattr(measured_attention, "_TOKENS", 1)
    parts = attention_profile(run, MODEL, DATA)
    np.testing.assert_allclose(parts.entropy, whole.entropy, rtol=1e-14)
    sharp = Dataset(tokens=np.array([[0, 1, 3]]), labels=np.array([0]), n_tokens=4, n_labels=2)
    assert attention_profile(run, MODEL, sharp).entropy[0] == 0.0


def test_a_causal_mask_limits_the_uniform_reference_and_every_query_counts():
    model = architectures.transformer("tanh")
    data = Dataset(tokens=np.array([[0, 1, 1]]), labels=np.array([[1, 1, 0]]))
    sizes = {"token": 2, "label": 2, "embed": 2, "key": 2, "value": 2, "hidden": 2, "position": 3}
    zero = {name: np.zeros(shape) for name, shape in model.shapes(sizes).items()}
    found = attention_profile(along(model, [zero], [0]), model, data, {"first": ["0"]})
    assert found.mass["first"][0] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found.uniform_mass["first"] == pytest.approx((1 + 1 / 2 + 1 / 3) / 3)
    assert found.entropy[0] == pytest.approx((math.log(2) + math.log(3)) / 3)
    assert found.uniform_entropy == pytest.approx(found.entropy[0])


def test_seeds_keep_their_axis_and_lost_numbers_are_nan():
    good, bad = scores_are_products([1, 2, 3, 4]), scores_are_products([1, 2, np.nan, 4])
    axes = {name: spec.axes for name, spec in MODEL.parameters.items()}
    arrays = {name: np.stack([[good[name]], [bad[name]]]) for name in axes}
    run = build([0], arrays, np.ones((2, 1)), axes=axes, seeds=(5, 6))
    found = attention_profile(run, MODEL, DATA)
    assert found.entropy.shape == (2, 1)
    assert np.isfinite(found.entropy[0]).all() and np.isnan(found.entropy[1]).all()
    json.dumps(found.to_dict(), allow_nan=False)


def test_positions_alone_can_be_attended_to():
    def by_place(p, tokens):
        return dot(p.U, dot(softmax(p.s, over="position"), embed(p.E, tokens), over="position"), over="embed")

    model = Architecture(by_place, {"E": ("token", "embed"), "U": ("label", "embed"), "s": ("position",)})
    state = {"E": np.ones((4, 1)), "U": np.ones((2, 1)), "s": np.log([1.0, 2.0, 1.0])}
    found = attention_profile(along(model, [state], [0]), model, DATA, {"a": ["a"]})
    assert found.mass["a"][0] == pytest.approx(0.5 * 0.25 + 0.3 * 0.25)
    assert found.uniform_mass["a"] == pytest.approx((0.5 + 0.3) / 3)


def test_heads_count_equally_wherever_their_axis_stands():
    def heads(p, tokens):
        x = embed(p.E, tokens)
        a = softmax(dot(x, p.q, over="embed"), over="position")  # axes: position, head
        return dot(p.U, dot(a, x, over="position"), over=("head", "embed"))

    model = Architecture(heads, {"E": ("token", "embed"), "q": ("head", "embed"), "U": ("label", "head", "embed")})
    state = {"E": np.log([[2.0], [1], [1], [1]]), "q": np.array([[0.0], [1.0]]), "U": np.ones((2, 2, 1))}
    found = attention_profile(along(model, [state], [0]), model, DATA, {"a": ["a"]})
    # Uniform attention for one head; for the other "a" weighs twice as much.
    assert found.mass["a"][0] == pytest.approx((0.5 + 0.3) * (1 / 3 + 2 / 4) / 2)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"x": ["a", "e"]}, "names no token: 'e'"),
        ({"x": ["a"], "y": ["b", "a"]}, "named twice"),
        ({"x": "ab"}, "must be a list"),
        ({"rest": ["a"]}, "call yours otherwise"),
    ],
)
def test_wrong_classes_are_refused(classes, message):
    with pytest.raises(UserError, match=message):
        attention_profile(along(MODEL, [scores_are_products([0] * 4)], [0]), MODEL, DATA, classes)


def test_what_attends_to_nothing_is_refused():
    run = along(MODEL, [scores_are_products([0] * 4)], [0])
    with pytest.raises(UserError, match="attends to nothing"):
        attention_profile(run, architectures.linear(), DATA)

    def gated(p, tokens):
        return dot(p.U, softmax(total(embed(p.E, tokens), over="position"), over="embed"), over="embed")

    model = Architecture(gated, {"E": ("token", "embed"), "U": ("label", "embed")})
    with pytest.raises(UserError, match="attends to nothing"):
        attention_profile(along(model, [{"E": np.ones((4, 2)), "U": np.ones((2, 2))}], [0]), model, DATA)
    with pytest.raises(UserError, match="called 'atention'; did you mean 'attention'"):
        attention_profile(run, MODEL, DATA, softmax="atention")


# ---------------------------------------------------------------------------------------------------------------------

LAW = Dataset(
    tokens=np.array([[0, 1], [0, 1], [1, 0], [2, 2], [2, 2]]),
    labels=np.array([0, 1, 1, 0, 2]),
    weights=np.array([0.25, 0.25, 0.1, 0.2, 0.2]),
    n_tokens=4,
)
# P(y | token 0 or 1) = (5, 7, 0)/12, P(y | 2) = (1, 0, 1)/2; token 3 never occurs.
P = np.array([[5, 7, 0], [5, 7, 0], [6, 0, 6]]) / 12


def test_embeddings_that_are_logarithms_of_the_law_have_no_divergence():
    logarithm = np.log(np.maximum(P, 1e-30))
    E = np.concatenate([logarithm, np.full((1, 3), np.nan)])
    uniform = np.zeros((4, 3))
    model = architectures.linear()
    run = along(model, [{"E": uniform, "U": np.eye(3)}, {"E": E, "U": np.eye(3)}], [0, 1])
    found = label_law_agreement(run, model, LAW)
    assert found.tokens == ("0", "1", "2")
    np.testing.assert_allclose(found.kl[1], 0, atol=1e-12)
    np.testing.assert_allclose(found.jsd[1], 0, atol=1e-12)
    np.testing.assert_allclose(found.pearson[1], 1, atol=1e-12)
    # Against the uniform law: KL is ln 3 − H(P), and there is no correlation.
    np.testing.assert_allclose(found.kl[0], [math.log(3) - entropy(p) for p in P])
    assert np.isnan(found.pearson[0]).all()
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_uniform_law_has_no_correlation_but_divergences():
    tokens, labels = np.divmod(np.arange(28), 14)
    data = Dataset(tokens=tokens[:, None], labels=labels)
    model = architectures.linear()
    rng = np.random.default_rng(2)
    found = label_law_agreement(
        along(model, [{"E": rng.normal(size=(2, 3)), "U": rng.normal(size=(14, 3))}], [0]), model, data
    )
    assert np.isnan(found.pearson).all() and np.all(found.kl > 0) and np.all(found.jsd > 0)


@pytest.mark.parametrize("name", ["linear", "feed_forward", "attention", "transformer"])
def test_divergences_agree_with_scipy_whatever_stands_between(name):
    model = architectures.load(name)
    rng = np.random.default_rng(0)
    sizes = {"token": 4, "label": 3, "embed": 5, "key": 2, "value": 2, "hidden": 6, "position": 2}
    shapes = model.shapes({axis: size for axis, size in sizes.items() if axis in model.axes})
    states = [[{key: rng.normal(size=shape) for key, shape in shapes.items()} for _ in range(2)] for _ in range(3)]
    axes = {key: spec.axes for key, spec in model.parameters.items()}
    arrays = {key: np.array([[state[key] for state in row] for row in states]) for key in axes}
    found = label_law_agreement(build([0, 1], arrays, np.ones((3, 2)), axes=axes, seeds=(0, 1, 2)), model, LAW)
    q = np.exp(states[2][1]["U"] @ states[2][1]["E"][2])
    q /= q.sum()
    assert found.kl.shape == (3, 2, 3)
    assert found.kl[2, 1, 2] == pytest.approx(entropy(P[2], q))
    assert found.jsd[2, 1, 2] == pytest.approx(jensenshannon(P[2], q) ** 2)
    assert found.pearson[2, 1, 2] == pytest.approx(pearsonr(P[2], q).statistic)


def test_a_marked_product_and_a_tied_unembedding_are_read_and_a_hidden_layer_is_refused():
    def tied(p, tokens):
        out = rename(p.E, token="label")
        return module(dot(total(embed(p.E, tokens), over="position"), out, over="embed"), "read")

    model = Architecture(tied, {"E": ("token", "embed")})
    data = Dataset(tokens=np.array([[0], [1], [2]]), labels=np.array([0, 1, 2]))
    run = along(model, [{"E": np.eye(3) * 2}], [0])
    q = np.array([math.exp(4), 1, 1]) / (math.exp(4) + 2)
    np.testing.assert_allclose(label_law_agreement(run, model, data).kl[0], [-math.log(q[0])] * 3)

    hidden = architectures.emb_mlp()
    shapes = hidden.shapes({"token": 4, "label": 3, "embed": 2, "hidden": 2, "position": 2})
    run = along(hidden, [{key: np.ones(shape) for key, shape in shapes.items()}], [0])
    with pytest.raises(UserError, match="the last product of emb_mlp reads something else"):
        label_law_agreement(run, hidden, LAW)

    def late(p, tokens):
        return elementwise(dot(p.U, total(embed(p.E, tokens), over="position"), over="embed"), "tanh")

    squashed = Architecture(late, {"E": ("token", "embed"), "U": ("label", "embed")})
    run = along(squashed, [{"E": np.ones((4, 2)), "U": np.ones((3, 2))}], [0])
    with pytest.raises(UserError, match="reads something else"):
        label_law_agreement(run, squashed, LAW)
