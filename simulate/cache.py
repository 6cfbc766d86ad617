"""A cache of compiled flows on disk, so that a second process does not compile what a first one did."""

from __future__ import annotations

import os
from pathlib import Path

from theory import cache_folder
from theory.cache_folder import VARIABLE

_LIMIT = 2_000_000_000


def default_directory() -> Path:
    """Where compiled programs are kept unless told otherwise."""
    return cache_folder.default_directory("compiled")


def enable(directory: str | os.PathLike[str] | None = None) -> Path | None:
    """Keep compiled programs in `directory` from now on, and use those that are there.

    What is looked up is the program after tracing together with the versions and the machine, so nothing stale is ever used;
    tracing itself is not saved. The commands of `staircase` call this; in Python it is for the caller to do.

    **Arguments:** `directory`: by default what the environment variable `STAIRCASE_CACHE_DIR` says ("off": no cache), else
    where jax was already told to keep its cache, else `default_directory()`.

    **Returns:** the directory, or None without a cache. **Raises:** `UserError` when a directory that was asked for cannot be
    written to; a default one is left out silently.
    """
    import jax

    asked = os.environ.get(VARIABLE) if directory is None else os.fspath(directory)
    if cache_folder.is_off(asked):
        return None
    known = getattr(jax.config, "jax_compilation_cache_dir", None)
    if asked is None and known:
        return Path(known)
    chosen = Path(asked) if asked is not None else default_directory()
    if cache_folder.usable(chosen, asked is not None) is None:
        return None
    jax.config.update("jax_compilation_cache_dir", str(chosen))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
    if _can_lock():
        jax.config.update("jax_compilation_cache_max_size", _LIMIT)
    return chosen


def _can_lock() -> bool:
    """Whether jax can hold the cache below a size, which it does under a file lock."""
    import importlib.util

    return importlib.util.find_spec("filelock") is not None
