"""The part of JSON Schema (draft 2020-12) that the schema of equations uses."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from theory.errors import UserError

_TYPES: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


@cache
def equations_schema() -> Mapping[str, Any]:
    """The schema shipped beside this module."""
    return json.loads((Path(__file__).with_name("equations.schema.json")).read_text(encoding="utf-8"))


def validate(document: Any, schema: Mapping[str, Any]) -> None:
    """Hold a document against a schema. **Raises:** `UserError` with the place in the document and what was expected."""
    _validate(document, schema, schema, "")


def _validate(value: Any, rule: Mapping[str, Any], root: Mapping[str, Any], place: str) -> None:
    if "$ref" in rule:
        _validate(value, root["$defs"][rule["$ref"].rpartition("/")[2]], root, place)
    types = rule.get("type", ())
    types = (types,) if isinstance(types, str) else types
    if types and not any(_is_a(value, name) for name in types):
        _fail(place, f"expected {' or '.join(types)}, found {_short(value)}")
    if "const" in rule and (value != rule["const"] or type(value) is not type(rule["const"])):
        _fail(place, f"expected {rule['const']!r}, found {_short(value)}")
    if "enum" in rule and value not in rule["enum"]:
        _fail(place, f"expected one of {', '.join(map(repr, rule['enum']))}, found {_short(value)}")
    if isinstance(value, str) and "pattern" in rule and not re.search(rule["pattern"], value):
        _fail(place, f"expected a whole number or a fraction such as '-1/3', found {_short(value)}")
    if isinstance(value, int) and value < rule.get("minimum", value):
        _fail(place, f"expected at least {rule['minimum']}, found {value}")
    if isinstance(value, dict):
        properties = rule.get("properties", {})
        for name, content in value.items():
            if name in properties:
                _validate(content, properties[name], root, f"{place}/{name}")
            elif rule.get("additionalProperties", True) is False:
                _fail(place, f"'{name}' is not known here")
        for name in rule.get("required", ()):
            if name not in value:
                _fail(place, f"'{name}' is missing")
    if isinstance(value, list):
        least, most = rule.get("minItems", 0), rule.get("maxItems", len(value))
        if not least <= len(value) <= most:
            _fail(place, f"expected {least} to {most} entries, found {len(value)}")
        first = rule.get("prefixItems", [])
        for number, content in enumerate(value):
            inner = first[number] if number < len(first) else rule.get("items", {})
            _validate(content, inner, root, f"{place}/{number}")
    if "oneOf" in rule:
        problems = []
        for choice in rule["oneOf"]:
            try:
                _validate(value, choice, root, place)
            except UserError as error:
                problems.append(error)
        if len(rule["oneOf"]) - len(problems) != 1:
            # A choice that gets as far as a missing name is of the right kind: values are looked at first.
            raise next((p for p in problems if "is missing" in str(p)), problems[0])


def _is_a(value: Any, name: str) -> bool:
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, _TYPES[name])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _fail(place: str, message: str) -> None:
    raise UserError(f"the equations' JSON does not fit its schema at '{place or '/'}': {message}")
