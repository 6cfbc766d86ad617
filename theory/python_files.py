"""Python files of the user: loaded, and whatever fails in them told in one sentence with its line."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from theory.errors import UserError

_PREFIX = "_user_file_"


def load_file(path: str | Path) -> ModuleType:
    """Run a Python file and return its module.

    **Raises:** `UserError` for a file that is missing or no Python file, and for anything that fails in it (with its line).
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"there is no file {str(path)!r}")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise UserError(f"{str(path)!r} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with failures_told(path):
        spec.loader.exec_module(module)
    return module


def loaded() -> list[ModuleType]:
    """The modules that `load` has made so far; another process cannot import them by name."""
    return [module for name, module in list(sys.modules.items()) if name.startswith(_PREFIX)]


def functions_of(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions that a file defines itself, without what it imports."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    }


@contextmanager
def failures_told(where: str | Path) -> Iterator[None]:
    """Turn any exception of the user's code into a `UserError` with file, line and the exception's own text.

    **Arguments:** `where`: what is named when no line of a user's file took part.
    """
    try:
        yield
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(sentence(error, where)) from error


def sentence(error: BaseException, where: str | Path) -> str:
    """`file:line: NameError: …`, the line being the last one of a user's file that took part."""
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError) and error.filename:
        text = " ".join(str(error.msg).split())
        place = _shown(error.filename, error.lineno)
    else:
        place = line_of(error) or str(where)
    return f"{place}: {type(error).__name__}" + (f": {text}" if text else "")


def line_of(error: BaseException) -> str | None:
    """`file:line` of the last line of a user's file that an exception passed through, if there is one."""
    place, trace = None, error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(_PREFIX):
            place = _shown(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return place


def _shown(filename: str, line: int | None) -> str:
    path = Path(filename)
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{path}:{line}" if line else str(path)
