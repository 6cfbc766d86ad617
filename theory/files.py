"""Where output goes: checked before the work, made with the folders it needs, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from theory.errors import UserError


def check_place(path: str | Path) -> None:
    """Refuse a path at which nothing can be made, by making and removing a folder in the nearest folder there is.

    **Raises:** `UserError` naming the folder and the reason.
    """
    parent = Path(path).absolute().parent
    # lexists: a dangling link in the way is in the way.
    while not os.path.lexists(parent):
        parent = parent.parent
    if not parent.is_dir():
        raise UserError(f"{str(path)!r} cannot be written: {str(parent)!r} is not a directory")
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".staircase.", dir=parent))
    except OSError as error:
        raise UserError(
            f"{str(path)!r} cannot be written: nothing can be made in {str(parent)!r} ({reason(error)})"
        ) from error


def check_file(path: str | Path) -> None:
    """Refuse, before any work, a path to which no file can be written. **Raises:** `UserError`."""
    if Path(path).is_dir():
        raise UserError(f"{str(path)!r} is a directory; name a file in it")
    check_place(path)


@contextmanager
def folders_made(path: Path) -> Iterator[None]:
    """Make the folders above `path`; when the block fails, remove again those that were made.

    **Raises:** `UserError` for any failure of the file system, in the block too.
    """
    made: list[Path] = []
    missing = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            made.append(folder)
        yield
    except BaseException as error:
        for folder in reversed(made):
            try:
                folder.rmdir()
            except OSError:
                break
        if isinstance(error, OSError):
            raise UserError(f"{str(path)!r} cannot be written: {reason(error)}") from error
        raise


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file under a temporary name beside `path`, then rename it; missing folders are made.

    **Raises:** `UserError` when that fails; then nothing is left.
    """
    path = Path(path)
    with folders_made(path):
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)


def reason(error: OSError) -> str:
    """Why the file system refused, in its own words."""
    return error.strerror or " ".join(str(error).split())
