"""Every measure that a claim can name, and what each asks of the claim, the architecture and the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from compare.attention import softmax_over_positions
from compare.label_laws import readout
from compare.measures import of_correlations, of_embeddings, of_flows
from compare.measures.evidence import Take
from compare.similarity import unembedding_parameter
from theory.data.dataset import Dataset
from theory.errors import UserError, nearest
from theory.language import LABEL, TOKEN, Architecture

if TYPE_CHECKING:
    from simulate.experiment import ClaimSection


@dataclass(frozen=True)
class Measure:
    """How something is measured, and where it can be.

    - `take`: measures it.
    - `about`: "agreement" of a flow with a training, a "flow" alone, a "state" (of the training, or of a flow that the claim
      names), or the "band" of `[noise]`.
    - `rows`: of the rows of a parameter along this axis. `order`: of the label signature that it needs.
    - `tokens`, `frequency`: whether the claim has to name them, may, or (None) must not.
    - `places`: how many different tokens it needs at least, where their order counts.
    - `rates`: the least number of learning rates. `cut`: about a flow cut at a signature order.
    - `requires`: raises `UserError` for an architecture or data of which it cannot be taken.
    """

    take: Take
    about: Literal["agreement", "flow", "state", "band"] = "state"
    rows: str | None = None
    order: int = 0
    tokens: Literal["needed", "allowed"] | None = None
    frequency: Literal["needed", "allowed"] | None = None
    places: int = 0
    rates: int = 1
    cut: bool = False
    requires: Callable[[Architecture, Dataset], object] = lambda architecture, dataset: None

    @property
    def of_a_flow(self) -> bool:
        """Whether a claim that names no flow is about the first one."""
        return self.about in ("agreement", "flow")

    def check(self, claim: ClaimSection, architecture: Architecture, dataset: Dataset) -> None:
        """Refuse what cannot be measured in this architecture, on these data. **Raises:** `UserError`."""
        if self.rows is not None and claim.parameter is not None:
            axes = architecture.parameters[claim.parameter].axes
            if self.rows not in axes or len(axes) < 2:
                raise UserError(f"{claim.parameter} with the axes ({', '.join(axes)}) has no rows of {self.rows}s")
        if self.cut and not (claim.flow or "").startswith("order-"):
            raise UserError('it is about a flow up to a signature order: set flow = "order-0", say')
        if self.order > 0 and (dataset.labels_per_position or dataset.length <= self.order):
            raise UserError(f"dataset {dataset.name!r} has no label signature of order {self.order}")
        self.requires(architecture, dataset)
        if self.tokens == "needed" and not claim.tokens:
            raise UserError("it needs the key tokens: names of the tokens that it is about")
        if claim.tokens and self.tokens is None:
            raise UserError(f"it takes no tokens, unlike {_those(lambda measure: measure.tokens)}")
        if claim.frequency is not None and self.frequency is None:
            raise UserError(f"it takes no frequency, unlike {_those(lambda measure: measure.frequency)}")
        if self.places and len(set(claim.tokens)) < max(self.places, len(claim.tokens)):
            found = ", ".join(claim.tokens)
            raise UserError(f"an order is of at least {self.places} different tokens, found {found}")
        if self.frequency == "needed" and claim.frequency is None:
            raise UserError("it needs the key frequency: the k of ρ_(1),k")
        highest = dataset.n_tokens // 2
        if (claim.frequency or 0) > highest:
            raise UserError(f"the frequency is at most {highest}, half the number of tokens, found {claim.frequency}")
        for token in claim.tokens:
            if token not in dataset.token_names:
                raise UserError(f"there is no token {token!r}; {nearest(token, dataset.token_names)}")


def _those(has: Callable[[Measure], object]) -> str:
    return ", ".join(name for name, measure in MEASURES.items() if has(measure))


def _reads_out(architecture: Architecture, dataset: Dataset) -> None:
    readout(architecture)


def _has_an_unembedding(architecture: Architecture, dataset: Dataset) -> None:
    unembedding_parameter(architecture)


def _attends(architecture: Architecture, dataset: Dataset) -> None:
    softmax_over_positions(architecture)


def _is_of_numbers(architecture: Architecture, dataset: Dataset) -> None:
    of_embeddings.numbers_task(dataset)


MEASURES: dict[str, Measure] = {
    "worst-relative-error": Measure(of_flows.worst_error, "agreement"),
    "relative-error": Measure(of_flows.of_series("relative_error", largest=True), "agreement"),
    "token-error": Measure(of_flows.token_error, "agreement", rows=TOKEN),
    "direction-cosine": Measure(of_flows.of_series("direction_cosine", largest=False), "agreement"),
    "displacement-cosine": Measure(of_flows.of_series("displacement_cosine", largest=False), "agreement"),
    "frequent-token-error": Measure(of_flows.of_band("relative_error", 0, largest=True), "agreement", rows=TOKEN),
    "rare-token-error": Measure(of_flows.of_band("relative_error", -1, largest=True), "agreement", rows=TOKEN),
    "frequent-token-cosine": Measure(
        of_flows.of_band("displacement_cosine", 0, largest=False), "agreement", rows=TOKEN
    ),
    "rare-token-cosine": Measure(of_flows.of_band("displacement_cosine", -1, largest=False), "agreement", rows=TOKEN),
    "half-loss-shift": Measure(of_flows.half_loss_shift, "agreement"),
    "escape-shift": Measure(of_flows.first_escape_shift, "agreement"),
    "plateau-shift": Measure(of_flows.plateau_shift, "agreement"),
    "departure-time": Measure(of_flows.departure_time, "agreement", cut=True),
    "departure-shift": Measure(of_flows.departure_shift, "agreement", cut=True),
    "procrustes-residual": Measure(of_flows.procrustes_residual, "agreement", rows=TOKEN),
    "error-ratio": Measure(of_flows.error_ratio, "agreement", rates=2),
    "error-slope": Measure(of_flows.error_slope, "agreement", rates=2),
    "last-good-time": Measure(of_flows.last_good_time, "flow"),
    "band-coverage": Measure(of_flows.band_coverage, "band"),
    "signature-correlation-peak": Measure(of_correlations.correlation_peak),
    "signature-correlation": Measure(of_correlations.correlation),
    "signature-correlation-drop": Measure(of_correlations.correlation_drop),
    "signature-rank-correlation": Measure(of_correlations.rank_correlation),
    "centred-signature-correlation-peak": Measure(of_correlations.CENTRED.peak, rows=TOKEN),
    "centred-signature-correlation": Measure(of_correlations.CENTRED.at_time, rows=TOKEN),
    "trace-back-correlation-peak": Measure(of_correlations.TRACED.peak, rows=LABEL, requires=_has_an_unembedding),
    "trace-back-correlation": Measure(of_correlations.TRACED.at_time, rows=LABEL, requires=_has_an_unembedding),
    "centred-trace-back-correlation-peak": Measure(
        of_correlations.CENTRED_TRACED.peak, rows=LABEL, requires=_has_an_unembedding
    ),
    "centred-trace-back-correlation": Measure(
        of_correlations.CENTRED_TRACED.at_time, rows=LABEL, requires=_has_an_unembedding
    ),
    "order-1-probe": Measure(of_embeddings.probe(1), rows=TOKEN, order=1),
    "order-1-probe-pairs": Measure(of_embeddings.probe(1, "pairs"), rows=TOKEN, order=1),
    "order-2-probe": Measure(of_embeddings.probe(2), rows=TOKEN, order=2),
    "order-2-probe-pairs": Measure(of_embeddings.probe(2, "pairs"), rows=TOKEN, order=2),
    "order-2-advantage": Measure(of_embeddings.order_two_advantage, rows=TOKEN, order=2),
    "order-1-gain": Measure(of_embeddings.order_one_gain, rows=TOKEN, order=1),
    "fourier-correlation": Measure(of_embeddings.fourier("of"), rows=TOKEN, order=1, frequency="needed"),
    "fourier-best": Measure(of_embeddings.fourier("best"), rows=TOKEN, order=1, frequency="allowed"),
    "fourier-winner": Measure(of_embeddings.fourier("winner"), rows=TOKEN, order=1, frequency="allowed"),
    "fourier-peak": Measure(of_embeddings.fourier_peak, rows=TOKEN),
    "effective-rank": Measure(of_embeddings.rank("entropy"), rows=TOKEN),
    "participation-ratio": Measure(of_embeddings.rank("participation"), rows=TOKEN),
    "label-law-pearson": Measure(of_embeddings.label_law("pearson"), tokens="allowed", requires=_reads_out),
    "label-law-kl": Measure(of_embeddings.label_law("kl"), tokens="allowed", requires=_reads_out),
    "label-law-jsd": Measure(of_embeddings.label_law("jsd"), tokens="allowed", requires=_reads_out),
    "attention-entropy": Measure(of_embeddings.attention_entropy, requires=_attends),
    "attention-mass": Measure(of_embeddings.attention_mass, tokens="needed", requires=_attends),
    "accuracy": Measure(of_embeddings.label_accuracy),
    "accuracy-peak": Measure(of_embeddings.accuracy_peak),
    "mean-cosine": Measure(of_embeddings.cosine_of_pairs, rows=TOKEN),
    "group-contrast": Measure(of_embeddings.contrast, rows=TOKEN, tokens="needed"),
    "ordered-similarity": Measure(of_embeddings.kept_order(cyclic=False), rows=TOKEN, tokens="needed", places=3),
    "cyclic-similarity": Measure(of_embeddings.kept_order(cyclic=True), rows=TOKEN, tokens="needed", places=4),
    "norm-growth": Measure(of_embeddings.growth, rows=TOKEN, tokens="needed"),
    "order-0-accuracy": Measure(of_embeddings.signatures_decide, requires=_is_of_numbers),
}
