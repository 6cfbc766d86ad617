"""The labelled result of an integration or a training: one type, stored as netCDF."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray

from theory.errors import UserError, nearest

TIME_UNIT = "learning rate × steps"
_ATTRIBUTES = "attributes_json"
_PARAMETER_TIME = "parameter_time"


def parameter_dims(name: str, axes: Sequence[str]) -> tuple[str, ...]:
    """Dimension names of parameter `name` with the given axes.

    A dimension is called like its axis; the second use of one axis in the same parameter is called
    `<axis>_<name>` (a third `<axis>_<name>_3`), because every dimension of an array needs a name
    of its own.

    >>> parameter_dims("P", ("embed", "embed"))
    ('embed', 'embed_P')
    """
    seen: dict[str, int] = {}
    dims = []
    for axis in axes:
        seen[axis] = seen.get(axis, 0) + 1
        uses = seen[axis]
        dims.append(axis if uses == 1 else f"{axis}_{name}" + (f"_{uses}" if uses > 2 else ""))
    return tuple(dims)


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """Parameters and series along time, from a flow or a training; matched by name and axis.

    **Arguments:** `data`: an `xarray.Dataset` with dimension `time` (units: learning rate × steps),
    one variable per parameter (dimensions `time` and the parameter's axes) and one per series
    (`loss(time)`, `norm_E(time)`, …). An ensemble of trainings has a leading dimension `seed` in
    every variable. Where parameters were stored at some of the times only, their first dimension is
    `parameter_time`.

    Attributes of a flow: `kind` ("flow" | "training"), `name` ("exact", "cut-logits", "sgd", …),
    `status` ("completed", "blow-up", …), `message`, `last_good_time`, `requested_times`, step
    counts, seconds for compiling and running, seeds, tolerances. Build one with
    `Trajectory.from_arrays`.
    """

    data: xarray.Dataset

    @classmethod
    def from_arrays(
        cls,
        times: Any,
        parameters: Mapping[str, Any],
        series: Mapping[str, Any],
        *,
        axes: Mapping[str, Sequence[str]],
        attributes: Mapping[str, Any],
        seeds: Sequence[int] | None = None,
        parameter_times: Any = None,
    ) -> Trajectory:
        """Label arrays.

        **Arguments:**

        - `times`: the save times, (time,).
        - `parameters`: name → array ([seed,] time, *axes).
        - `series`: name → array ([seed,] time, …), e.g. the loss; `axes` may name its further axes.
        - `axes`: parameter (or series) name → axis names.
        - `attributes`: kind, name, status and whatever else belongs beside the numbers; numbers,
          strings, booleans, None, lists and dicts.
        - `seeds`: seeds of an ensemble; gives every variable a leading dimension `seed`.
        - `parameter_times`: the times at which parameters were stored, when not at all of `times`.

        **Raises:** `UserError` when an array does not fit its axes or `times`.
        """
        times = np.asarray(times, dtype=np.float64)
        lead = () if seeds is None else ("seed",)
        lead_shape = () if seeds is None else (len(seeds),)
        coordinates: dict[str, Any] = {"time": ("time", times, {"units": TIME_UNIT})}
        if seeds is not None:
            coordinates["seed"] = ("seed", np.asarray(seeds, dtype=np.int64))
        parameter_dim = "time"
        stored = times
        if parameter_times is not None:
            parameter_dim = _PARAMETER_TIME
            stored = np.asarray(parameter_times, dtype=np.float64)
            coordinates[parameter_dim] = (parameter_dim, stored, {"units": TIME_UNIT})

        variables: dict[str, Any] = {}
        sizes: dict[str, tuple[int, str]] = {}
        for group, time_dim, count in (
            (parameters, parameter_dim, len(stored)),
            (series, "time", len(times)),
        ):
            is_parameter = group is parameters
            for name, value in group.items():
                if name in variables or name in coordinates:
                    raise UserError(f"two quantities of one trajectory are called {name!r}.")
                array = np.asarray(value)
                rest = array.ndim - len(lead) - 1
                if name in axes:
                    own = parameter_dims(name, axes[name])
                else:
                    own = tuple(f"{name}_{number}" for number in range(max(rest, 0)))
                if rest != len(own) or array.shape[: len(lead) + 1] != (*lead_shape, count):
                    expected = (*lead_shape, count, *own)
                    raise UserError(
                        f"{name!r} must have the shape ({', '.join(map(str, expected))}), but has shape {array.shape}."
                    )
                for dim, size in zip(own, array.shape[len(lead) + 1 :], strict=True):
                    known, first = sizes.setdefault(dim, (size, name))
                    if known != size:
                        raise UserError(f"axis {dim!r} has size {size} in {name!r}, but {known} in {first!r}.")
                role = {"role": "parameter" if is_parameter else "series"}
                variables[name] = ((*lead, time_dim, *own), array, role)
        return cls(xarray.Dataset(variables, coordinates, attrs=dict(attributes)))

    @property
    def attributes(self) -> dict[str, Any]:
        """What belongs beside the numbers: kind, name, status, step counts, seeds, versions, …"""
        return dict(self.data.attrs)

    @property
    def kind(self) -> str:
        return self.data.attrs["kind"]

    @property
    def name(self) -> str:
        return self.data.attrs["name"]

    @property
    def status(self) -> str:
        return self.data.attrs["status"]

    @property
    def times(self) -> np.ndarray:
        """The save times that hold good numbers, (time,), in learning rate × steps."""
        return self.data["time"].values

    @property
    def parameter_times(self) -> np.ndarray:
        """The times at which parameters are stored: `times`, or some of them."""
        return self.data[_PARAMETER_TIME if _PARAMETER_TIME in self.data.dims else "time"].values

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """Seeds of an ensemble, None for a single run."""
        return tuple(self.data["seed"].values.tolist()) if "seed" in self.data.dims else None

    @property
    def parameter_names(self) -> tuple[str, ...]:
        return self._names("parameter")

    @property
    def series_names(self) -> tuple[str, ...]:
        return self._names("series")

    def _names(self, role: str) -> tuple[str, ...]:
        return tuple(str(n) for n, v in self.data.data_vars.items() if v.attrs.get("role") == role)

    def __getitem__(self, name: str) -> xarray.DataArray:
        """One parameter or series, by name."""
        if name not in self.data.variables:
            raise UserError(
                f"the trajectory {self.name!r} holds no {name!r}; {nearest(name, map(str, self.data.data_vars))}"
            )
        return self.data[name]

    def parameters(self, index: int, *, seed: int | None = None) -> dict[str, np.ndarray]:
        """All stored parameters at the save time number `index` (negative counts from the end).

        **Arguments:** `index`: position in `times`; `seed`: which member of an ensemble, by its
        seed; left out, arrays keep their leading `seed` axis.

        **Raises:** `UserError` when the index is out of range, or no parameters were stored then.
        """
        if not -len(self.times) <= index < len(self.times):
            raise UserError(
                f"there is no save time number {index}; the trajectory {self.name!r} has {len(self.times)}."
            )
        time = self.times[index]
        stored = np.flatnonzero(self.parameter_times == time)
        if not stored.size:
            closest = self.parameter_times[np.argmin(np.abs(self.parameter_times - time))]
            raise UserError(
                f"no parameters are stored at t = {time:g}; the closest time with parameters is {closest:g}."
            )
        return self._parameters(int(stored[0]), seed)

    def _parameters(self, position: int, seed: int | None) -> dict[str, np.ndarray]:
        data = self.data
        if seed is not None:
            if self.seeds is None or seed not in self.seeds:
                raise UserError(f"no member has seed {seed}; {nearest(str(seed), self._seeds())}")
            data = data.sel(seed=seed)
        dim = _PARAMETER_TIME if _PARAMETER_TIME in data.dims else "time"
        return {n: np.array(data[n].isel({dim: position}).values) for n in self.parameter_names}

    def _seeds(self) -> list[str]:
        return [str(seed) for seed in self.seeds or ()]

    def at(self, time: float) -> xarray.Dataset:
        """Everything saved at `time` (equal to a save time to a relative 1e-9, no interpolation).

        **Raises:** `UserError` naming the nearest save times.
        """
        gaps = np.abs(self.times - time)
        index = int(np.argmin(gaps))
        if gaps[index] > 1e-9 * max(abs(time), 1e-300):
            around = ", ".join(f"{self.times[i]:g}" for i in sorted(np.argsort(gaps)[:2]))
            raise UserError(f"t = {time:g} is not a save time; the nearest are {around}.")
        moment = self.data.isel(time=index)
        if _PARAMETER_TIME in self.data.dims:
            stored = np.flatnonzero(self.parameter_times == self.times[index])
            if stored.size:
                return moment.isel({_PARAMETER_TIME: int(stored[0])})
            return moment.drop_dims(_PARAMETER_TIME)
        return moment

    @property
    def final(self) -> dict[str, np.ndarray]:
        """The last stored parameters, e.g. the start of a continued run."""
        return self._parameters(len(self.parameter_times) - 1, None)

    @property
    def nbytes(self) -> int:
        """Memory of all arrays in bytes."""
        return int(self.data.nbytes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write netCDF (HDF5) at `path`, atomically: a temporary sibling, then a rename."""
        _write(path, [(None, self)])

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, group: str | None = None) -> Trajectory:
        """Read what `save` wrote, or one `group` of what `save_trajectories` wrote.

        **Raises:** `UserError` when the file or the group is missing, damaged, or no trajectory.
        """
        path = Path(path)
        groups = trajectory_groups(path)
        if group is not None and group not in groups:
            raise UserError(f"{str(path)!r} has no trajectory {group!r}; {nearest(group, groups)}")
        with _whole(path):
            data = xarray.load_dataset(path, engine="h5netcdf", group=group, decode_times=False)
        where = f"the trajectory {group!r} of {str(path)!r}" if group is not None else f"the trajectory {str(path)!r}"
        if _ATTRIBUTES not in data.attrs:
            if group is None:
                raise UserError(f"{str(path)!r} holds no trajectory at its top level; name a group.")
            raise UserError(f"{where} is damaged: it has no attributes.")
        data.attrs = _decode(data.attrs[_ATTRIBUTES], where)
        if "time" not in data.variables:
            raise UserError(f"{where} is damaged: it has no times.")
        return cls(data)

    def summary(self) -> str:
        """Several lines: shapes, memory, steps, status."""
        attributes = self.data.attrs
        lines = [f"{self.kind} {self.name!r}: {self.status}"]
        if attributes.get("message"):
            lines.append(f"  {attributes['message']}")
        if not attributes.get("predicted_time_axis", True):
            lines.append(f"  {attributes['time_axis']}")
        lines += [f"  {note}" for note in attributes.get("notes", ())]
        times = self.times
        lines.append(f"  times       {len(times)} from {times[0]:g} to {times[-1]:g} ({TIME_UNIT})")
        for name in self.parameter_names:
            variable = self.data[name]
            shape = ", ".join(f"{d} {n}" for d, n in zip(variable.dims, variable.shape, strict=True))
            lines.append(f"  {name:<11} ({shape})  {_readable(variable.nbytes)}")
        lines.append(f"  series      {', '.join(self.series_names)}")
        lines.append(f"  memory      {_readable(self.nbytes)}")
        if "steps_accepted" in attributes:
            accepted, rejected = attributes["steps_accepted"], attributes["steps_rejected"]
            lines.append(f"  steps       {accepted} accepted, {rejected} rejected")
        if "seconds_run" in attributes:
            compiling, running = attributes.get("seconds_compile", 0.0), attributes["seconds_run"]
            lines.append(f"  seconds     {compiling:.2f} compiling, {running:.2f} running")
        return "\n".join(lines)

    def __repr__(self) -> str:
        ensemble = f", {len(self.seeds)} seeds" if self.seeds is not None else ""
        names = ", ".join(self.parameter_names) or "none"
        return (
            f"Trajectory({self.kind} {self.name!r}, {self.status}, {len(self.times)} times to "
            f"{self.times[-1]:g}{ensemble}, parameters {names}, "
            f"{_readable(self.nbytes)})"
        )


def save_trajectories(path: str | os.PathLike[str], trajectories: Mapping[str, Trajectory]) -> None:
    """Write several trajectories into one netCDF file, a group for each, atomically.

    **Arguments:** `path`: the file; `trajectories`: group name → trajectory.

    **Raises:** `UserError` when the folder is missing or an attribute cannot be stored; `OSError` when the disk is full.
    """
    _write(path, list(trajectories.items()))


def _write(path: str | os.PathLike[str], groups: Sequence[tuple[str | None, Trajectory]]) -> None:
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"there is no folder {str(path.parent)!r} to write {path.name!r} into.")
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        # HDF5 cannot be stopped in the middle of a file without bringing Python down, so the room is asked for first.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, 4096 + sum(trajectory.data.nbytes for _, trajectory in groups))
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)
    try:
        for number, (group, trajectory) in enumerate(groups):
            data = trajectory.data.copy()
            data.attrs = {_ATTRIBUTES: _encode(trajectory.attributes)}
            mode = "w" if number == 0 else "a"
            data.to_netcdf(temporary, engine="h5netcdf", group=group, mode=mode)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load_trajectories(path: str | os.PathLike[str]) -> dict[str, Trajectory]:
    """All trajectories that `save_trajectories` wrote, by group name, in the order written.

    **Raises:** `UserError` when the file is missing, damaged, or holds something else.
    """
    return {group: Trajectory.load(path, group=group) for group in trajectory_groups(path)}


def trajectory_groups(path: str | os.PathLike[str]) -> list[str]:
    """Names of the trajectories in one file. **Raises:** `UserError` when it is missing or damaged."""
    import h5netcdf
    import h5py

    if not Path(path).is_file():
        raise UserError(f"there is no trajectory file {str(path)!r}.")
    # h5netcdf complains on standard error of a file that it could not open, and again when that is collected.
    with _whole(path), h5py.File(path, "r") as opened, h5netcdf.File(opened, "r") as file:
        return list(file.groups)


@contextmanager
def _whole(path: str | os.PathLike[str]) -> Iterator[None]:
    """What a damaged file makes its readers say, in one sentence."""
    try:
        yield
    except Exception as error:  # a damaged file makes the readers fail in any way
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{os.fspath(path)!r} cannot be read as netCDF: {reason}") from error


def _decode(text: Any, where: str) -> dict[str, Any]:
    try:
        attributes = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged: its attributes are no JSON.") from error
    if not isinstance(attributes, dict):
        raise UserError(f"{where} is damaged: its attributes are no JSON object.")
    lost = [name for name in ("kind", "name", "status") if not isinstance(attributes.get(name), str)]
    if lost:
        raise UserError(f"{where} is damaged: its attributes lack {', '.join(lost)}.")
    return attributes


def _encode(attributes: Mapping[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        raise UserError(f"an attribute of a trajectory cannot be stored: {value!r}.")

    return json.dumps(attributes, default=plain)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _readable(nbytes: int) -> str:
    size = float(nbytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
