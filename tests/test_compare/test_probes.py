"""Probes and decompositions on embeddings that are built from signatures."""

import json
import math

import numpy as np
import pytest
from constructed import build

from compare import probes
from compare.decomposition import similarity_decomposition
from compare.probes import fit_probe, fourier_correlation, probe_correlation
from compare.similarity import signature_correlation, signature_similarity
from theory.data import arithmetic
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.signatures import cooccurrence_signature, cosine_similarity, label_signature


def random_law(n=12, length=2, labels=6, samples=400):
    rng = np.random.default_rng(0)
    tokens = rng.integers(n, size=(samples, length))
    tokens[:n, 0] = np.arange(n)
    return Dataset(tokens=tokens, labels=rng.integers(labels, size=samples), n_tokens=n)


DATA = random_law()
SIGNATURE = label_signature(DATA, 1)
TRUE = np.random.default_rng(1).normal(size=12)


@pytest.mark.parametrize("objective", ["pearson", "mse"])
@pytest.mark.parametrize(("order", "length"), [(1, 2), (2, 3)])
def test_the_gradient_is_that_of_the_objective(order, length, objective):
    tensor = label_signature(random_law(5, length, 3, 60), order).array
    rng = np.random.default_rng(3)
    vector, target = rng.normal(size=5), cosine_similarity(rng.normal(size=(5, 4)))
    on = np.triu(np.ones((5, 5), bool), 1)
    on[0, 3] = False
    found = probes._gradient(tensor, vector, target, on, objective)

    def value(v):
        return probes._value(tensor, v, target, on, objective)

    numeric = [(value(vector + 1e-6 * e) - value(vector - 1e-6 * e)) / 2e-6 for e in np.eye(5)]
    np.testing.assert_allclose(found, numeric, rtol=1e-5, atol=1e-9)


def test_embeddings_made_by_a_probe_are_recognised_also_for_tokens_held_out():
    similarity = cosine_similarity(SIGNATURE.contract(TRUE))
    found = fit_probe(SIGNATURE, similarity, folds=3)
    assert found.pearson > 0.99 and found.mse < 0.01
    assert found.mean_held_out_pearson > 0.9
    assert abs(found.vector @ TRUE) / np.linalg.norm(TRUE) > 0.9
    assert np.linalg.norm(found.vector) == pytest.approx(1.0)
    # Adam has local optima: one start gets stuck in one of the folds.
    assert fit_probe(SIGNATURE, similarity, folds=3, starts=1).mean_held_out_pearson < 0.8
    assert fit_probe(SIGNATURE, similarity, folds=3).vector.tolist() == found.vector.tolist()
    json.dumps(found.to_dict(), allow_nan=False)


def test_noise_is_fitted_but_not_found_in_tokens_held_out():
    numbers = []
    for seed in range(4):
        similarity = cosine_similarity(np.random.default_rng(seed).normal(size=(12, 5)))
        found = fit_probe(SIGNATURE, similarity, folds=3, seed=seed, steps=150, starts=1)
        numbers.append((found.pearson, found.mean_held_out_pearson))
    fitted, held_out = np.mean(numbers, axis=0)
    assert fitted > 0.3 and held_out < 0.2


def test_no_token_of_a_fold_enters_its_fit_and_pairs_are_each_held_out_once():
    rng = np.random.default_rng(0)
    judged = np.zeros((11, 11), int)
    for fit_on, judge_on in probes._splits(11, 3, "tokens", rng):
        tokens = set(np.ravel(np.nonzero(judge_on)))
        assert len(tokens) in (3, 4) and judge_on.sum() == math.comb(len(tokens), 2)
        assert not tokens & set(np.ravel(np.nonzero(fit_on)))
        assert fit_on.sum() == math.comb(11 - len(tokens), 2)
        judged += judge_on
    assert judged.max() == 1
    judged[:] = 0
    for fit_on, judge_on in probes._splits(11, 5, "pairs", rng):
        assert judge_on.sum() == 11 and not np.any(fit_on & judge_on)
        assert np.array_equal(fit_on | judge_on, np.triu(np.ones((11, 11), bool), 1))
        judged += judge_on
    assert np.array_equal(judged, np.triu(np.ones((11, 11), int), 1))


def test_an_order_two_probe_is_fitted_and_works_by_pairs():
    data = random_law(9, 3, 5, 300)
    signature = label_signature(data, 2)
    v = np.random.default_rng(5).normal(size=9)
    similarity = cosine_similarity(signature.array @ v @ v)
    found = fit_probe(signature, similarity, folds=3, hold_out="pairs", objective="mse", starts=12)
    assert found.order == 2 and found.pearson > 0.95 and found.hold_out == "pairs"
    assert found.held_out_mse.mean() < 0.05


def test_a_probe_along_a_trajectory_is_refitted_and_skips_what_has_no_similarity():
    rows = SIGNATURE.contract(TRUE)
    E = np.stack([np.zeros_like(rows), rows, np.ones_like(rows)])
    found = probe_correlation(build([0, 1, 2], {"E": E}, [1, 1, 1]), SIGNATURE, embedding="E", folds=3, starts=1)
    assert np.isnan(found.fitted).tolist() == [True, False, True]
    assert found.held_out[1] == fit_probe(SIGNATURE, cosine_similarity(rows), folds=3, starts=1).mean_held_out_pearson
    seeded = build([0, 1, 2], {"E": np.stack([E, E])}, np.ones((2, 3)), seeds=(0, 1))
    chosen = probe_correlation(seeded, SIGNATURE, embedding="E", at=[1], folds=3, starts=1)
    assert chosen.times.tolist() == [1.0] and chosen.fitted.shape == (2, 1)
    assert chosen.fitted[1, 0] == found.fitted[1]
    json.dumps(found.to_dict(), allow_nan=False)


def test_what_cannot_be_probed_is_refused():
    similarity = cosine_similarity(SIGNATURE.contract(TRUE))
    for signature, target, options, message in (
        (label_signature(DATA, 0), similarity, {}, "order at least 1"),
        (cooccurrence_signature(DATA, 1), similarity, {}, "co-occurrence"),
        (SIGNATURE, similarity[:5, :5], {}, "each of 12 tokens"),
        (SIGNATURE, similarity, {"folds": 5}, "12 tokens make 2 … 4 folds"),
        (SIGNATURE, similarity, {"folds": 1}, "found folds = 1"),
        (SIGNATURE, similarity, {"hold_out": "token"}, "did you mean 'tokens'"),
        (SIGNATURE, similarity, {"starts": 0}, "at least one start"),
        (SIGNATURE, similarity, {"objective": "spearman"}, "unknown objective"),
        (SIGNATURE, np.ones((12, 12)), {}, "the same for all pairs"),
    ):
        with pytest.raises(UserError, match=message):
            fit_probe(signature, target, **({"folds": 3} | options))


# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 4])
def test_pure_cosine_embeddings_on_modular_addition_have_correlation_one_at_their_frequency(k):
    data = arithmetic.mod(numbers=8)
    angle = 2 * np.pi * k * np.arange(8) / 8
    E = np.stack([np.cos(angle), np.sin(angle)], axis=1)[None]
    found = fourier_correlation(build([0], {"E": E}, [1]), label_signature(data, 1), embedding="E")
    assert found.frequencies.tolist() == [0, 1, 2, 3, 4]
    assert found.pearson[0, k] == pytest.approx(1.0)
    assert np.isnan(found.pearson[0, 0])  # order 0 of modular addition
    assert np.all(np.delete(found.pearson[0], [0, k]) < 0.5)
    json.dumps(found.to_dict(), allow_nan=False)


def test_frequency_zero_is_the_order_zero_correlation_and_a_cycle_may_be_a_part_of_the_tokens():
    base = arithmetic.add(numbers=6)
    tokens = np.concatenate([np.full((36, 1), 0), base.tokens + 1], axis=1)
    names = ("plus", *(f"n{i}" for i in range(6)))
    data = Dataset(tokens=tokens, labels=base.labels, token_names=names)
    rng = np.random.default_rng(4)
    run = build([0], {"E": rng.normal(size=(1, 7, 3))}, [1])
    signature = label_signature(data, 1)
    found = fourier_correlation(run, signature, embedding="E", cycle=names[1:])
    # By hand: among the numbers' rows, contracted with 1 on the numbers.
    h = signature.array[1:, :, 1:].sum(-1)
    expected = np.corrcoef(*(cosine_similarity(x)[np.triu_indices(6, 1)] for x in (h, run["E"].values[0, 1:])))[0, 1]
    assert found.pearson[0, 0] == pytest.approx(expected)
    shuffled = fourier_correlation(run, signature, embedding="E", cycle=[names[i] for i in (3, 1, 2, 6, 4, 5)])
    assert shuffled.pearson[0, 0] == pytest.approx(expected)
    plain = build([0], {"E": rng.normal(size=(1, 6, 3))}, [1])
    whole = fourier_correlation(plain, label_signature(base, 1), embedding="E")
    order_zero = signature_correlation(plain, signature_similarity(base), embedding="E")
    assert whole.pearson[0, 0] == pytest.approx(order_zero.pearson[0])
    for refused, cycle, message in (
        (label_signature(data, 0), None, "order 0"),
        (signature, ["n0", "n9", "n1"], "names no token: 'n9'"),
        (signature, ["n0", "n1"], "three tokens"),
    ):
        with pytest.raises(UserError, match=message):
            fourier_correlation(run, refused, embedding="E", cycle=cycle)


def unit(rows):
    rows = rows.reshape(len(rows), -1)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_a_known_mixture_of_orders_is_taken_apart():
    zero, one = unit(label_signature(DATA, 0).array), unit(SIGNATURE.array)
    mixed = np.concatenate([np.sqrt(0.3) * zero, np.sqrt(0.7) * one], axis=1)
    width = mixed.shape[1]
    rows = [np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in (zero, one, mixed)]
    found = similarity_decomposition(
        build([0, 1, 2], {"E": np.stack(rows)}, [1] * 3), DATA, embedding="E", orders=[1, 0]
    )
    np.testing.assert_allclose(found.weight[0], [1, 0, 0.3], atol=1e-12)
    np.testing.assert_allclose(found.weight[1], [0, 1, 0.7], atol=1e-12)
    np.testing.assert_allclose(found.r2, 1, atol=1e-12)
    np.testing.assert_allclose(found.nested_r2[1], 1, atol=1e-12)
    s = [cosine_similarity(array)[np.triu_indices(12, 1)] for array in (zero, one)]
    np.testing.assert_allclose(found.nested_r2[0][:2], [1, np.corrcoef(*s)[0, 1] ** 2], atol=1e-12)
    json.dumps(found.to_dict(), allow_nan=False)


def test_a_similarity_that_falls_with_the_signatures_has_weight_zero_but_is_seen_by_nested_r2():
    zero = cosine_similarity(label_signature(DATA, 0))
    rows = np.linalg.cholesky(np.eye(12) + 0.05 * (np.eye(12) - zero))
    found = similarity_decomposition(build([0], {"E": rows[None]}, [1]), DATA, embedding="E", orders=[0])
    assert found.weight[0][0] == 0 and found.r2[0] == pytest.approx(0)
    assert found.nested_r2[0][0] == pytest.approx(1)


def test_a_constant_order_has_no_weight_and_undefined_similarities_are_nan():
    data = arithmetic.mod(numbers=6)
    one = unit(label_signature(data, 1).array)
    rng = np.random.default_rng(0)
    E = np.stack([rng.normal(size=one.shape), np.ones_like(one), 0 * one])
    found = similarity_decomposition(build([0, 1, 2], {"E": E}, [1] * 3), data, embedding="E", orders=[0])
    assert np.isnan(found.weight[0]).all()
    np.testing.assert_allclose(found.nested_r2[0], [0, math.nan, math.nan], atol=1e-12)
    with pytest.raises(UserError, match="distinct orders"):
        similarity_decomposition(build([0], {"E": E[:1]}, [1]), data, embedding="E", orders=[0, 0])
    small = arithmetic.add(numbers=3)
    with pytest.raises(UserError, match="3 pairs"):
        similarity_decomposition(build([0], {"E": E[:1, :3]}, [1]), small, embedding="E")
