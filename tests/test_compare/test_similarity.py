import numpy as np
import pytest
from constructed import build
from scipy import stats

from compare.similarity import (
    embedding_norms,
    signature_correlation,
    signature_similarity,
    trace_back_similarity,
    unembedding_parameter,
)
from theory import architectures
from theory.data import arithmetic
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.language import Architecture, dot, embed, rename, total
from theory.signatures import label_signature, token_probability, trace_back


def test_addition_has_similarity_one_minus_distance_over_n():
    similarity = signature_similarity(arithmetic.add(numbers=20))
    numbers = np.arange(20)
    expected = 1 - np.abs(numbers[:, None] - numbers[None, :]) / 20
    np.testing.assert_allclose(similarity.matrix, expected, atol=1e-14)
    assert not similarity.constant


def test_embeddings_equal_to_signatures_correlate_perfectly():
    dataset = arithmetic.add(numbers=6)
    signature = label_signature(dataset, 0).array
    noise = np.random.default_rng(0).normal(size=signature.shape)
    E = np.stack([noise, 3.0 * signature])
    result = signature_correlation(build([0, 1], {"E": E}, [2, 1]), signature_similarity(dataset), embedding="E")
    for measure in (result.pearson, result.spearman, result.one_minus_mse):
        assert measure[1] == pytest.approx(1.0, abs=1e-12)
        assert measure[0] < 0.9
    assert result.measure == "pearson" and result.note == ""
    assert result.peak == (pytest.approx(1.0), 1.0)


def test_correlations_agree_with_scipy_over_strict_pairs():
    dataset = arithmetic.mul(numbers=7)
    similarity = signature_similarity(dataset)
    E = np.random.default_rng(1).normal(size=(2, 3, 7, 4))
    run = build([0, 1, 2], {"E": E}, np.ones((2, 3)), seeds=(4, 9))
    result = signature_correlation(run, similarity, embedding="E")
    assert result.pearson.shape == (2, 3)
    upper = np.triu_indices(7, k=1)
    rows = E[1, 2] / np.linalg.norm(E[1, 2], axis=1, keepdims=True)
    measured, target = (rows @ rows.T)[upper], similarity.matrix[upper]
    assert result.pearson[1, 2] == pytest.approx(stats.pearsonr(measured, target).statistic)
    assert result.spearman[1, 2] == pytest.approx(stats.spearmanr(measured, target).statistic)
    assert result.one_minus_mse[1, 2] == pytest.approx(1 - np.mean((measured - target) ** 2))


def test_a_constant_similarity_is_reported_as_one_minus_mse():
    dataset = arithmetic.mod(numbers=6)
    similarity = signature_similarity(dataset)
    assert similarity.constant
    parallel = np.outer(np.arange(1.0, 7.0), [1.0, 2.0, 0.5])
    orthogonal = np.eye(6, 3) + 1e-3
    E = np.stack([np.pad(orthogonal, 0), parallel])
    result = signature_correlation(build([0, 1], {"E": E}, [1, 1]), similarity, embedding="E")
    assert np.all(np.isnan(result.pearson)) and np.all(np.isnan(result.spearman))
    assert result.measure == "one_minus_mse"
    assert result.one_minus_mse[1] == pytest.approx(1.0)
    assert result.one_minus_mse[0] < 0.9
    assert "undefined" in result.note
    assert result.to_dict()["pearson"] == [None, None]


def test_tokens_that_never_occur_are_left_out_and_named():
    base = arithmetic.add(numbers=4)
    dataset = Dataset(
        tokens=base.tokens + 1,
        labels=base.labels,
        n_tokens=6,
        n_labels=base.n_labels,
        token_names=("pad", "one", "two", "three", "four", "unused"),
    )
    similarity = signature_similarity(dataset)
    assert similarity.left_out == ("pad", "unused")
    assert similarity.tokens.tolist() == [1, 2, 3, 4]
    E = np.zeros((1, 6, 7))
    E[0, 1:5] = label_signature(base, 0).array
    result = signature_correlation(build([0], {"E": E}, [1]), similarity, embedding="E")
    assert result.pearson[0] == pytest.approx(1.0)
    assert "pad, unused" in result.note


def test_norms_are_taken_over_the_width():
    E = np.arange(12.0).reshape(1, 3, 4)
    norms = embedding_norms(build([0], {"E": E}, [1]), "E")
    np.testing.assert_allclose(norms, np.sqrt((E**2).sum(-1)))
    swapped = build([0], {"E": np.swapaxes(E, 1, 2)}, [1], axes={"E": ("embed", "token")})
    np.testing.assert_allclose(embedding_norms(swapped, "E"), norms)


def test_what_is_no_embedding_is_refused():
    run = build([0], {"Q": np.ones((1, 2, 3))}, [1], axes={"Q": ("key", "embed")})
    with pytest.raises(UserError, match="is no embedding"):
        embedding_norms(run, "Q")
    with pytest.raises(UserError, match="has no parameter 'E'"):
        embedding_norms(run, "E")
    two = Dataset(tokens=np.array([[0, 1]]), labels=np.array([0]))
    with pytest.raises(UserError, match="at least three tokens"):
        signature_similarity(two)


@pytest.mark.parametrize("centred", [False, True])
def test_unembeddings_equal_to_trace_back_signatures_correlate_perfectly(centred):
    dataset = arithmetic.add(numbers=6, n_outputs=14)
    psi = trace_back(dataset)
    rows = psi.array - (token_probability(dataset) if centred else 0.0)
    noise = np.random.default_rng(0).normal(size=(14, 6))
    U = np.stack([noise, noise])
    U[1, psi.indices] = 3.0 * rows
    similarity = trace_back_similarity(dataset, centred=centred)
    assert similarity.axis == "label" and set(similarity.left_out) == set(psi.missing)
    result = signature_correlation(
        build([0, 1], {"U": U}, [2, 1], axes={"U": ("label", "embed")}), similarity, embedding="U"
    )
    for measure in (result.pearson, result.one_minus_mse):
        assert measure[1] == pytest.approx(1.0, abs=1e-12)
        assert measure[0] < 0.9
    # Rounding orders pairs that are equal.
    assert result.spearman[1] > 0.999
    with pytest.raises(UserError, match="is no unembedding: it needs the axis 'label'"):
        signature_correlation(build([0], {"E": noise[None]}, [2]), similarity, embedding="E")


def test_centring_takes_the_frequencies_of_labels_away_and_leaves_out_what_is_like_the_mean():
    dataset = arithmetic.add(numbers=6)
    signature = label_signature(dataset, 0).array
    rows = signature - signature.mean(axis=0)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(signature_similarity(dataset, centred=True).matrix, rows @ rows.T, atol=1e-12)
    with pytest.raises(UserError, match="differs from the mean, dataset 'mod' has 0"):
        signature_similarity(arithmetic.mod(numbers=6), centred=True)
    # Four tokens; what the last says of the label is what is known without it.
    tokens = np.array([[0], [0], [1], [1], [2], [2], [3], [3], [3], [3]])
    labels = np.array([0, 0, 1, 1, 2, 2, 0, 1, 2, 2])
    weights = np.array([2, 2, 2, 2, 2, 2, 4, 4, 2, 2]) / 24
    dataset = Dataset(tokens, labels, weights, token_names=tuple("abcd"), label_names=tuple("xyz"), exact=True)
    similarity = signature_similarity(dataset, centred=True)
    assert similarity.token_names == ("a", "b", "c") and similarity.like_the_mean == ("d",)
    assert "signature of the mean (1): d" in similarity.note


def test_a_tied_model_has_no_unembedding_of_its_own():
    def tied(p, tokens):
        return dot(rename(p.E, token="label"), total(embed(p.E, tokens), over="position"), over="embed")

    with pytest.raises(UserError, match="tied has no unembedding of its own"):
        unembedding_parameter(Architecture(tied, {"E": ("token", "embed")}))
    assert unembedding_parameter(architectures.emb_mlp()) == "U"
