"""Counts of a corpus: against a plain Python loop, merged in any order, resumed anywhere, and as signatures."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import tracemalloc
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theory import corpus, signatures
from theory.corpus import counting, pairs
from theory.corpus.counting import Counting, Request
from theory.corpus.counts import Counts
from theory.corpus.pairs import COUNT, HIGH, LOW
from theory.data.dataset import Dataset
from theory.errors import UserError

V = 4
documents = st.lists(st.lists(st.integers(0, V - 1), max_size=14), min_size=1, max_size=6)
lengths = st.integers(1, 5)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    monkeypatch.setenv("STAIRCASE_CACHE_DIR", "off")


def everything(length: int) -> Request:
    return Request(distances=(1, 2, 5), length=length, past=True, present=True, chosen=(0, 2))


def counted(texts: list[list[int]], request: Request, v: int = V, cuts: tuple[int, ...] = ()) -> Counts:
    """Count documents in one stream, handed over in blocks that end at `cuts`."""
    counting = Counting(v, request)
    ids = np.array([token for text in texts for token in text], dtype=np.int64)
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(ids)}), len(ids)]
    for low, high in itertools.pairwise(edges):
        # A document without tokens at an edge begins in the block before, as when it is read.
        inside = starts[(starts >= low) & (starts < high)] - low if high < len(ids) else starts[starts >= low] - low
        counting.add(ids[low:high], inside)
    return Counts.of(counting.progress(), tuple("abcdefghij"[:v]), "letters", request, "a test")


def naive(texts: list[list[int]], request: Request) -> dict[str, Counter]:
    """The definitions as loops."""
    found = {name: Counter() for name in ("past", "past weight", "present weight", "prefix set")}
    found |= {f"distance {k}": Counter() for k in request.distances}
    for text in texts:
        for k in request.distances:
            found[f"distance {k}"].update(zip(text, text[k:], strict=False))
        for begin in range(0, len(text), request.length):
            window = text[begin : begin + request.length + 1]
            for s, (present, label) in enumerate(itertools.pairwise(window), start=1):
                for seen in window[:s]:
                    found["past"][seen, label] += 1
                    found["past weight"][seen, label] += Fraction(1, s)
                    found["present weight"][present, seen] += Fraction(1, s)
                if present in request.chosen:
                    for seen in set(window[: s - 1]):
                        found["prefix set"][request.chosen.index(present) * V + label, seen] += 1
    return found


def as_counter(table) -> Counter:
    table = table.tocoo()
    return Counter({(int(r), int(c)): int(n) for r, c, n in zip(*table.coords, table.data, strict=True)})


@settings(max_examples=150, deadline=None)
@given(documents, lengths, st.lists(st.integers(0, 80), max_size=3))
def test_counts_equal_a_plain_loop(texts, length, cuts):
    request = everything(length)
    found = counted(texts, request, cuts=tuple(cuts))
    expected = naive(texts, request)
    for k in request.distances:
        assert as_counter(found.tables[f"distance {k}"]) == expected[f"distance {k}"]
    assert as_counter(found.tables["prefix set"]) == expected["prefix set"]
    assert as_counter(found.tables[f"past {COUNT}"]) == expected["past"]
    for name in ("past", "present"):
        weights = expected[f"{name} weight"]
        high, low = (found.tables[f"{name} {part}"].toarray() for part in (HIGH, LOW))
        assert low.max(initial=0) < 1 << 30
        for r, c in itertools.product(range(V), repeat=2):
            exact = Fraction(int(high[r, c]) * 2**30 + int(low[r, c]), 2**60)
            # Each of at most 84 × 5 weights is off by at most half of 2^-60.
            assert abs(exact - weights[r, c]) <= Fraction(210, 2**60)
    assert found.tokens == sum(map(len, texts)) and found.documents == len(texts)
    s = np.concatenate([np.arange(max(len(text) - 1, 0)) % length for text in texts])
    assert np.array_equal(found.positions, np.bincount(s.astype(int), minlength=length))


@settings(max_examples=60, deadline=None)
@given(documents, lengths, st.integers(2, 4), st.randoms(use_true_random=False))
def test_shards_merged_in_any_order_and_grouping_equal_the_whole(texts, length, n_parts, chance):
    request = everything(length)
    whole = counted(texts, request)
    parts = [counted(texts[i::n_parts], request) for i in range(n_parts)]
    chance.shuffle(parts)
    while len(parts) > 1:  # in a random tree of sums
        i = chance.randrange(len(parts) - 1)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    assert parts[0].equals(whole)
    one = np.array(sorted(whole.tables["past " + HIGH].data))
    assert np.array_equal(one, sorted(parts[0].tables["past " + HIGH].data))


def test_unequal_counts_are_told_apart():
    request = everything(3)
    one, other = counted([[0, 1, 2]], request), counted([[0, 1, 3]], request)
    assert one.equals(counted([[0, 1, 2]], request)) and not one.equals(other)


def test_counting_goes_on_from_any_token():
    texts = [[random.Random(seed).randrange(V) for _ in range(23)] for seed in range(3)]
    request = everything(4)
    whole = counted(texts, request)
    ids = np.concatenate([np.array(text) for text in texts])
    for cut in range(len(ids) + 1):
        first = Counting(V, request)
        starts = np.array([0, 23, 46])
        first.add(ids[:cut], starts[starts < cut])
        second = Counting(V, request, first.progress())
        second.add(ids[cut:], starts[starts >= cut] - cut)
        assert Counts.of(second.progress(), whole.names, "letters", request, "a test").equals(whole), cut


@pytest.mark.parametrize("v", [7, 300])
def test_large_blocks_dense_tables_and_small_buffers_count_alike(v, monkeypatch):
    rng = np.random.default_rng(1)
    ids = rng.integers(0, v, 30_000)
    starts = np.sort(rng.choice(30_000, 200, replace=False))
    starts[0] = 0
    request = Request(distances=(1, 3), length=6, past=True, present=True, chosen=(1, 5))
    results = []
    for block, dense, stretch in ((1 << 21, 0, 1 << 18), (1000, 0, 1 << 18), (1000, 1 << 25, 777)):
        monkeypatch.setattr(pairs, "_BLOCK", block)
        monkeypatch.setattr(pairs, "DENSE_CELLS", dense)
        monkeypatch.setattr(counting, "_STRETCH", stretch)
        results.append(corpus.count_ids(ids, v, starts, request=request))
    assert results[0].equals(results[1]) and results[0].equals(results[2])
    within = np.ones(30_000, dtype=bool)
    within[starts] = False
    expected = np.bincount(ids[:-1][within[1:]] * v + ids[1:][within[1:]], minlength=v * v)
    assert np.array_equal(results[0].tables["distance 1"].toarray().ravel(), expected)


def test_weights_are_correct_to_the_last_bit_of_their_sixty():
    s = np.arange(1, 1025)
    high, low = pairs.weight_of(s)
    for i in (1, 2, 3, 7, 32, 1000, 1024):
        whole = int(high[i - 1]) * 2**30 + int(low[i - 1])
        assert abs(Fraction(whole, 2**60) - Fraction(1, i)) <= Fraction(1, 2**61)
    assert low.max() < 2**30 and low.min() >= 0


def windows(ids: np.ndarray, length: int) -> Dataset:
    """One document as the data set of its complete windows."""
    cut = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[::length]
    names = tuple("abcde")
    return Dataset(cut[:, :-1], cut[:, 1:], n_tokens=5, n_labels=5, token_names=names, label_names=names)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_signatures_equal_those_of_the_same_windows(seed):
    length = 6
    ids = np.random.default_rng(seed).choice(5, size=40 * length + 1, p=[0.4, 0.3, 0.2, 0.1, 0])
    dataset = windows(ids, length)
    request = Request(distances=(1, 2), length=length, past=True, present=True, chosen=(0, 2))
    found = Counts.of(
        corpus.count_ids(ids, 5, request=request).progress, dataset.token_names, "letters", request, "a test"
    )
    for mine, reference in (
        (found.next_token(), signatures.next_token_signature(dataset)),
        (found.previous_token(), signatures.previous_token_signature(dataset)),
        (found.prefix(), signatures.prefix_signature(dataset)),
        (found.prefix("pair"), signatures.prefix_signature(dataset, weighting="pair")),
        (found.prefix_set(), signatures.prefix_set_signature(dataset, ["a", "c"])),
        (found.prefix_set(["c"]), signatures.prefix_set_signature(dataset, ["c"])),
        (found.next_token(["b", "a", "e"]), signatures.next_token_signature(dataset, ["b", "a", "e"])),
    ):
        for field in ("kind", "order", "axis", "tokens", "missing", "modes", "mode_names"):
            assert getattr(mine, field) == getattr(reference, field)
        assert np.array_equal(mine.indices, reference.indices)
        np.testing.assert_allclose(mine.array, reference.array, rtol=1e-13, atol=1e-16)
        np.testing.assert_allclose(mine.probability, reference.probability, rtol=1e-13)
    skipped = np.bincount(ids[:-2] * 5 + ids[2:], minlength=25).reshape(5, 5)[:4]
    np.testing.assert_allclose(found.skip_gram(2).array, skipped / skipped.sum(axis=1, keepdims=True), rtol=1e-15)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_moments_are_expectations_over_windows(seed):
    length = 5
    ids = np.random.default_rng(seed).integers(0, 5, 30 * length + 1)
    dataset = windows(ids, length)
    request = Request(length=length, past=True, present=True)
    found = corpus.count_ids(ids, 5, request=request).moments()
    n = dataset.tokens.size
    p, m, q = np.zeros((5, 5)), np.zeros((5, 5)), np.zeros((5, 5))
    for x, y in zip(dataset.tokens, dataset.labels, strict=True):
        for s in range(length):
            context = np.bincount(x[: s + 1], minlength=5) / (s + 1)
            p[x[s], y[s]] += 1 / n
            m[x[s]] += context / n
            q[:, y[s]] += context / n
    np.testing.assert_allclose(found.P.toarray(), p, rtol=1e-12)
    np.testing.assert_allclose(found.M.toarray(), m / p.sum(axis=1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(found.Q.toarray(), q, rtol=1e-12)
    np.testing.assert_allclose(found.kappa, np.mean(1 / np.arange(1, length + 1)), rtol=1e-15)
    np.testing.assert_allclose(found.token, p.sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.label, p.sum(axis=0), rtol=1e-12)


def test_counts_that_do_not_match_are_not_merged():
    request = everything(3)
    one = counted([[0, 1, 2]], request)
    with pytest.raises(UserError, match="their tokenizers differ"):
        one + dataclasses.replace(one, tokenizer="others")
    with pytest.raises(UserError, match="do not match"):
        one + counted([[0, 1, 2]], everything(4))
    with pytest.raises(UserError, match="token number 4 does not match the vocabulary, whose numbers are 0 … 3"):
        counted([[0, 4]], request)


def test_what_was_not_counted_is_named():
    found = corpus.count_ids(np.array([0, 1, 0, 1]), 2)
    for ask, match in (
        (lambda: found.prefix(), "the token in the past was not counted; ask for it when counting: past="),
        (lambda: found.moments(), "moments="),
        (lambda: found.prefix_set(), "prefix_set="),
        (lambda: found.skip_gram(2), "pairs at distance 2 were not counted, only 1"),
        (lambda: found.next_token(["2"]), "there is no token '2'"),
    ):
        with pytest.raises(UserError, match=match):
            ask()
    chosen = corpus.count_ids(np.array([0, 1, 0, 1]), 2, request=Request(chosen=(0,)))
    with pytest.raises(UserError, match="prefix sets of '1' were not counted"):
        chosen.prefix_set(["1"])
    with pytest.raises(UserError, match="weighting cannot be 'pairs'; did you mean 'pair'"):
        corpus.count_ids(np.array([0, 1, 0, 1]), 2, request=Request(past=True)).prefix("pairs")
    with pytest.raises(UserError, match="a distance must be an integer in 1"):
        Request(distances=(0,))


def test_memory_follows_the_vocabulary_and_not_the_corpus():
    rng = np.random.default_rng(0)
    block = rng.integers(0, 50, 1 << 18)
    peaks = []
    for repeats in (10, 30):
        counting = Counting(50, Request(distances=(1, 2), length=4, past=True))
        counting.add(block, [0])  # buffers are made
        tracemalloc.start()
        for _ in range(repeats):
            counting.add(block)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_sums_of_many_parts_do_not_depend_on_their_order():
    request = everything(5)
    parts = [counted([[(i * j) % V for j in range(1, 30)]], request) for i in range(12)]
    forwards = functools.reduce(Counts.__add__, parts)
    backwards = functools.reduce(Counts.__add__, parts[::-1])
    assert forwards.equals(backwards)
    for weighting in ("position", "pair"):
        assert np.array_equal(forwards.prefix(weighting).array, backwards.prefix(weighting).array)
