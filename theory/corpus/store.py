"""Counts on disk: files of the cache, named by what they were made from, and checkpoints of a count under way."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from theory import cache_folder
from theory.corpus.counting import Progress, Request, Tail
from theory.corpus.counts import Counts
from theory.corpus.documents import Place
from theory.corpus.opening import Cursor
from theory.corpus.pairs import Table
from theory.corpus.streams import opened
from theory.errors import UserError
from theory.files import write_atomically

# Raised whenever the same text, tokenizer and request would give other counts, or the files change.
VERSION = 2
# The least recently used files are removed beyond this many bytes.
LIMIT = 4_000_000_000


class Cache:
    """Results by what they were made from. A file that cannot be read, or not be written, is as good as none.

    **Arguments:** `folder`: where; None for no cache.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    @classmethod
    def default(cls, asked: str | os.PathLike[str] | bool | None = None) -> Cache:
        """The cache in the folder `asked`, in `STAIRCASE_CACHE_DIR`, or in the user's cache directory; False for none.

        **Raises:** `UserError` for a folder that was asked for and cannot be written to.
        """
        if asked is False:
            return cls(None)
        named = os.environ.get(cache_folder.VARIABLE) if asked is None or asked is True else os.fspath(asked)
        if cache_folder.is_off(named):
            return cls(None)
        chosen = cache_folder.default_directory("corpora") if named is None else Path(named) / "corpora"
        return cls(cache_folder.usable(chosen, named is not None))

    def text(self, key: str) -> str | None:
        """A text that was kept, or None."""
        if self.folder is None:
            return None
        try:
            content = (self.folder / f"{key}.json").read_bytes()
            os.utime(self.folder / f"{key}.json")
            checksum, _, text = content.decode().partition("\n")
        except (OSError, ValueError):
            return None
        return text if hashlib.sha256(text.encode()).hexdigest() == checksum else None

    def keep_text(self, key: str, text: str) -> None:
        """Keep a text."""
        checksum = hashlib.sha256(text.encode()).hexdigest()
        self._write(f"{key}.json", lambda file: file.write(f"{checksum}\n{text}".encode()))

    def progress(self, key: str) -> tuple[Progress, Cursor | None] | None:
        """Counts that were kept, with the cursor behind them where they are a checkpoint; or None."""
        if self.folder is None:
            return None
        path = self.folder / f"{key}.npz"
        try:
            # The file is opened here: np.load leaves one open that it cannot read.
            with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
                found = _unpacked(arrays)
            os.utime(path)
            return found
        except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
            return None

    def keep_progress(self, key: str, progress: Progress, after: Cursor | None = None) -> None:
        """Keep counts; with `after`, as a checkpoint."""
        packed = _packed(progress, after)
        self._write(f"{key}.npz", lambda file: np.savez(file, **packed))  # pyright: ignore[reportArgumentType]

    def forget(self, key: str) -> None:
        """Remove what was kept under a key."""
        if self.folder is not None:
            (self.folder / f"{key}.npz").unlink(missing_ok=True)

    def _write(self, name: str, write: Any) -> None:
        if self.folder is None:
            return
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(prefix=".writing.", dir=self.folder)
            with os.fdopen(handle, "wb") as file:
                write(file)
            os.replace(temporary, self.folder / name)
            self._prune()
        except OSError:
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)

    def _prune(self) -> None:
        assert self.folder is not None
        found = [(path.stat(), path) for path in self.folder.iterdir() if path.suffix in (".npz", ".json")]
        total = sum(state.st_size for state, _ in found)
        for state, path in sorted(found, key=lambda each: each[0].st_mtime_ns)[:-1]:
            if total <= LIMIT:
                return
            path.unlink(missing_ok=True)
            total -= state.st_size


def key_of(corpus: str, tokenizer: str, request: Request) -> str:
    """The name under which counts are kept: a hash of the corpus's and the tokenizer's digest and the request."""
    made_from = {"version": VERSION, "corpus": corpus, "tokenizer": tokenizer, **dataclasses.asdict(request)}
    return hashlib.sha256(json.dumps(made_from).encode()).hexdigest()


def save_counts(counts: Counts, path: str | os.PathLike[str]) -> None:
    """Write counts to an .npz file without pickles. **Raises:** `UserError` where nothing can be written."""
    about = {
        "version": VERSION,
        "names": counts.names,
        "tokenizer": counts.tokenizer,
        "request": dataclasses.asdict(counts.request),
        "sources": counts.sources,
    }
    buffer = io.BytesIO()
    packed = _packed(counts.progress, None)
    np.savez_compressed(buffer, about=_bytes(about), **packed)  # pyright: ignore[reportArgumentType]
    write_atomically(Path(path), buffer.getvalue())


def load_counts(path: str | os.PathLike[str]) -> Counts:
    """Read counts that `save_counts` wrote. **Raises:** `UserError` for a file that is missing, damaged or another."""
    try:
        with opened(Path(path)), open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            about = json.loads(arrays["about"].tobytes())
            if about["version"] != VERSION:
                raise UserError(
                    f"{str(path)!r} was written in version {about['version']} of the counts' format; this one is {VERSION}"
                )
            progress = _unpacked(arrays)[0]
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
        raise UserError(f"{str(path)!r} holds no counts of a corpus, or is damaged") from None
    request: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in about["request"].items()
    }
    sizes = progress.tokens, progress.documents
    assert progress.positions is not None
    return Counts(
        tuple(about["names"]), about["tokenizer"], Request(**request), progress.tables, progress.positions, *sizes,
        tuple(about["sources"]),
    )  # fmt: skip


def _bytes(value: Any) -> np.ndarray:
    return np.frombuffer(json.dumps(value).encode(), dtype=np.uint8)


def _packed(progress: Progress, after: Cursor | None) -> dict[str, np.ndarray]:
    tables = list(progress.tables)
    head = {
        "tables": tables,
        "shapes": [progress.tables[name].shape for name in tables],
        "tokens": progress.tokens,
        "documents": progress.documents,
        "position": progress.tail.position,
        "after": None if after is None else [after.source, *dataclasses.astuple(after.place)],
    }
    arrays = {"head": _bytes(head), "tail": progress.tail.tokens}
    if progress.positions is not None:
        arrays["positions"] = progress.positions
    for i, name in enumerate(tables):
        table = progress.tables[name]
        arrays |= {f"data {i}": table.data, f"indices {i}": table.indices, f"indptr {i}": table.indptr}
    return arrays


def _unpacked(arrays: Any) -> tuple[Progress, Cursor | None]:
    head = json.loads(arrays["head"].tobytes())
    tables = {
        name: Table((arrays[f"data {i}"], arrays[f"indices {i}"], arrays[f"indptr {i}"]), shape=tuple(shape))
        for i, (name, shape) in enumerate(zip(head["tables"], head["shapes"], strict=True))
    }
    tail = Tail(arrays["tail"], head["position"])
    after = head["after"] and Cursor(head["after"][0], Place(*head["after"][1:]))
    return Progress(tables, arrays["positions"], head["tokens"], head["documents"], tail), after
