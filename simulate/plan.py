"""What was asked of a flow, checked, and what a stopped state of it means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from simulate.events import Event
from simulate.memory import refuse_beyond, saved_bytes
from simulate.problem import Observable, Precision, Problem, VectorField, physical
from simulate.schedule import Schedule, as_schedule
from simulate.solve import Code, Program, State
from simulate.solvers import solver_description
from simulate.trajectory import Trajectory
from theory.errors import UserError, argument, nearest

BLOW_UP = "blow-up"


@dataclass(frozen=True)
class Options:
    """The keyword arguments of `simulate.integrate` that say what is computed; see there."""

    until: float
    save: Schedule | Iterable[float] | None = None
    observables: Mapping[str, Observable] | None = None
    save_parameters: str | Sequence[str] = "all"
    events: Mapping[str, Event] | None = None
    rtol: float = 1e-8
    atol: float | None = None
    solver: str = "tsit5"
    max_steps: int = 100_000
    blow_up: float = 1e6
    dtype: str = "float64"
    axes: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Plan:
    """A flow that is ready to be compiled: the program, its inputs, and how its output is labelled."""

    options: Options
    schedule: Schedule
    kept: tuple[str, ...]
    problem: Problem
    program: Program
    inputs: dict[str, Any]
    events: dict[str, Event]

    @classmethod
    def prepare(
        cls, field: VectorField, dataset: Any, initial: Mapping[str, np.ndarray], options: Options, precision: Precision
    ) -> Plan:
        """Check everything and put the arrays on the device; call it within `precision.context()`.

        **Raises:** `UserError` for what does not fit, and when the saved arrays alone are more than the memory.
        """
        schedule = _checked_schedule(options.save, options.until)
        names = tuple(initial)
        kept = _checked_kept(options.save_parameters, names)
        ends = options.save_parameters == "ends"
        observables = dict(options.observables or {})
        for name in observables:
            if name in names or name == "loss" or name.startswith("norm_"):
                raise UserError(f"an observable cannot be called {name!r}; that name is taken.")
        if not options.blow_up > 1:
            raise UserError(f"blow_up must be greater than 1, but is {options.blow_up!r}.")
        problem = Problem.prepare(
            field, dataset, initial, precision, options.solver, options.rtol, options.atol, options.max_steps
        )
        limit = options.blow_up * max(1.0, problem.norm)
        text = f"the parameters' norm passed {limit:.3g}"
        events = {BLOW_UP: Event("norm", True, 0.0, limit, True, text)}
        events |= _checked_events(options.events or {}, field, names)
        watched = tuple(events.values())
        refuse_beyond(saved_bytes(initial, schedule, options.save_parameters), f"saving the {field.name} flow")
        array = precision.array
        inputs = problem.inputs | {
            "times": array(schedule.times),
            "until": array(options.until),
            "event_factors": array([event.factor for event in watched]),
            "event_offsets": array([event.offset for event in watched]),
            "event_ends": jax.numpy.asarray([event.ends for event in watched]),
        }
        program = Program(problem, observables, () if ends else kept, watched)
        return cls(options, schedule, kept, problem, program, inputs, events)

    def over(self, state: State) -> bool:
        """Whether there is nothing left to integrate, or no step left to do it with."""
        ended = int(state.code) != Code.RUNNING or float(state.t) >= float(self.inputs["until"])
        return ended or int(state.steps) >= self.options.max_steps

    def trajectory(self, state: State, attributes: Mapping[str, Any]) -> Trajectory:
        """The labelled result of a stopped state. Call it within the precision's context.

        **Arguments:** `state`: with plain or device arrays; `attributes`: what else to record.
        """
        state = jax.tree.map(np.asarray, state)
        options, problem = self.options, self.problem
        stop = physical(state.y, problem.scales)
        ending = self._ending(state, stop)
        count, series = int(state.saved), state.series
        stored: dict[str, np.ndarray] = state.parameters
        if count == 0 and self.schedule.times[0] == 0:
            # No step was made that could have passed t = 0.
            first = jax.jit(self.program.measured)(problem.initial, problem.data)
            series = {name: _with_first(series[name], value) for name, value in first.items()}
            stored = {name: _with_first(stored[name], problem.initial[name]) for name in stored}
            count = 1
        good = _good_count(count, series, problem.initial)
        times = self.schedule.times[:good]
        parameter_times = None
        if options.save_parameters == "ends":
            stored = {n: np.stack([np.asarray(problem.initial[n]), stop[n]]) for n in self.kept}
            parameter_times = np.array([0.0, ending.time])
            if ending.time == 0 or not all(np.isfinite(value).all() for value in stored.values()):
                stored, parameter_times = {n: v[:1] for n, v in stored.items()}, parameter_times[:1]
        else:
            stored = {n: stored[n][:good] for n in self.kept}
        recorded = {
            "kind": "flow",
            "name": problem.field.name,
            "status": ending.status,
            "message": ending.message,
            "stop_time": ending.time,
            "last_good_time": float(times[-1]) if len(times) else None,
            "requested_times": self.schedule.times.tolist(),
            "until": float(options.until),
            "events": self._happened(state),
            "steps_accepted": int(state.accepted),
            "steps_rejected": int(state.rejected),
            "solver": options.solver,
            "linear_solver": solver_description(options.solver).linear_solver(problem.size),
            "rtol": float(options.rtol),
            "atol": {name: float(value) for name, value in problem.atol.items()},
            "atol_from": "the initial scale" if options.atol is None else "the caller",
            "blow_up": float(options.blow_up),
            "max_steps": options.max_steps,
            "dtype": options.dtype,
        }
        return Trajectory.from_arrays(
            times,
            stored,
            {name: value[:good] for name, value in series.items()},
            axes=dict(getattr(problem.field, "axes", {})) | dict(options.axes or {}),
            attributes=recorded | dict(attributes),
            parameter_times=parameter_times,
        )

    def _happened(self, state: State) -> dict[str, dict[str, Any]]:
        found = zip(self.events.items(), state.event_times, strict=True)
        return {
            name: {"time": float(t) if np.isfinite(t) else None, "ends": event.ends, "text": event.text}
            for (name, event), t in found
            if name != BLOW_UP
        }

    def _ending(self, state: State, stop: Mapping[str, np.ndarray]) -> _Ending:
        """How the integration ended, in the words of a user."""
        at, code = float(state.t), Code(int(state.code))
        steps = f"({int(state.accepted)} steps accepted, {int(state.rejected)} rejected)"
        if code == Code.NON_FINITE_START:
            message = "the right-hand side is not finite at t = 0; check the initial parameters."
            return _Ending("non-finite", 0.0, message)
        if code == Code.EVENT:
            moments = zip(self.events.items(), state.event_times, strict=True)
            name, event = next(pair for pair, t in moments if pair[1].ends and t == state.t)
            if name == BLOW_UP:
                return _Ending("blow-up", at, f"{event.text} at t = {at:.6g} {steps}.")
            return _Ending("event", at, f"{name!r} ended the flow: {event.text} at t = {at:.6g}.")
        if code == Code.COLLAPSED:
            problem = self.problem
            parameters = {name: problem.precision.array(value) for name, value in stop.items()}
            pace = _pace(problem)
            # The shortest step, 1e-14 of until, must be short against what the flow does at its start.
            if 1e-14 * self.options.until > 1e-4 * pace:
                message = (
                    f"until = {self.options.until:g} is too far for this flow, which changes over times of about {pace:.3g} at "
                    "its start: the shortest step that can be taken, 1e-14 of until, is too long; take a smaller until."
                )
                return _Ending("step-collapse", at, message)
            rate = problem.field(state.t, parameters, problem.data)
            if sum(float(np.sum(stop[name] * np.asarray(rate[name]))) for name in stop) > 0:
                message = f"the solution cannot be continued beyond t = {at:.6g}: it grows without bound"
                return _Ending("blow-up", at, f"{message} {steps}.")
            return _Ending(
                "step-collapse",
                at,
                f"no step is short enough at t = {at:.6g} {steps}: the right-hand side is not finite or not smooth there.",
            )
        if code == Code.SOLVER_FAILED:
            name = self.options.solver
            return _Ending(
                "solver-failed", at, f"the {name} solver failed at t = {at:.6g} {steps}; try an explicit one."
            )
        if at >= float(self.inputs["until"]):
            return _Ending("completed", float(self.options.until), None)
        message = (
            f"{self.options.max_steps} steps reached only t = {at:.6g} of {self.options.until:g} {steps}; many rejected "
            f"steps mean a rough right-hand side, many accepted ones a stiff flow ({argument('solver', 'kvaerno5')}) or too "
            "small an rtol; raise max_steps otherwise."
        )
        return _Ending("max-steps", at, message)


def _pace(problem: Problem) -> float:
    """Over what time a flow changes at its start: the norm of its parameters over that of their rates."""
    rate = problem.field(problem.precision.array(0.0), problem.initial, problem.data)
    speed = math.sqrt(sum(float(np.sum(np.asarray(value) ** 2)) for value in rate.values()))
    return problem.norm / speed if speed else math.inf


@dataclass(frozen=True)
class _Ending:
    status: str
    time: float
    message: str | None


def _with_first(buffer: np.ndarray, value: Any) -> np.ndarray:
    filled = np.array(buffer)
    filled[0] = value
    return filled


def _good_count(saved: int, series: Mapping[str, np.ndarray], names: Iterable[str]) -> int:
    """How many leading save times hold finite norms (and loss); an observable may be undefined."""
    good = np.ones(saved, bool)
    for name in [f"norm_{name}" for name in names] + (["loss"] if "loss" in series else []):
        good &= np.isfinite(series[name][:saved])
    return saved if good.all() else int(np.argmin(good))


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


def _checked_kept(save_parameters: str | Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    if save_parameters in ("all", "ends"):
        return tuple(names)
    if isinstance(save_parameters, str):
        raise UserError(f"save_parameters must be 'all', 'ends' or a list of names, but is {save_parameters!r}.")
    for name in save_parameters:
        if name not in names:
            raise UserError(f"there is no parameter {name!r} to save; {nearest(name, names)}")
    return tuple(save_parameters)


def _checked_events(events: Mapping[str, Event], field: VectorField, names: Sequence[str]) -> dict[str, Event]:
    for name, event in events.items():
        if not isinstance(event, Event):
            raise UserError(f"the event {name!r} must be made with a function of simulate.events, but is {event!r}.")
        if name == BLOW_UP:
            raise UserError(f"an event cannot be called {BLOW_UP!r}: that one is always there, see blow_up.")
        if event.quantity == "loss" and getattr(field, "loss", None) is None:
            raise UserError(f"the field {field.name!r} has no loss, which the event {name!r} needs.")
        if event.parameter is not None and event.parameter not in names:
            raise UserError(
                f"the event {name!r} names no parameter: {event.parameter!r}; {nearest(event.parameter, names)}"
            )
    return dict(events)
