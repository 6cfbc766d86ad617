"""The solvers a flow can be integrated with, by the name that experiment files use.

Nothing heavy is imported here, so that `staircase list` answers quickly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from theory.errors import UserError, nearest

DENSE_LIMIT = 1000
"""Numbers in a state up to which an implicit solver builds the Jacobian as a matrix."""


@dataclass(frozen=True)
class SolverDescription:
    """A solver's name, its class in diffrax, what it is good for, and how it solves linear systems.

    `linear`: None for an explicit solver; "by-size" (a dense matrix up to `DENSE_LIMIT` numbers, matrix-free beyond) or
    "gmres" (always matrix-free).
    """

    name: str
    diffrax: str
    summary: str
    linear: str | None = None

    def linear_solver(self, size: int) -> str | None:
        """How the linear systems of a state of `size` numbers are solved: None, "dense" or "gmres"."""
        if self.linear == "by-size":
            return "dense" if size <= DENSE_LIMIT else "gmres"
        return self.linear

    def build(self, size: int, rtol: Any, atol: Any, norm: Callable[[Any], Any]) -> Any:
        """The diffrax solver. Implicit ones solve their stages to the tolerances of the step size control.

        Matrix-free: Newton's method with GMRES, whose operator is a Jacobian-vector product of the field; the memory is
        that of some 50 states.
        """
        import diffrax
        import lineax
        import optimistix

        kind = getattr(diffrax, self.diffrax)
        linear = self.linear_solver(size)
        if linear is None:
            return kind(scan_kind="lax")
        if linear == "dense":
            root_finder = diffrax.VeryChord(rtol=rtol, atol=atol, norm=norm)
        else:
            # A restart takes all of its iterations, however few were enough: short ones.
            inner = lineax.GMRES(rtol=1e-3, atol=1e-12, restart=10, max_steps=100)
            root_finder = optimistix.Newton(rtol=rtol, atol=atol, norm=norm, linear_solver=inner)
        return kind(scan_kind="lax", root_finder=root_finder)


SOLVERS: dict[str, SolverDescription] = {
    description.name: description
    for description in (
        SolverDescription("tsit5", "Tsit5", "explicit Runge–Kutta 5(4); the default"),
        SolverDescription("dopri5", "Dopri5", "explicit Runge–Kutta 5(4) of Dormand and Prince"),
        SolverDescription("dopri8", "Dopri8", "explicit Runge–Kutta 8(7); for rtol below 1e-10"),
        SolverDescription("bosh3", "Bosh3", "explicit Runge–Kutta 3(2); for rtol above 1e-4"),
        SolverDescription(
            "kvaerno5",
            "Kvaerno5",
            f"implicit 5(4) for stiff flows; matrix-free above {DENSE_LIMIT:,} numbers",
            "by-size",
        ),
        SolverDescription("kvaerno5-gmres", "Kvaerno5", "the same, matrix-free at every size", "gmres"),
    )
}


def solver_description(name: str) -> SolverDescription:
    """The solver called `name`. **Raises:** `UserError` naming the nearest."""
    if name not in SOLVERS:
        raise UserError(f"unknown solver {name!r}; {nearest(name, SOLVERS)}")
    return SOLVERS[name]


def listing() -> list[tuple[str, str]]:
    """Name and summary of each solver, for `staircase list`."""
    return [(solver.name, solver.summary) for solver in SOLVERS.values()]
