"""Arithmetic on sequences of numbers, all equally likely: exact by enumeration, or sampled.

Source: Task 2, Task 4, the M-sweep, the activation sweep and the min–max task of arXiv 2608.30315;
composite addition is F_rsn of arXiv 2502.04375.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from theory.data import options
from theory.data.dataset import Dataset
from theory.errors import UserError


def add(
    numbers: int = 20,
    length: int = 2,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Addition y = x_1 + … + x_L of numbers 1 … N; by default V_out = L(N − 1) + 1 (every sum).

    **Arguments:** `numbers`: N ≥ 1; `length`: L ≥ 1; `n_outputs`: V_out, at least the number of
    sums; `samples`: "all" (every sequence once) or how many to draw; `seed`: of that draw.

    **Returns:** a `Dataset`; token a is the number a + 1, label c is the sum L + c.

    **Raises:** `UserError` for an option out of range, or when the N^L sequences are too many.
    """
    return _over_numbers(
        "add", numbers, length, n_outputs, samples, seed,
        value=lambda x: x.sum(axis=1),
        labels=lambda n, positions: range(positions, positions * n + 1),
    )  # fmt: skip


def sub(
    numbers: int = 20,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Subtraction y = |x_1 − x_2| of two numbers 1 … N; by default V_out = N (0 … N − 1).

    **Arguments, returns, raises:** as for `add`; the length is 2 and label c is the difference c.
    """
    return _over_numbers(
        "sub", numbers, 2, n_outputs, samples, seed,
        value=lambda x: np.abs(x[:, 0] - x[:, 1]),
        labels=lambda n, positions: range(n),
    )  # fmt: skip


def mul(
    numbers: int = 20,
    length: int = 2,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Multiplication y = x_1 · … · x_L of numbers 1 … N; by default one output per product.

    **Arguments, returns, raises:** as for `add`; the labels are the products that occur, in
    increasing order (for N = 20, L = 2: 152 of the numbers 1 … 400).
    """

    def products(n: int, length: int) -> list[int]:
        # Exact Python integers: refuse before they outgrow the int64 arrays.
        if n**length > np.iinfo(np.int64).max:
            raise UserError(f"task mul: {n}^{length} does not fit in 64-bit integers")
        found = {1}
        for _ in range(length):
            found = {a * b for a in found for b in range(1, n + 1)}
            if len(found) > options.ENUMERATION_LIMIT:
                raise UserError(f"task mul has too many products for numbers={n}, length={length}")
        return sorted(found)

    return _over_numbers(
        "mul", numbers, length, n_outputs, samples, seed,
        value=lambda x: x.prod(axis=1),
        labels=products,
    )  # fmt: skip


def mod(
    numbers: int = 20,
    length: int = 2,
    modulus: int | None = None,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Modular addition y = 1 + (Σx mod N) of numbers 1 … N, or y = Σx mod M with `modulus` = M.

    **Arguments, returns, raises:** as for `add`; `modulus`: M ≥ 1. By default V_out is N (or M),
    for which order 0 vanishes identically when M divides N: `n_outputs` beyond that makes the
    plateau of the paper (theory.md, section 9).
    """
    if modulus is None:
        m, first = options.integer("mod", "numbers", numbers, 1, options.SYMBOL_LIMIT), 1
    else:
        m, first = options.integer("mod", "modulus", modulus, 1, options.SYMBOL_LIMIT), 0
    return _over_numbers(
        "mod", numbers, length, n_outputs, samples, seed,
        value=lambda x: first + x.sum(axis=1) % m,
        labels=lambda n, positions: range(first, first + m),
        more={"modulus": m},
    )  # fmt: skip


def composite_addition(
    anchors: int = 10,
    keys: int = 100,
    n_anchors: int = 2,
    first_anchor: int = 11,
    modulus: int | None = None,
    key_first: bool = False,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Composite addition y = a_1 + … + a_q + x of q anchors and one key from disjoint ranges.

    With the default ranges (anchors 11 … 20, keys 21 … 120, q = 2) this is F_rsn of arXiv
    2502.04375 with L = q + 1; with `modulus` = `keys` it is Task 4 of arXiv 2608.30315.

    **Arguments:** `anchors`, `keys`: how many there are of each; `n_anchors`: q ≥ 1;
    `first_anchor`: the smallest anchor ≥ 0, the keys follow the largest one; `modulus`: take the
    sum modulo M; `key_first`: put the key at the first position instead of the last;
    `n_outputs`, `samples`, `seed` as for `add`.

    **Returns:** a `Dataset` of length q + 1; tokens are the anchors, then the keys, by value.

    **Raises:** `UserError` for an option out of range, or when the sequences are too many.
    """
    task = "composite_addition"
    n_a = options.integer(task, "anchors", anchors, 1, options.SYMBOL_LIMIT)
    n_x = options.integer(task, "keys", keys, 1, options.SYMBOL_LIMIT)
    q = options.integer(task, "n_anchors", n_anchors, 1, options.LENGTH_LIMIT)
    first = options.integer(task, "first_anchor", first_anchor, 0, 10**12)
    if not isinstance(key_first, bool):
        raise UserError(f"option key_first of task {task} must be true or false, got {key_first!r}")
    draws, exact, how = options.sequences(task, [n_a] * q + [n_x], samples, seed)
    tokens = draws.copy()
    tokens[:, -1] += n_a
    sums = (first + tokens).sum(axis=1)
    if modulus is None:
        low = (q + 1) * first + n_a
        values = range(low, low + q * (n_a - 1) + n_x)
    else:
        m = options.integer(task, "modulus", modulus, 1, options.SYMBOL_LIMIT)
        sums, values = sums % m, range(m)
    if key_first:
        tokens = np.roll(tokens, 1, axis=1)
    return Dataset(
        tokens=tokens,
        labels=sums - values[0],
        n_tokens=n_a + n_x,
        token_names=tuple(str(first + i) for i in range(n_a + n_x)),
        label_names=options.outputs(task, [str(v) for v in values], n_outputs),
        name=task,
        exact=exact,
        provenance={
            "task": task, "anchors": n_a, "keys": n_x, "n_anchors": q, "first_anchor": first,
            "modulus": modulus, "key_first": key_first, **how,
        },
    )  # fmt: skip


def min_max(
    numbers: int = 20,
    n_outputs: int | None = None,
    samples: int | str = "all",
    seed: int = 0,
) -> Dataset:
    """Min–max: x = (c, x_1, x_2), y = max(x_1, x_2) if c = a, min(x_1, x_2) if c = b.

    **Arguments, returns, raises:** as for `add`; tokens are a, b, 1 … N, labels 1 … N. The
    argmax of the sum of the three order-0 signatures is right on every input.
    """
    n = options.integer("min_max", "numbers", numbers, 1, options.SYMBOL_LIMIT)
    draws, exact, how = options.sequences("min_max", [2, n, n], samples, seed)
    pair = draws[:, 1:]
    labels = np.where(draws[:, 0] == 0, pair.max(axis=1), pair.min(axis=1))
    names = [str(i) for i in range(1, n + 1)]
    return Dataset(
        tokens=draws + np.array([0, 2, 2]),
        labels=labels,
        n_tokens=n + 2,
        token_names=("a", "b", *names),
        label_names=options.outputs("min_max", names, n_outputs),
        name="min_max",
        exact=exact,
        provenance={"task": "min_max", "numbers": n, **how},
    )


def _over_numbers(
    task: str,
    numbers: int,
    length: int,
    n_outputs: int | None,
    samples: int | str,
    seed: int,
    *,
    value: Callable[[np.ndarray], np.ndarray],
    labels: Callable[[int, int], range | list[int]],
    more: dict[str, Any] | None = None,
) -> Dataset:
    n = options.integer(task, "numbers", numbers, 1, options.SYMBOL_LIMIT)
    positions = options.integer(task, "length", length, 1, options.LENGTH_LIMIT)
    draws, exact, how = options.sequences(task, [n] * positions, samples, seed)
    values = np.array(labels(n, positions), dtype=np.int64)
    return Dataset(
        tokens=draws,
        labels=np.searchsorted(values, value(draws + 1)),
        n_tokens=n,
        token_names=tuple(str(i) for i in range(1, n + 1)),
        label_names=options.outputs(task, [str(v) for v in values], n_outputs),
        name=task,
        exact=exact,
        provenance={"task": task, "numbers": n, "length": positions, **(more or {}), **how},
    )
