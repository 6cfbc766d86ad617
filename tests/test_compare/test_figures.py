import numpy as np
import pytest
from constructed import build
from matplotlib.axes import Axes
from report_pages import HOSTILE

from compare import figures
from compare.alignment import order_alignments
from compare.comparison import compare, learning_rate_convergence
from compare.departures import departures
from compare.initial_scale import initial_scale_convergence, right_hand_side_errors
from compare.similarity import signature_correlation, signature_similarity
from compare.spectra import principal_components, procrustes
from theory.data import arithmetic
from theory.errors import UserError
from theory.evolution import derive

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
    assert "central 95 % of 2 seeds" in legend(axes[0]) and "95 % interval of their mean" in legend(axes[0])
    shaded = axes[0].collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(shaded.max(), np.quantile(loss, 0.975, axis=0).max())
    assert "central 95 % of 2 seeds" in legend(axes[1])
    comparison = compare(many, runs[1])
    figures.relative_error(axes[1], comparison, "E")
    assert "central 95 % of 2 seeds, exact" in legend(axes[1])


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


def test_every_figure_gives_a_run_the_same_line(runs):
    lines = figures.styles(["exact", "expanded"])
    figure, axes = figures.canvas(4)
    figures.loss(axes[0], runs[0], runs[2:], lines=lines)
    figures.norms(axes[1], runs[0], runs[2:], "E", lines=lines)
    figures.relative_error(axes[2], compare(runs[0], runs[2]), "E", lines=lines)
    rows = runs[0]["E"].values[-1]
    figures.components(axes[3], ("sgd", rows), [("expanded", rows)], list("abcdef"), lines=lines)
    for ax in axes[:3]:
        assert lines["expanded"].color in [line.get_color() for line in ax.lines]
        assert lines["exact"].color not in [line.get_color() for line in ax.lines]
    assert axes[3].lines[0].get_color() == lines["expanded"].color
    many = figures.styles([f"flow-{i}" for i in range(12)])
    assert len({(style.color, style.dash) for style in many.values()}) == 12


def test_no_legend_lies_on_data(runs):
    figure, (ax,) = figures.canvas()
    figures.loss(ax, runs[0], runs[1:])
    drawn(figure)
    found = ax.get_legend()
    assert found is not None
    box, plot = found.get_window_extent(), ax.get_window_extent()
    assert box.y1 < plot.y0 and box.y0 >= figure.bbox.y0 and box.x1 <= figure.bbox.x1
    # Nor on the label of the axis.
    assert box.y1 < ax.xaxis.label.get_window_extent().y0


def test_components_are_drawn_in_the_frame_of_the_trained_ones_and_state_the_residual():
    rng = np.random.default_rng(1)
    trained = rng.normal(size=(9, 5)) * [5, 3, 1, 0.5, 0.2]
    rotation = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    moved = trained @ rotation + 7.0
    noisy = moved + 0.1 * rng.normal(size=moved.shape)
    figure, (ax,) = figures.canvas()
    names = ["$a$", *map(str, range(8))]
    assert figures.components(ax, ("sgd", trained), [("rotated", moved), ("noisy", noisy)], names) is ax
    own, rotated, other = (np.asarray(points.get_offsets()) for points in ax.collections)
    np.testing.assert_allclose(rotated, own, atol=1e-9)
    assert 0 < np.abs(other - own).max() < 1
    residual = procrustes(trained, noisy).residual
    assert f"noisy: residual {residual:.3g}" in legend(ax)
    assert f"{residual:.3g}" in ax.get_title(loc="left") and "Procrustes-aligned" in ax.get_title(loc="left")
    share = principal_components(trained).explained[0]
    assert f"{share:.1%}" in ax.get_xlabel()
    assert "$a$" in [text.get_text() for text in ax.texts]
    drawn(figure)


def test_the_staircase_marks_departures_and_each_order(runs):
    dataset = arithmetic.mod(numbers=6)
    alignments = order_alignments(runs[0], dataset, embedding="E", orders=(0, 1), probes=4)
    assert [len(found.times) for found in alignments] == [21, 4]
    assert "1 − MSE" in alignments[0].measure and "held-out" in alignments[1].measure
    orders = [
        build(TIMES, {"E": run["E"].values}, run["loss"].values, axes=AXES, name=f"order-{i}")
        for i, run in enumerate((runs[1], runs[0]))
    ]
    found = departures(compare(runs[0], *orders).agreements, 0.005, parameter="E")
    figure, axes = figures.canvas(rows=2)
    assert figures.staircase(axes, runs[0], alignments, found) is axes
    assert f"departs from the order-0 flow: t = {float(found.times[0]):.4g}" in legend(axes[0])
    assert "does not depart from the order-1 flow up to t = 10" in legend(axes[0])
    marked = [line.get_xdata()[0] for line in axes[1].lines if list(line.get_ydata()) == [0, 1]]
    assert marked[0] == pytest.approx(float(found.times[0]))
    values = axes[1].lines[1].get_ydata()
    np.testing.assert_array_equal(values, alignments[1].values)
    assert f"peak {np.nanmax(values):.3f}" in legend(axes[1])
    figure, axes = figures.canvas(rows=2)
    lines = figures.styles(["exact", "order-0"])
    figures.staircase(axes, runs[0], alignments, found, lines=lines)
    colours = [line.get_color() for line in axes[1].lines[:2]]
    assert colours[0] == lines["order-0"].color and colours[1] not in [style.color for style in lines.values()]
    with pytest.raises(UserError, match="entries, more than"):
        order_alignments(runs[0], arithmetic.mod(numbers=200), embedding="E", orders=[1])


def test_error_against_the_initial_scale_has_the_slope_of_the_first_omitted_term(small, runs):
    architecture, dataset, initial = small
    equations = derive(architecture, 3)
    found = right_hand_side_errors(equations, dataset, initial, parameter="E", name="expanded")
    assert found is not None
    further = derive(architecture, 6)["E"].degrees
    omitted = min(degree for degree in further if degree not in equations["E"].degrees)
    assert found.slope == pytest.approx(float(omitted - equations["E"].degrees[0]), abs=0.15)
    figure, (ax,) = figures.canvas()
    assert figures.initial_scale_error(ax, found) is ax
    assert f"fitted slope {found.slope:.2f}, of the 4 smallest" in legend(ax)
    assert right_hand_side_errors(derive(architecture), dataset, initial, parameter="E") is None

    def off(scale):
        return build(
            TIMES, {"E": runs[0]["E"].values * (1 + 0.1 * scale**2)}, runs[0]["loss"].values, axes=AXES, name="cut"
        )

    trajectories = [(scale, runs[0], off(scale)) for scale in (0.4, 0.1, 0.2)]
    found = initial_scale_convergence(trajectories, parameter="E")
    assert found.scales == (0.1, 0.2, 0.4) and found.slope == pytest.approx(2.0, abs=1e-6)
    figures.initial_scale_error(ax, found)
    for wrong, message in (
        (trajectories[:1], "two or more different"),
        ([(-1.0, *trajectories[0][1:])], "positive"),
        ([*trajectories, (0.3, runs[0], runs[1])], "one prediction and one reference"),
    ):
        with pytest.raises(UserError, match=message):
            initial_scale_convergence(wrong, parameter="E")


def test_any_name_of_a_token_can_be_drawn():
    rng = np.random.default_rng(2)
    names = [*HOSTILE, "two\nlines", "漢字", "a long name of a token"]
    rows = rng.normal(size=(10, 4))
    figure, axes = figures.canvas(3)
    cosines = rows @ rows.T
    figures.similarity_matrices(axes[:2], [("signature", cosines), ("$trained$", cosines**2)], names)
    figures.components(axes[2], ("$sgd$", rows), [("a_b$", rows)], names)
    assert figures.png(figure).startswith(b"\x89PNG") and len(figures.svg(figure)) > 1000
    shown = [text.get_text() for text in axes[2].texts]
    assert "two·lines" in shown and "a long name…" in shown and "$\\frac$" in shown
    # Of many tokens those farthest out are named.
    many = rng.normal(size=(60, 3))
    figure, (ax,) = figures.canvas()
    figures.components(ax, ("sgd", many), [], [str(i) for i in range(60)])
    radii = np.linalg.norm(principal_components(many).scores, axis=1)
    assert {int(text.get_text()) for text in ax.texts} == set(np.argsort(-radii)[:24].tolist())
