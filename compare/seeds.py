"""Several seeds of one training: each by itself, or all together in one vectorised step.

Both ways draw the same batches and take the same optimiser steps (every optimiser here acts on each number by itself, so
one of them can serve stacked parameters); gradients are summed in another order, so together a seed agrees with itself alone
to rounding and not bit for bit. Alone it does not depend on the other seeds at all.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch

from compare.batches import Batches, batches
from compare.module import DTYPES, Model, Precision, TrainedModule, module_of
from compare.optimisers import Optimiser
from theory import interpret
from theory.data.dataset import Dataset
from theory.language import Architecture

# The loss of a dataset is summed over parts whose logits hold about so many numbers.
_LOGITS = 1 << 23


@dataclass(frozen=True, eq=False)
class Problem:
    """What every seed of a training shares.

    `initial`: one start for all seeds, or one for each in their order; `steps`: how many the training has; `judged`: on how
    many samples, evenly spread over the dataset, the loss is taken, all by default.
    """

    architecture: Model
    dataset: Dataset
    initial: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]]
    learning_rate: float
    optimiser: Optimiser
    batch: int | Literal["full"]
    replacement: bool
    dtype: Precision
    device: str = "cpu"
    frozen: tuple[str, ...] = ()
    steps: int = 1
    judged: int | None = None

    def start(self, number: int) -> Mapping[str, np.ndarray]:
        """The initial arrays of the seed that stands at this place."""
        return self.initial if isinstance(self.initial, Mapping) else self.initial[number]

    def module(self, number: int = 0) -> TrainedModule:
        """The model at the initial arrays of the seed that stands at this place."""
        return module_of(
            self.architecture, self.start(number), dtype=self.dtype, device=self.device, frozen=self.frozen
        )

    def stream(self, seed: int) -> Batches | None:
        if self.batch == "full":
            return None
        return batches(self.dataset.weights, self.batch, replacement=self.replacement, seed=seed)

    @cached_property
    def tokens(self) -> torch.Tensor:
        return torch.tensor(self.dataset.tokens, device=self.device)

    @cached_property
    def labels(self) -> torch.Tensor:
        return torch.tensor(self.dataset.labels, device=self.device)

    @cached_property
    def weights(self) -> torch.Tensor:
        return torch.tensor(self.dataset.weights, dtype=DTYPES[self.dtype], device=self.device)

    def rate(self, step: int) -> float:
        """The learning rate of the step `step` → `step` + 1."""
        return self.learning_rate * self.optimiser.rate_factor(step, self.steps)

    def loss(self, of: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> float:
        """The loss that is saved: `of` (tokens, labels, weights), summed over parts of bounded size."""
        tokens, labels, weights = self.tokens, self.labels, self.weights
        if self.judged is not None:
            rows = np.linspace(0, len(tokens) - 1, min(self.judged, len(tokens))).round().astype(np.int64)
            chosen = torch.from_numpy(np.unique(rows)).to(self.device)
            tokens, labels, weights = tokens[chosen], labels[chosen], weights[chosen]
            weights = weights / weights.sum()
        size = max(1, _LOGITS // (self.dataset.n_labels * (labels.numel() // len(labels))))
        parts = [slice(start, start + size) for start in range(0, len(tokens), size)]
        with torch.no_grad():
            return sum(float(of(tokens[part], labels[part], weights[part])) for part in parts)

    def drawn(self, rows: np.ndarray, weights: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(tokens, labels, weights) of a batch, or of one batch for each seed."""
        chosen = torch.from_numpy(rows).to(self.device)
        return self.tokens[chosen], self.labels[chosen], torch.from_numpy(weights).to(self.weights)


class Members(Protocol):
    """The seeds of a training, all at one step."""

    step: int

    def advance_to(self, step: int) -> None:
        """Take optimiser steps until `step`."""
        ...

    def losses(self) -> list[float]:
        """The loss that is saved, for each seed."""
        ...

    def arrays(self, names: Collection[str]) -> list[dict[str, np.ndarray]]:
        """The parameters of these names of each seed, float64."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Parameters and optimiser, bit for bit, by names without meaning to anything but `restore`."""
        ...

    def streams(self) -> list[dict[str, Any] | None]:
        """Where each seed's stream of batches stands."""
        ...

    def restore(self, step: int, state: Mapping[str, np.ndarray], streams: Sequence[dict[str, Any] | None]) -> None:
        """Continue exactly from what `state` and `streams` gave at `step`."""
        ...


class OneByOne:
    """Each seed by itself: a module, its optimiser and its stream of batches."""

    def __init__(self, problem: Problem, seeds: Sequence[int]):
        self.problem = problem
        self.step = 0
        self._modules = [problem.module(number) for number in range(len(seeds))]
        self._optimisers = [
            problem.optimiser.build(module.trainable(), problem.learning_rate) for module in self._modules
        ]
        self._streams = [problem.stream(seed) for seed in seeds]

    def advance_to(self, step: int) -> None:
        problem = self.problem
        full = (problem.tokens, problem.labels, problem.weights)
        for module, optimiser, stream in zip(self._modules, self._optimisers, self._streams, strict=True):
            for now in range(self.step, step):
                _set_rate(optimiser, problem, now)
                optimiser.zero_grad(set_to_none=True)
                module.loss(*(full if stream is None else problem.drawn(*next(stream)))).backward()
                optimiser.step()
        self.step = step

    def losses(self) -> list[float]:
        return [self.problem.loss(module.loss) for module in self._modules]

    def arrays(self, names: Collection[str]) -> list[dict[str, np.ndarray]]:
        return [module.arrays(names) for module in self._modules]

    def state(self) -> dict[str, np.ndarray]:
        found = {}
        for i, (module, optimiser) in enumerate(zip(self._modules, self._optimisers, strict=True)):
            found |= {f"{i}/parameter/{name}": _numpy(value) for name, value in module.named().items()}
            found |= _optimiser_state(optimiser, f"{i}/optimiser/")
        return found

    def streams(self) -> list[dict[str, Any] | None]:
        return [None if stream is None else stream.state() for stream in self._streams]

    def restore(self, step: int, state: Mapping[str, np.ndarray], streams: Sequence[dict[str, Any] | None]) -> None:
        for i, (module, optimiser) in enumerate(zip(self._modules, self._optimisers, strict=True)):
            with torch.no_grad():
                for name, parameter in module.named().items():
                    parameter.copy_(torch.from_numpy(state[f"{i}/parameter/{name}"]))
            _restore_optimiser(optimiser, state, f"{i}/optimiser/")
        _restore_streams(self._streams, streams)
        self.step = step


class Together:
    """All seeds in one step: `torch.func.vmap` over stacked parameters, one optimiser for the stack."""

    def __init__(self, problem: Problem, seeds: Sequence[int]):
        self.problem = problem
        self.step = 0
        self._module = problem.module()
        starts = [problem.module(number).named() for number in range(len(seeds))]
        self._streams = [problem.stream(seed) for seed in seeds]
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._shared: set[str] = set()  # what no seed trains and all start from
        for name, value in self._module.named().items():
            shared = name in problem.frozen and isinstance(problem.initial, Mapping)
            stacked = value.detach() if shared else torch.stack([start[name].detach() for start in starts])
            self._parameters[name] = torch.nn.Parameter(stacked, requires_grad=name not in problem.frozen)
            if shared:
                self._shared.add(name)
        self._seeds = len(seeds)
        trainable = [value for value in self._parameters.values() if value.requires_grad]
        self._optimiser = problem.optimiser.build(trainable, problem.learning_rate)
        self._losses = torch.func.vmap(
            self._loss,
            in_dims=({name: None if name in self._shared else 0 for name in self._parameters}, 0, 0, 0),
        )

    def _loss(
        self, parameters: Mapping[str, torch.Tensor], tokens: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        architecture = self.problem.architecture
        assert isinstance(architecture, Architecture)  # `train` has refused others
        return interpret.loss(architecture, parameters, tokens, labels, weights, xp=torch)

    def advance_to(self, step: int) -> None:
        for now in range(self.step, step):
            _set_rate(self._optimiser, self.problem, now)
            self._optimiser.zero_grad(set_to_none=True)
            # A seed's loss depends on its own parameters alone, so the sum has every seed's gradient.
            self._losses(self._parameters, *self._batch()).sum().backward()
            self._optimiser.step()
        self.step = step

    def _batch(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        drawn = [next(stream) for stream in self._streams if stream is not None]
        if not drawn:
            whole = (self.problem.tokens, self.problem.labels, self.problem.weights)
            tokens, labels, weights = (array.expand(self._seeds, *array.shape) for array in whole)
            return tokens, labels, weights
        return self.problem.drawn(np.stack([rows for rows, _ in drawn]), np.stack([weights for _, weights in drawn]))

    def _member(self, number: int) -> dict[str, torch.Tensor]:
        return {
            name: value.detach() if name in self._shared else value.detach()[number]
            for name, value in self._parameters.items()
        }

    def losses(self) -> list[float]:
        members = [self._member(number) for number in range(self._seeds)]
        return [self.problem.loss(functools.partial(self._loss, member)) for member in members]

    def arrays(self, names: Collection[str]) -> list[dict[str, np.ndarray]]:
        return [
            {name: _numpy(value).astype(np.float64) for name, value in self._member(number).items() if name in names}
            for number in range(self._seeds)
        ]

    def state(self) -> dict[str, np.ndarray]:
        found = {f"parameter/{name}": _numpy(value) for name, value in self._parameters.items()}
        return found | _optimiser_state(self._optimiser, "optimiser/")

    def streams(self) -> list[dict[str, Any] | None]:
        return [None if stream is None else stream.state() for stream in self._streams]

    def restore(self, step: int, state: Mapping[str, np.ndarray], streams: Sequence[dict[str, Any] | None]) -> None:
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                parameter.copy_(torch.from_numpy(state[f"parameter/{name}"]))
        _restore_optimiser(self._optimiser, state, "optimiser/")
        _restore_streams(self._streams, streams)
        self.step = step


def faster(problem: Problem, seeds: Sequence[int], *, steps: int = 20) -> tuple[bool, dict[str, float]]:
    """Whether training `seeds` together is faster than one by one here, by a trial of a few steps of each.

    **Returns:** the answer, and the seconds that a step of all seeds takes either way (the better of two trials). The trial
    draws from streams of its own, so it changes no result.
    """
    seconds: dict[str, float] = {}
    for name, kind in (("one_by_one", OneByOne), ("together", Together)):
        members = kind(problem, seeds)
        members.advance_to(2)  # the first steps allocate
        times = []
        for trial in (1, 2):
            started = time.perf_counter()
            members.advance_to(2 + trial * steps)
            times.append((time.perf_counter() - started) / steps)
        seconds[name] = min(times)
    return seconds["together"] < seconds["one_by_one"], seconds


def _set_rate(optimiser: torch.optim.Optimizer, problem: Problem, step: int) -> None:
    """Put the learning rate where the schedule wants it."""
    if problem.optimiser.scheduled:
        for group in optimiser.param_groups:
            group["lr"] = problem.rate(step)


def _numpy(value: torch.Tensor) -> np.ndarray:
    return value.detach().cpu().numpy().copy()


def _optimiser_state(optimiser: torch.optim.Optimizer, prefix: str) -> dict[str, np.ndarray]:
    return {
        f"{prefix}{number}/{key}": _numpy(torch.as_tensor(value))
        for number, entries in optimiser.state_dict()["state"].items()
        for key, value in entries.items()
        if value is not None
    }


def _restore_optimiser(optimiser: torch.optim.Optimizer, state: Mapping[str, np.ndarray], prefix: str) -> None:
    entries: dict[int, dict[str, torch.Tensor]] = {}
    for name, value in state.items():
        if name.startswith(prefix):
            number, key = name.removeprefix(prefix).split("/")
            entries.setdefault(int(number), {})[key] = torch.from_numpy(np.asarray(value).copy())
    optimiser.load_state_dict({"state": entries, "param_groups": optimiser.state_dict()["param_groups"]})


def _restore_streams(streams: Sequence[Batches | None], states: Sequence[dict[str, Any] | None]) -> None:
    for stream, state in zip(streams, states, strict=True):
        if stream is not None and state is not None:
            stream.restore(state)
