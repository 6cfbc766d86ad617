"""Initial arrays, shared by flow and training."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from theory import language as lang
from theory.errors import UserError, argument
from theory.language import Architecture
from theory.limits import check_parameters


def fan_in(architecture: Architecture) -> dict[str, tuple[str, ...]]:
    """The input axes of each parameter: those over which a `dot` with activity contracts it.

    A parameter that tokens look up, and one that is never contracted (positions, biases), has its width in their place: the
    axes other than token and position. With the vocabulary as input dimension the escape would come much earlier
    (paper 2608.30315, initialisation with std d^−γ; theory of the demo's half-loss time).
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in architecture.nodes:
        if not isinstance(node, lang.Dot) or isinstance(node.left, lang.Tokens):
            continue
        for operand, other in ((node.left, node.right), (node.right, node.left)):
            renamed = {}
            while isinstance(operand, (lang.Rename, lang.Mark, lang.Scale)):
                if isinstance(operand, lang.Rename):
                    renamed = {new: renamed.get(new, old) for old, new in operand.mapping} | renamed
                operand = operand.operand
            if isinstance(operand, lang.Parameter) and not isinstance(other, lang.Constant):
                axes = tuple(renamed.get(a, a) for a in node.over)
                found.setdefault(operand.name, tuple(a for a in axes if a in operand.axes))
    result = {}
    for name, spec in architecture.parameters.items():
        width = tuple(a for a in spec.axes if architecture.root(a) not in (lang.TOKEN, lang.POSITION))
        looked_up = lang.TOKEN in spec.axes or name not in found
        result[name] = (width or spec.axes) if looked_up else found[name]
    return result


def initialise(
    architecture: Architecture,
    sizes: Mapping[str, int],
    *,
    gamma: float | None = None,
    scale: float | None = None,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Gaussian initial arrays, W_ij ~ N(0, d_in^(−2γ)), or all of one standard deviation `scale`.

    **Arguments:** `sizes`: axis → size; `gamma`: γ, small initialisation means γ > 1/2; `scale`: instead of `gamma`;
    `seed`: whole number. Each parameter's array depends on the seed and its own name only, so that adding a parameter to an
    architecture leaves the others' arrays as they were. A parameter of weight 0 (a gain, not small) starts at 1.

    **Returns:** name → float64 array. **Raises:** `UserError` unless exactly one of `gamma` and `scale` is given.

    Source: paper 2608.30315, Setting.
    """
    if (gamma is None) == (scale is None):
        raise UserError(f"an initialisation needs exactly one of {argument('gamma')} and {argument('scale')}")
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise UserError(f"the initial scale must be a positive number, found {scale}")
    if gamma is not None and not np.isfinite(gamma):
        raise UserError(f"gamma must be a finite number, found {gamma}")
    if isinstance(seed, bool) or int(seed) != seed or seed < 0:
        raise UserError(f"a seed is a whole number of at least 0, found {seed}")
    full = architecture.all_sizes(sizes)
    shapes = architecture.shapes(sizes)
    check_parameters(architecture, sizes)
    inputs = fan_in(architecture)
    arrays = {}
    for name, shape in shapes.items():
        if architecture.parameters[name].weight == 0:
            arrays[name] = np.ones(shape)
            continue
        width = prod(full[a] for a in inputs[name])
        deviation = scale if scale is not None else float(width) ** -float(gamma)  # pyright: ignore[reportArgumentType]
        key = [int(seed), *name.encode()]
        arrays[name] = np.random.default_rng(key).normal(0.0, deviation, shape)
    return arrays
