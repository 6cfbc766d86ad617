"""Data distributions: arithmetic, label laws, anchors, text, the user's own: all a `Dataset`."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from theory.data.anchors import anchor_parity
from theory.data.arithmetic import add, composite_addition, min_max, mod, mul, sub
from theory.data.dataset import Dataset, from_sequences
from theory.data.label_laws import label_law, law_probabilities
from theory.data.own import SUFFIXES, from_function, is_reference, own
from theory.data.text import text
from theory.errors import UserError, argument, nearest

__all__ = [
    "TASKS",
    "Dataset",
    "TaskDescription",
    "add",
    "anchor_parity",
    "composite_addition",
    "describe",
    "from_function",
    "from_sequences",
    "label_law",
    "law_probabilities",
    "load",
    "min_max",
    "mod",
    "mul",
    "own",
    "sub",
    "text",
]

TASKS: dict[str, Callable[..., Dataset]] = {
    function.__name__: function
    for function in (
        add, sub, mul, mod, composite_addition, min_max, label_law, anchor_parity, text, own,
    )
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class TaskDescription:
    """What `staircase list` shows of a task: its options map name → default (`...`: required)."""

    name: str
    summary: str
    options: dict[str, Any]


def load(task: str, **options: Any) -> Dataset:
    """Make the dataset of a task by name.

    **Arguments:** `task`: a name in `TASKS` (hyphens count as underscores), a file ending in .npz,
    .csv or .jsonl, or `file.py:function`; `options`: those of the task's function.

    **Raises:** `UserError` for an unknown task or option (naming the nearest), a missing one, or
    whatever the task refuses.
    """
    name = str(task)
    if name not in TASKS and is_reference(name):
        if ".py:" in name:
            return from_function(name, **options)
        return load("own", **({"path": name} | options))
    name = name.replace("-", "_")
    if name not in TASKS and (Path(task).suffix or Path(task).is_file()):
        file = argument("task", "text"), argument("path", str(task), of="task")
        kinds = f"{', '.join(SUFFIXES)} and FILE.py:FUNCTION"
        raise UserError(f"{str(task)!r} is no task; for a text write {' and '.join(file)} (own sequences: {kinds})")
    if name not in TASKS:
        raise UserError(f"unknown task {str(task)!r}; {nearest(name, TASKS)}")
    known = _options(TASKS[name])
    for option in options:
        if option not in known:
            raise UserError(f"task {name} has no option {option!r}; {nearest(option, known)}")
    for option, default in known.items():
        if default is ... and option not in options:
            raise UserError(f"task {name} needs the option {option!r}: {argument(option, '…', of='task')}")
    return TASKS[name](**options)


def describe() -> tuple[TaskDescription, ...]:
    """Name, one-line summary and options of every task, in the order of `TASKS`."""
    return tuple(
        TaskDescription(name, (inspect.getdoc(function) or "").split("\n")[0], _options(function))
        for name, function in TASKS.items()
    )


def _options(function: Callable[..., Dataset]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {p.name: ... if p.default is inspect.Parameter.empty else p.default for p in parameters}
