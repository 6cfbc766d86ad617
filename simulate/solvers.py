"""The solvers a flow can be integrated with, by the name that experiment files use.

Nothing heavy is imported here, so that `staircase list` answers quickly.
"""

from __future__ import annotations

from dataclasses import dataclass

from theory.errors import UserError, nearest


@dataclass(frozen=True)
class SolverDescription:
    """A solver's name, its class in diffrax, and what it is good for."""

    name: str
    diffrax: str
    summary: str


SOLVERS: dict[str, SolverDescription] = {
    description.name: description
    for description in (
        SolverDescription("tsit5", "Tsit5", "explicit Runge–Kutta 5(4); the default"),
        SolverDescription("dopri5", "Dopri5", "explicit Runge–Kutta 5(4) of Dormand and Prince"),
        SolverDescription("dopri8", "Dopri8", "explicit Runge–Kutta 8(7); for rtol below 1e-10"),
        SolverDescription("bosh3", "Bosh3", "explicit Runge–Kutta 3(2); for rtol above 1e-4"),
        SolverDescription("kvaerno5", "Kvaerno5", "implicit 5(4) for stiff flows of up to some 2,000 numbers"),
    )
}


def solver_description(name: str) -> SolverDescription:
    """The solver called `name`. **Raises:** `UserError` naming the nearest."""
    if name not in SOLVERS:
        raise UserError(f"unknown solver {name!r}, {nearest(name, SOLVERS)}")
    return SOLVERS[name]


def listing() -> list[tuple[str, str]]:
    """Name and summary of each solver, for `staircase list`."""
    return [(solver.name, solver.summary) for solver in SOLVERS.values()]
