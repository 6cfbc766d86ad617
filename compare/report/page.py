"""The page: sections of a summary as HTML, style and script inline.

The page loads nothing: figures are data URIs, equations are MathML, and a content policy forbids the rest; style and script
run because the policy names their hashes. Everything that comes from a user (names, questions, options) is escaped, in the
data of the interactive figures too. Without JavaScript everything but those figures is there.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from compare.report.formulas import mathml


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report: a short `name`, SVG bytes, and the sentence that says what it shows."""

    name: str
    svg: bytes
    caption: str


def render(
    summary: Mapping[str, Any], figures: Sequence[ReportFigure], interactive: Mapping[str, Any] | None = None
) -> str:
    """The report of a run.

    **Arguments:** `summary`: the content of `summary.json` (see `compare.run.summary`); `figures`: in the
    order in which they are shown; `interactive`: from `compare.report.interactive_data`, None for a page without script.

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
    scripts = ""
    if interactive is not None:
        sections.insert(1, ("interactive", "Over time", _interactive(interactive)))
        script = _asset("page.js")
        scripts = f'<script type="application/json" id="data">{_json(interactive)}</script><script>{script}</script>'
    # What needs the script is shown by it.
    hidden = {"interactive": " hidden data-needs-script"}
    navigation = "".join(f'<li{hidden.get(key, "")}><a href="#{key}">{name}</a></li>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}" aria-labelledby="{key}-heading"{hidden.get(key, "")}>'
        f'<h2 id="{key}-heading">{name}</h2>{content}</section>'
        for key, name, content in sections
    )
    question = summary.get("question") or ""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(interactive is not None)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{_asset('page.css')}</style></head><body>"
        '<a class="skip" href="#main">Skip to the content</a>'
        + ('<button id="theme" class="theme" type="button" hidden>Theme: automatic</button>' if scripts else "")
        + f"<header><h1>{escape(title)}</h1>"
        + (f'<p class="question">{escape(str(question))}</p>' if question else "")
        + f"<p>{_verdict_line(summary['claims'])}</p>"
        f'<nav aria-label="Sections"><ul>{navigation}</ul></nav></header>'
        f'<main id="main">{body}</main>{scripts}</body></html>\n'
    )


@functools.cache
def _asset(name: str) -> str:
    """A file of this package as it goes into the page."""
    return "\n" + files("compare.report").joinpath(name).read_text(encoding="utf-8")


def _policy(script: bool) -> str:
    """Nothing may be loaded; of inline code only ours, by its hash, may run."""

    def allowed(name: str) -> str:
        digest = hashlib.sha256(_asset(name).encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"

    policy = f"default-src 'none'; img-src data:; style-src {allowed('page.css')}; base-uri 'none'; form-action 'none'"
    return policy + (f"; script-src {allowed('page.js')}" if script else "")


def _json(content: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in, nor begin a comment there, whatever users have called their tokens."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _interactive(content: Mapping[str, Any]) -> str:
    """Controls and places of the interactive figures; the script fills them."""
    notes = "".join(f"<p>{escape(note)}</p>" for note in content["matrices"]["notes"])
    matrices = "".join(
        f'<figure id="matrix-{role}"><label hidden>{role.capitalize()} <select></select></label>'
        f'<div class="matrix" tabindex="0" role="application" aria-describedby="pair" '
        f'aria-label="Similarity of the tokens, {role}: arrow keys move over pairs of tokens"><canvas></canvas></div>'
        "<figcaption></figcaption></figure>"
        for role in ("signature", "predicted", "trained")
    )
    return (
        "<p>One moment for all figures: move the slider, click into a curve, or focus one and use the arrow keys.</p>"
        '<div class="time"><label for="time">Time</label>'
        '<input type="range" id="time" min="0" max="0" step="1" value="0" aria-describedby="time-text">'
        '<output id="time-text" for="time" aria-live="off"></output><button id="play" type="button" hidden>Play</button></div>'
        f'<h3>Similarity of tokens</h3><div class="matrices" id="matrices">{matrices}</div>'
        '<p class="scale"><span id="scale-low"></span><canvas id="scale" role="img" '
        'aria-label="Colours from the lowest cosine to 1"></canvas><span>1</span> cosine</p>'
        f'<p><output id="pair" aria-live="polite"></output></p>{notes}'
        '<h3>Curves</h3><fieldset class="switches"><legend>Runs</legend><div id="switch-runs"></div></fieldset>'
        '<fieldset class="switches"><legend>Quantities</legend><div id="switch-panels"></div></fieldset>'
        '<div class="panels" id="panels"></div>'
        '<div id="tooltip" role="tooltip" hidden></div>'
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
    headings = ["claim", "measure", "measured", "threshold", "verdict", "shown on"]
    return note + _table("What was claimed, measured and found", headings, rows) + _seeds(claims)


# What a claim's number is over seeds, by the rule that its measure states.
_RULES = {
    "worst": "the worst of the seeds",
    "mean": "the mean of the seeds",
    "mean curve": "that of the seeds' mean curve",
}


def _seeds(claims: Sequence[Mapping[str, Any]]) -> str:
    """What each claim's number was on single seeds; nothing for runs of one seed, or of earlier versions."""
    rows = []
    for claim in claims:
        over = claim.get("over_seeds")
        if over is None:
            continue
        values = "; ".join(f"{seed}: {_plain(value)}" for seed, value in over["values"].items())
        interval = over.get("interval")
        rows.append(
            [
                escape(str(claim["claim"])),
                _RULES[over["rule"]],
                f"{over['met']} of {len(over['values'])}",
                _value(over["mean"]),
                " to ".join(map(_value, over["range"])),
                "–" if interval is None else " to ".join(map(_value, interval)),
                f"<details><summary>show</summary>{escape(values)}</details>",
            ]
        )
    if not rows:
        return ""
    headings = [
        "claim",
        "what counts",
        "seeds that meet the threshold",
        "mean",
        "range",
        "95 % interval of the mean",
        "by seed",
    ]
    return _table("The same on single seeds", headings, rows)


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
    parts = [
        '<p id="too-old" hidden>This browser cannot show the figures that move; these stand still.</p>',
    ]
    for figure in figures:
        data = base64.b64encode(figure.svg).decode("ascii")
        parts.append(
            f'<figure id="figure-{escape(figure.name, quote=True)}">'
            f'<img src="data:image/svg+xml;base64,{data}" '
            f'alt="{escape(figure.caption, quote=True)}" decoding="async">'
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
