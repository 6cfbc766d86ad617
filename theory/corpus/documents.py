"""The documents of a corpus, streamed in pieces: text files, JSON Lines, rows of a data set, CPython's own text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from theory.corpus.streams import Stream, is_compressed, opened, unreadable
from theory.data.shipped import python_version, shipped_topics
from theory.errors import UserError, nearest

# A longer document is handed on in pieces of at most this many bytes, cut where no word is split.
PIECE = 1 << 20
# A longer line of JSON Lines is refused: it has to be parsed as a whole.
LONGEST_LINE = 1 << 26
# Where a piece may end: before a single white space between two words, which is a boundary for every tokenizer.
_GAP = re.compile(rb"\S(?=\s\S)")
_GAP_IN_TEXT = re.compile(r"\S(?=\s\S)")
_SEARCHED = 1 << 16


@dataclasses.dataclass(frozen=True)
class Place:
    """Where reading goes on within one source: `offset` in bytes (rows for rows) and `line`, both of what comes next.

    `inside` tells whether the last document has more pieces.
    """

    offset: int = 0
    line: int = 1
    inside: bool = False


START = Place()


@dataclasses.dataclass(frozen=True)
class Piece:
    """A stretch of one document.

    `first`: it begins the document. `after`: where to go on, None within a line. `origin`: where it stands, as messages
    say it; `line`: the number of its first line, where lines of the text are lines of the file.
    """

    text: str
    first: bool
    after: Place | None
    origin: str
    line: int | None = None

    def where(self, line: int) -> str:
        """Where the text's line `line` (from 0) stands."""
        return self.origin if self.line is None else f"{self.origin}, line {self.line + line}"


class Source(Protocol):
    """Some documents in order. `size`: in bytes, about."""

    @property
    def name(self) -> str: ...
    @property
    def size(self) -> int: ...
    def pieces(self, start: Place) -> Iterator[Piece]: ...
    def digest(self) -> str: ...
    def split(self, size: int) -> tuple[Source, ...]: ...


@dataclasses.dataclass(frozen=True)
class TextFile:
    """A file that is one document. **Arguments:** `known`: size and time of change when the corpus was opened."""

    path: Path
    known: tuple[int, int]

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return self.known[0]

    def pieces(self, start: Place = START) -> Iterator[Piece]:
        """The text from `start` on. **Raises:** `UserError` naming byte offset and line of what is not UTF-8 text."""
        with opened(self.path, self.known) as stream:
            stream.skip(start.offset)
            place, rest = start, b""
            while content := rest + stream.read(PIECE - len(rest)):
                end = len(content) if len(content) < PIECE else _cut(content)
                piece, rest = content[:end], content[end:]
                text = _decoded(self.path, piece, place)
                after = Place(place.offset + end, place.line + piece.count(b"\n"), True)
                yield Piece(text, not place.inside, after, str(self.path), place.line)
                place = after

    def digest(self) -> str:
        return f"file {_file_digest(self.path)}"

    def split(self, size: int) -> tuple[TextFile, ...]:
        return (self,)


@dataclasses.dataclass(frozen=True)
class LinesFile:
    """A file with one document in each line: JSON objects, or plain lines where `field` is None.

    **Arguments:** `field`: the key whose value is the text; `begin`, `end`: the bytes meant, `end` None for all to the
    last; `line`: number of the first line meant.
    """

    path: Path
    known: tuple[int, int]
    field: str | None
    begin: int = 0
    end: int | None = None
    line: int = 1

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def size(self) -> int:
        return (self.known[0] if self.end is None else self.end) - self.begin

    def pieces(self, start: Place = START) -> Iterator[Piece]:
        """The documents from `start` on. **Raises:** `UserError` naming the line of whatever does not fit."""
        if start == START:
            start = Place(self.begin, self.line)
        with opened(self.path, self.known) as stream:
            stream.skip(start.offset)
            place = start
            for content in self._lines(stream, start):
                after = Place(place.offset + len(content), place.line + 1)
                if content.strip():
                    text = self._text(content, place)
                    where = f"{self.path}, line {place.line}"
                    parts = list(_parts(text))
                    for i, part in enumerate(parts):
                        yield Piece(part, i == 0, after if i == len(parts) - 1 else None, where)
                place = after

    def _lines(self, stream: Stream, start: Place) -> Iterator[bytes]:
        rest, offset, line = b"", start.offset, start.line
        while self.end is None or offset < self.end:
            chunk = stream.read(PIECE)
            lines = _newlines(rest + chunk)
            rest = lines.pop() if chunk and lines and not lines[-1].endswith(b"\n") else b""
            for content in lines:
                if self.end is not None and offset >= self.end:
                    return
                yield content
                offset += len(content)
                line += 1
            if len(rest) > LONGEST_LINE:
                raise UserError(
                    f"{self.path}, line {line}: the line is longer than {LONGEST_LINE >> 20} MiB; "
                    "one document stands in each line"
                )
            if not chunk:
                return

    def _text(self, content: bytes, place: Place) -> str:
        text = _decoded(self.path, content, place)
        if self.field is None:
            return text.rstrip("\r\n")
        where = f"{self.path}, line {place.line}"
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: not valid JSON ({error})") from None
        if not isinstance(record, dict):
            raise UserError(f'{where}: expected {{"{self.field}": "…"}}, found {text[:60].strip()!r}')
        return _field(where, record, self.field)

    def digest(self) -> str:
        return f"lines {self.field!r} {_file_digest(self.path)} {self.begin} {self.end}"

    def split(self, size: int) -> tuple[LinesFile, ...]:
        """Ranges of whole lines of about `size` bytes; a compressed file stays whole."""
        parts, begin, first = [], self.begin, self.line
        with opened(self.path, self.known) as stream:
            if stream.compression is not None:
                return (self,)
            stream.skip(self.begin)
            offset, line = self.begin, self.line
            while chunk := stream.read(PIECE):
                end = offset + chunk.rfind(b"\n") + 1
                inside = self.end is None or end < self.end
                if inside and end - begin >= size and end > offset:
                    line_there = line + chunk.count(b"\n")
                    parts.append(dataclasses.replace(self, begin=begin, end=end, line=first))
                    begin, first = end, line_there
                offset, line = offset + len(chunk), line + chunk.count(b"\n")
        parts.append(dataclasses.replace(self, begin=begin, line=first))
        return tuple(part for part in parts if part.size > 0) or (self,)


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """Documents held by Python objects: strings, or mappings with the text under `field`, as in a Hugging Face data set.

    **Arguments:** `rows`: iterated anew for each pass, hence no iterator; `title`: how messages call them.
    """

    rows: Iterable[Any]
    title: str
    field: str = "text"
    begin: int = 0
    end: int | None = None

    def __post_init__(self) -> None:
        if iter(self.rows) is self.rows:
            raise UserError(f"{self.title} can be read only once; give a list, or a data set, that can be read again")

    @property
    def name(self) -> str:
        return self.title

    @property
    def size(self) -> int:
        # Unknown without reading; a thousand bytes a document is the order of magnitude of a paragraph.
        return 1000 * self._count()

    def _count(self) -> int:
        if self.end is not None:
            return self.end - self.begin
        rows = self.rows
        return len(rows) - self.begin if hasattr(rows, "__len__") else 1  # pyright: ignore[reportArgumentType]

    def pieces(self, start: Place = START) -> Iterator[Piece]:
        """The documents from row `start.offset` on. **Raises:** `UserError` naming the row that holds no text."""
        at = max(start.offset, self.begin)
        for row in self._from(at):
            text = row
            where = f"{self.title}, row {at} (counted from 0)"
            if isinstance(row, Mapping):
                text = _field(where, row, self.field)
            elif not isinstance(row, str):
                raise UserError(f"{where}: expected a text or a row with the key {self.field!r}, found {row!r:.60}")
            _check_surrogates(where, text)
            at += 1
            parts = list(_parts(text))
            for i, part in enumerate(parts):
                yield Piece(part, i == 0, Place(at, at + 1) if i == len(parts) - 1 else None, where)

    def _from(self, at: int) -> Iterator[Any]:
        rows: Any = self.rows
        if hasattr(rows, "__getitem__") and hasattr(rows, "__len__"):
            yield from (rows[i] for i in range(at, len(rows) if self.end is None else self.end))
            return
        for i, row in enumerate(rows):
            if self.end is not None and i >= self.end:
                return
            if i >= at:
                yield row

    def digest(self) -> str:
        found = hashlib.sha256()
        for piece in self.pieces():
            found.update(b"\1" if piece.first else b"\0")
            found.update(piece.text.encode())
        return f"rows {found.hexdigest()}"

    def split(self, size: int) -> tuple[Rows, ...]:
        if not hasattr(self.rows, "__len__"):
            return (self,)
        step, count = max(1, size // 1000), self._count()
        return tuple(
            dataclasses.replace(self, begin=self.begin + i, end=self.begin + min(i + step, count))
            for i in range(0, count, step)
        )


def shipped() -> Rows:
    """The English text that CPython itself ships: the help topics of `pydoc_data.topics`, each one document.

    **Raises:** `UserError` on a Python that comes without them.
    """
    return Rows(list(shipped_topics().values()), f"pydoc_data.topics of Python {python_version()}")


def _newlines(content: bytes) -> list[bytes]:
    """As `splitlines(keepends=True)`, which would split at a lone carriage return too."""
    lines = content.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _last_gap(gap: re.Pattern[Any], content: Any, begin: int, end: int) -> int | None:
    found = None
    for match in gap.finditer(content, begin, end):
        found = match.end()
    return found


def _cut(content: bytes) -> int:
    """Where a full piece ends: before the last single white space, or else between two characters."""
    end = _last_gap(_GAP, content, max(0, len(content) - _SEARCHED), len(content))
    if end is not None:
        return end
    end = len(content)
    while end > len(content) - 4 and content[end - 1] & 0xC0 == 0x80:
        end -= 1
    # The character that begins at end − 1 may be incomplete: it goes to the next piece.
    return end - 1 if content[end - 1] >= 0xC0 else len(content)


def _parts(text: str) -> Iterator[str]:
    """A long document in pieces, cut as files are."""
    start = 0
    while len(text) - start > PIECE:
        end = _last_gap(_GAP_IN_TEXT, text, start + PIECE - _SEARCHED, start + PIECE) or start + PIECE
        yield text[start:end]
        start = end
    yield text[start:]


def _decoded(path: Path, content: bytes, place: Place) -> str:
    """UTF-8 to text, without a leading byte order mark."""
    nul = content.find(b"\0")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        if nul < 0 or error.start < nul:
            what = f"is not UTF-8: byte 0x{content[error.start]:02x}"
            if place.offset + error.start == 0 and content[:2] in (b"\xff\xfe", b"\xfe\xff"):
                what = "is UTF-16, not UTF-8: its byte order mark"
            raise UserError(f"{str(path)!r} {what} {_where(content, error.start, place)}") from None
        text = ""
    if nul >= 0:
        raise UserError(f"{str(path)!r} is not a text file: NUL byte {_where(content, nul, place)}")
    return text.removeprefix("\ufeff") if place.offset == 0 else text


def _where(content: bytes, at: int, place: Place) -> str:
    return f"at byte offset {place.offset + at}, line {place.line + content.count(10, 0, at)}"


def _field(where: str, record: Mapping[str, Any], field: str) -> str:
    if field not in record:
        raise UserError(f"{where}: there is no key {field!r}; {nearest(field, record)}")
    text = record[field]
    if not isinstance(text, str):
        raise UserError(f"{where}: the value of {field!r} must be a text, found {text!r:.60}")
    _check_surrogates(where, text)
    return text


def _check_surrogates(where: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: the text holds half a character, \\u{ord(text[error.start]):04x}") from None


def _file_digest(path: Path) -> str:
    found = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while chunk := file.read(PIECE):
                if b"\0" in chunk and not is_compressed(path):
                    # No text: reading says so with the line, and the rest, be it gigabytes, need not be looked at.
                    return "no text"
                found.update(chunk)
    except OSError as error:
        raise unreadable(path, error) from None
    return found.hexdigest()
