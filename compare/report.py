"""One self-contained HTML page: the question, the equations, the numbers, the figures.

The page loads nothing: figures are data URIs, equations are MathML, a content policy forbids the
rest. Everything that comes from a user (names, questions, options) is escaped.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from xml.etree import ElementTree

from latex2mathml.converter import convert

_MATHML = "http://www.w3.org/1998/Math/MathML"
_ELEMENTS = frozenset(
    "math mrow mi mn mo mtext ms mspace msub msup msubsup mfrac msqrt mroot mover munder munderover "
    "mtable mtr mtd mpadded mphantom mstyle menclose mfenced merror mmultiscripts".split()
)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report: a short `name`, SVG bytes, and the sentence that says what it shows."""

    name: str
    svg: bytes
    caption: str


def mathml(latex: str) -> str:
    """One LaTeX formula as display MathML.

    **Raises:** `ValueError` naming the formula when it cannot be rendered faithfully: unbalanced
    braces, an unknown command, anything that would not be well-formed MathML.
    """
    bare = re.sub(r"\\[\\{}]", "", latex)
    if bare.count("{") != bare.count("}"):
        raise ValueError(f"formula has unbalanced braces: {latex}")
    try:
        converted = convert(latex, display="block")
    except Exception as error:
        raise ValueError(f"formula cannot be rendered ({type(error).__name__}): {latex}") from error
    try:
        root = ElementTree.fromstring(converted)
    except ElementTree.ParseError as error:
        raise ValueError(f"formula does not become MathML ({error}): {latex}") from error
    for element in root.iter():
        namespace, _, tag = element.tag.partition("}")
        if namespace != "{" + _MATHML or tag not in _ELEMENTS:
            raise ValueError(f"formula becomes {element.tag!r}, which is no MathML: {latex}")
        if "\\" in (element.text or ""):
            raise ValueError(f"formula uses the unknown command {element.text}: {latex}")
        element.tag = tag
    return ElementTree.tostring(root, encoding="unicode")


def render(summary: Mapping[str, Any], figures: Sequence[ReportFigure]) -> str:
    """The report of a run.

    **Arguments:** `summary`: the content of `summary.json` (see `compare.run.summary`); `figures`: in the
    order in which they are shown.

    **Returns:** HTML text. **Raises:** `ValueError` when an equation cannot be rendered.
    """
    title = str(summary["title"])
    sections = [
        ("claims", "Claims", _claims(summary["claims"])),
        ("set-up", "Set-up", _set_up(summary)),
        ("equations", "Equations", _equations(summary["equations"])),
        ("numbers", "Numbers", _numbers(summary)),
        ("figures", "Figures", _figures(figures)),
        ("provenance", "Provenance", _provenance(summary)),
    ]
    navigation = "".join(f'<li><a href="#{key}">{name}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-heading"><h2 id="{key}-heading">{name}</h2>{content}</section>'
        for key, name, content in sections
    )
    question = summary.get("question") or ""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        '<a class="skip" href="#main">Skip to the content</a>'
        f"<header><h1>{escape(title)}</h1>"
        + (f'<p class="question">{escape(str(question))}</p>' if question else "")
        + f"<p>{_verdict_line(summary['claims'])}</p>"
        f'<nav aria-label="Sections"><ul>{navigation}</ul></nav></header>'
        f'<main id="main">{body}</main></body></html>\n'
    )


def _verdict_line(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return "No claim was declared before this run."
    held = sum(claim["verdict"] == "holds" for claim in claims)
    return f"{held} of {len(claims)} claims declared before the run hold."


def _claims(claims: Sequence[Mapping[str, Any]]) -> str:
    if not claims:
        return "<p>The experiment file declares no claims.</p>"
    rows = [
        [
            escape(str(claim["claim"])),
            f"{_code(claim['measure'])}<br>{escape(str(claim['scope']))}",
            _value(claim["measured"]),
            _threshold(claim),
            _verdict(claim["verdict"]),
            escape(_boundary(claim.get("boundary"))),
        ]
        for claim in claims
    ]
    note = (
        "<p>Claims and thresholds stand in the experiment file and were fixed before the run. A verdict says nothing "
        "beyond what it was shown on.</p>"
    )
    return note + _table(
        "What was claimed, measured and found",
        ["claim", "measure", "measured", "threshold", "verdict", "shown on"],
        rows,
    )


def _threshold(claim: Mapping[str, Any]) -> str:
    sign = {"<=": "≤", ">=": "≥"}[claim["comparison"]]
    return f"{sign} {_value(claim['threshold'])}"


def _boundary(boundary: Mapping[str, Any] | None) -> str:
    """What a verdict was shown on, in words; runs of earlier versions do not say."""
    if boundary is None:
        return "–"
    parts = []
    if boundary["times"] is not None:
        first, last = boundary["times"]
        parts.append(f"t = {_plain(first)}" if first == last else f"{_plain(first)} ≤ t ≤ {_plain(last)}")
    rates = [rate for rate in boundary["learning_rates"] if rate is not None]
    parts += [f"η = {_plain(rates)}"] if rates else []
    for which, seeds in boundary["seeds"].items():
        seeds = seeds if isinstance(seeds, list) else [seeds]
        known = [seed for seed in seeds if seed is not None]
        parts += [f"{which} seed{'s' if len(known) > 1 else ''} {_plain(known)}"] if known else []
    batch = boundary["batch"]
    parts += [] if batch is None else ["full batch" if batch == "full" else f"batches of {batch}"]
    parts += [str(boundary[key]) for key in ("optimizer", "dtype", "data") if boundary[key] is not None]
    return "; ".join(parts)


def _verdict(verdict: str) -> str:
    return f'<strong class="{"good" if verdict == "holds" else "bad"}">{escape(verdict)}</strong>'


def _set_up(summary: Mapping[str, Any]) -> str:
    set_up, parameters = summary["set_up"], summary["set_up"]["parameters"]
    pairs = [
        ("architecture", escape(_listing(set_up["architecture"]))),
        ("data", escape(_listing(set_up["data"]))),
        ("axis sizes", escape(_listing(summary["sizes"]))),
        ("initialisation", escape(_listing(set_up["initial"]))),
        ("training", escape(_listing(set_up["training"]))),
        ("trained numbers", _value(sum(p["size"] for p in parameters.values()))),
    ]
    rows = [
        [_code(name), escape(", ".join(p["axes"])), escape(" × ".join(map(str, p["shape"])))]
        for name, p in parameters.items()
    ]
    return _definitions(pairs) + _table("Parameters", ["parameter", "axes", "shape"], rows)


def _equations(equations: Sequence[Mapping[str, Any]]) -> str:
    if not equations:
        return "<p>This run integrates no derived equations.</p>"
    parts = []
    for system in equations:
        lines = "".join(
            f'<div class="equation" tabindex="0" role="group" aria-label="equation {i + 1}">{mathml(line)}</div>'
            for i, line in enumerate(system["lines"])
        )
        parts.append(f"<details open><summary>{escape(str(system['title']))}</summary>{lines}</details>")
    note = (
        "<p>Derived from the architecture by the engine, not typed in; these are what the flow of "
        "the same name integrates. Wide equations scroll.</p>"
    )
    return note + "".join(parts)


def _numbers(summary: Mapping[str, Any]) -> str:
    parts = []
    for name, training in summary["trainings"].items():
        rows = training["table"]
        if not rows:
            parts.append(f"<p>{escape(name)}: {escape(training['time_axis'])}; held against signatures only.</p>")
            continue
        headings = list(rows[0])
        cells = [[escape(row[heading]) for heading in headings] for row in rows]
        parts.append(_table(f"Predictions against the training {name}", headings, cells))
    correlations = summary["signature_correlation"]
    rows = []
    for name, entry in {**summary["flows"], **summary["trainings"]}.items():
        peak = correlations[name]["peak"]
        row = [name, entry["status"], entry["last_good_time"], entry["half_loss_time"], peak["value"], peak["time"]]
        rows.append([_value(cell) for cell in row])
    measures = {entry["measure"] for entry in correlations.values()}
    peak = "ρ₍₀₎ at its peak" if measures == {"pearson"} else "1 − MSE at its peak"
    caption = (
        "Every run: how far it came, when its loss halved, and how well its embeddings follow the order-0 signatures"
    )
    parts.append(_table(caption, ["run", "status", "last good t", "half-loss t", peak, "t of the peak"], rows))
    notes = {entry["note"] for entry in correlations.values()} - {""}
    parts += [f"<p>{escape(note)}</p>" for note in sorted(notes)]
    for name, entry in {**summary["flows"], **summary["trainings"]}.items():
        for remark in (entry["message"], *entry.get("notes", ())):
            parts += [f"<p>{escape(name)}: {escape(remark)}</p>"] if remark else []
    for flow, convergence in summary["learning_rate_convergence"].items():
        rates, errors = convergence["learning_rates"], convergence["errors"]
        rows = [[_value(rate), _value(error)] for rate, error in zip(rates, errors, strict=True)]
        ratios = ", ".join(_plain(ratio) for ratio in convergence["ratio_when_halved"])
        caption = (
            f"Error of {convergence['parameter']} of the flow {flow} at t = {_plain(convergence['time'])} "
            "for each learning rate"
        )
        parts.append(
            _table(caption, ["learning rate η", "relative error"], rows)
            + f"<p>When η halves the error falls by a factor {escape(ratios)}; fitted slope "
            f"{_value(convergence['slope'])} (a flow's own error has slope 1).</p>"
        )
    return "".join(parts)


def _figures(figures: Iterable[ReportFigure]) -> str:
    parts = []
    for figure in figures:
        data = base64.b64encode(figure.svg).decode("ascii")
        parts.append(
            f'<figure id="figure-{escape(figure.name, quote=True)}">'
            f'<img src="data:image/svg+xml;base64,{data}" '
            f'alt="{escape(figure.caption, quote=True)}">'
            f"<figcaption>{escape(figure.caption)}</figcaption></figure>"
        )
    return "".join(parts)


def _provenance(summary: Mapping[str, Any]) -> str:
    seconds = {stage: f"{value:.1f} s" for stage, value in summary["seconds"].items()}
    pairs = [
        ("written", escape(str(summary["written"]))),
        ("seeds", escape(_listing(summary["seeds"]))),
        ("versions", escape(_listing(summary["versions"]))),
        ("wall time", escape(_listing(seconds))),
    ]
    return _definitions(pairs) + (
        "<p>The resolved experiment file, all trajectories (netCDF) and these numbers (JSON) lie beside this page.</p>"
    )


def _table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are HTML already, caption and headings are not."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(
        "<tr>"
        + "".join(f'<th scope="row">{cell}</th>' if i == 0 else f"<td>{cell}</td>" for i, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def _definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A definition list; values are HTML already."""
    return "<dl>" + "".join(f"<dt>{escape(k)}</dt><dd>{v}</dd>" for k, v in pairs) + "</dl>"


def _listing(values: Any) -> str:
    if isinstance(values, Mapping):
        return ", ".join(f"{key} {_listing(value)}" for key, value in values.items())
    if isinstance(values, list | tuple):
        return f"[{', '.join(map(str, values))}]"
    return str(values)


def _code(text: Any) -> str:
    return f"<code>{escape(str(text))}</code>"


def _value(value: Any) -> str:
    return escape(_plain(value))


def _plain(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_STYLE = """
:root{--page:#fcfcfb;--ink:#1d1f21;--quiet:#5c6166;--line:#d9dcdf;--link:#0b5cad;--good:#18703a;
--bad:#b3261e;--card:#fff}
@media (prefers-color-scheme:dark){:root{--page:#16181a;--ink:#e6e7e8;--quiet:#a3a9ae;--line:#383c40;
--link:#86bdf5;--good:#7bd398;--bad:#ff9c92;--card:#f4f4f2}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.5rem 1rem 4rem;max-width:62rem;background:var(--page);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.7rem;line-height:1.2;margin:.5rem 0}h2{font-size:1.25rem;margin:2.5rem 0 .75rem}
.question{font-size:1.1rem;color:var(--quiet);margin:.25rem 0 1rem}
a{color:var(--link)}:focus-visible{outline:3px solid var(--link);outline-offset:2px}
.skip{position:absolute;left:-999px}.skip:focus{left:1rem;top:.5rem;background:var(--page);padding:.25rem}
nav ul{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;list-style:none;padding:0;margin:1rem 0 0}
.scroll{overflow-x:auto;margin:1rem 0}
table{min-width:min(100%,34rem);border-collapse:collapse;font-size:.92rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--quiet);padding-bottom:.4rem}
th,td{text-align:left;padding:.35rem .9rem .35rem 0;border-bottom:1px solid var(--line);
vertical-align:top}
thead th{color:var(--quiet);font-weight:600}tbody th{font-weight:500}
.good{color:var(--good)}.bad{color:var(--bad)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.3rem 1.25rem;margin:0 0 1rem}
dt{color:var(--quiet)}dd{margin:0;overflow-wrap:anywhere}
.equation{overflow-x:auto;padding:.35rem .25rem;border-bottom:1px solid var(--line)}
.equation math{text-align:left}
details{margin:1rem 0}summary{cursor:pointer;font-weight:600}
figure{margin:1.5rem 0;padding:0}
figure img{display:block;width:100%;height:auto;background:var(--card);border:1px solid var(--line);
border-radius:6px;padding:.5rem}
figcaption{color:var(--quiet);font-size:.92rem;margin-top:.4rem}
code{font:.92em ui-monospace,SFMono-Regular,Menlo,monospace}
@media print{nav,.skip{display:none}}
"""
