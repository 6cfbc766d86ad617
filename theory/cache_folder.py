"""Where results that may be thrown away are kept between runs: the user's cache directory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from theory.errors import UserError

VARIABLE = "STAIRCASE_CACHE_DIR"
_OFF = ("", "off", "0")


def is_off(asked: str | None) -> bool:
    """Whether the value of `STAIRCASE_CACHE_DIR` asks for no cache."""
    return asked is not None and asked.lower() in _OFF


def default_directory(subject: str) -> Path:
    """Where the operating system keeps what may be thrown away, e.g. `~/.cache/context-staircase/corpora`."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "context-staircase" / subject


def usable(chosen: Path, asked: bool) -> Path | None:
    """Make the folder; None where it cannot be written to and nobody asked for it by name.

    **Raises:** `UserError` where it was asked for.
    """
    try:
        chosen.mkdir(parents=True, exist_ok=True)
        writable = os.access(chosen, os.W_OK)
    except OSError:
        writable = False
    if not writable and asked:
        raise UserError(f"the cache directory {str(chosen)!r} cannot be written to; {VARIABLE}=off does without one.")
    return chosen if writable else None
