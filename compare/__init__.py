"""Train with real SGD and hold predicted flows against it; certificates of derived equations.

Names are imported when first used, so that `import compare` loads neither torch nor jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compare.certificate import Certificate as Certificate
    from compare.certificate import certify as certify
    from compare.comparison import Comparison as Comparison
    from compare.comparison import compare as compare
    from compare.external import load_run as load_run
    from compare.optimisers import Optimiser as Optimiser
    from compare.training import train as train

_HOME = {
    "Certificate": "compare.certificate",
    "Comparison": "compare.comparison",
    "certify": "compare.certificate",
    "compare": "compare.comparison",
    "load_run": "compare.external",
    "Optimiser": "compare.optimisers",
    "train": "compare.training",
}

__all__ = ["Certificate", "Comparison", "Optimiser", "certify", "compare", "load_run", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
