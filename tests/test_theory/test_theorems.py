"""The theorems of arXiv 2608.30315 come out of the derivation: held against enumeration of a random joint law in loops."""

import dataclasses
import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch

from theory.algebra.components import ComponentTable
from theory.architectures import attention, feed_forward, transformer
from theory.evaluation import Data, right_hand_sides
from theory.evolution import derive
from theory.positions import distinct_indices

z = sympy.Symbol("z")


def polynomial(*coefficients):
    """Σ_k C_k z^k."""
    return sum(sympy.Rational(str(c)) * z**k for k, c in enumerate(coefficients))


def joint_law(length, n_tokens, n_labels, seed):
    """Every sequence with every label, each with a random probability."""
    rng = np.random.default_rng(seed)
    rows = list(itertools.product(range(n_tokens), repeat=length))
    tokens = np.array([row for row in rows for _ in range(n_labels)])
    labels = np.array([label for _ in rows for label in range(n_labels)])
    return Data(tokens, labels, rng.dirichlet(np.ones(len(tokens))))


def close(found, wanted, bound):
    scale = np.linalg.norm(wanted)
    assert scale > 0 and np.linalg.norm(found - wanted) <= bound * scale, np.linalg.norm(found - wanted) / scale


# -- Theorem 1 ---------------------------------------------------------------------------------------------------------


def signature(data, targets, alpha, order, n_tokens):
    """φ_α(ν, β_1 … β_m) = E[target_ν 1{x_{J_1}=β_1} …  | x_I = α], I uniform, J ordered distinct positions other than I."""
    length = data.tokens.shape[1]
    result = np.zeros((targets.shape[1], *[n_tokens] * order))
    occurs = 0.0
    tuples = math.perm(length - 1, order)
    for x, target, weight in zip(data.tokens, targets, data.weights, strict=True):
        for place in range(length):
            if x[place] != alpha:
                continue
            occurs += weight / length
            others = [j for j in range(length) if j != place]
            for chosen in itertools.permutations(others, order):
                result[(slice(None), *(x[j] for j in chosen))] += weight / length / tuples * target
    return result / occurs, occurs


def kernel(E, rows, coefficients, alpha, order, length):
    """A_{α,m}(ν, β) = Σ_{k≥m+1} k C_k C(L−1,m) Σ (k−1)!/(l! Π n_r!) w_α^l ⊙ row_ν ⊙ ⨀_r w_{β_r}^{n_r}."""
    n_tokens, width = E.shape
    result = np.zeros((len(rows), *[n_tokens] * order, width))
    for k in range(order + 1, len(coefficients)):
        for powers in itertools.product(range(1, k), repeat=order):
            rest = k - 1 - sum(powers)
            if rest < 0:
                continue
            multinomial = math.factorial(k - 1) // math.factorial(rest)
            for n in powers:
                multinomial //= math.factorial(n)
            factor = k * float(coefficients[k]) * math.comb(length - 1, order) * multinomial
            for betas in itertools.product(range(n_tokens), repeat=order):
                product = E[alpha] ** rest
                for beta, n in zip(betas, powers, strict=True):
                    product = product * E[beta] ** n
                result[(slice(None), *betas)] += factor * rows * product
    return result


def enumerated(E, rows, coefficients, data, targets, order):
    """L r_α A_{α,m} · φ_α^m for every α."""
    n_tokens, width = E.shape
    length = data.tokens.shape[1]
    result = np.zeros((n_tokens, width))
    for alpha in range(n_tokens):
        phi, r = signature(data, targets, alpha, order, n_tokens)
        A = kernel(E, rows, coefficients, alpha, order, length)
        result[alpha] = length * r * np.tensordot(phi, A, axes=order + 1)
    return result


def orders(equations, equation):
    """The right-hand side of E by number of context positions: positions of tokens besides that of α itself."""
    parts = {}
    for term in equation:
        m = len(distinct_indices(equations.symbols, list(term.factors))) - 1
        parts.setdefault(m, []).append(term)
    return {
        m: dataclasses.replace(equations, equations={"E": dataclasses.replace(equation, terms=tuple(terms))})
        for m, terms in sorted(parts.items())
    }


CASES = {
    "L 3, K 4, 3 tokens, 4 labels": (3, 3, 4, (0, "0.7", "-0.4", "0.3", "0.25")),
    "L 4, K 5, 2 tokens, 3 labels, C_0 ≠ 0": (4, 2, 3, ("0.6", "0.5", "0.8", "-0.2", "0.15", "0.1")),
    "L 2, K 5, 4 tokens, 2 labels, C_1 = 0": (2, 4, 2, ("-0.3", 0, "0.9", 0, "0.5", "0.2")),
    "L 4, K 2, 3 tokens, 2 labels": (4, 3, 2, (0, 1, "0.5")),
}


@pytest.fixture(scope="module", params=CASES)
def theorem_1(request):
    length, n_tokens, n_labels, coefficients = CASES[request.param]
    data = joint_law(length, n_tokens, n_labels, seed=1)
    rng = np.random.default_rng(2)
    parameters = {"E": rng.normal(0, 0.5, (n_tokens, 3)), "U": rng.normal(size=(n_labels, 3))}
    architecture = feed_forward(polynomial(*coefficients))
    equations = derive(architecture, len(coefficients), keep=("prediction",))
    return length, coefficients, data, parameters, equations, equations.distinct_positions()


def test_theorem_1_order_by_order(theorem_1):
    length, coefficients, data, parameters, equations, distinct = theorem_1
    parts = orders(distinct, distinct["E"].label_driven)
    highest = len(coefficients) - 2
    assert list(parts) == list(range(highest + 1))
    one_hot = np.eye(len(parameters["U"]))[data.labels]
    total = np.zeros_like(parameters["E"])
    for m, part in parts.items():
        found = right_hand_sides(part, parameters, data)["E"]
        if m > length - 1:
            # Distinct positions beyond the length do not exist.
            np.testing.assert_array_equal(found, 0)
            continue
        wanted = enumerated(parameters["E"], parameters["U"], coefficients, data, one_hot, m)
        close(found, wanted, 1e-12)
        total += wanted
    close(right_hand_sides(equations.label_driven, parameters, data)["E"], total, 1e-12)


def test_the_prediction_part_has_the_same_kernel(theorem_1):
    """dw_α/dt = L r_α Σ_m A_{α,m} · (φ^{y;m} − φ^{p;m}), numerically."""
    length, coefficients, data, parameters, equations, distinct = theorem_1
    E, U = parameters["E"], parameters["U"]
    h = E[data.tokens].sum(1)
    f = sum(float(Fraction(str(c))) * h**k for k, c in enumerate(coefficients)) @ U.T
    p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
    total = np.zeros_like(E)
    for m, part in orders(distinct, distinct["E"].prediction_induced).items():
        found = right_hand_sides(part, parameters, data)["E"]
        if m <= length - 1:
            wanted = -enumerated(E, U, coefficients, data, p, m)
            close(found, wanted, 1e-12)
            total += wanted
    close(right_hand_sides(equations.prediction_induced, parameters, data)["E"], total, 1e-12)


def canonical_terms(equations, equation, replace=None):
    """Terms as a multiset of (coefficient, canonical components), after replacing one symbol by another."""
    table = ComponentTable(equations.architecture.root, dict(equations.symbols))
    result = Counter()
    for term in equation:
        names = {i: n for n, i in enumerate(dict.fromkeys(i for _, ix in term.factors for i in ix if i[0] == "#"))}
        raw = [((replace or {}).get(n, n), tuple(names.get(i, i) for i in ix)) for n, ix in term.factors]
        rational, atoms, components = table.from_factors(raw)
        factors = tuple(sorted(table[c].factors for c in components))
        result[(term.coefficient.rational * rational, term.coefficient.atoms, atoms, factors, term.degree)] += 1
    return result


def test_the_prediction_part_is_the_label_part_with_p_for_y(theorem_1):
    """The same term by term: Y replaced by p, and every sign turned."""
    *_, equations, distinct = theorem_1
    for system in (equations, distinct):
        for name in system:
            label = canonical_terms(system, system[name].label_driven, {"Y": "p"})
            turned = Counter({(-c, *rest): n for (c, *rest), n in label.items()})
            assert turned == canonical_terms(system, system[name].prediction_induced) and turned


# -- Theorem 2 ---------------------------------------------------------------------------------------------------------


def with_unembeddings(equation, number):
    """The terms in which U occurs so many times: p's own expansion has one U for each power of the logits."""
    return equation.where(lambda term: sum(name == "U" for name, _ in term.factors) == number)


def test_theorem_2_has_its_term_of_order_0():
    """At p ≈ 1/V the kernel of Theorem 1 with b_0 = Uᵀ1/V for a row of U, and co-occurrence signatures from m = 0."""
    length, n_tokens, n_labels, coefficients = 3, 3, 4, ("0.6", "0.7", "-0.4", "0.3")
    data = joint_law(length, n_tokens, n_labels, seed=3)
    rng = np.random.default_rng(4)
    E, U = rng.normal(size=(n_tokens, 2)), rng.normal(size=(n_labels, 2))
    equations = derive(feed_forward(polynomial(*coefficients)), len(coefficients), keep=()).distinct_positions()
    leading = with_unembeddings(equations["E"].prediction_induced, 1)
    parts = orders(equations, leading)
    assert list(parts) == [0, 1, 2]
    b_0 = U.mean(0, keepdims=True)
    for m, part in parts.items():
        wanted = -enumerated(E, b_0, coefficients, data, np.ones((len(data.tokens), 1)), m)
        close(right_hand_sides(part, {"E": E, "U": U}, data)["E"], wanted, 1e-12)


@pytest.mark.parametrize("highest", [1, 2])
def test_the_next_softmax_order_reaches_signatures_of_order_2K_minus_1(highest):
    """Linear in the logits: co-occurrence signatures up to 2K − 1 (L permitting)."""
    coefficients = [0] * highest + [1]
    equations = derive(feed_forward(polynomial(*coefficients)), 2 * highest + 2, keep=()).distinct_positions()
    second = with_unembeddings(equations["E"].prediction_induced, 2)
    assert max(orders(equations, second)) == 2 * highest - 1


# -- Theorem 3 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def theorem_3():
    rng = np.random.default_rng(5)
    data = joint_law(3, 3, 4, seed=6)
    shapes = {"E": (3, 5), "Q": (2, 5), "K": (2, 5), "V": (6, 5), "O": (5, 6), "U": (4, 5)}
    parameters = {name: rng.normal(0, 0.8, shape) for name, shape in shapes.items()}
    return data, parameters, derive(attention(), paths=True)


def forward(parameters, x):
    """Attention weights over the positions of one sequence, and its logits."""
    E = parameters["E"]
    W_QK, W_OV = parameters["K"].T @ parameters["Q"], parameters["O"] @ parameters["V"]
    scores = np.array([E[token] @ W_QK @ E[x[-1]] for token in x]) / math.sqrt(E.shape[1])
    a = np.exp(scores) / np.exp(scores).sum()
    return a, parameters["U"] @ W_OV @ sum(a[s] * E[token] for s, token in enumerate(x))


def printed_parts(parameters, data, targets, transposed=True):
    """Theorem 3's value, key and query parts, from conditional expectations; `targets[s, ν]` is e_y or p."""
    E, U = parameters["E"], parameters["U"]
    W_QK, W_OV = parameters["K"].T @ parameters["Q"], parameters["O"] @ parameters["V"]
    length, (n_tokens, width) = data.tokens.shape[1], E.shape
    parts = {name: np.zeros((n_tokens, width)) for name in ("value", "key", "query")}
    for alpha in range(n_tokens):
        # P(y=ν | x_I=α) and E[a_I | y=ν, x_I=α] as sums over samples and places.
        occurs, joint, attended, last = 0.0, np.zeros(len(U)), np.zeros(len(U)), 0.0
        key, query = np.zeros(width), np.zeros(width)
        for x, target, weight in zip(data.tokens, targets, data.weights, strict=True):
            a, _ = forward(parameters, x)
            mean = sum(a[s] * E[token] for s, token in enumerate(x))
            for place in range(length):
                if x[place] != alpha:
                    continue
                share = weight / length
                occurs += share
                joint += share * target
                attended += share * target * a[place]
                gain = target @ U @ W_OV @ (E[alpha] - mean)
                key += share * a[place] * gain * E[x[-1]]
            if x[-1] == alpha:
                last += weight
                gains = [target @ U @ W_OV @ E[token] for token in x]
                query += weight * sum(a[u] * gains[u] * E[token] for u, token in enumerate(x))
                query -= weight * (target @ U @ W_OV @ mean) * mean
        phi, psi = joint / occurs, attended / joint
        parts["value"][alpha] = length * occurs * (U @ W_OV).T @ (phi * psi)
        parts["key"][alpha] = length * occurs / math.sqrt(width) * W_QK @ (key / occurs)
        parts["query"][alpha] = last / math.sqrt(width) * (W_QK.T if transposed else W_QK) @ (query / last)
    return parts


def differentiated_parts(parameters, data, targets):
    """∂/∂E of E[Σ_ν target_ν f_ν], differentiating one of the three uses of the embedding at a time (torch)."""
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}
    uses = {name: tensors["E"].clone().requires_grad_() for name in ("value", "key", "query")}
    tokens = torch.tensor(data.tokens)
    q = uses["query"][tokens[:, -1]] @ tensors["Q"].T
    k = uses["key"][tokens] @ tensors["K"].T
    a = torch.softmax((k * q[:, None]).sum(-1) / math.sqrt(parameters["E"].shape[1]), 1)
    v = uses["value"][tokens] @ tensors["V"].T
    f = (a[..., None] * v).sum(1) @ tensors["O"].T @ tensors["U"].T
    (torch.tensor(data.weights) * (torch.tensor(targets) * f).sum(1)).sum().backward()
    return {name: use.grad.numpy() for name, use in uses.items()}


def branch_of(equations, part, branch):
    equation = getattr(equations["E"], part).where(lambda term: term.branch == branch)
    return dataclasses.replace(equations, equations={"E": equation})


@pytest.mark.parametrize("part", ["label_driven", "prediction_induced"])
def test_theorem_3_value_key_and_query(theorem_3, part):
    data, parameters, equations = theorem_3
    assert {term.branch for term in equations["E"]} == {"value", "key", "query"}
    if part == "label_driven":
        sign, targets = 1, np.eye(4)[data.labels]
    else:
        f = np.array([forward(parameters, x)[1] for x in data.tokens])
        sign, targets = -1, np.exp(f) / np.exp(f).sum(1, keepdims=True)
    printed = printed_parts(parameters, data, targets)
    differentiated = differentiated_parts(parameters, data, targets)
    for branch in ("value", "key", "query"):
        found = sign * right_hand_sides(branch_of(equations, part, branch), parameters, data)["E"]
        close(found, printed[branch], 1e-10)
        close(found, differentiated[branch], 1e-10)


def test_theorem_3_needs_the_transposed_query_key_matrix(theorem_3):
    """As printed in the paper, without the transposition, the query part is wrong."""
    data, parameters, equations = theorem_3
    untransposed = printed_parts(parameters, data, np.eye(4)[data.labels], transposed=False)["query"]
    found = right_hand_sides(branch_of(equations, "label_driven", "query"), parameters, data)["E"]
    assert np.linalg.norm(found - untransposed) > 1e-3 * np.linalg.norm(found)


def test_the_query_part_contains_the_transposed_product(theorem_3):
    """W_QKᵀ w = Qᵀ(K w): in every term of the query part Q carries the free axis, in the key part K does."""
    *_, equations = theorem_3

    def with_free_axis(branch):
        # Q and K meet the free axis in a term or in the named adjoint that it holds.
        terms = branch_of(equations, "label_driven", branch)["E"]
        return {name for term in terms for name, indices in term.factors if "embed" in indices and name in "QKVOU"}

    assert with_free_axis("query") == {"Q"} and with_free_axis("key") == {"K"} and with_free_axis("value") == {"V"}


# -- the transformer's paths -------------------------------------------------------------------------------------------


def test_paths_of_a_transformer():
    """Direct path = r_α^nt Uᵀ φ^{y;nt}; every path equals differentiating through its module alone; together all."""
    rng = np.random.default_rng(8)
    architecture = transformer("tanh", blocks=1)
    sizes = {"token": 4, "label": 5, "position": 3, "embed": 3, "key": 2, "value": 2, "hidden": 4}
    parameters = {name: rng.normal(0, 0.8, shape) for name, shape in architecture.shapes(sizes).items()}
    tokens, labels = rng.integers(0, 4, (20, 3)), rng.integers(0, 5, (20, 3))
    data = Data(tokens, labels, rng.dirichlet(np.ones(20)))
    equations = derive(architecture, paths=True)
    U = parameters["U"]

    direct = np.zeros((4, 3))
    for x, y, weight in zip(tokens, labels, data.weights, strict=True):
        for s in range(3):
            direct[x[s]] += weight / 3 * U[y[s]]

    # Differentiate U times one summand of the stream, the others held fixed.
    tensors = {name: torch.tensor(value) for name, value in parameters.items()}

    def summands(E):
        x = E[torch.tensor(tokens)]
        scores = (x @ tensors["Q1"].T) @ (x @ tensors["K1"].T).transpose(1, 2) / math.sqrt(2)
        scores = scores.masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf)
        mixed = torch.softmax(scores, -1) @ (x @ tensors["V1"].T) @ tensors["O1"].T
        written = torch.tanh((x + mixed) @ tensors["W1"].T) @ tensors["M1"].T
        return {"": x, "attention 1": mixed, "mlp 1": written}

    wanted = {}
    for path in ("", "attention 1", "mlp 1"):
        E = tensors["E"].clone().requires_grad_()
        f = summands(E)[path] @ tensors["U"].T
        picked = f.gather(2, torch.tensor(labels)[..., None])[..., 0].mean(1)
        (wanted[path],) = torch.autograd.grad((torch.tensor(data.weights) * picked).sum(), E)
    close(wanted[""].numpy(), direct, 1e-12)

    total = right_hand_sides(equations.label_driven, parameters, data)["E"]
    parts = []
    assert {term.path for term in equations["E"]} == set(wanted)
    for path in wanted:
        equation = equations["E"].label_driven.where(lambda term, path=path: term.path == path)
        part = dataclasses.replace(equations, equations={"E": equation})
        parts.append(right_hand_sides(part, parameters, data)["E"])
        close(parts[-1], wanted[path].numpy(), 1e-10)
    close(sum(parts), total, 1e-12)
    close(total, right_hand_sides(derive(architecture).label_driven, parameters, data)["E"], 1e-12)
