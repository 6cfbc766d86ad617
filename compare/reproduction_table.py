"""The table of reproduced claims, in Markdown, made of results alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_HEAD = """This page is made of the results in `results/` by `staircase reproduce --table`; nothing below the first paragraph
is written by hand.

Every claim and its threshold stand in the experiment file, written before it was run (where one came later the file says so);
their history is in git, and none was changed after its result. A claim is
*reproduced* when every seed meets the threshold. *Reproduced only if* adds what our settings have and the paper does not say:
where a control is named, the same was measured without it and not every seed met the threshold. *Not reproduced* is a
result too. Each seed has its own initial arrays and its own batches. Measured: mean [smallest, largest] over seeds. The quick
setting is what the section `[quick]` of the file changes; where a file has none the two settings are the same and are run once.

CPU seconds were measured on a machine that did other things too, and are upper bounds.
"""


def table(results: Mapping[tuple[str, str], Mapping[str, Any]], introduction: str) -> str:
    """The page: the introduction, a summary, then a section for each experiment with a row for each claim.

    **Arguments:** `results`: (experiment, setting) → its result; `introduction`: title and first paragraph, in Markdown; see
    `compare.reproduce`.
    """
    lines = [
        introduction,
        _HEAD,
        "## All experiments\n",
        "| experiment | setting | reproduced | only if | not | undefined | CPU s |",
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for (name, setting), result in results.items():
        verdicts = [claim["verdict"] for claim in result["claims"]]
        only = sum(verdict.startswith("reproduced only if") for verdict in verdicts)
        counts = verdicts.count("reproduced"), only, verdicts.count("not reproduced"), verdicts.count("undefined")
        seconds = sum(part["cpu_seconds"] for part in result["parts"].values())
        lines.append(f"| [{name}](#{name}) | {setting} | {' | '.join(map(str, counts))} | {seconds:.0f} |")
    for name in dict.fromkeys(name for name, _ in results):
        settings = {setting: result for (own, setting), result in results.items() if own == name}
        lines += ["", f"## {name}", "", f"{next(iter(settings.values()))['title']}. `{name}.toml`", ""]
        lines += ["| paper | claim | full | quick | condition | boundary |", "|---|---|---|---|---|---|"]
        rows: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
        for setting, result in settings.items():
            for claim in result["claims"]:
                claim = claim | {"has_quick": result["has_quick"]}
                rows.setdefault((claim["part"], claim["name"]), {})[setting] = claim
        for claims in rows.values():
            lines.append(_row(claims))
    return "\n".join(lines) + "\n"


def _row(claims: Mapping[str, Mapping[str, Any]]) -> str:
    """A row; `claims`: the same claim by setting."""
    claim = claims.get("full") or claims["quick"]
    text = claim["claim"] + ("" if claim["part"] == "main" else f" ({claim['part']})")
    cells = [claim["paper"] or "–", text]
    absent = {"full": "not run", "quick": "not run" if claim["has_quick"] else "the same"}
    cells += [_cell(claims[setting]) if setting in claims else absent[setting] for setting in ("full", "quick")]
    cells += [_condition(claim), _boundary(claim["boundary"])]
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _cell(claim: Mapping[str, Any]) -> str:
    """The verdict in a word or two, the numbers and the threshold."""
    verdict = "reproduced only if" if claim["verdict"].startswith("reproduced only if") else claim["verdict"]
    sign = "≥" if claim["comparison"] == ">=" else "≤"
    values = list(claim["measured"].values())
    if verdict == "not reproduced" and not claim["distinct"]:
        verdict += f" ({claim['seeds_met']} of {len(values)} seeds meet it)"
    counted = f"{len(set(map(str, values)))} different of {len(values)}: " if claim["distinct"] else ""
    return f"**{verdict}**: {counted}{_numbers(values)}, {sign} {claim['threshold']:g}"


def _numbers(values: list[Any]) -> str:
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return "no number"
    words = f"{_short(math.fsum(numbers) / len(numbers))} [{_short(min(numbers))}, {_short(max(numbers))}]"
    undefined = len(values) - len(numbers)
    return words + (f", undefined in {undefined} seeds" if undefined else f", {len(numbers)} seeds")


def _short(value: float) -> str:
    return f"{value:.3g}"


def _condition(claim: Mapping[str, Any]) -> str:
    condition, control = claim["condition"], claim["control"]
    if condition is None:
        return "–"
    if control is None:
        return f"{condition} (no control)"
    return f"{condition}; without ({control['variant']}): {_numbers(list(control['measured'].values()))}"


def _boundary(boundary: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{rate:g}" for rate in boundary["learning_rates"] if rate is not None)
    times = boundary["times"]
    when = (
        ""
        if times is None
        else f", t = {times[1]:.4g}"
        if times[0] == times[1]
        else f", t = {times[0]:.4g} … {times[1]:.4g}"
    )
    return f"{boundary['data']}; {boundary['optimizer']}, η = {rates}, batch {boundary['batch']}, {boundary['dtype']}{when}"
