"""Run directories: written beside their final place and renamed, so that there is all or nothing; unfinished runs beside."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from theory.errors import UserError, argument
from theory.files import check_place, folders_made, write_atomically


def check_run_directory(path: str | Path, *, force: bool = False) -> None:
    """Refuse, before any work, a place where no run directory can be put.

    **Raises:** `UserError` when `path` is a file, or a non-empty directory and not `force`, or when it cannot be made.
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_dir():
        raise UserError(f"{str(path)!r} is a file; name a directory for the run")
    check_place(path)
    if path.is_dir():
        if Path.cwd().is_relative_to(path.resolve()):
            raise UserError(
                f"{str(path)!r} holds the working directory and cannot be replaced; name a directory below it"
            )
        if path.is_symlink():
            raise UserError(f"{str(path)!r} is a link; name the directory {str(path.resolve())!r} itself")
        if any(path.iterdir()) and not force:
            raise UserError(
                f"the directory {str(path)!r} is not empty; name another, or replace it with {argument('force', True)}"
            )


@contextmanager
def run_directory(path: str | Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary sibling of `path` to write into; it becomes `path` when the block ends without error.

    An old directory stays until the new one is whole, and is then replaced (with `force` only). Missing parents are made.
    After an error nothing is left of the new one.

    **Raises:** `UserError` as `check_run_directory`, and when the disk is full or otherwise refuses.
    """
    check_run_directory(path, force=force)
    typed, path = Path(path), Path(path).absolute()
    with folders_made(typed):
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o777 & ~umask)
            yield temporary
            _replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def training_folder(path: str | Path, content: str) -> Iterator[Path]:
    """A hidden folder beside `path` for what a training of `content` (an experiment) has done so far.

    It is removed when the block ends without error, and stays when the process is killed or the block fails, so that the
    same command goes on from there.

    **Raises:** `UserError` when it cannot be made.
    """
    outer = Path(path).absolute().with_name(f".{Path(path).name}.training")
    inner = outer / hashlib.sha256(content.encode()).hexdigest()[:12]
    with folders_made(Path(path)):
        inner.mkdir(parents=True, exist_ok=True)
        try:
            yield inner
        except BaseException:
            _remove_empty(inner, outer)
            raise
    shutil.rmtree(outer, ignore_errors=True)


def _remove_empty(*folders: Path) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            return


def _replace(new: Path, path: Path) -> None:
    if not path.exists():
        os.rename(new, path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    os.rename(path, old / path.name)
    try:
        os.rename(new, path)
    except BaseException:
        os.rename(old / path.name, path)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


class UnfinishedRun:
    """What a run keeps in `<directory>.partial` until it is whole: its experiment, and a snapshot of each flow.

    Make one with `begin` or `resume`. A killed run leaves it behind, and so does one whose flows ran out of steps.
    """

    def __init__(self, directory: Path):
        self.directory = directory

    @staticmethod
    def place(path: str | Path) -> Path:
        """Where the unfinished run of the run directory `path` is kept."""
        path = Path(path)
        return path.with_name(f"{path.name}.partial")

    @classmethod
    def begin(cls, path: str | Path, experiment: str, *, force: bool = False) -> UnfinishedRun:
        """Start anew. **Arguments:** `experiment`: the resolved file. **Raises:** `UserError` when there is one already."""
        place = cls.place(path)
        if place.exists():
            if not force:
                raise UserError(
                    f"there is an unfinished run in {str(place)!r}: go on with it by {argument('resume', True)}, or start "
                    f"anew with {argument('force', True)}"
                )
            shutil.rmtree(place)
        write_atomically(place / "experiment.toml", experiment.encode())
        return cls(place)

    @classmethod
    def resume(cls, path: str | Path, experiment: str) -> UnfinishedRun:
        """Go on. **Raises:** `UserError` when there is nothing to go on with, or it is of another experiment."""
        place = cls.place(path)
        try:
            before = tomllib.loads((place / "experiment.toml").read_text(encoding="utf-8"))
        except OSError:
            raise UserError(f"there is no unfinished run in {str(place)!r} to resume.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UserError(f"the unfinished run in {str(place)!r} is damaged; remove it to start anew.") from error
        changed = _first_difference(_of_flows(before), _of_flows(tomllib.loads(experiment)))
        if changed is not None:
            key, old, new = changed
            raise UserError(
                f"the unfinished run in {str(place)!r} is of another experiment: {key} was {old} and is {new}; restore it, "
                f"or start anew with {argument('force', True)}"
            )
        return cls(place)

    def snapshot(self, flow: str) -> Path:
        """The snapshot of one flow."""
        return self.directory / f"{flow}.npz"

    def remove(self) -> None:
        """What is whole needs it no more."""
        shutil.rmtree(self.directory, ignore_errors=True)


_FREE = {"title", "claims", "flow.max_steps", "flow.expected"}
"""What may be changed without changing any number of a flow that is under way."""


def _of_flows(content: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}

    def walk(prefix: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            dotted = f"{prefix}{key}"
            if dotted in _FREE:
                continue
            if isinstance(value, Mapping):
                walk(f"{dotted}.", value)
            else:
                plain[dotted] = value

    walk("", content)
    return plain


def _first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, str, str] | None:
    for key in [*before, *(key for key in after if key not in before)]:
        if before.get(key) != after.get(key):
            old, new = (repr(content[key]) if key in content else "not given" for content in (before, after))
            return key, old, new
    return None
