"""Ranks, Fourier power, principal components and alignments of arrays made to have known ones."""

import json
import math

import numpy as np
import pytest
from scipy.spatial import procrustes as scipy_procrustes
from scipy.stats import ortho_group

from compare.spectra import effective_rank, fourier_profile, principal_components, procrustes
from theory.data import arithmetic
from theory.errors import UserError
from theory.signatures import label_signature

RNG = np.random.default_rng(0)


def with_singular_values(values, shape=(7, 5)):
    left, right = ortho_group.rvs(shape[0], random_state=1), ortho_group.rvs(shape[1], random_state=2)
    return left[:, : len(values)] * values @ right[: len(values)]


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_r_equal_singular_values_have_rank_r_in_both_measures(rank):
    found = effective_rank(1e-120 * with_singular_values(np.ones(rank)))
    assert (found.entropy, found.participation) == (pytest.approx(rank), pytest.approx(rank))


def test_unequal_singular_values_by_hand():
    found = effective_rank(with_singular_values([3.0, 1.0]))
    assert found.entropy == pytest.approx(4 / 3**0.75)  # exp(H(3/4, 1/4))
    assert found.participation == pytest.approx(100 / 82)


def test_a_common_direction_counts_unless_rows_are_centred_and_zero_rows_have_no_rank():
    rows = np.stack([np.outer(np.ones(4), [1.0, 2.0, 3.0]), np.zeros((4, 3))])
    np.testing.assert_allclose(effective_rank(rows).entropy, [1, math.nan])
    assert np.isnan(effective_rank(rows, centred=True).entropy).all()
    rows = RNG.normal(size=(3, 2, 6, 4)) + 50.0
    assert effective_rank(rows).participation.shape == (3, 2)
    assert effective_rank(rows).participation.max() < 1.1 < effective_rank(rows, centred=True).participation.min()
    json.dumps(effective_rank(rows).to_dict(), allow_nan=False)
    with pytest.raises(UserError, match="not finite"):
        effective_rank(np.full((2, 2), math.nan))
    with pytest.raises(UserError, match="axes"):
        effective_rank(np.ones(3))


@pytest.mark.parametrize(("n", "k"), [(8, 3), (8, 4), (9, 4)])
def test_a_pure_cosine_has_all_its_power_at_its_frequency(n, k):
    angle = 2 * np.pi * k * np.arange(n) / n
    rows = 5.0 + np.cos(angle + 0.4)[:, None] * np.array([1.0, 2.0])
    found = fourier_profile(rows)
    expected = np.zeros(n // 2 + 1)
    expected[k] = (5 * np.cos(angle + 0.4) ** 2).sum()
    expected[0] = n * 50
    np.testing.assert_allclose(found.power, expected, atol=1e-12)
    np.testing.assert_allclose(found.share[k], 1.0)
    assert found.dominant(1.0) == [k]


@pytest.mark.parametrize("n", [7, 8])
def test_power_adds_up_to_the_squared_norm_and_does_not_depend_on_the_first_token(n):
    rows = RNG.normal(size=(2, n, 3))
    found = fourier_profile(rows)
    np.testing.assert_allclose(found.power.sum(-1), (rows**2).sum((-1, -2)))
    np.testing.assert_allclose(fourier_profile(np.roll(rows, 2, axis=1)).power, found.power)
    assert found.frequencies.tolist() == list(range(n // 2 + 1))


def test_dominant_frequencies_are_ordered_by_power_and_no_more_than_needed():
    angles = 2 * np.pi * np.outer(np.arange(12), [1, 2, 5]) / 12
    found = fourier_profile(np.cos(angles) * np.sqrt([0.2, 0.7, 0.1]))
    np.testing.assert_allclose(found.share[[1, 2, 5]], [0.2, 0.7, 0.1])
    assert [found.dominant(p) for p in (0.7, 0.71, 0.9, 0.91)] == [[2], [2, 1], [2, 1], [2, 1, 5]]
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(UserError, match="do not vary"):
        fourier_profile(np.zeros((4, 2))).dominant()
    with pytest.raises(UserError, match="in \\(0, 1\\]"):
        found.dominant(90)
    with pytest.raises(UserError, match="one profile"):
        fourier_profile(np.ones((2, 4, 2))).dominant()


def test_principal_components_of_a_line_in_a_plane():
    rows = np.outer(np.arange(5.0), [3.0, 4.0]) + [1.0, 7.0]
    found = principal_components(rows, 2)
    np.testing.assert_allclose(found.explained, [1, 0], atol=1e-15)
    np.testing.assert_allclose(found.directions[0], [0.6, 0.8])
    np.testing.assert_allclose(found.scores[:, 0], 5 * (np.arange(5.0) - 2))
    np.testing.assert_allclose(found.mean, [7, 15])


def test_all_components_rebuild_the_rows_and_explain_everything():
    rows = RNG.normal(size=(6, 4))
    found = principal_components(rows, 4)
    np.testing.assert_allclose(found.scores @ found.directions + found.mean, rows)
    assert found.explained.sum() == pytest.approx(1) and np.all(np.diff(found.explained) < 0)
    np.testing.assert_allclose(found.explained, np.var(found.scores, axis=0) / np.var(rows, axis=0).sum())
    assert np.all(found.directions.max(axis=1) >= -found.directions.min(axis=1))


def test_signatures_of_addition_lie_on_a_curve_of_few_dimensions():
    signature = label_signature(arithmetic.add(numbers=8), 0)
    found = principal_components(signature.array, 2)
    # Sliding windows: the first component orders the numbers.
    assert np.all(np.abs(np.diff(np.argsort(found.scores[:, 0]))) == 1)
    json.dumps(found.to_dict(), allow_nan=False)
    for rows, count, message in (
        (np.ones((4, 2)) / 3, 1, "all the same"),
        (signature.array, 9, "1 … 8"),
        (signature.array, 0, "1 … 8"),
    ):
        with pytest.raises(UserError, match=message):
            principal_components(rows, count)


@pytest.mark.parametrize("determinant", [1, -1])
def test_a_rotated_and_shifted_copy_is_brought_back(determinant):
    target = RNG.normal(size=(6, 3))
    rotation = ortho_group.rvs(3, random_state=3)
    rotation[0] *= determinant * np.sign(np.linalg.det(rotation))
    found = procrustes(target, target @ rotation.T + [1, 2, 3])
    np.testing.assert_allclose(found.aligned, target, atol=1e-13)
    np.testing.assert_allclose(found.rotation, rotation, atol=1e-13)
    assert found.scale == 1.0 and found.residual < 1e-25


def test_the_scale_is_fitted_only_when_asked_for():
    target, rows = RNG.normal(size=(2, 6, 3))
    double = procrustes(target, 2 * target)
    assert double.scale == 1.0 and double.residual == pytest.approx(1.0)
    assert procrustes(target, 2 * target, scaled=True).scale == pytest.approx(0.5)
    found = procrustes(target, rows, scaled=True)
    assert found.residual == pytest.approx(scipy_procrustes(target, rows)[2])
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(UserError, match="equal shapes"):
        procrustes(target, rows[:4])
    with pytest.raises(UserError, match="not all the same"):
        procrustes(np.ones((6, 3)), rows)
