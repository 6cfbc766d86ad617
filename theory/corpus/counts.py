"""What was counted in a corpus: merged exactly, and turned into signatures and into the moments of the flows."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from theory.corpus.counting import Progress, Request
from theory.corpus.pairs import BITS, COUNT, HIGH, LOW, MOST_TOKENS, Table, canonical, carried, same
from theory.errors import UserError, argument, nearest
from theory.signatures import Signature, Tokens, choose_rows

WEIGHTINGS = ("position", "pair")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Counts:
    """Counts of a corpus, sparse and exact; `+` merges those of parts of it.

    - `names`: the V tokens; `tokenizer`: what made them (its digest); `request`: what was counted.
    - `tables`: integer tables by name (`theory.corpus.pairs`); `positions`: labels at each place s of a window (s,).
    - `tokens`, `documents`: how many there were; `sources`: names of the corpora.
    """

    names: tuple[str, ...]
    tokenizer: str
    request: Request
    tables: dict[str, Table]
    positions: np.ndarray
    tokens: int
    documents: int
    sources: tuple[str, ...]

    @classmethod
    def of(cls, progress: Progress, names: tuple[str, ...], tokenizer: str, request: Request, source: str) -> Counts:
        """The counts that a finished `Counting` holds."""
        positions = np.zeros(request.length, np.int64) if progress.positions is None else progress.positions
        sizes = progress.tokens, progress.documents
        return cls(names, tokenizer, request, progress.tables, positions, *sizes, (source,))

    @property
    def progress(self) -> Progress:
        """The numbers alone, as they are kept on disk."""
        return Progress(self.tables, self.positions, self.tokens, self.documents)

    def __add__(self, other: Counts) -> Counts:
        """The counts of both: equal to the bit in whichever order and grouping parts are added.

        **Raises:** `UserError` when tokenizers differ or different things were counted.
        """
        if self.tokenizer != other.tokenizer:
            raise UserError(
                f"counts of {self._of()} and of {other._of()} do not match: their tokenizers differ "
                f"({len(self.names)} and {len(other.names)} tokens)"
            )
        if self.request != other.request:
            raise UserError(
                f"counts of {self._of()} and of {other._of()} do not match: {self.request} and {other.request}"
            )
        if self.tokens + other.tokens > MOST_TOKENS:
            raise UserError(f"counts of more than {MOST_TOKENS:,} tokens would not be exact")
        tables = {name: canonical(self.tables[name] + other.tables[name]) for name in self.tables}
        for name in ("past", "present"):
            if f"{name} {HIGH}" in tables:
                keys = f"{name} {HIGH}", f"{name} {LOW}"
                tables |= zip(keys, carried(*(tables[key] for key in keys)), strict=True)
        return dataclasses.replace(
            self,
            tables=tables,
            positions=self.positions + other.positions,
            tokens=self.tokens + other.tokens,
            documents=self.documents + other.documents,
            sources=tuple(sorted({*self.sources, *other.sources})),
        )

    def equals(self, other: Counts) -> bool:
        """Whether everything counted is the same, to the bit."""
        return (
            (self.names, self.tokenizer, self.request) == (other.names, other.tokenizer, other.request)
            and (self.tokens, self.documents) == (other.tokens, other.documents)
            and np.array_equal(self.positions, other.positions)
            and self.tables.keys() == other.tables.keys()
            and all(same(table, other.tables[name]) for name, table in self.tables.items())
        )

    def __repr__(self) -> str:
        pairs = self.tables["distance 1"].nnz
        return (
            f"Counts({self._of()}, vocabulary={len(self.names)}, tokens={self.tokens}, documents={self.documents}, "
            f"different neighbours={pairs})"
        )

    def next_token(self, tokens: Tokens = None) -> Signature:
        """φ_α^{y;nt}(ν) = P(x_{s+1} = ν | x_s = α). `tokens`: the α wanted, by name or number, default all."""
        return self._rows_of("next-token", 0, self._distance(1), tokens)

    def previous_token(self, tokens: Tokens = None) -> Signature:
        """P(x_{s−1} = β | x_s = ν), the trace-back of the next token; rows are the ν that follow something."""
        table = Table(self._distance(1).T.tocsr())
        return self._rows_of("previous-token", 0, table, tokens, axis="label", modes=("token",))

    def skip_gram(self, distance: int, tokens: Tokens = None) -> Signature:
        """P(x_{s+k} = ν | x_s = α). **Raises:** `UserError` for a distance that was not counted."""
        return self._rows_of(f"skip-gram {distance}", 0, self._distance(distance), tokens)

    def prefix(self, weighting: str = "position", tokens: Tokens = None) -> Signature:
        """The token in the past: P(x_{s+1} = ν | x_{I_s} = α), I_s among the positions 1 … s of the window.

        **Arguments:** `weighting`: "position": s uniform, then I_s, so that a pair weighs 1/s, as under uniform causal
        attention; "pair": pairs (s, I_s) uniform, as equation (22) of arXiv 2608.30315 is printed.
        """
        if weighting not in WEIGHTINGS:
            raise UserError(f"weighting cannot be {weighting!r}; {nearest(str(weighting), WEIGHTINGS)}")
        self._needs("past", "the token in the past")
        table = self._weighted("past") if weighting == "position" else self.tables[f"past {COUNT}"]
        return self._rows_of("prefix", 0, table, tokens)

    def prefix_set(self, tokens: Tokens = None) -> Signature:
        """P(x_{s+1} = ν, β ∈ {x_1 … x_{s−1}} | x_s = α) for the chosen α, the prefix counted as a set."""
        self._needs("prefix set", "the prefix-set signature")
        chosen = self.request.chosen
        v = len(self.names)
        together = self.tables["prefix set"]
        label = np.repeat(np.arange(len(chosen) * v) % v, np.diff(together.indptr))
        # Rows (α, ν) become rows α: entries stay in order, and columns ν V + β ascend within each.
        flat = (together.data, label * v + together.indices, together.indptr[::v])
        table = Table(flat, shape=(len(chosen), v * v))
        wanted = [self.names[i] for i in chosen] if tokens is None else tokens
        following = np.asarray(self._distance(1).sum(axis=1)).ravel()
        rows = choose_rows(self.names, wanted, following / following.sum(), "token", f"corpus {self._of()}")
        place = {token: i for i, token in enumerate(chosen)}
        for index, name in zip(rows.indices, rows.names, strict=True):
            if index not in place:
                raise UserError(f"prefix sets of {name!r} were not counted; {argument('prefix_set')} chooses tokens")
        matrix = table[[place[i] for i in rows.indices]].astype(np.float64)
        matrix.data /= np.repeat(following[rows.indices], np.diff(matrix.indptr))
        return Signature(
            "prefix-set", 1, "token", rows.indices, rows.names, rows.missing, rows.probability,
            ("label", "context_1"), (self.names, self.names), matrix,
        )  # fmt: skip

    def moments(self) -> Moments:
        """P, M, Q and κ, from which the flows of a language model follow without samples."""
        self._needs("present", "what moments are made of")
        pairs = self._distance(1)
        total = int(pairs.sum())
        following = np.asarray(pairs.sum(axis=1)).ravel()
        present = self._weighted("present")
        present.data /= np.repeat(following, np.diff(present.indptr))
        past = self._weighted("past")
        past.data /= total
        places = np.arange(1, self.request.length + 1)
        return Moments(
            names=self.names,
            length=self.request.length,
            P=pairs / total,
            M=present,
            Q=past,
            kappa=float((self.positions / places).sum() / self.positions.sum()),
        )

    def _of(self) -> str:
        return ", ".join(repr(source) for source in self.sources[:3]) + (", …" if len(self.sources) > 3 else "")

    def _distance(self, distance: int) -> Table:
        if distance not in self.request.distances:
            counted = ", ".join(str(k) for k in self.request.distances)
            raise UserError(f"pairs at distance {distance!r} were not counted, only {counted}")
        return self.tables[f"distance {distance}"]

    def _needs(self, name: str, what: str) -> None:
        if not any(key.startswith(name) for key in self.tables):
            raise UserError(f"{what} was not counted; ask for it when counting: {argument(_ASKED[name])}")

    def _weighted(self, name: str) -> Any:
        high, low = (self.tables[f"{name} {part}"].astype(np.float64) for part in (HIGH, LOW))
        return Table(high * 2.0**-BITS + low * 2.0 ** (-2 * BITS))

    def _rows_of(
        self,
        kind: str,
        order: int,
        table: Any,
        tokens: Tokens,
        axis: str = "token",
        modes: tuple[str, ...] = ("label",),
    ) -> Signature:
        sums = np.asarray(table.sum(axis=1)).ravel()
        if not sums.any():
            raise UserError(f"the documents of {self._of()} are too short for a {kind} signature")
        rows = choose_rows(self.names, tokens, sums / sums.sum(), axis, f"corpus {self._of()}")
        matrix = table[rows.indices].astype(np.float64)
        matrix.data /= np.repeat(sums[rows.indices], np.diff(matrix.indptr))
        return Signature(
            kind, order, axis, rows.indices, rows.names, rows.missing, rows.probability, modes, (self.names,), matrix
        )


_ASKED = {"past": "past", "present": "moments", "prefix set": "prefix_set"}


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Sparse moments of next-token data, all that the flows of theory.md §8 need of a corpus.

    With s uniform over the positions that have a label y = x_{s+1}, and windows of L positions:

    - `names`: the V tokens; `length`: L.
    - `P` (token, label): P(x_s = α, y = ν). Sums to 1.
    - `M` (token, context): M(β|α) = E[(1/s) #{j ≤ s: x_j = β} | x_s = α]. Rows of tokens with P(α) > 0 sum to 1.
    - `Q` (context, label): Q(β, ν) = E[(1/s) #{j ≤ s: x_j = β} 1{y = ν}]. Sums to 1; over β it gives P(y = ν).
    - `kappa`: κ = E[1/s], the number by which the variance of the context shrinks where tokens are independent.

    The matrices are `scipy.sparse.csr_array`s of float64.
    """

    names: tuple[str, ...]
    length: int
    P: Any
    M: Any
    Q: Any
    kappa: float

    @functools.cached_property
    def token(self) -> np.ndarray:
        """P(x_s = α): (token,)."""
        return np.asarray(self.P.sum(axis=1)).ravel()

    @functools.cached_property
    def label(self) -> np.ndarray:
        """P(y = ν): (label,)."""
        return np.asarray(self.P.sum(axis=0)).ravel()
