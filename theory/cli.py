"""The command `staircase`: deriving and tabulating equations, and whatever other packages add.

Packages add commands through the entry point group `staircase.commands` (a function that takes the typer
application) and lists through `staircase.listings` (a function that returns (name, summary) pairs), so that
nothing here imports them. Heavy imports happen inside commands. Exit status: 0; 2 for a user's mistake; 3
when the numbers failed.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from theory.errors import NumericalFailure, UserError, file_words, nearest, python_words, words
from theory.files import check_file, reason, write_atomically
from theory.python_files import line_of, sentence
from theory.values import parse_options

if TYPE_CHECKING:
    from theory.evolution import EvolutionEquations
    from theory.language import Architecture
    from theory.signatures import Signature

DISTRIBUTION = "context-staircase"
# More terms than this nobody reads: `derive` then leaves positions independent unless told otherwise.
MOST_DISTINCT = 2000
COMMANDS, LISTINGS = "staircase.commands", "staircase.listings"

Arch = Annotated[str, typer.Argument(metavar="ARCH", help="A stock name, or FILE.py:FUNCTION.")]
Activation = Annotated[str | None, typer.Option(help="The activation, e.g. tanh.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Another option; may be repeated.")
]
Degree = Annotated[int | None, typer.Option(min=1, help="Degree of the loss up to which terms are kept.")]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="A nonlinearity that is not expanded: activation, attention, prediction, all; may be repeated."),
]
Loss = Annotated[Literal["cross_entropy", "squared_error"], typer.Option(help="The loss, a mean over the data.")]
Paths = Annotated[bool, typer.Option("--paths", help="Keep terms apart by path and branch.")]
Parameter = Annotated[str | None, typer.Option(help="Only the equation of this parameter.")]


def checked_output(path: Path | None) -> Path | None:
    """An option's value, refused before any work where no file can be written."""
    if path is not None:
        check_file(path)
    return path


Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", callback=checked_output, help="Write to this file instead of standard output."),
]
Task = Annotated[str, typer.Option(metavar="TASK", help="A task, a data file, or FILE.py:FUNCTION.")]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task-option", metavar="KEY=VALUE", help="An option of the task; add has numbers=4, length=4 without any."
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", metavar="AXIS=N", help="The size of an axis, 8 by default; may be repeated."),
]


def list_choices(
    format: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
) -> None:
    """List architectures, tasks, activations and solvers."""
    from theory.activations import NAMED
    from theory.architectures import STOCK
    from theory.data import describe

    def signature(options: dict[str, Any]) -> str:
        shown = [key if default is ... else f"{key}={default}" for key, default in options.items()]
        return f" [{', '.join(shown)}]" if shown else ""

    architectures = []
    for name, function in STOCK.items():
        parameters = inspect.signature(function).parameters.values()
        options = {p.name: ... if p.default is p.empty else p.default for p in parameters}
        summary = (inspect.getdoc(function) or "").split("\n")[0]
        architectures.append((name, summary + signature(options)))
    groups: dict[str, list[tuple[str, str]]] = {
        "architectures": architectures,
        "tasks": [(task.name, task.summary + signature(task.options)) for task in describe()],
        "activations": [(name, str(expression)) for name, expression in NAMED.items()],
    }
    for entry in importlib.metadata.entry_points(group=LISTINGS):
        groups[entry.name] = list(entry.load()())
    if format == "json":
        typer.echo(json.dumps({group: dict(pairs) for group, pairs in groups.items()}, indent=2, ensure_ascii=False))
        return
    for group, pairs in groups.items():
        width = max(len(name) for name, _ in pairs)
        typer.echo(group)
        for name, summary in pairs:
            typer.echo(f"  {name:<{width}}  {summary}")


def derive(
    arch: Arch,
    activation: Activation = None,
    option: Options = None,
    degree: Degree = None,
    keep: Keep = None,
    prediction: Annotated[
        str | None, typer.Option(help="kept, of-truncated-logits or expanded; what p stands for in the equations.")
    ] = None,
    loss: Loss = "cross_entropy",
    paths: Paths = False,
    parameter: Parameter = None,
    positions: Annotated[
        Literal["distinct", "independent"] | None,
        typer.Option(
            help="Whether sums over positions are over distinct ones, as in probability signatures; by default they are, "
            "unless that makes too many terms.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[Literal["text", "latex", "markdown", "json"], typer.Option(help="How to print.")] = "text",
    output: Output = None,
) -> None:
    """Derive the evolution equations of an architecture.

    Without --degree nothing is expanded: the exact gradient, as named quantities.
    """
    from theory.evolution import derive as derive_equations

    architecture = architecture_of(arch, activation, option)
    _check_parameter(architecture, parameter)
    if format == "json" and parameter is not None:
        raise UserError("--format json always holds every equation; leave --parameter out.")
    equations = derive_equations(
        architecture,
        degree,
        tuple(keep) if keep else None,
        loss=loss,
        prediction=prediction,  # pyright: ignore[reportArgumentType]
        paths=paths,
    )
    if positions == "distinct" or (positions is None and _few_when_distinct(equations)):
        equations = equations.distinct_positions()
    elif positions is None:
        typer.echo(
            f"note: positions are summed independently, since over distinct ones there would be more than "
            f"{MOST_DISTINCT} terms; --positions distinct writes them all",
            err=True,
        )
    if format == "json":
        text = equations.to_json(indent=2)
    else:
        printers = {"text": equations.to_text, "latex": equations.to_latex, "markdown": equations.to_markdown}
        text = printers[format](parameter)
    _write(text, output)


def _few_when_distinct(equations: EvolutionEquations) -> bool:
    """Whether the view over distinct positions has at most `MOST_DISTINCT` terms, found without making them all."""
    from theory.positions import distinct_terms

    count = 0
    for equation in equations.values():
        # A few terms at a time: among them like ones merge, and too many are noticed before all are made.
        for start in range(0, len(equation), 16):
            count += len(distinct_terms(equations, equation.terms[start : start + 16]))
            if count > MOST_DISTINCT:
                return False
    return True


def table(
    arch: Arch,
    activation: Activation = None,
    option: Options = None,
    degree: Degree = None,
    keep: Keep = None,
    loss: Loss = "cross_entropy",
    paths: Paths = False,
    parameter: Parameter = None,
    format: Annotated[Literal["text", "latex", "markdown", "json"], typer.Option(help="How to print.")] = "text",
    output: Output = None,
) -> None:
    """Print the staircase: which signature enters at what degree, and with what multiplier.

    Without --degree, up to the first degree of the loss from 8 on.
    """
    from theory.evolution import derive as derive_equations

    architecture = architecture_of(arch, activation, option)
    _check_parameter(architecture, parameter)
    kept = tuple(keep) if keep else None
    if degree is None:
        degree = _first_degree(architecture, kept, loss, 8)
    staircase = derive_equations(architecture, degree, kept, loss=loss, paths=paths).staircase(parameter)
    printers = {
        "text": staircase.to_text,
        "latex": staircase.to_latex,
        "markdown": staircase.to_markdown,
        "json": lambda: staircase.to_json(indent=2),
    }
    _write(printers[format](), output)


def signatures(
    task: Annotated[
        str | None, typer.Argument(metavar="TASK", help="A task, a data file, or FILE.py:FUNCTION.", show_default=False)
    ] = None,
    order: Annotated[
        int | None,
        typer.Option(help="Of a task: the order m, how many context tokens; 0 by default.", show_default=False),
    ] = None,
    kind: Annotated[
        Literal["label", "co-occurrence", "next-token", "previous-token", "skip-gram", "prefix", "prefix-set"] | None,
        typer.Option(
            help="Which signature. Of a task label (the default) or co-occurrence; of a corpus next-token (the default) or "
            "one of the others; prefix is the token in the past.",
            show_default=False,
        ),
    ] = None,
    option: Options = None,
    token: Annotated[list[str] | None, typer.Option(help="Only this token; may be repeated.")] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="In place of a task: a text or JSON Lines file (.gz, .zst), a folder of them, a saved Hugging Face data set, "
            "or cpython for the text that Python ships.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(help="Of a corpus: word (the default), byte, bpe (trained on it), tokenizer.json, words.txt."),
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Of a corpus: how many words are kept, or tokens made; 1000 by default.")
    ] = None,
    length: Annotated[
        int | None, typer.Option(help="Of a corpus: positions of a window, for prefix and prefix-set; 32 by default.")
    ] = None,
    distance: Annotated[int | None, typer.Option(help="Of a corpus: k of skip-gram; 1 by default.")] = None,
    weighting: Annotated[
        Literal["position", "pair"] | None,
        typer.Option(help="Of a corpus: prefix pairs weigh 1/s (position, the default) or alike (pair)."),
    ] = None,
    documents: Annotated[
        Literal["file", "line"] | None,
        typer.Option(help="Of a corpus: what one document is in a text file; file by default."),
    ] = None,
    field: Annotated[
        str | None, typer.Option(help="Of a corpus: the key of the text in JSON Lines and data sets; text by default.")
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Of a corpus: count it on the workers of this Dask scheduler."),
    ] = None,
    format: Annotated[Literal["table", "json", "npz"], typer.Option(help="How to print.")] = "table",
    output: Output = None,
) -> None:
    """Print the probability signatures of a task's or a corpus's tokens."""
    if format == "npz" and output is None:
        raise UserError("--format npz needs a file to write: -o FILE.")
    of_corpus = {
        "tokenizer": tokenizer,
        "vocabulary": vocabulary,
        "length": length,
        "distance": distance,
        "weighting": weighting,
        "documents": documents,
        "field": field,
        "scheduler": scheduler,
    }
    given = {name: value for name, value in of_corpus.items() if value is not None}
    if (task is None) == (corpus is None):
        raise UserError("signatures are those of a TASK or of a --corpus PATH; give one of them.")
    if corpus is not None:
        from theory.corpus import signature as corpus_signature

        if order is not None or option:
            wrong = "--order" if order is not None else "--option"
            raise UserError(f"{wrong} is a task's; the order of a corpus's signature follows from its --kind.")
        told = _progress if sys.stderr.isatty() else None
        signature = corpus_signature(corpus, kind or "next-token", token or None, told=told, **given)
        if told:
            typer.echo("\r" + " " * 40 + "\r", err=True, nl=False)
    else:
        from theory.data import load
        from theory.signatures import cooccurrence_signature, label_signature

        if given:
            raise UserError(f"--{next(iter(given))} is a corpus's; a TASK takes none.")
        if kind not in (None, "label", "co-occurrence"):
            raise UserError(f"--kind {kind} is a corpus's; of a TASK choose label or co-occurrence.")
        assert task is not None
        dataset = load(task, **parse_options(option or ()))
        make = cooccurrence_signature if kind == "co-occurrence" else label_signature
        signature = make(dataset, order or 0, token or None)
    if format == "table":
        _write(_signature_table(signature), output)
    elif format == "json":
        _write(json.dumps(signature.labelled() | {"data": signature.array.tolist()}, ensure_ascii=False), output)
    else:
        assert output is not None
        write_atomically(output, _signature_arrays(signature))


def _progress(tokens: int, size: int) -> None:
    typer.echo(f"\r{tokens:,} tokens counted", err=True, nl=False)


def _signature_arrays(signature: Signature) -> bytes:
    """The content of an .npz file; a sparse signature in the arrays of `scipy.sparse.save_npz`, (row, modes flattened)."""
    import numpy as np

    names = {mode: np.array(names) for mode, names in zip(signature.modes, signature.mode_names, strict=True)}
    if signature.is_sparse:
        matrix = signature.matrix
        values = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
        values |= {"shape": np.array(matrix.shape), "format": np.array(b"csr"), "_is_array": np.array(True)}
    else:
        values = {"signature": signature.array}
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        **values,  # pyright: ignore[reportArgumentType]
        tokens=np.array(signature.tokens),
        probability=signature.probability,
        modes=np.array(signature.modes),
        **names,  # pyright: ignore[reportArgumentType]
    )
    return buffer.getvalue()


def errata(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random instances.")] = 0,
    format: Annotated[Literal["text", "latex", "markdown", "json"], typer.Option(help="How to print.")] = "text",
    output: Output = None,
) -> None:
    """Compare the seed paper's printed formulas with the derived equations.

    Exit status 3 when a formula is flagged and no correction agrees with the derived equations.
    """
    from theory.errata import check

    found = check(seed)
    printers = {
        "text": found.to_text,
        "latex": found.to_latex,
        "markdown": found.to_markdown,
        "json": lambda: found.to_json(indent=2),
    }
    _write(printers[format](), output)
    if found.unexplained:
        names = ", ".join(finding.record.place for finding in found.unexplained)
        raise NumericalFailure(f"flagged, and no correction agrees with the derived equations: {names}.")


def scaling(
    arch: Arch,
    activation: Activation = None,
    option: Options = None,
    task: Task = "add",
    task_option: TaskOptions = None,
    size: Sizes = None,
    orders: Annotated[int, typer.Option(min=0, help="The largest signature order.")] = 3,
    seeds: Annotated[int, typer.Option(min=1, help="How many initialisations, seeds 0, 1, ….")] = 3,
    parameter: Annotated[str | None, typer.Option(help="The embedding; by default the first there is.")] = None,
    degree: Annotated[int, typer.Option(min=1, help="Degree of the loss up to which an order is searched.")] = 8,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
    output: Output = None,
) -> None:
    """Print how fast each signature order vanishes at small initialisation, predicted and measured.

    Sequences of L tokens have orders up to L - 1: for the default task, --task-option length=4.
    """
    from theory.data import load
    from theory.scaling import hierarchy

    architecture = architecture_of(arch, activation, option)
    dataset = load(task, **_task_options(task, task_option))
    found = hierarchy(
        architecture,
        dataset,
        _sizes_of(architecture, size),
        orders=orders,
        seeds=range(seeds),
        parameter=parameter,
        degree=degree,
    )
    _write(found.to_json(indent=2) if format == "json" else found.to_text(), output)


def closed_form(
    arch: Arch,
    activation: Activation = None,
    option: Options = None,
    task: Task = "add",
    task_option: TaskOptions = None,
    size: Sizes = None,
    gamma: Annotated[float | None, typer.Option(help="Initial standard deviation d_in^-gamma.")] = None,
    scale: Annotated[float | None, typer.Option(help="Initial standard deviation; 0.01 without --gamma.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the initial arrays, or of the search for the maximum.")] = 0,
    format: Annotated[Literal["text", "json"], typer.Option(help="How to print.")] = "text",
    output: Output = None,
) -> None:
    """Print the leading order in closed form: rates and escape, or the blow-up of a scale-free form.

    The lowest degree of the loss decides which: 2 is linear; 3 and more condense.
    """
    from theory.closed_form import condensation, leading_equations, leading_order
    from theory.data import load
    from theory.initial import initialise

    architecture = architecture_of(arch, activation, option)
    dataset = load(task, **_task_options(task, task_option))
    sizes = _sizes_of(architecture, size)
    if scale is None and gamma is None:
        scale = 0.01
    initial = initialise(architecture, {**sizes, **dataset.sizes}, gamma=gamma, scale=scale, seed=seed)
    leading = leading_equations(architecture).degree
    if leading is not None and leading > 2:
        found = condensation(architecture, dataset, sizes, seed=seed)
    else:
        found = leading_order(architecture, dataset, initial)
    _write(json.dumps(found.to_dict(), indent=2, ensure_ascii=False) if format == "json" else found.to_text(), output)


def _task_options(task: str, given: Sequence[str] | None) -> dict[str, Any]:
    options = parse_options(given or ())
    return options or ({"numbers": 4, "length": 4} if task == "add" else {})


def _sizes_of(architecture: Architecture, given: Sequence[str] | None) -> dict[str, int]:
    """The sizes of the axes that no dataset decides, 8 where none is given."""
    from theory.language import LABEL, POSITION, TOKEN

    sizes = parse_options(given or (), "axis=size")
    decided = {architecture.root(a) for a in (LABEL, POSITION, TOKEN)}
    free = [a for a in architecture.axes if a not in decided]
    for axis, value in sizes.items():
        if architecture.root(axis) in decided and axis in architecture.axes:
            raise UserError(
                f"the size of axis {axis!r} comes from the data; what is free is {', '.join(free) or 'none'}"
            )
        if axis not in free:
            raise UserError(f"{architecture.name} has no axis {axis!r} to give a size; {nearest(axis, free)}")
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"the size of axis {axis!r} must be a whole number, but is {value!r}.")
    return dict.fromkeys(free, 8) | sizes


def _signature_table(signature: Signature) -> str:
    """One line per token: its probability, then the entries from the largest down."""
    import numpy as np

    shown = 8
    sizes = signature.shape[1:]
    lines = [f"{signature.kind} signature of order {signature.order}, modes ({', '.join(signature.modes)})"]
    width = max(map(len, (*signature.tokens, "token")))
    lines.append(f"{'token':<{width}}  P(token)  largest entries")
    for number, (token, probability) in enumerate(zip(signature.tokens, signature.probability, strict=True)):
        places, values = signature.row(number)
        largest = np.argsort(-values, kind="stable")[: shown + 1]
        entries = []
        for i in largest[:shown]:
            place = np.unravel_index(places[i], sizes)
            names = [names[int(i)] for names, i in zip(signature.mode_names, place, strict=True)]
            entries.append(f"{','.join(names)}: {values[i]:.4f}")
        more = "  …" if len(largest) > shown else ""
        lines.append(f"{token:<{width}}  {probability:8.4f}  {'  '.join(entries)}{more}")
    if signature.missing:
        lines.append(f"never occurring, hence without a signature: {', '.join(signature.missing)}")
    return "\n".join(lines)


def new_architecture(
    name: Annotated[str, typer.Argument(metavar="NAME", help="How the architecture is called: a Python identifier.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=checked_output, help="Where to write; NAME.py by default."
        ),
    ] = None,
) -> None:
    """Write a commented file with an architecture that derives and certifies as it stands."""
    from theory.scaffold import architecture_file

    path, text = architecture_file(name, output)
    write_atomically(path, text.encode())
    typer.echo(f"written to {path}; next: staircase table {path}:{name}")


def new_experiment(
    name: Annotated[str, typer.Argument(metavar="NAME", help="How the experiment is called.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", callback=checked_output, help="Where to write; NAME.toml by default."
        ),
    ] = None,
) -> None:
    """Write a commented experiment file that runs as it stands."""
    from theory.scaffold import experiment_file

    path, text = experiment_file(name, output)
    write_atomically(path, text.encode())
    typer.echo(f"written to {path}; next: staircase simulate {path}")


def architecture_of(name: str, activation: str | None, option: Sequence[str] | None) -> Architecture:
    from theory.architectures import load

    options = parse_options(option or ())
    if activation is not None:
        if "activation" in options:
            raise UserError("the activation was given twice, by --activation and by --option.")
        options["activation"] = activation
    return load(name, **options)


def _check_parameter(architecture: Architecture, parameter: str | None) -> None:
    if parameter is not None and parameter not in architecture.parameters:
        choices = nearest(parameter, architecture.parameters)
        raise UserError(f"{architecture.name} has no parameter {parameter!r}; {choices}")


def _first_degree(architecture: Architecture, keep: tuple[str, ...] | None, loss: str, start: int) -> int:
    """The first degree from `start` on that a term of the loss has."""
    from theory.evolution import derive as derive_equations

    problem: UserError | None = None
    for degree in range(start, 2 * start + 1):
        try:
            derive_equations(architecture, degree, keep, loss=loss)
        except UserError as error:
            problem = problem or error
        else:
            return degree
    assert problem is not None
    raise problem


def _write(text: str, output: Path | None) -> None:
    text = text if text.endswith("\n") else text + "\n"
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_atomically(output, text.encode())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"staircase {importlib.metadata.version(DISTRIBUTION)}")
        raise typer.Exit()


def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Derive, integrate and test the evolution equations of token embeddings.

    Exit status: 0; 2 for a mistake in what was typed; 3 when the numbers failed.
    """
    _remember(context)


def _remember(context: typer.Context) -> None:
    """Tell `main` which command runs, since its messages are in the words of that command."""
    context.obj["command"] = context.command.commands.get(context.invoked_subcommand)  # pyright: ignore


def application() -> typer.Typer:
    """The command line with the commands of all installed packages."""
    app = typer.Typer(
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    app.command("list")(list_choices)
    app.command("derive")(derive)
    app.command("table")(table)
    app.command("signatures")(signatures)
    app.command("errata")(errata)
    app.command("scaling")(scaling)
    app.command("closed-form")(closed_form)
    new = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
    new.callback()(_remember)
    new.command("architecture")(new_architecture)
    new.command("experiment")(new_experiment)
    app.add_typer(new, name="new", help="Write a file to begin with.")
    for entry in importlib.metadata.entry_points(group=COMMANDS):
        entry.load()(app)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    **Arguments:** `arguments`: the words after `staircase`; those of the process by default.
    """
    running: dict[str, Any] = {}
    try:
        with words(lambda *given: _command_line_words(running.get("command"), *given)):
            status = application()(
                args=None if arguments is None else list(arguments),
                prog_name="staircase",
                standalone_mode=False,
                obj=running,
            )
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except NumericalFailure as error:
        return _told(str(error), 3)
    except _CLICK_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # pyright: ignore[reportAttributeAccessIssue]
            return 2
        return _told(_usage(error), 2)
    except Exception as error:
        told = _mistake(error)
        if told is None:
            raise
        return _told(told, 2)


def _told(message: str, status: int) -> int:
    message = " ".join(message.split())
    typer.echo(f"staircase: {message}" + ("" if message.endswith((".", "?")) else "."), err=True)
    return status


def _mistake(error: Exception) -> str | None:
    """The sentence that tells a user what went wrong; None for an error of the program's own."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, typer.Abort):
        return "stopped"
    if isinstance(error, MemoryError) or re.search(r"RESOURCE_EXHAUSTED|can't allocate memory", str(error)):
        detail = re.search(r"\d[\d.,]* (?:[KMGTPE]i?B|bytes)", str(error))
        asked = f": {detail[0]} were asked for" if detail else ""
        return f"this machine has not enough memory{asked}; take smaller sizes, fewer save times or a lower degree or order"
    if line_of(error) is not None:
        return sentence(error, "")
    if isinstance(error, OSError):
        return f"{error.filename or 'standard output'} cannot be read or written: {reason(error)}"
    return None


# What typer raises for a wrong command line; it shows only this class's grandchild.
_CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]  # pyright: ignore[reportAssignmentType]


def _usage(error: Any) -> str:
    """One sentence for a command line that typer refuses."""
    message = " ".join(error.format_message().split())
    context = getattr(error, "ctx", None)
    if context is None:
        return f"{message[0].lower()}{message[1:]}"
    path = context.command_path
    options = [flag for parameter in context.command.params for flag in parameter.opts if flag.startswith("-")]
    commands = list(getattr(context.command, "commands", {}))
    # typer words these with or without pydantic's preamble.
    message = re.sub(r"Value error, |, unable to parse .*", "", message).replace("Input should", "it should")
    unknown = re.match(r"No such (option|command):? '?([^' ]*)'?", message)
    wrong = re.match(r"Invalid value for (.*): '(.*)' is not one of (.*)$", message)
    if unknown:
        kind, word = unknown.groups()
        word = word.rstrip(".") if kind == "option" else word
        # Two dashes in common do not make options alike.
        choices = nearest(word, options, 0.75) if kind == "option" else nearest(word, commands)
        return f"{path} has no {kind} {word}; {choices}"
    if wrong:
        choices = nearest(wrong[2], re.findall("'([^']*)'", wrong[3]))
        return f"{wrong[1]} of {path} cannot be {wrong[2]!r}; {choices}"
    return f"{message[0].lower()}{message[1:].rstrip('.')} (see {path} --help)"


def _command_line_words(command: Any, name: str, value: Any, of: str) -> str:
    """An argument as the running command takes it; see `theory.errors.argument`."""
    flags = {parameter.name: parameter.opts[-1] for parameter in getattr(command, "params", ())}
    flag = flags.get(name, "")
    if flag.startswith("-"):
        return flag if value is None or value is True else f"{flag} {value}"
    if flag and value is not None:
        return repr(value)
    key = flags.get("task_option" if of == "task" else "option") or flags.get("option")
    if of and key:
        return f"{key} {name}={value}"
    if "set" in flags:
        return file_words(name, value, of)
    return python_words(name, value, of)
