"""Integrate a vector field over parameters: a thin layer over diffrax that treats failure as data."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from simulate.events import Event, loss_falls
from simulate.memory import refuse_beyond
from simulate.memory import saved_bytes as saved_bytes
from simulate.plan import Options, Plan
from simulate.problem import Observable as Observable
from simulate.problem import Precision
from simulate.problem import VectorField as VectorField
from simulate.schedule import Schedule
from simulate.snapshots import Snapshot
from simulate.solve import Compiled, State, lowered
from simulate.trajectory import Trajectory
from theory.errors import NumericalFailure, UserError


def integrate(
    field: VectorField,
    dataset: Any,
    initial: Mapping[str, np.ndarray],
    *,
    until: float,
    save: Schedule | Iterable[float] | None = None,
    observables: Mapping[str, Observable] | None = None,
    save_parameters: str | Sequence[str] = "all",
    events: Mapping[str, Event] | None = None,
    rtol: float = 1e-8,
    atol: float | None = None,
    solver: str = "tsit5",
    max_steps: int = 100_000,
    blow_up: float = 1e6,
    dtype: str = "float64",
    axes: Mapping[str, Sequence[str]] | None = None,
    attributes: Mapping[str, Any] | None = None,
    progress: bool = False,
    snapshot: str | os.PathLike[str] | None = None,
    snapshot_seconds: float = 60.0,
    announce: Callable[[int], None] | None = None,
) -> Trajectory:
    """Integrate dθ/dt = field(t, θ, data) from t = 0, in time units of learning rate × steps.

    **Arguments:**

    - `field`: see `VectorField`.
    - `dataset`: handed to `field.data`.
    - `initial`: parameter name → array.
    - `until`: the end time.
    - `save`: a `Schedule` or sorted times in [0, `until`]; 101 equally spaced ones by default.
    - `observables`: name → function of (parameters, data), computed during the solve. The loss (when the field has one)
      and the Frobenius norm `norm_<parameter>` are always among them.
    - `save_parameters`: "all" (at every save time), "ends" (the first time and the end), or the names of those parameters
      that are kept.
    - `events`: name → `simulate.events.Event`: times that are found and recorded, or that end the flow.

    More rarely needed:

    - `rtol`, `atol`: tolerances of the step size control, met by each parameter by itself. `atol` is relative to nothing;
      left out, it is `rtol` times the parameter's initial root mean square (up to a factor √2), so that the early phase of
      a small initialisation is resolved. Which of the two it was stands in the attribute `atol_from`.
    - `solver`: see `simulate.solvers`. Late phases are often stiff: many accepted steps for little change; "kvaerno5" then
      takes few. It builds the Jacobian of a small state and is matrix-free for a large one.
    - `max_steps`: accepted and rejected steps together.
    - `blow_up`: the flow counts as blown up once the norm of all parameters passes `blow_up` times the larger of 1 and the
      initial norm, or steps of 1e-14 `until` are still too long while the norm grows.
    - `dtype`: "float64"; "float32" warns, since small initialisations are soon lost in rounding.
    - `axes`: parameter or observable name → axis names, beside those that the field knows.
    - `attributes`: further entries for the trajectory's attributes.
    - `progress`: a progress line on standard error, when that is a terminal.
    - `snapshot`: a file to keep the running flow's state in, about every `snapshot_seconds` and at the end. The same call
      goes on from it: after a kill, or with a larger `max_steps`. The result equals that of an uninterrupted call bit for
      bit (same machine, same versions), and a finished flow is not run again. A flow restarted from saved *parameters*
      (`trajectory.final`) chooses its first step anew, and agrees to some 10 `rtol`.
    - `announce`: called with the memory in bytes that the flow will take, before it starts.

    **Returns:** a `Trajectory` of kind "flow". Its `status` is "completed", "event" (ended by one of `events`), or
    "blow-up", "max-steps", "step-collapse", "non-finite", "solver-failed"; then it holds the save times before the end,
    `requested_times` lists all of them, `stop_time` says where the integration ended and `message` why, or what to do. The
    attribute `events` holds name → time (or None). Between steps the numbers are interpolated by the solver, with errors of
    up to some 10 `rtol` ("dopri8": 1000 `rtol`).

    A second call with the same field and observables (the same objects) and arrays of equal shapes compiles nothing.

    **Raises:** `UserError` for bad times, names, shapes or non-finite initial values, for a snapshot of another flow, and,
    before anything is integrated, when the memory that the compiled flow needs is more than there is.
    """
    precision = Precision(dtype)
    options = Options(
        until, save, observables, save_parameters, events, rtol, atol, solver, max_steps, blow_up, dtype, axes
    )
    with precision.context():
        plan = Plan.prepare(field, dataset, initial, options, precision)
        program = lowered(plan.program, plan.inputs)
        store = None if snapshot is None else Snapshot(snapshot, program, plan.inputs)
        state, seconds = (store.read() if store else None) or (None, 0.0)
        nbytes = None
        if state is None or not plan.over(state):
            compiled = program.compile()
            nbytes = compiled.nbytes
            if announce is not None:
                announce(nbytes)
            refuse_beyond(nbytes, f"the {field.name} flow")
            started = time.perf_counter() - seconds
            begun = compiled.start(plan.inputs) if state is None else state
            state = begun
            for state in _segments(compiled, plan, begun, progress and sys.stderr.isatty()):
                seconds = time.perf_counter() - started
                if store is not None and (plan.over(state) or store.due(snapshot_seconds)):
                    store.write(state, seconds)
        recorded = {"seconds_compile": program.spent(), "seconds_run": seconds, "memory_bytes": nbytes}
        return plan.trajectory(state, recorded | dict(attributes or {}))


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
    snapshot: str | os.PathLike[str] | None = None,
) -> float:
    """The time at which the loss has fallen to `fraction` of its initial value, or by `drop` nats.

    **Arguments:** exactly one of `fraction` in (0, 1) and `drop` > 0; `max_time`: where to give up;
    the others as in `integrate`. The field must have a `loss`.

    **Raises:** `NumericalFailure` when the loss does not fall so far before `max_time`.
    """
    if (fraction is None) == (drop is None):
        raise UserError("the time of a loss needs exactly one of fraction and drop.")
    if not (math.isfinite(max_time) and max_time > 0):
        raise UserError(f"max_time must be a positive number, but is {max_time!r}.")
    if getattr(field, "loss", None) is None:
        raise UserError(f"the field {field.name!r} has no loss whose fall could be timed.")
    run = integrate(
        field,
        dataset,
        initial,
        until=max_time,
        save=[0.0, max_time],
        save_parameters="ends",
        events={"fall": loss_falls(fraction=fraction, drop=drop, ends=True)},
        solver=solver,
        rtol=rtol,
        atol=atol,
        max_steps=max_steps,
        blow_up=blow_up,
        dtype=dtype,
        snapshot=snapshot,
    )
    time_found = run.attributes["events"]["fall"]["time"]
    if time_found is None:
        start = float(run["loss"][0])
        with Precision(dtype).context():
            last = float(jax.jit(field.loss)(run.final, field.data(dataset)))  # pyright: ignore[reportAttributeAccessIssue]
        wanted = f"{fraction:g} of its start" if drop is None else f"{drop:g} below its start"
        raise NumericalFailure(
            f"the loss of the {field.name} flow started at {start:.6g} and was {last:.6g} at "
            f"t = {run.attributes['stop_time']:g}, so it did not fall to {wanted} by max_time = {max_time:g}."
        )
    return time_found


def predicted_bytes(
    field: VectorField, dataset: Any, initial: Mapping[str, np.ndarray], *, until: float, **options: Any
) -> int:
    """The memory that `integrate` with the same arguments will need, in bytes, as the compiler counts it.

    Compiles the flow, once: the same call of `integrate` then compiles nothing.
    """
    chosen = Options(until, **options)
    precision = Precision(chosen.dtype)
    with precision.context():
        plan = Plan.prepare(field, dataset, initial, chosen, precision)
        return lowered(plan.program, plan.inputs).compile().nbytes


def _segments(compiled: Compiled, plan: Plan, state: State, shown: bool) -> Iterator[State]:
    """The states at which the loop comes back to Python, the last one being over: about twice a second.

    The loop's own numbers do not depend on where it is left.
    """
    budget, until = 32, float(plan.inputs["until"])
    while not plan.over(state):
        started = time.perf_counter()
        left = plan.options.max_steps - int(state.steps)
        state = jax.block_until_ready(compiled.advance(state, plan.inputs, np.int32(min(budget, left))))
        if time.perf_counter() - started < 0.25:
            budget *= 2
        if shown:
            sys.stderr.write(f"\rintegrating {100 * float(state.t) / until:3.0f} %")
            sys.stderr.flush()
        yield state
    if shown:
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()
