"""Run the flows of an experiment and write what came out as a run directory."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from simulate.experiment import Experiment
    from simulate.schedule import Schedule
    from simulate.trajectory import Trajectory

_VERSIONED = ("context-staircase", "numpy", "scipy", "sympy", "jax", "diffrax", "xarray")


def run_flows(
    experiment: Experiment,
    *,
    schedule: Schedule | None = None,
    initial: Mapping[str, np.ndarray] | None = None,
    progress: bool = False,
) -> dict[str, Trajectory]:
    """Integrate every flow of the experiment, each from the same initial arrays.

    **Arguments:** `schedule`: save times up to the end in place of the experiment's own, such as a training can share;
    `initial`: arrays to start from in place of the experiment's own.

    **Returns:** flow kind → trajectory, in the order of the file. A flow that fails numerically is among them, with its
    status. **Raises:** `NumericalFailure` when "half-loss" or "one-nat" is not reached.
    """
    from simulate.costs import evaluation_of
    from simulate.flow import integrate

    flow = experiment.flow
    if schedule is None:
        until, schedule = experiment.until(), experiment.schedule()
    else:
        until = schedule.until
    initial = experiment.initial_parameters() if initial is None else initial
    axes = {name: spec.axes for name, spec in experiment.architecture().parameters.items()}
    return {
        kind: integrate(
            experiment.field(kind),
            experiment.dataset(),
            initial,
            until=until,
            save=schedule,
            save_parameters=experiment.save.parameters,
            solver=flow.solver,
            rtol=flow.rtol,
            atol=flow.atol,
            max_steps=flow.max_steps,
            blow_up=flow.blow_up,
            dtype=flow.dtype,
            axes=axes,
            attributes={
                "degree": None if kind == "exact" else flow.degree,
                "evaluation": evaluation_of(experiment.field(kind)),
                "initial_seed": experiment.initial.seed,
            },
            progress=progress,
        )
        for kind in flow.kinds
    }


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
        "rtol",
        "atol",
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
    for kind in experiment.flow.kinds:
        field = experiment.field(kind)
        equations = getattr(field, "equations", None) or derive(experiment.architecture())
        degree = "" if equations.degree is None else f", degree {equations.degree} of the loss"
        sections.append(f"\\section*{{{kind}{degree}}}\n\n{equations.to_latex().rstrip()}\n")
    return "\n".join(sections)


def cost_report(experiment: Experiment) -> str:
    """What one right-hand side of each flow costs, in every way to evaluate it: known before anything is compiled."""
    from simulate.costs import cost_table, evaluation_of

    chosen = {kind: evaluation_of(experiment.field(kind)) for kind in experiment.flow.kinds}
    return cost_table({kind: experiment.costs[kind] for kind in chosen}, chosen)


def flow_table(trajectories: Mapping[str, Trajectory]) -> str:
    """One line per flow: how it ended, where, the loss at both ends, and its cost."""
    rows = [("flow", "status", "end t", "loss from", "to", "steps", "rejected", "compile s", "run s")]
    for name, trajectory in trajectories.items():
        numbers = flow_summary(trajectory)
        first, last = ("–" if numbers[key] is None else f"{numbers[key]:.6g}" for key in ("loss_start", "loss_end"))
        rows.append(
            (
                name,
                trajectory.status,
                f"{numbers['stop_time']:.6g}",
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


def _finite(value: Any) -> float | None:
    return float(value) if math.isfinite(value) else None
