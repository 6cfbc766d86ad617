"""What an architecture computes: one evaluation rule, over numpy, jax.numpy or torch arrays."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from theory import language as lang
from theory.errors import UserError
from theory.language import LABEL, POSITION, SAMPLE, Architecture, Expression, add_axis_sizes

# An array with the names of its axes, in order; the sample axis, where present, is first.
Named = tuple[Any, tuple[str, ...]]


def evaluate(
    architecture: Architecture, parameters: Mapping[str, Any], tokens: Any, xp: ModuleType = np, epsilon: Any = 1.0
) -> Any:
    """The logits of an architecture.

    **Arguments:** `parameters`: name → array (shapes as `architecture.shapes`); `tokens`: whole numbers (sample, position),
    or one-hot numbers (sample, position, token); `xp`: numpy, jax.numpy or torch; `epsilon`: what a number of weight a is
    multiplied by, to the power a (certificates scale a normaliser's δ along with the parameters).

    **Returns:** logits (sample, label), or (sample, position, label) where every position has a label.

    **Raises:** `UserError` when the parameters do not fit the architecture or each other.
    """
    values = _values(architecture, parameters, tokens, xp, epsilon)
    sizes = add_axis_sizes(architecture, parameters, tokens.shape[1])
    order = (SAMPLE, POSITION, LABEL) if architecture.labels_per_position else (SAMPLE, LABEL)
    array, axes = values[id(architecture.logits)]
    if SAMPLE not in axes:
        # Logits that ignore the tokens are the same for every sample.
        array, axes = _expand(array, axes, (SAMPLE, *axes), {**sizes, SAMPLE: tokens.shape[0]}, xp)
    return _transpose(array, axes, order)


def evaluate_node(
    architecture: Architecture, parameters: Mapping[str, Any], tokens: Any, node: Expression, xp: ModuleType = np
) -> Named:
    """The array of one of `architecture.nodes`, e.g. the attention weights of a softmax, and the names of its axes.

    **Arguments:** as for `evaluate`. The sample axis is first; it is absent where the node does not depend on tokens.
    """
    return _values(architecture, parameters, tokens, xp, 1.0, last=node)[id(node)]


def _values(
    architecture: Architecture,
    parameters: Mapping[str, Any],
    tokens: Any,
    xp: ModuleType,
    epsilon: Any,
    last: Expression | None = None,
) -> dict[int, Named]:
    """The array of every node, or of every node up to `last`."""
    sizes = add_axis_sizes(architecture, parameters, tokens.shape[1])
    # Whether tokens are read otherwise than by looking up rows, which needs them one-hot.
    dense = any(
        isinstance(child, lang.Tokens) and not _is_look_up(node) for node in architecture.nodes for child in node.inputs
    ) or isinstance(architecture.logits, lang.Tokens)
    values: dict[int, Named] = {}
    for node in architecture.nodes:
        values[id(node)] = _apply(node, values, parameters, tokens, sizes, xp, epsilon, dense)
        if node is last:
            break
    return values


def loss(
    architecture: Architecture,
    parameters: Mapping[str, Any],
    tokens: Any,
    labels: Any,
    weights: Any,
    xp: ModuleType = np,
    kind: str = "cross_entropy",
    epsilon: Any = 1.0,
) -> Any:
    """The loss Σ_s P(s) · mean over positions of −log softmax(f)_y (natural log), or of ½‖f − e_y‖².

    **Arguments:** `labels`: whole numbers (sample) or (sample, position); `weights`: P (sample), summing to 1;
    `kind`: "cross_entropy" or "squared_error"; others as in `evaluate`.
    """
    logits = evaluate(architecture, parameters, tokens, xp, epsilon)
    return loss_of_logits(logits, labels, weights, xp, kind)


def loss_of_logits(logits: Any, labels: Any, weights: Any, xp: ModuleType = np, kind: str = "cross_entropy") -> Any:
    """The same loss, of logits (sample[, position], label)."""
    if tuple(labels.shape) != tuple(logits.shape[:-1]):
        raise UserError(
            f"the logits of shape {tuple(logits.shape)} need labels of shape {tuple(logits.shape[:-1])}, found "
            f"{tuple(labels.shape)}"
        )
    picked = _take_along_last(logits, labels, xp)
    if kind == "cross_entropy":
        each = _of_library("logsumexp", xp)(logits, -1) - picked
    else:
        each = ((logits**2).sum(-1) - 2 * picked + 1) / 2
    if each.ndim == 2:
        each = each.mean(-1)
    return (each * weights).sum()


def _take_along_last(logits: Any, labels: Any, xp: ModuleType) -> Any:
    if xp.__name__ == "torch":
        return logits.gather(-1, labels[..., None])[..., 0]
    return xp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def _apply(
    node: Expression,
    values: Mapping[int, Named],
    parameters: Mapping[str, Any],
    tokens: Any,
    sizes: Mapping[str, int],
    xp: ModuleType,
    epsilon: Any,
    dense: bool,
) -> Named:
    match node:
        case lang.Tokens():
            if tokens.ndim == 2 and dense:
                one_hot = (tokens[..., None] == _arange(sizes[lang.TOKEN], tokens, xp)) * 1.0
                tokens = _cast(one_hot, next(iter(parameters.values())), xp)
            return tokens, (SAMPLE, POSITION, lang.TOKEN)
        case lang.Parameter(name=name):
            return parameters[name], node.axes
        case lang.Constant():
            return _as_array(node.build(sizes), parameters, xp), node.axes
        case lang.Number(scalar=scalar, weight=weight):
            number = _as_array(np.asarray(scalar.value(sizes)), parameters, xp)
            power = weight if isinstance(weight, int) else float(weight)  # Taylor mode at 0 knows whole powers alone
            return (number * epsilon**power if weight else number), ()
        case lang.Dot(left=left, right=right, over=over):
            if _is_look_up(node) and tokens.ndim == 2:
                return _look_up(tokens, values[id(right)], xp)
            kept = _union(values[id(left)][1], values[id(right)][1], drop=over)
            return _einsum([values[id(left)], values[id(right)]], kept, xp)
        case lang.Multiply(left=left, right=right):
            first, second = values[id(left)], values[id(right)]
            return _einsum([first, second], _union(first[1], second[1]), xp)
        case lang.Add(left=left, right=right):
            first, second = values[id(left)], values[id(right)]
            axes = _union(first[1], second[1])
            return _align(first, axes, xp) + _align(second, axes, xp), axes
        case lang.Scale(operand=operand, scalar=scalar):
            array, axes = values[id(operand)]
            return array * scalar.value(sizes), axes
        case lang.Total(operand=operand, over=over):
            array, axes = values[id(operand)]
            if over not in axes:
                return array * sizes[over], axes
            return array.sum(axes.index(over)), tuple(a for a in axes if a != over)
        case lang.Rename(operand=operand, mapping=mapping):
            array, axes = values[id(operand)]
            return array, tuple(dict(mapping).get(a, a) for a in axes)
        case lang.Select(operand=operand, axis=axis, place=place):
            array, axes = values[id(operand)]
            if axis not in axes:
                return array, axes
            index = -1 if place == "last" else 0
            return array[(slice(None),) * axes.index(axis) + (index,)], tuple(a for a in axes if a != axis)
        case lang.Softmax(operand=operand, over=over, mask=mask):
            scores, axes = values[id(operand)]
            weights = None if mask is None else values[id(mask)]
            return softmax_over(scores, axes, over, weights, xp)
        case lang.Elementwise(operand=operand, function=function):
            array, axes = values[id(operand)]
            return function(array, xp), axes
        case lang.Mark(operand=operand):
            return values[id(operand)]
    raise AssertionError(f"no rule for {type(node).__name__}")


def softmax_over(scores: Any, axes: tuple[str, ...], over: str, mask: Named | None, xp: ModuleType) -> Named:
    """Softmax of a named array over one axis, with a 0/1 mask; exact and without overflow."""
    if mask is not None:
        axes_all = _union(axes, mask[1])
        scores, allowed = _align((scores, axes), axes_all, xp), _align(mask, axes_all, xp)
        axes = axes_all
        scores = xp.where(allowed > 0, scores, -xp.inf)
    return _of_library("softmax", xp)(scores, axes.index(over)), axes


def _of_library(name: str, xp: ModuleType) -> Callable[[Any, int], Any]:
    """`softmax` or `logsumexp` as the arrays' own library has it: its derivative is known there, and needs no maximum."""
    if xp is np:
        from scipy import special

        function = getattr(special, name)
        return lambda array, axis: function(array, axis=axis)
    return getattr(xp if xp.__name__ == "torch" else sys.modules["jax"].nn, name)


def _is_look_up(node: Expression) -> bool:
    if not isinstance(node, lang.Dot) or node.over != (lang.TOKEN,):
        return False
    return isinstance(node.left, lang.Tokens) and not isinstance(node.right, lang.Tokens)


def _look_up(tokens: Any, table: Named, xp: ModuleType) -> Named:
    """Rows of a table at each token, instead of a product with a one-hot matrix."""
    array, axes = table
    if SAMPLE in axes or lang.POSITION in axes:
        # The table itself depends on the sample or position: contract a true one-hot array.
        n = array.shape[axes.index(lang.TOKEN)]
        one_hot = (tokens[..., None] == _arange(n, tokens, xp)) * 1.0
        kept = _union((SAMPLE, POSITION), axes, drop=(lang.TOKEN,))
        return _einsum([(_cast(one_hot, array, xp), (SAMPLE, POSITION, lang.TOKEN)), table], kept, xp)
    place = axes.index(lang.TOKEN)
    rest = tuple(a for a in axes if a != lang.TOKEN)
    moved = array if place == 0 else xp.moveaxis(array, place, 0)
    return moved[tokens], (SAMPLE, POSITION, *rest)


def _arange(n: int, like: Any, xp: ModuleType) -> Any:
    return xp.arange(n, device=like.device) if xp.__name__ == "torch" else xp.arange(n)


def _cast(array: Any, like: Any, xp: ModuleType) -> Any:
    return array.to(like.dtype) if xp.__name__ == "torch" else array.astype(like.dtype)


def _as_array(array: np.ndarray, parameters: Mapping[str, Any], xp: ModuleType) -> Any:
    like = next(iter(parameters.values()))
    if xp.__name__ == "torch":
        return xp.as_tensor(array, dtype=like.dtype, device=like.device)
    return xp.asarray(array, dtype=like.dtype)


def _union(left: tuple[str, ...], right: tuple[str, ...], drop: tuple[str, ...] = ()) -> tuple[str, ...]:
    axes = left + tuple(a for a in right if a not in left)
    if SAMPLE in axes:
        axes = (SAMPLE, *(a for a in axes if a != SAMPLE))
    return tuple(a for a in axes if a not in drop)


def _align(named: Named, axes: tuple[str, ...], xp: ModuleType) -> Any:
    """The array with the order of `axes`, size 1 on those that it lacks."""
    array, found = named
    array = _transpose(array, found, tuple(a for a in axes if a in found))
    return array[tuple(slice(None) if a in found else None for a in axes)]


def _expand(
    array: Any,
    axes: tuple[str, ...],
    new: tuple[str, ...],
    sizes: Mapping[str, int],
    xp: ModuleType,
) -> Named:
    return xp.broadcast_to(_align((array, axes), new, xp), tuple(sizes[a] for a in new)), new


def _transpose(array: Any, axes: tuple[str, ...], order: tuple[str, ...]) -> Any:
    places = tuple(axes.index(a) for a in order)
    if places == tuple(range(len(places))):
        return array
    return array.permute(places) if hasattr(array, "permute") else array.transpose(places)


def _einsum(operands: list[Named], axes: tuple[str, ...], xp: ModuleType) -> Named:
    letters: dict[str, str] = {}
    for _, found in operands:
        for axis in found:
            letters.setdefault(axis, string.ascii_letters[len(letters)])
    subscripts = ",".join("".join(letters[a] for a in found) for _, found in operands)
    out = "".join(letters[a] for a in axes)
    return xp.einsum(f"{subscripts}->{out}", *(array for array, _ in operands)), axes
