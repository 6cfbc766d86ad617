"""Many flows of one field, over seeds, scales or learning rates, in whichever way a trial shows to be fastest here."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import jax
import numpy as np
import xarray

from simulate.flow import integrate
from simulate.memory import available_bytes
from simulate.plan import Options, Plan
from simulate.problem import Precision, VectorField
from simulate.solve import Code, Program, State, lowered
from simulate.trajectory import Trajectory
from theory.errors import UserError, nearest
from theory.python_files import loaded

WAYS = ("one-by-one", "vmap", "processes")
_STACKED = ("initial", "scales", "event_offsets")
"""What differs between members of one field; everything else is shared."""
_SHORT = 5.0
"""Seconds of work below which no other way is tried: compiling it takes as long."""
_MARGIN = 1.5
"""How many times as fast another way must be in the trial: a trial is short, and members do not take equal steps."""
_START_UP = 10.0
"""Seconds that processes take to start: each imports jax and compiles."""
_SHARE = 0.1
"""What starting processes for a trial may take of the predicted work: they may turn out to be slower."""


@dataclass(frozen=True)
class Member:
    """One flow of an ensemble. `labels`: what it is called by, e.g. {"seed": 3, "gamma": 0.8}."""

    field: VectorField
    initial: Mapping[str, np.ndarray]
    labels: Mapping[str, float | int]


@dataclass(frozen=True)
class Choice:
    """How the members of one field were integrated, and what the trial found.

    `seconds`: way → predicted seconds for the members that were left, for the ways that were tried; `ratio`: seconds one by
    one, from the first member's seconds per step and the steps that all took, over the seconds that the chosen way took
    (compiling apart); None without a trial. `seconds_compile`: spent on tracing and compiling, the trial's included.
    """

    way: str
    members: int
    seconds: Mapping[str, float]
    ratio: float | None
    seconds_compile: float
    remark: str

    def __str__(self) -> str:
        tried = ", ".join(f"{way} {value:.2f} s" for way, value in self.seconds.items())
        return (
            f"{self.members} members {self.way}"
            + ("" if self.ratio is None else f": {self.ratio:.2f} times as fast as one by one")
            + (f" (predicted for the rest: {tried})" if tried else "")
            + (f"; {self.remark}" if self.remark else "")
        )


@dataclass(frozen=True, eq=False)
class Ensemble:
    """The members' flows and how they were integrated.

    `data`: series with dimensions (member, time), NaN after a member's end; for each member `status`, `steps_accepted`,
    `steps_rejected`, `stop_time`, the time of each event `event_<name>` and its labels.
    """

    data: xarray.Dataset
    members: tuple[Trajectory, ...]
    choices: tuple[Choice, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        return dict(self.data.attrs)

    def bands(self, quantiles: Sequence[float] = (0.05, 0.5, 0.95)) -> xarray.Dataset:
        """Quantiles over the members at each save time, (quantile, time, …), and `members`, how many got there."""
        series = [str(name) for name, value in self.data.data_vars.items() if value.attrs.get("role") == "series"]
        alive = np.stack([np.isin(self.data["time"].values, member.times) for member in self.members])
        found: dict[str, Any] = {"members": ("time", alive.sum(0))}
        for name in series:
            values = self.data[name].transpose("member", "time", ...)
            band = np.full((len(quantiles), *values.shape[1:]), np.nan)
            for index in np.flatnonzero(alive.any(0)):
                band[:, index] = np.quantile(values.values[alive[:, index], index], quantiles, axis=0)
            found[name] = (("quantile", *values.dims[1:]), band, {"role": "series"})
        return xarray.Dataset(found, {"quantile": list(quantiles), "time": self.data["time"]})


def integrate_ensemble(
    members: Sequence[Member],
    dataset: Any,
    *,
    until: float,
    way: str = "auto",
    processes: int | None = None,
    save_parameters: str | Sequence[str] = (),
    say: Callable[[str], None] | None = None,
    snapshots: Callable[[int], Path] | None = None,
    **options: Any,
) -> Ensemble:
    """Integrate every member; equal members give equal numbers in every way, to rounding (`vmap` reorders sums).

    Members of the same field (the same object) are integrated together; a field of each learning rate is a group of its own.

    **Arguments:** `members`: fields with their initial arrays, of equal parameters and shapes; `way`: "one-by-one", "vmap"
    (over all devices, by `shard_map` where there are several), "processes", or "auto": the first member is integrated by
    itself, a few steps of all are tried by vmap, and, where there is work enough, processes are tried on a member each; the
    fastest takes the rest. A naive vmap makes every member wait for the slowest: this one goes on one by one as soon as so
    many members have ended that it pays. `processes`: how many, by default as many as CPUs. `save_parameters`: none by
    default; "ends" is not possible, since members end at different times. `say`: called with a line on each group's choice.
    `snapshots`: the number of a member → a file from which it goes on after a kill, as in `simulate.integrate`; members that
    vmap takes begin anew. `options`: as in `simulate.integrate`.

    **Returns:** an `Ensemble`; a member that fails is data. **Raises:** `UserError` as `simulate.integrate`, without members,
    and for processes that a field cannot be sent to.
    """
    if not members:
        raise UserError("an ensemble needs at least one member")
    if way not in ("auto", *WAYS):
        raise UserError(f"no way to integrate an ensemble is called {way!r}; {nearest(way, ('auto', *WAYS))}")
    if save_parameters == "ends":
        raise UserError(
            "an ensemble cannot save parameters at the ends, which differ between members: name parameters, or all"
        )
    chosen = Options(until, save_parameters=save_parameters, **options)
    groups: dict[int, list[int]] = {}
    for number, member in enumerate(members):
        groups.setdefault(id(member.field), []).append(number)
    runs: dict[int, Trajectory] = {}
    choices = []
    for numbers in groups.values():
        places = [None if snapshots is None else snapshots(number) for number in numbers]
        group = _Group(
            [members[number] for number in numbers], dataset, chosen, processes or os.cpu_count() or 1, places
        )
        found, choice = group.run(way)
        runs |= dict(zip(numbers, found, strict=True))
        choices.append(choice)
        if say is not None:
            say(str(choice))
    ordered = tuple(runs[number] for number in range(len(members)))
    return Ensemble(_labelled(members, ordered, choices), ordered, tuple(choices))


@dataclass(frozen=True)
class Stacked:
    """A program over a leading axis of members, on `devices` devices."""

    devices: int

    def over(self, program: Program) -> tuple[Callable[..., State], Callable[..., State]]:
        """`start` and `advance` of all members at once."""
        keys = (
            "initial",
            "data",
            "scales",
            "rtol",
            "atol",
            "times",
            "until",
            "event_factors",
            "event_offsets",
            "event_ends",
        )
        axes = {key: 0 if key in _STACKED else None for key in keys}
        start = jax.vmap(program.start, in_axes=(axes,))
        advance = jax.vmap(program.advance, in_axes=(0, axes, None))
        if self.devices == 1:
            return start, advance
        spec = jax.sharding.PartitionSpec
        split, whole = spec("member"), spec()
        inputs = {key: split if key in _STACKED else whole for key in keys}
        mesh = jax.sharding.Mesh(np.array(jax.devices()[: self.devices]), ("member",))
        # Each device leaves its loop when its own members have ended, so that no value is checked to be the same on all.
        over = partial(jax.shard_map, mesh=mesh, out_specs=split, check_vma=False)
        return over(start, in_specs=(inputs,)), over(advance, in_specs=(split, inputs, whole))


class _Group:
    """The members of one field."""

    def __init__(
        self,
        members: Sequence[Member],
        dataset: Any,
        options: Options,
        processes: int,
        snapshots: Sequence[Path | None],
    ):
        self.members, self.dataset, self.options, self.processes = members, dataset, options, processes
        self.snapshots = snapshots
        self.seconds_compile = 0.0
        self.per_step: float | None = None
        self._prepared: tuple[list[Plan], dict[str, Any]] | None = None
        self.arguments = {key: getattr(options, key) for key in options.__dataclass_fields__}

    def run(self, way: str) -> tuple[list[Trajectory], Choice]:
        """The members' flows, in order."""
        seconds: dict[str, float] = {}
        remark = ""
        runs: list[Trajectory] = []
        if way in ("auto", "one-by-one"):
            runs = [self._alone(0)]
            self.per_step = _per_step(runs)
            left = len(self.members) - 1
            seconds["one-by-one"] = left * runs[0].attributes["seconds_run"]
            if way == "auto" and left and seconds["one-by-one"] < _SHORT:
                way, remark = "one-by-one", f"less than {_SHORT:g} s of work: nothing else was tried"
            elif way == "auto" and left:
                way, remark, apart = self._tried(self.per_step, seconds)
                runs += apart
            else:
                way = "one-by-one"
        first = len(runs)
        rest = range(first, len(self.members))
        working = time.perf_counter()
        if way == "vmap" and len(rest):
            runs += self._together(rest)
        elif way == "processes" and len(rest):
            runs += self._apart(rest)
        else:
            runs += [self._alone(number) for number in rest]
        now = time.perf_counter()
        compiled = sum(run.attributes["seconds_compile"] for run in runs[first:])
        taken = now - working - (compiled if way != "processes" else 0.0)
        ratio = 1.0 if way == "one-by-one" else None
        if way != "one-by-one" and first < len(runs):
            steps = sum(_steps(run) for run in runs[first:])
            ratio = _per_step(runs[:1]) * steps / taken
        compiling = self.seconds_compile + sum(run.attributes["seconds_compile"] for run in runs)
        return runs, Choice(way, len(self.members), seconds, ratio, compiling, remark)

    def _alone(self, number: int) -> Trajectory:
        member = self.members[number]
        return integrate(member.field, self.dataset, member.initial, snapshot=self.snapshots[number], **self.arguments)

    def _plans(self, numbers: Sequence[int], precision: Precision) -> tuple[list[Plan], dict[str, Any]]:
        """The members' plans, and the inputs of all: what differs is stacked, padded to a multiple of the devices."""
        if self._prepared is not None and len(self._prepared[0]) == len(numbers):
            return self._prepared
        plans = [
            Plan.prepare(self.members[n].field, self.dataset, self.members[n].initial, self.options, precision)
            for n in numbers
        ]
        devices = self._devices(len(plans))
        padded = [*plans, *[plans[-1]] * (-len(plans) % devices)]
        inputs = dict(plans[0].inputs)
        for key in _STACKED:
            inputs[key] = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *(plan.inputs[key] for plan in padded))
        self._prepared = plans, inputs
        return plans, inputs

    @staticmethod
    def _devices(count: int) -> int:
        return min(len(jax.devices()), count)

    def _tried(self, per_step: float, seconds: dict[str, float]) -> tuple[str, str, list[Trajectory]]:
        """Fill in the predicted seconds of the other ways; the fastest of all, and the flows that a trial has finished."""
        rest = range(1, len(self.members))
        precision = Precision(self.options.dtype)
        remarks = []
        done: list[Trajectory] = []
        steps = seconds["one-by-one"] / per_step / len(rest)
        with precision.context():
            plans, inputs = self._plans(rest, precision)
            program = lowered(plans[0].program, inputs, Stacked(self._devices(len(plans))))
            compiled = program.compile()
            self.seconds_compile += program.spent()
            free = available_bytes()
            if free is not None and compiled.nbytes > free:
                remarks.append("vmap takes more memory than there is")
            else:
                state = jax.block_until_ready(compiled.advance(compiled.start(inputs), inputs, np.int32(1)))
                started = time.perf_counter()
                jax.block_until_ready(compiled.advance(state, inputs, np.int32(2)))
                seconds["vmap"] = (time.perf_counter() - started) / 2 * steps
        if _START_UP > _SHARE * seconds["one-by-one"]:
            remarks.append("too little work for processes")
        elif self.processes > 1:
            try:
                self._payload()
            except UserError:
                remarks.append("the field cannot be sent to processes")
            else:
                started = time.perf_counter()
                workers = min(self.processes, len(rest))
                done = self._apart(rest[:workers])
                total = time.perf_counter() - started
                slowest = max(run.attributes["seconds_run"] for run in done)
                seconds["processes"] = total + slowest * (len(rest) / workers - 1)
        fastest = min(seconds, key=lambda name: seconds[name])
        chosen = fastest if seconds[fastest] * _MARGIN < seconds["one-by-one"] else "one-by-one"
        # What vmap has compiled is for all that were left.
        return chosen, "; ".join(remarks), [] if chosen == "vmap" else done

    def _together(self, numbers: Sequence[int]) -> list[Trajectory]:
        precision = Precision(self.options.dtype)
        with precision.context():
            plans, inputs = self._plans(numbers, precision)
            program = lowered(plans[0].program, inputs, Stacked(self._devices(len(plans))))
            compiled = program.compile()
            single = lowered(plans[0].program, plans[0].inputs)
            seconds_compile = program.spent()
            started = time.perf_counter()
            state = jax.block_until_ready(compiled.start(inputs))
            budget, alone, together, until = 16, self.per_step, 0.0, float(inputs["until"])
            while True:
                code, steps = np.array(state.code), np.array(state.accepted) + np.array(state.rejected)
                going = (code == Code.RUNNING) & (np.array(state.t) < until) & (steps < self.options.max_steps)
                running = np.flatnonzero(going[: len(plans)]).tolist()
                if not running or (alone is not None and len(running) * alone < together):
                    break
                left = self.options.max_steps - int(steps[running].max())
                begun = time.perf_counter()
                state = jax.block_until_ready(compiled.advance(state, inputs, np.int32(min(budget, left))))
                together = (time.perf_counter() - begun) / min(budget, left)
                budget = min(2 * budget, 256)
            gathered = jax.tree.map(np.array, state)
            host = [_member(gathered, index) for index in range(len(plans))]
            for index in running:
                one, plan = single.compile(), plans[index]
                rest = jax.tree.map(jax.numpy.asarray, host[index])
                while not plan.over(rest):
                    left = self.options.max_steps - int(rest.steps)
                    rest = jax.block_until_ready(one.advance(rest, plan.inputs, np.int32(left)))
                host[index] = rest
            seconds = time.perf_counter() - started
            recorded = {"seconds_run": seconds / len(plans), "memory_bytes": compiled.nbytes}
            return [
                plan.trajectory(host[index], recorded | {"seconds_compile": seconds_compile if index == 0 else 0.0})
                for index, plan in enumerate(plans)
            ]

    def _payload(self) -> bytes:
        """What all members of a process share."""
        # By value: stock architectures and masks are functions inside functions, and no process can import a user's file.
        for module in loaded():
            cloudpickle.register_pickle_by_value(module)
        try:
            return cloudpickle.dumps((self.members[0].field, self.dataset, self.arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise UserError(
                f"the field {self.members[0].field.name!r} cannot be sent to processes ({error}); choose 'auto', "
                "'one-by-one' or 'vmap'"
            ) from error

    def _apart(self, numbers: Sequence[int]) -> list[Trajectory]:
        payload = self._payload()
        cache = getattr(jax.config, "jax_compilation_cache_dir", None)
        with ProcessPoolExecutor(
            min(self.processes, len(numbers)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin_worker,
            initargs=(payload, cache),
        ) as pool:
            initial = [dict(self.members[number].initial) for number in numbers]
            return list(pool.map(_work, initial, [self.snapshots[number] for number in numbers]))


_WORKER: list[Any] = []


def _begin_worker(payload: bytes, cache: str | None) -> None:
    if cache:
        from simulate.cache import enable

        enable(cache)
    _WORKER[:] = pickle.loads(payload)


def _work(initial: Mapping[str, np.ndarray], snapshot: Path | None) -> Trajectory:
    field, dataset, arguments = _WORKER
    return integrate(field, dataset, initial, snapshot=snapshot, **arguments)


def _member(state: State, index: int) -> State:
    return jax.tree.map(lambda leaf: leaf[index], state)


def _steps(run: Trajectory) -> int:
    return run.attributes["steps_accepted"] + run.attributes["steps_rejected"]


def _per_step(runs: Sequence[Trajectory]) -> float:
    return sum(run.attributes["seconds_run"] for run in runs) / max(1, sum(map(_steps, runs)))


def _labelled(members: Sequence[Member], runs: Sequence[Trajectory], choices: Sequence[Choice]) -> xarray.Dataset:
    """All members in one dataset, on all save times."""
    first = runs[0].attributes
    times = np.asarray(first["requested_times"])
    labels = {name: ("member", [member.labels[name] for member in members]) for name in members[0].labels}
    data = xarray.concat([run.data.reindex(time=times) for run in runs], "member", combine_attrs="override")
    data["time"].attrs = runs[0].data["time"].attrs
    for name in ("status", "steps_accepted", "steps_rejected", "stop_time"):
        data[name] = ("member", [run.attributes[name] for run in runs])
    for name in first["events"]:
        found = [run.attributes["events"][name]["time"] for run in runs]
        data[f"event_{name}"] = ("member", [np.nan if value is None else value for value in found])
    shared = ("name", "until", "requested_times", "solver", "rtol", "blow_up", "max_steps", "dtype", "events")
    attributes: dict[str, Any] = {
        "kind": "ensemble",
        "status": "completed" if all(r.status == "completed" for r in runs) else "partial",
    }
    attributes |= {key: first[key] for key in shared}
    attributes["events"] = {name: event["text"] for name, event in first["events"].items()}
    attributes["ways"] = [
        {
            "way": c.way,
            "members": c.members,
            "ratio": c.ratio,
            "seconds": dict(c.seconds),
            "seconds_compile": c.seconds_compile,
            "remark": c.remark,
        }
        for c in choices
    ]
    data = data.assign_coords(labels)
    data.attrs = attributes
    return data
