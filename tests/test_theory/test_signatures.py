"""Signatures against closed forms, against slow loops, and against the identities they must obey."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import theory.signatures as signatures
from theory import data
from theory.data import Dataset
from theory.errors import UserError
from theory.signatures import (
    cooccurrence_signature,
    cosine_similarity,
    label_signature,
    next_token_signature,
    position_signature,
    predicted_signature,
    prefix_set_signature,
    prefix_signature,
    previous_token_signature,
    token_probability,
    trace_back,
)


def random_law(seed: int, n_tokens: int = 3, n_labels: int = 4, length: int = 3) -> Dataset:
    """A random joint law over all sequences and labels: nothing is exchangeable or independent."""
    rng = np.random.default_rng(seed)
    box = itertools.product(*[range(n_tokens)] * length, range(n_labels))
    rows = np.array(list(box))
    weights = rng.dirichlet(np.full(len(rows), 0.3))
    return Dataset(rows[:, :-1], rows[:, -1], weights, n_tokens, n_labels, exact=True)


def random_next_token(seed: int, per_position: bool = True) -> Dataset:
    rng = np.random.default_rng(seed)
    stream = rng.integers(0, 4, (9, 6))
    weights = rng.dirichlet(np.ones(9))
    labels = stream[:, 1:] if per_position else stream[:, 0]
    return Dataset(stream[:, :-1], labels, weights, 4, 4)


def by_loop(dataset: Dataset, order: int, label: bool = True) -> np.ndarray:
    """The definition read aloud: every sample, every I, every tuple of distinct other positions."""
    L, V = dataset.length, dataset.n_tokens
    modes = ((dataset.n_labels,) if label else ()) + (V,) * order
    joint, r = np.zeros((V, *modes)), np.zeros(V)
    for x, y, w in zip(dataset.tokens, dataset.labels, dataset.weights, strict=True):
        for i in range(L):
            r[x[i]] += w / L
            tuples = [J for J in itertools.product(range(L), repeat=order) if len(set(J)) == order and i not in J]
            for J in tuples:
                head = (x[i], y) if label else (x[i],)
                joint[(*head, *(x[j] for j in J))] += w / L / len(tuples)
    return joint / r.reshape(-1, *[1] * len(modes))


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_label_signature_is_the_definition(order, storage):
    law = random_law(1)
    found = label_signature(law, order, storage=storage)
    assert found.is_sparse == (storage == "sparse")
    assert found.shape == (3, 4, *(3,) * order)
    np.testing.assert_allclose(found.array, by_loop(law, order), rtol=0, atol=1e-15)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_cooccurrence_signature_is_the_definition(order, storage):
    law = random_law(2)
    found = cooccurrence_signature(law, order, storage=storage)
    np.testing.assert_allclose(found.array, by_loop(law, order, False), rtol=0, atol=1e-15)


def test_chunks_do_not_change_the_result(monkeypatch):
    law = random_law(3)
    whole = label_signature(law, 2).array
    monkeypatch.setattr(signatures, "_CHUNK", 5)
    np.testing.assert_allclose(label_signature(law, 2).array, whole, rtol=0, atol=1e-15)
    sparse = label_signature(law, 2, storage="sparse")
    np.testing.assert_allclose(sparse.array, whole, rtol=0, atol=1e-15)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(1, 3), st.integers(2, 4))
def test_lemma_1(seed, n_tokens, n_labels, length):
    """Non-negative, sum 1, summing out a context mode, and norms that do not increase."""
    law = random_law(seed, n_tokens, n_labels, length)
    lower = label_signature(law, 0)
    for order in range(1, length):
        found = label_signature(law, order)
        assert (found.array >= 0).all()
        total = found.array.reshape(len(found.tokens), -1).sum(axis=1)
        np.testing.assert_allclose(total, 1, rtol=1e-12)
        for mode in found.modes[1:]:
            np.testing.assert_allclose(found.sum_out(mode), lower.array, rtol=0, atol=1e-13)
        without_label = cooccurrence_signature(law, order).array
        np.testing.assert_allclose(found.sum_out("label"), without_label, rtol=0, atol=1e-13)
        for high, low in zip(found.matrix, lower.matrix, strict=True):
            assert np.linalg.norm(high) <= np.linalg.norm(low) * (1 + 1e-12)
        lower = found


@pytest.mark.parametrize("seed", range(3))
def test_counting_identity(seed):
    """E[N_α H] = L r_α E[H | α], with H the indicator of a label and H = p_ν(x)."""
    law = random_law(seed)
    r = token_probability(law)
    count = (law.tokens[:, :, None] == np.arange(3)).sum(axis=1)
    one_hot = np.eye(4)[law.labels]
    left = np.einsum("s,sa,sn->an", law.weights, count, one_hot)
    right = law.length * r[:, None] * label_signature(law).array
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-15)
    np.testing.assert_allclose(label_signature(law).probability, r, rtol=0, atol=1e-15)
    p = np.random.default_rng(seed).dirichlet(np.ones(4), law.n_samples)
    left = np.einsum("s,sa,sn->an", law.weights, count, p)
    right = law.length * r[:, None] * predicted_signature(law, p).array
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-15)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_predicted_signature(order):
    """Certain predictions give the label signature; p(ν|x) averages what labels drawn from p do."""
    law = random_law(4)
    certain = np.eye(4)[law.labels]
    expected = label_signature(law, order).array
    np.testing.assert_allclose(predicted_signature(law, certain, order).array, expected, atol=1e-14)
    uniform = predicted_signature(law, np.full((law.n_samples, 4), 0.25), order)
    if order:
        expected = cooccurrence_signature(law, order).array
        np.testing.assert_allclose(uniform.sum_out("label"), expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(uniform.array[:, 0], uniform.array[:, 3], rtol=0, atol=1e-15)
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(4), law.n_samples)
    spread = Dataset(
        np.repeat(law.tokens, 4, axis=0),
        np.tile(np.arange(4), law.n_samples),
        (law.weights[:, None] * p).ravel(),
    )
    found = predicted_signature(law, p, order, tokens=["2", "0"])
    expected = label_signature(spread, order).array[[2, 0]]
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-14)


def test_predicted_signature_per_position():
    text = random_next_token(0)
    certain = np.eye(4)[text.labels]
    expected = label_signature(text).array
    np.testing.assert_allclose(predicted_signature(text, certain).array, expected, atol=1e-14)


@pytest.mark.parametrize("numbers", [2, 7, 20])
def test_similarity_of_add(numbers):
    """S(a, b) = 1 − |a − b|/N (theory.md, section 9)."""
    S = cosine_similarity(label_signature(data.add(numbers)))
    a = np.arange(numbers)
    np.testing.assert_allclose(S, 1 - abs(a[:, None] - a) / numbers, rtol=0, atol=1e-14)


def test_similarity_of_sub_and_mul():
    S = cosine_similarity(label_signature(data.sub(20)))
    np.testing.assert_allclose(np.diag(S[:, ::-1]), 1, rtol=0, atol=1e-14)
    assert S[0, 1] < 1 - 1e-3
    S = cosine_similarity(label_signature(data.mul(20)))
    expected = {(1, 2): 0.5, (3, 6): 0.5, (5, 10): 0.5, (1, 3): 0.3, (1, 7): 0.1}
    for (a, b), value in expected.items():
        assert S[a - 1, b - 1] == pytest.approx(value, abs=1e-14)


@pytest.mark.parametrize("modulus", range(1, 26))
def test_similarity_of_mod(modulus):
    """All ones if and only if M divides N."""
    S = cosine_similarity(label_signature(data.mod(20, modulus=modulus)))
    if 20 % modulus == 0:
        np.testing.assert_allclose(S, 1, rtol=0, atol=1e-14)
    else:
        assert S.min() < 1 - 1e-3
    known = {13: 0.8235, 8: 0.923, 3: 0.9925}
    if modulus in known:
        assert S.min() == pytest.approx(known[modulus], abs=5e-4)


def test_unused_outputs_do_not_change_similarity():
    few, many = data.mod(20, modulus=13), data.mod(20, modulus=13, n_outputs=40)
    assert label_signature(many).shape == (20, 40)
    np.testing.assert_allclose(cosine_similarity(label_signature(few)), cosine_similarity(label_signature(many)))


@pytest.mark.parametrize("numbers", range(2, 51))
def test_min_max_is_solved_by_order_zero(numbers):
    task = data.min_max(numbers)
    phi = label_signature(task).array
    answer = phi[task.tokens].sum(axis=1).argmax(axis=1)
    assert (answer == task.labels).mean() == 1.0
    y = np.arange(1, numbers + 1)
    np.testing.assert_allclose(phi[0], (2 * y - 1) / numbers**2, rtol=0, atol=1e-14)
    np.testing.assert_allclose(phi[1], (2 * (numbers - y) + 1) / numbers**2, rtol=0, atol=1e-14)
    expected = 0.5 * np.eye(numbers) + 1 / (2 * numbers)
    np.testing.assert_allclose(phi[2:], expected, rtol=0, atol=1e-14)


def test_label_law_is_the_anchors_signature():
    task = data.label_law("poisson", largest=20, labels="exact")
    found = label_signature(task)["a"]
    np.testing.assert_allclose(found, data.law_probabilities("poisson", 20), rtol=0, atol=1e-13)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("positions", [(1,), (2, 0), (-1, -1)])
def test_position_signature(positions, storage):
    """The fixed places may coincide with I or with each other."""
    law = random_law(5)
    joint, r = np.zeros((3, 4, *(3,) * len(positions))), np.zeros(3)
    for x, y, w in zip(law.tokens, law.labels, law.weights, strict=True):
        for i in range(3):
            joint[(x[i], y, *(x[s] for s in positions))] += w / 3
            r[x[i]] += w / 3
    expected = joint / r.reshape(3, *[1] * (1 + len(positions)))
    found = position_signature(law, positions, storage=storage)
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-14)
    without = position_signature(law, positions, label=False, storage=storage)
    np.testing.assert_allclose(without.array, expected.sum(axis=1), rtol=0, atol=1e-14)


def test_position_signature_given_the_last_token():
    law = random_law(6)
    joint = np.zeros((3, 4, 3))
    np.add.at(joint, (law.tokens[:, 2], law.labels, law.tokens[:, 0]), law.weights)
    found = position_signature(law, [0], given=-1)
    expected = joint / joint.sum(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(found.array, expected, rtol=0, atol=1e-14)
    np.testing.assert_allclose(found.probability, joint.sum(axis=(1, 2)), rtol=0, atol=1e-14)
    assert found.modes == ("label", "x_1")
    assert position_signature(law, [0, 1, 0]).modes == ("label", "x_1", "x_2", "x_1 (2)")


def test_next_and_previous_token():
    """With labels per position the label follows; otherwise the neighbour in the sequence does."""
    after, before = np.zeros((4, 4)), np.zeros((4, 4))
    text = random_next_token(1)
    for x, y, w in zip(text.tokens, text.labels, text.weights, strict=True):
        for s in range(5):
            after[x[s], y[s]] += w
            before[y[s], x[s]] += w
    found = next_token_signature(text)
    assert found.modes == ("label",)
    np.testing.assert_allclose(found.array, after / after.sum(1, keepdims=True), atol=1e-14)
    np.testing.assert_array_equal(found.array, label_signature(text).array)
    found = previous_token_signature(text)
    assert (found.axis, found.modes) == ("label", ("token",))
    np.testing.assert_allclose(found.array, before / before.sum(1, keepdims=True), atol=1e-14)

    one = random_next_token(1, per_position=False)
    pairs = np.zeros((4, 4))
    for x, w in zip(one.tokens, one.weights, strict=True):
        for s in range(4):
            pairs[x[s], x[s + 1]] += w
    found = next_token_signature(one).array
    np.testing.assert_allclose(found, pairs / pairs.sum(1, keepdims=True), atol=1e-14)
    found = previous_token_signature(one).array
    np.testing.assert_allclose(found, (pairs / pairs.sum(0)).T, atol=1e-14)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_trace_back_inverts_the_label_signature(storage):
    """Bayes: P(y=ν) ψ_ν(β) = r_β φ_β^{y;0}(ν); outputs nobody asks for are named."""
    law = dataclasses.replace(random_law(7), n_labels=6, label_names=("k", "l", "m", "n", "o", "p"))
    psi = trace_back(law, storage=storage)
    assert psi.tokens == ("k", "l", "m", "n") and psi.missing == ("o", "p")
    phi = label_signature(law)
    left = psi.probability[:, None] * psi.array
    right = (phi.probability[:, None] * phi.array).T[:4]
    np.testing.assert_allclose(left, right, rtol=0, atol=1e-15)
    np.testing.assert_allclose(trace_back(law, ["n"])["n"], psi["n"], rtol=0, atol=1e-15)


def test_prefix_signatures():
    text = random_next_token(2)
    position, pair, together = np.zeros((4, 4)), np.zeros((4, 4)), np.zeros((4, 4, 4))
    r = token_probability(text)
    for x, y, w in zip(text.tokens, text.labels, text.weights, strict=True):
        for s in range(5):
            for j in range(s + 1):
                position[x[j], y[s]] += w / (s + 1)
                pair[x[j], y[s]] += w
            for beta in set(x[:s].tolist()):
                together[x[s], y[s], beta] += w / 5
    for weighting, joint in (("position", position), ("pair", pair)):
        found = prefix_signature(text, weighting=weighting).array
        np.testing.assert_allclose(found, joint / joint.sum(1, keepdims=True), atol=1e-14)
    assert abs(position / position.sum() - pair / pair.sum()).max() > 1e-3
    for storage in ("dense", "sparse"):
        found = prefix_set_signature(text, storage=storage).array
        np.testing.assert_allclose(found, together / r[:, None, None], atol=1e-14)


def test_tokens_that_never_occur_are_named_not_nan():
    task = Dataset(
        [[0, 2], [2, 2], [1, 0]], [0, 1, 1], [0.5, 0.5, 0.0],
        n_tokens=5, token_names=("a", "b", "c", "d", "e"),
    )  # fmt: skip
    found = label_signature(task, 1)
    assert found.tokens == ("a", "c") and found.missing == ("b", "d", "e")
    assert np.isfinite(found.array).all()
    assert found.indices.tolist() == [0, 2]
    # The row of weight 0 leaves no explicit zeros behind: (a, 0, c), (c, 0, a) and (c, 1, c).
    assert label_signature(task, 1, storage="sparse").matrix.nnz == 3
    with pytest.raises(UserError, match="token 'd' never occurs"):
        found["d"]
    with pytest.raises(UserError, match="no token 'cc'; did you mean 'c'"):
        found["cc"]
    with pytest.raises(UserError, match="none of the tokens wanted occurs .* d, e"):
        label_signature(task, tokens=["d", "e"])


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_chosen_tokens_are_rows_of_the_whole(storage):
    task = data.add(5, length=3)
    whole = label_signature(task, 2)
    chosen = label_signature(task, 2, tokens=["4", 0], storage=storage)
    assert chosen.tokens == ("4", "1")
    np.testing.assert_allclose(chosen.array, whole.array[[3, 0]], rtol=0, atol=1e-15)
    np.testing.assert_allclose(chosen["4"], whole["4"], rtol=0, atol=1e-15)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("mode", ["label", "context_1", "context_2"])
def test_contract(storage, mode):
    law = random_law(8)
    found = label_signature(law, 2, storage=storage)
    at = ("label", "context_1", "context_2").index(mode)
    probe = np.random.default_rng(0).normal(size=(found.shape[1 + at], 2))
    letters = "anbc"
    expected = np.einsum(f"anbc,{letters[1 + at]}k->{letters.replace(letters[1 + at], '')}k", found.array, probe)
    np.testing.assert_allclose(found.contract(probe, mode), expected, rtol=0, atol=1e-14)
    one = found.contract(probe[:, 0], mode)
    np.testing.assert_allclose(one, expected[..., 0], rtol=0, atol=1e-14)
    with pytest.raises(UserError, match="mode 'context_1' needs 3 entries"):
        found.contract(np.ones(2), "context_1")
    with pytest.raises(UserError, match="no mode 'contxt_1'; did you mean 'context_1'"):
        found.contract(np.ones(3), "contxt_1")


def test_zero_frequency_is_the_order_below():
    """φ^{y;m−1} = φ^{y;m} c_0 (literature: Fourier link)."""
    task = data.mod(6, length=2, n_outputs=13)
    found = label_signature(task, 1).contract(np.ones(6))
    np.testing.assert_allclose(found, label_signature(task).array, rtol=0, atol=1e-15)


def test_labelled_form_is_an_xarray():
    xarray = pytest.importorskip("xarray")
    found = label_signature(data.add(4), 1)
    labelled = xarray.DataArray.from_dict(found.labelled())
    assert labelled.dims == ("token", "label", "context_1")
    assert float(labelled.sel(token="2", label="5", context_1="3")) == pytest.approx(0.25)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_cosine_similarity(storage):
    law = random_law(9)
    found = label_signature(law, 1, storage=storage)
    flat = found.array.reshape(3, -1)
    expected = flat @ flat.T / np.outer(*[np.linalg.norm(flat, axis=1)] * 2)
    np.testing.assert_allclose(cosine_similarity(found), expected, rtol=0, atol=1e-14)
    tiny = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(cosine_similarity(1e-200 * tiny), cosine_similarity(tiny))
    with pytest.raises(UserError, match="row '1' is zero"):
        cosine_similarity(np.array([[1.0, 0.0], [0.0, 0.0]]))
    with pytest.raises(UserError, match="row '0' is zero or not finite"):
        cosine_similarity(np.array([[np.nan, 0.0], [1.0, 0.0]]))


def test_the_size_is_predicted_before_it_is_made():
    task = data.add(20)
    with pytest.raises(UserError, match=r"dense label .* order 1 .* tokens="):
        label_signature(task, 1, storage="dense", memory=1000)
    with pytest.raises(UserError, match=r"sparse label .* order 1 .* tokens="):
        label_signature(task, 1, storage="sparse", memory=1000)
    few = label_signature(task, 1, tokens=["3"], storage="sparse", memory=4000)
    assert few.is_sparse and few.matrix.nnz == 20
    wide = Dataset([[0, 1, 2, 0]], [0], n_tokens=60_000, n_labels=60_000)
    found = label_signature(wide, 2)
    assert found.is_sparse and found.matrix.nnz == 12
    with pytest.raises(UserError, match="choose fewer tokens with tokens="):
        _ = found.array
    with pytest.raises(UserError, match="choose fewer tokens with tokens="):
        found["0"]
    overlap = cosine_similarity(found)
    # Contexts of 0: six pairs, each 1/6; of 1: three, each 1/3; they share (0, 2) and (2, 0).
    assert overlap[0, 1] == pytest.approx((1 / 9) / np.sqrt(1 / 18))
    with pytest.raises(UserError, match="more entries than can be numbered"):
        label_signature(wide, 3)
    assert len(found.missing) == 59_997


def test_auto_storage_becomes_sparse(monkeypatch):
    monkeypatch.setattr(signatures, "DENSE_BYTES", 8 * 20 * 39)
    assert not label_signature(data.add(20)).is_sparse
    assert label_signature(data.add(20), 1).is_sparse


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: label_signature(d, 2), r"order must be an integer in 0 … 1 .* found 2"),
        (lambda d: label_signature(d, True), "found True"),
        (lambda d: label_signature(d, tokens=["21"]), r"there is no token '21'; did you mean"),
        (lambda d: label_signature(d, tokens=[20]), r"indices lie in 0 … 19, found 20"),
        (lambda d: label_signature(d, tokens="3"), "must be a list of names or indices"),
        (lambda d: label_signature(d, tokens=["3", 2]), "must be distinct"),
        (lambda d: label_signature(d, tokens=[1.5]), "by name .* or index"),
        (lambda d: label_signature(d, tokens=[]), "the list is empty"),
        (lambda d: label_signature(d, storage="spars"), "did you mean 'sparse'"),
        (lambda d: cooccurrence_signature(d, 0), r"integer in 1 … 1"),
        (lambda d: position_signature(d, [2]), r"integer in 0 … 1, .* found 2"),
        (lambda d: position_signature(d, [], label=False), "at least one position"),
        (lambda d: predicted_signature(d, np.ones((3, 39))), r"\(sample, label\) = \(400, 39\)"),
        (lambda d: predicted_signature(d, np.ones((400, 39))), "sum to 1 over the labels"),
        (lambda d: prefix_signature(d), "needs one label per position"),
        (lambda d: prefix_set_signature(d), "needs one label per position"),
    ],
)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call(data.add(20))


def test_errors_with_labels_per_position():
    text = random_next_token(0)
    with pytest.raises(UserError, match="use order 0 or prefix_set_signature"):
        label_signature(text, 1)
    with pytest.raises(UserError, match="label=False"):
        position_signature(text, [0])
    with pytest.raises(UserError, match="use order 0"):
        predicted_signature(text, np.full((9, 5, 4), 0.25), 1)
    with pytest.raises(UserError, match="did you mean 'position'"):
        prefix_signature(text, weighting="positions")
    with pytest.raises(UserError, match="no signature of order 1"):
        cooccurrence_signature(Dataset([[0], [1]], [0, 0]), 1)
    with pytest.raises(UserError, match="at least two tokens"):
        next_token_signature(Dataset([[0], [1]], [0, 0]))


def test_long_windows_stay_cheap():
    """Order 1 on windows of 32 counts pairs; it must agree with counting tokens per window."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, (40, 32))
    task = Dataset(tokens, rng.integers(0, 3, 40), n_tokens=50)
    found = cooccurrence_signature(task, 1)
    counts = defaultdict(float)
    for row in tokens:
        n = np.bincount(row, minlength=50)
        for a, b in itertools.product(np.flatnonzero(n), repeat=2):
            counts[a, b] += n[a] * (n[b] - (a == b)) / (40 * 32 * 31)
    r = token_probability(task)
    for (a, b), joint in counts.items():
        assert found.array[a, b] == pytest.approx(joint / r[a], abs=1e-14)
