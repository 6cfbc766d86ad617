"""How a term is read aloud: indices get letters, one-hot factors become tokens and indicators.

A summed token index of x_s turns into "the token at s"; a free one into an indicator 1{x_s = α}. Where all positions of a
term are distinct and touch tokens alone, the average over data is a probability signature and is written as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from theory.algebra.components import Factor, Symbol, is_bound
from theory.algebra.scalar import Degree, Scalar
from theory.evolution import Equation, EvolutionEquations, Term
from theory.expansion import PREDICTION
from theory.language import LABEL, POSITION, TOKEN
from theory.positions import distinct_indices
from theory.signature_kinds import SignatureKind, signature_kind

_LETTERS = {
    TOKEN: ("α", "β", "γ", "δ", "ζ", "η", "θ"),
    LABEL: ("ν", "μ", "λ", "κ"),
    POSITION: ("s", "t", "u", "v", "q", "r"),
    "embed": ("i", "j", "k", "l", "m", "n"),
}
_OTHER = ("a", "b", "c", "e", "g", "h")


@dataclass(frozen=True)
class Index:
    """An index as it is written: a letter, the token at a position ("x", of), the label ("y", of), or a place ("L")."""

    text: str
    of: str = ""


@dataclass(frozen=True)
class Written:
    """A tensor with its indices, or an indicator (`name` is "=") that two indices are equal."""

    name: str
    indices: tuple[Index, ...]


@dataclass(frozen=True)
class Reading:
    """A term, ready to be written in any format.

    **Arguments:** `coefficient`; `sums`: letters summed outside the average; `signature`: the signature that the average is,
    with its label and context letters, if it is one; `averaged`: factors inside the average with `inner_sums`; `outside`:
    factors that do not depend on the sample; `distinct`: letters of summed positions that are pairwise distinct.
    """

    coefficient: Scalar
    sums: tuple[str, ...]
    signature: SignatureKind | None
    signature_indices: tuple[str, ...]
    inner_sums: tuple[str, ...]
    averaged: tuple[Written, ...]
    outside: tuple[Written, ...]
    distinct: tuple[str, ...] = ()


class _Letters:
    """Letters by axis; the equation's own axes take the first ones."""

    def __init__(self, root, axes: tuple[str, ...]):
        self._root = root
        self._used: dict[str, int] = {}
        self._taken: set[str] = set()
        self.names: dict[str, str] = {axis: self.next(root(axis)) for axis in axes}

    def next(self, axis: str) -> str:
        """A fresh letter for an index of a root axis."""
        pool = _LETTERS.get(axis, _OTHER)
        while True:
            count = self._used.get(axis, 0)
            self._used[axis] = count + 1
            letter = pool[count % len(pool)] + "′" * (count // len(pool))
            if letter not in self._taken:
                self._taken.add(letter)
                return letter


def read(equations: EvolutionEquations, axes: tuple[str, ...], term: Term) -> Reading:
    """Read a term of an equation (or of a named quantity) whose free labels are `axes`."""
    symbols = equations.symbols
    root = equations.architecture.root
    letters = _Letters(root, axes)
    kind = signature_kind(term, symbols, axes, equations.distinct) if equations.distinct else None
    if kind is not None and kind.distinct and not kind.at and kind.anchor == "I" and not kind.places:
        return _as_signature(symbols, letters, term, kind)
    return _as_average(symbols, letters, term, equations.distinct)


def _as_average(symbols: Mapping[str, Symbol], letters: _Letters, term: Term, distinct: bool) -> Reading:
    factors = list(term.factors)
    shown: dict[str, Index] = {axis: Index(letter) for axis, letter in letters.names.items()}
    written: list[tuple[bool, Written]] = []
    positions: dict[str, str] = {}

    def index(raw: str, axis: str) -> Index:
        if "@" in raw:
            return Index("L" if raw.endswith("@last") else "1")
        if raw not in shown:
            shown[raw] = Index(letters.next(axis))
            positions[raw] = axis
        return shown[raw]

    rest: list[Factor] = []
    for name, indices in factors:
        symbol = symbols[name]
        if symbol.hot is None:
            rest.append((name, indices))
            continue
        hot = indices[symbol.hot]
        others = [(i, symbol.axes[slot]) for slot, i in enumerate(indices) if slot != symbol.hot]
        of = index(*others[0]).text if others else ""
        value = Index("x" if symbol.role == "tokens" else "y", of)
        if is_bound(hot) and hot not in shown:
            shown[hot] = value
        else:
            written.append((True, Written("=", (value, index(hot, symbol.axes[symbol.hot])))))
    for name, indices in rest:
        symbol = symbols[name]
        made = Written(name, tuple(index(i, symbol.axes[slot]) for slot, i in enumerate(indices)))
        inside = symbol.per_sample or any(i.of or i.text in ("x", "y") for i in made.indices)
        written.append((inside, made))
    averaged = [w for inside, w in written if inside]
    candidates = [w for inside, w in written if not inside]
    summed = [shown[i].text for i in positions]
    # A factor that shares a summed index with what depends on the sample belongs inside the average.
    changed = True
    while changed:
        changed = False
        letters_inside = {i.text for w in averaged for i in w.indices} | {i.of for w in averaged for i in w.indices}
        for w in list(candidates):
            if any(i.text in summed and i.text in letters_inside for i in w.indices):
                candidates.remove(w)
                averaged.append(w)
                changed = True
    outside = candidates
    inside_letters = {i.text for w in averaged for i in w.indices} | {i.of for w in averaged for i in w.indices}
    inner = tuple(letter for letter in summed if letter in inside_letters)
    outer = tuple(letter for letter in summed if letter not in inside_letters)
    apart = tuple(shown[i].text for i in distinct_indices(symbols, factors)) if distinct else ()
    return Reading(
        term.coefficient,
        outer,
        None,
        (),
        tuple(letter for letter in inner if letter not in apart) if len(apart) > 1 else inner,
        tuple(averaged),
        tuple(outside),
        apart if len(apart) > 1 else (),
    )


def _as_signature(symbols: Mapping[str, Symbol], letters: _Letters, term: Term, kind: SignatureKind) -> Reading:
    names = dict(letters.names)
    sums: list[str] = []

    def letter(raw: str, axis: str) -> str:
        if raw not in names:
            names[raw] = letters.next(axis)
            sums.append(names[raw])
        return names[raw]

    label, context = [], []
    outside: list[Written] = []
    for name, indices in term.factors:
        symbol = symbols[name]
        if symbol.role == "tokens":
            if indices[1] not in letters.names:
                context.append(letter(indices[1], TOKEN))
        elif symbol.role == "labels" or name == PREDICTION:
            label.append(letter(indices[-1], LABEL))
        else:
            made = tuple(Index(letter(i, symbol.axes[slot])) for slot, i in enumerate(indices))
            outside.append(Written(name, made))
    return Reading(term.coefficient, tuple(sums), kind, tuple(label + context), (), (), tuple(outside))


@dataclass(frozen=True, order=True)
class Group:
    """Terms that are written together: of one part, path, branch, degree and signature order (-1: none)."""

    part: str
    path: str
    branch: str
    degree: Degree
    order: int


def groups(equation: Equation, equations: EvolutionEquations) -> list[tuple[Group, list[Term]]]:
    """An equation's terms by group, in the order in which they are written."""
    result: dict[Group, list[Term]] = {}
    for term in equation:
        kind = signature_kind(term, equations.symbols, equation.axes, equations.distinct)
        # Independent sums over positions hold coincidences: an order is said of distinct positions only.
        order = kind.order if kind is not None and equations.distinct else -1
        result.setdefault(Group(term.part, term.path, term.branch, term.degree, order), []).append(term)
    return sorted(result.items())
