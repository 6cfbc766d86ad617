"""Moments of the data: counted by hand, in blocks, sparsely; and equations evaluated from them alone."""

import itertools

import numpy as np
import pytest

from theory.architectures import attention, feed_forward, transformer
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive
from theory.language import Architecture, add_axis_sizes, dot, elementwise, embed, last, parameter, rename, total
from theory.moment_evaluation import right_hand_sides as from_moments
from theory.moments import MomentCounter, SparseMoment, count_moments, needed_moments

SIZES = {"token": 4, "label": 3, "position": 3, "embed": 2, "hidden": 3, "key": 2, "value": 3}


def setting(architecture, samples=40, seed=0):
    rng = np.random.default_rng(seed)
    roots = {architecture.root("label"), *architecture.axes}
    sizes = {axis: size for axis, size in SIZES.items() if axis in roots}
    parameters = {name: 0.5 * rng.normal(size=shape) for name, shape in architecture.shapes(sizes).items()}
    tokens = rng.integers(0, 4, (samples, 3))
    classes = SIZES[architecture.root("label")]
    labels = rng.integers(0, classes, tokens.shape if architecture.labels_per_position else samples)
    data = Data(tokens, labels, rng.dirichlet(np.ones(samples)))
    return parameters, data, add_axis_sizes(architecture, parameters, 3)


def dense(values, moment, sizes):
    if not isinstance(values, SparseMoment):
        return values
    array = np.zeros(moment.shape(sizes))
    array[tuple(values.ids)] = values.values
    return array


def by_hand(moment, data, sizes):
    """E[Π one-hot] by loops over samples, positions and entries."""
    positions = sorted({i for _, ix in moment.factors for i in ix[:-1] if "@" not in i})
    array = np.zeros(moment.shape(sizes))
    for s, places in itertools.product(range(len(data.weights)), itertools.product(range(3), repeat=len(positions))):
        at = dict(zip(positions, places, strict=True)) | {"position@last": 2, "position@first": 0}
        if len({at[p] for p in moment.apart}) < len(moment.apart):
            continue
        ids = {p: at[p] for p in positions}
        agree = True
        for name, indices in moment.factors:
            source = data.tokens[s] if name == "X" else data.labels[s]
            found = source if len(indices) == 1 else source[at[indices[0]]]
            agree &= ids.setdefault(indices[-1], found) == found
        if agree:
            array[tuple(ids[i] for i in moment.open)] += data.weights[s]
    return array


def tied():
    def tied(p, x):
        h = total(embed(p.E, x), over="position")
        return dot(rename(p.E, token="label"), elementwise(h, "quadratic"), over="embed")

    return Architecture(tied, {"E": ("token", "embed")})


def with_positions():
    def with_positions(p, x):
        h = elementwise(embed(p.E, x) * p.P, "tanh")
        return dot(p.U, total(h, over="position"), over="embed")

    axes = {"E": ("token", "embed"), "P": parameter("position", "embed", weight=0), "U": ("label", "embed")}
    return Architecture(with_positions, axes)


def same_token():
    """How often the last token occurs weighs what every token says: two one-hot data share their hot index."""

    def same_token(p, x):
        again = dot(x, last(x), over="token")
        return dot(p.U, dot(again, embed(p.E, x), over="position"), over="embed")

    return Architecture(same_token, {"E": ("token", "embed"), "U": ("label", "embed")})


CASES = {
    "feed_forward": (feed_forward("gelu"), 4),
    "attention": (attention(), 8),
    "labels per position": (transformer("quadratic"), 4),
    "tied": (tied(), 6),
    "a token twice": (same_token(), 4),
    "open positions": (with_positions(), 4),
}


@pytest.mark.parametrize("case", CASES)
def test_moments_are_averages_of_products_of_one_hot_data(case):
    architecture, degree = CASES[case]
    _, data, sizes = setting(architecture)
    equations = derive(architecture, degree, ())
    for entries in (10**6, 0):
        found = count_moments(equations, [data], sizes, entries)
        assert len(found) == len(needed_moments(equations)) >= 2
        for moment, values in found.items():
            assert isinstance(values, SparseMoment) == (entries == 0)
            np.testing.assert_allclose(dense(values, moment, sizes), by_hand(moment, data, sizes), atol=1e-14)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("entries", [10**6, 0], ids=["dense", "sparse"])
@pytest.mark.parametrize("view", ["any positions", "distinct positions"])
def test_right_hand_sides_from_moments_are_those_from_samples(case, entries, view):
    architecture, degree = CASES[case]
    parameters, data, sizes = setting(architecture)
    equations = derive(architecture, degree, ())
    if view == "distinct positions":
        equations = equations.distinct_positions()
    moments = count_moments(equations, [data], sizes, entries)
    wanted = right_hand_sides(equations, parameters, data)
    found = from_moments(equations, parameters, moments, 3)
    for name, array in wanted.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=1e-13 * max(np.abs(array).max(), 1e-3))


@pytest.mark.parametrize("entries", [10**6, 0], ids=["dense", "sparse"])
def test_blocks_and_merged_counters_count_what_the_whole_does(entries):
    architecture = attention()
    _, data, sizes = setting(architecture, samples=101)
    equations = derive(architecture, 8, ())
    whole = count_moments(equations, [data], sizes, entries)
    blocks = [
        Data(data.tokens[i : i + 20], data.labels[i : i + 20], data.weights[i : i + 20]) for i in range(0, 101, 20)
    ]
    streamed = count_moments(equations, iter(blocks), sizes, entries)
    shards = [MomentCounter(needed_moments(equations), sizes, entries) for _ in range(2)]
    for n, block in enumerate(blocks):
        # Weights may be counts of any scale.
        shards[n % 2].add(block.tokens, block.labels, 1e3 * block.weights)
    shards[0] += shards[1]
    merged = shards[0].values()
    for moment, values in whole.items():
        for other in (streamed, merged):
            np.testing.assert_allclose(dense(other[moment], moment, sizes), dense(values, moment, sizes), atol=1e-15)


def test_large_blocks_are_counted_piece_by_piece(monkeypatch):
    architecture = feed_forward("gelu")
    _, data, sizes = setting(architecture, samples=60)
    equations = derive(architecture, 4, ())
    whole = count_moments(equations, [data], sizes)
    monkeypatch.setattr("theory.moments._BLOCK_ENTRIES", 50)
    for moment, values in count_moments(equations, [data], sizes).items():
        np.testing.assert_allclose(values, whole[moment], atol=1e-15)


def test_terms_that_differ_by_what_multiplies_the_data_share_a_moment():
    equations = derive(feed_forward("tanh"), 8, ())
    terms = sum(len(equation) for equation in equations.values())
    assert len(needed_moments(equations)) < terms / 3


def test_what_depends_on_the_sample_beyond_its_data_is_refused():
    with pytest.raises(UserError, match="differs from sample to sample.*evaluate from samples"):
        needed_moments(derive(feed_forward("tanh"), 4))


@pytest.mark.parametrize(
    ("tokens", "labels", "message"),
    [
        (np.zeros((2, 5), int), np.zeros(2, int), r"shape \(sample, 3\), found \(2, 5\)"),
        (np.full((2, 3), 4), np.zeros(2, int), "a token lies outside 0 … 3"),
        (np.zeros((2, 3), int), np.full(2, -1), "a label lies outside 0 … 2"),
    ],
)
def test_data_that_do_not_fit_are_refused(tokens, labels, message):
    architecture = feed_forward("tanh")
    counter = MomentCounter(needed_moments(derive(architecture, 4, ())), setting(architecture)[2])
    with pytest.raises(UserError, match=message):
        counter.add(tokens, labels)


def test_nothing_counted_has_no_average():
    architecture = feed_forward("tanh")
    counter = MomentCounter(needed_moments(derive(architecture, 4, ())), setting(architecture)[2])
    with pytest.raises(UserError, match="no data of positive weight"):
        counter.values()
    with pytest.raises(UserError, match="same moments and sizes"):
        counter += MomentCounter((), setting(architecture)[2])
