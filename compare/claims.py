"""Claims of an experiment file against what was measured: claim → measure → threshold → verdict → boundary of what was shown.

What can be measured, and what counts over seeds, says `compare.measures`. Where every seed has initial arrays of its own, each
is measured as if there were no other, and the worst counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from compare.bands import band
from compare.comparison import Convergence, jsonable
from compare.measures import MEASURES, Evidence, Measured, Subject
from compare.measures.evidence import Rule
from theory.errors import UserError, nearest

if TYPE_CHECKING:
    from simulate.experiment import ClaimSection, Experiment


@dataclass(frozen=True)
class Boundary:
    """What a verdict was shown on, and says nothing beyond.

    - `times`: first and last t that entered the number; None where it is about no time of the training.
    - `learning_rates`: of the trainings that entered; None for one that is not known. `seeds`: of the initial arrays and of
      the training's batches. `batch`, `optimizer`, `dtype`: of the main training. `data`: its name, samples and whether
      they are the exact law.
    """

    times: tuple[float, float] | None
    learning_rates: tuple[Any, ...]
    seeds: Mapping[str, Any]
    batch: str | int | None
    optimizer: str | None
    dtype: str | None
    data: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "times": jsonable(self.times),
            "learning_rates": jsonable(self.learning_rates),
            "seeds": jsonable(self.seeds),
            "batch": self.batch,
            "optimizer": self.optimizer,
            "dtype": self.dtype,
            "data": self.data,
        }


@dataclass(frozen=True)
class OverSeeds:
    """A claim's number on each seed, `values`, and by which `rule` one number is made of them (`compare.measures`)."""

    rule: Rule
    values: Mapping[int, float]

    def to_dict(self) -> dict[str, Any]:
        """With mean, range, and the 95 % t-interval of the mean (`compare.bands`); null where one of them is not known."""
        values = np.array(list(self.values.values()), dtype=np.float64)
        content: dict[str, Any] = {"rule": self.rule, "values": jsonable(self.values)}
        content["mean"], content["range"] = jsonable(values.mean()), jsonable([values.min(), values.max()])
        if len(values) > 1:
            found = band(values)
            content |= {"confidence": found.confidence, "interval": jsonable([found.low, found.high])}
        return content


@dataclass(frozen=True)
class Verdict:
    """One claim: its measure, where it was measured, the number, the threshold and what follows.

    `over_seeds`: what the number was on each seed, None where it is not of several.
    """

    name: str
    claim: str
    measure: str
    scope: str
    measured: float
    comparison: str
    threshold: float
    boundary: Boundary
    over_seeds: OverSeeds | None = None

    @property
    def verdict(self) -> str:
        """ "holds", "fails", or "undefined" when there is no number."""
        if math.isnan(self.measured):
            return "undefined"
        return "holds" if self._met(self.measured) else "fails"

    @property
    def seeds_met(self) -> int | None:
        """How many seeds meet the threshold by themselves; None where the number is not of several."""
        return None if self.over_seeds is None else sum(map(self._met, self.over_seeds.values.values()))

    def _met(self, value: float) -> bool:
        return value <= self.threshold if self.comparison == "<=" else value >= self.threshold

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "claim": self.claim,
            "measure": self.measure,
            "scope": self.scope,
            "measured": jsonable(self.measured),
            "comparison": self.comparison,
            "threshold": self.threshold,
            "verdict": self.verdict,
            "over_seeds": None if self.over_seeds is None else self.over_seeds.to_dict() | {"met": self.seeds_met},
            "boundary": self.boundary.to_dict(),
        }


def check_claims(
    experiment: Experiment, *, predicted: bool = True, flows: bool = True, rates: int | None = None
) -> None:
    """Refuse, before any work, claims that this run could not measure.

    **Arguments:** `predicted`: whether flows predict the times of the training; `flows`: whether any are integrated;
    `rates`: the number of learning rates, by default that of the file.

    **Raises:** `UserError` naming the claim and the nearest right choice.
    """
    for name, claim in experiment.claims.items():
        measure = MEASURES.get(claim.measure)
        if measure is None:
            raise UserError(
                f"claim {name!r} has an unknown measure {claim.measure!r}; {nearest(claim.measure, MEASURES)}"
            )
        if not predicted and measure.about in ("agreement", "band"):
            raise UserError(
                f"claim {name!r} ({claim.measure}) holds a flow against a training, but no flow predicts the times of "
                "this one: it can be held against signatures only"
            )
        if not flows and (claim.flow is not None or measure.about != "state"):
            raise UserError(f"claim {name!r} ({claim.measure}) is about a flow, but none starts where this run starts")
        try:
            measure.check(claim, experiment.architecture(), experiment.dataset())
        except UserError as error:
            raise UserError(f"claim {name!r} ({claim.measure}): {error}") from None
        if measure.about == "band" and (experiment.noise is None or experiment.training is None):
            raise UserError(f"claim {name!r} ({claim.measure}) needs the sections [noise] and [training]")
        if rates is None:
            rates = len(set(experiment.training.learning_rate))
        if rates < measure.rates:
            raise UserError(
                f"claim {name!r} ({claim.measure}) needs two different values in {_training_key(experiment)}.learning_rate"
            )


def _training_key(experiment: Experiment) -> str:
    return "sgd" if experiment.sections.training is None else "training"


def evaluate_claims(claims: Mapping[str, ClaimSection], evidence: Evidence, *, parameter: str) -> tuple[Verdict, ...]:
    """Measure every claim.

    **Arguments:** `parameter`: the embedding, which claims are about unless they name another parameter; a claim that
    names no flow is about the first one (a measure of embeddings: about the training). A measure at a time is taken at
    the claim's `at`, by default where the trained loss has halved, and at the last shared time where it has not.

    A measure that turns out not to exist on these numbers leaves the claim "undefined", its scope saying why.
    """
    verdicts = []
    for name, claim in claims.items():
        measure = MEASURES[claim.measure]
        flow = claim.flow or (next(iter(evidence.flows)) if measure.of_a_flow else None)
        subject = Subject(flow, claim.parameter or parameter, claim.at, tuple(claim.tokens), claim.frequency)
        try:
            found = measure.take(evidence, subject)
        except UserError as error:
            found = Measured(math.nan, str(error), None)
        text = claim.remark or name.replace("_", " ").replace("-", " ")
        convergence = evidence.convergences.get(flow or "") if measure.rates > 1 else None
        verdicts.append(
            Verdict(
                name,
                text,
                claim.measure,
                found.scope,
                found.value,
                claim.comparison,
                claim.threshold,
                _boundary(evidence, found, convergence),
                _over_seeds(evidence, found),
            )
        )
    return tuple(verdicts)


def _over_seeds(evidence: Evidence, found: Measured) -> OverSeeds | None:
    if found.by_seed is None or found.rule is None:
        return None
    return OverSeeds(found.rule, dict(zip(evidence.training.seeds or (), found.by_seed.tolist(), strict=True)))


def worst_of(verdicts: Mapping[int, tuple[Verdict, ...]]) -> tuple[Verdict, ...]:
    """The verdict on each claim when the worst of several seeds counts.

    **Arguments:** `verdicts`: seed → those on it alone, of the same claims in the same order. A seed without a number leaves a
    claim undefined.
    """
    pooled = []
    for of_claim in zip(*verdicts.values(), strict=True):
        one = of_claim[0]
        values = {seed: verdict.measured for seed, verdict in zip(verdicts, of_claim, strict=True)}
        worst = float((np.min if one.comparison == ">=" else np.max)(list(values.values())))
        at = next((verdict for verdict in of_claim if verdict.measured == worst), one)
        scope = f"{at.scope}; worst of {len(values)} seeds"
        pooled.append(replace(at, measured=worst, scope=scope, over_seeds=OverSeeds("worst", values)))
    return tuple(pooled)


def _boundary(evidence: Evidence, found: Measured, convergence: Convergence | None) -> Boundary:
    attributes, dataset = evidence.training.attributes, evidence.dataset
    rates = (attributes.get("learning_rate"),) if convergence is None else convergence.learning_rates
    law = "the exact law" if dataset.exact else "a sample"
    return Boundary(
        times=found.times,
        learning_rates=tuple(rates),
        seeds=evidence.seeds,
        batch=attributes.get("batch"),
        optimizer=attributes.get("optimizer"),
        dtype=attributes.get("dtype"),
        data=f"{dataset.name}, {dataset.n_samples} samples, {law}",
    )
