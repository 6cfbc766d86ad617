"""Derived equations of every architecture of the zoo, certified: exactly, degree by degree, and by slopes."""

import numpy as np
import pytest
from zoo import SLOW, ZOO, Entry

import theory.language as lang
from compare.certificate import certify
from theory.errors import UserError
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive

CASES = [(name, ()) for name in ZOO]
MIXED = [(name, keep) for name, entry in ZOO.items() for keep, _ in entry.modes]
# In `make test` every architecture at one shape, and some of the mixed modes; the rest is slow.
QUICK = [case for case in CASES if case[0] not in SLOW]
QUICK += [
    case for case in MIXED if case[0] in ("multi_head", "residual_mlps", "mixture_of_experts", "rms_norm_around_zero")
]


def _label(value: object) -> str:
    return value if isinstance(value, str) else "keep " + "+".join(value) if value else "expanded"  # pyright: ignore


def random_sizes(entry: Entry, seed: int) -> dict[str, int]:
    """Sizes between 2 and 5 of every axis, of at least 3 labels: with two, half of the loss's degrees cancel."""
    architecture = entry.architecture
    rng = np.random.default_rng([seed, *architecture.name.encode()])
    return {axis: int(rng.integers(3 if axis == "label" else 2, 6)) for axis in architecture.axes}


def check(name: str, keep: tuple[str, ...], seed: int) -> None:
    entry = ZOO[name]
    degree = dict(entry.modes)[keep] if keep else entry.degree
    sizes = random_sizes(entry, seed)
    certificate = certify(entry.architecture, degree=degree, keep=keep, sizes=sizes, seed=seed, loss_kind=entry.loss)
    assert certificate.passed, certificate.to_text()
    kinds = {each.kind for each in certificate.checks}
    if certificate.degree is not None:
        # Beyond the exact check, something must have looked at the expansion.
        assert kinds & {"taylor", "slope"}, certificate.to_text()


@pytest.mark.parametrize(("name", "keep"), QUICK, ids=_label)
def test_architectures_are_certified(name, keep):
    check(name, keep, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("name", "keep"), CASES + MIXED, ids=_label)
def test_architectures_are_certified_at_three_shapes(name, keep, seed):
    check(name, keep, seed)


@pytest.mark.parametrize("name", ZOO)
def test_a_derivation_to_a_lower_degree_is_a_part_of_one_to_a_higher(name):
    """Term by term: a budget of degrees that cuts too early shows at the highest degree alone."""
    entry = ZOO[name]
    kinks = ("kink",) if name == "relu_and_maximum" else ()
    found = []
    for degree in range(1, entry.degree + 1):
        try:
            found.append(derive(entry.architecture, degree, kinks, loss=entry.loss))
        except UserError as error:
            assert "no term of the loss" in str(error)
    for lower, higher in zip(found, found[1:], strict=False):
        for parameter, equation in lower.items():
            weight = entry.architecture.parameters[parameter].weight
            within = higher[parameter].where(lambda term, most=lower.degree - weight: term.degree <= most)
            assert equation.terms == within.terms, (parameter, lower.degree)


def test_the_zoo_has_every_word_of_the_language():
    nodes = [node for entry in ZOO.values() for node in entry.architecture.nodes]
    assert len(ZOO) >= 25
    kinds = {type(node) for node in nodes}
    assert kinds >= {*lang.Expression.__subclasses__(), *lang._Unary.__subclasses__()} - {lang._Unary}, kinds
    constants = {node.name.split("[")[0].rstrip("0123456789") for node in nodes if isinstance(node, lang.Constant)}
    assert constants >= {"causal", "window", "shift", "rotary", "distance", "blocks", "taps"}
    assert {node.place for node in nodes if isinstance(node, lang.Select)} == {"first", "last"}
    assert {node.kind for node in nodes if isinstance(node, lang.Mark)} == {"module", "branch"}
    axes = {node.over for node in nodes if isinstance(node, lang.Softmax)}
    assert axes >= {"position", "token", "expert", "slot"}
    weights = {spec.weight for entry in ZOO.values() for spec in entry.architecture.parameters.values()}
    assert weights >= {0, 1, 2}
    assert {entry.architecture.labels_per_position for entry in ZOO.values()} == {True, False}
    assert {entry.loss for entry in ZOO.values()} == {"cross_entropy", "squared_error"}
    assert any(entry.architecture.root("label") == "token" for entry in ZOO.values())


@pytest.mark.parametrize("name", ZOO)
def test_products_computed_once_give_the_same_right_hand_sides(name):
    """`shared()` evaluates by other contractions, degree by degree, what the multiplied-out equations say."""
    entry = ZOO[name]
    sizes = random_sizes(entry, seed=3)
    rng = np.random.default_rng(3)
    shapes = entry.architecture.shapes(sizes)
    parameters = {key: 0.5 * rng.normal(size=shape) for key, shape in shapes.items()}
    tokens = rng.integers(0, sizes.get("token", 2), (6, sizes.get("position", 3)))
    classes = sizes[entry.architecture.root("label")]
    labels = rng.integers(0, classes, tokens.shape if entry.architecture.labels_per_position else 6)
    data = Data(tokens, labels, rng.dirichlet(np.ones(6)))
    expanded = () if name == "relu_and_maximum" else ((entry.degree, ()),)
    for degree, keep in ((None, None), *expanded, *((d, keep) for keep, d in entry.modes)):
        equations = derive(entry.architecture, degree, keep, loss=entry.loss)
        wanted = right_hand_sides(equations, parameters, data)
        found = right_hand_sides(equations.shared(), parameters, data)
        for key, array in wanted.items():
            assert np.abs(found[key] - array).max() <= 1e-11 * max(np.abs(array).max(), 1e-3), (degree, keep, key)
