"""Integrate a vector field over parameters: a thin layer over diffrax that treats failure as data."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix

from simulate.schedule import Schedule, as_schedule
from simulate.solvers import solver_description
from simulate.trajectory import Trajectory
from theory.errors import NumericalFailure, UserError, nearest

Observable = Callable[[Mapping[str, Any], Any], Any]


class VectorField(Protocol):
    """What `integrate` asks of a field.

    `name` says which flow it is ("exact", "cut-logits", "expanded"); `data(dataset)` gives the
    arrays that it reads; calling it gives the time derivative of every parameter. Optional: `loss`,
    a function of (parameters, data), and `axes`, parameter name → axis names.
    """

    @property
    def name(self) -> str: ...

    def data(self, dataset: Any) -> Any: ...

    def __call__(self, t: Any, parameters: dict[str, Any], data: Any) -> Mapping[str, Any]: ...


def integrate(
    field: VectorField,
    dataset: Any,
    initial: Mapping[str, np.ndarray],
    *,
    until: float,
    save: Schedule | Iterable[float] | None = None,
    observables: Mapping[str, Observable] | None = None,
    save_parameters: str | Sequence[str] = "all",
    rtol: float = 1e-8,
    atol: float | None = None,
    solver: str = "tsit5",
    max_steps: int = 100_000,
    blow_up: float = 1e6,
    dtype: str = "float64",
    axes: Mapping[str, Sequence[str]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Trajectory:
    """Integrate dθ/dt = field(t, θ, data) from t = 0, in time units of learning rate × steps.

    **Arguments:**

    - `field`: see `VectorField`.
    - `dataset`: handed to `field.data`.
    - `initial`: parameter name → array.
    - `until`: the end time.
    - `save`: a `Schedule` or sorted times in [0, `until`]; 101 equally spaced ones by default.
    - `observables`: name → function of (parameters, data), computed during the solve. The loss
    (when
      the field has one) and the Frobenius norm `norm_<parameter>` are always among them.
    - `save_parameters`: "all" (at every save time), "ends" (the first time and the end), or the
      names of those parameters that are kept.

    More rarely needed:

    - `rtol`, `atol`: tolerances of the step size control, met by each parameter by itself. `atol`
    is
      relative to nothing; left out, it is `rtol` times the parameter's initial root mean square (up
      to a factor √2), so that the early phase of a small initialisation is resolved.
    - `solver`: see `simulate.solvers`. An implicit one builds a dense Jacobian: (all parameters)².
    - `max_steps`: accepted and rejected steps together.
    - `blow_up`: the flow counts as blown up once the norm of all parameters passes `blow_up` times
      the larger of 1 and the initial norm, or steps of 1e-14 `until` are still too long while the
      norm grows.
    - `dtype`: "float64"; "float32" warns, since small initialisations are soon lost in rounding.
    - `axes`: parameter or observable name → axis names, beside those that the field knows.
    - `attributes`: further entries for the trajectory's attributes.
    - `progress`: a progress line on standard error, when that is a terminal.

    **Returns:** a `Trajectory` of kind "flow". Its `status` is "completed", or "blow-up",
    "max-steps", "step-collapse", "non-finite", "solver-failed"; then it holds the save times before
    the failure, `requested_times` lists all of them, `stop_time` says where the integration ended
    and `message` what to do. Between steps the numbers are interpolated by the solver, with errors of
    up to some 10 `rtol` ("dopri8": 1000 `rtol`).

    A second call with the same field and observables (the same objects) and arrays of equal shapes
    compiles nothing.

    **Raises:** `UserError` for bad times, names, shapes or non-finite initial values.
    """
    schedule = _checked_schedule(save, until)
    names = tuple(initial)
    if save_parameters in ("all", "ends"):
        kept, ends = names, save_parameters == "ends"
    else:
        if isinstance(save_parameters, str):
            raise UserError(f"save_parameters must be 'all', 'ends' or a list of names, but is {save_parameters!r}.")
        kept, ends = tuple(save_parameters), False
        for name in kept:
            if name not in names:
                raise UserError(f"there is no parameter {name!r} to save; {nearest(name, names)}.")
    observables = dict(observables or {})
    for name in observables:
        if name in names or name == "loss" or name.startswith("norm_"):
            raise UserError(f"an observable cannot be called {name!r}; that name is taken.")
    if not blow_up > 1:
        raise UserError(f"blow_up must be greater than 1, but is {blow_up!r}.")

    precision = _Precision(dtype)
    with precision.context():
        problem = _Problem.prepare(field, dataset, initial, precision, solver, rtol, atol, max_steps)
        inputs = problem.inputs | {
            "times": precision.array(schedule.times),
            "until": precision.array(until),
            "limit": precision.array(blow_up * max(1.0, problem.norm)),
        }
        shown = progress and sys.stderr.isatty()
        key = ("flow", *problem.key, tuple(observables.items()), kept, ends, shown)
        solve, compiling = _compiled(key, lambda: _flow_solve(problem, observables, kept, ends, shown), inputs)
        started = time.perf_counter()
        output = jax.block_until_ready(solve(inputs))
        running = time.perf_counter() - started
    output = jax.tree.map(np.asarray, output)

    end = _ending(output, problem, until, blow_up, max_steps)
    times = schedule.times
    series = output["series"]
    good = _good_count(output["times"], series, names)
    if end.status == "non-finite":
        good = min(good, 1)
    times, series = times[:good], {name: value[:good] for name, value in series.items()}
    if ends:
        stored = {n: output["parameters"][n] for n in kept}
        parameter_times = np.array([0.0, end.time])
        if end.time == 0 or not all(np.isfinite(value).all() for value in stored.values()):
            stored, parameter_times = {n: v[:1] for n, v in stored.items()}, parameter_times[:1]
    else:
        stored = {n: output["parameters"][n][:good] for n in kept}
        parameter_times = None
    recorded = {
        "kind": "flow",
        "name": field.name,
        "status": end.status,
        "message": end.message,
        "stop_time": end.time,
        "last_good_time": float(times[-1]) if len(times) else None,
        "requested_times": schedule.times.tolist(),
        "until": float(until),
        "steps_accepted": int(output["accepted"]),
        "steps_rejected": int(output["rejected"]),
        "seconds_compile": compiling,
        "seconds_run": running,
        "solver": solver,
        "rtol": float(rtol),
        "atol": {name: float(value) for name, value in problem.atol.items()},
        "blow_up": float(blow_up),
        "dtype": dtype,
    }
    return Trajectory.from_arrays(
        times,
        stored,
        series,
        axes=dict(getattr(field, "axes", {})) | dict(axes or {}),
        attributes=recorded | dict(attributes or {}),
        parameter_times=parameter_times,
    )


def time_of_loss(
    field: VectorField,
    dataset: Any,
    initial: Mapping[str, np.ndarray],
    *,
    max_time: float,
    fraction: float | None = None,
    drop: float | None = None,
    solver: str = "tsit5",
    rtol: float = 1e-8,
    atol: float | None = None,
    max_steps: int = 100_000,
    blow_up: float = 1e6,
    dtype: str = "float64",
) -> float:
    """The time at which the loss has fallen to `fraction` of its initial value, or by `drop` nats.

    **Arguments:** exactly one of `fraction` in (0, 1) and `drop` > 0; `max_time`: where to give up;
    the others as in `integrate`. The field must have a `loss`.

    **Raises:** `NumericalFailure` when the loss does not fall so far before `max_time`.
    """
    if (fraction is None) == (drop is None):
        raise UserError("the time of a loss needs exactly one of fraction and drop.")
    if fraction is not None and not 0 < fraction < 1:
        raise UserError(f"the fraction of the loss must lie between 0 and 1, but is {fraction!r}.")
    if drop is not None and not drop > 0:
        raise UserError(f"the drop of the loss must be positive, but is {drop!r}.")
    if not (math.isfinite(max_time) and max_time > 0):
        raise UserError(f"max_time must be a positive number, but is {max_time!r}.")
    if getattr(field, "loss", None) is None:
        raise UserError(f"the field {field.name!r} has no loss whose fall could be timed.")
    precision = _Precision(dtype)
    with precision.context():
        problem = _Problem.prepare(field, dataset, initial, precision, solver, rtol, atol, max_steps)
        inputs = problem.inputs | {
            "until": precision.array(max_time),
            "limit": precision.array(blow_up * max(1.0, problem.norm)),
            "fraction": precision.array(1.0 if fraction is None else fraction),
            "drop": precision.array(0.0 if drop is None else drop),
        }
        solve, _ = _compiled(("loss", *problem.key), lambda: _loss_solve(problem), inputs)
        output = jax.tree.map(np.asarray, solve(inputs))
    wanted = f"{fraction:g} of its start" if drop is None else f"{drop:g} below its start"
    if not output["reached"]:
        raise NumericalFailure(
            f"the loss of the {field.name} flow started at {float(output['start']):.6g} and was "
            f"{float(output['loss']):.6g} at t = {float(output['time']):g}, so it did not fall to "
            f"{wanted} by max_time = {max_time:g}."
        )
    return float(output["time"])


def saved_bytes(
    initial: Mapping[str, np.ndarray],
    schedule: Schedule,
    save_parameters: str | Sequence[str] = "all",
) -> int:
    """Memory of the parameters that a float64 flow will save, in bytes."""
    names = initial if isinstance(save_parameters, str) else save_parameters
    count = 2 if save_parameters == "ends" else len(schedule)
    return 8 * count * sum(int(np.size(initial[name])) for name in names)


@dataclass(frozen=True)
class _Precision:
    """The one place where the floating point precision of a solve is chosen."""

    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ("float64", "float32"):
            choices = nearest(str(self.dtype), ["float64", "float32"])
            raise UserError(f"unknown dtype {self.dtype!r}; {choices}.")
        if self.dtype == "float32":
            warnings.warn(
                "integrating in float32: differences of relative size 1e-7 are lost, and with them "
                "the early phase of a small initialisation; leave dtype='float64' unless you know "
                "that this does not matter.",
                UserWarning,
                stacklevel=4,
            )

    def context(self) -> Any:
        return jax.enable_x64(self.dtype == "float64")

    def array(self, value: Any) -> jax.Array:
        return jnp.asarray(np.asarray(value), dtype=self.dtype)


@dataclass(frozen=True)
class _Problem:
    """A field with its arrays on the device, in units in which every parameter starts at order 1.

    The step size control has one scalar absolute tolerance. Dividing each parameter by a power of
    two near its initial root mean square (exact in floating point) makes that scalar a tolerance
    for each parameter by itself.
    """

    field: VectorField
    data: Any
    initial: dict[str, jax.Array]
    scales: dict[str, float]
    norm: float
    rtol: float
    scaled_atol: float
    solver: str
    max_steps: int
    precision: _Precision

    @classmethod
    def prepare(
        cls,
        field: VectorField,
        dataset: Any,
        initial: Mapping[str, np.ndarray],
        precision: _Precision,
        solver: str,
        rtol: float,
        atol: float | None,
        max_steps: int,
    ) -> _Problem:
        solver_description(solver)
        if not initial:
            raise UserError("a flow needs at least one parameter to start from.")
        if not 0 < rtol < 1:
            raise UserError(f"rtol must lie between 0 and 1, but is {rtol!r}.")
        if atol is not None and not atol >= 0:
            raise UserError(f"atol must be at least 0, but is {atol!r}.")
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise UserError(f"max_steps must be a positive whole number, but is {max_steps!r}.")
        arrays: dict[str, np.ndarray] = {}
        for name, value in initial.items():
            array = np.asarray(value)
            if array.dtype.kind not in "fiu":
                raise UserError(f"the initial {name!r} must be real, but has dtype {array.dtype}.")
            if array.dtype == np.float32 and precision.dtype == "float64":
                warnings.warn(
                    f"the initial {name!r} is float32 and has been rounded to 7 digits already; "
                    "the flow itself is integrated in float64.",
                    UserWarning,
                    stacklevel=3,
                )
            if not np.isfinite(array).all():
                raise UserError(f"the initial {name!r} has values that are not finite.")
            arrays[name] = array.astype(np.float64)
        sizes = {n: float(np.sqrt(np.mean(a**2))) if a.size else 0.0 for n, a in arrays.items()}
        smallest = min((size for size in sizes.values() if size > 0), default=1.0)
        if atol is None:
            scales = {n: 2.0 ** round(math.log2(size or smallest)) for n, size in sizes.items()}
        else:
            scales = dict.fromkeys(arrays, 1.0)
        return cls(
            field=field,
            data=field.data(dataset),
            initial={name: precision.array(array) for name, array in arrays.items()},
            scales=scales,
            norm=math.sqrt(sum(float(np.sum(array**2)) for array in arrays.values())),
            rtol=rtol,
            scaled_atol=rtol if atol is None else atol,
            solver=solver,
            max_steps=max_steps,
            precision=precision,
        )

    @property
    def atol(self) -> dict[str, float]:
        return {name: self.scaled_atol * scale for name, scale in self.scales.items()}

    @property
    def key(self) -> tuple[Any, ...]:
        """What a compiled solve depends on, beside the shapes of its inputs."""
        return (_Same(self.field), self.solver, self.max_steps, self.precision.dtype)

    @property
    def inputs(self) -> dict[str, Any]:
        array = self.precision.array
        return {
            "initial": self.initial,
            "data": self.data,
            "scales": {name: array(scale) for name, scale in self.scales.items()},
            "rtol": array(self.rtol),
            "atol": array(self.scaled_atol),
        }

    def check_field(self) -> None:
        """Names and shapes of the field's value, by abstract evaluation."""
        found = jax.eval_shape(self.field, self.precision.array(0.0), self.initial, self.data)
        if set(found) != set(self.initial):
            raise UserError(
                f"the field {self.field.name!r} gives derivatives of {_listing(found)}, but the "
                f"initial parameters are {_listing(self.initial)}."
            )
        for name, value in self.initial.items():
            if found[name].shape != value.shape or found[name].dtype != value.dtype:
                raise UserError(
                    f"the field {self.field.name!r} gives a derivative of {name!r} of shape "
                    f"{found[name].shape} and dtype {found[name].dtype}, but the parameter has shape "
                    f"{value.shape} and dtype {value.dtype}."
                )


class _Same:
    """A key that is equal for the same object only, so that fields need not be hashable."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


_CACHE: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_CACHE_SIZE = 32


def _compiled(
    key: tuple[Any, ...], build: Callable[[], Callable[..., Any]], inputs: Any
) -> tuple[Callable[..., Any], float]:
    """The compiled solve for `key` and the shapes of `inputs`, and the seconds it took to compile."""
    leaves, structure = jax.tree.flatten(inputs)
    shapes = tuple((np.shape(leaf), jnp.result_type(leaf).name) for leaf in leaves)
    full = (key, structure, shapes)
    if full in _CACHE:
        _CACHE.move_to_end(full)
        return _CACHE[full], 0.0
    started = time.perf_counter()
    compiled = jax.jit(build()).lower(inputs).compile()
    seconds = time.perf_counter() - started
    _CACHE[full] = compiled
    if len(_CACHE) > _CACHE_SIZE:
        _CACHE.popitem(last=False)
    return compiled, seconds


def _physical(state: Mapping[str, Any], scales: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value * scales[name] for name, value in state.items()}


def _rate(field: VectorField) -> Callable[..., dict[str, Any]]:
    def rate(t: Any, state: dict[str, Any], arguments: Any) -> dict[str, Any]:
        derivative = field(t, _physical(state, arguments["scales"]), arguments["data"])
        return {name: derivative[name] / arguments["scales"][name] for name in state}

    return rate


def _block_norm(error: dict[str, Any]) -> Any:
    """The largest root mean square over parameters: a small one is not drowned by a large one."""
    return jnp.max(jnp.stack([jnp.sqrt(jnp.mean(value**2)) for value in error.values() if value.size]))


def _total_norm(parameters: Mapping[str, Any]) -> Any:
    return jnp.sqrt(sum(jnp.sum(value**2) for value in parameters.values()))


def _solve(
    problem: _Problem,
    inputs: dict[str, Any],
    until: Any,
    saveat: diffrax.SaveAt,
    event: diffrax.Event,
    meter: diffrax.AbstractProgressMeter | None = None,
) -> diffrax.Solution:
    scales = inputs["scales"]
    controller = diffrax.PIDController(
        rtol=inputs["rtol"],
        atol=inputs["atol"],
        norm=_block_norm,
        # A final step within 100 units in the last place is merged into its predecessor by diffrax,
        # so that steps shorter than this mean that the solution cannot be continued.
        dtmin=jnp.finfo(until.dtype).eps * 45 * inputs["until"],
        force_dtmin=False,  # diffrax would otherwise accept a step of this length whatever its error
    )
    return diffrax.diffeqsolve(
        diffrax.ODETerm(_rate(problem.field)),
        getattr(diffrax, solver_description(problem.solver).diffrax)(),
        t0=jnp.zeros_like(until),
        t1=until,
        dt0=None,
        y0={name: value / scales[name] for name, value in inputs["initial"].items()},
        args={"data": inputs["data"], "scales": scales},
        saveat=saveat,
        stepsize_controller=controller,
        adjoint=diffrax.ForwardMode(),
        event=event,
        max_steps=problem.max_steps,
        throw=False,
        progress_meter=diffrax.NoProgressMeter() if meter is None else meter,
    )


def _beyond(limit: Any) -> Callable[..., Any]:
    def beyond(t: Any, y: Any, args: Any, **_: Any) -> Any:
        return ~(_total_norm(_physical(y, args["scales"])) <= limit)

    return beyond


def _flow_solve(
    problem: _Problem,
    observables: Mapping[str, Observable],
    kept: tuple[str, ...],
    ends: bool,
    shown: bool,
) -> Callable[..., Any]:
    problem.check_field()
    field = problem.field
    loss = getattr(field, "loss", None)

    def measured(parameters: dict[str, Any], data: Any) -> dict[str, Any]:
        series = {} if loss is None else {"loss": loss(parameters, data)}
        series |= {f"norm_{n}": jnp.sqrt(jnp.sum(v**2)) for n, v in parameters.items()}
        return series | {name: function(parameters, data) for name, function in observables.items()}

    def saved_at_times(t: Any, state: Any, arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        parameters = _physical(state, arguments["scales"])
        stored = {} if ends else {name: parameters[name] for name in kept}
        return measured(parameters, arguments["data"]), stored

    def solve(inputs: dict[str, Any]) -> dict[str, Any]:
        initial, data = inputs["initial"], inputs["data"]
        start = field(jnp.zeros_like(inputs["until"]), initial, data)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in start.values()]))
        # Without a finite derivative at t = 0 there is nothing to integrate: stay there.
        until = jnp.where(finite, inputs["until"], 0.0)
        times = jnp.where(finite, inputs["times"], 0.0)
        subs = (
            diffrax.SubSaveAt(ts=times, fn=saved_at_times),
            diffrax.SubSaveAt(t1=True),
        )
        solution = _solve(
            problem,
            inputs,
            until,
            diffrax.SaveAt(subs=subs),
            diffrax.Event(_beyond(inputs["limit"])),
            _TerminalMeter() if shown else None,
        )
        assert solution.ys is not None and solution.ts is not None
        (series, parameters), stop = solution.ys
        stop = _physical(jax.tree.map(lambda value: value[-1], stop), inputs["scales"])
        if ends:
            parameters = {name: jnp.stack([initial[name], stop[name]]) for name in kept}
        stop_time = solution.ts[1][-1]
        return {
            "times": solution.ts[0],
            "series": series,
            "parameters": parameters,
            "stop_time": stop_time,
            "stop": stop,
            "stop_rate": field(stop_time, stop, data),
            "start_finite": finite,
            "completed": solution.result == diffrax.RESULTS.successful,
            "event": solution.result == diffrax.RESULTS.event_occurred,
            "collapsed": solution.result == diffrax.RESULTS.dt_min_reached,
            "exhausted": solution.result == diffrax.RESULTS.max_steps_reached,
            "accepted": solution.stats["num_accepted_steps"],
            "rejected": solution.stats["num_rejected_steps"],
        }

    return solve


def _loss_solve(problem: _Problem) -> Callable[..., Any]:
    problem.check_field()
    loss: Callable[..., Any] = problem.field.loss  # pyright: ignore[reportAttributeAccessIssue]

    def solve(inputs: dict[str, Any]) -> dict[str, Any]:
        start = loss(inputs["initial"], inputs["data"])
        target = start * inputs["fraction"] - inputs["drop"]

        def above(t: Any, y: Any, args: Any, **_: Any) -> Any:
            return loss(_physical(y, args["scales"]), args["data"]) - target

        def level(t: Any, state: Any, arguments: Any) -> Any:
            return loss(_physical(state, arguments["scales"]), arguments["data"])

        event = diffrax.Event(
            {"above": above, "beyond": _beyond(inputs["limit"])},
            root_finder=optimistix.Newton(rtol=1e-10, atol=1e-10),
        )
        solution = _solve(problem, inputs, inputs["until"], diffrax.SaveAt(t1=True, fn=level), event)
        assert solution.ys is not None and solution.ts is not None
        assert solution.event_mask is not None
        return {
            "reached": solution.event_mask["above"] & (solution.result == diffrax.RESULTS.event_occurred),
            "time": solution.ts[-1],
            "loss": solution.ys[-1],
            "start": start,
        }

    return solve


@dataclass(frozen=True)
class _Ending:
    status: str
    time: float
    message: str | None


def _ending(output: Mapping[str, Any], problem: _Problem, until: float, blow_up: float, max_steps: int) -> _Ending:
    """How the integration ended, in the words of a user."""
    at = float(output["stop_time"])
    accepted, rejected = int(output["accepted"]), int(output["rejected"])
    steps = f"({accepted} steps accepted, {rejected} rejected)"
    if not output["start_finite"]:
        message = "the right-hand side is not finite at t = 0; check the initial parameters."
        return _Ending("non-finite", 0.0, message)
    if output["completed"]:
        return _Ending("completed", float(until), None)
    if output["event"]:
        limit = blow_up * max(1.0, problem.norm)
        return _Ending("blow-up", at, f"the parameters' norm passed {limit:.3g} at t = {at:.6g} {steps}.")
    if output["collapsed"]:
        stop, rate = output["stop"], output["stop_rate"]
        if sum(float(np.sum(stop[name] * rate[name])) for name in stop) > 0:
            message = f"the solution cannot be continued beyond t = {at:.6g}: it grows without bound"
            return _Ending("blow-up", at, f"{message} {steps}.")
        message = (
            f"no step is short enough at t = {at:.6g} {steps}: the right-hand side is not finite or not smooth there."
        )
        return _Ending("step-collapse", at, message)
    if output["exhausted"]:
        message = (
            f"{max_steps} steps reached only t = {at:.6g} of {until:g} {steps}; many rejected steps "
            "mean a rough right-hand side, many accepted ones a stiff flow (solver='kvaerno5') or "
            "too small an rtol; raise max_steps otherwise."
        )
        return _Ending("max-steps", at, message)
    message = f"the {problem.solver} solver failed at t = {at:.6g} {steps}; try an explicit one."
    return _Ending("solver-failed", at, message)


def _good_count(times: np.ndarray, series: Mapping[str, np.ndarray], names: Iterable[str]) -> int:
    """How many leading save times hold finite norms (and loss); an observable may be undefined."""
    good = np.isfinite(times)
    for name in [f"norm_{name}" for name in names] + (["loss"] if "loss" in series else []):
        good &= np.isfinite(series[name])
    return len(good) if good.all() else int(np.argmin(good))


def _checked_schedule(save: Schedule | Iterable[float] | None, until: float) -> Schedule:
    if not (math.isfinite(until) and until >= 0):
        raise UserError(f"until must be a time of at least 0, but is {until!r}.")
    if save is None:
        return Schedule.linear(until) if until > 0 else Schedule([0.0])
    schedule = as_schedule(save)
    if schedule.until > until:
        if schedule.until > until * (1 + 1e-12):
            raise UserError(f"the last save time {schedule.until:g} lies beyond the end of the flow {until:g}.")
        return Schedule(np.minimum(schedule.times, until))
    return schedule


def _listing(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


class _TerminalMeter(diffrax.AbstractProgressMeter):
    """A line on standard error that is rewritten at every percent."""

    def init(self) -> Any:
        return jnp.zeros(())

    def step(self, state: Any, progress: Any) -> Any:
        due = (progress - state >= 0.01) | (progress >= 1)
        return jax.lax.cond(due, self._shown, lambda value: state, progress.astype(state.dtype))

    @staticmethod
    def _shown(progress: Any) -> Any:
        jax.debug.callback(_write_progress, progress)
        return progress

    def close(self, state: Any) -> None:
        jax.debug.callback(_clear_progress)


def _write_progress(progress: Any) -> None:
    sys.stderr.write(f"\rintegrating {100 * float(progress):3.0f} %")
    sys.stderr.flush()


def _clear_progress() -> None:
    sys.stderr.write("\r\033[K")
    sys.stderr.flush()
