"""A corpus: documents from a file, a folder, rows in Python or CPython itself, in a fixed order."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from theory.corpus.documents import START, LinesFile, Piece, Place, Rows, Source, TextFile, shipped
from theory.corpus.streams import state, unreadable
from theory.errors import UserError, nearest

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst")
JSON_SUFFIXES = (".jsonl", ".ndjson")
COMPRESSED_SUFFIXES = (".gz", ".zst")
DOCUMENTS = ("file", "line")
# How the text that CPython ships is called where a path is asked for.
SHIPPED = "cpython"
# Documents of about this many bytes make one shard.
SHARD = 1 << 26


@dataclasses.dataclass(frozen=True)
class Cursor:
    """Where reading a corpus goes on: in which of its sources, and where in that."""

    source: int = 0
    place: Place = START


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """Documents in order, read anew in each pass and never held as a whole.

    - `name`: how messages call it; `sources`: what holds the documents.
    - `empty`: files that hold nothing; `passed_over`: files of a folder that are no text by their suffix.
    """

    name: str
    sources: tuple[Source, ...]
    empty: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes, about (before decompression)."""
        return sum(source.size for source in self.sources)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the documents in order, found by reading them once; the names of files do not count."""
        found = hashlib.sha256()
        for source in self.sources:
            found.update(f"{source.digest()}\n".encode())
        return found.hexdigest()

    def pieces(self, start: Cursor | None = None) -> Iterator[tuple[Piece, Cursor | None]]:
        """Pieces of documents, each with the cursor behind it (None where reading cannot go on, within a line)."""
        start = start or Cursor()
        for number in range(start.source, len(self.sources)):
            place = start.place if number == start.source else START
            for piece in self.sources[number].pieces(place):
                yield piece, None if piece.after is None else Cursor(number, piece.after)

    def texts(self) -> Iterator[str]:
        """The pieces' texts alone."""
        return (piece.text for piece, _ in self.pieces())

    def shards(self, size: int = SHARD) -> tuple[Corpus, ...]:
        """The corpus in parts of whole documents, of about `size` bytes each; together they are the corpus.

        One long document is never cut; nor is a compressed file.
        """
        parts = [part for source in self.sources for part in source.split(size)]
        shards: list[Corpus] = []
        gathered: list[Source] = []
        for part in parts:
            if gathered and sum(source.size for source in gathered) + part.size > size:
                shards.append(Corpus(self.name, tuple(gathered)))
                gathered = []
            gathered.append(part)
        return (*shards, Corpus(self.name, tuple(gathered)))

    def __repr__(self) -> str:
        return f"Corpus({self.name!r}, sources={len(self.sources)}, bytes≈{self.size})"


def open_corpus(source: Any = None, *, documents: str = "file", field: str = "text") -> Corpus:
    """Open a corpus; nothing of it is read yet.

    **Arguments:**

    - `source`: a text file or JSON Lines (.jsonl, .ndjson; either may be compressed by gzip or Zstandard); a folder, of
      which all files ending in .txt, .text, .md, .rst, .jsonl, .ndjson (.gz, .zst) are read, in order of their paths, each
      file and folder once; a folder written by `datasets.Dataset.save_to_disk`; a `datasets.Dataset` or any other
      collection of texts or of rows; a `Corpus`; by default, or as "cpython", the English text that CPython ships, about
      75,000 words.
    - `documents`: what one document is in a text file, "file" or "line". In JSON Lines and rows it is one line or row.
    - `field`: the key of the text in JSON Lines and rows.

    **Raises:** `UserError` for a path that is missing or no text, and a folder that holds none.
    """
    if isinstance(source, Corpus):
        return source
    if documents not in DOCUMENTS:
        raise UserError(f"documents cannot be {documents!r}; {nearest(str(documents), DOCUMENTS)}")
    if source is None or (source == SHIPPED and not os.path.exists(SHIPPED)):
        rows = shipped()
        return Corpus(rows.title, (rows,))
    if not isinstance(source, str | os.PathLike):
        return _of_rows(source, field)
    path = Path(source)
    if path.is_dir():
        if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
            return _saved_data_set(path, field)
        return _folder(path, documents, field)
    known = state(path)
    if known[0] == 0:
        raise UserError(f"{str(path)!r} is empty")
    return Corpus(str(path), (_file(path, known, documents, field),))


def _file(path: Path, known: tuple[int, int], documents: str, field: str) -> Source:
    if _suffix(path) in JSON_SUFFIXES:
        return LinesFile(path, known, field)
    return LinesFile(path, known, None) if documents == "line" else TextFile(path, known)


def _suffix(path: Path) -> str:
    """The suffix that tells the format, below one that tells the compression."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def _folder(folder: Path, documents: str, field: str) -> Corpus:
    sources: list[Source] = []
    empty: list[str] = []
    passed_over: list[str] = []
    for path in _files_below(folder):
        if _suffix(path) not in (*TEXT_SUFFIXES, *JSON_SUFFIXES):
            passed_over.append(str(path))
            continue
        known = state(path)
        if known[0]:
            sources.append(_file(path, known, documents, field))
        else:
            empty.append(str(path))
    if not sources:
        kinds = ", ".join((*TEXT_SUFFIXES, *JSON_SUFFIXES))
        if empty:
            raise UserError(f"folder {str(folder)!r} holds only empty text files, e.g. {empty[0]!r}")
        found = f"; it holds {passed_over[0]!r}, which can be named itself" if passed_over else ""
        raise UserError(f"folder {str(folder)!r} holds no text file ({kinds}, also with .gz or .zst){found}")
    return Corpus(str(folder), tuple(sources), tuple(empty), tuple(passed_over))


def _files_below(folder: Path) -> Iterator[Path]:
    """Regular files in order of their paths. A folder or file reached twice, as by a loop of links, counts once."""
    seen: set[tuple[int, int]] = set()
    waiting = [folder]
    while waiting:
        path = waiting.pop()
        try:
            found = os.stat(path)
            children = sorted(os.listdir(path), reverse=True) if path.is_dir() else None
        except (OSError, ValueError) as error:
            # A broken link whose name is no text's is passed over like any other file.
            if path != folder and _suffix(path) not in (*TEXT_SUFFIXES, *JSON_SUFFIXES) and not path.is_dir():
                yield path
                continue
            raise unreadable(path, error) from None
        if (found.st_dev, found.st_ino) in seen:
            continue
        seen.add((found.st_dev, found.st_ino))
        if children is None:
            yield path
        else:
            waiting += [path / child for child in children if not child.startswith(".")]


def _of_rows(rows: Any, field: str) -> Corpus:
    name = f"{type(rows).__module__.split('.')[0]}.{type(rows).__name__}"
    name = "the list of documents" if name == "builtins.list" else name.removeprefix("builtins.")
    if isinstance(rows, dict) or (hasattr(rows, "keys") and hasattr(rows, "values")):
        raise UserError(f"{name} holds several splits or columns; choose one: {nearest('train', rows.keys())}")
    if not hasattr(rows, "__iter__"):
        raise UserError(f"a corpus is a path, a collection of texts or a data set, found {rows!r:.60}")
    return Corpus(name, (Rows(rows, name, field),))


def _saved_data_set(path: Path, field: str) -> Corpus:
    try:
        import datasets  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise UserError(
            f"{str(path)!r} is a data set saved by Hugging Face's datasets; to read it: pip install datasets"
        ) from None
    try:
        rows = datasets.load_from_disk(str(path))
    except Exception as error:
        raise UserError(f"{str(path)!r} cannot be read by datasets: {' '.join(str(error).split())}") from None
    if isinstance(rows, dict):
        choices = [str(path / str(split)) for split in rows]
        raise UserError(f"{str(path)!r} holds several splits; choose one: {', '.join(choices)}")
    return Corpus(str(path), (Rows(rows, str(path), field),))
