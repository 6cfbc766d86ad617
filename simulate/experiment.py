"""The TOML experiment file: one description from which flow and training both start.

Every value is checked when the file is loaded, before any work; a mistake is named with its line.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from simulate.events import Event, converged, loss_falls, norm_passes
from simulate.schedule import Schedule
from simulate.solvers import solver_description
from simulate.variants import chosen
from theory.architectures import check_labels
from theory.errors import UserError, file_words, nearest, words
from theory.limits import check_parameters
from theory.values import parse_value

if TYPE_CHECKING:
    from simulate.costs import Cost
    from simulate.flow import VectorField
    from theory.data.dataset import Dataset
    from theory.language import Architecture

FlowKind = Literal["exact", "cut-logits", "kept-prediction", "expanded", "modified", "heavy-ball"]
# Of the exact flow at a finite learning rate, see simulate.modified.
FINITE_RATE: tuple[str, ...] = ("modified", "heavy-ball")
FAILURES: tuple[str, ...] = ("blow-up", "max-steps", "step-collapse", "non-finite", "solver-failed")


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Quantile = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ArchitectureSection(_Section):
    """`[architecture]`: a stock name or `file.py:function`, and the function's options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    name: str


class DataSection(_Section):
    """`[data]`: a task of `theory.data` or a file, and the task's options."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)
    task: str


class InitialSection(_Section):
    """`[initial]`: W_ij ~ N(0, d_in^(−2 gamma)), or one standard deviation `scale` for all."""

    gamma: float | None = Field(None, allow_inf_nan=False)
    scale: Positive | None = None
    seed: Seed = 0

    @model_validator(mode="after")
    def _one_of_two(self) -> InitialSection:
        if (self.gamma is None) == (self.scale is None):
            raise ValueError("needs exactly one of gamma and scale")
        return self


class EventSection(_Section):
    """`[flow.events.NAME]`: a time to find, and whether the flow ends there; see `simulate.events`.

    `when`: "loss-falls" (to `fraction` of its start, by `drop` nats or to `level`), "norm-passes" (`level`, or `factor` times
    its start; of `parameter`, or of all together) or "converged" (dθ/dt falls to the norm `rate`).
    """

    when: Literal["loss-falls", "norm-passes", "converged"]
    fraction: float | None = None
    drop: float | None = None
    level: float | None = None
    factor: float | None = None
    rate: float | None = None
    parameter: str | None = None
    ends: bool = False

    def event(self) -> Event:
        """The event as `simulate.integrate` takes it."""
        make = {"loss-falls": loss_falls, "norm-passes": norm_passes, "converged": converged}[self.when]
        known = [name for name in inspect.signature(make).parameters if name != "ends"]
        given = {name: getattr(self, name) for name in self.model_fields_set - {"when", "ends"}}
        for name in given:
            if name not in known:
                raise UserError(f"{self.when} does not take {name!r}; {nearest(name, known)}")
        if self.when == "converged" and not given:
            raise UserError("converged needs a rate")
        return make(**given, ends=self.ends)

    @model_validator(mode="after")
    def _whole(self) -> EventSection:
        self.event()
        return self


class FlowSection(_Section):
    """`[flow]`: which equations are integrated, how far and how accurately.

    `kinds`: any of "exact" (the full gradient), "cut-logits" (logits cut, their loss exact: a gradient flow),
    "kept-prediction" (∂f cut, prediction of the untruncated logits), "expanded" (everything expanded), "modified" (the
    exact flow corrected for the learning rate), "heavy-ball" (its second-order flow with momentum): see `simulate.modified`;
    none ([]) where a training is held against signatures alone.
    `degree`: of the loss, for the three derived kinds. `weight_decay`: λ of all parameters or of those named, in every
    flow; `learning_rate` and `momentum`: of the last two kinds (the others do not depend on them in the time
    t = η·step/(1 − μ)). All three are by default what the training has. `until`: a time, "half-loss" or "one-nat" (the
    time at which the exact flow's loss has halved, or fallen by 1, sought up to `max_time`).
    `validity`: the relative error up to which a flow counts as valid; how long it stays below is reported for each parameter.
    `orders`: further flows, in which embeddings see signatures of at most so many context tokens ("all": the exact flow), see
    `simulate.orders`; `departure`: the relative error of E beyond which a training has departed from one of them.
    `evaluation`: of expanded flows, from the "samples", from "moments" of the data (a step's cost does not depend on how many
    samples there are), or "auto": what is estimated to be cheapest.
    `expected`: statuses that are a result and not a failure, e.g. ["blow-up"].
    `events`: sections `[flow.events.NAME]`, times to find in every flow.
    """

    kinds: Annotated[tuple[FlowKind, ...], BeforeValidator(_as_list), Field(strict=False)] = ("exact",)
    degree: Count | None = None
    keep: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    evaluation: Literal["auto", "samples", "moments"] = "auto"
    orders: Annotated[tuple[int | str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    departure: Annotated[float, Field(gt=0, lt=1)] = 0.2
    validity: Positive = 0.01
    weight_decay: NonNegative | dict[str, NonNegative] | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] | None = None
    learning_rate: Positive | None = None
    until: Positive | Literal["half-loss", "one-nat"]
    max_time: Positive | None = None
    rtol: Annotated[float, Field(gt=0, lt=1)] = 1e-8
    atol: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    solver: str = "tsit5"
    max_steps: Count = 100_000
    blow_up: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 1e6
    dtype: Literal["float64", "float32"] = "float64"
    expected: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    events: dict[str, EventSection] = {}

    @model_validator(mode="after")
    def _consistent(self) -> FlowSection:
        derived = [kind for kind in self.kinds if kind not in ("exact", *FINITE_RATE)]
        if derived and self.degree is None:
            raise ValueError(f"the flow {derived[0]!r} needs a degree (of the loss)")
        if self.evaluation == "moments" and set(self.kinds) - {"exact", "expanded", *FINITE_RATE}:
            other = next(kind for kind in self.kinds if kind not in ("exact", "expanded", *FINITE_RATE))
            raise ValueError(f"the flow {other!r} keeps the prediction of each sample, which moments do not determine")
        if isinstance(self.until, str) and self.max_time is None:
            raise ValueError(f"until = {self.until!r} needs a max_time at which to give up")
        if len(set(self.kinds)) < len(self.kinds):
            raise ValueError("kinds names one flow twice")
        for order in self.orders:
            if order != "all" and (isinstance(order, str) or order < 0):
                raise ValueError(f"orders holds whole numbers of at least 0 and 'all', but found {order!r}")
        if len(set(self.orders)) < len(self.orders):
            raise ValueError("orders names one order twice")
        solver_description(self.solver)
        for status in self.expected:
            if status not in FAILURES:
                raise UserError(f"no flow ends with status {status!r}; {nearest(status, FAILURES)}")
        return self

    @property
    def flows(self) -> tuple[str, ...]:
        """The names of all flows: `kinds`, and "order-0", … for `orders`, whose "all" is the exact one."""
        return tuple(dict.fromkeys((*self.kinds, *("exact" if m == "all" else f"order-{m}" for m in self.orders))))


class SaveSection(_Section):
    """`[save]`: `count` times in linear or log spacing up to the end, or explicit `times`."""

    spacing: Literal["linear", "log"] = "linear"
    count: Annotated[int, Field(ge=3)] = 101
    times: Annotated[tuple[float, ...], BeforeValidator(_as_list), Field(strict=False)] | None = None
    parameters: Literal["all", "ends"] | Annotated[tuple[str, ...], Field(strict=False)] = "all"

    @model_validator(mode="after")
    def _times(self) -> SaveSection:
        if self.times is not None:
            if {"spacing", "count"} & self.model_fields_set:
                raise ValueError("takes times, or spacing and count, not both")
            Schedule(self.times)
        return self


class TrainingSection(_Section):
    """`[training]`, or `[sgd]`: the training that the flow predicts; t = learning rate × step / (1 − momentum).

    `optimizer`: "sgd", or "adam" and "adamw", which have no predicted time axis. `frozen`: parameters that are not
    trained, nor moved by any flow. `seeds`: each draws its own batches; `starts`: all from the arrays of `[initial]`, or "own",
    each from those of its own number, which no single flow predicts (`flow.kinds` is then empty). `seeds_together`: all seeds
    in one vectorised step; "faster" tries both ways.
    """

    learning_rate: Annotated[tuple[Positive, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)]
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    betas: Annotated[tuple[float, float], Field(strict=False)] | None = None
    epsilon: Positive | None = None
    batch: Count | Literal["full"] = "full"
    replacement: bool = True
    frozen: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] = (0,)
    starts: Literal["shared", "own"] = "shared"
    seeds_together: bool | Literal["faster"] = False
    dtype: Literal["float64", "float32"] = "float64"
    device: Literal["cpu", "cuda"] = "cpu"

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSection:
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("seeds names one seed twice")
        if self.optimizer == "sgd" and (self.betas is not None or self.epsilon is not None):
            raise ValueError("sgd has no betas and no epsilon: they belong to adam and adamw")
        if self.optimizer != "sgd" and self.momentum:
            raise ValueError(f"momentum belongs to sgd: {self.optimizer} has betas")
        return self


class RunSection(_Section):
    """`[run]`: a training run made elsewhere, compared in place of our own training (see `compare.load_run`).

    `path`: a folder of snapshots, or a list of them. `learning_rate`: a number, one for each step, a CSV file with the
    columns step and learning_rate, or file.py:function of the step; by default that of `[training]`. `tensors`:
    parameter → name of its tensor in the snapshots. Paths are relative to the experiment file.
    """

    path: str | Annotated[tuple[str, ...], Field(strict=False)]
    learning_rate: Positive | Annotated[tuple[float, ...], Field(strict=False)] | str | None = None
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    optimizer: Literal["sgd", "adam", "adamw", "other"] = "sgd"
    steps: Annotated[tuple[int, ...], Field(strict=False)] | None = None
    tensors: dict[str, str] = {}


class NoiseSection(_Section):
    """`[noise]`: the band in which minibatch training is predicted to lie (`simulate.noise.predict_band`).

    `flow`: whose drift; the noise is that of the exact gradients; `batch`: by default that of the training; `paths`, `seed`,
    `stride`, `rank`: as in `predict_band`; `observables`: entries of parameters such as "E[0,1]" besides the loss and the
    norms, which are always measured. The learning rate is that of flows at a finite learning rate.
    """

    flow: Literal["exact", "cut-logits", "kept-prediction", "expanded"] = "exact"
    batch: Count | None = None
    paths: Count = 200
    seed: Seed = 0
    observables: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    stride: Count | None = None
    rank: Annotated[int, Field(ge=2)] | None = None


class SweepSection(_Section):
    """`[sweep]`: one flow from many starts, and at many learning rates; see `simulate.run.run_sweep`.

    `flow`: one of the flows of `[flow]`, by default the first; `seeds`, and `gamma` or `scale`: of the initial arrays, by
    default those of `[initial]`; `learning_rate`: of the flows at a finite learning rate only, by default theirs. The members
    are all combinations. `way`: "one-by-one", "vmap", "processes", or "auto": what a trial shows to be fastest here;
    `quantiles`: of the bands over the members; `parameters`: which are saved of every member.
    """

    flow: str | None = None
    seeds: Annotated[tuple[Seed, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] | None = None
    gamma: Annotated[tuple[Finite, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] | None = None
    scale: Annotated[tuple[Positive, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] | None = None
    learning_rate: (
        Annotated[tuple[Positive, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] | None
    ) = None
    way: Literal["auto", "one-by-one", "vmap", "processes"] = "auto"
    quantiles: Annotated[tuple[Quantile, ...], BeforeValidator(_as_list), Field(min_length=1, strict=False)] = (
        0.05,
        0.5,
        0.95,
    )
    parameters: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()

    @model_validator(mode="after")
    def _consistent(self) -> SweepSection:
        if self.gamma is not None and self.scale is not None:
            raise ValueError("takes gamma or scale, not both")
        for name in ("seeds", "gamma", "scale", "learning_rate"):
            values = getattr(self, name) or ()
            if len(set(values)) < len(values):
                raise ValueError(f"{name} names one value twice")
        if list(self.quantiles) != sorted(set(self.quantiles)):
            raise ValueError("quantiles must be increasing")
        return self


class ClaimSection(_Section):
    """`[claims.NAME]`: a measure and the threshold that it must meet, stated before the run.

    For `staircase reproduce`: `paper`, what the paper says, and where; `condition`, in words, what the settings add to that;
    `control`, the variant without it, on which the same is measured; `distinct`: the number of different values over seeds
    counts, and not each of them.
    """

    measure: str
    threshold: Annotated[float, Field(allow_inf_nan=False)]
    comparison: Literal["<=", ">="]
    flow: FlowKind | Annotated[str, Field(pattern=r"^order-\d+$")] | None = None
    parameter: str | None = None
    tokens: Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(strict=False)] = ()
    frequency: Annotated[int, Field(ge=0)] | None = None
    at: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    remark: str | None = None
    paper: str | None = None
    condition: str | None = None
    control: str | None = None
    distinct: bool = False


class ExperimentFile(_Section):
    """The sections of an experiment file."""

    title: str = ""
    architecture: ArchitectureSection
    sizes: dict[str, Count] = {}
    data: DataSection
    initial: InitialSection
    flow: FlowSection
    save: SaveSection = SaveSection()
    training: TrainingSection | None = None
    sgd: TrainingSection | None = None
    run: RunSection | None = None
    noise: NoiseSection | None = None
    sweep: SweepSection | None = None
    claims: dict[str, ClaimSection] = {}

    @model_validator(mode="after")
    def _one_training(self) -> ExperimentFile:
        if self.training is not None and self.sgd is not None:
            raise ValueError("[training] and [sgd] are two names of one section: keep one of them")
        if self.sgd is not None and self.sgd.optimizer != "sgd":
            raise ValueError(f"[sgd] cannot have the optimizer {self.sgd.optimizer!r}: call the section [training]")
        return self


class Experiment:
    """A loaded and checked experiment. Make one with `load_experiment`.

    The sections are attributes named as in the file: `experiment.flow.until`, `experiment.training` (that of `[training]`
    or `[sgd]`; None when the file has neither), `experiment.claims`, …
    """

    def __init__(self, sections: ExperimentFile, *, folder: Path | None = None, name: str = "experiment"):
        self.sections = sections
        self.folder = folder
        self.name = name
        self._made: dict[str, VectorField] = {}
        self._found_end: float | None = None
        self._fields: dict[tuple[str, float | None], VectorField] = {}
        self._plain: dict[str, VectorField] = {}
        # By flow and evaluation, for the flows whose field has been asked for.
        self.costs: dict[str, dict[str, Cost]] = {}

    title = property(lambda self: self.sections.title)
    initial = property(lambda self: self.sections.initial)
    data = property(lambda self: self.sections.data)
    flow = property(lambda self: self.sections.flow)
    save = property(lambda self: self.sections.save)
    training = property(lambda self: self.sections.training or self.sections.sgd)
    run = property(lambda self: self.sections.run)
    frozen = property(lambda self: self.training.frozen if self.training else ())
    noise = property(lambda self: self.sections.noise)
    sweep = property(lambda self: self.sections.sweep)
    claims = property(lambda self: self.sections.claims)

    @cached_property
    def _architecture(self) -> Architecture:
        from theory.architectures import load

        section = self.sections.architecture
        return load(self._in_folder(section.name), **(section.model_extra or {}))

    @cached_property
    def _dataset(self) -> Dataset:
        from theory.data import load

        options = dict(self.sections.data.model_extra or {})
        if isinstance(options.get("path"), str):
            options["path"] = self._in_folder(options["path"])
        return load(self._in_folder(self.sections.data.task), **options)

    def _in_folder(self, reference: str) -> str:
        """Paths are relative to the experiment file."""
        path, mark, function = reference.partition(":")
        if self.folder is None or not re.search(r"\.\w+$", path) or Path(path).is_absolute():
            return reference
        return f"{self.folder / path}{mark}{function}"

    def architecture(self) -> Architecture:
        """The architecture; the same object at every call."""
        return self._architecture

    def dataset(self) -> Dataset:
        """The dataset; the same object at every call."""
        return self._dataset

    def sizes(self) -> dict[str, int]:
        """Axis → size: `[sizes]` and what the dataset fixes (token, label, position)."""
        return dict(self.sections.sizes) | dict(self.dataset().sizes)

    def initial_parameters(self, *, seed: int | None = None, **size: float) -> dict[str, np.ndarray]:
        """The initial arrays that flow and training share; newly made, always equal.

        **Arguments:** `seed`, and `gamma` or `scale`: of a member of the sweep, in place of those of `[initial]`.
        """
        from theory.initial import initialise

        section = self.sections.initial
        chosen = size or {"gamma": section.gamma, "scale": section.scale}
        return initialise(self.architecture(), self.sizes(), seed=section.seed if seed is None else seed, **chosen)

    def starts(self) -> dict[str, np.ndarray] | list[dict[str, np.ndarray]]:
        """The arrays that all seeds of the training start from, or those of each where `starts` is "own"."""
        if self.training is None or self.training.starts == "shared":
            return self.initial_parameters()
        return [self.initial_parameters(seed=seed) for seed in self.training.seeds]

    def field(self, kind: str, learning_rate: float | None = None) -> VectorField:
        """The vector field of one of `flow.flows`; the same object at every call, so that it is compiled once.

        Where a flow can be evaluated in several ways it is the one that is estimated to be cheapest; see `costs`.

        **Arguments:** `learning_rate`: of a flow at a finite learning rate, by default `learning_rate()`.
        """
        rate = None
        if kind in FINITE_RATE:
            rate = self.learning_rate() if learning_rate is None else learning_rate
        if (kind, rate) not in self._fields:
            from simulate.modified import heavy_ball, modified

            field = self._field_without_rate(kind)
            if rate is not None and kind == "modified":
                field = modified(field, rate, momentum=self.momentum())
            elif rate is not None:
                field = heavy_ball(field, rate, self.momentum())
            self._fields[kind, rate] = field
        return self._fields[kind, rate]

    def _field_without_rate(self, kind: str) -> VectorField:
        if kind not in self._plain:
            from simulate import costs, fields
            from simulate.frozen import with_frozen
            from simulate.modified import with_weight_decay

            ways = fields.evaluations(self._derived(kind), self.dataset(), self.sections.flow.evaluation)
            field, self.costs[kind] = costs.cheapest(ways, self.dataset(), self.initial_parameters())
            self._plain[kind] = with_weight_decay(with_frozen(field, self.frozen), self.weight_decay())
        return self._plain[kind]

    def _derived(self, kind: str) -> VectorField:
        if kind not in self._made:
            from simulate import fields
            from simulate.orders import up_to_order

            flow = self.sections.flow
            if kind.startswith("order-"):
                self._made[kind] = up_to_order(self.architecture(), int(kind.removeprefix("order-")))
                return self._made[kind]
            base = "exact" if kind in FINITE_RATE else kind
            self._made[kind] = fields.field(self.architecture(), base, flow.degree, flow.keep)
        return self._made[kind]

    def learning_rate(self) -> float:
        """That of flows at a finite learning rate: `flow.learning_rate`, or the first of the training.

        **Raises:** `UserError` when there is neither.
        """
        flow, training = self.sections.flow, self.training
        if flow.learning_rate is not None:
            return flow.learning_rate
        if training is None:
            kind = next((kind for kind in flow.kinds if kind in FINITE_RATE), None)
            what = "the noise" if kind is None else f"the flow {kind!r}"
            raise UserError(f"{what} needs a learning rate: give flow.learning_rate or a section [training]")
        return training.learning_rate[0]

    def momentum(self) -> float:
        """That of flows at a finite learning rate: `flow.momentum`, or that of the training."""
        flow, training = self.sections.flow, self.training
        if flow.momentum is not None:
            return flow.momentum
        return training.momentum if training is not None else 0.0

    def weight_decay(self) -> dict[str, float]:
        """Parameter → λ in every flow, for those that decay: `flow.weight_decay`, or that of a training by SGD.

        **Raises:** `UserError` for a parameter that there is not.
        """
        decay, training, names = self.sections.flow.weight_decay, self.training, self.architecture().parameters
        if decay is None:
            decay = training.weight_decay if training is not None and training.optimizer == "sgd" else 0.0
        if not isinstance(decay, Mapping):
            decay = dict.fromkeys(names, decay)
        for name in decay:
            if name not in names:
                raise UserError(f"there is no parameter {name!r} to decay; {nearest(name, names)}")
        return {name: value for name, value in decay.items() if value and name not in self.frozen}

    def noise_batch(self) -> int:
        """Samples per step of the training whose band is predicted: `noise.batch`, or that of the training.

        **Raises:** `UserError` when there is no such band: batches that differ or are full, reshuffled epochs, momentum,
        another optimiser than SGD.
        """
        from simulate.noise import check_noise

        noise, training = self.sections.noise, self.training
        assert noise is not None
        batch = noise.batch if noise.batch is not None or training is None else training.batch
        if training is not None and training.batch != batch:
            raise UserError(f"'batch' is {batch!r} here and {training.batch!r} in the training: give it once")
        if training is not None and training.optimizer != "sgd":
            raise UserError(f"a band is predicted for sgd, and the optimizer is {training.optimizer!r}")
        if self.momentum():
            raise UserError(f"no band is predicted with momentum, which is {self.momentum():g}")
        check_noise("missing" if batch is None else batch, training is None or training.replacement, noise.paths)
        assert isinstance(batch, int)
        return batch

    def sweep_flow(self) -> str:
        """The flow of the sweep: `sweep.flow`, or the first of all.

        **Raises:** `UserError` when it is none of `flow.flows`, or takes no learning rates and is given some.
        """
        sweep, flows = self.sections.sweep, self.flow.flows
        assert sweep is not None
        if not flows:
            raise UserError("a sweep is of a flow: flow.kinds names none")
        flow = flows[0] if sweep.flow is None else sweep.flow
        if flow not in flows:
            raise UserError(f"'flow' names no flow that is integrated: {flow!r}; {nearest(flow, flows)}")
        if sweep.learning_rate is not None and flow not in FINITE_RATE:
            raise UserError(
                f"the flow {flow!r} takes no 'learning_rate': in the time learning rate × steps it is the same for all; sweep "
                f"{' or '.join(map(repr, FINITE_RATE))}, or leave it out"
            )
        return flow

    def sweep_labels(self) -> list[dict[str, float | int]]:
        """What each member of the sweep is called by: seed, gamma or scale, and learning_rate where the flow has one."""
        sweep, initial = self.sections.sweep, self.sections.initial
        assert sweep is not None
        size = "gamma" if sweep.gamma or (not sweep.scale and initial.gamma is not None) else "scale"
        axes: dict[str, tuple[float | int, ...]] = {}
        if self.sweep_flow() in FINITE_RATE:
            axes["learning_rate"] = sweep.learning_rate or (self.learning_rate(),)
        axes[size] = getattr(sweep, size) or (getattr(initial, size),)
        axes["seed"] = sweep.seeds or (initial.seed,)
        return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]

    def events(self) -> dict[str, Event]:
        """The events of `[flow.events]`, by name."""
        return {name: section.event() for name, section in self.sections.flow.events.items()}

    def until(self, snapshot: Path | None = None) -> float:
        """The end of the flow as a time; for "half-loss" and "one-nat" found on the exact flow.

        **Arguments:** `snapshot`: a file to keep the search in, from which a killed one goes on.

        **Raises:** `NumericalFailure` when the loss does not fall so far before `max_time`.
        """
        flow = self.sections.flow
        if not isinstance(flow.until, str):
            return float(flow.until)
        if self._found_end is None:
            self._found_end = self._find_end(snapshot)
        return self._found_end

    def _find_end(self, snapshot: Path | None) -> float:
        from simulate.flow import time_of_loss

        flow = self.sections.flow
        assert flow.max_time is not None
        goal: dict[str, float] = {"fraction": 0.5} if flow.until == "half-loss" else {"drop": 1.0}
        return time_of_loss(
            self.field("exact"),
            self.dataset(),
            self.initial_parameters(),
            max_time=flow.max_time,
            solver=flow.solver,
            rtol=flow.rtol,
            atol=flow.atol,
            max_steps=flow.max_steps,
            blow_up=flow.blow_up,
            dtype=flow.dtype,
            snapshot=snapshot,
            **goal,
        )

    def schedule(self) -> Schedule:
        """The save times that flow and training share."""
        save = self.sections.save
        if save.times is not None:
            return Schedule(save.times)
        return Schedule.of(save.spacing, self.until(), count=save.count)

    def to_dict(self) -> dict[str, Any]:
        """The resolved sections, defaults filled in, as plain values."""
        plain = self.sections.model_dump(mode="json", exclude_none=True)
        if self.sections.save.times is not None:
            del plain["save"]["spacing"], plain["save"]["count"]
        return plain

    def to_toml(self) -> str:
        """The experiment as resolved, a file that `load_experiment` reads back to the same experiment.

        Relative paths of own files are written as absolute ones.
        """
        plain = self.to_dict()
        plain["architecture"]["name"] = self._absolute(plain["architecture"]["name"])
        plain["data"]["task"] = self._absolute(plain["data"]["task"])
        if isinstance(plain["data"].get("path"), str):
            plain["data"]["path"] = self._absolute(plain["data"]["path"])
        if self.run is not None:
            source, rate = self.run_source(), self.run.learning_rate
            plain["run"]["path"] = [*map(str, source)] if isinstance(source, list) else str(source)
            if isinstance(rate, str):
                plain["run"]["learning_rate"] = self._absolute(rate)
        return _toml(plain)

    def run_source(self) -> Path | list[Path]:
        """Where the snapshots of `[run]` lie: a folder, or a list; absolute."""
        folder = (self.folder or Path()).resolve()
        path = self.sections.run.path if self.sections.run else ""
        return folder / path if isinstance(path, str) else [folder / each for each in path]

    def run_learning_rate(self) -> Any:
        """What `compare.load_run` takes as the learning rate of `[run]`.

        **Raises:** `UserError` when neither `[run]` nor `[training]` gives one.
        """
        rate = self.sections.run.learning_rate if self.sections.run else None
        if isinstance(rate, str):
            return self._in_folder(rate)
        if rate is None and self.training is not None:
            if len(self.training.learning_rate) > 1:
                raise UserError("[run] needs a learning_rate: that of the training lists several")
            return self.training.learning_rate[0]
        if rate is None:
            raise UserError("[run] needs a learning_rate: a number, one for each step, a .csv file or file.py:function")
        return rate

    def _absolute(self, reference: str) -> str:
        resolved = self._in_folder(reference)
        if resolved == reference:
            return reference
        path, mark, function = resolved.partition(":")
        return f"{Path(path).resolve()}{mark}{function}"

    def __repr__(self) -> str:
        flows = ", ".join(self.sections.flow.flows)
        return f"Experiment({self.sections.architecture.name} on {self.sections.data.task}; flows {flows})"


def load_experiment(
    path: str | Path, overrides: Iterable[str] = (), *, quick: bool = False, variant: str | None = None
) -> Experiment:
    """Read, override and check an experiment file; architecture and dataset are built on the way.

    **Arguments:** `path`: a TOML file; `overrides`: strings `section.key=value` with a TOML value (a bare
    word stands for a string), e.g. `sgd.learning_rate=0.05`; `quick`: with what the file's `[quick]` changes, and `variant`:
    with what its `[variants.NAME]` does (see `simulate.variants`).

    **Raises:** `UserError`, one sentence with file, line and the nearest right choice.
    """
    overrides = tuple(overrides)
    with words(file_words):
        try:
            return _load(Path(path), overrides, quick, variant)
        except _Mistake as mistake:
            place = _to_blame(Path(path), overrides, quick, variant, mistake)
            raise UserError(f"{place}: {mistake.sentence}") from mistake


def variants_of(path: str | Path) -> tuple[str, ...]:
    """The names of a file's variants, in its order. **Raises:** `UserError` for a file that cannot be read."""
    variants = _read(Path(path))[0].get("variants", {})
    return tuple(variants) if isinstance(variants, Mapping) else ()


def has_quick(path: str | Path) -> bool:
    """Whether a file, or a variant in it, has a quick setting. **Raises:** `UserError` for a file that cannot be read."""
    content = _read(Path(path))[0]
    variants = content.get("variants", {})
    sections = variants.values() if isinstance(variants, Mapping) else ()
    return "quick" in content or any("quick" in section for section in sections)


def title_of(path: str | Path) -> str:
    """The title that a file states. **Raises:** `UserError` for a file that cannot be read."""
    return str(_read(Path(path))[0].get("title", ""))


class _Mistake(UserError):
    """A mistake and where it stands."""

    def __init__(self, place: str, sentence: str):
        super().__init__(f"{place}: {sentence}")
        self.place, self.sentence = place, sentence


def _to_blame(path: Path, overrides: tuple[str, ...], quick: bool, variant: str | None, mistake: _Mistake) -> str:
    """The place of a mistake, or those overrides without which it is not made, whatever key it names."""
    if mistake.place.startswith("--set") or not overrides:
        return mistake.place

    def made(kept: tuple[str, ...]) -> bool:
        try:
            _load(path, kept, quick, variant)
        except _Mistake as other:
            return other.sentence == mistake.sentence
        except UserError:
            return True
        return False

    if made(()):
        return mistake.place
    single = [o for n, o in enumerate(overrides) if not made(overrides[:n] + overrides[n + 1 :])]
    return ", ".join(f"--set {override}" for override in single or overrides)


def _read(path: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], str]]:
    """The content of a file, and the place of each of its keys."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError(f"there is no experiment file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not valid TOML: {error}") from error
    return content, {keys: f"{path}:{line}" for keys, line in key_lines(text).items()}


def _load(path: Path, overrides: tuple[str, ...], quick: bool, variant: str | None) -> Experiment:
    content, places = _read(path)
    try:
        content, places = chosen(content, places, quick=quick, variant=variant)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    for override in overrides:
        keys, value = _parse_override(override)
        _set(content, keys, value, override)
        for end in range(1, len(keys) + 1):
            places.setdefault(keys[:end], f"--set {override}")
        places[keys] = f"--set {override}"
    where = _Places(str(path), places)
    try:
        sections = ExperimentFile.model_validate(content)
    except ValidationError as error:
        _fail(error, where)
    experiment = Experiment(sections, folder=path.parent, name=path.stem)
    for section, check in (
        (("architecture",), experiment.architecture),
        (("data",), experiment.dataset),
        (("sizes",), lambda: check_parameters(experiment.architecture(), experiment.sizes())),
        (("data",), lambda: check_labels(experiment.architecture(), experiment.dataset())),
        (("save",), lambda: _check_save(experiment)),
        (("save",), lambda: _check_memory(experiment)),
        (
            ("training",) if experiment.sections.training else ("sgd",),
            lambda: experiment.architecture().trained(experiment.frozen),
        ),
        (("flow",), lambda: _check_flow(experiment)),
        (("noise",), lambda: _check_noise(experiment)),
        (("sweep",), lambda: _check_sweep(experiment)),
        (("flow",), lambda: _check_events(experiment)),
        (("claims",), lambda: _check_claims(experiment)),
    ):
        try:
            check()
        except UserError as error:
            raise _Mistake(where.of_mention(section[0], str(error)), f"[{section[0]}] {error}") from error
    return experiment


def _check_memory(experiment: Experiment) -> None:
    """Before the save times themselves are made."""
    from simulate.memory import refuse_beyond, saved_bytes

    shapes, save = experiment.architecture().shapes(experiment.sizes()), experiment.save
    arrays = {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}
    kinds, count = experiment.flow.flows, save.count if save.times is None else len(save.times)
    needed = len(kinds) * saved_bytes(arrays, range(count), save.parameters)
    refuse_beyond(needed, f"saving {', '.join(kinds)} at {count:,} times")


def _check_save(experiment: Experiment) -> None:
    parameters = experiment.architecture().parameters
    save, until = experiment.save, experiment.flow.until
    for name in save.parameters if isinstance(save.parameters, tuple) else ():
        if name not in parameters:
            raise UserError(f"there is no parameter {name!r} to save; {nearest(name, parameters)}")
    if save.times is not None and isinstance(until, float) and save.times[-1] > until:
        raise UserError(f"the last of 'times', {save.times[-1]:g}, lies beyond flow.until = {until:g}")


def _check_flow(experiment: Experiment) -> None:
    flow, training = experiment.flow, experiment.training
    if flow.flows and training is not None and training.starts == "own":
        raise UserError(
            "'kinds' must be [] where the seeds of the training have starts of their own: no flow is of them all"
        )
    if not flow.flows and isinstance(flow.until, str):
        raise UserError(f"'until' must be a time where 'kinds' names no flow: {flow.until!r} is found on the exact one")
    for kind in experiment.flow.flows:
        experiment._derived(kind)
        if kind in FINITE_RATE:
            experiment.learning_rate()
    experiment.weight_decay()


def _check_noise(experiment: Experiment) -> None:
    if experiment.noise is None:
        return
    from simulate.noise import entry_observables

    experiment.noise_batch()
    experiment.learning_rate()
    experiment._derived(experiment.noise.flow)
    entry_observables(experiment.noise.observables, experiment.architecture().shapes(experiment.sizes()))


def _check_sweep(experiment: Experiment) -> None:
    if experiment.sweep is None:
        return
    from simulate.memory import refuse_beyond, saved_bytes

    members, shapes = len(experiment.sweep_labels()), experiment.architecture().shapes(experiment.sizes())
    for name in experiment.sweep.parameters:
        if name not in shapes:
            raise UserError(f"there is no parameter {name!r} to save; {nearest(name, shapes)}")
    count = experiment.save.count if experiment.save.times is None else len(experiment.save.times)
    arrays = {name: np.broadcast_to(0.0, shape) for name, shape in shapes.items()}
    refuse_beyond(members * saved_bytes(arrays, range(count), experiment.sweep.parameters), f"saving {members} members")


def _check_events(experiment: Experiment) -> None:
    parameters = experiment.architecture().parameters
    for name, event in experiment.events().items():
        if event.parameter is not None and event.parameter not in parameters:
            raise UserError(
                f"the event {name!r} names no parameter: {event.parameter!r}; {nearest(event.parameter, parameters)}"
            )


def _check_claims(experiment: Experiment) -> None:
    parameters, kinds = experiment.architecture().parameters, experiment.flow.flows
    for name, claim in experiment.claims.items():
        if claim.parameter is not None and claim.parameter not in parameters:
            raise UserError(f"'{name}' names no parameter: {claim.parameter!r}; {nearest(claim.parameter, parameters)}")
        if claim.flow is not None and claim.flow not in kinds:
            raise UserError(f"'{name}' names no flow that is integrated: {claim.flow!r}; {nearest(claim.flow, kinds)}")


class _Places:
    """Where a key of the file stands: `file:line`, or the `--set` that gave it."""

    def __init__(self, path: str, places: Mapping[tuple[str, ...], str]):
        self.path, self.places = path, places

    def of(self, keys: Sequence[str]) -> str:
        keys = tuple(keys)
        while keys and keys not in self.places:
            keys = keys[:-1]
        return self.places.get(keys, self.path)

    def of_mention(self, section: str, message: str) -> str:
        """The place of the key of `section` that the message names (best in quotes), or of the section."""
        keys = [keys for keys in self.places if len(keys) == 2 and keys[0] == section]
        options = [pair for pair in keys if pair[1] not in ("name", "task")]  # everyday words in a message
        for pairs, pattern in ((keys, "'{}'"), (options, r"\b{}\b")):
            for pair in pairs:
                if re.search(pattern.format(re.escape(pair[1])), message):
                    return self.places[pair]
        return self.of((section,))


def key_lines(text: str) -> dict[tuple[str, ...], int]:
    """The line of every table header and key of a TOML document, by a scan of its lines."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[\[?([^\[\]]+)\]\]?\s*(?:#.*)?$", line)
        if header:
            table = _split_keys(header.group(1))
            found.setdefault(table, number)
            continue
        pair = re.match(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""", line)
        if pair:
            keys = (*table, *_split_keys(pair.group(1)))
            for end in range(len(table) + 1, len(keys) + 1):
                found.setdefault(keys[:end], number)
    return found


def _split_keys(dotted: str) -> tuple[str, ...]:
    parts = re.findall(r"""[\w-]+|"[^"]*"|'[^']*'""", dotted)
    return tuple(part.strip("\"'") for part in parts)


def _parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    dotted, equals, value = override.partition("=")
    keys = _split_keys(dotted)
    if not equals or not keys or not value.strip():
        raise UserError(f"--set takes section.key=value, but was given {override!r}.")
    try:
        return keys, parse_value(value)
    except UserError as error:
        raise UserError(f"--set {override}: {error}") from None


def _set(content: dict[str, Any], keys: tuple[str, ...], value: Any, override: str) -> None:
    table = content
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {override}: {key!r} is a value and not a section.")
    table[keys[-1]] = value


def _fail(error: ValidationError, where: _Places) -> NoReturn:
    """The first mistake as one sentence with its place and the nearest right choice."""
    problems = error.errors()
    # A key that is not known explains the missing one next to it, so it comes first.
    problem = min(problems, key=lambda item: item["type"] != "extra_forbidden")
    # Positions inside unions and lists carry pydantic's own tags; keep keys of the file only.
    location = [str(part) for part in problem["loc"]]
    if not location:
        raise UserError(f"{where.path}: {problem['msg'].removeprefix('Value error, ')}.")
    keys = tuple(location)
    while len(keys) > 1 and keys not in where.places:
        keys = keys[:-1]
    depth = {"claims": 3, "flow": 4 if "events" in location else 2}.get(location[0], 2)
    name = ".".join(location[:depth])
    context, kind = problem.get("ctx", {}), problem["type"]
    place = where.of(keys)
    if kind == "extra_forbidden":
        choices = _known_keys(location[:-1])
        place = where.of(location)
        section = ".".join(location[:-1])
        inside = f"[{section}] has no key" if section else "there is no section or key"
        raise _Mistake(place, f"{inside} {location[-1]!r}; {nearest(location[-1], choices)}")
    if kind == "missing":
        inside = f"[{'.'.join(location[:-1])}] needs" if len(location) > 1 else "the file needs"
        what = f"the key {location[-1]!r}" if len(location) > 1 else f"a section [{location[-1]}]"
        raise _Mistake(where.of(location[:-1]), f"{inside} {what}")
    if kind == "value_error":
        raise _Mistake(place, f"[{name}] {context['error']}")
    value = problem["input"]
    tagged = [item for item in problems if item["loc"][: len(keys)] == problem["loc"][: len(keys)]]
    expected = [str(item["ctx"]["expected"]) for item in tagged if item["type"] == "literal_error" and "ctx" in item]
    words = [item["msg"] for item in tagged if item["type"] != "literal_error"]
    if expected and isinstance(value, str):
        choices = re.findall(r"'([^']*)'", expected[0])
        raise _Mistake(place, f"{name} cannot be {value!r}; {nearest(value, choices)}")
    wanted = " or ".join(dict.fromkeys([*words, *(f"input should be {text}" for text in expected)]))
    wanted = re.sub("[Ii]nput should", "should", wanted)
    wanted = re.sub(r"be a valid dictionary( or instance of \w+)?", "be a section", wanted)
    raise _Mistake(place, f"{name} {wanted}, but is {value!r}")


def _known_keys(location: Sequence[str]) -> list[str]:
    if list(location[:2]) == ["flow", "events"]:
        return list(EventSection.model_fields)
    models: dict[str, type[BaseModel]] = {
        "initial": InitialSection,
        "flow": FlowSection,
        "save": SaveSection,
        "training": TrainingSection,
        "sgd": TrainingSection,
        "run": RunSection,
        "noise": NoiseSection,
        "sweep": SweepSection,
        "claims": ClaimSection,
    }
    if not location:
        return [*ExperimentFile.model_fields, "quick", "variants"]
    return list(models[location[0]].model_fields)


def _toml(content: Mapping[str, Any]) -> str:
    """A TOML document: plain values first, then tables."""
    lines: list[str] = []

    def table(keys: tuple[str, ...], values: Mapping[str, Any]) -> None:
        plain = {key: value for key, value in values.items() if not isinstance(value, Mapping)}
        nested = {key: value for key, value in values.items() if isinstance(value, Mapping)}
        if keys and (plain or not nested):
            lines.append(f"[{'.'.join(map(_toml_key, keys))}]")
        lines.extend(f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items())
        if plain or not nested:
            lines.append("")
        for key, value in nested.items():
            if value:
                table((*keys, key), value)

    table((), content)
    return "\n".join(lines).rstrip("\n") + "\n"


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else json.dumps(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        text = repr(value)
        return text if "." in text or "e" not in text else text.replace("e", ".0e", 1)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml_key(key)} = {_toml_value(inner)}" for key, inner in value.items())
        return f"{{ {pairs} }}"
    return f"[{', '.join(_toml_value(inner) for inner in value)}]"
