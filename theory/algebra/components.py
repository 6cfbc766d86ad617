"""Canonical connected contractions, and the one-hot rules that make like terms alike.

A *factor* is `(symbol name, indices)`. An index is a free label (the name of an axis, to be aligned or summed later), a
fixed place of an axis (`"position@last"`), or a bound, i.e. summed, index (`"#0"`, `"#1"`, …). An index may stand in any
number of factors. The sample index is left implicit: a monomial has only one.

A *component* is a set of factors connected through bound indices, in canonical form: two components are equal as tuples
exactly when a renaming of bound indices and a reordering of factors carries one into the other. Components are interned
as small whole numbers, and every operation on them is memoised, because a derivation meets the same few again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from theory.algebra.scalar import Atoms, Degree, multiply_atoms, size_atom

Factor = tuple[str, tuple[str, ...]]
# While a component is being rewritten its bound indices are numbers.
RawFactor = tuple[str, tuple["str | int", ...]]
Reduced = tuple[Fraction, Atoms, tuple[int, ...]]

ONE = Fraction(1)


def place_label(axis: str, place: str) -> str:
    """The index that stands for a fixed place of an axis."""
    return f"{axis}@{place}"


def is_bound(index: str) -> bool:
    """Whether an index is a summed one."""
    return index.startswith("#")


@dataclass(frozen=True)
class Symbol:
    """A tensor that factors may name.

    **Arguments:** `name`: unique in one algebra; `labels`: its axes, as the definition calls them; `axes`: their root axes,
    slot by slot; `role`: "parameter", "tokens", "labels", "constant", "selector", "delta" or "named"; `per_sample`: whether
    it depends on the sample; `hot`: the slot in which it is one-hot, given the others; `normalised`: the slot over which it
    sums to 1; `degree`: its leading power of ε.
    """

    name: str
    labels: tuple[str, ...]
    axes: tuple[str, ...]
    role: str
    per_sample: bool = False
    hot: int | None = None
    normalised: int | None = None
    degree: Degree = 0


@dataclass(frozen=True)
class Component:
    """A canonical connected contraction, with what joins need to know of it."""

    factors: tuple[Factor, ...]
    labels: frozenset[str]
    # One-hot factors whose other slots are free or fixed: two of them at one place are one.
    anchors: frozenset[Factor]


@dataclass(eq=False)
class ComponentTable:
    """The components of one derivation. `root` maps an axis name to the axis whose size it has."""

    root: Callable[[str], str]
    symbols: dict[str, Symbol] = field(default_factory=dict)
    _list: list[Component] = field(default_factory=list)
    _ids: dict[tuple[Factor, ...], int] = field(default_factory=dict)
    _joined: dict[tuple[tuple[int, ...], tuple[str, ...]], Reduced] = field(default_factory=dict)
    _relabelled: dict[tuple[int, tuple[tuple[str, str], ...]], Reduced] = field(default_factory=dict)
    _parts: dict[tuple[tuple[RawFactor, ...], int], tuple[tuple[Factor, ...], int]] = field(default_factory=dict)

    def declare(self, symbol: Symbol) -> Symbol:
        """Register a symbol; a second declaration under one name must be the same."""
        known = self.symbols.setdefault(symbol.name, symbol)
        if known != symbol:
            raise ValueError(f"symbol '{symbol.name}' is declared twice, differently")
        return known

    def __getitem__(self, identity: int) -> Component:
        return self._list[identity]

    def join(self, components: tuple[int, ...], contract: tuple[str, ...] = ()) -> Reduced:
        """Multiply components and sum over the labels in `contract`.

        **Returns:** rational, atoms and sorted components of the product, with the one-hot rules applied.
        """
        touched = self._touched(components, contract)
        if not touched and not contract:
            return ONE, (), tuple(sorted(components))
        rest = [c for place, c in enumerate(components) if place not in touched]
        key = (tuple(sorted(components[place] for place in touched)), contract)
        if key not in self._joined:
            self._joined[key] = self._join(*key)
        rational, atoms, made = self._joined[key]
        product = tuple(sorted((*rest, *made)))
        if rest and self._touched(product, ()):
            # The sum put a one-hot factor at a place where another component has one already.
            more, extra, product = self.join(product)
            whole, atoms = multiply_atoms(atoms, extra)
            rational *= more * whole
        return rational, atoms, product

    def relabel(self, identity: int, mapping: tuple[tuple[str, str], ...]) -> Reduced:
        """Rename free labels of one component, all at once; a new name may be a fixed place."""
        key = (identity, mapping)
        if key not in self._relabelled:
            names = dict(mapping)
            # Free labels take part in the canonical order, so the form is computed anew.
            raw = [
                (name, tuple(names.get(i, i) if isinstance(i, str) else i for i in indices))
                for name, indices in self.raw(identity)
            ]
            self._relabelled[key] = self._reduce(raw, {})
        return self._relabelled[key]

    def raw(self, identity: int, offset: int = 0) -> list[RawFactor]:
        """The factors of a component, bound indices as numbers from `offset`."""
        return [
            (name, tuple(int(i[1:]) + offset if is_bound(i) else i for i in indices))
            for name, indices in self._list[identity].factors
        ]

    def from_factors(self, factors: Iterable[RawFactor]) -> Reduced:
        """Reduce any product of factors (bound indices as numbers) to canonical components."""
        return self._reduce(list(factors), {})

    def _touched(self, components: tuple[int, ...], contract: tuple[str, ...]) -> set[int]:
        """The places, in `components`, of those that a sum or a shared one-hot factor ties together."""
        touched: set[int] = set()
        first: dict[Factor, int] = {}
        for place, identity in enumerate(components):
            component = self._list[identity]
            if contract and not component.labels.isdisjoint(contract):
                touched.add(place)
            for anchor in component.anchors:
                if first.setdefault(anchor, place) != place:
                    touched |= {first[anchor], place}
        return touched

    def _join(self, components: tuple[int, ...], contract: tuple[str, ...]) -> Reduced:
        factors: list[RawFactor] = []
        offset = 0
        for identity in components:
            raw = self.raw(identity, offset)
            factors += raw
            numbers = [i for _, indices in raw for i in indices if isinstance(i, int)]
            offset = max(numbers, default=offset - 1) + 1
        summed = {label: offset + n for n, label in enumerate(contract)}
        factors = [(name, tuple(summed.get(i, i) if isinstance(i, str) else i for i in ix)) for name, ix in factors]
        return self._reduce(factors, {number: self.root(label) for label, number in summed.items()})

    def _reduce(self, factors: list[RawFactor], axes: dict[int, str]) -> Reduced:
        """Apply the one-hot, selector, normalisation and size rules; `axes`: root axes of indices that may stand nowhere."""
        for name, indices in factors:
            for slot, index in enumerate(indices):
                if isinstance(index, int):
                    axes[index] = self.symbols[name].axes[slot]
        changed = True
        while changed:
            changed = (
                self._merge_one_hot(factors, axes)
                or self._apply_selectors(factors, axes)
                or self._sum_normalised(factors, axes)
            )
        used = {i for _, indices in factors for i in indices}
        rational, atoms = ONE, ()
        for index, axis in axes.items():
            # A summed index left in no factor still multiplies by its size.
            if index not in used:
                more, atoms = multiply_atoms(atoms, ((size_atom(axis), 1),))
                rational *= more
        return rational, atoms, tuple(sorted(self._intern_parts(factors)))

    def _merge_one_hot(self, factors: list[RawFactor], axes: dict[int, str]) -> bool:
        """X[l,v] X[l,w] = δ_vw X[l,v], for every one-hot symbol."""
        seen: dict[RawFactor, int] = {}
        for position, (name, indices) in enumerate(factors):
            hot = self.symbols[name].hot
            if hot is None:
                continue
            key = (name, indices[:hot] + indices[hot + 1 :])
            if key not in seen:
                seen[key] = position
                continue
            first, second = factors[seen[key]][1][hot], indices[hot]
            if first == second:
                del factors[position]
            elif isinstance(second, int):
                del factors[position]
                _substitute(factors, axes, second, first)
            elif isinstance(first, int):
                del factors[position]
                _substitute(factors, axes, first, second)
            else:
                # Both free: the identity remains, and the second factor is said by it.
                factors[position] = (self._delta(self.symbols[name].axes[hot]), tuple(sorted((first, second))))
            return True
        return False

    def _apply_selectors(self, factors: list[RawFactor], axes: dict[int, str]) -> bool:
        """Σ_l last[l] F[l] = F[last], and the same for an identity."""
        for position, (name, indices) in enumerate(factors):
            symbol = self.symbols[name]
            if symbol.role == "selector":
                place = place_label(symbol.axes[0], name.rpartition("@")[2])
                if isinstance(indices[0], int):
                    del factors[position]
                    _substitute(factors, axes, indices[0], place)
                    return True
                if indices[0] == place:
                    del factors[position]
                    return True
            if symbol.role == "delta":
                bound = next((i for i in indices if isinstance(i, int)), None)
                if indices[0] == indices[1]:
                    del factors[position]
                    return True
                if bound is not None:
                    other = indices[1] if indices[0] == bound else indices[0]
                    del factors[position]
                    _substitute(factors, axes, bound, other)
                    return True
        return False

    def _sum_normalised(self, factors: list[RawFactor], axes: dict[int, str]) -> bool:
        """Σ_v X[l,v] = 1 where v stands nowhere else; so for softmax weights and predictions."""
        counts: dict[str | int, int] = {}
        for _, indices in factors:
            for index in indices:
                counts[index] = counts.get(index, 0) + 1
        for position, (name, indices) in enumerate(factors):
            slot = self.symbols[name].normalised
            if slot is not None and isinstance(indices[slot], int) and counts[indices[slot]] == 1:
                del axes[indices[slot]]  # pyright: ignore[reportArgumentType]
                del factors[position]
                return True
        return False

    def _delta(self, axis: str) -> str:
        name = f"delta[{axis}]"
        self.declare(Symbol(name, (axis, axis), (axis, axis), "delta"))
        return name

    def _intern_parts(self, factors: Iterable[RawFactor]) -> list[int]:
        return [self._intern(self._canonical_part(part, 0)[0]) for part in _split(tuple(factors))]

    def _intern(self, factors: tuple[Factor, ...]) -> int:
        if factors not in self._ids:
            labels = frozenset(i for _, indices in factors for i in indices if not is_bound(i) and "@" not in i)
            anchors = set()
            for name, indices in factors:
                hot = self.symbols[name].hot
                if hot is not None:
                    rest = indices[:hot] + indices[hot + 1 :]
                    if not any(is_bound(i) for i in rest):
                        anchors.add((name, rest))
            self._ids[factors] = len(self._list)
            self._list.append(Component(factors, labels, frozenset(anchors)))
        return self._ids[factors]

    # -- canonical form ------------------------------------------------------------------------------------------------

    def canonical(self, factors: Iterable[RawFactor], start: int = 0) -> tuple[tuple[Factor, ...], int]:
        """The canonical form of a product of factors whose bound indices are numbers.

        Split into connected parts; in each, refine the colours of bound indices until they are stable, name those whose
        colour is unique, and go on with what this leaves connected; where no colour is unique, try each index of a smallest
        class and keep the least form. Complete for any size: nothing is cut off.

        **Returns:** the factors, bound indices named "#start", "#start+1", …, and how many there are.
        """
        forms = sorted(self._canonical_part(part, start) for part in _split(tuple(factors)))
        result: list[Factor] = []
        offset = 0
        for form, count in forms:
            result += _shifted(form, start, offset) if offset else form
            offset += count
        return tuple(result), offset

    def _canonical_part(self, part: tuple[RawFactor, ...], start: int) -> tuple[tuple[Factor, ...], int]:
        names: dict[int, int] = {}
        for _, indices in part:
            for i in indices:
                if isinstance(i, int):
                    names.setdefault(i, len(names))
        part = tuple((name, tuple(names[i] if isinstance(i, int) else i for i in ix)) for name, ix in part)
        if not names:
            return tuple(sorted(part)), 0  # pyright: ignore[reportReturnType]
        key = (part, start)
        if key not in self._parts:
            self._parts[key] = self._canonical_of_connected(part, start)
        return self._parts[key]

    def _canonical_of_connected(self, part: tuple[RawFactor, ...], start: int) -> tuple[tuple[Factor, ...], int]:
        cells = self._stable_cells(part)
        unique = [cell[0] for cell in cells if len(cell) == 1]
        if unique:
            fixed = _fixed(part, {index: f"#{start + n}" for n, index in enumerate(unique)})
            if len(unique) == len(cells):
                # Every index has a name: what is left falls into single factors.
                return tuple(sorted(fixed)), len(unique)  # pyright: ignore[reportReturnType]
            form, count = self.canonical(fixed, start + len(unique))
            return form, count + len(unique)
        smallest = min(cells, key=len)
        choices = []
        for index in smallest:
            form, count = self.canonical(_fixed(part, {index: f"#{start}"}), start + 1)
            choices.append((form, count + 1))
        return min(choices)

    def _stable_cells(self, part: tuple[RawFactor, ...]) -> list[list[int]]:
        """Classes of bound indices that colour refinement cannot tell apart, in an order that renaming does not change."""
        places: dict[int, list[tuple[str, int, tuple[str | int, ...]]]] = {}
        for name, indices in part:
            for slot, index in enumerate(indices):
                if isinstance(index, int):
                    places.setdefault(index, []).append((name, slot, indices))
        colour = dict.fromkeys(places, 0)
        count = 0
        while True:
            signatures = {
                index: (
                    colour[index],
                    sorted(
                        (
                            name,
                            slot,
                            tuple(
                                (0, i) if isinstance(i, str) else (2, 0) if i == index else (1, colour[i])
                                for i in indices
                            ),
                        )
                        for name, slot, indices in found
                    ),
                )
                for index, found in places.items()
            }
            ordered = sorted(signatures.items(), key=lambda item: item[1])
            cells: list[list[int]] = []
            previous = None
            for index, signature in ordered:
                if signature != previous:
                    cells.append([])
                    previous = signature
                cells[-1].append(index)
                colour[index] = len(cells) - 1
            if len(cells) in (count, len(places)):
                return cells
            count = len(cells)


def _substitute(factors: list[RawFactor], axes: dict[int, str], old: int, new: str | int) -> None:
    for position, (name, indices) in enumerate(factors):
        if old in indices:
            factors[position] = (name, tuple(new if i == old else i for i in indices))
    del axes[old]


def _fixed(part: tuple[RawFactor, ...], names: dict[int, str]) -> tuple[RawFactor, ...]:
    return tuple((name, tuple(names.get(i, i) if isinstance(i, int) else i for i in ix)) for name, ix in part)


def _shifted(form: tuple[Factor, ...], start: int, offset: int) -> list[Factor]:
    def moved(index: str) -> str:
        return f"#{int(index[1:]) + offset}" if is_bound(index) and int(index[1:]) >= start else index

    return [(name, tuple(moved(i) for i in indices)) for name, indices in form]


def _split(factors: tuple[RawFactor, ...]) -> list[tuple[RawFactor, ...]]:
    """Parts connected through bound indices; a factor without any is a part of its own."""
    leader: dict[int, int] = {}

    def find(index: int) -> int:
        while leader[index] != index:
            leader[index] = leader[leader[index]]
            index = leader[index]
        return index

    for _, indices in factors:
        bound = [i for i in indices if isinstance(i, int)]
        for index in bound:
            leader.setdefault(index, index)
        for index in bound[1:]:
            leader[find(index)] = find(bound[0])
    parts: dict[int, list[RawFactor]] = {}
    alone: list[tuple[RawFactor, ...]] = []
    for factor in factors:
        first = next((i for i in factor[1] if isinstance(i, int)), None)
        if first is None:
            alone.append((factor,))
        else:
            parts.setdefault(find(first), []).append(factor)
    return alone + [tuple(part) for part in parts.values()]
