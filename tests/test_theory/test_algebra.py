"""The algebra: canonical forms tell contractions apart and nothing else, every rule holds numerically, numbers are exact."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from theory.activations import activation
from theory.algebra.components import ComponentTable, Symbol, is_bound
from theory.algebra.polynomials import Algebra, term_count, truncated
from theory.algebra.scalar import Scalar, multiply_atoms, size, sqrt, sum_of_scalars
from theory.architectures import feed_forward
from theory.evolution import derive

SIZES = {"position": 3, "token": 4, "label": 2, "embed": 3}
SYMBOLS = {
    "X": Symbol("X", ("position", "token"), ("position", "token"), "tokens", True, hot=1, normalised=1),
    "Y": Symbol("Y", ("label",), ("label",), "labels", True, hot=0, normalised=0),
    "a": Symbol("a", ("query", "position"), ("position", "position"), "named", True, normalised=1),
    "p": Symbol("p", ("label",), ("label",), "named", True, normalised=0),
    "m": Symbol("m", ("query", "position"), ("position", "position"), "constant"),
    "E": Symbol("E", ("token", "embed"), ("token", "embed"), "parameter", degree=1),
    "U": Symbol("U", ("label", "embed"), ("label", "embed"), "parameter", degree=1),
    "A": Symbol("A", ("embed", "out"), ("embed", "embed"), "parameter", degree=1),
    "b": Symbol("b", ("embed",), ("embed",), "parameter", degree=1),
    "last": Symbol("last", ("position",), ("position",), "selector", normalised=0),
    "first": Symbol("first", ("position",), ("position",), "selector", normalised=0),
    "delta[token]": Symbol("delta[token]", ("token", "token"), ("token", "token"), "delta"),
}
ALIASES = {"query": "position", "out": "embed", "token2": "token"}


def table():
    made = ComponentTable(lambda axis: ALIASES.get(axis, axis))
    for symbol in SYMBOLS.values():
        made.declare(symbol)
    return made


def arrays(seed=0):
    """One sample's arrays: one-hot where a symbol is, normalised where it is."""
    rng = np.random.default_rng(seed)
    a = rng.random((3, 3)) + 0.1
    p = rng.random(2) + 0.1
    return {
        "X": np.eye(4)[rng.integers(0, 4, 3)],
        "Y": np.eye(2)[rng.integers(0, 2)],
        "a": a / a.sum(1, keepdims=True),
        "p": p / p.sum(),
        "m": rng.normal(size=(3, 3)),
        "E": rng.normal(size=(4, 3)),
        "U": rng.normal(size=(2, 3)),
        "A": rng.normal(size=(3, 3)),
        "b": rng.normal(size=3),
        "last": np.eye(3)[2],
        "first": np.eye(3)[0],
        "delta[token]": np.eye(4),
    }


def contracted(factors, values, free, bound=()):
    """Σ over bound indices of a product of factors, by numpy's einsum; `bound`: axes of bound indices in no factor."""
    letters = {}
    operands = []
    for name, indices in factors:
        array = values[name]
        place = tuple(
            (-1 if i.endswith("@last") else 0) if isinstance(i, str) and "@" in i else slice(None) for i in indices
        )
        named = [i for i in indices if not (isinstance(i, str) and "@" in i)]
        operands += [array[place], [letters.setdefault(i, len(letters)) for i in named]]
    for label in free:
        if label not in letters:
            operands += [np.ones(SIZES[ALIASES.get(label, label)]), [letters.setdefault(label, len(letters))]]
    if not operands:
        return np.float64(1.0)
    factor = math.prod(SIZES[axis] for axis in bound)
    return factor * np.einsum(*operands, [letters[label] for label in free], optimize=True)


def reduced_value(made, reduced, values, free):
    rational, atoms, components = reduced
    factors = []
    offset = 0
    for c in components:
        raw = made.raw(c, offset)
        factors += raw
        offset += 1 + max((i for _, ix in raw for i in ix if isinstance(i, int)), default=-1)
    return Scalar(rational, atoms).value(SIZES) * contracted(factors, values, free)


@st.composite
def products(draw, most=7, names=tuple(SYMBOLS)):
    """A product of random factors whose indices are numbers (summed), free labels or fixed places."""
    pools = {
        "position": [0, 1, 2, "position", "position@last", "position@first"],
        "token": [10, 11, 12, "token", "token2"],
        "label": [20, 21, "label"],
        "embed": [30, 31, 32, "embed"],
    }
    factors = []
    for _ in range(draw(st.integers(1, most))):
        name = draw(st.sampled_from(names))
        indices = tuple(draw(st.sampled_from(pools[axis])) for axis in SYMBOLS[name].axes)
        factors.append((name, indices))
    return factors


def free_labels(factors):
    return sorted({i for _, ix in factors for i in ix if isinstance(i, str) and "@" not in i})


# -- rules -------------------------------------------------------------------------------------------------------------


@settings(max_examples=400, deadline=None, derandomize=True)
@given(products(), st.integers(0, 5))
def test_reduction_does_not_change_the_value(factors, seed):
    values, free = arrays(seed), free_labels(factors)
    made = table()
    found = reduced_value(made, made.from_factors(factors), values, free)
    np.testing.assert_allclose(found, contracted(factors, values, free), rtol=1e-12, atol=1e-12)


def written(made, reduced):
    rational, atoms, components = reduced
    return rational, dict(atoms), sorted(f for c in components for f in made[c].factors)


RULES = {
    "two one-hot factors at one position": (
        [("X", (0, 1)), ("X", (0, 2)), ("E", (1, "embed")), ("E", (2, "embed"))],
        [("E", ("#0", "embed")), ("E", ("#0", "embed")), ("X", ("#1", "#0"))],
    ),
    "the same with one token free": (
        [("X", (0, "token")), ("X", (0, 1)), ("E", (1, "embed"))],
        [("E", ("token", "embed")), ("X", ("#0", "token"))],
    ),
    "the same with both free": (
        [("X", (0, "token")), ("X", (0, "token2"))],
        [("X", ("#0", "token")), ("delta[token]", ("token", "token2"))],
    ),
    "the same twice": ([("X", (0, "token")), ("X", (0, "token"))], [("X", ("#0", "token"))]),
    "at one fixed place": (
        [("X", ("position@last", 0)), ("X", ("position@last", "token")), ("E", (0, "embed"))],
        [("E", ("token", "embed")), ("X", ("position@last", "token"))],
    ),
    "not at different positions": (
        [("X", (0, "token")), ("X", (1, "token"))],
        [("X", ("#0", "token")), ("X", ("#0", "token"))],
    ),
    "two labels": (
        [("Y", (0,)), ("Y", (1,)), ("U", (0, "embed")), ("U", (1, "embed"))],
        [("U", ("#0", "embed")), ("U", ("#0", "embed")), ("Y", ("#0",))],
    ),
    "a label that is free": ([("Y", ("label",)), ("Y", (0,)), ("p", (0,))], [("Y", ("label",)), ("p", ("label",))]),
    "a selector": ([("last", (0,)), ("X", (0, "token"))], [("X", ("position@last", "token"))]),
    "a selector and a fixed place": (
        [("last", ("position@last",)), ("X", ("position@last", "token"))],
        [("X", ("position@last", "token"))],
    ),
    "first is not last": (
        [("first", (0,)), ("a", (0, "position"))],
        [("a", ("position@first", "position"))],
    ),
    "a selector with its label free stays": ([("last", ("position",))], [("last", ("position",))]),
    "an identity": ([("delta[token]", (0, "token")), ("E", (0, "embed"))], [("E", ("token", "embed"))]),
    "softmax weights sum to one": ([("a", ("position@last", 0)), ("b", ("embed",))], [("b", ("embed",))]),
    "only over their own axis": ([("a", (0, "position"))], [("a", ("#0", "position"))]),
    "not if the index stands elsewhere": (
        [("p", (0,)), ("U", (0, "embed"))],
        [("U", ("#0", "embed")), ("p", ("#0",))],
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_each_rule(case):
    factors, expected = RULES[case]
    made = table()
    assert written(made, made.from_factors(factors)) == (1, {}, sorted(expected))


def test_a_sum_over_nothing_is_a_size():
    """Σ_l Σ_v X[l,v] = L, Σ_q Σ_l a[q,l] = L: the index that is left in no factor multiplies by its size."""
    made = table()
    for factors in ([("X", (0, 1))], [("a", (0, 1))]):
        assert written(made, made.from_factors(factors)) == (1, {"|position|": 1}, [])
    algebra = Algebra(made)
    b = algebra.symbol(SYMBOLS["b"])
    over = algebra.contract(b, ("label", "query", "position"))
    ((atoms, components),) = over[1]
    assert dict(atoms) == {"|label|": 1, "|position|": 2} and len(components) == 1
    # Uniform attention summed over its queries is 1, not 1/L.
    uniform = algebra.number(size("position") ** -1)
    assert algebra.contract(uniform, ("query",)) == {0: {((), ()): 1}}


def test_joining_applies_the_rules_across_components():
    """A one-hot factor that meets another of its place in a product is one with it, whatever else is in the product."""
    made = table()
    algebra = Algebra(made)

    def product(*factors):
        result = algebra.number(Scalar(Fraction(1)))
        for name, labels in factors:
            result = algebra.multiply(result, algebra.symbol(SYMBOLS[name], labels))
        return result

    both = algebra.contract(product(("X", ("position", "token")), ("E", ("token", "embed"))), ("token",))
    at_last = algebra.relabel(both, {"position": "position@last"})
    twice = algebra.multiply(at_last, at_last)
    wanted = made.from_factors(
        [("X", ("position@last", 0)), ("E", (0, "embed")), ("E", (0, "embed"))],
    )
    assert twice == {2: {((), wanted[2]): 1}}
    # Y is shared by two components that a sum does not touch.
    first = algebra.multiply(
        product(("Y", ("label",)), ("U", ("label", "embed"))), {0: {((), ()): Fraction(1)}}, ("label",)
    )
    squared = algebra.multiply(first, algebra.relabel(first, {"embed": "out"}), ())
    ((_, components),) = squared[2]
    assert len(components) == 1 and len(made[components[0]].factors) == 3
    # A sum over one label puts a one-hot factor where another component has it: X[last,·] meets X[query,·].
    apart = algebra.multiply(at_last, product(("X", ("query", "token"))))
    ((_, components),) = apart[1]
    assert len(components) == 2
    wanted = made.from_factors([("X", ("position@last", "token")), ("E", ("token", "embed"))])
    assert algebra.multiply(apart, product(("last", ("query",))), ("query",)) == {1: {((), wanted[2]): 1}}


@settings(max_examples=150, deadline=None, derandomize=True)
@given(products(most=4), products(most=4), st.integers(0, 3), st.data())
def test_products_sums_and_renaming_of_polynomials(left, right, seed, data):
    """Against einsum: multiply with contraction, contract, relabel (also onto each other's names, and onto a place)."""
    made, values = table(), arrays(seed)
    algebra = Algebra(made)

    def polynomial(factors):
        rational, atoms, components = made.from_factors(factors)
        return {0: {(atoms, components): rational}}

    def value(graded, free):
        return sum(
            reduced_value(made, (rational, atoms, components), values, free)
            for polynomial in graded.values()
            for (atoms, components), rational in polynomial.items()
        )

    shifted = [(n, tuple(i + 100 if isinstance(i, int) else i for i in ix)) for n, ix in right]
    free = free_labels(left + shifted)
    over = tuple(label for label in free if data.draw(st.booleans()))
    kept = [label for label in free if label not in over]
    product = algebra.multiply(polynomial(left), polynomial(right), over)
    number = {label: 1000 + n for n, label in enumerate(over)}
    raw = [(n, tuple(number.get(i, i) for i in ix)) for n, ix in left + shifted]
    wanted = contracted(raw, values, kept)
    np.testing.assert_allclose(value(product, kept), wanted, rtol=1e-12, atol=1e-12)

    mapping = {"token": "token2", "token2": "token", "position": "position@last"}
    renamed = algebra.relabel(polynomial(left), mapping)
    raw = [(n, tuple(mapping.get(i, i) if isinstance(i, str) else i for i in ix)) for n, ix in left]
    free = free_labels(raw)
    np.testing.assert_allclose(value(renamed, free), contracted(raw, values, free), rtol=1e-12, atol=1e-12)


def test_polynomials_are_graded_and_like_terms_merge():
    algebra = Algebra(table())
    b, E = algebra.symbol(SYMBOLS["b"]), algebra.symbol(SYMBOLS["E"])
    assert algebra.add(b, algebra.scale(b, Scalar(Fraction(-1)))) == {}
    assert algebra.scale(b, Scalar(Fraction(0))) == {}
    square = algebra.multiply(algebra.add(b, E), algebra.add(b, E))
    assert list(square) == [2] and sorted(square[2].values()) == [1, 1, 2]
    assert algebra.multiply(b, E, (), cut=1) == {}
    both = algebra.add(square, b)
    assert list(truncated(both, 1)) == [1] and term_count(both) == 4
    # Roots of numbers merge as well: √2 b · √2 b = 2 b b.
    root = algebra.scale(b, sqrt(2))
    assert algebra.multiply(root, root) == algebra.scale(algebra.multiply(b, b), Scalar(Fraction(2)))
    assert algebra.scale(root, sqrt(2)) == algebra.scale(b, Scalar(Fraction(2)))


def test_a_symbol_is_declared_once():
    made = table()
    with pytest.raises(ValueError, match="'b' is declared twice, differently"):
        made.declare(Symbol("b", ("label",), ("label",), "parameter"))


# -- canonical form ----------------------------------------------------------------------------------------------------


def shuffled(factors, rng):
    """The same product with other numbers for its summed indices, in another order."""
    bound = sorted({i for _, ix in factors for i in ix if isinstance(i, int)})
    others = dict(zip(bound, rng.permutation(1000)[: len(bound)].tolist(), strict=True))
    moved = [(n, tuple(others[i] if isinstance(i, int) else i for i in ix)) for n, ix in factors]
    return [moved[k] for k in rng.permutation(len(moved))]


def numbered(form):
    return [(n, tuple(int(i[1:]) if is_bound(i) else i for i in ix)) for n, ix in form]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(products(most=12), st.integers(0, 10**6))
def test_canonical_form_ignores_names_and_order_and_is_idempotent(factors, seed):
    rng = np.random.default_rng(seed)
    made = table()
    form, count = made.canonical(factors)
    assert count == len({i for _, ix in factors for i in ix if isinstance(i, int)})
    for _ in range(3):
        assert made.canonical(shuffled(factors, rng)) == (form, count)
    assert made.canonical(numbered(form)) == (form, count)
    assert Counter(n for n, _ in form) == Counter(n for n, _ in factors)
    # It is the same contraction, not merely some form.
    values, free = arrays(), free_labels(factors)
    np.testing.assert_allclose(
        contracted(numbered(form), values, free), contracted(factors, values, free), rtol=1e-12, atol=1e-12
    )


def test_interned_components_do_not_depend_on_names_or_order():
    rng = np.random.default_rng(0)
    made = table()
    factors = [("E", (0, 1)), ("A", (1, 2)), ("A", (2, 3)), ("E", (4, 3)), ("X", (5, 0)), ("X", (6, 4)), ("m", (5, 6))]
    first = made.from_factors(factors)
    assert all(made.from_factors(shuffled(factors, rng)) == first for _ in range(20))


def isomorphic(left, right):
    """By trying every renaming."""
    a = sorted({i for _, ix in left for i in ix})
    b = sorted({i for _, ix in right for i in ix})
    if len(a) != len(b):
        return False
    target = sorted(right)
    for order in itertools.permutations(b):
        names = dict(zip(a, order, strict=True))
        if sorted((n, tuple(names[i] for i in ix)) for n, ix in left) == target:
            return True
    return False


def test_canonical_form_separates_what_no_renaming_carries_into_each_other():
    """All pairs among random products of matrices and vectors with five indices at most, against brute force."""
    rng = np.random.default_rng(3)
    made = table()
    found = {True: 0, False: 0}
    for _ in range(40):
        size = int(rng.integers(3, 6))
        group = [
            [("A", tuple(map(int, rng.integers(0, size, 2)))) for _ in range(size)]
            + ([("b", (int(rng.integers(0, size)),))] if rng.random() < 0.3 else [])
            for _ in range(5)
        ]
        group.append(shuffled(group[0], rng))
        for left, right in itertools.combinations(group, 2):
            same = isomorphic(left, right)
            assert (made.canonical(left) == made.canonical(right)) == same, (left, right)
            found[same] += 1
    assert found[True] > 40 and found[False] > 40


def graph(edges):
    """Each edge as A both ways; every vertex hangs on one hub, so that a disconnected graph is one component."""
    vertices = sorted({v for edge in edges for v in edge})
    both = [("A", (i, j)) for i, j in edges] + [("A", (j, i)) for i, j in edges]
    return both + [("U", (999, v)) for v in vertices]


def cycle(*vertices):
    return [(v, vertices[(n + 1) % len(vertices)]) for n, v in enumerate(vertices)]


REGULAR = {
    "hexagon": cycle(0, 1, 2, 3, 4, 5),
    "two triangles": cycle(0, 1, 2) + cycle(3, 4, 5),
    "octagon": cycle(*range(8)),
    "two squares": cycle(0, 1, 2, 3) + cycle(4, 5, 6, 7),
    "triangle and pentagon": cycle(0, 1, 2) + cycle(3, 4, 5, 6, 7),
    "complete bipartite 3,3": [(i, j) for i in range(3) for j in range(3, 6)],
    "triangular prism": cycle(0, 1, 2) + cycle(3, 4, 5) + [(0, 3), (1, 4), (2, 5)],
    "cube": cycle(0, 1, 2, 3) + cycle(4, 5, 6, 7) + [(i, i + 4) for i in range(4)],
    "Möbius ladder of 8": cycle(*range(8)) + [(i, i + 4) for i in range(4)],
    # Regular, connected, and with two kinds of vertices: the choice of the first one matters.
    "two diamonds": [(0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7), (0, 4), (1, 5)],
    "Petersen": cycle(*range(5)) + cycle(5, 7, 9, 6, 8) + [(i, i + 5) for i in range(5)],
    "pentagonal prism": cycle(*range(5)) + cycle(*range(5, 10)) + [(i, i + 5) for i in range(5)],
    "Möbius ladder of 10": cycle(*range(10)) + [(i, i + 5) for i in range(5)],
    "rook's 4 × 4": [
        (i, j) for i in range(16) for j in range(i) if (i // 4 == j // 4) or (i % 4 == j % 4)
    ],
    "Shrikhande": [
        (i, j)
        for i in range(16)
        for j in range(i)
        if ((i // 4 - j // 4) % 4, (i % 4 - j % 4) % 4) in {(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)}
    ],
}  # fmt: skip


def test_canonical_form_separates_regular_graphs_that_colour_refinement_cannot():
    rng = np.random.default_rng(1)
    made = table()
    forms = {}
    for name, edges in REGULAR.items():
        factors = graph(edges)
        forms[name] = made.canonical(factors)
        again = 0 if len(edges) > 40 else 6
        assert all(made.canonical(shuffled(factors, rng)) == forms[name] for _ in range(again)), name
    assert len(set(forms.values())) == len(REGULAR)
    # Without branching these would be one: all their vertices have one colour.
    cells = [sorted(map(len, made._stable_cells(tuple(graph(REGULAR[n]))))) for n in ("rook's 4 × 4", "Shrikhande")]
    assert cells == [[1, 16], [1, 16]]


@pytest.mark.parametrize(
    "factors",
    [
        [("A", (i, i + 1)) for i in range(150)],
        [("A", (i, (i + 1) % 40)) for i in range(40)],
        [f for i in range(60) for f in (("X", (i, 100 + i)), ("E", (100 + i, 999)))],
        [f for i in range(12) for f in (("X", (i, 100 + i)), ("E", (100 + i, 900 + i % 3)), ("m", (800, i)))],
    ],
    ids=["chain of 150", "cycle of 40", "60 tokens on one axis", "12 tokens on three axes"],
)
def test_large_terms_have_canonical_forms_too(factors):
    rng = np.random.default_rng(2)
    made = table()
    form = made.canonical(factors)
    assert made.canonical(shuffled(factors, rng)) == form
    changed = [*factors[:-1], (factors[-1][0], factors[-1][1][::-1])]
    assert made.canonical(changed) != form


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_scalars_are_exact():
    assert sqrt(2) * sqrt(2) == Scalar(Fraction(2))
    assert sqrt(8) == Scalar(Fraction(2), (("2", Fraction(1, 2)),)) == 2 * sqrt(2)
    assert sqrt(Fraction(1, 2)) == sqrt(2) / 2
    assert 1 / sqrt(size("embed")) * (1 / sqrt(size("embed"))) == 1 / size("embed")
    assert sqrt(size("embed") ** 2) == size("embed")
    assert Scalar.of(0.1) == Scalar(Fraction(1, 10))
    assert Scalar.of(sympy.sqrt(sympy.Rational(2, 3))) == sqrt(Fraction(2, 3))
    assert -sqrt(3) * sqrt(3) == Scalar(Fraction(-3))
    assert (2 / sqrt(size("key"))).value({"key": 16}) == 0.5
    assert multiply_atoms((("2", Fraction(1, 2)),), (("2", Fraction(-3, 2)),)) == (Fraction(1, 2), ())
    number = Scalar.of(3 / sympy.sqrt(2 * sympy.pi)) * sqrt(size("key"))
    assert number.value({"key": 4}) == pytest.approx(6 / math.sqrt(2 * math.pi), rel=1e-15)
    n_key = sympy.Symbol("n_key", positive=True, integer=True)
    assert sympy.simplify(number.to_sympy() - 3 * sympy.sqrt(n_key) / sympy.sqrt(2 * sympy.pi)) == 0
    assert sum_of_scalars(sympy.Rational(1, 2) + sympy.sqrt(2 / sympy.pi)) == [
        Scalar(Fraction(1, 2)),
        Scalar.of(sympy.sqrt(2 / sympy.pi)),
    ]


@pytest.mark.parametrize("value", [True, float("inf"), sympy.Symbol("x"), 1 + sympy.sqrt(2), sympy.I, sympy.zoo])
def test_what_is_no_scalar(value):
    with pytest.raises(TypeError):
        Scalar.of(value)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12), st.integers(-3, 3)), min_size=1, max_size=5))
def test_products_of_roots_equal_their_values(parts):
    product, value = Scalar(Fraction(1)), 1.0
    for over, under, power in parts:
        product = product * Scalar.of(Fraction(over, under)) ** Fraction(power, 2)
        value *= (over / under) ** (power / 2)
    assert product.value({}) == pytest.approx(value, rel=1e-12)
    assert product * product**-1 == Scalar(Fraction(1))
    # A prime stands in the atoms with a power between 0 and 1 alone, so that equal numbers look equal.
    assert all(0 < power < 1 for _, power in product.atoms)


def test_series_coefficients_are_exact():
    by_hand = {
        "tanh": [0, 1, 0, sympy.Rational(-1, 3), 0, sympy.Rational(2, 15)],
        "gelu": [0, sympy.Rational(1, 2), 1 / sympy.sqrt(2 * sympy.pi), 0, -1 / (6 * sympy.sqrt(2 * sympy.pi)), 0],
        "silu": [0, sympy.Rational(1, 2), sympy.Rational(1, 4), 0, sympy.Rational(-1, 48), 0],
        "sigmoid": [sympy.Rational(1, 2), sympy.Rational(1, 4), 0, sympy.Rational(-1, 48)],
        "softplus": [sympy.log(2), sympy.Rational(1, 2), sympy.Rational(1, 8), 0],
        "quadratic": [0, 1, sympy.Rational(1, 2), 0],
    }
    for name, wanted in by_hand.items():
        for order, value in enumerate(wanted):
            found = sum((c.to_sympy() for c in activation(name).coefficient(order)), sympy.Integer(0))
            assert sympy.simplify(found - value) == 0, (name, order)
    ((rational, atoms),) = [(c.rational, dict(c.atoms)) for c in activation("gelu").coefficient(2)]
    assert rational == Fraction(1, 2) and atoms == {"2": Fraction(1, 2), "pi": Fraction(-1, 2)}
    # A sum in one coefficient: both parts are kept apart and exact.
    z = sympy.Symbol("z")
    both = activation((1 + sympy.sqrt(2)) * z).coefficient(1)
    assert {c.value({}) for c in both} == {1.0, math.sqrt(2)}


@pytest.mark.parametrize(
    ("name", "power", "zero"),
    [("tanh", 1, True), ("square", 2, True), ("cube", 3, True), ("sigmoid", 1, False), ("relu", 1, True)],
)
def test_leading_powers(name, power, zero):
    assert activation(name).leading_power == power and activation(name).vanishes_at_zero == zero


# -- distinct positions ------------------------------------------------------------------------------------------------


def test_distinct_positions_by_hand():
    """σ = z³: 3 (Σ_m w_m)² at the position of α is 3 w_α² + 6 w_α Σ_m w_m + 3 Σ_m w_m² + 3 Σ_{m≠m'} w_m w_m'."""
    equations = derive(feed_forward("cube"), 4, keep=("prediction",))
    common = [("U", ("#0", "embed")), ("Y", ("#0",)), ("X", ("#", "token"))]
    own, other = ("E", ("token", "embed")), [("E", ("#1", "embed")), ("X", ("#0", "#1"))]

    def shape(term):
        """Factors with every summed index written as '#', which tells these few apart."""
        return tuple(sorted((n, tuple("#" if is_bound(i) else i for i in ix)) for n, ix in term.factors))

    def written(*factors):
        return tuple(sorted((n, tuple("#" if is_bound(i) else i for i in ix)) for n, ix in [*common, *factors]))

    whole = {shape(t): t.coefficient.rational for t in equations["E"].label_driven}
    assert whole == {written(*other, *other): 3}
    parts = {shape(t): t.coefficient.rational for t in equations.distinct_positions()["E"].label_driven}
    assert parts == {
        written(own, own): 3,
        written(own, *other): 6,
        written(other[0], other[0], other[1]): 3,
        written(*other, *other): 3,
    }
    twice = equations.distinct_positions()
    assert twice.distinct and twice.distinct_positions() is twice
