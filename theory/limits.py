"""What a job needs, predicted before it starts, so that a hopeless one ends in a sentence and not in a full machine."""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from theory.errors import UserError

if TYPE_CHECKING:
    from theory.language import Architecture

# Of the loss. Expansions grow at least like the number of partitions; the stock models take seconds at 20.
MOST_DEGREE = 100
# Of one training; at a tenth of a millisecond each this is a day.
MOST_STEPS = 1_000_000_000


def free_memory() -> int | None:
    """Memory in bytes that is free, on the machine or in the control group of the process; None where nothing says."""
    found = [value for value in (_system(), _control_group()) if value is not None]
    return min(found) if found else None


def _system() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _control_group() -> int | None:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
        used = Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if limit == "max" else int(limit) - int(used)


def check_parameters(architecture: Architecture, axis_sizes: Mapping[str, int]) -> None:
    """Refuse parameters that cannot fit as float64, naming the largest. **Raises:** `UserError`, also for wrong sizes."""
    shapes = architecture.shapes(axis_sizes)
    sizes = {name: prod(shape) for name, shape in shapes.items()}
    # Twice, since whatever computes with them makes at least one array of their size.
    needed, free = 2 * 8 * sum(sizes.values()), free_memory()
    if free is not None and needed > free:
        name = max(sizes, key=lambda key: sizes[key])
        places = dict(zip(architecture.parameters[name].axes, shapes[name], strict=True))
        widest = max(places, key=lambda axis: places[axis])
        raise UserError(
            f"parameters such as {name} of shape ({', '.join(map(str, shapes[name]))}) would take {readable(needed)} of "
            f"memory, but {readable(free)} are free; reduce the size of axis {widest!r}, now {places[widest]:,}"
        )


def check_steps(until: float, per_step: float) -> None:
    """Refuse a training that would not end, `per_step` being the time of one step. **Raises:** `UserError`."""
    if until / per_step > MOST_STEPS:
        raise UserError(
            f"a training with a step of t = {per_step:g} needs {until / per_step:.3g} steps to reach t = {until:g}, more than "
            f"{MOST_STEPS:,}; take a larger learning_rate or a smaller until"
        )


def readable(nbytes: int) -> str:
    """A number of bytes with its unit, e.g. "1.23 MB"."""
    units = ("B", "kB", "MB", "GB", "TB", "PB")
    power = next((n for n in range(len(units)) if nbytes < 1000 ** (n + 1)), len(units) - 1)
    return f"{nbytes / 1000**power:.3g} {units[power]}"
