"""Variants of an experiment in its own file, and its quick setting: what `[variants.NAME]` and `[quick]` change.

Both hold sections as an experiment file does, and only what differs. `[variants.NAME.quick]` is a variant's own quick setting.
The claims of the file are about the file as it stands, "main"; a variant has those that it states. Either has in addition those
that name it as their `control`: the same thing measured where their condition is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from theory.errors import UserError, nearest

Places = dict[tuple[str, ...], str]

# The file as it stands, where its variants have names.
MAIN = "main"


def chosen(
    content: Mapping[str, Any], places: Mapping[tuple[str, ...], str], *, quick: bool, variant: str | None
) -> tuple[dict[str, Any], Places]:
    """The content of one experiment, and the places of its keys.

    **Arguments:** `content`: of the whole file; `places`: of its keys; `quick`: whether in the quick setting; `variant`: its
    name, None for the file as it stands.

    **Raises:** `UserError` for an unknown variant, or one that has a claim of the name of another that it is the control of.
    """
    variants = content.get("variants", {})
    if not isinstance(variants, Mapping) or not all(isinstance(value, Mapping) for value in variants.values()):
        raise UserError("a variant is a section [variants.NAME]")
    if variant is not None and variant not in variants:
        raise UserError(f"there is no variant {variant!r}; {nearest(variant, variants)}")
    for name in (None, *variants):
        for claim, section in _claims(content, name, quick)[0].items():
            control = section.get("control") if isinstance(section, Mapping) else None
            # The experiment.toml of a run has no variants any more.
            if variants and isinstance(control, str) and control not in (MAIN, *variants):
                raise UserError(
                    f"claim {claim!r} names no variant as its control: {control!r}; {nearest(control, variants)}"
                )
    merged: dict[str, Any] = {}
    where: Places = {}
    for prefix, layer in _layers(content, variant, quick):
        _merge(merged, {key: value for key, value in layer.items() if key not in ("claims", "quick", "variants")})
        where |= _below(places, prefix)
    claims, claim_places = _claims(content, variant, quick, places)
    for other in (None, *variants):
        theirs, their_places = _claims(content, other, quick, places)
        for name, section in theirs.items():
            if not isinstance(section, Mapping) or section.get("control") != (variant or MAIN) or other == variant:
                continue
            if name in claims:
                raise UserError(
                    f"the variant {variant or MAIN!r} has two claims {name!r}: its own and that which it is the control of"
                )
            claims[name] = {key: value for key, value in section.items() if key not in ("control", "condition")}
            claim_places |= {keys: place for keys, place in their_places.items() if keys[:2] == ("claims", name)}
    if claims:
        merged["claims"] = claims
    return merged, {keys: place for keys, place in where.items() if keys[0] != "claims"} | claim_places


def _layers(
    content: Mapping[str, Any], variant: str | None, quick: bool
) -> list[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """What one experiment is made of, later ones over earlier ones, each with the keys under which it stands."""
    found: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), content)]
    if quick:
        found.append((("quick",), _section(content, "quick")))
    if variant is not None:
        own = content["variants"][variant]
        found.append((("variants", variant), own))
        if quick:
            found.append((("variants", variant, "quick"), _section(own, "quick")))
    return found


def _claims(
    content: Mapping[str, Any], variant: str | None, quick: bool, places: Mapping[tuple[str, ...], str] | None = None
) -> tuple[dict[str, Any], Places]:
    """The claims that the file, or a variant, states itself."""
    claims: dict[str, Any] = {}
    where: Places = {}
    for prefix, layer in _layers(content, variant, quick):
        if variant is None or prefix[:1] == ("variants",):
            _merge(claims, _section(layer, "claims"))
            where |= {keys: place for keys, place in _below(places or {}, prefix).items() if keys[0] == "claims"}
    return claims, where


def _section(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name, {})
    if not isinstance(found, Mapping):
        raise UserError(f"{name!r} must be a section [{name}]")
    return found


def _below(places: Mapping[tuple[str, ...], str], prefix: tuple[str, ...]) -> Places:
    size = len(prefix)
    return {keys[size:]: place for keys, place in places.items() if keys[:size] == prefix and len(keys) > size}


def _merge(target: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Write a layer over what is there, section by section."""
    for key, value in layer.items():
        if isinstance(value, Mapping):
            below = target.get(key)
            copy = dict(below) if isinstance(below, Mapping) else {}
            _merge(copy, value)
            target[key] = copy
        else:
            target[key] = value
