"""The commands `staircase compare`, `report`, `reproduce` and `certify`. Heavy imports happen inside them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from theory.cli import checked_output
from theory.errors import NumericalFailure, UserError


def compare(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="The run directory; EXPERIMENT-run by default.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value, e.g. sgd.learning_rate=0.05; repeatable."),
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="DIR", help="Snapshots of a run made elsewhere, compared in place of a training."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run directory once the new one is whole.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    """Integrate the flows of an experiment, train the same model with SGD, and compare.

    Writes DIR with experiment.toml (as resolved), trajectories.nc, summary.json, equations.tex, figures, interactive.json
    and report.html, and prints errors and the verdict on every claim. Exit status 3 when a flow or a training fails
    numerically in a way that the experiment does not list under flow.expected. A command that was killed goes on from its
    last snapshot when it is given again.
    """
    from simulate.experiment import load_experiment
    from simulate.rundir import check_run_directory, run_directory, training_folder

    directory = Path(f"{experiment.stem}-run") if output is None else output
    check_run_directory(directory, force=force)
    # TOML and JSON write a string alike.
    overrides = [*(set or ()), *([f"run.path={json.dumps(str(run.resolve()))}"] if run is not None else [])]
    loaded = load_experiment(experiment, overrides)

    from simulate import cache

    cache.enable()
    from compare.run import run_comparison, write_comparison

    def announce(line: str) -> None:
        if not quiet:
            typer.echo(line, err=True)

    if loaded.sweep is not None:
        announce("the section [sweep] is left out here: staircase simulate runs it")
    with training_folder(directory, loaded.to_toml()) as snapshots:
        result = run_comparison(
            loaded, snapshots=snapshots, progress=not quiet and sys.stderr.isatty(), announce=announce
        )
        with run_directory(directory, force=force) as target:
            write_comparison(target, result)
    if not quiet:
        for name, training in result.trainings.items():
            if "resumed_from_step" in training.attributes:
                typer.echo(f"{name} went on from step {training.attributes['resumed_from_step']}", err=True)
            if not training.attributes["predicted_time_axis"]:
                typer.echo(f"{name}: {training.attributes['time_axis']}")
            for note in training.attributes.get("notes", ()):
                typer.echo(f"{name}: {note}")
        for name, comparison in result.comparisons.items():
            typer.echo(f"against {name}\n{comparison.table()}\n")
        for verdict in result.claims:
            seeds = ""
            if verdict.over_seeds is not None:
                seeds = f"; met by {verdict.seeds_met} of {len(verdict.over_seeds.values)} seeds"
            typer.echo(
                f"{verdict.verdict}: {verdict.claim}: {verdict.measured:.4g} {verdict.comparison} "
                f"{verdict.threshold:g} ({verdict.scope}{seeds})"
            )
        typer.echo(f"written to {directory}; open {directory / 'report.html'}")
    failures = result.failures()
    if failures:
        raise NumericalFailure(f"{'; '.join(failures)} What was computed is in {directory}.")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory of `staircase compare`.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            callback=checked_output,
            help="Where to write; DIR/report.html by default.",
        ),
    ] = None,
) -> None:
    """Write the HTML report of a run directory anew, one file that needs no network."""
    if not directory.is_dir():
        raise UserError(f"there is no run directory {str(directory)!r}")
    from compare.report.directory import report_of
    from theory.files import write_atomically

    path = directory / "report.html" if output is None else output
    write_atomically(path, report_of(directory).encode())
    typer.echo(f"written to {path}")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The experiment; without it they are listed.")
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="In the reduced setting that the file states.")] = False,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Where the experiment files are.")
    ] = Path("examples/staircase"),
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Where the run directories go, DIR/NAME or DIR/NAME-quick."),
    ] = Path("runs"),
    record: Annotated[
        bool, typer.Option("--record", help="Keep the results beside the experiment files, and write their table.")
    ] = False,
    table: Annotated[
        bool, typer.Option("--table", help="Write the table of the kept results, and run nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Run again what was run already.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no verdicts.")] = False,
) -> None:
    """Run published experiments again, over seeds, and judge what the paper says of them.

    An experiment and each of its variants is run as `staircase compare` does and has its own run directory. What is there
    already is not run again, and what was killed goes on. Every claim ends in a verdict: reproduced, reproduced only if (a
    condition), or not reproduced. The table is README.md beside the experiment files, made of the results kept there after
    what their about.md says.
    """
    from compare.reproduce import RESULTS, experiments, to_json
    from theory.files import write_atomically

    files = experiments(directory)
    if sum((name is not None, all, table)) > 1:
        raise UserError("name one experiment, or give --all, or --table")
    if table:
        _write_table(directory)
        return
    if name is None and not all:
        from simulate.experiment import title_of

        width = max(len(each) for each in files)
        for each, path in files.items():
            typer.echo(f"{each:<{width}}  {title_of(path)}")
        return
    from compare.reproduce import load, run

    # Everything is checked before anything is run.
    loaded = [load(each, directory, quick=quick) for each in (files if name is None else [name])]
    for one in loaded:
        result = run(
            one,
            output / one.label,
            force=force,
            progress=not quiet and sys.stderr.isatty(),
            announce=(lambda line: None) if quiet else (lambda line: typer.echo(line, err=True)),
        )
        if record:
            write_atomically(directory / RESULTS / f"{one.label}.json", to_json(result).encode())
        if not quiet:
            for claim in result["claims"]:
                typer.echo(f"{one.label}: {claim['verdict']}: {claim['claim']} ({claim['part']})")
    if record:
        _write_table(directory)


def _write_table(directory: Path) -> None:
    from compare.reproduce import page
    from theory.files import write_atomically

    path = directory / "README.md"
    write_atomically(path, page(directory).encode())
    typer.echo(f"written to {path}")


def certify(
    arch: Annotated[str, typer.Argument(metavar="ARCH", help="A stock name, or FILE.py:FUNCTION.")],
    activation: Annotated[str | None, typer.Option(help="The activation, e.g. tanh.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Another option; may be repeated.")
    ] = None,
    degree: Annotated[int | None, typer.Option(min=1, help="Degree of the loss up to which to expand.")] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A nonlinearity that stays kept while the rest is expanded; may be repeated."),
    ] = None,
    loss: Annotated[
        Literal["cross_entropy", "squared_error"], typer.Option(help="The loss, a mean over the data.")
    ] = "cross_entropy",
    seed: Annotated[int, typer.Option(min=0, help="Of the random data and parameters.")] = 0,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
) -> None:
    """Hold the derived equations against automatic differentiation, exactly and order by order.

    Exit status 3 when a check fails.
    """
    from theory.cli import architecture_of

    architecture = architecture_of(arch, activation, option)

    from compare.certificate import certify as certify_equations

    certificate = certify_equations(architecture, degree=degree, keep=tuple(keep or ()), loss_kind=loss, seed=seed)
    typer.echo(certificate.to_text() if format == "text" else json.dumps(certificate.to_dict(), indent=2))
    if not certificate.passed:
        raise NumericalFailure(f"{len(certificate.failures)} of {len(certificate.checks)} checks of {arch} failed.")


def register(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command("compare")(compare)
    app.command("report")(report)
    app.command("certify")(certify)
    app.command("reproduce")(reproduce)
