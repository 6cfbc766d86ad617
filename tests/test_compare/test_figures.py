import numpy as np
import pytest
from constructed import build
from matplotlib.axes import Axes

from compare import figures
from compare.comparison import compare, learning_rate_convergence
from compare.similarity import signature_correlation, signature_similarity
from theory.data import arithmetic

TIMES = np.linspace(0.0, 10.0, 21)
AXES = {"E": ("token", "embed")}


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(0)
    path = np.exp(TIMES / 5)[:, None, None] * rng.normal(size=(1, 6, 4)) + rng.normal(size=(21, 6, 4)) * 0.1
    path[0] *= 1.0
    loss = 4.0 * np.exp(-TIMES / 6)
    trained = build(TIMES, {"E": path}, loss, axes=AXES)
    exact = build(TIMES, {"E": path * (1 + 0.001 * TIMES[:, None, None])}, loss * 1.001, axes=AXES, name="exact")
    short = build(
        TIMES[:8],
        {"E": path[:8] * (1 + 0.02 * TIMES[:8, None, None])},
        loss[:8],
        axes=AXES,
        name="expanded",
        status="blow-up",
    )
    return trained, exact, short


def drawn(figure):
    """The picture as an array; a figure that shows nothing has one colour."""
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())


def legend(ax: Axes) -> str:
    found = ax.get_legend()
    assert found is not None
    return "\n".join(text.get_text() for text in found.get_texts())


def test_loss_prints_half_loss_times_and_the_blow_up(runs):
    figure, (ax,) = figures.canvas()
    assert figures.loss(ax, runs[0], runs[1:]) is ax
    text = legend(ax)
    assert "sgd (trained): halved at t = 4.1" in text
    assert "expanded: not halved, blew up after t = 3.5" in text
    assert len(np.unique(drawn(figure).reshape(-1, 4), axis=0)) > 20
    low, high = ax.get_ylim()
    assert low <= 0 and high < 5


def test_relative_error_prints_the_worst_error_to_half_loss(runs):
    comparison = compare(*runs, threshold=0.01)
    figure, (ax,) = figures.canvas()
    assert figures.relative_error(ax, comparison, "E") is ax
    worst = comparison["exact"].worst_error("E", until=float(comparison["exact"].half_loss_reference))
    assert f"exact: ≤ {worst:.3%}" in legend(ax)
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(ax.lines[0].get_ydata(), comparison["exact"].relative_error["E"][1:])


def test_a_flow_far_off_the_scale_leaves_the_picture_whole(runs):
    path, loss = runs[1]["E"].values, np.exp(TIMES) * 10
    wild = build(TIMES, {"E": path * 1e3}, loss, axes=AXES, name="expanded", status="blow-up")
    figure, axes = figures.canvas(2)
    figures.loss(axes[0], runs[0], [wild])
    figures.norms(axes[1], runs[0], [wild], "E")
    drawn(figure)
    for ax in axes:
        box = ax.get_tightbbox()
        assert box is not None and figure.bbox.contains(box.x0 + 1, box.y0 + 1)
        assert figure.bbox.contains(box.x1 - 1, box.y1 - 1)


def test_norms_correlation_and_learning_rate_print_their_numbers(runs):
    figure, axes = figures.canvas(3)
    assert figures.norms(axes[0], runs[0], runs[1:], "E") is axes[0]
    norms = np.linalg.norm(runs[0]["E"].values[-1], axis=-1).mean()
    assert f"sgd (trained): {norms:.4g} at t = 10" in legend(axes[0])

    similarity = signature_similarity(arithmetic.add(numbers=6))
    correlations = [signature_correlation(run, similarity, embedding="E") for run in runs]
    assert figures.correlation(axes[1], correlations[0], correlations[1:]) is axes[1]
    assert f"peak {correlations[0].peak[0]:.4f}" in legend(axes[1])

    fast = build(TIMES, {"E": runs[0]["E"].values * 1.002}, runs[0]["loss"].values, axes=AXES, learning_rate=0.2)
    convergence = learning_rate_convergence(runs[1], [runs[0], fast], parameter="E")
    assert figures.learning_rate_error(axes[2], convergence) is axes[2]
    assert f"fitted slope {convergence.slope:.3f}" in legend(axes[2])
    assert len(figures.svg(figure)) > 10_000


def test_similarity_matrices_print_their_correlation(runs):
    similarity = signature_similarity(arithmetic.add(numbers=6))
    other = np.clip(similarity.matrix**2, -1, 1)
    figure, axes = figures.canvas(2, width=3.4, height=3.4)
    figures.similarity_matrices(axes, [("signature", similarity.matrix), ("trained", other)], list("abcdef"))
    upper = np.triu_indices(6, k=1)
    expected = np.corrcoef(similarity.matrix[upper], other[upper])[0, 1]
    assert f"Pearson {expected:.4f}" in axes[1].get_title()
    assert axes[0].images[0].get_clim() == axes[1].images[0].get_clim()
    np.testing.assert_array_equal(axes[1].images[0].get_array(), other)
    constant = np.ones((6, 6))
    figure, axes = figures.canvas(2)
    figures.similarity_matrices(axes, [("signature", constant), ("trained", other)], list("abcdef"))
    assert "1 − MSE" in axes[1].get_title()


def test_seeds_are_drawn_as_a_band(runs):
    members = {"E": np.stack([runs[0]["E"].values, 1.1 * runs[0]["E"].values])}
    loss = np.stack([runs[0]["loss"].values, 0.9 * runs[0]["loss"].values])
    many = build(TIMES, members, loss, axes=AXES, seeds=(0, 1))
    figure, axes = figures.canvas(2)
    figures.loss(axes[0], many, runs[1:])
    figures.norms(axes[1], many, runs[1:], "E")
    assert "range over 2 seeds" in legend(axes[0])


def test_files_depend_on_the_figure_alone(runs, tmp_path):
    contents = []
    for _ in range(2):
        figure, (ax,) = figures.canvas()
        figures.loss(ax, runs[0], runs[1:])
        written = figures.save(figure, tmp_path, "loss")
        contents.append([path.read_bytes() for path in written])
    assert [path.name for path in written] == ["loss.png", "loss.svg"]
    assert contents[0] == contents[1]
    assert contents[0][0].startswith(b"\x89PNG") and b"<dc:date>" not in contents[0][1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.png", "loss.svg"]
