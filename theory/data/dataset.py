"""What every task, file and text becomes: weighted sequences of tokens with their labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from theory.errors import UserError

Symbols = Sequence[Any] | np.ndarray

# Weights that sum to 1 only up to the rounding of a long sum are accepted as they are.
SUM_TOLERANCE = 1e-9


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Sequences x = (x_1 … x_L), labels y and probabilities P(s): an exact law or an empirical one.

    **Arguments:**

    - `tokens`: integers (sample, position), each in 0 … n_tokens − 1.
    - `labels`: integers (sample,) — one per sequence — or (sample, position) — one per position —
      each in 0 … n_labels − 1.
    - `weights`: P(s), floats (sample,), non-negative with sum 1; `None` means equal weights.
    - `n_tokens`, `n_labels`: V_in and V_out; they may exceed the symbols in use and default to
      the largest symbol in use plus one (or to the number of names, where names are given).
    - `token_names`, `label_names`: distinct names, default "0", "1", ….
    - `name`: what the dataset is called in reports.
    - `exact`: whether the rows are the complete law (enumerated) rather than a sample of it.
    - `provenance`: where the rows came from (options, seeds, hashes), kept in result files.

    The arrays are copied and made read-only.

    **Raises:** `UserError` for a wrong shape, a symbol out of range, a weight that is negative or
    not finite, weights that do not sum to 1, or names that do not fit.

    Source: the setting of arXiv 2608.30315, section 2.
    """

    tokens: np.ndarray
    labels: np.ndarray
    weights: np.ndarray = None  # type: ignore[assignment]  # filled in below
    n_tokens: int = None  # type: ignore[assignment]
    n_labels: int = None  # type: ignore[assignment]
    token_names: tuple[str, ...] = None  # type: ignore[assignment]
    label_names: tuple[str, ...] = None  # type: ignore[assignment]
    name: str = "dataset"
    exact: bool = False
    provenance: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        tokens = _integers("tokens", self.tokens)
        if tokens.ndim != 2 or 0 in tokens.shape:
            raise UserError(
                f"tokens must have the axes (sample, position), each at least 1 long, but their shape is {tokens.shape}"
            )
        labels = _integers("labels", self.labels)
        if labels.shape not in (tokens.shape[:1], tokens.shape):
            raise UserError(
                f"labels must have the shape {tokens.shape[:1]}, one per sequence, or "
                f"{tokens.shape}, one per position, but their shape is {labels.shape}"
            )
        weights = _weights(self.weights, len(tokens))
        n_tokens, token_names = _vocabulary("token", tokens, self.n_tokens, self.token_names)
        n_labels, label_names = _vocabulary("label", labels, self.n_labels, self.label_names)
        for array in (tokens, labels, weights):
            array.setflags(write=False)
        fields = {
            "tokens": tokens,
            "labels": labels,
            "weights": weights,
            "n_tokens": n_tokens,
            "n_labels": n_labels,
            "token_names": token_names,
            "label_names": label_names,
            "name": str(self.name),
            "exact": bool(self.exact),
            "provenance": dict(self.provenance),
        }
        for field, value in fields.items():
            object.__setattr__(self, field, value)

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.tokens.shape[0]

    @property
    def length(self) -> int:
        """L, the number of positions."""
        return self.tokens.shape[1]

    @property
    def labels_per_position(self) -> bool:
        """Whether there is one label per position (next-token prediction), not one per row."""
        return self.labels.ndim == 2

    @property
    def sizes(self) -> dict[str, int]:
        """The axis sizes that the data decide: token (V_in), label (V_out) and position (L)."""
        return {"token": self.n_tokens, "label": self.n_labels, "position": self.length}

    def __repr__(self) -> str:
        law = "exact" if self.exact else "sample"
        per = "position" if self.labels_per_position else "sequence"
        return (
            f"Dataset({self.name!r}, {law}, samples={self.n_samples}, length={self.length}, "
            f"tokens={self.n_tokens}, labels={self.n_labels} per {per})"
        )

    def tokens_that_never_occur(self) -> tuple[str, ...]:
        """Names of the tokens with r_α = 0: they have no signature and no embedding dynamics."""
        seen = np.zeros(self.n_tokens, dtype=bool)
        seen[self.tokens[self.weights > 0].ravel()] = True
        return tuple(self.token_names[token] for token in np.flatnonzero(~seen))

    def labels_that_never_occur(self) -> tuple[str, ...]:
        """Names of the outputs that no sequence asks for (they change the flow: V_out counts)."""
        seen = np.zeros(self.n_labels, dtype=bool)
        seen[self.labels[self.weights > 0].ravel()] = True
        return tuple(self.label_names[label] for label in np.flatnonzero(~seen))

    def merge_duplicates(self) -> Dataset:
        """Merge equal rows (same tokens and same labels) by adding their weights.

        **Returns:** the same law in lexicographic order of the rows, without repeated rows.
        """
        labels = self.labels.reshape(self.n_samples, -1)
        rows, inverse = np.unique(np.concatenate([self.tokens, labels], axis=1), axis=0, return_inverse=True)
        weights = np.bincount(inverse.ravel(), weights=self.weights, minlength=len(rows))
        tokens, labels = rows[:, : self.length], rows[:, self.length :]
        return dataclasses.replace(
            self,
            tokens=tokens,
            labels=labels if self.labels_per_position else labels[:, 0],
            weights=weights,
            provenance=self.provenance | {"merged_from": self.n_samples},
        )

    def sample(self, n: int, seed: int = 0) -> Dataset:
        """Draw `n` rows with replacement from P(s): an empirical dataset with equal weights.

        **Arguments:** `n`: number of rows, at least 1; `seed`: of numpy's default generator.

        **Raises:** `UserError` when `n` is not a positive integer.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise UserError(f"the number of samples to draw must be an integer ≥ 1, found {n!r}")
        rng = np.random.default_rng(seed)
        rows = rng.choice(self.n_samples, size=int(n), p=self.weights / self.weights.sum())
        return dataclasses.replace(
            self,
            tokens=self.tokens[rows],
            labels=self.labels[rows],
            weights=None,
            exact=False,
            provenance=self.provenance | {"drawn": int(n), "draw_seed": int(seed)},
        )


def from_sequences(
    tokens: Symbols,
    labels: Symbols,
    weights: Symbols | None = None,
    *,
    n_tokens: int | None = None,
    n_labels: int | None = None,
    token_names: Sequence[str] | None = None,
    label_names: Sequence[str] | None = None,
    name: str = "own",
    exact: bool = False,
    provenance: Mapping[str, Any] | None = None,
) -> Dataset:
    """Make a dataset from sequences of integers or words, normalising the weights.

    **Arguments:** as for `Dataset`, except that

    - integers are indices (0-based), while words are looked up in the given names, or, where none
      are given, in the sorted set of the words found (numerals in numerical order);
    - `weights` need not sum to 1 (counts are fine): they are divided by their sum.

    **Raises:** `UserError` for sequences of unequal length (naming the first one), for words that
    are not among the given names, and for whatever `Dataset` refuses.
    """
    token_array, token_names = _indices("tokens", _rectangle("tokens", tokens), token_names)
    label_array, label_names = _indices("labels", _rectangle("labels", labels), label_names)
    return Dataset(
        token_array,
        label_array,
        _normalised(weights),  # type: ignore[arg-type]
        n_tokens,  # type: ignore[arg-type]
        n_labels,  # type: ignore[arg-type]
        None if token_names is None else tuple(token_names),  # type: ignore[arg-type]
        None if label_names is None else tuple(label_names),  # type: ignore[arg-type]
        name,
        exact,
        dict(provenance or {}),
    )


def vocabulary_of(words: Sequence[str] | np.ndarray) -> tuple[str, ...]:
    """The distinct words, sorted: numerals by value and before everything else, then by letters."""

    def key(word: str) -> tuple[int, int, str]:
        digits = word[1:] if word.startswith("-") else word
        numeral = digits.isascii() and digits.isdigit() and len(digits) <= 18
        return (0, int(word), word) if numeral else (1, 0, word)

    return tuple(sorted({str(word) for word in words}, key=key))


def _integers(field: str, values: Any) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise UserError(
            f"{field} must be integers, found dtype {array.dtype}; words and their vocabulary go through from_sequences"
        )
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise UserError(f"{field} must fit in 64-bit integers, found {array.max()}")
    return np.array(array, dtype=np.int64)


def _weights(values: Any, n_samples: int) -> np.ndarray:
    if values is None:
        return np.full(n_samples, 1.0 / n_samples)
    weights = _floats(values)
    if weights.shape != (n_samples,):
        raise UserError(
            f"weights must have the shape ({n_samples},), one per sequence, but their shape is {weights.shape}"
        )
    total = float(weights.sum())
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise UserError(f"weights must sum to 1, but they sum to {total:.12g}; from_sequences normalises them")
    return weights


def _normalised(values: Any) -> np.ndarray | None:
    if values is None:
        return None
    weights = _floats(values)
    largest = float(weights.max(initial=0.0))
    if largest <= 0.0:
        raise UserError("at least one weight must be positive, but all weights are 0")
    # Dividing by the largest first keeps sums of huge or denormal weights finite.
    weights = weights / largest
    return weights / weights.sum()


def _floats(values: Any) -> np.ndarray:
    try:
        weights = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError("weights must be one number per sequence") from None
    if weights.ndim != 1:
        raise UserError(f"weights must have one axis (sample), but their shape is {weights.shape}")
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if bad.size:
        raise UserError(f"weights must be finite and ≥ 0, but weight {bad[0]} is {weights[bad[0]]!s}")
    return weights


def _vocabulary(
    kind: str, symbols: np.ndarray, size: int | None, names: Sequence[str] | None
) -> tuple[int, tuple[str, ...]]:
    if size is None:
        size = int(symbols.max()) + 1 if names is None else len(names)
    elif isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise UserError(f"n_{kind}s must be an integer ≥ 1, found {size!r}")
    size = int(size)
    bad = np.argwhere((symbols < 0) | (symbols >= size))
    if len(bad):
        place = tuple(int(i) for i in bad[0])
        where = f"sample {place[0]}" + (f", position {place[1]}" if len(place) == 2 else "")
        raise UserError(
            f"{kind}s must lie in 0 … {size - 1} (n_{kind}s = {size}), "
            f"but {kind} {symbols[place]} stands at {where} (both counted from 0)"
        )
    if names is None:
        return size, tuple(str(i) for i in range(size))
    names = tuple(str(name) for name in names)
    if len(names) != size:
        raise UserError(f"{kind}_names has {len(names)} names, but n_{kind}s is {size}")
    if len(set(names)) != size:
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise UserError(f"{kind}_names must be distinct, but {twice!r} occurs more than once")
    return size, names


def _rectangle(field: str, rows: Symbols) -> np.ndarray:
    if isinstance(rows, np.ndarray):
        return rows
    rows = list(rows)
    if not rows:
        raise UserError(f"{field} must hold at least one sequence, found none")
    nested = [isinstance(row, Sequence | np.ndarray) and not isinstance(row, str) for row in rows]
    if any(nested):
        lengths = [len(row) if is_row else -1 for row, is_row in zip(rows, nested, strict=True)]
        for number, length in enumerate(lengths):
            if length != lengths[0]:
                found = "a single symbol" if length < 0 else f"{length} {field}"
                raise UserError(
                    f"every sequence must have as many {field} as the first ({lengths[0]}), "
                    f"but sequence {number} (counted from 0) has {found}"
                )
    symbols = [s for row, is_row in zip(rows, nested, strict=True) for s in (row if is_row else [row])]
    if any(isinstance(s, str) for s in symbols) and not all(isinstance(s, str) for s in symbols):
        raise UserError(f"{field} must be all integers or all words, found a mixture of both")
    try:
        return np.array(rows)
    except (ValueError, OverflowError):
        raise UserError(f"{field} must be a table of integers or words, one row per sequence") from None


def _indices(field: str, symbols: np.ndarray, names: Sequence[str] | None) -> tuple[np.ndarray, Sequence[str] | None]:
    if symbols.dtype.kind != "U":
        return symbols, names
    found, inverse = np.unique(symbols, return_inverse=True)
    if names is None:
        names = vocabulary_of(found)
    index = {str(name): i for i, name in enumerate(names)}
    unknown = [str(word) for word in found if str(word) not in index]
    if unknown:
        raise UserError(f"{field} hold the word {unknown[0]!r}, which is not among the given names")
    order = np.array([index[str(word)] for word in found], dtype=np.int64)
    return order[inverse].reshape(symbols.shape), names
