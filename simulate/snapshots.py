"""The state of a running flow on disk, from which a killed one goes on.

One file for each flow, a plain `.npz` that is written under a temporary name and renamed; nothing is ever unpickled. It holds
the whole `State`: what was saved so far, and what the solver and the step size control know. A flow that goes on from it takes
the steps of one that was never interrupted: all its numbers are equal bit for bit, on the same machine and with the same
versions (other hardware rounds differently: then equal to the tolerances).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from simulate.solve import Lowered, State
from theory.errors import UserError
from theory.files import write_atomically

_DESCRIPTION = "description"


class Snapshot:
    """The snapshot of one flow at `path`.

    **Arguments:** `lowered`, `inputs`: what is integrated. **Raises:** `UserError` when the file is
    the snapshot of something else, naming what differs, or is none at all.
    """

    def __init__(self, path: str | os.PathLike[str], lowered: Lowered, inputs: Mapping[str, Any]):
        self.path = Path(path)
        if not self.path.parent.is_dir():
            raise UserError(
                f"there is no folder {str(self.path.parent)!r} to put the snapshot {self.path.name!r} into."
            )
        self._structure = lowered.structure
        self._written, self._took = time.perf_counter(), 0.0
        parts: dict[str, list[Any]] = {}
        for key, value in inputs.items():
            parts.setdefault(_WORDS.get(key, key), []).append(value)
        self._description = {"equations or versions": lowered.fingerprint}
        self._description |= {word: _digest(values) for word, values in parts.items()}

    def read(self) -> tuple[State, float] | None:
        """The state to go on from and the seconds it took to get there; None when nothing was written yet."""
        if not self.path.exists():
            return None
        leaves, structure = jax.tree.flatten(self._structure)
        try:
            content = io.BytesIO(self.path.read_bytes())
            with np.load(content, allow_pickle=False) as file:
                description = json.loads(str(file[_DESCRIPTION]))
                arrays = [file[str(number)] for number in range(len(leaves))] if self._same(description) else []
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
            raise UserError(
                f"{str(self.path)!r} is no snapshot of a flow, or damaged; remove it to start anew."
            ) from error
        for key, value in self._description.items():
            if description.get(key) != value:
                raise UserError(
                    f"the snapshot {str(self.path)!r} is of another flow: its {key} differ from what is asked for now; "
                    "restore the experiment, or remove the snapshot to start anew."
                )
        state = jax.tree.unflatten(structure, [jax.numpy.asarray(array) for array in arrays])
        return state, float(description["seconds"])

    def _same(self, description: Mapping[str, Any]) -> bool:
        return all(description.get(key) == value for key, value in self._description.items())

    def due(self, seconds: float) -> bool:
        """Whether `seconds` have passed since the last writing, and 20 times as long as that took."""
        return time.perf_counter() - self._written > max(seconds, 20 * self._took)

    def write(self, state: State, seconds: float) -> None:
        """Replace the snapshot by `state`, reached after `seconds` of integration."""
        started = time.perf_counter()
        arrays = {str(number): np.asarray(leaf) for number, leaf in enumerate(jax.tree.leaves(state))}
        content = io.BytesIO()
        arrays[_DESCRIPTION] = np.array(json.dumps({**self._description, "seconds": seconds}))
        np.savez(content, allow_pickle=False, **arrays)
        write_atomically(self.path, content.getvalue())
        self._written = time.perf_counter()
        self._took = self._written - started


_WORDS = {
    "initial": "initial arrays",
    "times": "save times",
    "scales": "initial arrays",
    "event_factors": "events",
    "event_offsets": "events",
    "event_ends": "events",
    "until": "end times",
    "rtol": "tolerances",
    "atol": "tolerances",
}


def _digest(value: Any) -> str:
    found = hashlib.sha256()
    for leaf in jax.tree.leaves(value):
        array = np.ascontiguousarray(leaf)
        found.update(f"{array.shape} {array.dtype} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()
