import base64
import copy
import hashlib
import json
import re
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from constructed import build
from report_pages import FIGURE, HOSTILE, SUMMARY, TIMES, data_of, runs, small_page

from compare.report import interactive, mathml, render
from theory.architectures import STOCK, load
from theory.errors import UserError
from theory.evolution import derive

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
    assert "script-src" not in html
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
    assert "the worst of the seeds 1 of 2 1.5 1.1 to 1.9 -3.582 to 6.582 show 3: 1.1; 8: 1.9" in text
    assert text.count("The same on single seeds") == 1
    one = copy.deepcopy(SUMMARY)
    del one["claims"][1]["over_seeds"]
    assert "single seeds" not in render(one, [])
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
            found = mathml(line)
            # Inline style is not allowed by the page's policy.
            assert found.startswith("<math") and " style=" not in found


def test_the_policy_names_the_hashes_of_the_style_and_script_in_the_page():
    html = small_page()
    (policy,) = re.findall(r'content="(default-src[^"]*)"', html)
    assert "unsafe" not in policy and "http" not in policy
    inline = {"style-src": re.findall(r"<style>(.*?)</style>", html, re.DOTALL)}
    inline["script-src"] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    for directive, (content,) in inline.items():
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not re.search(r"\sstyle=|\son\w+=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))


def test_the_data_of_interactive_figures_cannot_leave_their_element():
    html = small_page()
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert not set("<>&\u2028") & set(data)
    assert json.loads(data)["matrices"]["tokens"] == list(HOSTILE)
    assert html.count("<script") == 2 and "window.hacked" not in html.replace(data, "")
    page = Page(html)
    ids = [value for _, name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    described = {value for _, name, value in page.attributes if name in ("aria-describedby", "for")}
    assert described <= set(ids)


def decoded(entry, data, pairs):
    """What page.js makes of the frames of a run."""
    raw = np.frombuffer(zlib.decompress(base64.b64decode(entry)), np.uint8)
    if data["levels"] > 255:
        codes = raw.reshape(2, -1).T.copy().view("<u2").reshape(-1, pairs)
    else:
        codes = raw.reshape(-1, pairs)
    codes = np.cumsum(codes, axis=0, dtype=codes.dtype)
    values = data["low"] + (codes.astype(float) - 1) / (data["levels"] - 1) * (1 - data["low"])
    return np.where(codes == 0, np.nan, values)


@pytest.mark.parametrize("fine", [True, False])
def test_matrices_are_kept_to_half_a_step_of_the_quantisation(monkeypatch, fine):
    if not fine:
        monkeypatch.setattr(interactive, "_FINE", 10)
    similarity, trainings, flows = runs()
    # An embedding of zero has no cosine.
    flows[0]["E"].values[2, 3] = 0.0
    data = interactive.interactive_data(similarity, trainings[:1], flows, embedding="E")["matrices"]
    assert data["levels"] == (65_535 if fine else 255)
    step = (1 - data["low"]) / (data["levels"] - 1)
    upper = np.triu_indices(7, k=1)
    np.testing.assert_allclose(decoded(data["signature"], data, 21)[0], similarity.matrix[upper], atol=0.51 * step)
    for entry, run in zip(data["runs"], (trainings[0], *flows), strict=True):
        rows = run["E"].values
        with np.errstate(invalid="ignore"):
            unit = rows / np.linalg.norm(rows, axis=-1, keepdims=True)
        wanted = np.array([(each @ each.T)[upper] for each in unit])
        assert len(entry["times"]) == len(rows)
        np.testing.assert_allclose(decoded(entry["frames"], data, 21), wanted, atol=0.51 * step)


def test_times_and_tokens_are_thinned_and_what_does_not_fit_is_named(monkeypatch):
    monkeypatch.setattr(interactive, "MATRIX_BYTES", 100)
    data = data_of(*runs(), most_tokens=5, most_times=4)
    assert data["times"] == [0.0, 15.0, 25.0, 40.0]
    assert data["matrices"]["tokens"] == list(HOSTILE[:5])
    notes = " ".join(data["matrices"]["notes"])
    assert "5 of 7 tokens" in notes and "left out: they would make the page too large" in notes
    assert len(data["matrices"]["runs"]) == 1
    assert [panel["key"] for panel in data["panels"]] == ["loss", "error", "norm", "alignment"]


def test_seeds_have_their_mean_and_band():
    similarity, trainings, flows = runs()
    members = np.stack([trainings[0]["E"].values, 1.5 * trainings[0]["E"].values])
    loss = np.stack([trainings[0]["loss"].values, 3 * trainings[0]["loss"].values])
    many = build(TIMES, {"E": members}, loss, axes={"E": ("token", "embed")}, name="sgd", seeds=(4, 5))
    data = data_of(similarity, [many], flows[:1])
    curve = data["panels"][0]["curves"][0]
    values = {key: np.frombuffer(base64.b64decode(curve[key]), "<f4") for key in ("t", "v", "low", "high")}
    np.testing.assert_allclose(values["v"], loss.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(values["low"], np.quantile(loss, 0.025, axis=0), rtol=1e-6)
    assert data["matrices"]["runs"][0]["seed"] == 4
    with pytest.raises(UserError, match="name of its own"):
        data_of(similarity, [many, many], flows[:1])
    with pytest.raises(UserError, match="need a training"):
        interactive.interactive_data(similarity, [], embedding="E")
