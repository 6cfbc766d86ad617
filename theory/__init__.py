"""Derive the evolution equations of token embeddings under gradient flow.

Names are imported when first used, so that `import theory` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from theory.errors import NumericalFailure as NumericalFailure
    from theory.errors import UserError as UserError
    from theory.evolution import EvolutionEquations as EvolutionEquations
    from theory.evolution import derive as derive
    from theory.initial import initialise as initialise
    from theory.language import Architecture as Architecture

_HOME = {
    "Architecture": "theory.language",
    "EvolutionEquations": "theory.evolution",
    "NumericalFailure": "theory.errors",
    "UserError": "theory.errors",
    "derive": "theory.evolution",
    "initialise": "theory.initial",
}

__all__ = [
    "Architecture",
    "EvolutionEquations",
    "NumericalFailure",
    "UserError",
    "derive",
    "initialise",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
