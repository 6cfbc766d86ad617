import copy
import re
from html.parser import HTMLParser

import pytest

from compare.report import ReportFigure, mathml, render
from theory.architectures import STOCK, load
from theory.evolution import derive

SUMMARY = {
    "title": "Addition <script>alert(1)</script>",
    "question": 'Does "the flow" & SGD agree?',
    "claims": [
        {
            "claim": "E follows <b>SGD</b>",
            "measure": "relative-error",
            "scope": "E, flow exact, at t = 436",
            "measured": 0.00055,
            "threshold": 0.002,
            "comparison": "<=",
            "verdict": "holds",
        },
        {
            "claim": "the error halves",
            "measure": "error-ratio",
            "scope": "E, flow exact",
            "measured": 1.1,
            "threshold": 1.7,
            "comparison": ">=",
            "verdict": "fails",
        },
    ],
    "set_up": {
        "architecture": {"name": "feed_forward", "activation": "gelu"},
        "parameters": {"E": {"axes": ["token", "embed"], "shape": [20, 128], "size": 2560}},
        "data": {"task": "add", "samples": 400, "exact": True},
        "initial": {"gamma": 0.8, "seed": 0},
        "training": {"learning_rate": [0.1], "batch": "full"},
    },
    "sizes": {"token": 20, "embed": 128},
    "equations": [
        {
            "title": "cut-logits, degree 4",
            "lines": [r"\frac{\mathrm{d} E_{\alpha}}{\mathrm{d} t} = \sum_{\nu} U_{\nu} \varphi_{\alpha}^{y;0}(\nu)"],
        }
    ],
    "flows": {"exact": {"status": "completed", "message": None, "last_good_time": 600.0, "half_loss_time": None}},
    "trainings": {
        "sgd-0.1": {
            "table": [{"prediction": "exact", "parameter": "<E>"}],
            "status": "blow-up",
            "message": "stopped <being> finite",
            "last_good_time": 3.0,
            "half_loss_time": [436.0, 437.0],
        }
    },
    "signature_correlation": {
        name: {"measure": "pearson", "peak": {"value": 0.998, "time": 480.0}, "note": ""}
        for name in ("exact", "sgd-0.1")
    },
    "learning_rate_convergence": {
        "exact": {
            "parameter": "E",
            "time": 436.0,
            "learning_rates": [0.2, 0.1],
            "errors": [0.0011, 0.00055],
            "ratio_when_halved": [2.0],
            "slope": 1.0,
        }
    },
    "written": "2026-01-01T00:00:00+00:00",
    "seeds": {"initial": 0, "training": [0]},
    "versions": {"torch": "2"},
    "seconds": {"training": 12.0},
}
FIGURE = ReportFigure("loss", b"<svg xmlns='http://www.w3.org/2000/svg'/>", 'Loss of "x" <y>')
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Collects tags, attributes and text, and insists that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_is_whole_and_loads_nothing():
    html = render(SUMMARY, [FIGURE])
    page = Page(html)
    assert html.startswith("<!doctype html>")
    assert {"math", "mfrac", "table", "figure", "nav", "main"} <= set(page.tags)
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    for tag, name, value in page.attributes:
        if name in ("src", "href", "srcset", "data", "action"):
            assert value.startswith(("data:", "#")), (tag, name, value)
        assert not name.startswith("on")
    assert "url(" not in html and "@import" not in html
    assert not re.search(r"https?://", html)
    assert any("default-src 'none'" in value for _, _, value in page.attributes)


def test_internal_links_have_targets_and_headings_are_labelled():
    page = Page(render(SUMMARY, [FIGURE]))
    ids = {value for _, name, value in page.attributes if name == "id"}
    links = {value[1:] for _, name, value in page.attributes if name == "href"}
    assert links and links <= ids
    labels = {value for _, name, value in page.attributes if name == "aria-labelledby"}
    assert labels <= ids
    assert page.tags.count("h1") == 1
    assert all(value for tag, name, value in page.attributes if (tag, name) == ("img", "alt"))


def test_what_users_write_is_escaped():
    html = render(SUMMARY, [FIGURE])
    assert "<script>" not in html and "<b>SGD</b>" not in html
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert "Does &quot;the flow&quot; &amp; SGD agree?" in html
    assert '<th scope="row">exact</th><td>&lt;E&gt;</td>' in html
    assert "sgd-0.1: stopped &lt;being&gt; finite" in html
    assert 'alt="Loss of &quot;x&quot; &lt;y&gt;"' in html


def test_claims_show_threshold_and_verdict():
    text = " ".join(Page(render(SUMMARY, [])).text)
    assert "1 of 2 claims declared before the run hold" in text
    assert "≤ 0.002" in text and "0.00055" in text and "holds" in text
    assert "≥ 1.7" in text and "fails" in text
    without = copy.deepcopy(SUMMARY) | {"claims": []}
    assert "declares no claims" in render(without, [])


@pytest.mark.parametrize(
    ("latex", "message"),
    [
        (r"\foo{x} + 1", r"unknown command \\foo"),
        (r"\frac{1}{2", "unbalanced braces"),
        (r"\left( x", "cannot be rendered"),
        (r"\text{a <script>alert(1)</script>}", "formula"),
        (r"a & b", "does not become MathML"),
    ],
)
def test_an_equation_that_fails_is_an_error(latex, message):
    with pytest.raises(ValueError, match=message):
        mathml(latex)
    broken = copy.deepcopy(SUMMARY)
    broken["equations"][0]["lines"].append(latex)
    with pytest.raises(ValueError):
        render(broken, [])


def test_mathml_keeps_the_symbols():
    found = mathml(r"\frac{\alpha}{\sqrt{2}} \odot \mathrm{QK}\{x\}")
    for piece in ("<mfrac>", "α", "<msqrt>", "⊙", "{", "}"):
        assert piece in found
    assert found.startswith("<math") and "xmlns" not in found


@pytest.mark.parametrize("name", sorted(STOCK))
def test_the_equations_of_every_stock_architecture_can_be_rendered(name):
    architecture = load(name)
    for equations in (derive(architecture), derive(architecture, 6 if name == "emb_mlp" else 4)):
        lines = equations.latex_lines()
        assert len(lines) >= len(architecture.parameters)
        for line in lines:
            assert mathml(line).startswith("<math")
