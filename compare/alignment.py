"""How well embeddings align with the signatures of each order over time: the curves of the staircase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compare.comparison import jsonable
from compare.probes import probe_correlation
from compare.similarity import SignatureCorrelation, signature_correlation, signature_similarity
from simulate.trajectory import Trajectory
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.signatures import label_signature

# Entries of a signature up to which probes are fitted: about a second for each time.
MOST_ENTRIES = 500_000
# Each time costs (folds + 1) × starts fits of a probe.
FOLDS, STARTS = 5, 2


@dataclass(frozen=True)
class OrderAlignment:
    """Alignment of embedding similarity with the signatures of one order: `values` ([seed,] time), 1 where they agree.

    `measure` says what it is: for order 0 Pearson's correlation of similarities, ρ_(0), or 1 − MSE where that is undefined;
    above, the correlation of a fitted probe over tokens that it was not fitted on (`compare.probes`).
    """

    order: int
    measure: str
    times: np.ndarray
    values: np.ndarray

    @classmethod
    def of_correlation(cls, correlation: SignatureCorrelation) -> OrderAlignment:
        """The alignment with order 0."""
        name = "ρ₍₀₎, Pearson" if correlation.measure == "pearson" else "1 − MSE, Pearson undefined"
        return cls(0, name, correlation.times, getattr(correlation, correlation.measure))

    def to_dict(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "measure": self.measure,
            "times": jsonable(self.times),
            "values": jsonable(self.values),
        }


def order_alignments(
    trajectory: Trajectory, dataset: Dataset, *, embedding: str, orders: Sequence[int], probes: int = 16
) -> tuple[OrderAlignment, ...]:
    """The alignment of a trajectory's embeddings with the label signatures of each order.

    **Arguments:** `embedding`: the parameter; `orders`: 0 … L − 1; `probes`: at how many of the stored times, evenly
    spread, probes are fitted (order 0 needs none and is taken at all times).

    **Raises:** `UserError` for an order that does not exist, that has too few tokens for two folds, or whose signature has
    more than `MOST_ENTRIES` entries.
    """
    found = []
    for order in orders:
        if order == 0:
            correlation = signature_correlation(trajectory, signature_similarity(dataset), embedding=embedding)
            found.append(OrderAlignment.of_correlation(correlation))
            continue
        entries = dataset.n_tokens ** (order + 1) * dataset.n_labels
        if entries > MOST_ENTRIES:
            raise UserError(
                f"a probe of order {order} needs a signature of {entries:,} entries, more than {MOST_ENTRIES:,}: "
                "take a lower order"
            )
        signature = label_signature(dataset, order, storage="dense")
        folds = min(FOLDS, len(signature.tokens) // 3)
        count = len(trajectory.parameter_times)
        at = np.unique(np.linspace(0, count - 1, min(probes, count)).round().astype(int))
        probed = probe_correlation(
            trajectory, signature, embedding=embedding, at=at.tolist(), folds=folds, starts=STARTS
        )
        found.append(OrderAlignment(order, "fitted probe, held-out tokens", probed.times, probed.held_out))
    return tuple(found)
