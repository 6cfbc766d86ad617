"""The bytes of a text file, decompressed where need be, in pieces of bounded size."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from theory.errors import UserError
from theory.files import reason

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
# A block of zeros takes four bytes of a Zstandard file and 128 KiB in memory: this many bytes at a time stay below 64 MiB.
_ZSTD_STEP = 2048


class Stream:
    """The decompressed content of one file, read forwards.

    Compression is told by the file's first bytes, not by its name: neither gzip's nor Zstandard's can begin a UTF-8 text.
    """

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self.offset = 0
        start = file.read(4)
        file.seek(0)
        self.compression = "gzip" if start.startswith(_GZIP) else "zstd" if start == _ZSTD else None
        if self.compression == "gzip":
            self._read = gzip.GzipFile(fileobj=file).read
        elif self.compression == "zstd":
            self._read = _zstd_reader(path, file)
        else:
            self._read = file.read
        self._file = file

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer only at the end. **Raises:** `UserError` where the file is cut off or broken."""
        parts = []
        while size > 0:
            try:
                part = self._read(size)
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise _broken(self._path, self.offset, "gzip", isinstance(error, EOFError), error) from None
            except OSError as error:
                raise UserError(f"cannot read {str(self._path)!r}: {reason(error)}") from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
            self.offset += len(part)
        return b"".join(parts)

    def skip(self, size: int) -> None:
        """Go forward by `size` bytes; a compressed file is decompressed on the way."""
        if self.compression is None:
            self._file.seek(size, os.SEEK_CUR)
            self.offset += size
            return
        while size > 0:
            skipped = len(self.read(min(size, 1 << 20)))
            if not skipped:
                return
            size -= skipped


@contextmanager
def opened(path: Path, expected: tuple[int, int] | None = None) -> Iterator[Stream]:
    """Open a file for reading.

    **Arguments:** `expected`: its size and time of change as `state` told them.

    **Raises:** `UserError` for a file that is missing, unreadable, no regular file, or has changed since.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise unreadable(path, error) from None
    with file:
        if expected is not None and _state(os.fstat(file.fileno())) != expected:
            raise UserError(f"{str(path)!r} has changed since the corpus was opened; open it again")
        yield Stream(path, file)


def is_compressed(path: Path) -> bool:
    """Whether a file's first bytes are those of gzip or Zstandard."""
    with open(path, "rb") as file:
        return Stream(path, file).compression is not None


def state(path: Path) -> tuple[int, int]:
    """Size in bytes and time of change (ns) of a regular file. **Raises:** `UserError`, also for a pipe or a device."""
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from None
    if not stat.S_ISREG(found.st_mode):
        raise UserError(f"{str(path)!r} is neither a file nor a folder")
    return _state(found)


def unreadable(path: Path, error: OSError | ValueError) -> UserError:
    """What is said of a file that cannot be opened."""
    if isinstance(error, FileNotFoundError):
        what = "a link to nothing" if os.path.islink(path) else None
        return UserError(f"{str(path)!r} is {what}" if what else f"there is no file {str(path)!r}")
    return UserError(f"cannot read {str(path)!r}: {reason(error) if isinstance(error, OSError) else error}")


def _state(found: os.stat_result) -> tuple[int, int]:
    return found.st_size, found.st_mtime_ns


def _broken(path: Path, offset: int, kind: str, cut: bool, error: Any) -> UserError:
    where = f"after {offset:,} bytes of text"
    if cut:
        return UserError(f"{str(path)!r} is cut off: its {kind} data end {where} without their end mark")
    return UserError(f"{str(path)!r} is damaged: its {kind} data cannot be decompressed {where} ({error})")


def _zstd_reader(path: Path, file: BinaryIO) -> Any:
    try:
        import zstandard
    except ImportError:
        raise UserError(
            f"{str(path)!r} is compressed by Zstandard, which needs the package zstandard: pip install zstandard"
        ) from None
    return _ZstdReader(path, file, zstandard).read


class _ZstdReader:
    """Zstandard frames one after the other; unlike the library's own reader it notices a file that is cut off."""

    def __init__(self, path: Path, file: BinaryIO, library: Any) -> None:
        self._path, self._file, self._library = path, file, library
        self._frame: Any = None
        self._waiting = b""
        self._ready = b""
        self._given = 0

    def read(self, size: int) -> bytes:
        while not self._ready:
            step = self._waiting or self._file.read(_ZSTD_STEP)
            if not step:
                if self._frame is not None:
                    raise _broken(self._path, self._given, "Zstandard", True, None)
                return b""
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(step)
            except self._library.ZstdError as error:
                raise _broken(self._path, self._given, "Zstandard", False, error) from None
            self._waiting = b""
            if self._frame.eof:
                self._waiting, self._frame = self._frame.unused_data, None
        part, self._ready = self._ready[:size], self._ready[size:]
        self._given += len(part)
        return part
