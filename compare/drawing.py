"""The figures of a run of `staircase compare`: each is drawn where the run has what it needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compare import figures
from compare.alignment import OrderAlignment, order_alignments
from compare.departures import Departures, departures
from compare.initial_scale import ScaleConvergence, right_hand_side_errors
from compare.report.interactive import MOST_TOKENS, interactive_data
from compare.similarity import (
    SignatureSimilarity,
    embeddings,
    signature_correlation,
    signature_similarity,
    trace_back_similarity,
    unembedding_parameter,
)
from simulate.trajectory import Trajectory
from theory.errors import UserError
from theory.signatures import cosine_similarity

if TYPE_CHECKING:
    from compare.run import ComparisonRun

# Samples up to which equations are evaluated at further initial scales: seconds, a quarter of a minute for a transformer.
_MOST_SAMPLES = 4_000

Drawn = dict[str, tuple[figures.Figure, str]]


def draw(run: ComparisonRun) -> Drawn:
    """The figures of a run, by file name, each with the sentence that says how to read it."""
    lines = figures.styles(run.flows)
    drawn: Drawn = {}
    drawn |= _over_time(run, lines)
    drawn |= _staircase(run, lines)
    drawn |= _states(run, lines)
    drawn |= _slopes(run, lines)
    return drawn


def interactive(run: ComparisonRun) -> dict[str, Any]:
    """What the report's interactive figures show of a run."""
    # Of the most frequent tokens, where there are too many for a page.
    similarity = signature_similarity(run.experiment.dataset(), at_most=MOST_TOKENS)
    return interactive_data(
        similarity,
        list(run.trainings.values()),
        predicted_flows(run),
        embedding=run.embedding,
        comparison=run.comparisons.get(run.main.name),
        correlations=run.correlations,
        lines=figures.styles(run.flows),
    )


def predicted_flows(run: ComparisonRun) -> list[Trajectory]:
    """The flows that predict the times of the main training; another one has no place on its axis."""
    return list(run.flows.values()) if run.main.name in run.comparisons else []


def run_departures(run: ComparisonRun) -> Departures | None:
    """When the main training departs from each flow of a bounded signature order; None where there is none."""
    comparison = run.comparisons.get(run.main.name)
    agreements = [] if comparison is None else [a for a in comparison.agreements if a.name.startswith("order-")]
    if not agreements:
        return None
    return departures(agreements, run.experiment.flow.departure, parameter=run.embedding)


def _over_time(run: ComparisonRun, lines: figures.Styles) -> Drawn:
    main, flows = run.main, predicted_flows(run)
    drawn: Drawn = {}
    if "loss" in main.series_names:
        figure, (ax,) = figures.canvas()
        figures.loss(ax, main, flows, run.band, lines=lines)
        caption = f"Loss of {main.name}."
        if flows:
            caption = (
                f"Loss of {main.name} (wide grey line) and of each flow from the same initial arrays. A dashed line that "
                "stays on the grey one predicts the training."
            )
        drawn["loss"] = (figure, caption)
    comparison = run.comparisons.get(main.name)
    if comparison is not None:
        figure, (ax,) = figures.canvas()
        figures.relative_error(ax, comparison, run.embedding, lines=lines)
        caption = (
            f"Relative error of the embeddings {run.embedding} of each flow against {main.name}, with the worst value up to "
            "the time at which the trained loss has halved."
        )
        drawn["relative-error"] = (figure, caption)
    figure, (ax,) = figures.canvas()
    figures.norms(ax, main, flows, run.embedding, lines=lines)
    caption = "Mean norm of the token embeddings, trained" + (" and predicted." if flows else ".")
    drawn["embedding-norms"] = (figure, caption)
    figure, (ax,) = figures.canvas()
    figures.correlation(ax, run.correlations[main.name], [run.correlations[flow.name] for flow in flows], lines=lines)
    caption = "How the similarity of embeddings follows that of order-0 probability signatures, over pairs of tokens."
    drawn["signature-correlation"] = (figure, caption)
    return drawn


def _staircase(run: ComparisonRun, lines: figures.Styles) -> Drawn:
    """Where flows up to a signature order were integrated: departures, and the alignment with the orders they stop at."""
    found = run_departures(run)
    if found is None:
        return {}
    figure, axes = figures.canvas(rows=2, width=7.0, height=3.8)
    alignments = _alignments(run, max(found.times) + 1)
    figures.staircase(axes, run.main, alignments, found, lines=lines)
    caption = (
        f"The staircase in time. Above, the loss of {run.main.name} and when it departs from flows in which embeddings see "
        "signatures of so many context tokens; below, how well the embeddings align with the signatures of each order."
    )
    return {"staircase": (figure, caption)}


def _alignments(run: ComparisonRun, highest: int) -> tuple[OrderAlignment, ...]:
    """As many orders as exist, can be probed in seconds and have tokens enough; several seeds are left to order 0."""
    dataset, found = run.experiment.dataset(), [OrderAlignment.of_correlation(run.correlations[run.main.name])]
    main = run.main if run.main.seeds is None else Trajectory(run.main.data.isel(seed=0))
    for order in range(1, min(highest, dataset.length - 1, 2) + 1):
        try:
            found += order_alignments(main, dataset, embedding=run.embedding, orders=[order])
        except UserError:
            break
    return tuple(found)


def _states(run: ComparisonRun, lines: figures.Styles) -> Drawn:
    """Embeddings at one time: their similarity at the training's peak alignment, their components at the end."""
    flows, moment = predicted_flows(run)[:1], run.correlations[run.main.name].peak[1]
    matrices = [("order-0 signature", run.similarity.matrix)]
    drawn: Drawn = {"similarity": _similarity(run, "embeddings", run.embedding, run.similarity, matrices, moment)}
    return drawn | _unembedding(run) | _components(run, flows, lines)


def _unembedding(run: ComparisonRun) -> Drawn:
    """The same of the rows of the unembedding and trace-back signatures, as they are and less their mean; where it has rows of
    its own, and labels enough have signatures that differ."""
    dataset = run.experiment.dataset()
    try:
        parameter = unembedding_parameter(run.experiment.architecture())
        similarity, centred = (trace_back_similarity(dataset, at_most=MOST_TOKENS, centred=it) for it in (False, True))
    except UserError:
        return {}
    if len(centred.tokens) < len(similarity.tokens):
        # One set of labels for all matrices.
        kept = np.isin(similarity.tokens, centred.tokens)
        similarity = replace(centred, matrix=similarity.matrix[np.ix_(kept, kept)])
    matrices = [("trace-back signature less its mean", centred.matrix), ("trace-back signature", similarity.matrix)]
    found = signature_correlation(run.main, centred, embedding=parameter)
    if np.isnan(getattr(found, found.measure)).all():
        return {}
    return {"unembedding-similarity": _similarity(run, "unembeddings", parameter, centred, matrices, found.peak[1])}


def _similarity(
    run: ComparisonRun,
    what: str,
    parameter: str,
    similarity: SignatureSimilarity,
    matrices: list[tuple[str, np.ndarray]],
    moment: float,
) -> tuple[figures.Figure, str]:
    """Matrices of signatures, then those of predicted and of trained rows at one time."""
    flows = predicted_flows(run)[:1]
    matrices = list(matrices)
    for label, trajectory in [(f"{flow.name} flow", flow) for flow in flows] + [(_label(run.main), run.main)]:
        time, rows = _rows_at(trajectory, parameter, similarity, moment)
        matrices.append((f"{label}, t = {time:.4g}", cosine_similarity(rows)))
    figure, axes = figures.canvas(len(matrices), width=3.4, height=3.6)
    figures.similarity_matrices(axes, matrices, similarity.token_names)
    caption = (
        f"Cosine similarity of signatures{', of predicted' if flows else ''} and of trained {what}, at the time of the "
        f"training's peak, t = {moment:.4g}, or the last time before it."
    )
    return figure, caption


def _components(run: ComparisonRun, flows: list[Trajectory], lines: figures.Styles) -> Drawn:
    """Of embeddings with two dimensions at least that are not all the same, and a flow to hold against them."""
    if not flows:
        return {}
    last = min(run.main.parameter_times[-1], flows[0].parameter_times[-1])
    time, trained = _rows_at(run.main, run.embedding, run.similarity, last)
    predicted = [(flow.name, _rows_at(flow, run.embedding, run.similarity, time)[1]) for flow in flows]
    figure, (ax,) = figures.canvas(width=6.4, height=6.0)
    try:
        figures.components(ax, (_label(run.main), trained), predicted, run.similarity.token_names, lines=lines)
    except UserError:
        return {}
    caption = (
        f"Principal components of the embeddings at t = {time:.4g}, predicted and trained in one frame: the prediction is "
        "shifted and rotated onto the training (Procrustes), its residual stated."
    )
    return {"components": (figure, caption)}


def _slopes(run: ComparisonRun, lines: figures.Styles) -> Drawn:
    drawn: Drawn = {}
    for kind, convergence in run.convergences.items():
        figure, (ax,) = figures.canvas(width=5.2)
        figures.learning_rate_error(ax, convergence, color=lines[kind].color)
        caption = (
            f"Error of the {kind} flow against training at each learning rate, at one time. A flow's own error is of first "
            "order in η: slope 1. A flat line means that truncation, not the step size, limits the prediction."
        )
        drawn[f"learning-rate-{kind}"] = (figure, caption)
    for kind, convergence in scale_convergences(run).items():
        figure, (ax,) = figures.canvas(width=5.2)
        figures.initial_scale_error(ax, convergence, color=lines[kind].color)
        caption = (
            f"Error of the {kind} equation of {run.embedding} at the start, when the initial parameters of this run are "
            "scaled by ε (ε = 1: as they are). The slope is the gap in degree between the leading term and the first one "
            "left out."
        )
        drawn[f"initial-scale-{kind}"] = (figure, caption)
    return drawn


def scale_convergences(run: ComparisonRun) -> dict[str, ScaleConvergence]:
    """By flow: the error of each truncated equation against the scale of the initial parameters.

    Left out for data that are too many to go through once more for each scale, and for a run without its start.
    """
    experiment, found = run.experiment, {}
    dataset = experiment.dataset()
    if dataset.n_samples > _MOST_SAMPLES or run.main.parameter_times[0] > 0:
        return found
    main = run.main if run.main.seeds is None else Trajectory(run.main.data.isel(seed=0))
    for kind in run.flows:
        equations = getattr(experiment.field(kind), "equations", None)
        if equations is None:
            continue
        convergence = right_hand_side_errors(equations, dataset, main.parameters(0), parameter=run.embedding, name=kind)
        if convergence is not None:
            found[kind] = convergence
    return found


def _rows_at(
    trajectory: Trajectory, parameter: str, similarity: SignatureSimilarity, moment: float
) -> tuple[float, np.ndarray]:
    """Time and rows at the last stored time ≤ `moment`, of the first seed where there are several."""
    times = trajectory.parameter_times
    index = int(np.flatnonzero(times <= moment * (1 + 1e-9))[-1])
    rows = embeddings(trajectory, parameter, axis=similarity.axis)
    rows = rows if trajectory.seeds is None else rows[0]
    return float(times[index]), rows[index][similarity.tokens]


def _label(trajectory: Trajectory) -> str:
    return trajectory.name if trajectory.seeds is None else f"{trajectory.name}, seed {trajectory.seeds[0]}"
