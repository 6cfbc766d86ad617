"""Real stochastic gradient descent in torch, from the arrays a flow starts from, saved on the
schedule a flow is saved on."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from compare.module import ArchitectureModule, Precision
from simulate.schedule import Schedule, as_schedule, step_of_time, time_of_step
from simulate.trajectory import Trajectory
from theory.data.dataset import Dataset
from theory.errors import UserError
from theory.language import Architecture

# A function of the parameters, by name, and the dataset; it returns a number or an array.
Observable = Callable[[dict[str, np.ndarray], Dataset], Any]


def train(
    architecture: Architecture,
    dataset: Dataset,
    initial: Mapping[str, np.ndarray],
    *,
    learning_rate: float,
    save: Schedule | Iterable[float],
    until: float | None = None,
    steps: int | None = None,
    batch: int | Literal["full"] = "full",
    replacement: bool = True,
    half_loss: bool = False,
    seeds: Sequence[int] = (0,),
    observables: Mapping[str, Observable] | None = None,
    dtype: Precision = "float64",
    threads: int = 1,
    name: str = "sgd",
    progress: bool = False,
) -> Trajectory:
    """Train with plain SGD (`torch.optim.SGD`) and save on a schedule of flow times.

    **Arguments:**

    - `initial`: the arrays to start from, the same for every seed; step 0 is always saved, and in
      float64 it is these arrays bit for bit.
    - `learning_rate`: η > 0. Time is t = learning rate × step (`simulate.schedule`), for a loss
      that is the mean over samples and positions.
    - `save`: save times; each is moved to the nearest step.
    - `until` or `steps`: where to end, as a time or a number of steps; by default the last save
      time. The end is always saved.
    - `batch`: "full" follows the gradient of the weighted law, Σ_s P(s) · loss_s; a number draws
      so many samples for each step.
    - `replacement`: batches drawn with replacement according to P(s) (independent steps), or
      without (reshuffled epochs, the last batch of an epoch being smaller; samples then count
      n P(s) times, which keeps the gradient unbiased over an epoch).
    - `half_loss`: stop at the first save time at which the loss of every seed has halved.
    - `seeds`: each seed draws its own batches. Several seeds give a leading axis `seed`.
    - `observables`: name → function of (parameters, dataset), evaluated at the save times.
    - `dtype`: "float64" or "float32".
    - `threads`: of torch. With one, the result is the same on every number of cores; models of the size of the paper's
      controlled runs gain nothing from more, and lose much where other programs compete for the cores.
    - `name`: what the result calls itself.
    - `progress`: a progress bar on standard error.

    **Returns:** a `Trajectory` of kind "training" with every parameter, the series `loss` (of the full dataset) and the
    Frobenius norms `norm_<parameter>`. When a number stops being finite the status is "blow-up", the trajectory ends at
    the last save time at which all seeds were finite, and `blow_up_seeds` lists the seeds concerned.

    **Raises:** `UserError` for arguments out of range or a dataset that does not fit.
    """
    if not (isinstance(learning_rate, int | float) and math.isfinite(learning_rate)):
        raise UserError(f"learning_rate must be a positive number, but is {learning_rate!r}")
    save_steps = _save_steps(save, learning_rate, until, steps)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UserError(f"threads must be a whole number of at least 1, found {threads!r}")
    check_training(architecture, dataset, initial, batch=batch, replacement=replacement, seeds=seeds)
    for key in observables or {}:
        if key in architecture.parameters or key == "loss" or key.startswith("norm_"):
            raise UserError(f"an observable cannot be called {key!r}: that name is taken")
    seeds = tuple(int(seed) for seed in seeds)
    runs = [_Run(architecture, dataset, initial, learning_rate, batch, replacement, seed, dtype) for seed in seeds]
    started = time.perf_counter()
    saved: list[list[dict[str, np.ndarray]]] = []
    losses: list[list[float]] = []
    blown: list[int] = []
    stopped_by = "steps"
    with _reproducible(threads), Progress(console=Console(stderr=True), disable=not progress, transient=True) as bar:
        task = bar.add_task(f"training {name}, η = {learning_rate:g}", total=int(save_steps[-1]))
        for step in save_steps.tolist():
            for run in runs:
                run.advance_to(step)
            now = [run.full_loss() for run in runs]
            states = [run.module.arrays() for run in runs]
            blown = [
                run.seed
                for run, value, state in zip(runs, now, states, strict=True)
                if not (math.isfinite(value) and all(np.isfinite(a).all() for a in state.values()))
            ]
            if blown:
                break
            saved.append(states)
            losses.append(now)
            bar.update(task, completed=step)
            if half_loss and all(value <= 0.5 * first for value, first in zip(now, losses[0], strict=True)):
                stopped_by = "half-loss"
                break
    if not saved:
        raise UserError("the initial arrays or their loss are not finite")

    times = np.atleast_1d(time_of_step(save_steps[: len(saved)], learning_rate))
    attributes: dict[str, Any] = {
        "kind": "training",
        "name": name,
        "status": "blow-up" if blown else "completed",
        "message": "",
        "last_good_time": float(times[-1]),
        "stopped_by": "blow-up" if blown else stopped_by,
        "optimizer": "sgd",
        "learning_rate": float(learning_rate),
        "batch": batch,
        "replacement": bool(replacement) if batch != "full" else None,
        "steps": int(save_steps[len(saved) - 1]),
        "seeds": list(seeds),
        "dtype": dtype,
        "threads": threads,
        "seconds_run": time.perf_counter() - started,
        "torch": torch.__version__,
    }
    if blown:
        attributes["blow_up_seeds"] = blown
        attributes["message"] = (
            f"training stopped being finite after t = {times[-1]:g} "
            f"(seeds {', '.join(map(str, blown))}); a smaller learning rate may help"
        )
    # (time, seed) lists become ([seed,] time, …) arrays.
    single = len(seeds) == 1
    parameters = {
        key: _stack([[state[key] for state in states] for states in saved], single) for key in architecture.parameters
    }
    series = {"loss": _stack(losses, single)}
    for key, array in parameters.items():
        axes = tuple(range(-len(architecture.parameters[key].axes), 0))
        series[f"norm_{key}"] = np.sqrt(np.sum(array**2, axis=axes))
    for key, observable in (observables or {}).items():
        values = [[np.asarray(observable(s, dataset)) for s in states] for states in saved]
        series[key] = _stack(values, single)
    return Trajectory.from_arrays(
        times,
        parameters,
        series,
        axes={key: spec.axes for key, spec in architecture.parameters.items()},
        attributes=attributes,
        seeds=None if single else seeds,
    )


class _Run:
    """One seed: a module, its optimiser and its stream of batches."""

    def __init__(
        self,
        architecture: Architecture,
        dataset: Dataset,
        initial: Mapping[str, np.ndarray],
        learning_rate: float,
        batch: int | Literal["full"],
        replacement: bool,
        seed: int,
        dtype: Precision,
    ):
        self.seed = seed
        self.module = ArchitectureModule(architecture, initial, dtype=dtype)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=learning_rate)
        self.tokens = torch.tensor(dataset.tokens)
        self.labels = torch.tensor(dataset.labels)
        precision = next(self.module.parameters()).dtype
        self.weights = torch.tensor(dataset.weights, dtype=precision)
        self.batches = None if batch == "full" else batches(dataset.weights, batch, replacement=replacement, seed=seed)
        self.step = 0

    def advance_to(self, step: int) -> None:
        while self.step < step:
            self.optimizer.zero_grad(set_to_none=True)
            self._batch_loss().backward()
            self.optimizer.step()
            self.step += 1

    def _batch_loss(self) -> torch.Tensor:
        if self.batches is None:
            return self.module.loss(self.tokens, self.labels, self.weights)
        rows, weights = next(self.batches)
        chosen = torch.from_numpy(rows)
        return self.module.loss(
            self.tokens[chosen],
            self.labels[chosen],
            torch.from_numpy(weights).to(self.weights.dtype),
        )

    def full_loss(self) -> float:
        with torch.no_grad():
            return float(self.module.loss(self.tokens, self.labels, self.weights))


def batches(
    probabilities: np.ndarray, size: int, *, replacement: bool = True, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """An endless stream of batches: (row numbers, weights), each (sample,).

    With replacement every row is drawn independently with its probability and weighs 1 / `size`,
    so the batch gradient is an unbiased estimate of the gradient of the law. Without, the rows
    are shuffled anew for each epoch and cut into batches, the last one smaller; row s then weighs
    n P(s) / (rows in the batch).

    **Raises:** `UserError` when `size` is no whole number ≥ 1, or exceeds the rows to draw from
    without replacement.
    """
    count = len(probabilities)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise UserError(f"batch must be 'full' or a whole number of at least 1, found {size!r}")
    if not replacement and size > count:
        raise UserError(f"a batch of {size} cannot be drawn without replacement from {count} samples")
    # A generator function would raise only when the first batch is asked for.
    generator = np.random.default_rng(seed)
    if replacement:
        return _with_replacement(np.asarray(probabilities), size, generator)
    return _reshuffled(np.asarray(probabilities), size, generator)


def _with_replacement(
    probabilities: np.ndarray, size: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    cumulative = np.cumsum(probabilities)
    cumulative /= cumulative[-1]
    weights = np.full(size, 1.0 / size)
    while True:
        yield np.searchsorted(cumulative, generator.random(size), side="right"), weights


def _reshuffled(
    probabilities: np.ndarray, size: int, generator: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    count = len(probabilities)
    while True:
        order = generator.permutation(count)
        for start in range(0, count, size):
            rows = order[start : start + size]
            yield rows, count * probabilities[rows] / len(rows)


def _save_steps(
    save: Schedule | Iterable[float],
    learning_rate: float,
    until: float | None,
    steps: int | None,
) -> np.ndarray:
    if until is not None and steps is not None:
        raise UserError("give either until (a time) or steps, not both")
    schedule = as_schedule(save)
    if steps is not None:
        if isinstance(steps, bool) or int(steps) != steps or steps < 1:
            raise UserError(f"steps must be a whole number of at least 1, found {steps!r}")
        end = int(steps)
    else:
        limit = schedule.until if until is None else until
        if not (math.isfinite(limit) and limit > 0):
            raise UserError(f"until must be a positive time, found {limit!r}")
        end = max(step_of_time(limit, learning_rate), 1)
    wanted = schedule.steps(learning_rate)
    return np.unique(np.append(wanted[wanted <= end], end))


def check_training(
    architecture: Architecture,
    dataset: Dataset,
    initial: Mapping[str, np.ndarray],
    *,
    batch: int | Literal["full"] = "full",
    replacement: bool = True,
    seeds: Sequence[int] = (0,),
) -> None:
    """Refuse what `train` could not do, before any work. **Raises:** `UserError`, as `train` does."""
    _check_seeds(seeds, batch)
    if batch != "full":
        batches(dataset.weights, batch, replacement=replacement)
    _check_dataset(architecture, dataset, initial)
    ArchitectureModule(architecture, initial)


def _check_seeds(seeds: Sequence[int], batch: int | Literal["full"]) -> None:
    if not seeds:
        raise UserError("training needs at least one seed")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise UserError(f"a seed is a whole number of at least 0, found {seed!r}")
    if len(set(seeds)) != len(seeds):
        raise UserError(f"seeds must differ from each other, found {list(seeds)}")
    if batch == "full" and len(seeds) > 1:
        raise UserError(
            "seeds decide which batches are drawn, and full-batch training draws none: give one seed or a batch size"
        )


def _check_dataset(architecture: Architecture, dataset: Dataset, initial: Mapping[str, np.ndarray]) -> None:
    if architecture.labels_per_position != dataset.labels_per_position:
        needs = "one label per " + ("position" if architecture.labels_per_position else "sequence")
        has = "one per " + ("position" if dataset.labels_per_position else "sequence")
        raise UserError(f"{architecture.name} needs {needs}, but {dataset.name!r} has {has}")
    for name, spec in architecture.parameters.items():
        if name not in initial:
            continue
        for axis, found in zip(spec.axes, np.shape(initial[name]), strict=False):
            wanted = dataset.sizes.get(architecture.root(axis), found)
            if found != wanted:
                raise UserError(
                    f"parameter {name!r} has {found} places on axis {axis!r}, but dataset {dataset.name!r} has {wanted}"
                )


@contextmanager
def _reproducible(threads: int) -> Iterator[None]:
    """Two runs of one experiment must coincide bit for bit, gathered gradients included."""
    deterministic, before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        torch.set_num_threads(before)


def _stack(values: Sequence[Sequence[Any]], single: bool) -> np.ndarray:
    """(time, seed) nested lists as an array ([seed,] time, …)."""
    array = np.swapaxes(np.array(values, dtype=np.float64), 0, 1)
    return array[0] if single else array
