"""Flows in which embeddings see signatures of few context tokens: the staircase as a cut of the dynamics.

Logits are multi-affine in the one-hot tokens of the positions: f(x) = Σ_S f̂_S, where f̂_S depends on the tokens at the
positions S and vanishes when one of them is taken away. An embedding's equation differentiates f̂_S at one of its positions
and leaves |S| − 1 context tokens, so that signatures of order ≤ m, to every power of the activations, are those of
f^{≤m+1} = Σ_{|S| ≤ m+1} f̂_S: the sum, over all degrees, of the terms that the staircase table lists under these orders. A token
read at a fixed place, such as x_L, counts where it is another position than the embedding's own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from simulate.fields import ExactField, as_data
from theory import interpret
from theory.errors import UserError
from theory.evaluation import Data
from theory.language import TOKEN, Architecture, add_axis_sizes

if TYPE_CHECKING:
    from theory.data import Dataset

# Each set of positions is one evaluation of the architecture.
_MOST_SETS = 2_000


@dataclass(frozen=True, eq=False)
class OrderField:
    """The exact flow, but embeddings see label and predicted signatures of at most `order` context tokens.

    dw_α/dt = Σ_{m ≤ order} A_m · (φ_α^{y;m} − φ_α^{p;m}) with the exact kernels A_m and the exact prediction p; every other
    parameter follows its exact equation. Both signatures are cut, since the label's alone would leave e_y − p without its
    centre. From order L − 1 on this is the exact flow. The cost is that of Σ_{k ≤ order + 1} binom(L, k) gradients.

    Source: arXiv 2608.30315, Theorem 1 with the prediction kept.
    """

    architecture: Architecture
    order: int
    kind: str = "cross_entropy"
    evaluation: ClassVar[str] = "exact"

    @property
    def name(self) -> str:
        """What results call it: "order-0"."""
        return f"order-{self.order}"

    @property
    def exact(self) -> ExactField:
        """The flow that every parameter but the embeddings follows."""
        return ExactField(self.architecture, self.kind)

    def __call__(self, t: Any, parameters: Mapping[str, Any], data: Data) -> dict[str, Any]:
        architecture = self.architecture
        embeddings = {name: parameters[name] for name in self.embeddings}
        sizes = add_axis_sizes(architecture, parameters, data.tokens.shape[1])
        dtype = next(iter(embeddings.values())).dtype
        one_hot = jax.nn.one_hot(data.tokens, sizes[TOKEN], dtype=dtype)
        sets, coefficients = _sets_of_positions(data.tokens.shape[1], self.order + 1)

        def cut_logits(embeddings: Mapping[str, Any]) -> Any:
            def at(present: Any) -> Any:
                return interpret.evaluate(architecture, {**parameters, **embeddings}, one_hot * present[:, None], jnp)

            return jnp.tensordot(jnp.asarray(coefficients, dtype), jax.vmap(at)(jnp.asarray(sets, dtype)), 1)

        logits = interpret.evaluate(architecture, parameters, data.tokens, jnp)
        residual = jax.grad(lambda f: -interpret.loss_of_logits(f, data.labels, data.weights, jnp, self.kind))(logits)
        _, pull_back = jax.vjp(cut_logits, embeddings)
        return self.exact(t, parameters, data) | pull_back(residual)[0]

    @property
    def embeddings(self) -> tuple[str, ...]:
        """The parameters that tokens look up."""
        return tuple(name for name, spec in self.architecture.parameters.items() if TOKEN in spec.axes)

    def data(self, dataset: Dataset) -> Data:
        """The dataset as jax arrays."""
        return as_data(self.architecture, dataset)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Parameter → axis names."""
        return self.exact.axes

    def loss(self, parameters: Mapping[str, Any], data: Data) -> Any:
        """The exact loss of the architecture."""
        return self.exact.loss(parameters, data)


def up_to_order(architecture: Architecture, order: int, loss: str = "cross_entropy") -> OrderField:
    """The flow in which embeddings see signatures of at most `order` context tokens (see `OrderField`).

    **Raises:** `UserError` for a negative order, or an architecture without a parameter that tokens look up.
    """
    if isinstance(order, bool) or not isinstance(order, int) or order < 0:
        raise UserError(f"the order of a signature is a whole number of at least 0, found {order}")
    made = OrderField(architecture, order, loss)
    if not made.embeddings:
        raise UserError(f"{architecture.name} has no parameter with the axis 'token' that signatures drive")
    return made


def _sets_of_positions(length: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Sets of at most `most` of the positions as rows of 0 and 1, and what each weighs in f^{≤most} = Σ_T c_T f_T.

    f_T is f with the tokens outside T taken away; by inclusion and exclusion c_T = (−1)^{most−|T|} binom(L−|T|−1, most−|T|).

    **Raises:** `UserError` when there are too many.
    """
    if most >= length:
        return np.ones((1, length)), np.ones(1)
    count = sum(math.comb(length, k) for k in range(most + 1))
    if count > _MOST_SETS:
        raise UserError(
            f"signatures of order {most - 1} of {length} positions need {count} evaluations of the architecture, more than "
            f"{_MOST_SETS}: take a lower order or shorter sequences"
        )
    rows, coefficients = [], []
    for size in range(most + 1):
        for chosen in itertools.combinations(range(length), size):
            rows.append([float(n in chosen) for n in range(length)])
            coefficients.append((-1) ** (most - size) * math.comb(length - size - 1, most - size))
    return np.array(rows), np.array(coefficients, dtype=float)
