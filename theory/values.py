"""Values typed on a command line: TOML, with bare words as strings."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from typing import Any

from theory.errors import UserError


def parse_value(text: str) -> Any:
    """A TOML value; a bare word or path stands for a string. **Raises:** `UserError` otherwise."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"\s*[\w./:-]+\s*", text):
            return text.strip()
        raise UserError(f"{text!r} is not a TOML value") from None


def parse_options(pairs: Iterable[str], form: str = "key=value") -> dict[str, Any]:
    """Options from `key=value` strings, e.g. `numbers=20`; `form` is how messages call them.

    **Raises:** `UserError` for a string of another form or a key given twice.
    """
    options: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        key = key.strip()
        if not equals or not key.isidentifier() or not value.strip():
            raise UserError(f"an option has the form {form}, but {pair!r} was given")
        if key in options:
            raise UserError(f"the option {key!r} was given twice")
        options[key] = parse_value(value)
    return options
