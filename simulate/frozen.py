"""Flows in which some parameters do not move."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from simulate.flow import VectorField
from theory.errors import UserError, nearest

if TYPE_CHECKING:
    from theory.evolution import EvolutionEquations


@dataclass(frozen=True, eq=False)
class FrozenField:
    """A field with dθ/dt = 0 for some parameters. Make one with `with_frozen`."""

    field: VectorField
    frozen: tuple[str, ...]

    def __call__(self, t: Any, parameters: dict[str, Any], data: Any) -> dict[str, Any]:
        rates = self.field(t, parameters, data)
        return {name: jnp.zeros_like(parameters[name]) if name in self.frozen else rate for name, rate in rates.items()}

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """Parameter → axis names, as far as the inner field knows them."""
        return dict(getattr(self.field, "axes", {}))

    @property
    def loss(self) -> Any:
        """The inner field's loss."""
        return getattr(self.field, "loss", None)

    @property
    def equations(self) -> EvolutionEquations | None:
        """The derived equations of the inner field, where it has some; those of frozen parameters are not followed."""
        return getattr(self.field, "equations", None)

    def data(self, dataset: Any) -> Any:
        return self.field.data(dataset)


def with_frozen(field: VectorField, frozen: Collection[str]) -> VectorField:
    """The flow of the other parameters while those of `frozen` keep their initial arrays; none gives the field itself.

    **Raises:** `UserError` for a parameter that there is not.
    """
    names = tuple(getattr(field, "axes", {}))
    for name in frozen:
        if names and name not in names:
            raise UserError(f"there is no parameter {name!r} to freeze; {nearest(name, names)}")
    return FrozenField(field, tuple(sorted(frozen))) if frozen else field
