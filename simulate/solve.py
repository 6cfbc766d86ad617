"""The integration loop as a compiled function from state to state.

Everything that a flow has become is in one `State`: the solver's and the step size control's own states, what was saved, what
was counted, which events have happened. `advance` takes a state some steps further, so a flow can be left after any step and
taken up again, in this process or another, and goes through the same numbers as one that is not interrupted. Steps, error
estimates, step sizes and interpolation are diffrax's.
"""

from __future__ import annotations

import enum
import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp

from simulate.events import Event
from simulate.memory import compiled_bytes
from simulate.problem import Observable, Problem, physical
from simulate.solvers import solver_description


class Code(enum.IntEnum):
    """What stopped the loop; a flow that reached its end, or has steps left to take, is RUNNING."""

    RUNNING = 0
    EVENT = 1
    COLLAPSED = 2
    SOLVER_FAILED = 3
    NON_FINITE_START = 4


class State(NamedTuple):
    """A flow between two steps. Parameters are in units of `Problem.scales`, buffers in those of the user."""

    t: Any
    tnext: Any
    y: dict[str, Any]
    solver: Any
    controller: Any
    code: Any
    accepted: Any
    rejected: Any
    saved: Any
    series: dict[str, Any]
    parameters: dict[str, Any]
    thresholds: Any
    event_values: Any
    event_times: Any

    @property
    def steps(self) -> Any:
        return self.accepted + self.rejected


@dataclass(frozen=True)
class Program:
    """What is compiled: a problem's field, what is measured and stored at save times, and the events watched for.

    `stored`: the parameters kept at every save time. Thresholds of events, times and tolerances are inputs.
    """

    problem: Problem
    observables: Mapping[str, Observable]
    stored: tuple[str, ...]
    events: tuple[Event, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.problem.key, tuple(self.observables.items()), self.stored, tuple(e.key for e in self.events))

    def measured(self, parameters: Mapping[str, Any], data: Any) -> dict[str, Any]:
        """Every series at one time."""
        loss = getattr(self.problem.field, "loss", None)
        series = {} if loss is None else {"loss": loss(parameters, data)}
        series |= {f"norm_{name}": jnp.sqrt(jnp.sum(value**2)) for name, value in parameters.items()}
        return series | {name: function(parameters, data) for name, function in self.observables.items()}

    def start(self, inputs: dict[str, Any]) -> State:
        """The state at t = 0."""
        initial, data, until = inputs["initial"], inputs["data"], inputs["until"]
        terms, solver, controller = self._tools(inputs)
        arguments = {"data": data, "scales": inputs["scales"]}
        y = {name: value / inputs["scales"][name] for name, value in initial.items()}
        zero = jnp.zeros_like(until)
        derivative = self.problem.field(zero, initial, data)
        finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(value)) for value in derivative.values()]))
        order = solver.error_order(terms)
        tnext, controlled = controller.init(terms, zero, until, y, None, arguments, solver.func, order)
        tnext = jnp.minimum(tnext, until)
        count = inputs["times"].shape[0]

        def buffer(shape: Any) -> Any:
            return jnp.full((count, *shape.shape), jnp.nan, shape.dtype)

        series = jax.eval_shape(self.measured, initial, data)
        none = jnp.zeros((), jnp.int32)
        quantities = self._quantities([(zero, initial)] * len(self.events), data, until.dtype)
        thresholds = inputs["event_factors"] * quantities + inputs["event_offsets"]
        return State(
            t=zero,
            tnext=tnext,
            y=y,
            solver=solver.init(terms, zero, tnext, y, arguments),
            controller=jax.tree.map(jnp.asarray, controlled),
            code=jnp.where(finite, Code.RUNNING, Code.NON_FINITE_START).astype(jnp.int32),
            accepted=none,
            rejected=none,
            saved=none,
            series=jax.tree.map(buffer, series),
            parameters={name: buffer(initial[name]) for name in self.stored},
            thresholds=thresholds,
            event_values=self._beyond(quantities, thresholds),
            event_times=jnp.full(len(self.events), jnp.nan, until.dtype),
        )

    def advance(self, state: State, inputs: dict[str, Any], budget: Any) -> State:
        """Up to `budget` steps further, accepted and rejected ones together."""
        data, scales, until, times = inputs["data"], inputs["scales"], inputs["until"], inputs["times"]
        terms, solver, controller = self._tools(inputs)
        arguments = {"data": data, "scales": scales}
        order = solver.error_order(terms)
        ends = inputs["event_ends"]
        # A step that would stop this close before the end is taken up to the end, not followed by a tiny one.
        nearly = until * (1 - 100 * jnp.finfo(until.dtype).eps)
        last = state.steps + budget

        def running(state: State) -> Any:
            return (state.code == Code.RUNNING) & (state.t < until) & (state.steps < last)

        def step(state: State) -> State:
            proposed, error, dense, solver_state, result = solver.step(
                terms, state.t, state.tnext, state.y, arguments, state.solver, False
            )
            # Where the field is not defined the step is too long.
            error = jax.tree.map(lambda value: jnp.where(jnp.isnan(value), jnp.inf, value), error)
            keep, t, tnext, _, controlled, verdict = controller.adapt_step_size(
                state.t, state.tnext, state.y, proposed, arguments, error, order, state.controller
            )
            t = jnp.minimum(t, until)
            tnext = jnp.where(tnext > nearly, jnp.where(keep, until, t + 0.5 * (until - t)), tnext)

            def kept(new: Any, old: Any) -> Any:
                return jax.tree.map(lambda a, b: jnp.where(keep, a, b), new, old)

            y = kept(proposed, state.y)
            failed = keep & ~diffrax.is_okay(result)
            collapsed = verdict == diffrax.RESULTS.dt_min_reached
            code = jnp.where(failed, Code.SOLVER_FAILED, jnp.where(collapsed, Code.COLLAPSED, state.code))

            within = solver.interpolation_cls(t0=state.t, t1=state.tnext, **dense)
            here = physical(y, scales)
            values = self._beyond(self._quantities([(t, here)] * len(self.events), data, until.dtype), state.thresholds)
            fresh = keep & (state.event_values < 0) & (values >= 0) & jnp.isnan(state.event_times)
            moments = self._located(fresh, state, within, data, scales)
            end = jnp.min(jnp.where(fresh & ends, moments, jnp.inf), initial=jnp.inf)
            ended = jnp.isfinite(end)
            code = jnp.where(ended, Code.EVENT, code)
            reached = jnp.where(ended, end, state.tnext)

            def due(saves: Any) -> Any:
                index = saves[0]
                return keep & (index < len(times)) & (times[jnp.minimum(index, len(times) - 1)] <= reached)

            def save(saves: Any) -> Any:
                index, series, parameters = saves
                here = physical(within.evaluate(times[index]), scales)
                series = jax.tree.map(lambda b, v: b.at[index].set(v), series, self.measured(here, data))
                parameters = {name: parameters[name].at[index].set(here[name]) for name in self.stored}
                return index + 1, series, parameters

            saved, series, parameters = jax.lax.while_loop(due, save, (state.saved, state.series, state.parameters))
            at_end = jax.lax.cond(ended, lambda: within.evaluate(reached), lambda: y)
            return State(
                t=jnp.where(ended, end, t),
                tnext=tnext,
                y=at_end,
                solver=kept(solver_state, state.solver),
                controller=controlled,
                code=code.astype(jnp.int32),
                accepted=state.accepted + keep,
                rejected=state.rejected + ~keep,
                saved=saved,
                series=series,
                parameters=parameters,
                thresholds=state.thresholds,
                event_values=jnp.where(keep, values, state.event_values),
                event_times=jnp.where(fresh & (moments <= reached), moments, state.event_times),
            )

        return jax.lax.while_loop(running, step, state)

    def _tools(self, inputs: dict[str, Any]) -> tuple[Any, Any, Any]:
        rtol, atol = inputs["rtol"], inputs["atol"]
        solver = solver_description(self.problem.solver).build(self.problem.size, rtol, atol, block_norm)
        controller = diffrax.PIDController(
            rtol=rtol,
            atol=atol,
            norm=block_norm,
            # Steps shorter than this mean that the solution cannot be continued: the end is met to within twice as much.
            dtmin=jnp.finfo(inputs["until"].dtype).eps * 45 * inputs["until"],
            force_dtmin=False,  # diffrax would otherwise accept a step of this length whatever its error
        )
        return diffrax.ODETerm(self._rate), solver, controller

    def _rate(self, t: Any, state: dict[str, Any], arguments: Any) -> dict[str, Any]:
        derivative = self.problem.field(t, physical(state, arguments["scales"]), arguments["data"])
        return {name: derivative[name] / arguments["scales"][name] for name in state}

    def _quantity(self, event: Event, t: Any, parameters: Mapping[str, Any], data: Any) -> Any:
        field = self.problem.field
        if event.quantity == "loss":
            return field.loss(parameters, data)  # pyright: ignore[reportAttributeAccessIssue]
        if event.quantity == "norm":
            return total_norm(parameters if event.parameter is None else {"": parameters[event.parameter]})
        if event.quantity == "rate":
            return total_norm(field(t, dict(parameters), data))
        return event.quantity(parameters, data)  # pyright: ignore[reportCallIssue]

    def _quantities(self, moments: Sequence[tuple[Any, Mapping[str, Any]]], data: Any, dtype: Any) -> Any:
        """Each event's quantity at its own moment (a time and the parameters then), (event,)."""
        pairs = zip(self.events, moments, strict=True)
        found = [jnp.asarray(self._quantity(event, t, here, data), dtype) for event, (t, here) in pairs]
        return jnp.stack(found) if found else jnp.zeros(0, dtype)

    def _beyond(self, quantities: Any, thresholds: Any) -> Any:
        """How far each quantity is beyond its threshold, (event,): negative before, positive after."""
        signs = jnp.asarray([1.0 if event.rising else -1.0 for event in self.events], quantities.dtype)
        return signs * (quantities - thresholds)

    def _located(self, fresh: Any, state: State, within: Any, data: Any, scales: Any) -> Any:
        """The times within the step at which the `fresh` events happened, by bisection, (event,); infinite for others."""
        count, dtype = len(self.events), state.t.dtype

        def open_brackets(bracket: Any) -> Any:
            low, high = bracket
            return jnp.any(fresh & (high - low > 4 * jnp.finfo(dtype).eps * high))

        def halved(bracket: Any) -> Any:
            low, high = bracket
            middle = low + (high - low) / 2
            moments = [(middle[i], physical(within.evaluate(middle[i]), scales)) for i in range(count)]
            after = ~(self._beyond(self._quantities(moments, data, dtype), state.thresholds) < 0)
            return jnp.where(after, low, middle), jnp.where(after, middle, high)

        low, high = jnp.full(count, state.t, dtype), jnp.full(count, state.tnext, dtype)
        if count:
            low, high = jax.lax.while_loop(open_brackets, halved, (low, high))
        return jnp.where(fresh, high, jnp.inf)


def block_norm(error: dict[str, Any]) -> Any:
    """The largest root mean square over parameters: a small one is not drowned by a large one."""
    return jnp.max(jnp.stack([jnp.sqrt(jnp.mean(value**2)) for value in error.values() if value.size]))


def total_norm(parameters: Mapping[str, Any]) -> Any:
    """The Frobenius norm of all parameters together."""
    return jnp.sqrt(sum(jnp.sum(value**2) for value in parameters.values()))


class Lowered:
    """A program traced for inputs of certain shapes, compiled at the first use of `compile`."""

    def __init__(self, program: Program, inputs: dict[str, Any], batch: Any):
        started = time.perf_counter()
        program.problem.check_field()
        start, advance = (program.start, program.advance) if batch is None else batch.over(program)
        self._start = jax.jit(start).lower(inputs)
        state = jax.eval_shape(start, inputs)
        budget = jax.ShapeDtypeStruct((), jnp.int32)
        self._advance = jax.jit(advance, donate_argnums=0).lower(state, inputs, budget)
        self.structure = state
        self._seconds = time.perf_counter() - started
        self._compiled: Compiled | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal computations: a hash of what is compiled."""
        return hashlib.sha256(self._advance.as_text().encode()).hexdigest()

    def compile(self) -> Compiled:
        if self._compiled is None:
            started = time.perf_counter()
            start, advance = self._start.compile(), self._advance.compile()
            self._compiled = Compiled(start, advance, compiled_bytes(start, advance))
            self._seconds += time.perf_counter() - started
        return self._compiled

    def spent(self) -> float:
        """Seconds spent on tracing and compiling since this was last asked: 0 when everything was there already."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


@dataclass(frozen=True)
class Compiled:
    """The two functions of a `Program`, compiled; `nbytes`: the memory that the larger one takes while it runs."""

    start: Callable[[dict[str, Any]], State]
    advance: Callable[[State, dict[str, Any], Any], State]
    nbytes: int


_LOWERED: OrderedDict[Any, Lowered] = OrderedDict()
_KEPT = 32


def lowered(program: Program, inputs: dict[str, Any], batch: Any = None) -> Lowered:
    """The program for `inputs`: traced, and compiled when needed, once for all inputs of the same shapes.

    `batch`: None, or a way of mapping both functions over a leading axis (see `simulate.ensemble`), hashable.
    """
    leaves, structure = jax.tree.flatten(inputs)
    shapes = tuple((jnp.shape(leaf), jnp.result_type(leaf).name) for leaf in leaves)
    key = (program.key, batch, structure, shapes)
    if key in _LOWERED:
        _LOWERED.move_to_end(key)
        return _LOWERED[key]
    made = _LOWERED[key] = Lowered(program, inputs, batch)
    if len(_LOWERED) > _KEPT:
        _LOWERED.popitem(last=False)
    return made
