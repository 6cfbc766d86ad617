"""Published experiments run again: files with claims, run over seeds, each claim ending in a verdict.

An experiment to reproduce is an ordinary experiment file. It may say what `[quick]` changes for a shorter run and hold
`[variants.NAME]` (`simulate.variants`), each of them run by `compare.run` like any other experiment. What came out of all
of them is one result: plain values, of which the table of `compare.reproduction_table` is made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulate.variants import MAIN
from theory.errors import UserError, argument, nearest

if TYPE_CHECKING:
    from simulate.experiment import Experiment

# What is claimed of a paper is shown on so many seeds at least.
LEAST_SEEDS = 5
# Where results are kept, below the folder of the experiment files.
RESULTS = "results"
# Title and first paragraph of their page, beside them.
INTRODUCTION = "about.md"


def experiments(folder: Path) -> dict[str, Path]:
    """Name → experiment file, for all files of a folder.

    **Raises:** `UserError` when there is no such folder, or no experiment file in it.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    if not found:
        raise UserError(
            f"there are no experiment files in {str(folder)!r}: name their folder with {argument('directory')}"
        )
    return found


@dataclass(frozen=True)
class Reproduction:
    """An experiment file loaded in one setting: the file as it stands and its variants, each a checked experiment."""

    name: str
    quick: bool
    has_quick: bool
    parts: Mapping[str, Experiment]

    @property
    def label(self) -> str:
        """What its results are called by."""
        return f"{self.name}-quick" if self.quick else self.name


def load(name: str, folder: Path, *, quick: bool = False) -> Reproduction:
    """Load and check an experiment with its variants; where the file has no quick setting, in its full one.

    **Raises:** `UserError` for an unknown name, a mistake in the file, a claim that cannot be measured, a condition without
    claim of the paper, or fewer seeds with starts of their own than `LEAST_SEEDS`.
    """
    from compare.claims import check_claims
    from simulate.experiment import has_quick, load_experiment, variants_of

    files = experiments(folder)
    if name not in files:
        raise UserError(f"there is no experiment {name!r} in {str(folder)!r}; {nearest(name, files)}")
    path = files[name]
    differs = has_quick(path)
    parts: dict[str, Experiment] = {}
    for variant in (None, *variants_of(path)):
        part = MAIN if variant is None else variant
        where = f"{path}" + ("" if variant is None else f", variant {variant!r}")
        if part in parts:
            raise UserError(f"{path}: a variant cannot be called {MAIN!r}, which is the file as it stands")
        experiment = load_experiment(path, quick=quick and differs, variant=variant)
        training = experiment.training
        if training is None or training.starts != "own" or len(training.seeds) < LEAST_SEEDS:
            raise UserError(f'{where}: needs [training] with starts = "own" and at least {LEAST_SEEDS} seeds')
        if not experiment.claims:
            raise UserError(f"{where}: claims nothing, and nothing names it as its control")
        check_claims(experiment, predicted=False, flows=False)
        parts[part] = experiment
    for experiment in parts.values():
        for claim, section in experiment.claims.items():
            if section.control is not None and section.control not in parts:
                raise UserError(
                    f"{path}: claim {claim!r} has the control {section.control!r}, but the file has no variants"
                )
    return Reproduction(name, quick and differs, differs, parts)


def run(
    reproduction: Reproduction,
    directory: Path,
    *,
    force: bool = False,
    progress: bool = False,
    announce: Callable[[str], object] = lambda line: None,
) -> dict[str, Any]:
    """Run every part into a run directory of its own below `directory`, and judge the claims.

    A part whose run directory is there already, of the same experiment, is not run again (unless `force`); a part that was
    killed goes on from its last snapshot. The result is also written to `summary.json` in `directory`.

    **Returns:** the result, plain values. **Raises:** `UserError` for a directory of another experiment; `NumericalFailure`.
    """
    from compare.run import run_comparison, write_comparison
    from simulate.rundir import check_run_directory, run_directory, training_folder
    from theory.files import write_atomically

    parts: dict[str, dict[str, Any]] = {}
    for name, experiment in reproduction.parts.items():
        target = directory / name
        text = experiment.to_toml()
        kept = target / "experiment.toml"
        if force or not (kept.is_file() and kept.read_text(encoding="utf-8") == text):
            check_run_directory(target, force=force)
            announce(f"{reproduction.label}: {name}")
            with training_folder(target, text) as snapshots:
                result = run_comparison(experiment, snapshots=snapshots, progress=progress)
                with run_directory(target, force=force) as folder:
                    write_comparison(folder, result)
        parts[name] = _read(target / "summary.json")
    try:
        result = gathered(reproduction, parts)
    except (LookupError, TypeError, AttributeError, ValueError, StopIteration) as error:
        raise UserError(
            f"the runs in {str(directory)!r} are damaged, or of another version ({type(error).__name__}: {error}): run them "
            f"again with {argument('force', True)}"
        ) from error
    write_atomically(directory / "summary.json", to_json(result).encode())
    return result


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{str(path)!r} is damaged: it holds no JSON object")
    return content


def to_json(result: Mapping[str, Any]) -> str:
    """A result as its file holds it."""
    return json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def gathered(reproduction: Reproduction, summaries: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The result of all parts: what was run, and every claim with its numbers and its verdict.

    **Arguments:** `summaries`: part → the `summary.json` of its run.
    """
    claims = []
    for part, experiment in reproduction.parts.items():
        for name, section in experiment.claims.items():
            # What a control shows stands with the claim that it is the control of.
            if _is_control(reproduction, part, name):
                continue
            found = _of_claim(summaries[part], name)
            control = None
            if section.control is not None:
                control = _of_claim(summaries[section.control], name)["values"]
            values = list(found["values"].values())
            claims.append(
                {
                    "part": part,
                    "name": name,
                    "paper": section.paper,
                    "claim": found["claim"],
                    "measure": section.measure,
                    "comparison": section.comparison,
                    "threshold": section.threshold,
                    "distinct": section.distinct,
                    "measured": found["values"],
                    "condition": section.condition,
                    "control": None if section.control is None else {"variant": section.control, "measured": control},
                    "verdict": verdict(
                        values,
                        section.comparison,
                        section.threshold,
                        condition=section.condition,
                        control=None if control is None else list(control.values()),
                        distinct=section.distinct,
                    ),
                    "seeds_met": sum(
                        bool(_holds([value], section.comparison, section.threshold, False)) for value in values
                    ),
                    "boundary": found["boundary"],
                }
            )
    first = next(iter(reproduction.parts.values()))
    return {
        "kind": "reproduction",
        "name": reproduction.name,
        "title": first.title or reproduction.name,
        "setting": "quick" if reproduction.quick else "full",
        "has_quick": reproduction.has_quick,
        "claims": claims,
        "parts": {
            name: {
                "experiment": experiment.sections.model_dump(mode="json", exclude_unset=True),
                "cpu_seconds": summaries[name]["cpu_seconds"],
            }
            for name, experiment in reproduction.parts.items()
        },
        "versions": next(iter(summaries.values()))["versions"],
    }


def _is_control(reproduction: Reproduction, part: str, claim: str) -> bool:
    return any(
        other != part and claim in experiment.claims and experiment.claims[claim].control == part
        for other, experiment in reproduction.parts.items()
    )


def _of_claim(summary: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What a run measured for a claim: {seed: number}, None where it is undefined, in which words and on what."""
    claim = next(claim for claim in summary["claims"] if claim["name"] == name)
    return {"claim": claim["claim"], "boundary": claim["boundary"], "values": dict(claim["over_seeds"]["values"])}


def verdict(
    values: list[Any],
    comparison: str,
    threshold: float,
    *,
    condition: str | None = None,
    control: list[Any] | None = None,
    distinct: bool = False,
) -> str:
    """ "reproduced", "reproduced only if …" (the condition), "not reproduced" or "undefined".

    A claim holds when every seed meets the threshold (or, with `distinct`, the number of different values does). With a
    condition it is reproduced only if that is given, unless it holds in every seed of the control too, which is without it.

    **Arguments:** `values`: one for each seed, None where it is undefined; `control`: the same where the condition is missing,
    None where that was not run.
    """
    held = _holds(values, comparison, threshold, distinct)
    if held is None:
        return "undefined"
    if not held:
        return "not reproduced"
    if condition is None or (control is not None and _holds(control, comparison, threshold, distinct)):
        return "reproduced"
    return f"reproduced only if {condition}"


def _holds(values: list[Any], comparison: str, threshold: float, distinct: bool) -> bool | None:
    if any(value is None for value in values):
        return None
    numbers = [math.inf if value == "inf" else -math.inf if value == "-inf" else float(value) for value in values]
    if distinct:
        numbers = [float(len(set(numbers)))]
    return all(value >= threshold if comparison == ">=" else value <= threshold for value in numbers)


def results(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(experiment, setting) → its kept result, in the order of the names."""
    found = {}
    for path in sorted((folder / RESULTS).glob("*.json")):
        result = _read(path)
        if result.get("kind") != "reproduction":
            raise UserError(f"{str(path)!r} is no result of `staircase reproduce --record`")
        found[result["name"], result["setting"]] = result
    return found


def page(folder: Path) -> str:
    """The page of a folder's kept results: its `about.md` (where there is none, a title), then `compare.reproduction_table`.

    **Raises:** `UserError` for results that cannot be read or have another shape.
    """
    from compare.reproduction_table import table
    from theory.data.reading import read_text

    about = folder / INTRODUCTION
    try:
        return table(results(folder), read_text(about) if about.is_file() else "# Claims run again\n")
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"the results in {str(folder / RESULTS)!r} are damaged, or of another version ({type(error).__name__}: {error})"
        ) from error
