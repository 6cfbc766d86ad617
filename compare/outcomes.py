"""What became of a training: accuracy, and what embeddings look like without any signature."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from compare.comparison import parameter
from compare.similarity import embedding_norms, embeddings, pairs, pearson_correlation
from simulate.trajectory import Trajectory
from theory import interpret
from theory.data.dataset import Dataset
from theory.errors import UserError, nearest
from theory.language import Architecture
from theory.signatures import cosine_similarity, label_signature


def accuracy(trajectory: Trajectory, architecture: Architecture, dataset: Dataset) -> np.ndarray:
    """The probability that the largest logit is the label's, over the data: ([seed,] time).

    Of equal logits the first counts, as in `numpy.argmax`; a state with numbers that are not finite has none (nan).
    """
    lead = (len(trajectory.parameter_times),)
    lead = lead if trajectory.seeds is None else (len(trajectory.seeds), *lead)
    found = np.full(lead, np.nan)
    arrays = {
        name: parameter(trajectory, name).transpose("seed", "time", *spec.axes, missing_dims="ignore").to_numpy()
        for name, spec in architecture.parameters.items()
    }
    for index in np.ndindex(*lead):
        state = {name: array[index].astype(np.float64) for name, array in arrays.items()}
        logits = interpret.evaluate(architecture, state, dataset.tokens, xp=np)
        if np.all(np.isfinite(logits)):
            wrong = logits.argmax(axis=-1) != dataset.labels
            # The weights of the wrong ones: without any the accuracy is 1 exactly.
            found[index] = 1.0 - dataset.weights @ wrong.reshape(dataset.n_samples, -1).mean(axis=1)
    return found


def mean_cosine(trajectory: Trajectory, embedding: str) -> np.ndarray:
    """The mean cosine of the embeddings of two tokens, over all pairs: ([seed,] time)."""
    rows = embeddings(trajectory, embedding)
    return _per_state(rows, lambda state: float(pairs(cosine_similarity(state)).mean()))


def group_contrast(trajectory: Trajectory, embedding: str, dataset: Dataset, group: Sequence[str]) -> np.ndarray:
    """Mean cosine within a group of tokens less that between the group and all others: ([seed,] time).

    **Raises:** `UserError` for unknown tokens, fewer than two, or all of them.
    """
    inside = members(dataset, group)
    outside = np.setdiff1d(np.arange(dataset.n_tokens), inside)
    if len(inside) < 2 or not len(outside):
        raise UserError(f"a group is of at least two tokens and not of all, found {len(inside)} of {dataset.n_tokens}")

    def contrast(state: np.ndarray) -> float:
        cosines = cosine_similarity(state)
        return float(pairs(cosines[np.ix_(inside, inside)]).mean() - cosines[np.ix_(inside, outside)].mean())

    return _per_state(embeddings(trajectory, embedding), contrast)


def order_correlation(
    trajectory: Trajectory, embedding: str, dataset: Dataset, ordered: Sequence[str], *, cyclic: bool = False
) -> np.ndarray:
    """How embeddings keep the order of some tokens, as numbers or the days of a week: ([seed,] time).

    Pearson's correlation, over the pairs of `ordered`, of their cosine with the distance of their places, negated.

    **Arguments:** `ordered`: names of tokens in their order; `cyclic`: whether the last one is next to the first.

    **Raises:** `UserError` for unknown or repeated tokens, fewer than three, or in a cycle fewer than four.
    """
    numbers = members(dataset, ordered)
    least = 4 if cyclic else 3
    if len(set(ordered)) < max(least, len(ordered)):
        what = "a cycle" if cyclic else "an order"
        raise UserError(f"{what} is of at least {least} different tokens, found {', '.join(ordered)}")
    place = np.arange(len(numbers))
    distance = np.abs(place[:, None] - place)
    closeness = -pairs(np.minimum(distance, len(numbers) - distance) if cyclic else distance)
    rows = embeddings(trajectory, embedding)[..., numbers, :]
    return _per_state(rows, lambda state: pearson_correlation(pairs(cosine_similarity(state)), closeness))


def norm_growth(trajectory: Trajectory, embedding: str, dataset: Dataset, group: Sequence[str]) -> np.ndarray:
    """The mean norm of the embeddings of some tokens, over that at the first saved time: ([seed,] time)."""
    norms = embedding_norms(trajectory, embedding)[..., members(dataset, group)].mean(axis=-1)
    return norms / norms[..., :1]


def order_zero_accuracy(dataset: Dataset) -> float:
    """How often the largest entry of Σ_s φ_{x_s}^{y;0} is the label: what the sum of order-0 signatures alone decides.

    Ties within rounding count as wrong. Source: arXiv 2608.30315, the min–max task.
    """
    signature = label_signature(dataset, 0)
    rows = np.zeros((dataset.n_tokens, signature.array.shape[-1]))
    rows[list(signature.indices)] = signature.array
    total = rows[dataset.tokens].sum(axis=1)
    own = total[np.arange(dataset.n_samples), dataset.labels]
    total[np.arange(dataset.n_samples), dataset.labels] = -np.inf
    return 1.0 - float(dataset.weights[own <= total.max(axis=1) + 1e-12].sum())


def members(dataset: Dataset, group: Sequence[str]) -> np.ndarray:
    """The numbers of tokens, by name. **Raises:** `UserError` for a name that there is not."""
    index = {name: number for number, name in enumerate(dataset.token_names)}
    for name in group:
        if name not in index:
            raise UserError(f"there is no token {name!r}; {nearest(name, index)}")
    return np.array([index[name] for name in group], dtype=np.int64)


def _per_state(rows: np.ndarray, number: Callable[[np.ndarray], float]) -> np.ndarray:
    """A number of each state (token, width) of ([seed,] time, token, width); nan where that is not finite."""
    found = np.full(rows.shape[:-2], np.nan)
    for index in np.ndindex(*found.shape):
        if np.all(np.isfinite(rows[index])):
            found[index] = number(rows[index])
    return found
