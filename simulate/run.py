"""Run the flows of an experiment and write what came out as a run directory."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theory.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from simulate.experiment import Experiment
    from simulate.rundir import UnfinishedRun
    from simulate.schedule import Schedule
    from simulate.trajectory import Trajectory

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
    axes = {name: spec.axes for name, spec in experiment.architecture().parameters.items()}

    def start(kind: str) -> Mapping[str, Any]:
        """A flow at a finite learning rate may start elsewhere, or with velocities."""
        own = getattr(experiment.field(kind), "start", None)
        return initial if own is None else own(initial, experiment.dataset())

    def saved(kind: str) -> Any:
        everything = experiment.save.parameters == "all"
        return tuple(axes) if everything and kind == "heavy-ball" else experiment.save.parameters

    return {
        kind: integrate(
            experiment.field(kind),
            experiment.dataset(),
            start(kind),
            until=until,
            save=schedule,
            save_parameters=saved(kind),
            solver=flow.solver,
            rtol=flow.rtol,
            atol=flow.atol,
            max_steps=flow.max_steps,
            blow_up=flow.blow_up,
            dtype=flow.dtype,
            events=experiment.events(),
            axes=axes,
            attributes=_recorded(experiment, kind),
            progress=progress,
            snapshot=unfinished and unfinished.snapshot(kind),
            announce=None if announce is None else _announcement(kind, announce),
        )
        for kind in flow.flows
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


def summary(experiment: Experiment, trajectories: Mapping[str, Trajectory]) -> dict[str, Any]:
    """What `summary.json` holds: seeds, versions, sizes, and the numbers of each flow."""
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
        "versions": {name: importlib.metadata.version(name) for name in _VERSIONED}
        | {"python": platform.python_version()},
    }


def write_run(directory: Path, experiment: Experiment, trajectories: Mapping[str, Trajectory]) -> None:
    """Write `experiment.toml` (as resolved), `trajectories.nc` (one group per flow), `summary.json`, `equations.tex`."""
    from simulate.trajectory import save_trajectories

    (directory / "experiment.toml").write_text(experiment.to_toml(), encoding="utf-8")
    save_trajectories(directory / "trajectories.nc", dict(trajectories))
    content = json.dumps(summary(experiment, trajectories), indent=2, ensure_ascii=False, allow_nan=False)
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
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
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
