"""Reading a user's file as text, with one clear sentence for everything that is not text."""

from __future__ import annotations

from pathlib import Path

from theory.errors import UserError


def read_bytes(path: str | Path) -> bytes:
    """The bytes of a file. **Raises:** `UserError` naming the path and why it cannot be read."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise UserError(f"there is no file {str(path)!r}") from None
    except IsADirectoryError:
        raise UserError(f"{str(path)!r} is a folder, not a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read {str(path)!r}: {reason}") from None


def read_text(path: str | Path) -> str:
    """The text of a UTF-8 file (a leading byte order mark is dropped).

    **Raises:** `UserError` naming byte offset and line of the first byte that is not UTF-8 or is
    a NUL (a binary file), or saying that the file is empty.
    """
    content = read_bytes(path)
    if not content.strip():
        raise UserError(f"{str(path)!r} is empty")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{str(path)!r} is not UTF-8: byte 0x{content[error.start]:02x} at byte offset "
            f"{error.start}, line {_line(content, error.start)}"
        ) from None
    if "\0" in text:
        offset = content.index(b"\0")
        raise UserError(
            f"{str(path)!r} is not a text file: NUL byte at byte offset {offset}, line {_line(content, offset)}"
        )
    return text.removeprefix("\ufeff")


def _line(content: bytes, offset: int) -> int:
    return content.count(b"\n", 0, offset) + 1
