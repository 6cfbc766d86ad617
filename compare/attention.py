"""Where attention goes along a trajectory: mass and entropy, by classes of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import entr

from compare import comparison
from compare.comparison import jsonable
from simulate.trajectory import Trajectory
from theory.data.dataset import Dataset
from theory.errors import UserError, nearest
from theory.interpret import evaluate_node
from theory.language import POSITION, SAMPLE, Architecture, Softmax, add_axis_sizes

# The class of the tokens that no class names.
REST = "rest"
# Attention is evaluated for about so many tokens at a time.
_TOKENS = 100_000


@dataclass(frozen=True)
class AttentionProfile:
    """Mean attention over the data, by class of the token attended to; arrays ([seed,] time).

    With a_s the attention weights of one query on one sample, m_c = Σ_s a_s 1{x_s ∈ c} and H(p) = −Σ p ln p (nats):

    - `mass[c]`: the mean of m_c; `uniform_mass[c]`: a number, the same for weights equal over the places a query may see.
    - `entropy`: the mean of H(a); `uniform_entropy`: the mean of ln(number of places a query may see), its largest value.
    - `between`: the mean of H(m), m over the classes; `within[c]`: the mean of m_c H(a / m_c over s in c), so that
      `entropy` = `between` + Σ_c `within[c]`.

    Means weigh samples with their probability, and queries and any other axis (heads) equally.
    """

    name: str
    softmax: str
    times: np.ndarray
    classes: Mapping[str, tuple[str, ...]]
    mass: Mapping[str, np.ndarray]
    uniform_mass: Mapping[str, float]
    entropy: np.ndarray
    uniform_entropy: float
    between: np.ndarray
    within: Mapping[str, np.ndarray]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "softmax": self.softmax,
            "times": jsonable(self.times),
            "classes": {name: list(members) for name, members in self.classes.items()},
            "mass": jsonable(self.mass),
            "uniform_mass": jsonable(self.uniform_mass),
            "entropy": jsonable(self.entropy),
            "uniform_entropy": self.uniform_entropy,
            "between": jsonable(self.between),
            "within": jsonable(self.within),
        }


def attention_profile(
    trajectory: Trajectory,
    architecture: Architecture,
    dataset: Dataset,
    classes: Mapping[str, Iterable[str]] | None = None,
    *,
    softmax: str | None = None,
) -> AttentionProfile:
    """Attention mass and entropy by token class along a trajectory.

    **Arguments:** `classes`: name → names of tokens, disjoint; tokens in none of them are the class "rest" (all of them
    where no class is given); `softmax`: which one, as `architecture.nonlinearities` calls it, the first by default.

    **Raises:** `UserError` for an architecture without a softmax over positions, an unknown softmax or token, or classes
    that overlap. Source: A_anchor and A_noise of arXiv 2608.30315, section on attention.
    """
    name, node = softmax_over_positions(architecture, softmax)
    members, of_token = _classes(dataset, classes or {})
    names = list(members)
    arrays = {
        key: comparison.parameter(trajectory, key)
        .transpose("seed", "time", *spec.axes, missing_dims="ignore")
        .to_numpy()
        for key, spec in architecture.parameters.items()
    }
    lead = next(iter(arrays.values())).shape[: 1 if trajectory.seeds is None else 2]
    numbers = np.full((*lead, 2 * len(names) + 2), np.nan)
    for index in np.ndindex(*lead):
        state = {key: array[index].astype(np.float64) for key, array in arrays.items()}
        if all(np.all(np.isfinite(array)) for array in state.values()):
            numbers[index] = _means(architecture, state, dataset, node, of_token, len(names))
    sizes = add_axis_sizes(
        architecture, {key: array[(0,) * len(lead)] for key, array in arrays.items()}, dataset.length
    )
    uniform = dataset.weights @ _of_samples(*_uniform(node, sizes), node.over, of_token[dataset.tokens], len(names))
    n = len(names)
    return AttentionProfile(
        name=trajectory.name,
        softmax=name,
        times=trajectory.parameter_times,
        classes=members,
        mass={c: numbers[..., i] for i, c in enumerate(names)},
        uniform_mass={c: float(uniform[i]) for i, c in enumerate(names)},
        entropy=numbers[..., 2 * n + 1],
        uniform_entropy=float(uniform[2 * n + 1]),
        between=numbers[..., 2 * n],
        within={c: numbers[..., n + i] for i, c in enumerate(names)},
    )


def softmax_over_positions(architecture: Architecture, wanted: str | None = None) -> tuple[str, Softmax]:
    """The softmax over positions of that name, or the first one. **Raises:** `UserError` when there is none."""
    found = {
        name: node
        for name, node in architecture.nonlinearities.items()
        if isinstance(node, Softmax) and architecture.root(node.over) == POSITION
    }
    if not found:
        raise UserError(f"{architecture.name} has no softmax over positions, so it attends to nothing")
    if wanted is not None and wanted not in found:
        raise UserError(
            f"{architecture.name} has no softmax over positions called {wanted!r}; {nearest(wanted, found)}"
        )
    name = next(iter(found)) if wanted is None else wanted
    return name, found[name]


def _classes(dataset: Dataset, classes: Mapping[str, Iterable[str]]) -> tuple[dict[str, tuple[str, ...]], np.ndarray]:
    """Class → its tokens, the rest included, and the number of each token's class (token,)."""
    index = {name: i for i, name in enumerate(dataset.token_names)}
    of_token = np.full(dataset.n_tokens, -1)
    members: dict[str, tuple[str, ...]] = {}
    for number, (name, tokens) in enumerate(classes.items()):
        if isinstance(tokens, str):
            raise UserError(f"class {name!r} must be a list of tokens, found {tokens!r}")
        members[name] = tuple(tokens)
        for token in members[name]:
            if token not in index:
                raise UserError(f"class {name!r} names no token: {token!r}; {nearest(str(token), index)}")
            if of_token[index[token]] >= 0:
                raise UserError(f"token {token!r} is named twice in the classes: a token has one class")
            of_token[index[token]] = number
    rest = tuple(dataset.token_names[i] for i in np.flatnonzero(of_token < 0))
    if rest:
        if REST in members:
            raise UserError(f"the class {REST!r} is that of the tokens in no class: call yours otherwise")
        of_token[of_token < 0] = len(members)
        members[REST] = rest
    return members, of_token


def _means(
    architecture: Architecture,
    state: Mapping[str, np.ndarray],
    dataset: Dataset,
    node: Softmax,
    of_token: np.ndarray,
    n_classes: int,
) -> np.ndarray:
    """Means over the data of mass and entropy within each class, entropy between them, and entropy."""
    total = np.zeros(2 * n_classes + 2)
    step = max(1, _TOKENS // dataset.length)
    for start in range(0, dataset.n_samples, step):
        chosen = slice(start, start + step)
        tokens = dataset.tokens[chosen]
        array, axes = evaluate_node(architecture, state, tokens, node)
        total += dataset.weights[chosen] @ _of_samples(array, axes, node.over, of_token[tokens], n_classes)
    return total


def _uniform(node: Softmax, sizes: Mapping[str, int]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Weights that are equal over the places that the mask leaves, and the names of their axes."""
    if node.mask is None:
        allowed, axes = np.ones(sizes[node.over]), (node.over,)
    else:
        allowed, axes = node.mask.build(sizes), node.mask.axes
    return allowed / allowed.sum(axis=axes.index(node.over), keepdims=True), axes


def _of_samples(
    array: np.ndarray, axes: tuple[str, ...], over: str, class_of: np.ndarray, n_classes: int
) -> np.ndarray:
    """Each sample's numbers (sample, number), averaged over queries and heads; `class_of`: (sample, position)."""
    weights = np.moveaxis(array, axes.index(over), -1)
    if SAMPLE not in axes:
        weights = weights[None]
    weights = weights.reshape(len(weights), -1, weights.shape[-1])
    indicator = (class_of[:, :, None] == np.arange(n_classes)).astype(np.float64)
    mass = np.clip(weights @ indicator, 0.0, 1.0)
    # Σ_{s ∈ c} −a ln a = m_c H(a / m_c) − m_c ln m_c, and no less than the last term but for rounding.
    within = np.maximum(entr(weights) @ indicator - entr(mass), 0.0)
    between = entr(mass).sum(axis=-1, keepdims=True)
    return np.concatenate([mass, within, between, between + within.sum(-1, keepdims=True)], axis=-1).mean(axis=1)
