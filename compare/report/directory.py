"""The report of a run directory: its files are read, their shape is checked, and then rendered.

Files may be damaged, edited by hand or of another version, so each mistake is told with the file and the place in it.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from xml.etree import ElementTree

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from compare.report.page import ReportFigure, render
from theory.errors import UserError

SUMMARY, INTERACTIVE = "summary.json", "interactive.json"
_SVG = "{http://www.w3.org/2000/svg}svg"

Number = Annotated[float, Field(allow_inf_nan=False)]
# As `compare.comparison.jsonable` writes a number: null for nan, words for the infinities.
Measured = Number | Literal["inf", "-inf"] | None


class _Part(BaseModel):
    """What the page needs of a part; earlier and later versions may write more."""

    model_config = ConfigDict(extra="ignore", strict=True)


class _Claim(_Part):
    claim: str
    measure: str
    scope: str
    measured: Measured
    comparison: Literal["<=", ">="]
    threshold: Number
    verdict: Literal["holds", "fails", "undefined"]


class _Parameter(_Part):
    axes: list[str]
    shape: list[int]
    size: int


class _SetUp(_Part):
    architecture: dict[str, Any]
    parameters: dict[str, _Parameter]
    data: dict[str, Any]
    initial: dict[str, Any]


class _System(_Part):
    title: str
    lines: list[str]


class _Figure(_Part):
    name: Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
    caption: str


class _Ran(_Part):
    status: str
    last_good_time: Measured
    message: str | None


class _Training(_Ran):
    table: list[dict[str, str]]
    time_axis: str


class _Peak(_Part):
    value: Measured
    time: Measured


class _Correlation(_Part):
    measure: Literal["pearson", "one_minus_mse"]
    peak: _Peak
    note: str


class _Convergence(_Part):
    parameter: str
    time: Measured
    learning_rates: list[Number]
    errors: list[Measured]
    ratio_when_halved: list[Measured]
    slope: Measured


class _Summary(_Part):
    kind: Literal["comparison"]
    title: str
    claims: list[_Claim]
    set_up: _SetUp
    sizes: dict[str, int]
    equations: list[_System]
    figures: list[_Figure]
    flows: dict[str, _Ran]
    trainings: dict[str, _Training]
    signature_correlation: dict[str, _Correlation]
    learning_rate_convergence: dict[str, _Convergence]
    written: str
    seeds: dict[str, Any]
    versions: dict[str, str]
    seconds: dict[str, Number]


class _Run(_Part):
    name: str
    trained: bool
    color: Annotated[str, Field(pattern=r"^#[0-9a-fA-F]{6}$")]
    dash: list[Number]
    width: Number


class _Curve(_Part):
    run: int
    t: str
    v: str


class _Panel(_Part):
    key: Annotated[str, Field(pattern=r"^[a-z]+$")]
    title: str
    quantity: str
    log: bool
    curves: list[_Curve]


class _Frames(_Part):
    run: int
    times: list[Number]
    seed: int | None
    frames: str


class _Matrices(_Part):
    tokens: list[str]
    low: Number
    levels: Literal[255, 65535]
    signature: str
    runs: list[_Frames]
    notes: list[str]


class _Interactive(_Part):
    runs: Annotated[list[_Run], Field(min_length=1)]
    times: Annotated[list[Number], Field(min_length=1)]
    start: Annotated[int, Field(ge=0)]
    panels: list[_Panel]
    matrices: _Matrices
    colours: str


def report_of(directory: Path) -> str:
    """The HTML report of a run directory, from its `summary.json`, `figures/` and `interactive.json`.

    **Raises:** `UserError` when the directory is no run of `staircase compare`, naming the file that is missing, damaged or
    does not have the shape that a run writes.
    """
    path = directory / SUMMARY
    if not path.is_file():
        raise UserError(f"{str(directory)!r} is no run directory: it has no {SUMMARY}")
    content = _read(path)
    if not isinstance(content, dict) or content.get("kind") != "comparison":
        raise UserError(f"{str(directory)!r} holds no comparison: write one with `staircase compare`")
    _check(_Summary, content, path)
    for name in {**content["flows"], **content["trainings"]}:
        if name not in content["signature_correlation"]:
            raise UserError(f"{str(path)!r} is damaged: signature_correlation lacks {name!r}")
    shown = [
        ReportFigure(entry["name"], _svg(directory / "figures" / f"{entry['name']}.svg"), entry["caption"])
        for entry in content["figures"]
    ]
    data = directory / INTERACTIVE
    # A run of an earlier version has none: its figures stand still.
    interactive = _interactive(data) if data.is_file() else None
    try:
        return render(content, shown, interactive)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        # Equations that cannot be rendered, and whatever else was changed where no shape is asked for.
        reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
        raise UserError(f"{str(path)!r} is damaged: {' '.join(reason.split())}") from error


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error


def _check(shape: type[_Part], content: Any, path: Path) -> None:
    try:
        shape.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        said = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(
            f"{str(path)!r} is damaged, or not of `staircase compare`: {place}: {' '.join(said.split())}"
        ) from error


def _svg(path: Path) -> bytes:
    """A figure, whole: a browser shows nothing of an SVG that is cut off, and does not say so."""
    if not path.is_file():
        raise UserError(f"the figure {str(path)!r} is missing")
    try:
        content = path.read_bytes()
        root = ElementTree.fromstring(content)
    except (OSError, ValueError, ElementTree.ParseError) as error:
        raise UserError(f"the figure {str(path)!r} is damaged, or no SVG: {error}") from error
    if root.tag != _SVG:
        raise UserError(f"the figure {str(path)!r} is no SVG: its root is {root.tag!r}")
    return content


def _interactive(path: Path) -> Mapping[str, Any]:
    content = _read(path)
    _check(_Interactive, content, path)
    matrices, runs = content["matrices"], len(content["runs"])

    def damaged(place: str, why: str) -> UserError:
        return UserError(f"{str(path)!r} is damaged: {place}: {why}")

    if content["start"] >= len(content["times"]):
        raise damaged("start", f"there are {len(content['times'])} times")
    pairs = len(matrices["tokens"]) * (len(matrices["tokens"]) - 1) // 2
    size = pairs * (2 if matrices["levels"] > 255 else 1)
    packed = [("matrices.signature", matrices["signature"], size)]
    for i, entry in enumerate(matrices["runs"]):
        packed.append((f"matrices.runs.{i}.frames", entry["frames"], size * len(entry["times"])))
    curves = [
        (f"panels.{i}.curves.{j}", curve)
        for i, panel in enumerate(content["panels"])
        for j, curve in enumerate(panel["curves"])
    ]
    for place, entry in [*curves, *((f"matrices.runs.{i}", entry) for i, entry in enumerate(matrices["runs"]))]:
        if not 0 <= entry["run"] < runs:
            raise damaged(f"{place}.run", f"there is no run {entry['run']}")
    for place, text, wanted in packed:
        try:
            # No more than what is wanted, and one byte to tell: a few bytes can be made to unpack to gigabytes.
            found = len(zlib.decompressobj().decompress(_decoded(text), wanted + 1))
        except (ValueError, zlib.error) as error:
            raise damaged(place, str(error)) from error
        if found != wanted:
            raise damaged(place, f"{wanted} bytes are needed, but it holds {'more' if found > wanted else found}")
    for place, curve in curves:
        try:
            lengths = {len(_decoded(curve[key])) for key in ("t", "v", "low", "high") if key in curve}
        except (ValueError, TypeError) as error:
            raise damaged(place, str(error)) from error
        if len(lengths) != 1 or lengths.pop() % 4:
            raise damaged(place, "times and values differ in number")
    return content


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"no base64 ({error})") from error
