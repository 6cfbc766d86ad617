"""What a user's mistake raises: one sentence that names the nearest right choice, in the words of where it was made."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Longer lists of choices are cut here: nobody reads them in a message.
MOST_LISTED = 24


class UserError(ValueError):
    """A mistake in what the user wrote; the command line prints its one sentence and exits with status 2."""


class NumericalFailure(RuntimeError):
    """The numbers failed (blow-up, non-finite values); the command line exits with status 3, keeping what was computed."""


def nearest(word: str, choices: Iterable[str], likeness: float = 0.55) -> str:
    """Name the choice closest to `word`, or list the choices where none is close.

    **Arguments:** `word`: what was found; `choices`: what would have been right; `likeness`: in [0, 1], from which on a
    choice is meant.

    **Returns:** ``"did you mean 'add'?"`` or ``"choose one of add, mod, mul, sub"``.
    """
    names = sorted(str(choice) for choice in choices)
    match = difflib.get_close_matches(str(word), names, n=1, cutoff=likeness)
    return f"did you mean '{match[0]}'?" if match else one_of(names)


def one_of(choices: Iterable[str]) -> str:
    """The choices as a message lists them, e.g. ``"choose one of add, mod, mul, sub"``."""
    names = list(choices)
    if not names:
        return "there is none to choose"
    if len(names) == 1:
        return f"the only choice is {names[0]}"
    shown = ", ".join(names[:MOST_LISTED])
    return f"choose one of {shown}" + (f", … ({len(names)} in all)" if len(names) > MOST_LISTED else "")


def python_words(name: str, value: Any, of: str) -> str:
    """`keep='activation'`, or `keep=` without a value."""
    return f"{name}=" + ("" if value is None else repr(value))


def file_words(name: str, value: Any, of: str) -> str:
    """`keep = "activation"`, as in an experiment file, or `keep` without a value."""
    return name if value is None else f"{name} = {json.dumps(value, ensure_ascii=False)}"


# Writes (name, value, what it is an argument of); the command line and experiment files put their own here.
_words: ContextVar[Callable[[str, Any, str], str]] = ContextVar("words", default=python_words)


def argument(name: str, value: Any = None, of: str = "") -> str:
    """How an argument is written where the user is: `keep='activation'` in Python, `--keep activation` on a command line.

    **Arguments:** `name`, `value`: of the keyword argument, None for the name alone; `of`: "task" or "architecture" for an
    option of these.
    """
    return _words.get()(name, value, of)


@contextmanager
def words(write: Callable[[str, Any, str], str]) -> Iterator[None]:
    """While this lasts, `argument` writes as `write(name, value, of)` does."""
    token = _words.set(write)
    try:
        yield
    finally:
        _words.reset(token)
