"""The signatures of a corpus by name: what is counted for each, and how it is made from the counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from theory.corpus.counts import Counts
from theory.corpus.whole import count
from theory.errors import UserError, argument, nearest
from theory.signatures import Signature, Tokens


class _Kind(NamedTuple):
    wanted: Callable[[int, Tokens], dict[str, Any]]
    made: Callable[[Counts, int, str, Tokens], Signature]


_KINDS = {
    "next-token": _Kind(lambda k, t: {}, lambda c, k, w, t: c.next_token(t)),
    "previous-token": _Kind(lambda k, t: {}, lambda c, k, w, t: c.previous_token(t)),
    "skip-gram": _Kind(lambda k, t: {"distances": (k,)}, lambda c, k, w, t: c.skip_gram(k, t)),
    "prefix": _Kind(lambda k, t: {"past": True}, lambda c, k, w, t: c.prefix(w, t)),
    "prefix-set": _Kind(lambda k, t: {"prefix_set": t or ()}, lambda c, k, w, t: c.prefix_set(t)),
}
KINDS = tuple(_KINDS)


def signature(
    source: Any = None,
    kind: str = "next-token",
    tokens: Sequence[str | int] | None = None,
    *,
    distance: int = 1,
    weighting: str = "position",
    **options: Any,
) -> Signature:
    """One signature of a corpus; `theory.corpus.count` makes several in one pass.

    **Arguments:** `source`: the corpus, as for `count`; `kind`: "next-token", "previous-token", "skip-gram" (at
    `distance`), "prefix" (the token in the past, `weighting` "position" or "pair") or "prefix-set" (of the `tokens`, which
    it needs); `tokens`: the rows wanted, default all; `options`: further ones of `count`.

    **Raises:** `UserError` for an unknown kind, and whatever `count` raises.
    """
    if kind not in _KINDS:
        raise UserError(f"a corpus has no signature of kind {kind!r}; {nearest(str(kind), KINDS)}")
    if kind == "prefix-set" and not tokens:
        raise UserError(f"kind prefix-set needs the tokens that are wanted: {argument('token', '…')}")
    found = count(source, **_KINDS[kind].wanted(distance, tokens), **options)
    return _KINDS[kind].made(found, distance, weighting, tokens)
