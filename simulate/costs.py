"""What one right-hand side of a field costs, known before anything is compiled, and the cheapest of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np

from simulate.flow import VectorField

# Arithmetic that a core does in the time in which it reads or writes one byte of memory: about 10 GFlop/s against 10 GB/s.
# Unoptimised programs count every intermediate as read and written, most of which stay in the cache: hence the tenth.
_FLOPS_PER_BYTE = 0.1


@dataclass(frozen=True)
class Cost:
    """The cost of one right-hand side.

    **Arguments:** `evaluation`: "samples", "moments" or "exact"; `terms`: of the equations (None for the exact field);
    `flops`: floating point operations; `bytes_accessed`: by the program before the compiler fuses it;
    `largest_intermediate`, `memory`: bytes of its largest array, and of the data and parameters together with that.
    """

    evaluation: str
    terms: int | None
    flops: float
    bytes_accessed: float
    largest_intermediate: int
    memory: int

    @property
    def estimate(self) -> float:
        """What costs are compared by: arithmetic and memory traffic in units of floating point operations."""
        return self.flops + _FLOPS_PER_BYTE * self.bytes_accessed


def cost(field: VectorField, dataset: Any, parameters: Mapping[str, np.ndarray]) -> Cost:
    """Trace one right-hand side and count; nothing is compiled or run.

    **Arguments:** `field`; `dataset`: handed to `field.data`, which counts moments where the field needs them; `parameters`:
    name → array (only shapes matter).
    """
    with jax.enable_x64(True):
        data = field.data(dataset)
        shapes = {name: jax.ShapeDtypeStruct(np.shape(a), jnp.float64) for name, a in parameters.items()}
        traced = jax.jit(lambda p, d: field(0.0, p, d)).trace(shapes, data)
        counted = traced.lower().cost_analysis() or {}
        largest = max(_sizes(traced.jaxpr.jaxpr), default=0)
    held = sum(leaf.nbytes for leaf in jax.tree.leaves(data)) + sum(8 * int(np.size(a)) for a in parameters.values())
    equations = getattr(field, "equations", None)
    return Cost(
        evaluation=evaluation_of(field),
        terms=None if equations is None else equations.term_count,
        flops=float(counted.get("flops", 0.0)),
        bytes_accessed=float(counted.get("bytes accessed", 0.0)),
        largest_intermediate=largest,
        memory=held + largest,
    )


def cheapest(
    fields: Sequence[VectorField], dataset: Any, parameters: Mapping[str, np.ndarray]
) -> tuple[VectorField, dict[str, Cost]]:
    """The field whose right-hand side is estimated to be cheapest, and the cost of each by its evaluation."""
    costs = [cost(field, dataset, parameters) for field in fields]
    best = min(range(len(fields)), key=lambda n: costs[n].estimate)
    return fields[best], {each.evaluation: each for each in costs}


def evaluation_of(field: VectorField) -> str:
    """How a field evaluates its right-hand side: "samples", "moments" or "exact"."""
    return getattr(field, "evaluation", field.name)


def cost_table(costs: Mapping[str, Mapping[str, Cost]], chosen: Mapping[str, str]) -> str:
    """One line for each flow and evaluation; where there are several, the chosen one is marked.

    **Arguments:** `costs`: flow → evaluation → cost; `chosen`: flow → evaluation.
    """
    rows = [("flow", "evaluation", "terms", "Mflop", "largest MB", "memory MB", "")]
    for flow, ways in costs.items():
        for name, each in ways.items():
            mark = "chosen" if len(ways) > 1 and name == chosen[flow] else ""
            terms = "-" if each.terms is None else str(each.terms)
            sizes = (f"{each.largest_intermediate / 1e6:.2f}", f"{each.memory / 1e6:.2f}")
            rows.append((flow, name, terms, f"{each.flops / 1e6:.2f}", *sizes, mark))
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    lines = [
        "  ".join(
            c.ljust(w) if n in (0, 1, 6) else c.rjust(w) for n, (c, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)


def _sizes(jaxpr: Any) -> Iterator[int]:
    """Bytes of every array that a traced program makes, those of inner programs included."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            if hasattr(variable.aval, "shape"):
                yield int(np.prod(variable.aval.shape, dtype=np.int64)) * variable.aval.dtype.itemsize
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from _sizes(inner)
