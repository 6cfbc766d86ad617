"""Somebody else's training run: snapshots in, a `Trajectory` out, on the time axis t = Σ η."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from compare.optimisers import NAMES
from compare.similarity import embedding_parameter
from compare.snapshots import fingerprint
from compare.tensor_files import Tensor, is_snapshot, listing, read_tensors, rounding
from simulate.schedule import time_of_step, time_of_step_at_rates
from simulate.trajectory import Trajectory
from theory import interpret
from theory.data.dataset import Dataset
from theory.data.reading import read_text
from theory.errors import UserError, nearest
from theory.language import TOKEN, Architecture
from theory.limits import MOST_STEPS

# A number; one number for each step; a function of the step; or a file: .csv, or file.py:function.
Rates = float | Sequence[float] | np.ndarray | Callable[[int], float] | str | Path
_STEP = re.compile(r"(?:step|steps|checkpoint|ckpt|iteration|iter|it)[-_=.]?(\d+)", re.IGNORECASE)


def load_run(
    source: str | Path | Sequence[str | Path],
    architecture: Architecture,
    dataset: Dataset,
    *,
    learning_rate: Rates,
    momentum: float = 0.0,
    optimizer: str = "sgd",
    steps: Sequence[int] | None = None,
    tensors: Mapping[str, str] | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str = "run",
) -> Trajectory:
    """Read a training run that somebody else made.

    **Arguments:**

    - `source`: a folder of snapshots, or a list of them in the order of training. A snapshot is a file (.npz, .npy,
      .safetensors, or a torch file with weights only) or a folder that holds `model.safetensors` or `pytorch_model.bin`
      (a Hugging Face checkpoint). A folder written by `train(snapshots=…)` is one too.
    - `learning_rate`: η: a number; a list with one for each step; a function of the step; "file.py:function"; or a CSV
      file with the columns step and learning_rate, a line for each step from 0 on. η_j is the rate of the step
      j → j + 1, for a loss that is the mean over samples and positions.
    - `momentum`: heavy-ball μ; t is divided by 1 − μ. `optimizer`: "sgd", or the name of another one, which has no
      predicted time axis: such a run is held against signatures only.
    - `steps`: the step of each snapshot, where file names do not hold them ("step-100.npz", "checkpoint-100"); for a
      folder, in the order of its names.
    - `tensors`: parameter → name of its tensor. Left out, a tensor of the parameter's name is taken, or the only one of
      its shape; a matrix may be stored transposed.
    - `sizes`: axis → size; what `dataset` fixes is known.

    **Returns:** a `Trajectory` of kind "training", attribute `source` "external". With all parameters of the architecture
    it has the series `loss`; attribute `initial_state` says whether it can be held against flows: all parameters, and
    step 0. With the embedding alone, or from a later step on, it can be held against signatures. Attribute `notes` lists
    what was found in words: gaps, half precision, snapshots that are equal, files that were passed over. When numbers
    stop being finite for good the status is "blow-up" and the trajectory ends before.

    **Raises:** `UserError`, one sentence, for snapshots that cannot be read, are out of order, repeated, change shape, do not
    fit `dataset`, or are not finite, and for learning rates that do not fit the steps. No pickle is ever executed.
    """
    started = time.perf_counter()
    check_optimizer(optimizer)
    known = _known_sizes(architecture, dataset, sizes or {})
    notes: list[str] = []
    snapshots = _in_order(source, steps, notes)
    numbers = [snapshot.step for snapshot in snapshots]
    times, rate = _times(numbers, learning_rate, momentum, notes)
    choice = _Choice(architecture, dataset, tensors or {}, known)
    states: list[dict[str, np.ndarray]] = []
    broken: tuple[_Snapshot, str] | None = None
    dtypes: set[str] = set()
    for snapshot in snapshots:
        state, read_as = choice.read(snapshot, notes)
        dtypes |= read_as
        bad = next((key for key, value in state.items() if not np.isfinite(value).all()), None)
        if bad is not None and not states:
            count = int(np.count_nonzero(~np.isfinite(state[bad])))
            raise UserError(f"{str(snapshot.path)!r} holds {count} numbers in {bad!r} that are not finite (NaN or inf)")
        if bad is None and broken is not None:
            raise UserError(
                f"{str(broken[0].path)!r} holds numbers in {broken[1]!r} that are not finite, between snapshots that are "
                "finite: it is damaged"
            )
        if bad is not None:
            broken = broken or (snapshot, bad)
            continue
        states.append(state)
    numbers, times = numbers[: len(states)], times[: len(states)]
    notes += _gaps(numbers) + _equal(snapshots, states) + _precision(dtypes)
    complete = set(choice.names) == set(architecture.parameters)
    if numbers[0]:
        notes.append(f"step 0 is missing (the first is step {numbers[0]}): held against signatures only")
    elif not complete:
        missing = sorted(set(architecture.parameters) - set(choice.names))
        notes.append(f"there is no tensor for {', '.join(missing)}: held against signatures only")
    series: dict[str, Any] = {
        f"norm_{key}": np.array([np.linalg.norm(state[key]) for state in states]) for key in choice.names
    }
    if complete:
        data = (dataset.tokens, dataset.labels, dataset.weights)
        series["loss"] = np.array([float(interpret.loss(architecture, state, *data)) for state in states])
    predicted = optimizer == "sgd"
    summed = "learning rate × steps" if rate is not None else "sum of learning rates"
    message = ""
    if broken is not None:
        message = f"the run stopped being finite after step {numbers[-1]} ({broken[1]!r} in {broken[0].path.name})"
    attributes = {
        "kind": "training",
        "source": "external",
        "name": name,
        "status": "completed" if broken is None else "blow-up",
        "message": message,
        "last_good_time": float(times[-1]),
        "optimizer": optimizer,
        "predicted_time_axis": predicted,
        "time_axis": summed
        + (f" / (1 − {momentum:g})" if momentum else "")
        + ("" if predicted else f"; no predicted time axis: {optimizer} is not gradient flow"),
        "initial_state": complete and not numbers[0],
        "learning_rate": rate,
        "steps": numbers[-1],
        "snapshot_steps": numbers,
        "files": [str(snapshot.path) for snapshot in snapshots],
        "tensors": dict(choice.names),
        "dtype": ", ".join(sorted(dtypes)),
        "notes": notes,
        "seconds_run": time.perf_counter() - started,
    }
    return Trajectory.from_arrays(
        times,
        {key: np.stack([state[key] for state in states]) for key in choice.names},
        series,
        axes={key: architecture.parameters[key].axes for key in choice.names},
        attributes=attributes,
    )


def check_optimizer(optimizer: str) -> str:
    """The name of a run's optimiser; "other" for one that is not among ours.

    **Raises:** `UserError` for an unknown name.
    """
    if optimizer not in (*NAMES, "other"):
        raise UserError(f"unknown optimizer {optimizer!r}; {nearest(str(optimizer), (*NAMES, 'other'))}")
    return optimizer


def _known_sizes(architecture: Architecture, dataset: Dataset, sizes: Mapping[str, int]) -> dict[str, int]:
    """Axis → size: what the user says and what the data fix. **Raises:** `UserError` for sizes that cannot be."""
    axes = {*architecture.axes, *dataset.sizes}
    known = dict(dataset.sizes)
    for axis, size in sizes.items():
        root = architecture.root(axis)
        if root not in axes:
            raise UserError(f"{architecture.name} has no axis {axis!r}; {nearest(str(axis), axes)}")
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise UserError(f"the size of axis {axis!r} must be a positive whole number, found {size!r}")
        if known.setdefault(root, int(size)) != size:
            whose = f"dataset {dataset.name!r}" if root in dataset.sizes else "another of its names"
            raise UserError(f"axis {axis!r} cannot have size {size}: it is {known[root]} in {whose}")
    return known


@dataclass(frozen=True)
class _Snapshot:
    path: Path
    step: int


def _in_order(
    source: str | Path | Sequence[str | Path], steps: Sequence[int] | None, notes: list[str]
) -> list[_Snapshot]:
    """The snapshots with their steps, strictly increasing."""
    listed = not isinstance(source, str | Path)
    paths = [Path(path) for path in source] if listed else _in_folder(Path(source), steps, notes)
    if not paths:
        raise UserError("a run needs at least one snapshot, but the list is empty")
    if steps is not None:
        if isinstance(steps, str) or not isinstance(steps, Sequence | np.ndarray):
            raise UserError(f"steps must be a list with the step of each snapshot, found {steps!r}")
        if len(steps) != len(paths):
            raise UserError(f"{len(steps)} steps are given for {len(paths)} snapshots")
        for step in steps:
            if isinstance(step, bool) or not isinstance(step, int | np.integer) or step < 0:
                raise UserError(f"a step is a whole number of at least 0, found {step!r}")
        found = [_Snapshot(path, int(step)) for path, step in zip(paths, steps, strict=True)]
    else:
        found = [_Snapshot(path, _step_of(path)) for path in paths]
        if not listed:
            found.sort(key=lambda snapshot: (snapshot.step, snapshot.path.name))
    for snapshot in found:
        if snapshot.step > MOST_STEPS:
            raise UserError(
                f"{snapshot.path.name!r} would be of step {snapshot.step}, more than {MOST_STEPS:,}: if that is no step, call "
                "it step-<number>, or give steps"
            )
    for before, after in zip(found, found[1:], strict=False):
        if after.step == before.step:
            raise UserError(
                f"two snapshots are of step {after.step}: {before.path.name!r} and {after.path.name!r}; leave one out"
            )
        if after.step < before.step:
            raise UserError(
                f"snapshots are out of order: {after.path.name!r} (step {after.step}) follows {before.path.name!r} "
                f"(step {before.step})"
            )
    return found


def _in_folder(folder: Path, steps: Sequence[int] | None, notes: list[str]) -> list[Path]:
    if not folder.exists():
        raise UserError(f"there is no run {str(folder)!r}")
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is a file: a run is a folder of snapshots, or a list of them")
    if is_snapshot(folder):
        return [folder]
    try:
        entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise UserError(f"the folder {str(folder)!r} cannot be read: {error.strerror}") from error
    # A folder is taken for a snapshot by its name too, so that one with damaged contents is named and not passed over.
    found = [entry for entry in entries if is_snapshot(entry) or (entry.is_dir() and _STEP.search(entry.name))]
    if steps is None:
        nameless = [entry.name for entry in found if not re.search(r"\d", _stem(entry))]
        found = [entry for entry in found if entry.name not in nameless]
        if nameless and found:
            notes.append(f"passed over because their names hold no step: {', '.join(nameless)}")
        elif nameless:
            raise UserError(
                f"the names of the snapshots in {str(folder)!r} hold no step, as {nameless[0]!r}: give steps"
            )
    if not found:
        held = ", ".join(entry.name for entry in entries[:10]) or "nothing"
        raise UserError(
            f"the folder {str(folder)!r} holds no snapshot (.npz, .npy, .safetensors, torch, or a Hugging Face folder); "
            f"it holds {held}"
        )
    if steps is not None:
        found.sort(key=lambda entry: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", entry.name)])
    return found


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def _step_of(path: Path) -> int:
    """The step in a snapshot's name: "step-100", "checkpoint-100", or its only number."""
    stem = _stem(path)
    marked = _STEP.findall(stem)
    if marked:
        return int(marked[-1])
    found = re.findall(r"\d+", stem)
    if "epoch" in stem.lower() or len(found) != 1:
        why = "counts epochs" if "epoch" in stem.lower() else "holds several numbers" if found else "holds no step"
        raise UserError(f"the name {path.name!r} {why}: call it step-<number>, or give steps")
    return int(found[0])


def _times(
    steps: Sequence[int], learning_rate: Rates, momentum: float, notes: list[str]
) -> tuple[np.ndarray, float | None]:
    """The time of each snapshot, and the learning rate where it is one number."""
    if isinstance(learning_rate, Real) and not isinstance(learning_rate, bool):
        rate = float(learning_rate)
        return np.atleast_1d(time_of_step(np.array(steps), rate, momentum=momentum)), rate
    rates = _rates(learning_rate, steps[-1])
    if len(rates) > steps[-1]:
        notes.append(f"of {len(rates)} learning rates the first {steps[-1]} are used, up to the last snapshot")
    times = np.atleast_1d(time_of_step_at_rates(np.array(steps), rates, momentum=momentum))
    for i in np.flatnonzero(np.diff(times) <= 0).tolist():
        raise UserError(f"no time passes between steps {steps[i]} and {steps[i + 1]}: the learning rate is 0 there")
    return times, None


def _rates(learning_rate: Any, count: int) -> np.ndarray:
    """One learning rate for each step."""
    if isinstance(learning_rate, str | Path):
        text = str(learning_rate)
        if text.endswith(".csv"):
            return _csv_rates(Path(text))
        if ":" not in text:
            raise UserError(f"learning_rate is a number, a list, a .csv file or file.py:function, found {text!r}")
        from theory.data.own import load_function

        learning_rate = load_function(text)
    if callable(learning_rate):
        try:
            return np.array([float(learning_rate(step)) for step in range(count)])  # pyright: ignore[reportArgumentType]
        except Exception as error:  # the user's own function
            raise UserError(f"the learning-rate function failed: {type(error).__name__}: {error}") from error
    wrong = UserError(f"learning_rate must be a number, or one number for each step, found {learning_rate!r:.60}")
    try:
        given = np.asarray(learning_rate)
        rates = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise wrong from error
    # numpy would take true for 1 and "0.1" for 0.1.
    if given.ndim != 1 or given.dtype.kind not in "iuf":
        raise wrong
    return rates


def _csv_rates(path: Path) -> np.ndarray:
    try:
        text = read_text(path)
    except UserError as error:
        raise UserError(f"the learning rates cannot be read: {error}") from error
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True))
    except csv.Error as error:
        raise UserError(f"the learning rates {str(path)!r} cannot be read: {error}") from error
    rates = []
    for number, row in enumerate(rows):
        if not {"step", "learning_rate"} <= set(row):
            raise UserError(
                f"{str(path)!r} needs the columns step and learning_rate; it has {', '.join(map(str, row))}"
            )
        try:
            step, rate = int(row["step"]), float(row["learning_rate"])
        except (TypeError, ValueError) as error:
            raise UserError(f"{path}:{number + 2}: step and learning_rate must be numbers") from error
        if step != number:
            raise UserError(
                f"{path}:{number + 2}: there must be a line for each step from 0 on, but {step} stands where {number} should"
            )
        rates.append(rate)
    return np.array(rates)


class _Choice:
    """Which tensor is which parameter: decided on the first snapshot, the same for all."""

    def __init__(
        self, architecture: Architecture, dataset: Dataset, tensors: Mapping[str, str], sizes: Mapping[str, int]
    ):
        self.architecture, self.dataset = architecture, dataset
        self.embedding = embedding_parameter(architecture)
        for parameter in tensors:
            if parameter not in architecture.parameters:
                raise UserError(
                    f"{architecture.name} has no parameter {parameter!r} to read; "
                    f"{nearest(parameter, architecture.parameters)}"
                )
        self.given = tensors
        self.names: dict[str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.expected = {
            parameter: tuple(sizes.get(architecture.root(axis), 0) for axis in spec.axes)
            for parameter, spec in architecture.parameters.items()
        }

    def read(self, snapshot: _Snapshot, notes: list[str]) -> tuple[dict[str, np.ndarray], set[str]]:
        """The parameters of a snapshot, float64, in the architecture's axes; and the dtypes they were stored in."""
        held = read_tensors(snapshot.path)
        if not self.names:
            self._choose(snapshot.path, held, notes)
        state: dict[str, np.ndarray] = {}
        for parameter, tensor_name in self.names.items():
            if tensor_name not in held:
                raise UserError(
                    f"{str(snapshot.path)!r} has no tensor {tensor_name!r} for {parameter!r}; it holds {listing(held)}"
                )
            tensor = held[tensor_name]
            if tensor.shape != self.shapes[parameter]:
                raise UserError(
                    f"the shape of {tensor_name!r} changes in mid-run: {self.shapes[parameter]} first, {tensor.shape} in "
                    f"{str(snapshot.path)!r}"
                )
            if not tensor.dtype.startswith(("float", "bfloat")):
                raise UserError(
                    f"{tensor_name!r} in {str(snapshot.path)!r} has dtype {tensor.dtype}: parameters are real numbers in "
                    "floating point"
                )
            array = tensor.read()
            state[parameter] = array.T if self._transposed(parameter, tensor.shape) else array
        return state, {held[name].dtype for name in self.names.values()}

    def _fits(self, parameter: str, shape: tuple[int, ...]) -> bool:
        """Whether a shape is the parameter's; a size that is not known fits any."""
        expected = self.expected[parameter]
        return len(shape) == len(expected) and all(e in (0, n) for e, n in zip(expected, shape, strict=True))

    def _transposed(self, parameter: str, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2 and not self._fits(parameter, shape) and self._fits(parameter, shape[::-1])

    def _choose(self, path: Path, held: Mapping[str, Tensor], notes: list[str]) -> None:
        for parameter in self.architecture.parameters:
            chosen = self._named(parameter, path, held) or self._by_shape(parameter, held)
            if chosen is None:
                continue
            self._check(parameter, chosen, path, held)
            self.names[parameter] = chosen
            self.shapes[parameter] = held[chosen].shape
            # Sizes that nothing else fixes are read off the first parameter that has them.
            shape = held[chosen].shape
            shape = shape[::-1] if self._transposed(parameter, shape) else shape
            if shape != held[chosen].shape:
                notes.append(f"{chosen!r} is stored transposed")
            spec = self.architecture.parameters[parameter]
            known = {self.architecture.root(axis): size for axis, size in zip(spec.axes, shape, strict=True)}
            for other, its in self.architecture.parameters.items():
                axes = [self.architecture.root(axis) for axis in its.axes]
                self.expected[other] = tuple(
                    size or known.get(axis, 0) for axis, size in zip(axes, self.expected[other], strict=True)
                )
        taken = list(self.names.values())
        for tensor_name in taken:
            sharing = [parameter for parameter, name in self.names.items() if name == tensor_name]
            if len(sharing) > 1:
                raise UserError(
                    f"{', '.join(sharing)} would all be read from {tensor_name!r} in {str(path)!r}; it holds "
                    f"{listing(held)}: name the tensor of each"
                )
        if self.embedding not in self.names:
            axes = self.architecture.parameters[self.embedding].axes
            raise UserError(
                f"no tensor of {str(path)!r} can be told to be the embedding {self.embedding!r}, axes ({', '.join(axes)}) "
                f"with {self.dataset.n_tokens} tokens; it holds {listing(held)}: name one with "
                f"tensors = {{ {self.embedding} = … }}"
            )

    def _named(self, parameter: str, path: Path, held: Mapping[str, Tensor]) -> str | None:
        if parameter in self.given:
            name = self.given[parameter]
            if name not in held:
                raise UserError(
                    f"{str(path)!r} has no tensor {name!r} for {parameter!r}; {nearest(name, held)}"
                    if len(held) <= 20
                    else f"{str(path)!r} has no tensor {name!r} for {parameter!r}; it holds {listing(held)}"
                )
            return name
        return next((name for name in (parameter, f"{parameter}.weight") if name in held), None)

    def _by_shape(self, parameter: str, held: Mapping[str, Tensor]) -> str | None:
        """The only tensor of the parameter's shape, where that shape has a size to know it by."""
        if not any(self.expected[parameter]) or not self.architecture.parameters[parameter].axes:
            return None
        others = {*self.given.values(), *self.architecture.parameters}
        fitting = [
            name
            for name, tensor in held.items()
            if name not in others and (self._fits(parameter, tensor.shape) or self._transposed(parameter, tensor.shape))
        ]
        return fitting[0] if len(fitting) == 1 else None

    def _check(self, parameter: str, name: str, path: Path, held: Mapping[str, Tensor]) -> None:
        shape = held[name].shape
        if self._fits(parameter, shape) or self._transposed(parameter, shape):
            return
        spec, expected = self.architecture.parameters[parameter], self.expected[parameter]
        if TOKEN in spec.axes and len(shape) == len(spec.axes):
            place = spec.axes.index(TOKEN)
            if shape[place] != expected[place]:
                raise UserError(
                    f"wrong vocabulary size: {name!r} in {str(path)!r} has {shape[place]} rows, but dataset "
                    f"{self.dataset.name!r} has {expected[place]} tokens"
                )
        wanted = ", ".join(f"{axis} {size or 'any'}" for axis, size in zip(spec.axes, expected, strict=True))
        raise UserError(f"{name!r} in {str(path)!r} has shape {shape}, but {parameter!r} has ({wanted})")


def _gaps(steps: Sequence[int]) -> list[str]:
    """Steps that are missing from an even spacing, where most steps keep one."""
    differences = np.diff(steps)
    if len(differences) < 3:
        return []
    spacing = int(np.bincount(differences).argmax()) if differences.max() < 10**7 else int(np.median(differences))
    odd = [i for i, difference in enumerate(differences) if difference != spacing]
    if 2 * len(odd) >= len(differences) or not odd:
        return []
    pieces = ", ".join(f"{steps[i]} to {steps[i + 1]}" for i in odd[:5])
    return [f"snapshots are {spacing} steps apart, but there is a gap from step {pieces}"]


def _equal(snapshots: Sequence[_Snapshot], states: Sequence[Mapping[str, np.ndarray]]) -> list[str]:
    """Snapshots of one state under two steps: published runs have served late weights as early ones."""
    seen: dict[str, _Snapshot] = {}
    notes = []
    for snapshot, state in zip(snapshots, states, strict=False):
        other = seen.setdefault(fingerprint(state), snapshot)
        if other is not snapshot:
            notes.append(f"steps {other.step} and {snapshot.step} hold the same numbers")
    return notes[:5]


def _precision(dtypes: Iterable[str]) -> list[str]:
    return [
        f"stored in {dtype}, so that numbers are good to a relative {rounding(dtype):.0e}"
        for dtype in sorted(dtypes)
        if rounding(dtype) is not None
    ]
