"""How a term is read aloud: indices get letters, one-hot factors become tokens and indicators.

A summed token index of x_s turns into "the token at s"; a free one into an indicator 1{x_s = α}. Where all positions of a
term are distinct and touch tokens alone, the average over data is a probability signature and is written as one.

Letters are chosen once for a whole system of equations: none of them is the head of a symbol that the system holds, and t
is left to the time. The equation's own axes take the first letters of their kind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from theory.algebra.components import Factor, Symbol, is_bound
from theory.algebra.scalar import Scalar
from theory.evolution import Equation, EvolutionEquations, NamedQuantity, Quantity, Term
from theory.expansion import PREDICTION, FunctionDefinition, SoftmaxDefinition
from theory.language import LABEL, POSITION, TOKEN
from theory.positions import distinct_indices
from theory.signature_kinds import SignatureKind, signature_kind

_LETTERS = {
    TOKEN: ("α", "β", "γ", "δ", "ζ", "η"),
    LABEL: ("ν", "μ", "λ", "κ"),
    POSITION: ("s", "u", "v", "q"),
    "embed": ("i", "j", "k", "l"),
}
# Axes of other names share these, each with letters of its own as far as they go.
_OTHER = ("a", "b", "c", "g", "h", "m", "o", "w")
# What formulas mean by other things: width, Euler's number, logits, prediction, P(x_I = α), time, tokens, labels, z.
_RESERVED = frozenset("defprtxyzL")
_SIZE_LETTERS = {POSITION: "L", "embed": "d"}


@dataclass(frozen=True)
class Index:
    """An index as it is written.

    **Arguments:** `text`: a letter; "x" or "y" for the token or label at `of`; "first" or "last" for a fixed place of the
    axis named by `of`.
    """

    text: str
    of: str = ""

    @property
    def is_data(self) -> bool:
        """Whether it is a token or a label of the sample."""
        return self.text in ("x", "y")

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters that it holds."""
        if self.text in ("first", "last"):
            return ()
        return tuple(i for i in (self.of if self.is_data else self.text,) if i and not i.startswith("@"))


@dataclass(frozen=True)
class Written:
    """A tensor with its indices, to a power, or an indicator (`name` is "=") that two indices are equal."""

    name: str
    indices: tuple[Index, ...]
    power: int = 1


@dataclass(frozen=True)
class Reading:
    """A term, ready to be written in any format.

    **Arguments:** `coefficient`; `sums`: letters summed outside the average; `signature`: the signature that the average is,
    `anchor` its token's letter, `signature_indices` its label and context letters, if it is one; `averaged`: factors inside
    the average, `inner_sums` the letters summed there, `distinct` those of positions that are pairwise distinct; `outside`:
    factors that do not depend on the sample.
    """

    coefficient: Scalar
    sums: tuple[str, ...]
    averaged: tuple[Written, ...]
    outside: tuple[Written, ...]
    inner_sums: tuple[str, ...] = ()
    distinct: tuple[str, ...] = ()
    signature: SignatureKind | None = None
    anchor: str = ""
    signature_indices: tuple[str, ...] = ()

    @property
    def written(self) -> tuple[Written, ...]:
        """All factors."""
        return self.averaged + self.outside


class _Letters:
    """Fresh letters by axis, for one term."""

    def __init__(self, notation: Notation, axes: tuple[str, ...]):
        self._notation = notation
        self._used: dict[str, int] = {}
        self._taken: set[str] = set()
        self.names: dict[str, str] = {axis: self.next(notation.equations.architecture.root(axis)) for axis in axes}

    def next(self, axis: str) -> str:
        pool = self._notation.pool(axis)
        while True:
            count = self._used.get(axis, 0)
            self._used[axis] = count + 1
            letter = pool[count % len(pool)] + "′" * (count // len(pool))
            if letter not in self._taken:
                self._taken.add(letter)
                self._notation.letters.setdefault(axis, {})[letter] = None
                return letter


@dataclass(eq=False)
class Notation:
    """The notation of one system of equations; it remembers what it met, for the legend.

    **Arguments:** `equations`; `parameter`: only this parameter's equation, and the named quantities that it needs.
    """

    equations: EvolutionEquations
    parameter: str | None = None
    # Axis → the letters that were used for it, in order.
    letters: dict[str, dict[str, None]] = field(default_factory=dict)
    readings: list[Reading] = field(default_factory=list)

    def __post_init__(self) -> None:
        heads = {_head(name) for name in (*self.equations.symbols, *self.equations.architecture.parameters)}
        self._heads = heads
        self._reserved = _RESERVED | heads
        self.names = list(self.equations) if self.parameter is None else [self.equations[self.parameter].parameter]

    def pool(self, axis: str) -> tuple[str, ...]:
        """The letters for indices of a root axis."""
        free = tuple(letter for letter in _LETTERS.get(axis, _OTHER) if letter not in self._reserved)
        if axis not in _LETTERS:
            others = [a for a in self.equations.architecture.axes if a not in _LETTERS]
            place = others.index(axis) if axis in others else 0
            free = free[place :: len(others)] or free[-1:]
        return free or ("ω",)

    def size_letter(self, axis: str) -> str | None:
        """The usual letter of an axis size (L, d), unless a symbol is called by it."""
        letter = _SIZE_LETTERS.get(axis)
        return None if letter in self._heads else letter

    @property
    def quantities(self) -> tuple[Quantity, ...]:
        """The named quantities that the shown equations need, in order of definition."""
        needed = {name for equation in self.names for t in self.equations[equation] for name, _ in t.factors}
        for quantity in reversed(self.equations.quantities):
            if quantity.symbol.name in needed:
                needed |= used_by(quantity)
        return tuple(q for q in self.equations.quantities if q.symbol.name in needed)

    def left(self, name: str, labels: tuple[str, ...]) -> Written:
        """A symbol with the first letters of its axes, as on the left of its own equation or definition."""
        letters = _Letters(self, labels)
        return Written(name, tuple(Index(letters.names[axis]) for axis in labels))

    def another(self, labels: tuple[str, ...], axis: str) -> Index:
        """A letter of one more index of an axis, beside those of the labels."""
        letters = _Letters(self, labels)
        return Index(letters.next(self.equations.architecture.root(axis)))

    def read(self, axes: tuple[str, ...], term: Term) -> Reading:
        """Read a term of an equation (or of a named quantity) whose free labels are `axes`."""
        letters = _Letters(self, axes)
        reading = self._as_signature(letters, axes, term) if self.equations.distinct else None
        if reading is None:
            reading = self._as_average(letters, term)
        self.readings.append(reading)
        return reading

    def groups(self, equation: Equation) -> list[tuple[Group, list[Term]]]:
        """An equation's terms by group, in the order in which they are written."""
        result: dict[Group, list[Term]] = {}
        through = any(term.path for term in equation)
        for term in equation:
            kind = signature_kind(term, self.equations.symbols, equation.axes, self.equations.distinct)
            # Independent sums over positions hold coincidences: an order is said of distinct positions only.
            order = kind.order if kind is not None and kind.distinct else -1
            path = term.path or ("direct" if through else "")
            result.setdefault(Group(term.part, path, term.branch, term.degree, order), []).append(term)
        return sorted(result.items())

    def _rank(self, factor: Factor) -> tuple[int, int]:
        """Where a factor stands in a product: tokens and labels, named quantities, fixed arrays, parameters as declared."""
        role = self.equations.symbols[factor[0]].role
        declared = list(self.equations.architecture.parameters)
        if role == "parameter":
            return 3, declared.index(factor[0])
        return {"tokens": 0, "labels": 0, "named": 1}.get(role, 2), 0

    def _as_average(self, letters: _Letters, term: Term) -> Reading:
        symbols = self.equations.symbols
        factors = sorted(term.factors, key=self._rank)
        shown: dict[str, Index] = {axis: Index(letter) for axis, letter in letters.names.items()}
        summed: list[str] = []

        def index(raw: str, axis: str) -> Index:
            if "@" in raw:
                return Index(raw.partition("@")[2], axis)
            if raw not in shown:
                shown[raw] = Index(letters.next(axis))
                summed.append(shown[raw].text)
            return shown[raw]

        written: list[tuple[bool, Written]] = []
        rest: list[Factor] = []
        for name, indices in factors:
            symbol = symbols[name]
            if symbol.hot is None:
                rest.append((name, indices))
                continue
            hot = indices[symbol.hot]
            of = ""
            for slot, i in enumerate(indices):
                if slot != symbol.hot:
                    place = index(i, symbol.axes[slot])
                    of = place.text if place.text not in ("first", "last") else f"@{place.text}"
            value = Index("x" if symbol.role == "tokens" else "y", of)
            if is_bound(hot) and hot not in shown:
                shown[hot] = value
            else:
                written.append((True, Written("=", (value, index(hot, symbol.axes[symbol.hot])))))
        for name, indices in rest:
            symbol = symbols[name]
            made = Written(name, tuple(index(i, symbol.axes[slot]) for slot, i in enumerate(indices)))
            if symbol.role in ("delta", "selector"):
                # An identity or the indicator of a place.
                place = made.indices if symbol.role == "delta" else (*made.indices, Index(name, symbol.axes[0]))
                made = Written("=", place)
            written.append((symbol.per_sample or any(i.is_data for i in made.indices), made))
        averaged = [w for inside, w in written if inside]
        outside = [w for inside, w in written if not inside]
        # A factor that shares a summed index with what depends on the sample belongs inside the average.
        while True:
            inner = {letter for w in averaged for i in w.indices for letter in i.letters}
            moved = [w for w in outside if any(i.text in summed and i.text in inner for i in w.indices)]
            if not moved:
                break
            averaged += moved
            outside = [w for w in outside if w not in moved]
        apart = tuple(shown[i].text for i in distinct_indices(symbols, factors)) if self.equations.distinct else ()
        apart = apart if len(apart) > 1 else ()
        return Reading(
            term.coefficient,
            tuple(letter for letter in summed if letter not in inner),
            _powers(averaged),
            _powers(outside),
            tuple(letter for letter in summed if letter in inner and letter not in apart),
            apart,
        )

    def _as_signature(self, letters: _Letters, axes: tuple[str, ...], term: Term) -> Reading | None:
        """The term as a contraction of φ_α^{y;m}, or None where its average is something else."""
        symbols = self.equations.symbols
        kind = signature_kind(term, symbols, axes, True)
        if kind is None or not kind.distinct or kind.at or kind.anchor != "I" or kind.places or kind.weights:
            return None
        tokens = [ix for name, ix in term.factors if symbols[name].role == "tokens"]
        labels = [(name, ix) for name, ix in term.factors if symbols[name].role == "labels" or name == PREDICTION]
        anchor = next(ix for ix in tokens if ix[1] in axes)
        if len(labels) > 1 or not all(is_bound(ix[0]) for ix in tokens):
            return None
        names = dict(letters.names)
        sums: list[str] = []

        def letter(raw: str, axis: str) -> str:
            if raw not in names:
                names[raw] = letters.next(axis)
                sums.append(names[raw])
            return names[raw]

        indices = []
        for name, ix in labels:
            slot = next(s for s, axis in enumerate(symbols[name].labels) if axis == LABEL)
            indices.append(letter(ix[slot], symbols[name].axes[slot]))
        indices += [letter(ix[1], TOKEN) for ix in tokens if ix is not anchor]
        outside = []
        for name, ix in sorted(term.factors, key=self._rank):
            symbol = symbols[name]
            if symbol.role in ("tokens", "labels") or name == PREDICTION:
                continue
            if any("@" in i for i in ix) or symbol.role == "selector":
                return None
            made = tuple(Index(letter(i, symbol.axes[slot])) for slot, i in enumerate(ix))
            outside.append(Written("=" if symbol.role == "delta" else name, made))
        kind = kind if labels else replace(kind, variable="")
        return Reading(
            term.coefficient,
            tuple(sums),
            (),
            _powers(outside),
            signature=kind,
            anchor=names[anchor[1]],
            signature_indices=tuple(indices),
        )


@dataclass(frozen=True, order=True)
class Group:
    """Terms that are written together: of one part, path, branch, degree and signature order (-1: none)."""

    part: str
    path: str
    branch: str
    degree: Fraction | int
    order: int

    @property
    def note(self) -> str:
        """The group in words."""
        return ", ".join(
            filter(
                None,
                (
                    "label-driven" if self.part == "label" else "prediction-induced",
                    f"path {self.path}" if self.path else "",
                    f"branch {self.branch}" if self.branch else "",
                    f"degree {self.degree}",
                    f"order {self.order}" if self.order >= 0 else "",
                ),
            )
        )


def used_by(quantity: Quantity) -> set[str]:
    """The names of the symbols in a named quantity's definition."""
    match quantity:
        case NamedQuantity(terms=terms):
            return {name for term in terms for component in term.components for name, _ in component}
        case FunctionDefinition(argument=argument):
            return {argument.name}
        case SoftmaxDefinition(argument=argument, mask=mask):
            return {argument.name} | ({mask.name} if mask is not None else set())
    return set()


def function_names(equations: EvolutionEquations) -> dict[str, str]:
    """How each kept activation is called, by its own name: that name where it is a word, else F_1, F_2, …"""
    found = {q.function.name: q.function for q in equations.quantities if isinstance(q, FunctionDefinition)}
    names: dict[str, str] = {}
    for name in found:
        names[name] = (
            name if re.fullmatch(r"[A-Za-z]+", name) else f"F_{1 + sum(n.startswith('F_') for n in names.values())}"
        )
    return names


def headline(equations: EvolutionEquations) -> str:
    """One line: the architecture, the loss, and how far the derivation reaches."""
    if equations.degree is None:
        reach = "everything kept (the exact gradient flow)"
    else:
        kept = ", ".join(equations.keep) or "nothing"
        reach = (
            f"loss degree {equations.degree} (right-hand sides to degree {equations.degree} - a for a parameter of weight "
            f"a, 1 by default); kept: {kept}; prediction: {equations.prediction}"
        )
    return f"{equations.architecture.name}, {equations.loss.replace('_', ' ')}, {reach}"


def symbols_in_use(notation: Notation) -> Mapping[str, Symbol]:
    """The symbols that the shown equations and named quantities hold."""
    equations = notation.equations
    names = {name for shown in notation.names for term in equations[shown] for name, _ in term.factors}
    for quantity in notation.quantities:
        names |= used_by(quantity) | {quantity.symbol.name}
    return {name: symbol for name, symbol in equations.symbols.items() if name in names}


def axes_in_coefficients(notation: Notation) -> list[str]:
    """The axes whose sizes stand in the shown coefficients, in alphabetical order."""
    found: set[str] = set()
    for reading in notation.readings:
        found |= {atom[1:-1] for atom, _ in reading.coefficient.atoms if atom.startswith("|")}
        if reading.signature is not None:
            found.add(POSITION)
        if any(i.text == "last" or i.of == "@last" for w in reading.written for i in w.indices):
            found |= {i.of for w in reading.written for i in w.indices if i.text == "last"}
            found |= {POSITION for w in reading.written for i in w.indices if i.of == "@last"}
    return sorted(found)


def _powers(factors: list[Written]) -> tuple[Written, ...]:
    """Equal factors as powers, in order of first appearance; indicators first, and each only once."""
    counts: dict[Written, int] = {}
    for factor in factors:
        counts[factor] = counts.get(factor, 0) + 1
    result = [replace(factor, power=1 if factor.name == "=" else n) for factor, n in counts.items()]
    return tuple(sorted(result, key=lambda w: w.name != "="))


def _head(name: str) -> str:
    """The letter or word that a symbol's name begins with, without number and brackets."""
    match = re.match(r"[^\W\d_]+", name)
    return match.group() if match else name
