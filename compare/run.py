"""The main job: integrate the flows of an experiment, train the same model, and write how far they agree."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import simulate.run
from compare import figures
from compare.claims import Verdict, check_claims, evaluate_claims, worst_of
from compare.comparison import (
    Comparison,
    Convergence,
    common_times,
    compare,
    half_loss_time,
    jsonable,
    learning_rate_convergence,
)
from compare.drawing import draw, interactive, run_departures
from compare.external import load_run
from compare.measures import BandCoverage, Evidence
from compare.optimisers import Optimiser
from compare.report.directory import INTERACTIVE, SUMMARY, report_of
from compare.similarity import (
    SignatureCorrelation,
    SignatureSimilarity,
    embedding_parameter,
    signature_correlation,
    signature_similarity,
)
from compare.training import check_training, train
from simulate.memory import refuse_beyond, saved_bytes
from simulate.noise import LEVEL, coverage
from simulate.schedule import Schedule, time_of_step
from simulate.trajectory import Trajectory, save_trajectories
from theory.errors import NumericalFailure, UserError
from theory.limits import check_steps

if TYPE_CHECKING:
    from simulate.experiment import Experiment

# From so many steps on, a training's time is estimated before it starts, from so many steps of trial.
LONG_TRAINING, TRIAL = 20_000, 50


@dataclass(frozen=True)
class ComparisonRun:
    """Everything that one comparison computed.

    - `flows`: kind → trajectory; `trainings`: one for each learning rate, in the order of the file. The first is the main
      one: claims and figures are about it.
    - `comparisons`: training name → its comparison with every flow; empty where no flow predicts its times.
    - `convergences`: flow → its error at the learning rates (empty with a single one).
    - `correlations`: flow kind or training name → ρ_(0) along it.
    - `claims`: their verdicts.
    - `seconds`: wall time by stage; `cpu_seconds`: of this process, for all stages up to figures.
    - `band`, `coverage`: of minibatch training, where the experiment has `[noise]`.
    """

    experiment: Experiment
    embedding: str
    similarity: SignatureSimilarity
    flows: Mapping[str, Trajectory]
    trainings: Mapping[str, Trajectory]
    comparisons: Mapping[str, Comparison]
    convergences: Mapping[str, Convergence]
    correlations: Mapping[str, SignatureCorrelation]
    claims: tuple[Verdict, ...]
    seconds: Mapping[str, float]
    band: Trajectory | None = None
    coverage: BandCoverage | None = None
    cpu_seconds: float = math.nan

    @property
    def main(self) -> Trajectory:
        """The training at the first learning rate of the file."""
        return next(iter(self.trainings.values()))

    @property
    def trajectories(self) -> dict[str, Trajectory]:
        """Everything that has times: flows, trainings and, where there is one, the band as "noise"."""
        return {**self.flows, **self.trainings, **({} if self.band is None else {"noise": self.band})}

    def failures(self) -> list[str]:
        """One sentence for each run whose numbers failed in a way the experiment does not expect."""
        expected = ("completed", "event", *self.experiment.flow.expected)
        failed = {name: flow for name, flow in self.flows.items() if flow.status not in expected}
        failed |= {name: run for name, run in self.trainings.items() if run.status != "completed"}
        return [f"{name}: {run.status}, {run.attributes['message']}" for name, run in failed.items()]


def run_comparison(
    experiment: Experiment,
    *,
    snapshots: Path | None = None,
    progress: bool = False,
    announce: Callable[[str], object] = lambda line: None,
) -> ComparisonRun:
    """Integrate, train and compare.

    All flows and trainings start from the same arrays and are saved on one schedule: the experiment's, moved to whole steps
    of the largest learning rate. With a section `[run]` somebody else's run takes the place of the training: flows start at
    its step 0 and are saved when it was. Where no flow predicts its times (no step 0, parameters missing, Adam), the
    training is held against signatures only.

    **Arguments:** `snapshots`: a folder in which trainings keep what they have, to go on from there when they are killed;
    `announce`: takes a line on each training before any starts: its number of steps, and where they are many the time that a
    trial of a few predicts.

    **Raises:** `UserError`, before any work, for an experiment without training or run, with trainings that would not end
    or not fit in memory, with claims that cannot be measured, or with parameters left unsaved; `NumericalFailure` when
    "half-loss" or "one-nat" is not reached, or a flow fails at once.
    """
    if experiment.training is None and experiment.run is None:
        raise UserError("a comparison needs a section [sgd] or [training] with a learning_rate, or a section [run]")
    if experiment.save.parameters != "all":
        raise UserError("a comparison needs every parameter at every save time: leave save.parameters at 'all'")
    started_cpu = time.process_time()
    seconds: dict[str, float] = {}
    embedding = embedding_parameter(experiment.architecture())
    similarity = signature_similarity(experiment.dataset())
    if experiment.run is not None:
        predicted, flows, trainings = _with_external_run(experiment, seconds, progress)
    else:
        predicted, flows, trainings = _with_own_training(experiment, snapshots, seconds, progress, announce)

    started = time.perf_counter()
    comparisons = {}
    if predicted:
        comparisons = {
            name: compare(run, *flows.values(), threshold=experiment.flow.validity) for name, run in trainings.items()
        }
    main_name, main = next(iter(trainings.items()))
    band, covered = _band(experiment, main, seconds)
    half_loss = _mean(_half_loss_time(main))
    convergences = {}
    if predicted:
        end = float(main.times[-1])
        convergences = _convergences(flows, trainings, embedding, half_loss if math.isfinite(half_loss) else end)
    correlations = {
        name: signature_correlation(run, similarity, embedding=embedding)
        for name, run in {**flows, **trainings}.items()
    }
    agreements = comparisons[main_name].agreements if predicted else ()
    evidence = Evidence(
        agreements={agreement.name: agreement for agreement in agreements},
        convergences=convergences,
        correlations={**{kind: correlations[kind] for kind in flows}, "training": correlations[main_name]},
        flows=flows,
        half_loss=half_loss,
        training=main,
        architecture=experiment.architecture(),
        dataset=experiment.dataset(),
        departure=experiment.flow.departure,
        seeds={"initial": _initial_seeds(experiment), "training": list(main.attributes.get("seeds", ()))},
        coverage=covered,
    )
    if experiment.training is not None and experiment.training.starts == "own":
        claims = _claims_by_seed(experiment, evidence, similarity, embedding)
    else:
        claims = evaluate_claims(experiment.claims, evidence, parameter=embedding)
    seconds["comparison"] = time.perf_counter() - started
    return ComparisonRun(
        experiment,
        embedding,
        similarity,
        flows,
        trainings,
        comparisons,
        convergences,
        correlations,
        claims,
        seconds,
        band,
        covered,
        time.process_time() - started_cpu,
    )


def _initial_seeds(experiment: Experiment) -> int | list[int]:
    training = experiment.training
    if training is None or training.starts == "shared":
        return experiment.initial.seed
    return list(training.seeds)


def _claims_by_seed(
    experiment: Experiment, evidence: Evidence, similarity: SignatureSimilarity, embedding: str
) -> tuple[Verdict, ...]:
    """Every claim measured on each seed alone, as if there were no other; the worst of them counts."""
    training = evidence.training
    found: dict[int, tuple[Verdict, ...]] = {}
    for number, seed in enumerate(experiment.training.seeds):
        alone = Trajectory(training.data.isel(seed=number)) if training.seeds is not None else training
        own = replace(
            evidence,
            training=alone,
            half_loss=float(_half_loss_time(alone)),
            correlations={"training": signature_correlation(alone, similarity, embedding=embedding)},
        )
        found[seed] = evaluate_claims(experiment.claims, own, parameter=embedding)
    return worst_of(found)


def _band(
    experiment: Experiment, main: Trajectory, seconds: dict[str, float]
) -> tuple[Trajectory | None, BandCoverage | None]:
    """The band that `[noise]` predicts at the save times of the main training, and how much of that lies inside."""
    if experiment.noise is None or experiment.training is None or main.status != "completed":
        return None, None
    started = time.perf_counter()
    band = simulate.run.run_noise(experiment, schedule=Schedule(main.times))
    names = tuple(name for name in band.series_names if f"{name}_lower" in band.series_names)
    observables = tuple(dict.fromkeys(("loss", *experiment.noise.observables, *names)))
    share = coverage(band, main, observables)
    seconds["noise"] = time.perf_counter() - started
    seeds = 1 if main.seeds is None else len(main.seeds)
    return band, BandCoverage(share, LEVEL, seeds, int(np.sum(band.times > 0)), observables)


def _with_own_training(
    experiment: Experiment,
    snapshots: Path | None,
    seconds: dict[str, float],
    progress: bool,
    announce: Callable[[str], object],
) -> tuple[bool, dict[str, Trajectory], dict[str, Trajectory]]:
    """Whether flows predict the times of the trainings, the flows, and the trainings."""
    section = experiment.training
    options = {key: getattr(section, key) for key in ("betas", "epsilon") if getattr(section, key) is not None}
    optimiser = Optimiser(section.optimizer, section.momentum, section.weight_decay, **options)
    predicted = optimiser.predicts_time and bool(experiment.flow.flows)
    check_claims(experiment, predicted=predicted, flows=bool(experiment.flow.flows))
    architecture, dataset = experiment.architecture(), experiment.dataset()
    if len(set(section.learning_rate)) < len(section.learning_rate):
        raise UserError("the training's learning_rate names one learning rate twice")
    initial = experiment.starts()
    check_training(
        architecture,
        dataset,
        initial,
        batch=section.batch,
        replacement=section.replacement,
        seeds=section.seeds,
        frozen=section.frozen,
        device=section.device,
    )
    shortest = time_of_step(1, min(section.learning_rate), momentum=section.momentum)
    if isinstance(experiment.flow.until, float):
        check_steps(experiment.flow.until, shortest)
    check_steps(experiment.until(), shortest)
    shared, per_rate = shared_schedules(experiment.schedule(), section.learning_rate, momentum=section.momentum)
    _check_memory(experiment, shared, per_rate)
    plain: dict[str, Any] = {
        "optimizer": optimiser,
        "batch": section.batch,
        "replacement": section.replacement,
        "frozen": section.frozen,
        "seeds": section.seeds,
        "together": section.seeds_together,
        "dtype": section.dtype,
        "device": section.device,
    }

    def trial(rate: float) -> float:
        run = train(architecture, dataset, initial, learning_rate=rate, save=[0.0], steps=TRIAL, **plain)
        return run.attributes["seconds_run"]

    for rate, schedule in per_rate.items():
        steps = int(schedule.steps(rate, momentum=section.momentum)[-1])
        line = f"{training_name(rate, optimiser.name)}: {steps:,} steps"
        if len(section.seeds) > 1:
            line += f" for each of {len(section.seeds)} seeds"
        if steps >= LONG_TRAINING:
            # The first trial pays for what torch prepares once.
            line += f", about {duration(min(trial(rate) for _ in range(3)) / TRIAL * steps)}"
        announce(line)
    flows = _flows(experiment, seconds, schedule=shared, progress=progress) if experiment.flow.flows else {}
    trainings = {}
    for rate, schedule in per_rate.items():
        started = time.perf_counter()
        name = training_name(rate, optimiser.name)
        trainings[name] = train(
            architecture,
            dataset,
            initial,
            learning_rate=rate,
            save=schedule,
            **plain,
            snapshots=None if snapshots is None else snapshots / name,
            name=name,
            progress=progress,
        )
        seconds[name] = time.perf_counter() - started
    return predicted, flows, trainings


def _with_external_run(
    experiment: Experiment, seconds: dict[str, float], progress: bool
) -> tuple[bool, dict[str, Trajectory], dict[str, Trajectory]]:
    """The same of somebody else's run; flows are integrated from its step 0, where it has one."""
    section = experiment.run
    started = time.perf_counter()
    run = load_run(
        experiment.run_source(),
        experiment.architecture(),
        experiment.dataset(),
        learning_rate=experiment.run_learning_rate(),
        momentum=section.momentum,
        optimizer=section.optimizer,
        steps=section.steps,
        tensors=section.tensors,
        sizes=experiment.sections.sizes,
    )
    seconds[run.name] = time.perf_counter() - started
    predicted = run.attributes["initial_state"] and run.attributes["predicted_time_axis"] and len(run.times) > 1
    check_claims(experiment, predicted=predicted, flows=predicted, rates=1)
    if not predicted:
        return False, {}, {run.name: run}
    flows = _flows(experiment, seconds, schedule=Schedule(run.times), initial=run.parameters(0), progress=progress)
    return True, flows, {run.name: run}


def _flows(experiment: Experiment, seconds: dict[str, float], **options: Any) -> dict[str, Trajectory]:
    started = time.perf_counter()
    flows = simulate.run.run_flows(experiment, **options)
    for kind, flow in flows.items():
        if not len(flow.times):
            raise NumericalFailure(f"the flow {kind} failed before its first save time: {flow.attributes['message']}")
    seconds["flows"] = time.perf_counter() - started
    return flows


def _half_loss_time(run: Trajectory) -> Any:
    """When the loss has halved; nan for a run without loss."""
    return half_loss_time(run.times, run["loss"].to_numpy()) if "loss" in run.series_names else math.nan


def _convergences(
    flows: Mapping[str, Trajectory], trainings: Mapping[str, Trajectory], parameter: str, until: float
) -> dict[str, Convergence]:
    """The error of each flow over the learning rates, where flow and trainings came far enough to share a time."""
    runs = [run for run in trainings.values() if run.status == "completed"]
    if len(runs) < 2:
        return {}
    return {
        kind: learning_rate_convergence(flow, runs, parameter=parameter, until=until)
        for kind, flow in flows.items()
        if flow.status == "completed" and np.any(common_times(flow, runs) <= until)
    }


def _check_memory(experiment: Experiment, shared: Schedule, per_rate: Mapping[float, Schedule]) -> None:
    arrays = experiment.initial_parameters()
    seeds = len(experiment.training.seeds)
    saved = [shared] * len(experiment.flow.flows) + [own for own in per_rate.values() for _ in range(seeds)]
    refuse_beyond(sum(saved_bytes(arrays, schedule) for schedule in saved), f"saving {len(saved)} flows and trainings")


def duration(seconds: float) -> str:
    """A length of time for people, e.g. "3 hours"."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"


def training_name(learning_rate: float, optimizer: str = "sgd") -> str:
    """What a training is called in results: "sgd-0.1"."""
    return f"{optimizer}-{learning_rate:g}"


def shared_schedules(
    schedule: Schedule, learning_rates: tuple[float, ...], *, momentum: float = 0.0
) -> tuple[Schedule, dict[float, Schedule]]:
    """Save times for the flows, and for each training the times on whole steps that the flows contain.

    The times are moved to whole steps of the largest learning rate; a training whose learning rate divides it is saved at
    exactly those times, another one at its own nearest steps, which are then added to the flows' times.
    """
    coarse = schedule.snapped(max(learning_rates), momentum=momentum)
    per_rate = {rate: coarse.snapped(rate, momentum=momentum) for rate in learning_rates}
    times = np.unique(np.concatenate([own.times for own in per_rate.values()]))
    # Products like 3·0.2 and 6·0.1 differ by rounding and are one time.
    apart = np.concatenate([[True], np.diff(times) > 1e-9 * times[-1]])
    return Schedule(times[apart]), per_rate


def write_comparison(directory: Path, run: ComparisonRun) -> dict[str, Any]:
    """Write a run directory: `experiment.toml`, `trajectories.nc`, `equations.tex`, `figures/`, `summary.json`,
    `interactive.json` (what the report's interactive figures show), `report.html`.

    **Returns:** the content of `summary.json`.
    """
    started = time.perf_counter()
    (directory / "experiment.toml").write_text(run.experiment.to_toml(), encoding="utf-8")
    save_trajectories(directory / "trajectories.nc", run.trajectories)
    (directory / "equations.tex").write_text(equations_document(run.experiment), encoding="utf-8")
    (directory / "figures").mkdir()
    drawn = draw(run)
    for name, (figure, _) in drawn.items():
        figures.save(figure, directory / "figures", name)
    captions = [{"name": name, "caption": caption} for name, (_, caption) in drawn.items()]
    seconds = {**run.seconds, "figures": time.perf_counter() - started}
    content = summary(run) | {"figures": captions, "seconds": seconds}
    data = json.dumps(interactive(run), ensure_ascii=False, allow_nan=False)
    (directory / INTERACTIVE).write_text(data + "\n", encoding="utf-8")
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (directory / SUMMARY).write_text(text + "\n", encoding="utf-8")
    (directory / "report.html").write_text(report_of(directory), encoding="utf-8")
    return content


def summary(run: ComparisonRun) -> dict[str, Any]:
    """The numbers of a comparison, for `summary.json`; every value is plain JSON."""
    experiment, architecture, dataset = run.experiment, run.experiment.architecture(), run.experiment.dataset()
    content = simulate.run.summary(experiment, run.flows)
    shapes = architecture.shapes(experiment.sizes())
    sections = experiment.to_dict()
    task = sections["data"]["task"]
    departed = run_departures(run)
    content |= {
        "kind": "comparison",
        "title": experiment.title or f"{architecture.name} on {dataset.name}",
        "question": _question(run, task),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "set_up": {
            "architecture": sections["architecture"],
            "parameters": {
                name: {"axes": list(spec.axes), "shape": list(shapes[name]), "size": math.prod(shapes[name])}
                for name, spec in architecture.parameters.items()
            },
            "data": sections["data"] | {"samples": dataset.n_samples, "exact": dataset.exact},
            "initial": sections["initial"],
            "training": sections.get("run") or sections.get("training") or sections.get("sgd"),
        },
        "claims": [verdict.to_dict() for verdict in run.claims],
        "cpu_seconds": round(run.cpu_seconds, 1),
        "embedding": run.embedding,
        "validity_threshold": experiment.flow.validity,
        "trainings": {
            name: {
                "status": training.status,
                "message": training.attributes["message"],
                "learning_rate": training.attributes["learning_rate"],
                "last_good_time": training.attributes["last_good_time"],
                "steps": training.attributes["steps"],
                "seconds_run": training.attributes["seconds_run"],
                "optimizer": training.attributes["optimizer"],
                "predicted_time_axis": training.attributes["predicted_time_axis"],
                "time_axis": training.attributes["time_axis"],
                "notes": list(training.attributes.get("notes", ())),
                "half_loss_time": jsonable(_half_loss_time(training)),
                "times": jsonable(training.times),
                "loss": jsonable(training["loss"].to_numpy()) if "loss" in training.series_names else None,
                "table": run.comparisons[name].rows() if name in run.comparisons else [],
                "comparison": run.comparisons[name].to_dict()["predictions"] if name in run.comparisons else {},
            }
            for name, training in run.trainings.items()
        },
        "learning_rate_convergence": {kind: found.to_dict() for kind, found in run.convergences.items()},
        "departures": None if departed is None else departed.to_dict(),
        "noise": None if run.coverage is None else run.coverage.to_dict(),
        "signature_correlation": {name: found.to_dict() for name, found in run.correlations.items()},
        "equations": equation_lines(experiment),
    }
    for kind, flow in run.flows.items():
        content["flows"][kind]["half_loss_time"] = jsonable(half_loss_time(flow.times, flow["loss"].to_numpy()))
    content["versions"] |= {name: version(name) for name in ("torch", "matplotlib", "latex2mathml")}
    return content


def _question(run: ComparisonRun, task: str) -> str:
    name = run.experiment.architecture().name
    if not run.comparisons:
        return f"Do the embeddings of {name}, trained on {task}, follow the signatures of the data?"
    whose = "somebody else's training" if run.experiment.run is not None else "its SGD training"
    return f"How far do flows of {name} ({', '.join(run.flows)}) predict {whose} on {task}?"


def equation_lines(experiment: Experiment) -> list[dict[str, Any]]:
    """For each derived flow: a title and its equations as LaTeX formulas, one string each."""
    systems = []
    for kind in experiment.flow.flows:
        equations = getattr(experiment.field(kind), "equations", None)
        if equations is not None:
            title = f"{kind}: loss to degree {equations.degree}, prediction {equations.prediction}"
            systems.append({"flow": kind, "title": title, "lines": equations.latex_lines()})
    return systems


def equations_document(experiment: Experiment) -> str:
    """The equations of every derived flow, as LaTeX to include."""
    parts = []
    for kind in experiment.flow.flows:
        equations = getattr(experiment.field(kind), "equations", None)
        if equations is not None:
            parts.append(f"% The flow {kind} of {equations.architecture.name}\n{equations.to_latex()}")
        else:
            parts.append(f"% The flow {kind} is the full gradient flow, by automatic differentiation.")
    return "\n\n".join(parts) + "\n"


def _mean(values: Any) -> float:
    finite = np.ravel(values)[np.isfinite(np.ravel(values))]
    return float(finite.mean()) if finite.size else math.nan
