"""The English text that CPython itself ships: a corpus for which nothing has to be downloaded."""

from __future__ import annotations

import sys

from theory.errors import UserError, argument


def shipped_topics() -> dict[str, str]:
    """The help topics of `pydoc_data.topics` by name: about 75,000 words in 79 texts (Python 3.11).

    **Raises:** `UserError` on a Python that comes without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise UserError(
            f"this Python does not ship pydoc_data.topics; name a text: {argument('path', '…', of='task')}"
        ) from None
    return {name: topics[name] for name in sorted(topics)}


def python_version() -> str:
    """The running Python's version, e.g. "3.11.7": the text depends on it."""
    return ".".join(str(part) for part in sys.version_info[:3])
