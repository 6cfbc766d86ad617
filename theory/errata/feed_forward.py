"""The feed-forward model f = W^U σ(Σ_i w_{x_i}), σ(z) = Σ_k C_k z^k: Theorems 1 and 2, appendix B.2, Propositions 1 and 2."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator

import numpy as np

from theory.errata import instances
from theory.errata.derived import highest_order, label_driven, multipliers, prediction_induced
from theory.errata.records import Case, Correction, Instance, PrintedFormula
from theory.signatures import Signature, cooccurrence_signature, label_signature, token_probability

_BETWEEN = "one of (9)–(13); which one the notes do not say"

# -- Theorem 1 ---------------------------------------------------------------------------------------------------------


def _theorem_1(instance: Instance) -> np.ndarray:
    """L r_α A_{α,m}·φ_α^{y;m} for each order m, and their sum: (order + 1, token, embed)."""
    orders = [_kernel(instance, instance.parameters["U"], m, "label") for m in _orders(instance)]
    return np.stack([*orders, sum(orders)])  # pyright: ignore[reportArgumentType]


def _theorem_1_derived(instance: Instance) -> np.ndarray:
    orders = [label_driven(instance, _reach(instance), order=m) for m in _orders(instance)]
    return np.stack([*orders, label_driven(instance, _reach(instance))])


def _reach(instance: Instance) -> int:
    """The degree of the loss at which a polynomial activation's label-driven terms end."""
    return instance.power + 1


def _orders(instance: Instance) -> range:
    return range(min(instance.data.length - 1, instance.power - 1) + 1)


def _kernel(instance: Instance, outputs: np.ndarray, m: int, kind: str) -> np.ndarray:
    """L r_α Σ_{k≥m+1} k C_k 𝒲_α^{m,k}·φ_α^m, `outputs` (label, embed) or (embed) standing for w^U_ν: (token, embed)."""
    data, table = instance.data, instance.parameters["E"]
    length = data.length
    total = np.zeros_like(table)
    for k in range(m + 1, instance.power + 1):
        for own, others in _exponents(k - 1, m):
            number = math.factorial(k - 1) / math.prod(map(math.factorial, (own, *others)))
            number *= k * float(instance.coefficients[k]) * math.comb(length - 1, m)
            context = [table**n for n in others]
            total += number * table**own * _contract(_signature(instance, m, kind), outputs, context)
    return length * token_probability(data)[:, None] * total


def _signature(instance: Instance, m: int, kind: str) -> np.ndarray:
    """φ_α^{y;m} (token, label, context …) or φ_α^m (token, context …), zero for tokens that never occur."""
    data = instance.data
    if kind == "label":
        return _every_token(label_signature(data, m), data.n_tokens)
    if m == 0:
        return np.ones(data.n_tokens)
    return _every_token(cooccurrence_signature(data, m), data.n_tokens)


def _every_token(signature: Signature, n_tokens: int) -> np.ndarray:
    result = np.zeros((n_tokens, *signature.shape[1:]))
    result[signature.indices] = signature.array
    return result


def _contract(signature: np.ndarray, outputs: np.ndarray, context: list[np.ndarray]) -> np.ndarray:
    """Σ_{ν,β} φ_α(ν, β_1 …) w_ν ⊙ w_{β_1}^{⊙n_1} ⊙ …: (token, embed); without ν where `outputs` is a vector."""
    factors = [*([outputs] if outputs.ndim == 2 else []), *context]
    # The embed axis is the last letter, the modes are the letters after the token's.
    modes = "bcdefghijk"[: len(factors)]
    subscripts = ",".join([f"a{modes}", *(f"{mode}z" for mode in modes)])
    result = np.einsum(f"{subscripts}->az", signature, *factors, optimize=True) if factors else signature[:, None]
    return result if outputs.ndim == 2 else result * outputs


def _exponents(total: int, m: int, least: int = 1) -> Iterator[tuple[int, tuple[int, ...]]]:
    """All (l, (n_1 … n_m)) with l ≥ 0, n_r ≥ `least` and l + Σ n_r = total."""
    for others in itertools.product(range(least, total + 1), repeat=m):
        if sum(others) <= total:
            yield total - sum(others), others


def _jacobian(instance: Instance) -> np.ndarray:
    """E[N_α(x) Diag(σ'(h)) W^{U,T} e_y]: (token, embed)."""
    data = instance.data
    hidden = instance.parameters["E"][data.tokens].sum(axis=1)
    counts = _counts(instance)
    slope = _polynomial(instance, hidden, 1)
    return np.einsum("s,st,se,se->te", data.weights, counts, slope, instance.parameters["U"][data.labels])


def _counts(instance: Instance) -> np.ndarray:
    """N_α(x): (sample, token)."""
    return (instance.data.tokens[..., None] == np.arange(instance.data.n_tokens)).sum(axis=1)


def _polynomial(instance: Instance, hidden: np.ndarray, derivative: int) -> np.ndarray:
    """σ(h) or σ'(h)."""
    terms = ((k, float(c)) for k, c in enumerate(instance.coefficients) if k >= derivative)
    return sum((c * (k * hidden ** (k - 1) if derivative else hidden**k) for k, c in terms), np.zeros_like(hidden))


# -- Theorem 2 and appendix B.2 ----------------------------------------------------------------------------------------


def _theorem_2(first: int) -> Callable[[Instance], np.ndarray]:
    """L r_α Σ_{m≥first} B_{α,m}·φ_α^m, with b_0 = W^{U,T}1/V for w^U_ν: (token, embed)."""

    def formula(instance: Instance) -> np.ndarray:
        mean = instance.parameters["U"].mean(axis=0)
        orders = (_kernel(instance, mean, m, "co-occurrence") for m in _orders(instance) if m >= first)
        return sum(orders, np.zeros_like(instance.parameters["E"]))

    return formula


def _linear_softmax(instance: Instance) -> np.ndarray:
    """E[N_α Diag(σ'(h)) W^{U,T} (1/V) H f], H = I − 11ᵀ/V: (token, embed)."""
    data, outputs = instance.data, instance.parameters["U"]
    hidden = instance.parameters["E"][data.tokens].sum(axis=1)
    inner = _polynomial(instance, hidden, 1) * (_polynomial(instance, hidden, 0) @ _centred_gram(outputs))
    return np.einsum("s,st,se->te", data.weights, _counts(instance), inner) / len(outputs)


def _centred_gram(outputs: np.ndarray) -> np.ndarray:
    """M = W^{U,T} H W^U: (embed, embed)."""
    return outputs.T @ (outputs - outputs.mean(axis=0))


def _appendix_b2(disjoint: bool) -> Callable[[Instance], np.ndarray]:
    """The same, written in co-occurrence signatures: (token, embed).

    `disjoint`: σ'(h) and σ(h) are given position tuples of their own that share no position; otherwise one tuple with
    exponents n¹, n² ≥ 0, n¹ + n² ≥ 1.
    """

    def formula(instance: Instance) -> np.ndarray:
        data, table = instance.data, instance.parameters["E"]
        gram = _centred_gram(instance.parameters["U"])
        choices = _disjoint_tuples if disjoint else _shared_tuples
        total = np.zeros_like(table)
        for k, j in itertools.product(range(1, instance.power + 1), repeat=2):
            scale = k * float(instance.coefficients[k] * instance.coefficients[j])
            for count, (own_1, own_2), exponents in choices(k - 1, j, data.length):
                number = scale * count * math.factorial(k - 1) * math.factorial(j)
                number /= math.prod(math.factorial(n) for n in (own_1, own_2, *itertools.chain(*exponents)))
                # σ'(h) has the output coordinate e, σ(h) the coordinate f that M sums over.
                modes = "bcdghijk"[: len(exponents)]
                factors, subscripts = [], [f"a{modes}"]
                for mode, (n_1, n_2) in zip(modes, exponents, strict=True):
                    factors += [table**n_1, table**n_2]
                    subscripts += [f"{mode}e", f"{mode}f"]
                factors += [table**own_1, table**own_2, gram]
                subscripts += ["ae", "af", "ef"]
                signature = _signature(instance, len(exponents), "co-occurrence")
                total += number * np.einsum(",".join(subscripts) + "->ae", signature, *factors, optimize=True)
        return data.length * token_probability(data)[:, None] * total / len(instance.parameters["U"])

    return formula


_Tuples = Iterator[tuple[int, tuple[int, int], tuple[tuple[int, int], ...]]]


def _disjoint_tuples(first: int, second: int, length: int) -> _Tuples:
    """How often, the two exponents of w_α, and (n¹, n²) of each context position, of which one is zero."""
    for m_1, m_2 in itertools.product(range(first + 1), range(second + 1)):
        count = math.comb(length - 1, m_1) * math.comb(max(length - 1 - m_1, 0), m_2)
        if count:
            for (own_1, n_1), (own_2, n_2) in itertools.product(_exponents(first, m_1), _exponents(second, m_2)):
                yield count, (own_1, own_2), (*((n, 0) for n in n_1), *((0, n) for n in n_2))


def _shared_tuples(first: int, second: int, length: int) -> _Tuples:
    for m in range(min(length - 1, first + second) + 1):
        for (own_1, n_1), (own_2, n_2) in itertools.product(_exponents(first, m, 0), _exponents(second, m, 0)):
            pairs = tuple(zip(n_1, n_2, strict=True))
            if all(map(sum, pairs)):
                yield math.comb(length - 1, m), (own_1, own_2), pairs


# -- Orders and exponents ----------------------------------------------------------------------------------------------

# Powers of two, so that scaling rounds nothing; far enough out that one power of the scale is all that is seen.
_SCALE = 2.0**50
_HIGHEST = 3


def _exponent(instance: Instance, m: int, name: str, scale: float) -> float:
    """The power of `scale` at which the order-m label-driven part grows when an array is scaled further."""
    names = ("E", "U") if name == "all" else (name,)

    def size(factor: float) -> float:
        parameters = {n: a * (factor if n in names else 1.0) for n, a in instance.parameters.items()}
        moved = dataclasses.replace(instance, parameters=parameters)
        return float(np.linalg.norm(label_driven(moved, _reach(instance), order=m)))

    return math.log2(size(2 * scale) / size(scale))


def _present(instance: Instance) -> list[int]:
    """The orders from 1 on that a polynomial (or the series known) has."""
    highest = min(instance.data.length - 1, instance.power - 1, _HIGHEST)
    return [m for m in range(1, highest + 1) if _first_power(instance, m) is not None]


def _first_power(instance: Instance, m: int) -> int | None:
    """k_m = min{k ≥ m+1 : C_k ≠ 0}."""
    return next((k for k in range(m + 1, instance.power + 1) if instance.coefficients[k]), None)


def _ratio_derived(instance: Instance) -> np.ndarray:
    """The exponent of RMS(order m)/RMS(order 0) in the initial scale, for each order from 1 on."""
    lowest = _exponent(instance, 0, "all", 1 / _SCALE)
    return np.array([_exponent(instance, m, "all", 1 / _SCALE) - lowest for m in _present(instance)])


def _ratio_corrected(instance: Instance) -> np.ndarray:
    first = _first_power(instance, 0)
    assert first is not None
    return np.array([float((_first_power(instance, m) or 0) - first) for m in _present(instance)])


def _starts_derived(instance: Instance) -> np.ndarray:
    """The degree at which each order from 0 on enters."""
    return np.array([_exponent(instance, m, "all", 1 / _SCALE) for m in (0, *_present(instance))])


def _late_derived(instance: Instance) -> np.ndarray:
    """The exponents of s_U and of a large s_E in each order: (order, 2)."""
    names = (("U", 1.0), ("E", _SCALE))
    return np.array([[_exponent(instance, m, name, scale) for name, scale in names] for m in _orders(instance)])


def _highest_label_order(instance: Instance) -> np.ndarray:
    return np.array([float(highest_order(instance, lambda m: label_driven(instance, _reach(instance), order=m)))])


def _highest_co_occurrence_order(instance: Instance) -> np.ndarray:
    return np.array([float(highest_order(instance, lambda m: prediction_induced(instance, 1, m)))])


def stirling(n: int, k: int) -> int:
    """S(n, k), the number of partitions of n things into k parts."""
    return sum((-1) ** (k - i) * math.comb(k, i) * i**n for i in range(k + 1)) // math.factorial(k)


def _printed_coefficients(instance: Instance) -> np.ndarray:
    """(m+1)! S(K−1, m+1), for each order of the case."""
    power = instance.power
    return np.array([float(math.factorial(m + 1) * stirling(power - 1, m + 1)) for m in _orders(instance)])


def _coefficients(instance: Instance) -> np.ndarray:
    """B_m(K) = m! S(K, m+1)."""
    power = instance.power
    return np.array([float(math.factorial(m) * stirling(power, m + 1)) for m in _orders(instance)])


def _later(formula: Callable[[Instance], np.ndarray]) -> Callable[[Instance], np.ndarray]:
    """The entries of orders from 1 on."""
    return lambda instance: formula(instance)[1:]


def _prefactors(instance: Instance) -> np.ndarray:
    """binom(L−1, m) B_m(K)."""
    length = instance.data.length
    return _coefficients(instance) * np.array([float(math.comb(length - 1, m)) for m in _orders(instance)])


def _multipliers_derived(instance: Instance) -> np.ndarray:
    return multipliers(instance, _orders(instance))


def _prefactors_derived(instance: Instance) -> np.ndarray:
    """What the order-m part of degree K is, over L r_α K C_K, where all weights are 1: signatures sum to 1."""
    ones = dataclasses.replace(
        instance, parameters={name: np.ones_like(array) for name, array in instance.parameters.items()}
    )
    power = instance.power
    unit = instance.data.length * token_probability(instance.data)[0] * power * float(instance.coefficients[power])

    parts = [label_driven(ones, power + 1, lambda term: term.degree == power, m) for m in _orders(instance)]
    return np.array([part[0, 0] / unit for part in parts])


def _largest(prefactors: Callable[[Instance], np.ndarray]) -> Callable[[Instance], np.ndarray]:
    """The order whose part has the largest prefactor."""
    return lambda instance: np.array([float(np.argmax(np.round(prefactors(instance), 6)))])


# -- The records -------------------------------------------------------------------------------------------------------

_KERNEL = (
    r"\binom{L-1}{m} \sum_{l \geq 0,\, n_r \geq 1,\, l + \sum_r n_r = k-1} \frac{(k-1)!}{l! \prod_r n_r!}"
    r" w_\alpha^{\odot l} \odot %s \odot \bigodot_r w_{\beta_r}^{\odot n_r}"
)
_THEOREM_2 = (
    r"\dot w_\alpha^{p} = L r_\alpha \sum_{m=%d}^{\min(L-1,K-1)} B_{\alpha,m} \cdot \varphi_\alpha^{m} + R_\alpha,"
    r" \quad B_{\alpha,m} = A_{\alpha,m}[w^U_\nu \to b_0],\ b_0 = \tfrac{1}{V} W^{U,\top} \mathbf{1}"
)
_B2 = (
    r"\frac{L r_\alpha}{V} \sum_{k,j} k C_k C_j \sum_{%s} \frac{(k-1)!}{l_1! \prod_r n^1_r!} \frac{j!}{l_2! \prod_r n^2_r!}"
    r" \bigl(w_\alpha^{\odot l_1} \odot \bigodot_r w_{\beta_r}^{\odot n^1_r}\bigr) \odot"
    r" M \bigl(w_\alpha^{\odot l_2} \odot \bigodot_r w_{%s}^{\odot n^2_r}\bigr) \cdot \varphi_\alpha^{%s}"
)


def _shapes(*rows: tuple[int, int, int, int, int]) -> tuple[dict[str, int], ...]:
    axes = ("position", "power", "token", "label", "embed")
    return tuple(dict(zip(axes, row, strict=True)) for row in rows)


_GENERAL = _shapes((3, 4, 4, 4, 5), (2, 3, 3, 5, 4), (4, 4, 3, 2, 3), (3, 2, 4, 3, 2))
_SECOND = _shapes((3, 2, 3, 4, 4), (3, 3, 3, 3, 4), (4, 2, 2, 3, 3))
_LONG = _shapes((4, 4, 2, 2, 3), (4, 5, 2, 2, 3))
_POLYNOMIAL = instances.feed_forward()
_MONOMIAL = instances.feed_forward("z^K")

RECORDS = (
    PrintedFormula(
        name="jacobian",
        place="feed-forward model, Jacobian",
        equation="number not in the notes",
        latex=r"\frac{\partial f}{\partial w_\alpha} = N_\alpha(X)\, W^U \operatorname{Diag}"
        r"\bigl(\sigma'(\textstyle\sum_i w_{x_i})\bigr)",
        formula=_jacobian,
        derived=lambda instance: label_driven(instance, _reach(instance)),
        terms="all label-driven terms",
        cases=(Case(_POLYNOMIAL, _GENERAL),),
    ),
    PrintedFormula(
        name="theorem-1",
        place="Theorem 1 with its kernel",
        equation=_BETWEEN,
        latex=r"\dot w_\alpha^{y} = L r_\alpha \sum_{m=0}^{\min(L-1,K-1)} A_{\alpha,m} \cdot \varphi_\alpha^{y;m},"
        r" \quad A_{\alpha,m} = \sum_{k=m+1}^{K} k C_k \mathcal{W}_\alpha^{y,m,k}, \quad"
        r" \mathcal{W}_\alpha^{y,m,k}(\nu,\beta) = " + _KERNEL % r"w^U_\nu",
        formula=_theorem_1,
        derived=_theorem_1_derived,
        terms="label-driven terms, over distinct positions order by order, and as they stand in sum",
        cases=(Case(_POLYNOMIAL, _GENERAL),),
    ),
    PrintedFormula(
        name="activation-order",
        place="accessible orders, after Theorem 1",
        equation="number not in the notes",
        latex=r"\text{highest order of a label signature} = \min(L-1, K-1)",
        formula=lambda instance: np.array([float(_orders(instance)[-1])]),
        derived=_highest_label_order,
        terms="label-driven terms over distinct positions that do not vanish",
        cases=(Case(_POLYNOMIAL, (*_GENERAL, *_LONG)),),
    ),
    PrintedFormula(
        name="theorem-2-body",
        place="Theorem 2, body",
        equation=_BETWEEN,
        latex=_THEOREM_2 % 1,
        formula=_theorem_2(1),
        derived=lambda instance: prediction_induced(instance, 0),
        terms="prediction-induced terms at p = 1/V, sign changed",
        cases=(Case(_POLYNOMIAL, _GENERAL),),
        correction=Correction(_THEOREM_2 % 0, _theorem_2(0)),
        remark="The sum needs its m = 0 term, −C_1 b_0 at leading order: it centres the label signature by 1/V. "
        "The appendix has it.",
        note="R_α, the rest of p − 1/V, is left out on both sides.",
    ),
    PrintedFormula(
        name="theorem-2-appendix",
        place="Theorem 2, appendix",
        equation="number not in the notes",
        latex=_THEOREM_2 % 0,
        formula=_theorem_2(0),
        derived=lambda instance: prediction_induced(instance, 0),
        terms="prediction-induced terms at p = 1/V, sign changed",
        cases=(Case(_POLYNOMIAL, _GENERAL),),
    ),
    PrintedFormula(
        name="b2-linear-softmax",
        place="Appendix B.2, linear softmax",
        equation="number not in the notes",
        latex=r"p = \tfrac{1}{V} \mathbf{1} + \tfrac{1}{V} H f, \quad H = I - \tfrac{1}{V} \mathbf{1}\mathbf{1}^\top, \quad"
        r" M = W^{U,\top} H W^U",
        formula=_linear_softmax,
        derived=lambda instance: prediction_induced(instance, 1),
        terms="prediction-induced terms linear in the logits, sign changed",
        cases=(Case(_POLYNOMIAL, _SECOND),),
    ),
    PrintedFormula(
        name="b2-order",
        place="Appendix B.2, accessible orders",
        equation="number not in the notes",
        latex=r"\text{highest order of a co-occurrence signature} = \min(L-1, 2K-1)",
        formula=lambda instance: np.array([float(min(instance.data.length - 1, 2 * instance.power - 1))]),
        derived=_highest_co_occurrence_order,
        terms="prediction-induced terms linear in the logits, over distinct positions, that do not vanish",
        cases=(Case(_POLYNOMIAL, _shapes((3, 1, 3, 3, 2), (3, 2, 3, 3, 2), (5, 2, 2, 2, 2))),),
    ),
    PrintedFormula(
        name="b2-signatures",
        place="Appendix B.2, in co-occurrence signatures",
        equation="number not in the notes",
        latex=_B2
        % (
            r"m_1,m_2,\, n^1, n^2 \geq 1} \binom{L-1}{m_1} \binom{L-1-m_1}{m_2}" + r" \sum_{l_1,l_2",
            r"\beta'_r",
            "m_1+m_2",
        ),
        formula=_appendix_b2(disjoint=True),
        derived=lambda instance: prediction_induced(instance, 1),
        terms="prediction-induced terms linear in the logits, sign changed",
        cases=(
            Case(_POLYNOMIAL, _SECOND, "K ≥ 2"),
            Case(_POLYNOMIAL, _shapes((3, 1, 3, 4, 4), (2, 1, 4, 3, 3)), "K = 1"),
        ),
        correction=Correction(
            _B2
            % (
                r"m,\, n^1_r, n^2_r \geq 0,\, n^1_r + n^2_r \geq 1} \binom{L-1}{m} \sum_{l_1,l_2",
                r"\beta_r",
                "m",
            ),
            _appendix_b2(disjoint=False),
        ),
        remark="σ'(h) and σ(h) sum over the same positions, which may coincide; two disjoint tuples leave the coincidences "
        "out. Right is one tuple with exponents n¹, n² ≥ 0, n¹ + n² ≥ 1.",
        note="The notes say only that the two tuples are disjoint; their number, binom(L−1, m_1) binom(L−1−m_1, m_2), is "
        "a reconstruction.",
    ),
    PrintedFormula(
        name="proposition-1",
        place="Proposition 1, small initialisation",
        equation="Proposition 1",
        latex=r"\frac{\mathrm{RMS} \lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert}"
        r"{\mathrm{RMS} \lVert A_{\alpha,0} \varphi_\alpha^{y;0} \rVert} = O(d^{-m\gamma})",
        formula=lambda instance: np.array([float(m) for m in _present(instance)]),
        derived=_ratio_derived,
        terms="label-driven terms of each order, as the initial scale ε = d^{−γ} goes to 0",
        cases=(
            Case(_POLYNOMIAL, _LONG[:1], "C_1 ≠ 0"),
            Case(instances.feed_forward("tanh"), _shapes((4, 5, 2, 2, 3)), "C_1 ≠ 0"),
            Case(instances.feed_forward("gelu"), _shapes((4, 4, 2, 2, 3)), "C_1 ≠ 0"),
            Case(_MONOMIAL, _shapes((3, 2, 3, 2, 3), (4, 4, 2, 2, 3)), "C_1 = 0"),
            Case(instances.feed_forward((0, 1, 1)), _shapes((3, 3, 2, 2, 3)), "C_1 = 0"),
        ),
        correction=Correction(
            r"\frac{\mathrm{RMS} \lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert}"
            r"{\mathrm{RMS} \lVert A_{\alpha,0} \varphi_\alpha^{y;0} \rVert} \propto d^{-(k_m - k_0)\gamma}, \quad"
            r" k_m = \min\{k \geq m+1 : C_k \neq 0\}",
            _ratio_corrected,
        ),
        metric="exponent bound",
        remark="Without C_1 the order-0 part starts higher too, and for σ = z^K all orders start together: no hierarchy. The "
        "exponent is k_m − k_0, which is at least m where C_1 ≠ 0. (ReLU, outside Assumption 1, has none either.)",
        note="The values are the exponents of ε for orders 1, 2, …; an exponent above the one claimed keeps the bound true.",
    ),
    PrintedFormula(
        name="proposition-1-proof",
        place="Proposition 1, scale in the proof",
        equation="number not in the notes",
        latex=r"\text{order } m \text{ starts at degree } k = m + 1",
        formula=lambda instance: np.array([m + 1.0 for m in (0, *_present(instance))]),
        derived=_starts_derived,
        terms="label-driven terms of each order, as the initial scale goes to 0",
        cases=(
            Case(_POLYNOMIAL, _LONG, "every C_{m+1} ≠ 0"),
            Case(instances.feed_forward("tanh"), _shapes((4, 5, 2, 2, 3)), "some C_{m+1} = 0"),
            Case(instances.feed_forward("gelu"), _shapes((4, 4, 2, 2, 3)), "some C_{m+1} = 0"),
            Case(_MONOMIAL, _shapes((3, 2, 3, 2, 3), (4, 4, 2, 2, 3)), "some C_{m+1} = 0"),
        ),
        correction=Correction(
            r"\text{order } m \text{ starts at degree } k_m = \min\{k \geq m+1 : C_k \neq 0\}",
            lambda instance: np.array([float(_first_power(instance, m) or 0) for m in (0, *_present(instance))]),
        ),
        remark="Where C_{m+1} = 0 (every even power of tanh, the odd ones of GELU from the third) coincident positions supply "
        "the missing powers and the order starts at the next power that there is. As a bound the statement stands.",
    ),
    PrintedFormula(
        name="proposition-2-scale",
        place="Proposition 2, late scale",
        equation="Proposition 2",
        latex=r"\lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert \sim s_U s_E^{K-1} \text{ for all } m, \quad C_K \neq 0",
        formula=lambda instance: np.array([[1.0, instance.power - 1.0] for _ in _orders(instance)]),
        derived=_late_derived,
        terms="label-driven terms of each order, as the scale s_E of the embeddings grows",
        cases=(Case(_POLYNOMIAL, _LONG),),
    ),
    PrintedFormula(
        name="proposition-2-coefficient",
        place="Proposition 2, coefficient B_m(K)",
        equation="Proposition 2",
        latex=r"B_m(K) = (m+1)!\, S(K-1, m+1)",
        formula=_later(_printed_coefficients),
        derived=_later(_multipliers_derived),
        terms="the staircase's multipliers at degree K, over K C_K; values for m = 1, 2, …",
        cases=(Case(_MONOMIAL, _shapes((4, 4, 2, 2, 2), (4, 5, 2, 2, 2), (3, 5, 2, 2, 2), (4, 6, 2, 2, 2))),),
        correction=Correction(r"B_m(K) = m!\, S(K, m+1)", _later(_coefficients)),
        remark="The printed number counts exponents l ≥ 1 of w_α; the sum of Theorem 1 has l ≥ 0. Both grow as (m+1)^{K−1}.",
        note="S(n, k) are Stirling numbers of the second kind. Order 0 has 1 either way.",
    ),
    PrintedFormula(
        name="proposition-2-prefactor",
        place="Proposition 2, prefactor of order m",
        equation="Proposition 2",
        latex=r"\lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert \propto B_m(K) = (m+1)!\, S(K-1, m+1)",
        formula=_later(_printed_coefficients),
        derived=_later(_prefactors_derived),
        terms="label-driven terms of degree K with all weights 1, over L r_α K C_K; values for m = 1, 2, …",
        cases=(Case(_MONOMIAL, _shapes((4, 5, 2, 2, 2), (3, 4, 2, 2, 2), (4, 4, 2, 2, 2))),),
        correction=Correction(
            r"\lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert \propto \binom{L-1}{m} m!\, S(K, m+1)",
            _later(_prefactors),
        ),
        remark="The whole prefactor holds Theorem 1's binomial too, beside the right B_m(K).",
    ),
    PrintedFormula(
        name="proposition-2-largest",
        place="Proposition 2, largest order",
        equation="Proposition 2",
        latex=r"\operatorname{arg\,max}_m \lVert A_{\alpha,m} \varphi_\alpha^{y;m} \rVert = L - 1 \text{ for } K \gg L",
        formula=lambda instance: np.array([instance.data.length - 1.0]),
        derived=_largest(_prefactors_derived),
        terms="the order of the largest derived prefactor",
        cases=(
            Case(_MONOMIAL, _shapes((4, 5, 2, 2, 2), (4, 6, 2, 2, 2), (3, 4, 2, 2, 2)), "L < K < 2L − 1"),
            Case(_MONOMIAL, _shapes((4, 7, 2, 2, 2), (3, 5, 2, 2, 2), (2, 3, 2, 2, 2)), "K ≥ 2L − 1 (L ≤ 4)"),
        ),
        correction=Correction(r"\operatorname{arg\,max}_m \binom{L-1}{m} m!\, S(K, m+1)", _largest(_prefactors)),
        remark="True for K much larger than L, as printed, but not from K = L on: the binomial favours a middle order first "
        "(L = 4, K = 5: order 2).",
    ),
)
