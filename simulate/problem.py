"""What a flow starts from: a field with its arrays on the device, in units that suit the step size control."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from simulate.solvers import solver_description
from theory.errors import UserError, nearest

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


@dataclass(frozen=True)
class Precision:
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
class Problem:
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
    precision: Precision

    @classmethod
    def prepare(
        cls,
        field: VectorField,
        dataset: Any,
        initial: Mapping[str, np.ndarray],
        precision: Precision,
        solver: str,
        rtol: float,
        atol: float | None,
        max_steps: int,
    ) -> Problem:
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
                    stacklevel=4,
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
    def size(self) -> int:
        """Numbers in the state."""
        return sum(array.size for array in self.initial.values())

    @property
    def atol(self) -> dict[str, float]:
        return {name: self.scaled_atol * scale for name, scale in self.scales.items()}

    @property
    def key(self) -> tuple[Any, ...]:
        """What a compiled solve depends on, beside the shapes of its inputs."""
        return (Same(self.field), self.solver, self.precision.dtype)

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
                f"the field {self.field.name!r} gives derivatives of {listing(found)}, but the "
                f"initial parameters are {listing(self.initial)}."
            )
        for name, value in self.initial.items():
            if found[name].shape != value.shape or found[name].dtype != value.dtype:
                raise UserError(
                    f"the field {self.field.name!r} gives a derivative of {name!r} of shape "
                    f"{found[name].shape} and dtype {found[name].dtype}, but the parameter has shape "
                    f"{value.shape} and dtype {value.dtype}."
                )


class Same:
    """A key that is equal for the same object only, so that fields need not be hashable."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def physical(state: Mapping[str, Any], scales: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters from the scaled state."""
    return {name: value * scales[name] for name, value in state.items()}


def listing(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(sorted(names)) or "nothing"
