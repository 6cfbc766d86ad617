"""The commands `staircase compare`, `staircase report` and `staircase certify`. Heavy imports happen inside them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

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
    force: Annotated[
        bool, typer.Option("--force", help="Replace the run directory once the new one is whole.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no table.")] = False,
) -> None:
    """Integrate the flows of an experiment, train the same model with SGD, and compare.

    Writes DIR with experiment.toml (as resolved), trajectories.nc, summary.json, equations.tex, figures and report.html,
    and prints errors and the verdict on every claim. Exit status 3 when a flow or a training fails numerically in a way
    that the experiment does not list under flow.expected.
    """
    from simulate.experiment import load_experiment
    from simulate.rundir import check_run_directory, run_directory

    directory = Path(f"{experiment.stem}-run") if output is None else output
    check_run_directory(directory, force=force)
    loaded = load_experiment(experiment, set or ())

    from compare.run import run_comparison, write_comparison

    run = run_comparison(loaded, progress=not quiet and sys.stderr.isatty())
    with run_directory(directory, force=force) as target:
        write_comparison(target, run)
    if not quiet:
        for name, comparison in run.comparisons.items():
            typer.echo(f"against {name}\n{comparison.table()}\n")
        for verdict in run.claims:
            typer.echo(
                f"{verdict.verdict}: {verdict.claim}: {verdict.measured:.4g} {verdict.comparison} "
                f"{verdict.threshold:g} ({verdict.scope})"
            )
        typer.echo(f"written to {directory}; open {directory / 'report.html'}")
    failures = run.failures()
    if failures:
        raise NumericalFailure(f"{'; '.join(failures)} What was computed is in {directory}.")


def report(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A run directory of `staircase compare`.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Where to write; DIR/report.html by default.")
    ] = None,
) -> None:
    """Write the HTML report of a run directory anew, one file that needs no network."""
    if not directory.is_dir():
        raise UserError(f"there is no run directory {str(directory)!r}")
    from compare.run import report_of
    from theory.cli import write_atomically

    path = directory / "report.html" if output is None else output
    write_atomically(path, report_of(directory).encode())
    typer.echo(f"written to {path}")


def certify(
    arch: Annotated[str, typer.Argument(metavar="ARCH", help="A stock name, or FILE.py:FUNCTION.")],
    activation: Annotated[str | None, typer.Option(help="The activation, e.g. tanh.")] = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Another option; may be repeated.")
    ] = None,
    degree: Annotated[int | None, typer.Option(min=1, help="Degree of the loss up to which to expand.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the random data and parameters.")] = 0,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
) -> None:
    """Hold the derived equations against automatic differentiation, exactly and order by order.

    Exit status 3 when a check fails.
    """
    import json

    from theory.cli import architecture_of

    architecture = architecture_of(arch, activation, option)

    from compare.certificate import certify as certify_equations

    certificate = certify_equations(architecture, degree=degree, seed=seed)
    typer.echo(certificate.to_text() if format == "text" else json.dumps(certificate.to_dict(), indent=2))
    if not certificate.passed:
        raise NumericalFailure(f"{len(certificate.failures)} of {len(certificate.checks)} checks of {arch} failed.")


def register(app: typer.Typer) -> None:
    """Add the commands of this package to the command line."""
    app.command("compare")(compare)
    app.command("report")(report)
    app.command("certify")(certify)
