"""Vector fields: the right-hand sides that flows integrate, as jax functions of parameters and data.

A field (see `simulate.flow.VectorField`) is called as `field(t, parameters, data)` and returns dθ/dt by name. The data are
an argument, never closed over, so that equal shapes share one compilation.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from simulate.flow import VectorField
from theory import evaluation, interpret, moment_evaluation
from theory.architectures import check_labels
from theory.errors import UserError, nearest
from theory.evaluation import Data
from theory.evolution import EvolutionEquations, derive
from theory.language import Architecture
from theory.moments import DENSE_ENTRIES, Moment, MomentCounter, SparseMoment, counting_work, needed_moments

if TYPE_CHECKING:
    from theory.data import Dataset

jax.tree_util.register_dataclass(Data, data_fields=["tokens", "labels", "weights"], meta_fields=[])
jax.tree_util.register_dataclass(SparseMoment, data_fields=["ids", "values"], meta_fields=[])

Parameters = Mapping[str, Any]

# Entries that are counted without being asked to: some ten seconds of work.
_COUNTED_UNASKED = 300_000_000

KINDS = ("exact", "cut-logits", "kept-prediction", "expanded")


@dataclass(frozen=True, eq=False)
class ExactField:
    """−∇L by automatic differentiation of the interpreted architecture."""

    architecture: Architecture
    kind: str = "cross_entropy"
    name: str = "exact"
    evaluation: ClassVar[str] = "exact"

    def __call__(self, t: Any, parameters: Parameters, data: Data) -> dict[str, Any]:
        gradient = jax.grad(lambda p: self.loss(p, data))(dict(parameters))
        return {name: -value for name, value in gradient.items()}

    def data(self, dataset: Dataset) -> Data:
        """The dataset as jax arrays."""
        return as_data(self.architecture, dataset)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Parameter → axis names."""
        return {name: spec.axes for name, spec in self.architecture.parameters.items()}

    def loss(self, parameters: Parameters, data: Data) -> Any:
        """The exact loss of the architecture."""
        arrays = (data.tokens, data.labels, data.weights)
        return interpret.loss(self.architecture, parameters, *arrays, xp=jnp, kind=self.kind)


@dataclass(frozen=True, eq=False)
class DerivedField:
    """The derived equations, evaluated on samples."""

    equations: EvolutionEquations
    name: str
    evaluation: ClassVar[str] = "samples"

    @cached_property
    def shared(self) -> EvolutionEquations:
        """The equations as they are evaluated, each product once."""
        return self.equations.shared()

    def __call__(self, t: Any, parameters: Parameters, data: Data) -> dict[str, Any]:
        return evaluation.right_hand_sides(self.shared, parameters, data, jnp)

    def data(self, dataset: Dataset) -> Data:
        """The dataset as jax arrays."""
        return as_data(self.equations.architecture, dataset)

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Parameter → axis names."""
        return {name: equation.axes for name, equation in self.equations.items()}

    def loss(self, parameters: Parameters, data: Data) -> Any:
        """The exact loss of the architecture (not of the cut logits), so that flows are compared in one quantity."""
        return ExactField(self.equations.architecture, self.equations.loss).loss(parameters, data)


@dataclass(frozen=True)
class MomentData:
    """Moments in the order of `needed_moments`, the length of sequences, and samples to measure the loss on."""

    moments: tuple[Any, ...]
    length: int
    samples: Data


jax.tree_util.register_dataclass(MomentData, data_fields=["moments", "samples"], meta_fields=["length"])


@dataclass(frozen=True, eq=False)
class MomentField:
    """Fully expanded equations, evaluated from moments of the data: a step costs the same for any number of samples.

    **Arguments:** `equations`: from `theory.derive` with keep=(); `dense_entries`: moments of more entries are stored sparsely;
    `loss_samples`: the loss is measured, at save times, on the samples, or on this many of them drawn by weight.
    """

    equations: EvolutionEquations
    name: str
    dense_entries: int = DENSE_ENTRIES
    loss_samples: int = 20_000
    evaluation: ClassVar[str] = "moments"

    @cached_property
    def moments(self) -> tuple[Moment, ...]:
        """The moments that the equations need."""
        return needed_moments(self.equations)

    def __call__(self, t: Any, parameters: Parameters, data: MomentData) -> dict[str, Any]:
        values = dict(zip(self.moments, data.moments, strict=True))
        return moment_evaluation.right_hand_sides(self.equations, parameters, values, data.length, jnp)

    def data(self, dataset: Dataset) -> MomentData:
        """The dataset's moments, counted once for each dataset."""
        return self.from_counter(*_counted(self, dataset))

    def from_counter(self, counter: MomentCounter, samples: Dataset) -> MomentData:
        """Moments that were counted elsewhere, over data that do not fit in memory; `samples` for measuring the loss."""
        values = counter.values()
        arrays = tuple(jax.tree.map(jnp.asarray, values[moment]) for moment in self.moments)
        return MomentData(arrays, samples.length, as_data(self.equations.architecture, samples))

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Parameter → axis names."""
        return {name: equation.axes for name, equation in self.equations.items()}

    def loss(self, parameters: Parameters, data: MomentData) -> Any:
        """The exact loss of the architecture, so that flows are compared in one quantity."""
        return ExactField(self.equations.architecture, self.equations.loss).loss(parameters, data.samples)


@functools.lru_cache(maxsize=16)
def _counted(field: MomentField, dataset: Dataset) -> tuple[MomentCounter, Dataset]:
    counter = MomentCounter(field.moments, dataset.sizes, field.dense_entries)
    counter.add(dataset.tokens, dataset.labels, dataset.weights)
    distinct = dataset.merge_duplicates()
    return counter, distinct if distinct.n_samples <= field.loss_samples else distinct.sample(field.loss_samples)


def exact(architecture: Architecture, loss: str = "cross_entropy") -> ExactField:
    """The exact gradient flow of an architecture: the reference that truncated flows are held against."""
    return ExactField(architecture, loss)


def from_samples(equations: EvolutionEquations, name: str | None = None) -> DerivedField:
    """The field of derived equations, evaluated on samples.

    **Arguments:** `equations`: from `theory.derive`; `name`: by default what they are: "derived", "cut-logits",
    "kept-prediction" or "expanded".
    """
    if equations.degree is None:
        default = "derived"
    else:
        default = {"of-truncated-logits": "cut-logits", "kept": "kept-prediction"}.get(equations.prediction, "expanded")
    return DerivedField(equations, name or default)


def from_moments(equations: EvolutionEquations, name: str | None = None, **options: int) -> MomentField:
    """The field of fully expanded equations, evaluated from moments of the data (see `MomentField`, which has the options).

    **Raises:** `UserError` when the equations keep a nonlinearity, whose value depends on the single sample.
    """
    made = MomentField(equations, name or "expanded", **options)
    _ = made.moments
    return made


def evaluations(made: VectorField, dataset: Dataset, asked: str = "auto") -> list[VectorField]:
    """The ways to evaluate a field's right-hand side: as it is, and from moments where it is fully expanded.

    **Arguments:** `asked`: "samples" or "moments" leaves that one (for a field that moments determine).

    **Raises:** `UserError` when moments are asked for and do not determine the equations.
    """
    if not isinstance(made, DerivedField) or made.name != "expanded" or asked == "samples":
        return [made]
    try:
        moments = from_moments(made.equations, made.name)
    except UserError:
        if asked == "moments":
            raise
        return [made]
    if asked == "moments":
        return [moments]
    work = counting_work(moments.moments, dataset.n_samples, dataset.length)
    return [made, moments] if work <= _COUNTED_UNASKED else [made]


def field(
    architecture: Architecture,
    kind: str,
    degree: int | None = None,
    keep: tuple[str, ...] = (),
    loss: str = "cross_entropy",
) -> VectorField:
    """A field by the name of its flow (theory of truncated flows: how far each reaches).

    **Arguments:** `kind`: "exact"; "cut-logits" (logits expanded up to `degree` of the loss, the exact loss of these: a
    gradient flow that stays bounded); "kept-prediction" (∂f cut, p of the untruncated logits: not a gradient flow);
    "expanded" (everything, blows up in finite time after escape); `degree`: of the loss, for all but "exact"; `keep`: names of
    nonlinearities to keep besides the prediction.

    **Raises:** `UserError` for an unknown kind, a missing or impossible degree, or what `theory.derive` refuses.
    """
    if kind not in KINDS:
        raise UserError(f"unknown flow '{kind}'; {nearest(kind, KINDS)}")
    if kind == "exact":
        return exact(architecture, loss)
    if degree is None:
        raise UserError(f"the flow '{kind}' needs a degree (of the loss) to expand to")
    kept = keep if kind == "expanded" else (*keep, "prediction")
    prediction = {"cut-logits": "of-truncated-logits", "kept-prediction": "kept", "expanded": "expanded"}[kind]
    equations = derive(architecture, degree, kept, loss=loss, prediction=prediction)  # pyright: ignore[reportArgumentType]
    return from_samples(equations, kind)


def as_data(architecture: Architecture, dataset: Dataset) -> Data:
    """A dataset as jax arrays, checked against the architecture.

    **Raises:** `UserError` when one has a label per position and the other one per sequence.
    """
    check_labels(architecture, dataset)
    weights = np.asarray(dataset.weights, dtype=np.float64)
    return Data(jnp.asarray(dataset.tokens), jnp.asarray(dataset.labels), jnp.asarray(weights))
