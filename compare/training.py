"""Real training in torch, from the arrays a flow starts from, saved on the schedule a flow is saved on."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from compare.batches import batches
from compare.module import Model, Precision, module_of
from compare.optimisers import Optimiser, as_optimiser
from compare.seeds import Members, OneByOne, Problem, Together, faster
from compare.snapshots import Snapshots, fingerprint
from simulate.schedule import Schedule, as_schedule, step_of_time, time_of_step
from simulate.trajectory import Trajectory
from theory.architectures import check_labels
from theory.data.dataset import Dataset
from theory.errors import UserError, nearest
from theory.language import Architecture
from theory.limits import check_steps

# A function of the parameters, by name, and the dataset; it returns a number or an array.
Observable = Callable[[dict[str, np.ndarray], Dataset], Any]
SeedsTogether = bool | Literal["faster"]
# Of the data, samples whose logits hold about so many numbers tell one training from another.
_LOGITS = 1 << 22


def train(
    architecture: Model,
    dataset: Dataset,
    initial: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]],
    *,
    learning_rate: float,
    save: Schedule | Iterable[float],
    until: float | None = None,
    steps: int | None = None,
    optimizer: str | Optimiser = "sgd",
    batch: int | Literal["full"] = "full",
    replacement: bool = True,
    frozen: Collection[str] = (),
    half_loss: bool = False,
    parameters: Collection[str] | None = None,
    loss_samples: int | None = None,
    seeds: Sequence[int] = (0,),
    together: SeedsTogether = False,
    observables: Mapping[str, Observable] | None = None,
    dtype: Precision = "float64",
    device: str = "cpu",
    threads: int = 1,
    snapshots: str | os.PathLike[str] | None = None,
    snapshot_seconds: float = 60.0,
    name: str | None = None,
    progress: bool = False,
) -> Trajectory:
    """Train with an optimiser of `torch.optim` and save on a schedule of flow times.

    **Arguments:**

    - `architecture`: an `Architecture`, or a model that torch code defines, such as `compare.language_models.Qwen2`.
    - `initial`: the arrays to start from, the same for every seed, or a list with those of each seed; step 0 is always
      saved, and in float64 it is these arrays bit for bit.
    - `learning_rate`: η > 0. Time is t = learning rate × step, divided by 1 − μ with momentum
      (`simulate.schedule`), for a loss that is the mean over samples and positions.
    - `save`: save times; each is moved to the nearest step.
    - `until` or `steps`: where to end, as a time or a number of steps; by default the last save
      time. The end is always saved.
    - `optimizer`: "sgd", "adam", "adamw", or an `Optimiser` with momentum, weight decay and so on. Adam and AdamW
      are not gradient flow: the result then says that its time axis is not predicted.
    - `batch`: "full" follows the gradient of the weighted law, Σ_s P(s) · loss_s; a number draws
      so many samples for each step.
    - `replacement`: batches drawn with replacement according to P(s) (independent steps), or
      without (reshuffled epochs, the last batch of an epoch being smaller; samples then count
      n P(s) times, which keeps the gradient unbiased over an epoch).
    - `frozen`: names of parameters that keep their initial arrays.
    - `half_loss`: stop at the first save time at which the loss of every seed has halved.
    - `parameters`: names of those that are saved and that the result has: by default all of an architecture, and the
      embedding and unembedding of a language model. Observables see these alone.
    - `loss_samples`: take the loss at the save times on so many samples, spread evenly over the dataset, where all of them (a
      corpus) would take longer than the training.
    - `seeds`: each seed draws its own batches. Several seeds give a leading axis `seed`. Full-batch training has several
      only where each has its own start.
    - `together`: train the seeds in one vectorised step, several times faster for small models and batches. A seed then
      agrees with itself trained alone to rounding (relative 1e-12 in float64, 1e-4 in float32 while training is
      stable), not bit for bit. "faster" tries both ways for a few steps and takes the faster one, so that two such runs
      may differ by rounding. The result says which way was taken.
    - `observables`: name → function of (parameters, dataset), evaluated at the save times.
    - `dtype`: "float64" or "float32".
    - `device`: "cpu", or "cuda" when asked for.
    - `threads`: of torch. With one, the result is the same on every number of cores; models of the size of the paper's
      controlled runs gain nothing from more, and lose much where other programs compete for the cores.
    - `snapshots`: a folder to write every saved state into, and from which the same call resumes when the run was killed; it
      ends as if it had not been. The point to resume from is written at every save time and every `snapshot_seconds`.
    - `name`: what the result calls itself; the optimiser's name by default.
    - `progress`: a progress bar on standard error.

    **Returns:** a `Trajectory` of kind "training" with these parameters, the series `loss` (of the full dataset) and the
    Frobenius norms `norm_<parameter>`. When a number stops being finite the status is "blow-up", the trajectory ends at
    the last save time at which all seeds were finite, and `blow_up_seeds` lists the seeds concerned.

    **Raises:** `UserError` for arguments out of range, a dataset that does not fit, snapshots of another training, or
    snapshots that cannot be written (what was written before stays, and the same call resumes there).
    """
    if not (isinstance(learning_rate, int | float) and math.isfinite(learning_rate)):
        raise UserError(f"learning_rate must be a positive number, but is {learning_rate!r}")
    optimiser = as_optimiser(optimizer)
    save_steps = _save_steps(save, learning_rate, optimiser.momentum, until, steps)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UserError(f"threads must be a whole number of at least 1, found {threads!r}")
    if together not in (True, False, "faster"):
        raise UserError(f"together must be true, false or 'faster', found {together!r}")
    check_training(
        architecture,
        dataset,
        initial,
        batch=batch,
        replacement=replacement,
        seeds=seeds,
        frozen=frozen,
        device=device,
    )
    wanted = saved_parameters(architecture, parameters)
    if together is not False and not isinstance(architecture, Architecture):
        raise UserError(f"the seeds of {architecture.name} are trained one by one: leave together out")
    if loss_samples is not None and (
        isinstance(loss_samples, bool) or int(loss_samples) != loss_samples or loss_samples < 1
    ):
        raise UserError(f"loss_samples must be a whole number of at least 1, found {loss_samples!r}")
    for key in observables or {}:
        if key in architecture.parameters or key == "loss" or key.startswith("norm_"):
            raise UserError(f"an observable cannot be called {key!r}: that name is taken")
    seeds = tuple(int(seed) for seed in seeds)
    name = optimiser.name if name is None else name
    problem = Problem(
        architecture,
        dataset,
        initial,
        float(learning_rate),
        optimiser,
        batch,
        replacement,
        dtype,
        device,
        tuple(frozen),
        int(save_steps[-1]),
        None if loss_samples is None else int(loss_samples),
    )
    started = time.perf_counter()
    saved: list[list[dict[str, np.ndarray]]] = []
    losses: list[list[float]] = []
    blown: list[int] = []
    stopped_by = "steps"
    with (
        reproducible(threads, device),
        Progress(console=Console(stderr=True), disable=not progress, transient=True) as bar,
    ):
        way = _Way.chosen(problem, seeds, together, snapshots)
        members: Members = (Together if way.together else OneByOne)(problem, seeds)
        store = None
        if snapshots is not None:
            store = Snapshots(snapshots, _description(problem, seeds, save_steps, threads, way.together, wanted))
            store.resume(members)
        resumed_from = members.step if store is not None and store.last_step is not None else None
        pace = _Pace(members, store, snapshot_seconds)
        task = bar.add_task(f"training {name}, η = {learning_rate:g}", total=int(save_steps[-1]))
        for step in save_steps.tolist():
            known = None if store is None else store.saved(step, wanted, len(seeds))
            if known is not None:
                states, now = known.arrays, known.losses
            else:
                pace.advance_to(step)
                states, now = members.arrays(wanted), members.losses()
            blown = [
                seed
                for seed, value, state in zip(seeds, now, states, strict=True)
                if not (math.isfinite(value) and all(np.isfinite(a).all() for a in state.values()))
            ]
            if blown:
                break
            if store is not None and known is None:
                store.save(step, states, now, dtype)
                store.keep(members)
            saved.append(states)
            losses.append(now)
            bar.update(task, completed=step)
            if half_loss and all(value <= 0.5 * first for value, first in zip(now, losses[0], strict=True)):
                stopped_by = "half-loss"
                break
    if not saved:
        raise UserError("the initial arrays or their loss are not finite")

    times = np.atleast_1d(time_of_step(save_steps[: len(saved)], learning_rate, momentum=optimiser.momentum))
    attributes: dict[str, Any] = {
        "kind": "training",
        "name": name,
        "status": "blow-up" if blown else "completed",
        "message": "",
        "last_good_time": float(times[-1]),
        "stopped_by": "blow-up" if blown else stopped_by,
        "optimizer": optimiser.name,
        "optimizer_options": optimiser.to_dict(),
        "predicted_time_axis": optimiser.predicts_time,
        "time_axis": optimiser.time_axis,
        "learning_rate": float(learning_rate),
        "batch": batch,
        "replacement": bool(replacement) if batch != "full" else None,
        "frozen": list(frozen),
        "steps": int(save_steps[len(saved) - 1]),
        "seeds": list(seeds),
        "seeds_together": way.together,
        "dtype": dtype,
        "device": device,
        "threads": threads,
        "seconds_run": time.perf_counter() - started,
        "torch": torch.__version__,
    }
    if loss_samples is not None:
        attributes["loss_samples"] = min(loss_samples, dataset.n_samples)
    if way.trial:
        attributes["seconds_per_step_tried"] = way.trial
    if resumed_from is not None:
        attributes["resumed_from_step"] = resumed_from
    if blown:
        attributes["blow_up_seeds"] = blown
        attributes["message"] = (
            f"training stopped being finite after t = {times[-1]:g} "
            f"(seeds {', '.join(map(str, blown))}); a smaller learning rate may help"
        )
    # (time, seed) lists become ([seed,] time, …) arrays.
    single = len(seeds) == 1
    stored = {key: _stack([[state[key] for state in states] for states in saved], single) for key in wanted}
    series = {"loss": _stack(losses, single)}
    for key, array in stored.items():
        axes = tuple(range(-len(architecture.parameters[key].axes), 0))
        series[f"norm_{key}"] = np.sqrt(np.sum(array**2, axis=axes))
    for key, observable in (observables or {}).items():
        values = [[np.asarray(observable(s, dataset)) for s in states] for states in saved]
        series[key] = _stack(values, single)
    return Trajectory.from_arrays(
        times,
        stored,
        series,
        axes={key: architecture.parameters[key].axes for key in wanted},
        attributes=attributes,
        seeds=None if single else seeds,
    )


class _Way:
    """Whether seeds are trained together, and the trial that decided it."""

    def __init__(self, together: bool, trial: dict[str, float] | None = None):
        self.together, self.trial = together, trial

    @classmethod
    def chosen(
        cls,
        problem: Problem,
        seeds: Sequence[int],
        together: SeedsTogether,
        snapshots: str | os.PathLike[str] | None,
    ) -> _Way:
        if together != "faster":
            return cls(together and len(seeds) > 1)
        if len(seeds) == 1:
            return cls(False)
        begun = None if snapshots is None else Snapshots.read_description(snapshots)
        if begun is not None and "seeds_together" in begun:
            # A resumed run goes on in the way in which it began.
            return cls(bool(begun["seeds_together"]))
        return cls(*faster(problem, seeds))


class _Pace:
    """Advance in portions of about a second, to write the point to resume from now and then."""

    def __init__(self, members: Members, store: Snapshots | None, seconds: float):
        self.members, self.store, self.seconds = members, store, seconds
        self.portion = 1
        self.written = time.perf_counter()

    def advance_to(self, step: int) -> None:
        members = self.members
        while members.step < step:
            started = time.perf_counter()
            members.advance_to(min(step, members.step + self.portion))
            now = time.perf_counter()
            if now - started < 0.5:
                self.portion *= 2
            elif now - started > 2.0:
                self.portion = max(1, self.portion // 2)
            if self.store is not None and members.step < step and now - self.written >= self.seconds:
                self.store.keep(members)
                self.written = time.perf_counter()


def _description(
    problem: Problem,
    seeds: Sequence[int],
    save_steps: np.ndarray,
    threads: int,
    together: bool,
    wanted: Sequence[str],
) -> dict[str, Any]:
    """What a training is: everything that its numbers depend on."""
    one = isinstance(problem.initial, Mapping)
    starts = [problem.start(number) for number in range(1 if one else len(seeds))]
    prints = [
        fingerprint({key: np.asarray(value, dtype=np.float64) for key, value in start.items()}) for start in starts
    ]
    module = module_of(problem.architecture, starts[0])
    data = {name: np.asarray(getattr(problem.dataset, name)) for name in ("tokens", "labels", "weights")}
    # The gradient at the start stands for the architecture: two that agree in it, bit for bit, are one and the same.
    some = slice(max(1, _LOGITS // (problem.dataset.n_labels * problem.dataset.length)))
    module.loss(*(torch.from_numpy(array[some].copy()) for array in data.values())).backward()
    gradient = {
        name: np.zeros(0) if value.grad is None else value.grad.numpy() for name, value in module.named().items()
    }
    # What is as it was before there was a choice goes unsaid, so that older snapshots are still taken up.
    chosen: dict[str, Any] = {}
    if tuple(wanted) != tuple(problem.architecture.parameters):
        chosen["parameters"] = list(wanted)
    if problem.judged is not None:
        chosen["loss_samples"] = problem.judged
    return chosen | {
        "architecture": problem.architecture.name,
        "dataset": problem.dataset.name,
        "data": fingerprint(data),
        "initial": prints[0] if one else prints,
        "gradient at the start": fingerprint(gradient),
        "learning_rate": problem.learning_rate,
        "optimizer": problem.optimiser.to_dict(),
        "batch": problem.batch,
        "replacement": problem.replacement,
        "frozen": sorted(problem.frozen),
        "seeds": list(seeds),
        "seeds_together": together,
        "dtype": problem.dtype,
        "device": problem.device,
        "threads": threads,
        "save_steps": save_steps.tolist(),
        "torch": torch.__version__,
    }


def _save_steps(
    save: Schedule | Iterable[float],
    learning_rate: float,
    momentum: float,
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
        check_steps(limit, time_of_step(1, learning_rate, momentum=momentum))
        end = max(step_of_time(limit, learning_rate, momentum=momentum), 1)
    wanted = schedule.steps(learning_rate, momentum=momentum)
    return np.unique(np.append(wanted[wanted <= end], end))


def saved_parameters(model: Model, wanted: Collection[str] | None = None) -> tuple[str, ...]:
    """The parameters that a training saves, in the model's order. **Raises:** `UserError` for a name that is none, or none."""
    if wanted is None:
        return tuple(getattr(model, "kept", model.parameters))
    for name in wanted:
        if name not in model.parameters:
            raise UserError(f"{model.name} has no parameter {name!r} to save; {nearest(name, model.parameters)}")
    if isinstance(wanted, str) or not wanted:
        raise UserError(f"parameters must be a list of at least one name, found {wanted!r}")
    return tuple(name for name in model.parameters if name in wanted)


def check_training(
    architecture: Model,
    dataset: Dataset,
    initial: Mapping[str, np.ndarray] | Sequence[Mapping[str, np.ndarray]],
    *,
    batch: int | Literal["full"] = "full",
    replacement: bool = True,
    seeds: Sequence[int] = (0,),
    frozen: Collection[str] = (),
    device: str = "cpu",
) -> None:
    """Refuse what `train` could not do, before any work. **Raises:** `UserError`, as `train` does."""
    one = isinstance(initial, Mapping)
    starts = (initial,) if one else tuple(initial)
    _check_seeds(seeds, batch, differ=not one)
    if not one and len(starts) != len(seeds):
        raise UserError(f"each of {len(seeds)} seeds needs its own initial arrays, found {len(starts)}")
    if batch != "full":
        batches(dataset.weights, batch, replacement=replacement)
    for start in starts:
        _check_dataset(architecture, dataset, start)
        module_of(architecture, start, device=device, frozen=frozen)


def _check_seeds(seeds: Sequence[int], batch: int | Literal["full"], *, differ: bool) -> None:
    """`differ`: whether each seed has a start of its own."""
    if not seeds:
        raise UserError("training needs at least one seed")
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise UserError(f"a seed is a whole number of at least 0, found {seed!r}")
    if len(set(seeds)) != len(seeds):
        raise UserError(f"seeds must differ from each other, found {list(seeds)}")
    if batch == "full" and len(seeds) > 1 and not differ:
        raise UserError(
            "seeds decide which batches are drawn, and full-batch training draws none: give one seed or a batch size"
        )


def _check_dataset(architecture: Model, dataset: Dataset, initial: Mapping[str, np.ndarray]) -> None:
    check_labels(architecture, dataset)
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
def reproducible(threads: int, device: str = "cpu") -> Iterator[None]:
    """Two runs of one experiment must coincide bit for bit, gathered gradients included."""
    if device == "cuda":
        # cuBLAS reads this once, before its first call; without it torch refuses to be deterministic.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
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
