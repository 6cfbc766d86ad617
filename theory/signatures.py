"""Probability signatures of a dataset, as labelled numerical arrays.

Setting: I is uniform over the positions and independent of the sample; everything is conditioned
on x_I = α; r_α = P(x_I = α); J_1 … J_m run uniformly over ordered tuples of distinct positions
other than I. A token with r_α = 0 has no signature: it is left out and named.

Source: section 2 and equation (22) of arXiv 2608.30315; trace-back: arXiv 2509.20124.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import scipy.sparse

from theory.data.dataset import Dataset
from theory.errors import UserError, nearest

# A signature above the first size is stored sparse; above the second it is refused.
DENSE_BYTES = 2**28
MEMORY_BYTES = 2**31
# Entries handled at a time while counting.
_CHUNK = 1_000_000

Tokens = Iterable[str | int] | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Signature:
    """Conditional probabilities, one row per token (or, for a trace-back, per output token).

    - `kind`: "label", "co-occurrence", "predicted", …; `order`: m.
    - `axis`: what a row is, "token" or "label"; `indices`: the rows' symbols (row,) in the
      vocabulary; `tokens`: their names; `missing`: names of those that were asked for but never
      occur.
    - `probability`: P of the row's condition (row,), for the order-m signatures r_α.
    - `modes`: names of the further axes, e.g. ("label", "context_1"); `mode_names`: the symbols
      along each.
    - `matrix`: (row, all modes flattened in C order), a dense array or a `scipy.sparse.csr_array`.
    """

    kind: str
    order: int
    axis: str
    indices: np.ndarray
    tokens: tuple[str, ...]
    missing: tuple[str, ...]
    probability: np.ndarray
    modes: tuple[str, ...]
    mode_names: tuple[tuple[str, ...], ...]
    matrix: Any

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of (row, modes …)."""
        return (len(self.tokens), *(len(names) for names in self.mode_names))

    @property
    def is_sparse(self) -> bool:
        """Whether `matrix` is stored sparse."""
        return scipy.sparse.issparse(self.matrix)

    @property
    def array(self) -> np.ndarray:
        """The dense array (row, modes …).

        **Raises:** `UserError` when it would take more than `MEMORY_BYTES`.
        """
        if not self.is_sparse:
            return self.matrix.reshape(self.shape)
        _refuse_dense(self.kind, self.order, self.shape, MEMORY_BYTES)
        return self.matrix.toarray().reshape(self.shape)

    def __getitem__(self, token: str) -> np.ndarray:
        """The row of one token, by name: a dense array over the modes."""
        if token not in self.tokens:
            raise UserError(self._absence(token))
        row = self.tokens.index(token)
        _refuse_dense(self.kind, self.order, self.shape[1:], MEMORY_BYTES)
        values = self.matrix[[row], :].toarray()[0] if self.is_sparse else self.matrix[row]
        return values.reshape(self.shape[1:])

    def row(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Where row `number` is not zero, counted over its modes flattened in C order, and the values there."""
        if self.is_sparse:
            here = slice(self.matrix.indptr[number], self.matrix.indptr[number + 1])
            return self.matrix.indices[here], self.matrix.data[here]
        values = self.matrix[number].ravel()
        return np.flatnonzero(values), values[values != 0]

    def __repr__(self) -> str:
        modes = ", ".join(f"{m}={n}" for m, n in zip(self.modes, self.shape[1:], strict=True))
        storage = "sparse" if self.is_sparse else "dense"
        return (
            f"Signature({self.kind!r}, order={self.order}, {self.axis}={len(self.tokens)}, "
            f"{modes}, {storage}, missing={len(self.missing)})"
        )

    def labelled(self) -> dict[str, Any]:
        """The signature as a dictionary that `xarray.DataArray.from_dict` takes as it is."""
        dims = (self.axis, *self.modes)
        coordinates = (self.tokens, *self.mode_names)
        return {
            "name": f"{self.kind} signature",
            "dims": dims,
            "coords": {
                dim: {"dims": (dim,), "data": list(names), "attrs": {}}
                for dim, names in zip(dims, coordinates, strict=True)
            },
            "data": self.array,
            "attrs": {"order": self.order, "missing": list(self.missing)},
        }

    def contract(self, probe: np.ndarray, mode: str | None = None) -> np.ndarray:
        """φ·v: contract one mode with a probe.

        **Arguments:** `probe`: v (size of the mode,) or (size, probe); `mode`: default, the last.

        **Returns:** a dense array (row, other modes …[, probe]).

        **Raises:** `UserError` for an unknown mode or a probe of another size.
        """
        at = self._mode(self.modes[-1] if mode is None else mode)
        probe = np.asarray(probe, dtype=np.float64)
        size = self.shape[1 + at]
        if probe.ndim not in (1, 2) or len(probe) != size:
            raise UserError(
                f"a probe of mode {self.modes[at]!r} needs {size} entries along its first axis, "
                f"but its shape is {probe.shape}"
            )
        columns = probe.reshape(size, -1)
        before, after = math.prod(self.shape[1 : 1 + at]), math.prod(self.shape[2 + at :])
        others = self.shape[: 1 + at] + self.shape[2 + at :]
        shape = (*others, columns.shape[1])
        _refuse_dense(self.kind, self.order, shape, MEMORY_BYTES)
        if self.is_sparse:
            # One row of the unfolding per (row, other modes): sparse times dense.
            entries = self.matrix.tocoo()
            rows, flat = entries.coords
            first, rest = np.divmod(flat.astype(np.int64), size * after)
            middle, last = np.divmod(rest, after)
            unfolded = (rows.astype(np.int64) * before + first) * after + last
            matrix = scipy.sparse.csr_array((entries.data, (unfolded, middle)), shape=(math.prod(others), size))
            result = matrix @ columns
        else:
            result = np.moveaxis(self.array, 1 + at, -1).reshape(-1, size) @ columns
        result = result.reshape(shape)
        return result[..., 0] if probe.ndim == 1 else result

    def sum_out(self, mode: str | None = None) -> np.ndarray:
        """Sum over one mode: on a context mode this gives the signature of order m − 1."""
        at = self._mode(self.modes[-1] if mode is None else mode)
        return self.contract(np.ones(self.shape[1 + at]), self.modes[at])

    def _mode(self, mode: str) -> int:
        if mode not in self.modes:
            raise UserError(f"the signature has no mode {mode!r}; {nearest(mode, self.modes)}")
        return self.modes.index(mode)

    def _absence(self, token: str) -> str:
        if token in self.missing:
            return f"{self.axis} {token!r} never occurs in the data, so it has no signature"
        return f"the signature has no {self.axis} {token!r}; {nearest(str(token), self.tokens)}"


def token_probability(dataset: Dataset) -> np.ndarray:
    """r_α = P(x_I = α) = E[N_α]/L for every token of the vocabulary: (token,), sum 1."""
    weights = np.repeat(dataset.weights, dataset.length) / dataset.length
    return np.bincount(dataset.tokens.ravel(), weights=weights, minlength=dataset.n_tokens)


def label_probability(dataset: Dataset) -> np.ndarray:
    """P(y = ν) (label,), the label at a uniform position where every position has one; sums to 1."""
    of_label = dataset.labels if dataset.labels_per_position else dataset.labels[:, None]
    weights = np.repeat(dataset.weights, of_label.shape[1]) / of_label.shape[1]
    return np.bincount(of_label.ravel(), weights=weights, minlength=dataset.n_labels)


def label_signature(
    dataset: Dataset,
    order: int = 0,
    tokens: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """φ_α^{y;m}(ν, β_1 … β_m) = P(y = ν, x_{J_1} = β_1, …, x_{J_m} = β_m | x_I = α).

    **Arguments:** `order`: m, 0 … L − 1; `tokens`: the tokens α wanted, names (str) or indices
    (int), default all; `storage`: "dense", "sparse", or "auto" (sparse above `DENSE_BYTES`);
    `memory`: the largest result, in bytes, that is made.

    With one label per position, y is the label at I: order 0 is the next-token signature
    φ^{y;nt}. Higher orders would put later tokens, the answer among them, into the context:
    they are refused, and `prefix_set_signature` takes their place.

    **Returns:** a `Signature` with the modes label, context_1 … context_m.

    **Raises:** `UserError` for an order or token that does not exist, or a result above `memory`.
    """
    order = _order(dataset, order)
    if dataset.labels_per_position and order > 0:
        raise UserError(
            f"a label signature of order {order} needs one label per sequence, but dataset "
            f"{dataset.name!r} has one per position; use order 0 or prefix_set_signature"
        )
    places = [_Place(i, _distinct(dataset.length, i, order), i, 1.0) for i in range(dataset.length)]
    modes = ("label", *_contexts(order))
    return _signature(dataset, "label", order, places, modes, tokens, storage, memory)


def cooccurrence_signature(
    dataset: Dataset,
    order: int = 1,
    tokens: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """φ_α^m(β_1 … β_m) = P(x_{J_1} = β_1, …, x_{J_m} = β_m | x_I = α).

    **Arguments, returns, raises:** as for `label_signature`, without the label mode; m ≥ 1.
    """
    order = _order(dataset, order, low=1)
    places = [_Place(i, _distinct(dataset.length, i, order), None, 1.0) for i in range(dataset.length)]
    modes = _contexts(order)
    return _signature(dataset, "co-occurrence", order, places, modes, tokens, storage, memory)


def predicted_signature(
    dataset: Dataset,
    p: np.ndarray,
    order: int = 0,
    tokens: Tokens = None,
    *,
    memory: int = MEMORY_BYTES,
) -> Signature:
    """φ_α^{p;m}(ν, β) = E[p_ν(x) 1{x_J = β} | x_I = α], the label replaced by a prediction.

    **Arguments:** `p`: predicted probabilities (sample, label), or (sample, position, label) for
    a dataset with one label per position (order 0 only); the rest as for `label_signature`.

    **Returns:** a dense `Signature` with the modes label, context_1 … context_m.

    **Raises:** `UserError` when `p` has another shape or is not a probability, or as for
    `label_signature`.
    """
    order = _order(dataset, order)
    p = np.asarray(p, dtype=np.float64)
    wanted = (*dataset.labels.shape, dataset.n_labels)
    if p.shape != wanted:
        axes = "(sample, position, label)" if dataset.labels_per_position else "(sample, label)"
        raise UserError(f"the prediction must have the axes {axes} = {wanted}, found {p.shape}")
    # The tolerance admits a softmax computed in float32.
    if not np.isfinite(p).all() or p.min() < 0 or np.abs(p.sum(axis=-1) - 1).max() > 1e-5:
        raise UserError("the prediction must be non-negative and sum to 1 over the labels")
    if dataset.labels_per_position and order > 0:
        raise UserError(
            f"a predicted signature of order {order} needs one label per sequence, "
            f"but dataset {dataset.name!r} has one per position; use order 0"
        )
    rows = _rows(dataset, tokens, token_probability(dataset))
    n_rows, n_context = len(rows.indices), dataset.n_tokens**order
    shape = (n_rows, dataset.n_labels, *(dataset.n_tokens,) * order)
    _refuse_dense("predicted", order, shape, memory)
    result = np.zeros((n_rows * n_context, dataset.n_labels))
    for i in range(dataset.length):
        place = _Place(i, _distinct(dataset.length, i, order), None, 1.0 / dataset.length)
        for row, _, context, sample, weight in _occurrences(dataset, place, rows):
            # Merge equal (row, context) first: then the product with p is one sparse matrix.
            keys, inverse = np.unique(row * n_context + context, return_inverse=True)
            counts = scipy.sparse.csr_array((weight, (inverse, sample)), shape=(len(keys), dataset.n_samples))
            result[keys] += counts @ (p[:, i] if dataset.labels_per_position else p)
    result = result.reshape(n_rows, n_context, -1).swapaxes(1, 2).reshape(n_rows, -1)
    modes = ("label", *_contexts(order))
    return _finish(dataset, "predicted", order, rows, modes, result)


def position_signature(
    dataset: Dataset,
    positions: Sequence[int],
    *,
    given: int | None = None,
    label: bool = True,
    tokens: Tokens = None,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """Position-specific signature φ_α^{y;x_s,x_u,…}(ν, β, …) = P(y = ν, x_s = β, … | x_I = α).

    The fixed positions may coincide with I or with each other, unlike those of `label_signature`.

    **Arguments:** `positions`: the fixed places s, u, …, counted from 0, −1 being the last;
    `given`: condition on x_given = α at a fixed place instead of at I, as in φ_{α,x_L};
    `label`: include the label mode (False: co-occurrence only); the rest as for
    `label_signature`.

    **Returns:** a `Signature` with the modes label and x_1, x_2, … (named from 1, as in the
    papers; "x_2 (2)" where a position is repeated).

    **Raises:** `UserError` for a position that does not exist, or labels per position.
    """
    if label and dataset.labels_per_position:
        raise UserError(
            f"a position-specific label signature needs one label per sequence, but dataset "
            f"{dataset.name!r} has one per position; use label=False"
        )
    fixed = [_position(dataset, s) for s in positions]
    conditions = range(dataset.length) if given is None else [_position(dataset, given)]
    contexts = np.array([fixed], dtype=np.int64).reshape(1, len(fixed))
    places = [_Place(i, contexts, 0 if label else None, 1.0) for i in conditions]
    names: list[str] = []
    for s in fixed:
        times = sum(name.split(" ")[0] == f"x_{s + 1}" for name in names)
        names.append(f"x_{s + 1}" + (f" ({times + 1})" if times else ""))
    modes = ("label", *names) if label else tuple(names)
    if not modes:
        raise UserError("a signature without a label needs at least one position")
    kind = "position-specific label" if label else "position-specific co-occurrence"
    return _signature(dataset, kind, len(fixed), places, modes, tokens, storage, memory)


def next_token_signature(
    dataset: Dataset,
    tokens: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """φ_α^{y;nt}(ν) = P(x_{s+1} = ν | x_s = α), s uniform.

    With one label per position the next token is the label at s; with one label per sequence it
    is the token at s + 1 of the same sequence, so that the last position does not count as s.

    **Returns:** a `Signature` with the single mode label (or context_1).

    **Raises:** `UserError` for a single-token sequence without labels per position, or as for
    `label_signature`.
    """
    if dataset.labels_per_position:
        found = label_signature(dataset, 0, tokens, storage=storage, memory=memory)
        return dataclasses.replace(found, kind="next-token")
    return _neighbour(dataset, +1, "next-token", tokens, storage, memory)


def previous_token_signature(
    dataset: Dataset,
    tokens: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """P(x_{s−1} = β | x_s = ν), s uniform: what stands before a token.

    With one label per position this is the trace-back of the label ν; with one label per sequence
    x_{s−1} and x_s are neighbours of the same sequence.

    **Returns:** a `Signature`; rows are labels in the first case and tokens in the second.
    """
    if dataset.labels_per_position:
        found = trace_back(dataset, tokens, storage=storage, memory=memory)
        return dataclasses.replace(found, kind="previous-token")
    return _neighbour(dataset, -1, "previous-token", tokens, storage, memory)


def trace_back(
    dataset: Dataset,
    labels: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """ψ_ν(β) = P(x_I = β | y = ν): the tokens seen with an output token ν drive its unembedding.

    **Arguments:** `labels`: the output tokens wanted, names (str) or indices (int); the rest as
    for `label_signature`. With one label per position y is the label at I.

    **Returns:** a `Signature` whose rows are the labels that occur, with the single mode token;
    `.missing` names the outputs nobody asks for; `.probability` is P(y = ν).
    """
    rows = _rows(dataset, labels, label_probability(dataset), axis="label")
    every = np.arange(dataset.n_tokens)
    all_rows = Rows("token", every, dataset.token_names, (), np.ones(dataset.n_tokens))
    places = [_Place(i, _distinct(dataset.length, i, 0), i, 1.0 / dataset.length) for i in range(dataset.length)]
    joint = _joint(dataset, "trace-back", 0, places, ("label",), all_rows, storage, memory)
    joint = joint.T.tocsr() if scipy.sparse.issparse(joint) else joint.T
    return _finish(dataset, "trace-back", 0, rows, ("token",), joint[rows.indices])


def prefix_signature(
    dataset: Dataset,
    tokens: Tokens = None,
    *,
    weighting: str = "position",
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """P(y_s = ν | x_{I_s} = α), I_s uniform over the positions 1 … s: the early attention path.

    **Arguments:** the dataset must have one label per position; `weighting`: "position" draws s
    uniformly and then I_s, as the gradient does under uniform causal attention; "pair" draws the
    pairs I_s ≤ s uniformly, as equation (22) of arXiv 2608.30315 is printed; the rest as for
    `label_signature`.

    **Returns:** a `Signature` with the single mode label; `.probability` is P(x_{I_s} = α).
    """
    _needs_labels_per_position(dataset, "prefix signature")
    if weighting not in ("position", "pair"):
        raise UserError(f"weighting cannot be {weighting!r}; {nearest(weighting, ('position', 'pair'))}")
    nothing = np.empty((1, 0), dtype=np.int64)
    places = [
        _Place(i, nothing, s, 1.0 / (s + 1) if weighting == "position" else 1.0)
        for s in range(dataset.length)
        for i in range(s + 1)
    ]
    return _signature(dataset, "prefix", 0, places, ("label",), tokens, storage, memory)


def prefix_set_signature(
    dataset: Dataset,
    tokens: Tokens = None,
    *,
    storage: str = "auto",
    memory: int = MEMORY_BYTES,
) -> Signature:
    """P(y_s = ν, β ∈ {x_1 … x_{s−1}} | x_s = α), s uniform: order 1 for next-token data.

    The prefix counts as a set, so that summing over β does not give 1 but the mean number of
    distinct tokens before α.

    **Arguments, returns, raises:** as for `label_signature`; modes label and context_1. The
    dataset must have one label per position.
    """
    _needs_labels_per_position(dataset, "prefix-set signature")
    places = [_Place(s, np.arange(s, dtype=np.int64)[:, None], s, 1.0, as_set=True) for s in range(dataset.length)]
    modes = ("label", "context_1")
    return _signature(dataset, "prefix-set", 1, places, modes, tokens, storage, memory)


def cosine_similarity(signature: Signature | np.ndarray) -> np.ndarray:
    """Cosines between the rows, uncentred: S^sig of a signature, S^emb of embeddings.

    **Arguments:** a `Signature` (all modes flattened), or an array (row, …).

    **Returns:** a symmetric array (row, row) with ones on the diagonal.

    **Raises:** `UserError` naming a row that is zero or not finite.
    """
    rows: Any
    if isinstance(signature, Signature):
        rows, names = signature.matrix, signature.tokens
    else:
        rows = np.asarray(signature, dtype=np.float64)
        if rows.ndim < 2:
            raise UserError(f"rows to compare need at least two axes, but the shape is {rows.shape}")
        rows = rows.reshape(len(rows), -1)
        names = tuple(str(i) for i in range(len(rows)))
    if scipy.sparse.issparse(rows):
        # Only the columns in use: a product allocates arrays as long as a row.
        used, column = np.unique(rows.indices, return_inverse=True)
        parts = (rows.data, column.ravel(), rows.indptr)
        rows = scipy.sparse.csr_array(parts, shape=(rows.shape[0], len(used)))
        norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
        gram = (rows @ rows.T).toarray()
    else:
        # Scaling by the largest entry keeps the squares of tiny embeddings from underflowing.
        largest = np.abs(rows).max(axis=1, initial=0.0)
        rows = rows / np.where(largest > 0, largest, 1.0)[:, None]
        norms = np.sqrt((rows**2).sum(axis=1))
        gram = rows @ rows.T
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if bad.size:
        raise UserError(f"row {names[bad[0]]!r} is zero or not finite, so it has no cosine")
    cosines = gram / norms[:, None] / norms[None, :]
    np.fill_diagonal(cosines, 1.0)
    return np.clip(cosines, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class _Place:
    """One way to draw: x at `condition` is α, context at each row of `contexts`, label at `label`.

    `contexts` (tuple, place) are averaged over, except `as_set`, where they are added up and a
    token repeated in them counts once. `label` is None where no label is wanted, and of no
    consequence with one label per sequence. `weight` is relative.
    """

    condition: int
    contexts: np.ndarray
    label: int | None
    weight: float
    as_set: bool = False


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of a signature; fields as in `Signature`."""

    axis: str
    indices: np.ndarray
    names: tuple[str, ...]
    missing: tuple[str, ...]
    probability: np.ndarray


def _signature(
    dataset: Dataset,
    kind: str,
    order: int,
    places: list[_Place],
    modes: tuple[str, ...],
    tokens: Tokens,
    storage: str,
    memory: int,
) -> Signature:
    total = math.fsum(place.weight for place in places)
    places = [dataclasses.replace(place, weight=place.weight / total) for place in places]
    by_position = np.zeros(dataset.length)
    for place in places:
        by_position[place.condition] += place.weight
    probability = np.zeros(dataset.n_tokens)
    for i in np.flatnonzero(by_position):
        probability += by_position[i] * np.bincount(
            dataset.tokens[:, i], weights=dataset.weights, minlength=dataset.n_tokens
        )
    rows = _rows(dataset, tokens, probability)
    joint = _joint(dataset, kind, order, places, modes, rows, storage, memory)
    return _finish(dataset, kind, order, rows, modes, joint)


def _rows(dataset: Dataset, wanted: Tokens, probability: np.ndarray, axis: str = "token") -> Rows:
    names = dataset.token_names if axis == "token" else dataset.label_names
    return choose_rows(names, wanted, probability, axis, f"dataset {dataset.name!r}")


def choose_rows(names: tuple[str, ...], wanted: Tokens, probability: np.ndarray, axis: str, where: str) -> Rows:
    """Split the wanted symbols into those that occur and those that do not.

    **Arguments:** `names`: of all symbols; `wanted`: names or indices, None for all; `probability`: of each (symbol,);
    `axis`: what they are, "token" or "label"; `where`: what holds them, as messages call it.

    **Raises:** `UserError` for a symbol that does not exist, or when none of them occurs.
    """
    if wanted is None:
        chosen = np.arange(len(names))
    else:
        if isinstance(wanted, str):
            raise UserError(f"tokens= must be a list of names or indices, found {wanted!r}")
        index = {name: i for i, name in enumerate(names)}
        chosen = np.array([_symbol(axis, item, names, index) for item in wanted], dtype=np.int64)
        if len(set(chosen.tolist())) != len(chosen):
            raise UserError(f"the {axis}s wanted must be distinct")
    occurs = probability[chosen] > 0
    missing = tuple(names[i] for i in chosen[~occurs])
    found = chosen[occurs]
    if not found.size:
        raise UserError(
            f"none of the {axis}s wanted occurs in {where}: {', '.join(missing[:5]) or 'the list is empty'}"
        )
    return Rows(axis, found, tuple(names[i] for i in found), missing, probability[found])


def _symbol(axis: str, item: Any, names: Sequence[str], index: dict[str, int]) -> int:
    if isinstance(item, str):
        if item not in index:
            raise UserError(f"there is no {axis} {item!r}; {nearest(item, names)}")
        return index[item]
    if isinstance(item, bool) or not isinstance(item, int | np.integer):
        raise UserError(f"a {axis} is chosen by name (str) or index (int), found {item!r}")
    if not 0 <= item < len(names):
        raise UserError(f"{axis} indices lie in 0 … {len(names) - 1}, found {item}")
    return int(item)


def _joint(
    dataset: Dataset,
    kind: str,
    order: int,
    places: list[_Place],
    modes: tuple[str, ...],
    rows: Rows,
    storage: str,
    memory: int,
) -> Any:
    """Joint probabilities (row, flattened modes), not yet divided by those of the rows."""
    sizes = [len(names) for names in _mode_names(dataset, modes)]
    width = math.prod(sizes)
    n_context = width // dataset.n_labels if "label" in modes else width
    shape = (len(rows.indices), *sizes)
    if storage not in ("auto", "dense", "sparse"):
        raise UserError(f"storage cannot be {storage!r}; {nearest(storage, ('auto', 'dense', 'sparse'))}")
    if len(rows.indices) * width > np.iinfo(np.int64).max:
        raise UserError(
            f"a {kind} signature of order {order} has more entries than can be numbered; "
            "take a lower order or fewer tokens with tokens="
        )
    if storage == "auto":
        storage = "dense" if _bytes(shape) <= min(DENSE_BYTES, memory) else "sparse"
    if storage == "dense":
        _refuse_dense(kind, order, shape, memory)
    else:
        _refuse_sparse(dataset, kind, order, places, shape, rows, memory)
    dense = np.zeros(math.prod(shape) if storage == "dense" else 0)
    keys: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for place in places:
        for row, label, context, _, weight in _occurrences(dataset, place, rows):
            key = row * width + context
            if "label" in modes:
                key += label * n_context
            if storage == "dense":
                np.add.at(dense, key, weight)
            else:
                distinct, inverse = np.unique(key, return_inverse=True)
                keys.append(distinct)
                values.append(np.bincount(inverse.ravel(), weights=weight))
    if storage == "dense":
        return dense.reshape(len(rows.indices), width)
    row, column = np.divmod(np.concatenate(keys), width)
    entries = (np.concatenate(values), (row, column))
    return scipy.sparse.csr_array(entries, shape=(len(rows.indices), width))


def _occurrences(
    dataset: Dataset, place: _Place, rows: Rows
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Chunks of (row, label, flat context, sample, weight), one entry per sample and context."""
    row_of = np.full(dataset.n_tokens, -1, dtype=np.int64)
    row_of[rows.indices] = np.arange(len(rows.indices))
    row = row_of[dataset.tokens[:, place.condition]]
    selected = np.flatnonzero((row >= 0) & (dataset.weights > 0))
    n_contexts, order = place.contexts.shape
    share = place.weight if place.as_set else place.weight / max(n_contexts, 1)
    step = max(1, _CHUNK // max(n_contexts, 1))
    for start in range(0, len(selected), step):
        samples = selected[start : start + step]
        tokens = dataset.tokens[samples]
        context = np.zeros((len(samples), n_contexts), dtype=np.int64)
        for k in range(order):
            context = context * dataset.n_tokens + tokens[:, place.contexts[:, k]]
        shape = context.shape
        label = dataset.labels[samples]
        if dataset.labels_per_position:
            label = label[:, place.label or 0]
        sample, column = np.repeat(samples, n_contexts), np.ones(n_contexts, dtype=np.int64)
        entries = (
            np.outer(row[samples], column).ravel(),
            np.outer(label, column).ravel(),
            context.ravel(),
            sample,
            np.broadcast_to((dataset.weights[samples] * share)[:, None], shape).ravel(),
        )
        if place.as_set:
            first = _first_occurrences(tokens[:, place.contexts[:, 0]]).ravel()
            entries = tuple(entry[first] for entry in entries)
        yield entries  # type: ignore[misc]  # five arrays either way


def _first_occurrences(tokens: np.ndarray) -> np.ndarray:
    """Whether each entry of (sample, place) is the first of its token in its sample."""
    first = np.ones(tokens.shape, dtype=bool)
    for u in range(1, tokens.shape[1]):
        first[:, u] = ~(tokens[:, :u] == tokens[:, u : u + 1]).any(axis=1)
    return first


def _finish(dataset: Dataset, kind: str, order: int, rows: Rows, modes: tuple[str, ...], joint: Any) -> Signature:
    """Divide by the rows' probabilities and attach the names."""
    if scipy.sparse.issparse(joint):
        # By hand: a sparse product would allocate an array as long as a row, V^m entries.
        matrix = joint.sorted_indices()
        matrix.data = matrix.data / np.repeat(rows.probability, np.diff(matrix.indptr))
    else:
        matrix = joint / rows.probability[:, None]
        matrix.setflags(write=False)
    return Signature(
        kind=kind,
        order=order,
        axis=rows.axis,
        indices=rows.indices,
        tokens=rows.names,
        missing=rows.missing,
        probability=rows.probability,
        modes=modes,
        mode_names=_mode_names(dataset, modes),
        matrix=matrix,
    )


def _mode_names(dataset: Dataset, modes: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    return tuple(dataset.label_names if m == "label" else dataset.token_names for m in modes)


def _contexts(order: int) -> tuple[str, ...]:
    return tuple(f"context_{r + 1}" for r in range(order))


def _distinct(length: int, condition: int, order: int) -> np.ndarray:
    """All ordered tuples (tuple, place) of `order` distinct positions other than `condition`."""
    others = [j for j in range(length) if j != condition]
    count = math.perm(len(others), order)
    # The tuples of one position alone must fit in memory before any token is looked at.
    if count * max(order, 1) * 8 > MEMORY_BYTES:
        raise UserError(
            f"order {order} of sequences of length {length} has {count:,} tuples of positions; take a lower order"
        )
    flat = itertools.chain.from_iterable(itertools.permutations(others, order))
    return np.fromiter(flat, dtype=np.int64, count=count * order).reshape(count, order)


def _neighbour(dataset: Dataset, offset: int, kind: str, tokens: Tokens, storage: str, memory: int) -> Signature:
    if dataset.length < 2:
        raise UserError(f"a {kind} signature needs sequences of at least two tokens")
    pairs = [(i, i + offset) for i in range(dataset.length) if 0 <= i + offset < dataset.length]
    places = [_Place(i, np.array([[j]], dtype=np.int64), None, 1.0) for i, j in pairs]
    return _signature(dataset, kind, 1, places, ("context_1",), tokens, storage, memory)


def _order(dataset: Dataset, order: int, low: int = 0) -> int:
    highest = dataset.length - 1
    if highest < low:
        raise UserError(f"sequences of length {dataset.length} have no signature of order {low}")
    whole = isinstance(order, int | np.integer) and not isinstance(order, bool)
    if not whole or not low <= order <= highest:
        raise UserError(
            f"the order must be an integer in {low} … {highest} (one less than the length "
            f"{dataset.length}), found {order!r}"
        )
    return int(order)


def _position(dataset: Dataset, position: int) -> int:
    length = dataset.length
    whole = isinstance(position, int | np.integer) and not isinstance(position, bool)
    if not whole or not -length <= position < length:
        raise UserError(
            f"a position must be an integer in 0 … {length - 1}, or negative from the end, found {position!r}"
        )
    return int(position) % length


def _needs_labels_per_position(dataset: Dataset, what: str) -> None:
    if not dataset.labels_per_position:
        raise UserError(
            f"a {what} needs one label per position, but dataset {dataset.name!r} has one per "
            "sequence; use label_signature"
        )


def _bytes(shape: Sequence[int]) -> int:
    return 8 * math.prod(shape)


def _refuse_dense(kind: str, order: int, shape: Sequence[int], memory: int) -> None:
    size = _bytes(shape)
    if size > memory:
        raise UserError(
            f"a dense {kind} signature of order {order} with shape {tuple(shape)} would take "
            f"{size / 2**30:,.2f} GiB, above the limit of {memory / 2**30:,.2f} GiB; "
            "choose fewer tokens with tokens=, or a lower order"
        )


def _refuse_sparse(
    dataset: Dataset,
    kind: str,
    order: int,
    places: list[_Place],
    shape: Sequence[int],
    rows: Rows,
    memory: int,
) -> None:
    """Predict the entries of a sparse result, at most one per sample, place and context."""
    wanted = np.zeros(dataset.n_tokens, dtype=bool)
    wanted[rows.indices] = True
    at = wanted[dataset.tokens].sum(axis=0)
    entries = sum(int(at[place.condition]) * len(place.contexts) for place in places)
    # Key and value (16 bytes), their concatenation, row and column, and the sorted result.
    size = 64 * min(entries, math.prod(shape))
    if size > memory:
        raise UserError(
            f"a sparse {kind} signature of order {order} needs up to {size / 2**30:,.2f} GiB, "
            f"above the limit of {memory / 2**30:,.2f} GiB; choose fewer tokens with tokens=, "
            "or a lower order"
        )
