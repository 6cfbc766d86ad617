"""Task 3 of arXiv 2608.30315: the parity of one anchor hidden among noise tokens."""

from __future__ import annotations

import numpy as np

from theory.data import options
from theory.data.dataset import Dataset


def anchor_parity(
    anchors: int = 10,
    noise: int = 40,
    length: int = 8,
    first_anchor: int = 11,
    n_outputs: int | None = None,
    samples: int | str = 10_000,
    seed: int = 0,
) -> Dataset:
    """Anchor–noise parity: one anchor at a uniform position among noise, y = 0 if even, else 1.

    **Arguments:** `anchors`, `noise`: how many tokens of each kind (the paper: 11 … 20 and
    21 … 60); `length`: L ≥ 1; `first_anchor`: the smallest anchor, the noise tokens follow the
    largest; `n_outputs`: V_out ≥ 2; `samples`: how many sequences are drawn and frozen, or "all"
    for the exact law of a small case; `seed`: of the draw.

    **Returns:** a `Dataset`; tokens are the anchors, then the noise, labels "even" and "odd".

    **Raises:** `UserError` for an option out of range, or when "all" sequences are too many.
    """
    task = "anchor_parity"
    n_a = options.integer(task, "anchors", anchors, 1, options.SYMBOL_LIMIT)
    n_r = options.integer(task, "noise", noise, 1, options.SYMBOL_LIMIT)
    positions = options.integer(task, "length", length, 1, options.LENGTH_LIMIT)
    first = options.integer(task, "first_anchor", first_anchor, 0, 10**12)
    box = [positions, n_a] + [n_r] * (positions - 1)
    draws, exact, how = options.sequences(task, box, samples, seed)
    place, anchor = draws[:, 0], draws[:, 1]
    # The anchor goes to its place by a swap with the first noise token, which is uniform anyway.
    tokens = np.concatenate([anchor[:, None], n_a + draws[:, 2:]], axis=1)
    row = np.arange(len(tokens))
    tokens[row, 0], tokens[row, place] = tokens[row, place], anchor
    return Dataset(
        tokens=tokens,
        labels=(first + anchor) % 2,
        n_tokens=n_a + n_r,
        token_names=tuple(str(first + i) for i in range(n_a + n_r)),
        label_names=options.outputs(task, ["even", "odd"], n_outputs),
        name=task,
        exact=exact,
        provenance={
            "task": task, "anchors": n_a, "noise": n_r, "length": positions,
            "first_anchor": first, **how,
        },
    )  # fmt: skip
