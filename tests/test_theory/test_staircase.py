"""The staircase: which signature enters at what degree, with which multiplier; and how terms are grouped when printed."""

import json
import re
from math import comb, factorial

import pytest
import sympy

from theory.architectures import attention, feed_forward, linear, transformer
from theory.evolution import derive
from theory.language import Architecture, dot, elementwise, embed, total
from theory.printing.notation import Notation
from theory.printing.text import TextWriter


def stirling(n, k):
    """Stirling numbers of the second kind by inclusion and exclusion."""
    return sum((-1) ** (k - j) * comb(k, j) * j**n for j in range(k + 1)) // factorial(k)


def power(k):
    return sympy.Symbol("z") ** k


@pytest.mark.parametrize("k", [2, 3, 4, 5])
def test_multipliers_of_theorem_1(k):
    """σ = z^K: order m enters with K·B_m(K)·binom(L−1, m), B_m(K) = m!·S(K, m+1), in both parts (paper, Theorem 1)."""
    table = derive(feed_forward(power(k)), k + 1).staircase("E")
    found = {(s.part, s.signature.order): (s.degree, s.multiplier) for s in table}
    wanted = {}
    for m in range(k):
        multiplier = k * factorial(m) * stirling(k, m + 1)
        wanted |= {("label", m): (k, multiplier), ("prediction", m): (k, -multiplier)}
    assert found == wanted
    assert {s.signature.name for s in table} == {f"φ_α^{{{v};{m}}}" for v in "yp" for m in range(k)}


def test_known_prefactors():
    assert [factorial(m) * stirling(k, m + 1) for k, m in ((4, 1), (5, 2))] == [7, 50]
    # L = 4, K = 5: the whole prefactors of Proposition 2 for m = 1, 2, 3; order 2 is the largest.
    steps = derive(feed_forward(power(5)), 6).staircase("E").steps
    multipliers = {s.signature.order: s.multiplier for s in steps if s.part == "label"}
    assert [comb(3, m) * multipliers[m] / 5 for m in (1, 2, 3)] == [45, 150, 60]


def test_steps_of_an_odd_function():
    """tanh: order m enters with the first power k ≥ m+1 of the series, 1, 3, 3, 5, 5: coincident positions fill the gaps."""
    steps = [s for s in derive(feed_forward("tanh"), 6).staircase() if s.part == "label"]
    series = {1: sympy.Integer(1), 3: sympy.Rational(-1, 3), 5: sympy.Rational(2, 15)}
    assert [(s.signature.order, s.degree) for s in steps] == [(0, 1), (1, 3), (2, 3), (3, 5), (4, 5)]
    for step in steps:
        k, m = int(step.degree), step.signature.order
        assert step.multiplier == k * series[k] * factorial(m) * stirling(k, m + 1)
    assert steps[0].all_degrees == (1, 3, 5)


def test_irrational_multipliers_are_exact():
    gelu = {s.signature.order: s for s in derive(feed_forward("gelu"), 3).staircase() if s.part == "label"}
    assert gelu[0].multiplier == sympy.Rational(1, 2)
    assert sympy.simplify(gelu[1].multiplier - 2 / sympy.sqrt(2 * sympy.pi)) == 0


def test_an_expanded_prediction_brings_cooccurrence_from_order_0():
    """Theorem 2 with its m = 0 term: the same multipliers over −V_out."""
    steps = [s for s in derive(feed_forward("exp"), 4, ()).staircase() if s.part == "prediction"]
    n_label = sympy.Symbol("n_label", positive=True, integer=True)
    leading = [s for s in steps if s.degree == s.signature.order + 1]
    assert [s.signature.name for s in leading] == ["φ_α^{0}", "φ_α^{1}", "φ_α^{2}"]
    assert all(s.multiplier == -1 / n_label for s in leading)


def test_attention_has_the_three_terms_of_theorem_3():
    table = derive(attention(), 8, ("attention",), paths=True).staircase()
    label = [(s.branch, s.degree, s.signature.name) for s in table if s.part == "label"]
    assert label == [
        ("key", 7, "φ_α^{y;x_L}·ψ"),
        ("key", 7, "φ_α^{y;x_L,1*}·ψ"),
        ("query", 7, "φ_{α,x_L}^{y;1*}·ψ"),
        ("query", 7, "φ_{α,x_L}^{y;2*}·ψ"),
        ("value", 3, "φ_α^{y;0}·ψ"),
    ]
    d = sympy.Symbol("n_embed", positive=True, integer=True)
    root = 1 / sympy.sqrt(d)
    assert [s.multiplier for s in table if s.part == "label"] == [root, -root, root, -root, 1]
    assert all(s.signature.weights == ("a[attention]",) for s in table)


def test_transformer_is_read_by_path():
    table = derive(transformer("tanh"), 4, paths=True).staircase()
    label = {(s.path, s.branch): (s.degree, s.signature.name) for s in table if s.part == "label"}
    assert label == {
        ("", ""): (1, "φ_α^{y;nt}"),
        ("attention 1", "value"): (3, "φ_α^{y;prefix}"),
        ("mlp 1", "mlp"): (3, "φ_α^{y;nt}"),
    }


def test_formats_hold_the_same_rows():
    table = derive(feed_forward("tanh"), 4).staircase()
    rows = table.rows()
    assert json.loads(table.to_json())["steps"] == rows == table.to_dict()["steps"]
    lines = table.to_text().splitlines()
    assert len(lines) == len(rows) + 3 and lines[0] == "staircase of dE/dt, feed_forward, loss degree 4"
    assert lines[3].split() == ["label", "φ_α^{y;1}", "1", "3", "-", "2", "-3·binom(L-1,1)", "-"]
    assert len(table.to_markdown().splitlines()) == len(rows) + 2
    latex = table.to_latex()
    assert latex.count(r"\\") == len(rows) + 1
    assert r"label & $\varphi_\alpha^{y;1}$ & 3 & - & 2 & $-3 \binom{L-1}{1}$ \\" in latex


# -- groups of terms when printed --------------------------------------------------------------------------------------


def notes(equations, parameter="E"):
    return [group.note for group, _ in Notation(equations).groups(equations[parameter])]


def test_terms_are_grouped_by_part_degree_and_order():
    equations = derive(feed_forward("tanh"), 4)
    # Independent sums hold coincidences, so that nothing is said of an order.
    assert notes(equations) == [
        "label-driven, degree 1",
        "label-driven, degree 3",
        "prediction-induced, degree 1",
        "prediction-induced, degree 3",
    ]
    assert notes(equations.distinct_positions().label_driven) == [
        "label-driven, degree 1, order 0",
        "label-driven, degree 3, order 0",
        "label-driven, degree 3, order 1",
        "label-driven, degree 3, order 2",
    ]


def test_an_order_is_said_of_distinct_positions_only():
    """Attention's positions are weighted, and may coincide with each other."""
    equations = derive(attention(), 8, ("attention", "prediction")).distinct_positions().label_driven
    assert notes(equations) == ["label-driven, degree 3", "label-driven, degree 7"]


def test_paths_and_branches_are_named():
    equations = derive(transformer("tanh"), 4, paths=True).label_driven
    assert notes(equations) == [
        "label-driven, path attention 1, branch value, degree 3",
        "label-driven, path direct, degree 1",
        "label-driven, path mlp 1, branch mlp, degree 3",
    ]
    # "direct" is said only beside other paths.
    assert notes(derive(feed_forward("tanh"), 2, paths=True).label_driven) == ["label-driven, degree 1"]


def test_each_group_is_noted_once_and_each_term_has_a_row():
    equations = derive(feed_forward("tanh"), 4).distinct_positions()
    latex, text, markdown = equations.to_latex("E"), equations.to_text("E"), equations.to_markdown("E")
    body = latex[latex.index(r"\begin{align*}") : latex.index(r"\end{align*}")]
    groups = notes(equations)
    assert body.count(r"&& \text{") == len(groups)
    assert len(body.splitlines()) - 1 == len(equations["E"])
    for note in groups:
        assert latex.count(rf"&& \text{{{note}}}") == 1
        assert text.count(f"    {note}:\n") == 1
        assert markdown.count(f"{note[:1].upper()}{note[1:]}:\n") == 1
    assert sum(line.lstrip().startswith(("+ ", "- ")) for line in text.splitlines()) == len(equations["E"])


def test_text_says_what_is_distinct():
    text = derive(feed_forward("tanh"), 4).distinct_positions().to_text()
    assert "- L·r_α·(L-1) Σ_{ν,β} φ_α^{y;1}(ν,β) E[β,i]^2 U[ν,i]" in text
    assert "- ⟨Σ_{s≠u} 1{y=ν} E[x_s,i]^2 E[x_u,i]⟩" in text
    assert "- 1/3 ⟨Σ_{s,u,v distinct} 1{y=ν} E[x_s,i] E[x_u,i] E[x_v,i]⟩" in text


def test_the_legend_lists_only_what_occurs():
    kept = derive(attention()).to_text("U")
    assert "O: parameter with axes (embed, value)" in kept and "d: size of axis embed" in kept
    assert "φ_α" not in kept and "r_α" not in kept and "y_s" not in kept
    plain = derive(linear(), 2, ()).distinct_positions().to_text("E")
    assert "φ_α^{y;m}" in plain and "φ_α^{p;m}" not in plain
    # Of order 0 without a label a signature is 1 and is not written.
    assert "φ_α^{m}" not in plain and "V_out: number of labels" in plain
    assert "x_s" not in plain and "average" not in plain and "where" not in plain


def test_an_equation_without_terms_is_zero():
    equations = derive(attention(), 4)
    assert "/dt =\n    0   (no term up to this degree)\n" in equations.to_text("Q")
    assert "={}& 0\n" in equations.to_latex("Q")
    (line,) = equations.latex_lines("Q")
    assert line.endswith("= 0")


def test_no_letter_is_an_index_and_a_symbol_too():
    def clashing(p, tokens):
        h = elementwise(total(embed(p.s, tokens), over="position") + p.b, "tanh")
        return dot(p.i, dot(p.d, h, over="embed"), over="rank")

    axes = {"s": ("token", "embed"), "b": ("embed",), "d": ("rank", "embed"), "i": ("label", "rank")}
    clash = Architecture(clashing, axes)
    for equations in (derive(clash), derive(clash, 5), derive(attention()), derive(transformer("tanh", blocks=2))):
        writer = TextWriter(equations)
        for name in writer.names:
            writer.groups(name)
        writer.definitions()
        letters = [letter.rstrip("′") for axis in writer.notation.letters.values() for letter in axis]
        heads = {re.match(r"[^\W\d_]+", name)[0] for name in equations.symbols}
        assert len(letters) >= 4 and not heads & set(letters) and "t" not in letters
        # One axis, one kind of letter: none is said of two axes.
        owners = [letter for axis in writer.notation.letters.values() for letter in axis]
        assert len(owners) == len(set(owners))
    # A width cannot be called d where a parameter is.
    assert (
        "n_rank" in TextWriter(derive(clash, 5)).size("rank") and TextWriter(derive(clash)).size("embed") == "n_embed"
    )
    assert TextWriter(derive(attention())).size("embed") == "d"


def test_terms_that_cancel_in_sum_only_are_shown_each():
    """a (v − Σ a v) has as many terms with + as with −, of different structure: no multiplier is 0."""
    from pathlib import Path

    from theory.architectures import load

    file = Path(__file__).parents[2] / "examples" / "architectures" / "expert_mixture.py"
    table = derive(load(f"{file}:expert_mixture"), 6, "all").staircase()
    assert [step.multiplier for step in table if step.degree == 4] == [0, 0]
    shown = [row["multiplier"] for row in table.rows()]
    assert "1, -1" in shown and "0" not in shown
    assert "each by itself where the sum is 0" in table.to_text() and "$1, -1$" in table.to_latex()
