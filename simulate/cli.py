"""The command `staircase simulate`. Heavy imports happen inside it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from theory.errors import NumericalFailure, UserError


def simulate(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="The run directory; EXPERIMENT-run by default.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. sgd.learning_rate=0.05; repeatable."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run directory once the new one is whole.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a run that was killed, or with larger flow.max_steps.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    """Integrate the flows of an experiment.

    Writes DIR with experiment.toml (as resolved), trajectories.nc (one group per flow, and one for the section [sweep]),
    summary.json and equations.tex, and prints one line per flow. Exit status 3 when a flow fails in a way that the experiment
    does not list under flow.expected.

    While it runs, DIR.partial keeps a snapshot of each flow about every minute. After a kill, or when steps ran out, --resume
    goes on from it: the result is that of an uninterrupted run, bit for bit, and finished flows are not run again. Members of
    a sweep do the same unless vmap takes them: then they begin anew.
    """
    from simulate.experiment import load_experiment
    from simulate.rundir import UnfinishedRun, check_run_directory, run_directory

    directory = Path(f"{experiment.stem}-run") if output is None else output
    # What was computed before the steps ran out stands there, and is replaced by what is resumed.
    force = force or (resume and UnfinishedRun.place(directory).exists())
    check_run_directory(directory, force=force)
    loaded = load_experiment(experiment, set or ())
    if not loaded.flow.flows:
        raise UserError(f"{experiment} integrates no flow: name one in flow.kinds, or train with `staircase compare`")
    resolved = loaded.to_toml()
    if resume:
        unfinished = UnfinishedRun.resume(directory, resolved)
    else:
        unfinished = UnfinishedRun.begin(directory, resolved, force=force)

    from simulate import cache
    from simulate.run import (
        cost_report,
        event_lines,
        flow_table,
        run_flows,
        run_noise,
        run_sweep,
        sweep_table,
        write_run,
    )

    cache.enable()
    try:
        if not quiet:
            typer.echo(f"one right-hand side\n{cost_report(loaded)}\n")
        trajectories = run_flows(
            loaded,
            progress=not quiet and sys.stderr.isatty(),
            unfinished=unfinished,
            announce=None if quiet else lambda line: typer.echo(line, err=True),
        )
        if loaded.noise is not None:
            trajectories["noise"] = run_noise(loaded)
        sweep = None if loaded.sweep is None else run_sweep(loaded, unfinished=unfinished)
    except (UserError, NumericalFailure):
        if not resume:
            unfinished.remove()
        raise
    with run_directory(directory, force=force) as target:
        write_run(target, loaded, trajectories, sweep)
    if not quiet:
        typer.echo(flow_table(trajectories))
        if lines := event_lines(trajectories):
            typer.echo(lines)
        if sweep is not None:
            typer.echo(f"\n{sweep_table(loaded, sweep)}")
        typer.echo(f"written to {directory}")
    good = ("completed", "event", *loaded.flow.expected)
    failed = {name: trajectory for name, trajectory in trajectories.items() if trajectory.status not in good}
    exhausted = [name for name, trajectory in failed.items() if trajectory.status == "max-steps"]
    members = [] if sweep is None else [run.status for run in sweep.members if run.status not in good]
    exhausted += ["the sweep"] if "max-steps" in members else []
    if not exhausted:
        unfinished.remove()
    elif not quiet:
        typer.echo(
            f"--resume --set flow.max_steps=… goes on with {', '.join(exhausted)} where the steps ran out", err=True
        )
    if failed or members:
        reasons = [f"{name}: {run.status}, {run.attributes['message']}" for name, run in failed.items()]
        if members:
            ends = ", ".join(dict.fromkeys(members))
            reasons.append(f"{len(members)} members of the sweep: {ends}; see summary.json.")
        raise NumericalFailure(f"{'; '.join(reasons)} What was computed is in {directory}.")


def register(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command("simulate")(simulate)
