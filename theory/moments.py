"""Moments of the data: all that fully expanded equations need to know of it.

A term of a fully expanded equation multiplies parameters by one-hot data of one sample. Averaged over the data, its one-hot
factors are a *moment*: the joint law of a few tokens and the label, such as P(x_I = α, y = ν), summed over the positions that
nothing else in the term touches. Its size depends on the vocabulary and not on the number of samples, and it is counted in
one pass, in blocks, by a counter whose parts add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from theory.algebra.components import Factor, is_bound
from theory.errors import UserError
from theory.evolution import EvolutionEquations, Term
from theory.language import POSITION
from theory.positions import distinct_indices

# Entries of the largest array that a block of samples is spread out to while it is counted.
_BLOCK_ENTRIES = 4_000_000

# A moment of more entries than this is stored sparsely: as an array it would cost 32 MB, and more to contract.
DENSE_ENTRIES = 4_000_000


@dataclass(frozen=True)
class Moment:
    """The average of a product of one-hot data, E[Π X[i, α] … Y[ν]].

    **Arguments:** `factors`: tokens and labels with their indices, named "m0", "m1", … in order of appearance (or a fixed
    place); `open`: the indices that stay open, its axes, in order; the others are summed; `roots`: the root axis of each of
    these; `apart`: positions that are pairwise different in the sum.
    """

    factors: tuple[Factor, ...]
    open: tuple[str, ...]
    roots: tuple[str, ...]
    apart: tuple[str, ...] = ()

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes of its axes."""
        return tuple(sizes[root] for root in self.roots)

    @property
    def positions(self) -> tuple[str, ...]:
        """The positions that counting it runs over, for each sample."""
        return tuple(dict.fromkeys(i for _, ix in self.factors for i in ix[:-1] if "@" not in i))


@dataclass(frozen=True)
class TermMoment:
    """A term with its data taken out: what is left, the moment, and the names that its open indices have in the term."""

    term: Term
    rest: tuple[Factor, ...]
    moment: Moment | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class SparseMoment:
    """A moment's values other than 0: `ids`, one whole number for each (axis, entry), and `values` (entry)."""

    ids: Any
    values: Any


def term_moment(equations: EvolutionEquations, term: Term) -> TermMoment:
    """Split a term of fully expanded equations into a moment of the data and what multiplies it."""
    symbols = equations.symbols
    data = [f for f in term.factors if symbols[f[0]].role in ("tokens", "labels")]
    rest = tuple(f for f in term.factors if symbols[f[0]].role not in ("tokens", "labels"))
    if not data:
        return TermMoment(term, rest, None, ())
    elsewhere = {i for _, indices in rest for i in indices}
    apart = distinct_indices(symbols, list(term.factors)) if equations.distinct else []
    # Tokens before labels, and in the order of the term: terms that differ by what multiplies the data share a moment.
    data.sort(key=lambda f: (symbols[f[0]].role != "tokens", sum(i in elsewhere for i in f[1])))
    renamed: dict[str, str] = {}
    roots: dict[str, str] = {}
    for name, indices in data:
        for slot, index in enumerate(indices):
            if "@" not in index:
                roots[renamed.setdefault(index, f"m{len(renamed)}")] = symbols[name].axes[slot]
    factors = tuple((name, tuple(renamed.get(i, i) for i in indices)) for name, indices in data)
    kept = tuple(i for i in renamed if not is_bound(i) or i in elsewhere)
    opened = tuple(renamed[i] for i in kept)
    moment = Moment(factors, opened, tuple(roots[o] for o in opened), tuple(renamed[i] for i in apart if i in renamed))
    return TermMoment(term, rest, moment, kept)


def needed_moments(equations: EvolutionEquations) -> tuple[Moment, ...]:
    """Every moment that the equations' terms need, once.

    **Raises:** `UserError` when the equations keep a nonlinearity of the single sample .
    """
    for quantity in equations.quantities:
        if quantity.symbol.per_sample:
            raise UserError(
                f"'{quantity.symbol.name}' differs from sample to sample, so moments of the data do not determine it: expand "
                f"everything around numbers (keep=(), no normaliser of the single sample), or evaluate from samples"
            )
    found = (term_moment(equations, term).moment for equation in equations.values() for term in equation)
    return tuple(dict.fromkeys(moment for moment in found if moment is not None))


def counting_work(moments: Iterable[Moment], samples: int, length: int) -> int:
    """How many entries counting these moments visits: samples × length^positions, summed."""
    return sum(samples * length ** len(moment.positions) for moment in moments)


class MomentCounter:
    """Counts moments over blocks of data; counters over parts of the data add up (`+=`).

    **Arguments:** `moments`: from `needed_moments`; `sizes`: root axis → size, the position included; `dense_entries`: a moment
    of more entries than this is stored sparsely.

    Weights may be counts: `values()` divides by their total.
    """

    def __init__(self, moments: Iterable[Moment], sizes: Mapping[str, int], dense_entries: int = DENSE_ENTRIES):
        self.moments = tuple(moments)
        self.sizes = dict(sizes)
        self.dense_entries = dense_entries
        self.total = 0.0
        self._dense = {m: np.zeros(math.prod(m.shape(sizes))) for m in self.moments if self._is_dense(m)}
        self._sparse: dict[Moment, tuple[np.ndarray, np.ndarray]] = {
            m: (np.zeros(0, np.int64), np.zeros(0)) for m in self.moments if not self._is_dense(m)
        }
        for moment in self._sparse:
            if math.prod(moment.shape(sizes)) >= 2**63:
                raise UserError(f"a joint law of {len(moment.open)} tokens is too large to index: lower the degree")

    def _is_dense(self, moment: Moment) -> bool:
        return math.prod(moment.shape(self.sizes)) <= self.dense_entries

    def add(self, tokens: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None) -> None:
        """Count a block: tokens (sample, position), labels (sample) or (sample, position), weights (sample), 1 by default.

        **Raises:** `UserError` for another length than the counter's, or a symbol out of range.
        """
        tokens, labels = np.asarray(tokens), np.asarray(labels)
        if tokens.ndim != 2 or tokens.shape[1] != self.sizes[POSITION]:
            raise UserError(f"tokens must have shape (sample, {self.sizes[POSITION]}), found {tokens.shape}")
        for name, array in (("token", tokens), ("label", labels)):
            if array.size and name in self.sizes and not 0 <= array.min() <= array.max() < self.sizes[name]:
                raise UserError(f"a {name} lies outside 0 … {self.sizes[name] - 1}")
        weights = np.ones(len(tokens)) if weights is None else np.asarray(weights, dtype=np.float64)
        self.total += float(weights.sum())
        for moment in self.moments:
            step = max(1, _BLOCK_ENTRIES // self.sizes[POSITION] ** len(moment.positions))
            for start in range(0, len(tokens), step):
                part = slice(start, start + step)
                codes, masses = _codes(moment, tokens[part], labels[part], weights[part], self.sizes)
                if moment in self._dense:
                    self._dense[moment] += np.bincount(codes, masses, minlength=len(self._dense[moment]))
                else:
                    self._sparse[moment] = _merged(self._sparse[moment], (codes, masses))

    def __iadd__(self, other: MomentCounter) -> MomentCounter:
        if (self.moments, self.sizes, self.dense_entries) != (other.moments, other.sizes, other.dense_entries):
            raise UserError("only counters of the same moments and sizes add up")
        self.total += other.total
        for moment in self.moments:
            if moment in self._dense:
                self._dense[moment] += other._dense[moment]
            else:
                self._sparse[moment] = _merged(self._sparse[moment], other._sparse[moment])
        return self

    def values(self) -> dict[Moment, np.ndarray | SparseMoment]:
        """The moments as averages: arrays with the axes `moment.open`, or their entries other than 0.

        **Raises:** `UserError` when nothing was counted.
        """
        if not self.total > 0:
            raise UserError("no data of positive weight were counted")
        result: dict[Moment, np.ndarray | SparseMoment] = {}
        for moment in self.moments:
            shape = moment.shape(self.sizes)
            if moment in self._dense:
                result[moment] = self._dense[moment].reshape(shape) / self.total
            else:
                codes, masses = self._sparse[moment]
                result[moment] = SparseMoment(np.stack(np.unravel_index(codes, shape)), masses / self.total)
        return result


def count_moments(
    equations: EvolutionEquations, blocks: Iterable[Any], sizes: Mapping[str, int], dense_entries: int = DENSE_ENTRIES
) -> dict[Moment, np.ndarray | SparseMoment]:
    """The moments of data that come in blocks, each with `tokens`, `labels` and `weights` (a `Dataset`, say).

    **Arguments:** `sizes`: root axis → size. Blocks are read one by one and not kept.
    """
    counter = MomentCounter(needed_moments(equations), sizes, dense_entries)
    for block in blocks:
        counter.add(block.tokens, block.labels, block.weights)
    return counter.values()


def _codes(
    moment: Moment, tokens: np.ndarray, labels: np.ndarray, weights: np.ndarray, sizes: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray]:
    """The place in the moment's array, and the weight, of every (sample, positions) that is not 0."""
    positions = moment.positions
    length = sizes[POSITION]
    shape = (len(tokens), *(length for _ in positions))
    ids: dict[str, np.ndarray] = {
        p: np.arange(length).reshape([-1 if q == n else 1 for q in range(-1, len(positions))])
        for n, p in enumerate(positions)
    }
    allowed = np.ones((1,) * len(shape), dtype=bool)
    for first, second in _pairs(moment.apart):
        allowed = allowed & (ids[first] != ids[second])
    for name, indices in moment.factors:
        array = tokens if name == "X" else labels
        for index in indices[:-1]:
            if "@" in index:
                array = array[:, -1 if index.endswith("@last") else 0]
                found = array.reshape(-1, *(1 for _ in positions))
            else:
                found = array.reshape([-1, *(length if p == index else 1 for p in positions)])
            break
        else:
            found = array.reshape(-1, *(1 for _ in positions))
        hot = indices[-1]
        if hot in ids:
            allowed = allowed & (ids[hot] == found)
        else:
            ids[hot] = found
    code = np.zeros((1,) * len(shape), dtype=np.int64)
    for name, extent in zip(moment.open, moment.shape(sizes), strict=True):
        code = code * extent + ids[name]
    mass = weights.reshape(-1, *(1 for _ in positions)) * allowed
    codes, masses = np.broadcast_to(code, shape).ravel(), np.broadcast_to(mass, shape).ravel()
    present = masses != 0
    return (codes, masses) if present.all() else (codes[present], masses[present])


def _pairs(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for n, name in enumerate(names):
        for other in names[:n]:
            yield name, other


def _merged(*parts: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    codes = np.concatenate([c for c, _ in parts])
    masses = np.concatenate([m for _, m in parts])
    unique, inverse = np.unique(codes, return_inverse=True)
    return unique, np.bincount(inverse, masses, minlength=len(unique))
