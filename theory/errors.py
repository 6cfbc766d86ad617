"""The one exception that a user's mistake raises: a single sentence that names the nearest right choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake in what the user wrote; the command line prints its one sentence and exits with status 2."""


class NumericalFailure(RuntimeError):
    """The numbers failed (blow-up, non-finite values); the command line exits with status 3, keeping what was computed."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """Name the choice closest to `word`, then list all of them.

    **Arguments:** `word`: what was found; `choices`: what would have been right.

    **Returns:** e.g. ``"did you mean 'add'? (choices: add, mod, mul, sub)"``.
    """
    names = sorted(str(choice) for choice in choices)
    match = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    listing = f"choices: {', '.join(names)}" if names else "there are no choices"
    return f"did you mean '{match[0]}'? ({listing})" if match else f"({listing})"
