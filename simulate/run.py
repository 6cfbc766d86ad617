"""Run the flows of an experiment and write what came out as a run directory."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theory.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from simulate.ensemble import Ensemble
    from simulate.experiment import Experiment
    from simulate.problem import VectorField
    from simulate.rundir import UnfinishedRun
    from simulate.schedule import Schedule
    from simulate.trajectory import Trajectory
    from theory.data import Dataset

_LISTED = 12
"""Members of a sweep that are printed one by one."""
_VERSIONED = ("context-staircase", "numpy", "scipy", "sympy", "jax", "diffrax", "xarray")


def run_flows(
    experiment: Experiment,
    *,
    schedule: Schedule | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
    progress: bool = False,
    unfinished: UnfinishedRun | None = None,
    announce: Callable[[str], None] | None = None,
) -> dict[str, Trajectory]:
    """Integrate every flow of the experiment, each from the same initial arrays.

    **Arguments:** `schedule`: save times up to the end in place of the experiment's own, such as a training can share;
    `initial`: arrays to start from in place of the experiment's own;
    `unfinished`: keeps a snapshot of each flow, from which it goes on (finished ones are not run again); `announce`: called
    with a line on each flow's memory before it starts.

    **Returns:** flow kind → trajectory, in the order of the file. A flow that fails numerically is among them, with its
    status. **Raises:** `NumericalFailure` when "half-loss" or "one-nat" is not reached.
    """
    from simulate.flow import integrate

    flow = experiment.flow
    if schedule is None:
        until, schedule = experiment.until(unfinished and unfinished.snapshot("end")), experiment.schedule()
    else:
        until = schedule.until
    initial = experiment.initial_parameters() if initial is None else initial

    def saved(kind: str) -> Any:
        everything = experiment.save.parameters == "all"
        names = tuple(experiment.architecture().parameters)
        return names if everything and kind == "heavy-ball" else experiment.save.parameters

    return {
        kind: integrate(
            experiment.field(kind),
            experiment.dataset(),
            _start(experiment.field(kind), initial, experiment.dataset()),
            save_parameters=saved(kind),
            **_asked(experiment, until, schedule),
            attributes=_recorded(experiment, kind),
            progress=progress,
            snapshot=unfinished and unfinished.snapshot(kind),
            announce=None if announce is None else _announcement(kind, announce),
        )
        for kind in flow.flows
    }


def run_sweep(experiment: Experiment, *, unfinished: UnfinishedRun | None = None) -> Ensemble:
    """The flow that `[sweep]` asks for, from every start and at every learning rate, to the end of the experiment's flows.

    **Arguments:** `unfinished`: keeps a snapshot of each member, from which it goes on; those that vmap takes begin anew.

    **Returns:** an `Ensemble`; a member that fails is data. **Raises:** `UserError` for an experiment without `[sweep]`.
    """
    from simulate.ensemble import Member, integrate_ensemble

    sweep = experiment.sweep
    if sweep is None:
        raise UserError("an ensemble of flows needs a section [sweep]")
    until, schedule = experiment.until(unfinished and unfinished.snapshot("end")), experiment.schedule()
    members = []
    for labels in experiment.sweep_labels():
        start: dict[str, Any] = dict(labels)
        field = experiment.field(experiment.sweep_flow(), start.pop("learning_rate", None))
        initial = experiment.initial_parameters(**start)
        members.append(Member(field, _start(field, initial, experiment.dataset()), labels))
    return integrate_ensemble(
        members,
        experiment.dataset(),
        way=sweep.way,
        save_parameters=sweep.parameters,
        snapshots=None if unfinished is None else lambda number: unfinished.snapshot(f"sweep-{number}"),
        **_asked(experiment, until, schedule),
    )


def _start(field: VectorField, initial: Mapping[str, np.ndarray], dataset: Dataset) -> Mapping[str, np.ndarray]:
    """A flow at a finite learning rate may start elsewhere, or with velocities."""
    own = getattr(field, "start", None)
    return initial if own is None else own(initial, dataset)


def _asked(experiment: Experiment, until: float, schedule: Schedule) -> dict[str, Any]:
    """What the experiment asks of each of its flows, as `simulate.integrate` takes it."""
    flow = experiment.flow
    return {
        "until": until,
        "save": schedule,
        "solver": flow.solver,
        "rtol": flow.rtol,
        "atol": flow.atol,
        "max_steps": flow.max_steps,
        "blow_up": flow.blow_up,
        "dtype": flow.dtype,
        "events": experiment.events(),
        "axes": {name: spec.axes for name, spec in experiment.architecture().parameters.items()},
    }


def run_noise(experiment: Experiment, *, schedule: Schedule | None = None) -> Trajectory:
    """The mean and band of minibatch training that `[noise]` asks for; see `simulate.noise.predict_band`.

    **Arguments:** `schedule`: as in `run_flows`. **Raises:** `UserError` for an experiment without `[noise]`.
    """
    from simulate.noise import entry_observables, predict_band

    noise = experiment.noise
    if noise is None:
        raise UserError("a band of training needs a section [noise]")
    initial = experiment.initial_parameters()
    kept = experiment.save.parameters
    return predict_band(
        experiment.field(noise.flow),
        experiment.dataset(),
        initial,
        learning_rate=experiment.learning_rate(),
        batch=experiment.noise_batch(),
        save=experiment.schedule() if schedule is None else schedule,
        observables=entry_observables(noise.observables, {name: array.shape for name, array in initial.items()}),
        save_parameters=() if kept == "ends" else kept,
        sampled=experiment.field("exact"),
        rank=noise.rank,
        paths=noise.paths,
        seed=noise.seed,
        stride=noise.stride,
        attributes={"flow": noise.flow} | _recorded(experiment, noise.flow),
    )


def _recorded(experiment: Experiment, kind: str) -> dict[str, Any]:
    """What of the experiment stands beside a flow's numbers."""
    from simulate.costs import evaluation_of
    from simulate.experiment import FINITE_RATE

    flow, field = experiment.flow, experiment.field(kind)
    recorded: dict[str, Any] = {
        "degree": None if kind in ("exact", *FINITE_RATE) else flow.degree,
        "evaluation": evaluation_of(field),
        "initial_seed": experiment.initial.seed,
        "weight_decay": experiment.weight_decay(),
    }
    finite = {key: getattr(field, key) for key in ("learning_rate", "momentum") if hasattr(field, key)}
    return recorded | finite


def _announcement(kind: str, announce: Callable[[str], None]) -> Callable[[int], None]:
    from simulate.memory import available_bytes, readable

    def say(needed: int) -> None:
        free = available_bytes()
        announce(
            f"{kind}: takes {readable(needed)} of memory" + ("" if free is None else f", {readable(free)} are free")
        )

    return say


def flow_summary(trajectory: Trajectory) -> dict[str, Any]:
    """The numbers of one flow for `summary.json`."""
    attributes = trajectory.attributes
    loss = trajectory["loss"].values if "loss" in trajectory.series_names else []
    times = trajectory.times
    keys = (
        "status",
        "message",
        "until",
        "stop_time",
        "last_good_time",
        "degree",
        "evaluation",
        "solver",
        "linear_solver",
        "rtol",
        "atol",
        "weight_decay",
        "learning_rate",
        "momentum",
        "batch",
        "paths",
        "stride",
        "atol_from",
        "max_steps",
        "events",
        "memory_bytes",
    )
    steps = ("steps_accepted", "steps_rejected", "seconds_compile", "seconds_run")
    return {
        **{key: attributes[key] for key in keys if key in attributes},
        "saved_times": len(times),
        "loss_start": _finite(loss[0]) if len(loss) else None,
        "loss_end": _finite(loss[-1]) if len(loss) else None,
        **{key: attributes[key] for key in steps},
    }


def sweep_summary(experiment: Experiment, sweep: Ensemble) -> dict[str, Any]:
    """The numbers of a sweep for `summary.json`: each member's, how they were integrated, and the bands over them."""
    data, bands = sweep.data, sweep.bands(experiment.sweep.quantiles)
    series = [name for name in bands.data_vars if name != "members"]
    return {
        "flow": experiment.sweep_flow(),
        "status": sweep.attributes["status"],
        "until": sweep.attributes["until"],
        "ways": sweep.attributes["ways"],
        "members": [
            {
                **labels,
                **{
                    key: run.attributes[key]
                    for key in ("status", "message", "stop_time", "steps_accepted", "steps_rejected")
                },
                "events": {name: event["time"] for name, event in run.attributes["events"].items()},
                "loss_end": _finite(run["loss"].values[-1]) if len(run.times) else None,
            }
            for labels, run in zip(experiment.sweep_labels(), sweep.members, strict=True)
        ],
        "bands": {
            "quantiles": list(experiment.sweep.quantiles),
            "times": data["time"].values.tolist(),
            "members": bands["members"].values.tolist(),
            **{str(name): [[_finite(value) for value in row] for row in bands[name].values] for name in series},
        },
    }


def sweep_trajectory(experiment: Experiment, sweep: Ensemble) -> Trajectory:
    """A sweep as it is stored: series (member, time, …), and for each its band `band_<name>` (quantile, time, …).

    `band_members` counts, at each save time, the members that got there.
    """
    from simulate.trajectory import Trajectory

    bands = sweep.bands(experiment.sweep.quantiles)
    named = {f"band_{name}": value.assign_attrs(role="band") for name, value in bands.data_vars.items()}
    data = sweep.data.assign(named)
    recorded = _recorded(experiment, experiment.sweep_flow())
    own = {key: value for key, value in recorded.items() if key not in ("initial_seed", "learning_rate")}
    return Trajectory(data.assign_attrs(own))


def summary(
    experiment: Experiment, trajectories: Mapping[str, Trajectory], sweep: Ensemble | None = None
) -> dict[str, Any]:
    """What `summary.json` holds: seeds, versions, sizes, and the numbers of each flow and of the sweep."""
    training = experiment.training
    return {
        "title": experiment.title,
        "experiment": experiment.name,
        "architecture": experiment.architecture().name,
        "dataset": experiment.dataset().name,
        "sizes": experiment.sizes(),
        "seeds": {"initial": experiment.initial.seed, "sgd": list(training.seeds) if training else []},
        "time_unit": "learning rate × steps",
        "flows": {name: flow_summary(trajectory) for name, trajectory in trajectories.items()},
        **({} if sweep is None else {"sweep": sweep_summary(experiment, sweep)}),
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONED}
        | {"python": platform.python_version()},
    }


def write_run(
    directory: Path,
    experiment: Experiment,
    trajectories: Mapping[str, Trajectory],
    sweep: Ensemble | None = None,
) -> None:
    """Write `experiment.toml` (as resolved), `trajectories.nc`, `summary.json` and `equations.tex`.

    The trajectories are one group per flow and, with a sweep, the group "sweep" (see `sweep_trajectory`).
    """
    from simulate.trajectory import save_trajectories

    (directory / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    groups = {} if sweep is None else {"sweep": sweep_trajectory(experiment, sweep)}
    save_trajectories(directory / "trajectories.nc", dict(trajectories) | groups)
    content = json.dumps(summary(experiment, trajectories, sweep), indent=2, ensure_ascii=False, allow_nan=False)
    (directory / "equations.tex").write_text(equations_latex(experiment), encoding="utf-8")
    (directory / "summary.json").write_text(content + "\n", encoding="utf-8")


def equations_latex(experiment: Experiment) -> str:
    """The equations that each flow integrates, as a LaTeX body with a section for each."""
    from theory.evolution import derive

    sections = []
    for kind in experiment.flow.flows:
        field: Any = experiment.field(kind)
        equations = getattr(field, "equations", None) or derive(experiment.architecture())
        remarks = []
        while hasattr(field, "remark"):
            remarks.append(field.remark)
            field = field.field
        degree = "" if equations.degree is None else f", degree {equations.degree} of the loss"
        remark = "".join(f"{text}\n\n" for text in remarks)
        sections.append(f"\\section*{{{kind}{degree}}}\n\n{remark}{equations.to_latex().rstrip()}\n")
    return "\n".join(sections)


def cost_report(experiment: Experiment) -> str:
    """What one right-hand side of each flow costs, in every way to evaluate it: known before anything is compiled."""
    from simulate.costs import cost_table, evaluation_of

    chosen = {kind: evaluation_of(experiment.field(kind)) for kind in experiment.flow.flows}
    return cost_table({kind: experiment.costs[kind] for kind in chosen}, chosen)


def flow_table(trajectories: Mapping[str, Trajectory]) -> str:
    """One line per flow: how it ended, where, the loss at both ends, and its cost."""
    rows = [("flow", "status", "end t", "last good t", "loss from", "to", "steps", "rejected", "compile s", "run s")]
    for name, trajectory in trajectories.items():
        numbers = flow_summary(trajectory)
        first, last = ("–" if numbers[key] is None else f"{numbers[key]:.6g}" for key in ("loss_start", "loss_end"))
        rows.append(
            (
                name,
                trajectory.status,
                f"{numbers['stop_time']:.6g}",
                "–" if numbers["last_good_time"] is None else f"{numbers['last_good_time']:.6g}",
                first,
                last,
                str(numbers["steps_accepted"]),
                str(numbers["steps_rejected"]),
                f"{numbers['seconds_compile']:.2f}",
                f"{numbers['seconds_run']:.2f}",
            )
        )
    return _aligned(rows, 2)


def sweep_table(experiment: Experiment, sweep: Ensemble) -> str:
    """How the members were integrated, one line for each (all in one beyond 12), and the band of the loss at the end."""
    labels = experiment.sweep_labels()
    rates = dict.fromkeys(each.get("learning_rate") for each in labels)
    lines = []
    for rate, choice in zip(rates, sweep.choices, strict=True):
        at = "" if rate is None else f" at learning rate {rate:g}"
        lines.append(f"sweep of the {experiment.sweep_flow()} flow{at}: {choice}")
    numbers = sweep_summary(experiment, sweep)
    if len(labels) <= _LISTED:
        rows = [(*labels[0], "status", "end t", "loss to", "steps", "rejected")]
        for names, member in zip(labels, numbers["members"], strict=True):
            loss = "–" if member["loss_end"] is None else f"{member['loss_end']:.6g}"
            cells = (member["status"], f"{member['stop_time']:.6g}", loss)
            steps = (str(member["steps_accepted"]), str(member["steps_rejected"]))
            rows.append((*(f"{value:g}" for value in names.values()), *cells, *steps))
        lines.append(_aligned(rows, len(labels[0]) + 1))
    else:
        statuses = Counter(member["status"] for member in numbers["members"])
        counted = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
        spans = [sorted(member[key] for member in numbers["members"]) for key in ("steps_accepted", "steps_rejected")]
        accepted, rejected = (f"{span[0]} to {span[-1]}" for span in spans)
        lines.append(f"{len(labels)} members: {counted}; steps {accepted}, rejected {rejected}")
    bands = numbers["bands"]
    ends = ("–" if row[-1] is None else f"{row[-1]:.6g}" for row in bands["loss"])
    pairs = ", ".join(f"{loss} ({q:g})" for q, loss in zip(bands["quantiles"], ends, strict=True))
    lines.append(f"loss at t = {bands['times'][-1]:.6g}, quantiles over {bands['members'][-1]} members: {pairs}")
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]], left: int) -> str:
    """Lines of a table, its first `left` columns to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def event_lines(trajectories: Mapping[str, Trajectory]) -> str:
    """One line per event of each flow: when it happened, if it did."""
    lines = []
    for flow, trajectory in trajectories.items():
        for name, event in trajectory.attributes.get("events", {}).items():
            when = "did not happen" if event["time"] is None else f"at t = {event['time']:.8g}"
            lines.append(f"{flow}: {name} {when} ({event['text']})")
    return "\n".join(lines)


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
