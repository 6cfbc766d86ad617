"""Snapshots of a training on disk, from which a killed run is taken up where it was.

A folder holds `run.json` (what the training is), `step-<n>.npz` for each save time (every parameter in the training's
precision, with a leading axis `seed` where there are several, and the loss), and `resume.npz`: parameters, optimiser,
generators and order of the data at the last point from which to go on. Every file is written under a temporary name and
renamed. All are plain numpy arrays; nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from compare.seeds import Members
from theory.errors import UserError
from theory.files import write_atomically

_DESCRIPTION = "description"
_LOSS = "loss"


@dataclass(frozen=True)
class Saved:
    """One save time: parameters of each seed (float64), and losses."""

    arrays: list[dict[str, np.ndarray]]
    losses: list[float]


class Snapshots:
    """The snapshots of one training in `directory`, which is made when missing.

    **Arguments:** `description`: plain values that say what the training is. A folder with another one is refused, since
    going on from it could not end where this training ends.

    **Raises:** `UserError` when the folder cannot be written to, holds something else, or is of another training.
    """

    def __init__(self, directory: str | os.PathLike[str], description: Mapping[str, Any]):
        self.directory = Path(directory)
        self.description = json.loads(json.dumps(description))
        self.last_step: int | None = None
        known = self.read_description(directory)
        if known is None:
            self._create()
            return
        for key in sorted({*known, *self.description}):
            if known.get(key) != self.description.get(key):
                raise UserError(
                    f"the snapshots in {str(directory)!r} are of another training: {key} is {_short(known.get(key))} "
                    f"there and {_short(self.description.get(key))} here; name another folder"
                )
        for left in self.directory.glob(".*.npz.*"):  # of a write that was killed
            left.unlink(missing_ok=True)

    @staticmethod
    def read_description(directory: str | os.PathLike[str]) -> dict[str, Any] | None:
        """What the training in `directory` is; None where there is none yet.

        **Raises:** `UserError` for a file in its place, a folder that holds something else, or a damaged `run.json`.
        """
        directory = Path(directory)
        if directory.exists() and not directory.is_dir():
            raise UserError(f"snapshots need a folder, but {str(directory)!r} is a file")
        path = directory / "run.json"
        if path.is_file():
            try:
                return dict(json.loads(path.read_text(encoding="utf-8")))
            except (OSError, ValueError, TypeError) as error:
                raise UserError(f"{str(path)!r} is damaged: remove the folder to train anew") from error
        if directory.is_dir() and any(directory.iterdir()):
            raise UserError(f"the folder {str(directory)!r} holds something other than snapshots: name another one")
        return None

    def _create(self) -> None:
        try:
            self.directory.mkdir(exist_ok=True)
        except OSError as error:
            raise UserError(
                f"the folder {str(self.directory)!r} cannot be made for snapshots: {error.strerror}"
            ) from error
        self._write("run.json", json.dumps(self.description, indent=1).encode())

    def resume(self, members: Members) -> None:
        """Put `members` where the last snapshot was; they stay as they are when there is none.

        **Raises:** `UserError` when it is damaged.
        """
        path = self.directory / "resume.npz"
        if not path.is_file():
            return
        arrays = _read(path)
        try:
            description = json.loads(str(arrays.pop(_DESCRIPTION)))
            members.restore(int(description["step"]), arrays, description["streams"])
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise UserError(f"the snapshot {str(path)!r} is damaged: remove the folder to train anew") from error
        self.last_step = members.step

    def keep(self, members: Members) -> None:
        """Write the point from which to go on."""
        description = json.dumps({"step": members.step, "streams": members.streams()})
        self._write("resume.npz", _npz({**members.state(), _DESCRIPTION: np.array(description)}))
        self.last_step = members.step

    def save(self, step: int, arrays: Sequence[Mapping[str, np.ndarray]], losses: Sequence[float], dtype: str) -> None:
        """Write what is saved at a save time."""
        single = len(arrays) == 1
        content = {name: np.stack([member[name] for member in arrays]).astype(dtype) for name in arrays[0]}
        content[_LOSS] = np.array(losses)
        self._write(_file(step), _npz({key: value[0] if single else value for key, value in content.items()}))

    def saved(self, step: int, names: Sequence[str], members: int) -> Saved | None:
        """What was saved at `step`, if the training has passed it.

        **Raises:** `UserError` when it has, and the file is missing or damaged.
        """
        if self.last_step is None or step > self.last_step:
            return None
        path = self.directory / _file(step)
        content = _read(path)
        try:
            stacked = {key: (content[key][None] if members == 1 else content[key]) for key in (*names, _LOSS)}
            arrays = [{name: stacked[name][i].astype(np.float64) for name in names} for i in range(members)]
            return Saved(arrays, [float(value) for value in stacked[_LOSS]])
        except (KeyError, IndexError, ValueError) as error:
            raise UserError(f"the snapshot {str(path)!r} is damaged: remove the folder to train anew") from error

    def _write(self, name: str, content: bytes) -> None:
        try:
            write_atomically(self.directory / name, content)
        except UserError as error:
            so_far = "" if self.last_step is None else f"; training can be resumed from step {self.last_step}"
            raise UserError(f"a snapshot was not written: {str(error).rstrip('.')}{so_far}") from error


def fingerprint(*groups: Mapping[str, np.ndarray]) -> str:
    """A digest of named arrays, bit for bit."""
    digest = hashlib.sha256()
    for group in groups:
        for name in sorted(group):
            array = np.ascontiguousarray(group[name])
            digest.update(f"{name} {array.dtype} {array.shape};".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


def _file(step: int) -> str:
    return f"step-{step:09d}.npz"


def _npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    # A name in the archive is no path: the slashes of state names would be directories to other readers.
    np.savez(buffer, **{name.replace("/", "|"): value for name, value in arrays.items()})  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        # numpy leaves a file open that it opened itself and could not read.
        with open(path, "rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name.replace("|", "/"): file[name] for name in file.files}
    except FileNotFoundError:
        raise UserError(f"the snapshot {str(path)!r} is missing: remove the folder to train anew") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"the snapshot {str(path)!r} is damaged: remove the folder to train anew") from error


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
