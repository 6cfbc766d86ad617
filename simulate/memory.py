"""How much memory a flow will take, and how much there is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np

from theory.errors import UserError
from theory.limits import free_memory
from theory.limits import readable as readable


def saved_bytes(
    initial: Mapping[str, np.ndarray],
    schedule: Sized,
    save_parameters: str | Sequence[str] = "all",
) -> int:
    """Memory of the parameters that a float64 flow will save, in bytes."""
    names = initial if isinstance(save_parameters, str) else save_parameters
    count = 2 if save_parameters == "ends" else len(schedule)
    return 8 * count * sum(int(np.size(initial[name])) for name in names)


def available_bytes() -> int | None:
    """Memory that a flow may take on the default device, in bytes; None where the system does not say.

    For an accelerator what its allocator may hand out; else the free memory of the machine, or of the control group that
    the process runs in when that is less.
    """
    import jax

    statistics = jax.local_devices()[0].memory_stats()
    if statistics and "bytes_limit" in statistics:
        return int(statistics["bytes_limit"] - statistics.get("bytes_in_use", 0))
    return free_memory()


def compiled_bytes(*programs: Any) -> int:
    """What the largest of some compiled programs needs while it runs: arguments, results and intermediate arrays."""

    def needed(program: Any) -> int:
        sizes = program.memory_analysis()
        if sizes is None:
            return 0
        arguments, results = sizes.argument_size_in_bytes, sizes.output_size_in_bytes
        return int(arguments + results + sizes.temp_size_in_bytes - sizes.alias_size_in_bytes)

    return max(map(needed, programs))


def refuse_beyond(needed: int, what: str) -> None:
    """**Raises:** `UserError` when `needed` bytes are more than there are."""
    available = available_bytes()
    if available is not None and needed > available:
        raise UserError(
            f"{what} would take {readable(needed)} of memory, but {readable(available)} are free: save fewer times, or "
            "parameters only at the ends (save.parameters = 'ends'), or take a smaller model"
        )
