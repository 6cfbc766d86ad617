"""Which probability signature a term of an embedding's equation contracts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from theory.algebra.components import Symbol, is_bound
from theory.evolution import Term
from theory.expansion import PREDICTION
from theory.language import POSITION
from theory.reverse import LABEL_DRIVEN


@dataclass(frozen=True, order=True)
class SignatureKind:
    """A kind of probability signature of a token α (paper 2608.30315, §2), or trace-back signature of an output ν.

    **Arguments:** `order`: how many context tokens it holds; `variable`: "y" (label), "p" (kept prediction) or "" (neither:
    co-occurrence); `anchor`: where α stands: "I" (anywhere) or a fixed place such as "L"; "ν" for trace-back; `places`:
    fixed places of context tokens; `at`: where the label stands: "" (of the sequence), "next" (α's own position) or "later"
    (another position, which sees α: a prefix signature); `weights`: names of kept factors (attention weights, activations)
    inside the average; `distinct`: whether context positions are distinct from each other and from I.
    """

    order: int
    variable: str
    anchor: str
    places: tuple[str, ...]
    at: str
    weights: tuple[str, ...]
    distinct: bool

    @property
    def name(self) -> str:
        """How text calls it: φ_α^{y;1}, φ_α^{y;x_L}, φ_α^{y;nt} …, with ·ψ where kept factors weight the average."""
        if self.anchor == "ν":
            upper = ";".join(filter(None, ["p" if self.variable == "p" else "", *(f"x_{p}" for p in self.places)]))
            free = self.order - len(self.places)
            count = str(free) if self.distinct or not free else f"{free}*"
            return f"ψ_ν^{{{';'.join(filter(None, [upper, count]))}}}" + ("·ψ" if self.weights else "")
        alpha = "α" if self.anchor == "I" else f"{{α,x_{self.anchor}}}"
        inside = [self.variable] if self.variable else []
        free = self.order - len(self.places)
        context = [f"x_{place}" for place in self.places]
        if self.at == "next":
            context.append("nt")
        elif self.at == "later":
            context.append("prefix")
        if free or not context:
            context.append(str(free) if self.distinct or not free else f"{free}*")
        upper = ";".join([*inside, ",".join(context)]) if inside else ",".join(context)
        return f"φ_{alpha}^{{{upper}}}" + ("·ψ" if self.weights else "")


def signature_kind(
    term: Term, symbols: Mapping[str, Symbol], axes: tuple[str, ...], distinct: bool
) -> SignatureKind | None:
    """The signature that a term contracts, or None where no one-hot factor holds the equation's token.

    **Arguments:** `axes`: of the equation, one of which is looked up by tokens; `distinct`: whether the term's sums are over
    distinct positions (see `theory.positions`).
    """
    factors = term.factors
    anchors = [ix for name, ix in factors if symbols[name].role == "tokens" and ix[1] in axes]
    if not anchors:
        return None
    position = anchors[0][0]
    context = [ix[0] for name, ix in factors if symbols[name].role == "tokens" and ix is not anchors[0]]
    weights = []
    variable = "y" if term.part == LABEL_DRIVEN else ""
    # Where label or prediction stand, in architectures with a label at every position.
    labelled: list[str] = []
    for name, ix in factors:
        symbol = symbols[name]
        if symbol.role == "labels" or name == PREDICTION:
            variable = "y" if symbol.role == "labels" else "p"
            labelled += [i for slot, i in enumerate(ix) if symbol.axes[slot] == POSITION]
        elif symbol.role == "named" and symbol.per_sample:
            weights.append(name)
    touching = {i for name, ix in factors if symbols[name].role != "tokens" for i in ix}
    at = "" if not labelled else "next" if labelled[0] == position else "later"
    plain = all(i not in touching for i in context if is_bound(i)) and (position not in touching or at == "next")
    return SignatureKind(
        order=len(context),
        variable=variable,
        anchor="I" if "@" not in position else _place(position),
        places=tuple(sorted(_place(i) for i in context if "@" in i)),
        at=at,
        weights=tuple(sorted(set(weights))),
        distinct=distinct and plain,
    )


def trace_back_kind(
    term: Term, symbols: Mapping[str, Symbol], axes: tuple[str, ...], distinct: bool
) -> SignatureKind | None:
    """The trace-back signature ψ_ν(β…) = P(x_J = β… | y = ν) that a term of an unembedding's equation contracts.

    None where neither the label nor the kept prediction stands at the equation's output ν. Arguments as in
    `signature_kind`. Source: arXiv 2509.20124.
    """
    outputs = [
        (name, ix)
        for name, ix in term.factors
        if (symbols[name].role == "labels" or name == PREDICTION) and any(i in axes for i in ix)
    ]
    if not outputs:
        return None
    name, own = outputs[0]
    context = [ix[0] for n, ix in term.factors if symbols[n].role == "tokens"]
    weights = {n for n, ix in term.factors if symbols[n].role == "named" and symbols[n].per_sample and n != PREDICTION}
    touching = {i for n, ix in term.factors if symbols[n].role != "tokens" for i in ix}
    return SignatureKind(
        order=len(context),
        variable="p" if name == PREDICTION else "y",
        anchor="ν",
        places=tuple(sorted(_place(i) for i in context if "@" in i)),
        at="" if not any(symbols[name].axes[slot] == POSITION for slot in range(len(own))) else "next",
        weights=tuple(sorted(weights)),
        distinct=distinct and all(i not in touching for i in context if is_bound(i)),
    )


def _place(index: str) -> str:
    axis, _, place = index.partition("@")
    return "L" if (axis, place) == (POSITION, "last") else "1" if axis == POSITION else index
