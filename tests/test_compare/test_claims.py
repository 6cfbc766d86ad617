"""Claims on constructed evidence: every measure, its number, its verdict and the boundary of what was shown."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from constructed import build

from compare import measures
from compare.claims import check_claims, evaluate_claims
from compare.comparison import compare
from compare.measures import MEASURES, BandCoverage, Evidence
from compare.outcomes import order_zero_accuracy
from compare.report.page import _boundary
from compare.similarity import signature_correlation, signature_similarity
from theory import architectures
from theory.data import arithmetic
from theory.errors import UserError

DATA = arithmetic.add(numbers=6, n_outputs=12)
MODEL = architectures.attention()
TIMES = [0.0, 1.0, 2.0, 4.0, 8.0]
SIZES = {"token": 6, "label": 12, "embed": 12, "key": 2, "value": 2, "position": 2}


def states(scale=1.0):
    """Embeddings that turn from random ones into pure cosines; later every other parameter is zero."""
    axes = {name: spec.axes for name, spec in MODEL.parameters.items()}
    arrays = {name: np.zeros((len(TIMES), *shape)) for name, shape in MODEL.shapes(SIZES).items()}
    angle = 2 * np.pi * np.arange(6) / 6
    cosines = np.pad(np.stack([np.cos(angle), np.sin(angle)], axis=1), ((0, 0), (0, 10)))
    random = np.random.default_rng(0).normal(size=(6, 12))
    for i in range(len(TIMES)):
        arrays["E"][i] = random if i == 0 else cosines if i >= 3 else random + i * cosines
    arrays["E"][:, 2] *= scale
    arrays["U"][0] = random[:, ::2].repeat(2, axis=0)[:, :1]
    return arrays, axes


def evidence():
    loss = np.array([1.0, 0.99, 0.97, 0.3, 0.1])
    arrays, axes = states()
    training = build(TIMES, arrays, loss, axes=axes)
    predicted, _ = states(1.5)
    flow = build(TIMES, predicted, loss, axes=axes, name="order-0", kind="flow")
    correlation = {
        name: signature_correlation(run, signature_similarity(DATA), embedding="E")
        for name, run in (("training", training), ("order-0", flow))
    }
    return Evidence(
        agreements={a.name: a for a in compare(training, flow, threshold=0.1).agreements},
        convergences={},
        correlations=correlation,
        flows={"order-0": flow},
        half_loss=math.nan,
        training=training,
        architecture=MODEL,
        dataset=DATA,
        departure=0.1,
        seeds={"initial": 7, "training": [3]},
        coverage=BandCoverage(0.94, 0.95, 32, 4, ("loss",)),
    )


EVIDENCE = evidence()
PEAK = int(EVIDENCE.correlations["training"].pearson.argmax())


def claim(measure, **options):
    defaults = {"flow": None, "parameter": None, "tokens": (), "frequency": None, "at": None, "remark": None}
    return SimpleNamespace(**(defaults | {"measure": measure, "comparison": "<=", "threshold": 1.0} | options))


def judged(measure, **options):
    (verdict,) = evaluate_claims({"it": claim(measure, **options)}, EVIDENCE, parameter="E")
    return verdict


@pytest.mark.parametrize(
    ("measure", "options", "expected"),
    [
        # Token 2 of the flow is longer by half: of six unit vectors one is off by 0.5.
        ("token-error", {}, 0.5),
        ("relative-error", {}, 0.5 / math.sqrt(6)),
        ("direction-cosine", {}, 6.5 / math.sqrt(6 * 7.25)),
        ("half-loss-shift", {}, 0.0),
        ("escape-shift", {}, 0.0),
        ("plateau-shift", {}, 0.0),
        ("departure-time", {}, 0.0),
        ("departure-shift", {}, 1.0),
        ("last-good-time", {}, 8.0),
        ("band-coverage", {}, 0.94),
        ("effective-rank", {}, 2.0),
        ("participation-ratio", {}, 2.0),
        # The longer row adds 1.25 to one of two squared singular values of 3.
        ("participation-ratio", {"flow": "order-0"}, 7.25**2 / (4.25**2 + 9)),
        ("fourier-peak", {}, 1.0),
        # U = 0 predicts 1/12 for each label; the law of a token is uniform on 6 of 12.
        ("label-law-kl", {}, math.log(2)),
        ("attention-entropy", {}, math.log(2)),
        ("attention-mass", {"tokens": ("1", "2")}, 1 / 3),
        ("signature-correlation-peak", {}, EVIDENCE.correlations["training"].peak[0]),
        ("signature-correlation", {"at": 1.5}, EVIDENCE.correlations["training"].pearson[1]),
        ("signature-correlation", {"at": 1.5, "flow": "order-0"}, EVIDENCE.correlations["order-0"].pearson[1]),
        # A time stated in a file is a saved one up to rounding.
        ("signature-correlation", {"at": 2.0 - 1e-12}, EVIDENCE.correlations["training"].pearson[2]),
        ("signature-rank-correlation", {"at": 2.0}, EVIDENCE.correlations["training"].spearman[2]),
        ("signature-correlation-drop", {}, np.ptp(EVIDENCE.correlations["training"].pearson[[PEAK, -1]])),
        ("signature-correlation-drop", {"at": TIMES[PEAK]}, 0.0),
        # Equal logits: the first label, the sum 2, is right in one of 36 cases.
        ("accuracy", {}, 1 / 36),
        # Unit vectors 60 degrees apart: they sum to zero, so that the 15 pairs sum to −6 / 2.
        ("mean-cosine", {}, -3 / 15),
        # Neighbours have the cosine 0.5; with the other four each has −0.5, −1, −0.5, 0.5.
        ("group-contrast", {"tokens": ("1", "2")}, 0.5 + 1.5 / 4),
        ("norm-growth", {"tokens": ("4",)}, 1 / np.linalg.norm(states()[0]["E"][0, 3])),
        ("fourier-winner", {"frequency": 3}, 3.0),
    ],
)
def test_measures_by_hand(measure, options, expected):
    verdict = judged(measure, **options)
    assert verdict.measured == pytest.approx(expected, abs=1e-9), verdict.scope
    json.dumps(verdict.to_dict(), allow_nan=False)


def test_the_other_measures_give_numbers_and_all_are_known():
    for measure in (
        "worst-relative-error",
        "displacement-cosine",
        "procrustes-residual",
        "order-1-gain",
        "order-1-probe",
        "order-1-probe-pairs",
        "accuracy-peak",
        "fourier-best",
    ):
        assert math.isfinite(judged(measure).measured), measure
    assert 0 < judged("procrustes-residual").measured < 0.1
    assert 0 < judged("label-law-jsd").measured < math.log(2)
    for measure in ("error-ratio", "error-slope", "label-law-pearson", "order-2-probe"):
        assert judged(measure).verdict == "undefined", measure
    assert "order" in judged("order-2-probe").scope
    assert "0 of 6 tokens" in judged("label-law-pearson").scope
    assert judged("accuracy-peak").measured >= judged("accuracy").measured
    of = [judged("fourier-correlation", frequency=k).measured for k in range(4)]
    winner = 1 + int(np.nanargmax(of[1:]))
    assert judged("fourier-best").measured == of[winner] and judged("fourier-winner").measured == winner
    assert len(MEASURES) == 42
    assert all(f"`{name}`" in (measures.__doc__ or "") for name in MEASURES)


def test_what_the_sum_of_order_zero_signatures_decides():
    assert order_zero_accuracy(arithmetic.min_max(numbers=7)) == 1.0
    # Modular addition has uniform signatures, which decide nothing; addition is decided at its ends.
    assert order_zero_accuracy(arithmetic.mod(numbers=7)) == pytest.approx(0.0, abs=1e-12)
    assert 0 < order_zero_accuracy(arithmetic.add(numbers=7)) < 0.5
    (verdict,) = evaluate_claims(
        {"it": claim("order-0-accuracy")}, replace(EVIDENCE, dataset=arithmetic.min_max(numbers=7)), parameter="E"
    )
    assert verdict.measured == 1.0 and "N = 2 … 7" in verdict.scope


def test_a_verdict_carries_what_it_was_shown_on():
    verdict = judged("token-error", at=2.5, threshold=0.6)
    assert verdict.verdict == "holds" and "at t = 2" in verdict.scope
    boundary = verdict.to_dict()["boundary"]
    assert boundary["times"] == [2.0, 2.0] and boundary["learning_rates"] == [0.1]
    assert boundary["seeds"] == {"initial": 7, "training": [3]}
    assert boundary["data"] == "add, 36 samples, the exact law"
    assert judged("worst-relative-error", at=2.5).boundary.times == (0.0, 2.0)
    text = _boundary(boundary | {"batch": "full", "optimizer": "sgd", "dtype": "float64"})
    assert text.startswith("t = 2; η = 0.1; initial seed 7; training seed 3; full batch; sgd; float64; add, 36")
    assert _boundary(None) == "–"
    assert "0 ≤ t ≤ 8; η = 0.1, 0.2; training seeds 1, 2; batches of 4" in _boundary(
        {
            "times": [0, 8],
            "learning_rates": [0.1, 0.2],
            "seeds": {"training": [1, 2]},
            "batch": 4,
            "optimizer": None,
            "dtype": None,
            "data": "add",
        }
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"measure": "departure-time", "flow": "exact"}, "up to a signature order"),
        ({"measure": "effective-rank", "parameter": "U"}, "no rows of tokens"),
        ({"measure": "order-2-probe"}, "no label signature of order 2"),
        ({"measure": "order-2-advantage"}, "no label signature of order 2"),
        ({"measure": "order-2-probe-pairs"}, "no label signature of order 2"),
        ({"measure": "attention-mass"}, "needs the key tokens"),
        ({"measure": "effective-rank", "tokens": ("1",)}, "takes no tokens, unlike .*attention-mass"),
        ({"measure": "effective-rank", "frequency": 1}, "takes no frequency, unlike fourier"),
        ({"measure": "fourier-correlation"}, "needs the key frequency"),
        ({"measure": "fourier-best", "frequency": 4}, "at most 3"),
        ({"measure": "order-0-accuracy"}, "no task over numbers with its usual outputs"),
        ({"measure": "attention-mass", "tokens": ("99",)}, "there is no token '99'"),
        ({"measure": "attention-entropy", "model": architectures.linear()}, "attends to nothing"),
        ({"measure": "label-law-kl", "model": architectures.emb_mlp()}, "reads something else"),
    ],
)
def test_claims_that_cannot_be_measured_are_refused_before_any_work(options, message):
    model = options.pop("model", MODEL) if "model" in options else MODEL
    experiment = SimpleNamespace(
        claims={"mine": claim(**options)}, architecture=lambda: model, dataset=lambda: DATA, noise=None
    )
    with pytest.raises(UserError, match=f"claim 'mine'.*{message}"):
        check_claims(experiment, rates=2)
