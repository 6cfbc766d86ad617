"""Task 1 of arXiv 2608.30315: the label follows a prescribed law, whatever the context."""

from __future__ import annotations

import numpy as np

from theory.data import options
from theory.data.dataset import Dataset

LAWS = ("uniform", "normal", "poisson", "exponential")
LABELS = ("sampled", "exact")


def law_probabilities(
    law: str,
    largest: int = 50,
    *,
    mean: float = 25.0,
    deviation: float = 1.0,
    rate: float = 10.0,
    decay: float = 5.0,
) -> np.ndarray:
    """The prescribed law p_a over the labels 0 … `largest`, normalised on that range.

    **Arguments:** `law`: uniform; normal, ∝ exp(−(y − mean)²/(2 deviation²)); poisson,
    ∝ rate^y / y!; or exponential, ∝ exp(−decay · y). The other laws' numbers are ignored.

    **Returns:** probabilities (label,), sum 1.

    **Raises:** `UserError` for an unknown law, or `deviation`, `rate` or `decay` ≤ 0.
    """
    task = "label_law"
    options.choice(task, "law", law, LAWS)
    y = np.arange(options.integer(task, "largest", largest, 1, options.SYMBOL_LIMIT) + 1, dtype=np.float64)
    centre = options.number(task, "mean", mean)
    width = options.number(task, "deviation", deviation, above=0)
    intensity = options.number(task, "rate", rate, above=0)
    slope = options.number(task, "decay", decay, above=0)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(y[1:]))])
    logarithm = {
        "uniform": np.zeros_like(y),
        "normal": -0.5 * ((y - centre) / width) ** 2,
        "poisson": y * np.log(intensity) - log_factorial,
        "exponential": -slope * y,
    }[law]
    weights = np.exp(logarithm - logarithm.max())
    return weights / weights.sum()


def label_law(
    law: str = "uniform",
    largest: int = 50,
    labels: str = "sampled",
    mean: float = 25.0,
    deviation: float = 1.0,
    rate: float = 10.0,
    decay: float = 5.0,
    n_outputs: int | None = None,
    seed: int = 0,
) -> Dataset:
    """Task 1: x = (a, x_1, x_2), all pairs of 0 … `largest`, the label drawn from a prescribed law.

    **Arguments:** `law`: uniform, normal, poisson or exponential, with `mean`, `deviation`,
    `rate`, `decay` as in `law_probabilities`; `largest`: the largest context token and label (the
    paper: 50); `labels`: "sampled" draws one label per sequence with `seed` and freezes it, as the
    paper does, "exact" gives every sequence all labels with their probabilities as weights;
    `n_outputs`: V_out ≥ `largest` + 1.

    **Returns:** a `Dataset`; the last token is the anchor a, token and label c < a are the
    number c.

    **Raises:** `UserError` for an option out of range or too many rows.
    """
    task = "label_law"
    options.choice(task, "labels", labels, LABELS)
    p = law_probabilities(law, largest, mean=mean, deviation=deviation, rate=rate, decay=decay)
    size = len(p)
    if labels == "exact":
        support = np.flatnonzero(p)
        rows, _, _ = options.sequences(task, [size, size, len(support)], "all", seed)
        context, y = rows[:, :2], support[rows[:, 2]]
        weights = p[y] / p.sum() / size**2
    else:
        context, _, _ = options.sequences(task, [size, size], "all", seed)
        y = np.random.default_rng(seed).choice(size, size=len(context), p=p)
        weights = None
    anchor = np.full((len(context), 1), size)
    names = [str(i) for i in range(size)]
    return Dataset(
        tokens=np.concatenate([anchor, context], axis=1),
        labels=y,
        weights=weights,  # type: ignore[arg-type]
        n_tokens=size + 1,
        token_names=(*names, "a"),
        label_names=options.outputs(task, names, n_outputs),
        name=f"label_law {law}",
        exact=labels == "exact",
        provenance={
            "task": task, "law": law, "largest": size - 1, "labels": labels, "mean": mean,
            "deviation": deviation, "rate": rate, "decay": decay, "seed": seed,
        },
    )  # fmt: skip
