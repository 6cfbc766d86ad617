"""The reverse pass: from the residual at the logits to the right-hand side of every parameter's equation.

The rules are the same for expanded and kept nonlinearities; only the values that they meet differ. Adjoints are those of
−loss, so that a parameter's adjoint is its evolution dθ/dt. Label-driven and prediction-induced parts travel apart, and so
do paths, when asked for: a *path* is the last module that wrote to the residual stream, a *branch* the way in which the
first module read the embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from theory import language as lang
from theory.algebra.components import Symbol
from theory.algebra.polynomials import INFINITE, Graded, term_count, truncated
from theory.algebra.scalar import Degree, Scalar
from theory.expansion import Expansion, PolynomialDefinition
from theory.language import LABEL, POSITION, Expression

LABEL_DRIVEN, PREDICTION_INDUCED, RESIDUAL = "label", "prediction", "residual"

# In equations that keep everything, an adjoint with more terms than this is named; at a node whose value has a name (the
# residual stream) one with two terms already is.
_NAMED_BEYOND = 4


class Tag(NamedTuple):
    """What is known of a term beside its algebra: the part it belongs to, its path and its branch."""

    part: str
    path: str = ""
    branch: str = ""


Tagged = dict[Tag, Graded]


def right_hand_sides(
    expansion: Expansion, residuals: dict[str, Graded], paths: bool
) -> tuple[dict[str, Tagged], dict[str, PolynomialDefinition]]:
    """The evolution of each parameter.

    **Arguments:** `expansion`: the forward values; `residuals`: per part, the adjoint of the logits; `paths`: keep paths apart.

    **Returns:** parameter → tag → graded polynomial with the parameter's axes free, and the adjoints that got a name.
    """
    architecture, algebra = expansion.architecture, expansion.algebra
    adjoints: dict[int, Tagged] = {id(node): {} for node in architecture.nodes}
    named: dict[str, PolynomialDefinition] = {}
    result: dict[str, Tagged] = {name: {} for name in architecture.parameters}
    for part, residual in residuals.items():
        adjoints[id(architecture.logits)][Tag(part)] = residual
    for node in reversed(architecture.nodes):
        tagged = adjoints.pop(id(node))
        if isinstance(node, lang.Parameter):
            result[node.name] = tagged
            continue
        # Below the last nonlinearity an adjoint only meets parameters; a name there would hide what the reader looks for.
        most = 1 if id(node) in expansion.named else _NAMED_BEYOND
        for tag, adjoint in tagged.items():
            if _splits(node) and id(node) in expansion.per_sample:
                adjoint = expansion.named_parts(adjoint)
            long = term_count(adjoint) > most and not expansion.shared
            if expansion.degree is None and id(node) in expansion.nonlinear and long:
                definition = _named_adjoint(expansion, node, tag, adjoint, len(named) + 1)
                named[definition.symbol.name] = definition
                adjoint = algebra.symbol(definition.symbol)
            for child, contribution in _rules(expansion, node, adjoint):
                cut = INFINITE if expansion.degree is None else expansion.degree - expansion.leading[id(child)]
                contribution = truncated(contribution, cut)
                if not contribution:
                    continue
                crossed = _crossed(node, tag) if paths else tag
                target = adjoints[id(child)]
                target[crossed] = algebra.add(target[crossed], contribution) if crossed in target else contribution
    return result, named


def _splits(node: Expression) -> bool:
    """Whether a node's adjoint is multiplied by something on its way, so that products of it had better be shared."""
    return not isinstance(node, lang.Scale | lang.Rename | lang.Select | lang.Mark | lang.Total)


def _crossed(node: Expression, tag: Tag) -> Tag:
    if isinstance(node, lang.Mark):
        if node.kind == "module":
            return tag if tag.path else tag._replace(path=node.name)
        return tag._replace(branch=node.name)
    return tag


def _named_adjoint(
    expansion: Expansion, node: Expression, tag: Tag, adjoint: Graded, number: int
) -> PolynomialDefinition:
    axes = tuple(map(expansion.architecture.root, node.axes))
    degree = min(adjoint)
    symbol = Symbol(f"g{number}[{tag.part}]", node.axes, axes, "named", True, degree=degree)
    return PolynomialDefinition(expansion.table.declare(symbol), adjoint)


def _rules(expansion: Expansion, node: Expression, adjoint: Graded) -> Iterator[tuple[Expression, Graded]]:
    """What a node's adjoint gives to each of its inputs."""
    algebra = expansion.algebra
    match node:
        case lang.Dot(left=left, right=right) | lang.Multiply(left=left, right=right):
            for child, other in ((left, right), (right, left)):
                if _trained(expansion, child):
                    # Sum over what the product has and this operand lacks.
                    over = tuple(a for a in dict.fromkeys(node.axes + other.axes) if a not in child.axes)
                    cut = _cut(expansion, child)
                    yield child, algebra.multiply(adjoint, expansion.value(other), over, cut)
        case lang.Add(left=left, right=right):
            yield left, adjoint
            yield right, algebra.contract(adjoint, tuple(a for a in left.axes if a not in right.axes))
        case lang.Scale(operand=operand, scalar=scalar):
            yield operand, algebra.scale(adjoint, expansion.root_scalar(scalar))
        case lang.Total(operand=operand):
            # The same adjoint at every place: a missing label means just that.
            yield operand, adjoint
        case lang.Rename(operand=operand, mapping=mapping):
            yield operand, algebra.relabel(adjoint, {new: old for old, new in mapping})
        case lang.Select(operand=operand, axis=axis, place=place):
            yield operand, algebra.multiply(adjoint, expansion.selector(axis, place), (), _cut(expansion, operand))
        case lang.Mark(operand=operand):
            yield operand, adjoint
        case lang.Elementwise(operand=operand):
            yield operand, algebra.multiply(adjoint, expansion.derivative(node), (), _cut(expansion, operand))
        case lang.Softmax(operand=operand, over=over):
            # ∂z_s: a_s (g_s − Σ_u a_u g_u)
            cut = _cut(expansion, operand)
            weighted = expansion.named_parts(algebra.multiply(expansion.value(node), adjoint, (), cut))
            mean = expansion.named_parts(algebra.contract(weighted, (over,)))
            centre = algebra.multiply(expansion.value(node), mean, (), cut)
            yield operand, algebra.add(weighted, algebra.scale(centre, Scalar(Fraction(-1))))


def _trained(expansion: Expansion, node: Expression) -> bool:
    return id(node) in expansion.trained


def _cut(expansion: Expansion, child: Expression) -> Degree:
    return INFINITE if expansion.degree is None else expansion.degree - expansion.leading[id(child)]


def residuals(expansion: Expansion, prediction: str, loss: str) -> dict[str, Graded]:
    """The adjoint of the logits under −loss: e_y − p, or e_y − f for the squared error, each part by itself.

    Where every position has a label the loss is a mean over positions.
    """
    algebra, architecture = expansion.algebra, expansion.architecture
    if loss == "cross_entropy":
        second = expansion.prediction(prediction)
    else:
        second = expansion.value(architecture.logits)
    parts = {
        LABEL_DRIVEN: algebra.symbol(
            expansion.labels, (POSITION, LABEL) if architecture.labels_per_position else (LABEL,)
        ),
        PREDICTION_INDUCED: algebra.scale(second, Scalar(Fraction(-1))),
    }
    if architecture.labels_per_position:
        share = algebra.size(POSITION) ** -1
        parts = {part: algebra.scale(graded, share) for part, graded in parts.items()}
    # Where products are shared the two parts travel together: half the work.
    return {RESIDUAL: algebra.add(*parts.values())} if expansion.shared else parts
