"""Claims on constructed evidence: every measure, its number, its verdict and the boundary of what was shown."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from constructed import build

from compare import measures
from compare.claims import check_claims, evaluate_claims, worst_of
from compare.comparison import compare
from compare.measures import MEASURES, BandCoverage, Evidence
from compare.outcomes import order_zero_accuracy
from compare.report.page import _boundary
from compare.similarity import signature_correlation, signature_similarity
from compare.tokens import TokenAgreement, by_frequency
from theory import architectures
from theory.data import arithmetic
from theory.errors import UserError
from theory.signatures import label_probability, label_signature, token_probability, trace_back

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
        # Cosines 0.5, −0.5, −1 at the distances 1, 2, 3: of 6, 6, 3 pairs in a circle, of 3, 2, 1 on a line.
        ("cyclic-similarity", {"tokens": tuple("123456")}, 6.6 / math.sqrt(5.4 * 8.4)),
        ("ordered-similarity", {"tokens": tuple("1234")}, (8 / 3) / math.sqrt((2.25 - 1 / 24) * 10 / 3)),
        # The order is that of the claim: −0.5, −0.5, −1 at distance 1, ±0.5 at 2 and 0.5 at 3.
        ("ordered-similarity", {"tokens": tuple("1352")}, -0.8),
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
    assert len(MEASURES) == 54
    assert all(f"`{name}`" in (measures.__doc__ or "") for name in MEASURES)


SCALES = {4: 1.5, 7: 2.0, 9: 0.8}


def seeds_evidence():
    """Three seeds whose token 2 is longer by half, twice as long, and shorter; the flow is as in `states`."""
    loss = np.array([1.0, 0.99, 0.97, 0.3, 0.1])
    found = [states(scale)[0] for scale in SCALES.values()]
    axes = states()[1]
    arrays = {name: np.stack([one[name] for one in found]) for name in found[0]}
    # The third seed escapes later and is aligned at another time than the others.
    losses = np.stack([loss, loss, np.array([1.0, 0.99, 0.985, 0.97, 0.2])])
    arrays["E"][2] = found[0]["E"][[0, 3, 1, 2, 2]]
    training = build(TIMES, arrays, losses, axes=axes, seeds=list(SCALES))
    flow = build(TIMES, states()[0], loss, axes=axes, name="order-0", kind="flow")
    correlation = signature_correlation(training, signature_similarity(DATA), embedding="E")
    return replace(
        EVIDENCE,
        agreements={a.name: a for a in compare(training, flow, threshold=0.1).agreements},
        correlations={"training": correlation},
        flows={"order-0": flow},
        training=training,
        seeds={"initial": 7, "training": list(SCALES)},
    )


def test_over_seeds_the_worst_counts_for_flows_and_the_mean_for_states_and_every_seed_is_listed():
    found = seeds_evidence()
    claims = {
        "worst": claim("token-error", threshold=0.4, at=4.0),
        "least": claim("direction-cosine", threshold=0.9, comparison=">=", at=4.0),
        "mean": claim("participation-ratio", at=4.0),
        "curve": claim("signature-correlation-peak", comparison=">=", threshold=0.0),
        "departure": claim("departure-time"),
        "pooled": claim("band-coverage"),
        "data": claim("last-good-time"),
    }
    verdicts = {verdict.name: verdict for verdict in evaluate_claims(claims, found, parameter="E")}
    worst = verdicts["worst"].over_seeds
    assert worst.rule == "worst" and list(worst.values) == list(SCALES)
    assert worst.values[4] == pytest.approx(1 / 3) and worst.values[7] == pytest.approx(1 / 2)
    assert verdicts["worst"].measured == max(worst.values.values()) and verdicts["worst"].verdict == "fails"
    assert verdicts["worst"].seeds_met == sum(value <= 0.4 for value in worst.values.values()) >= 1
    least = verdicts["least"]
    assert least.over_seeds.rule == "worst" and least.measured == min(least.over_seeds.values.values())
    mean = verdicts["mean"]
    assert mean.over_seeds.rule == "mean" and "mean of 3 seeds" in mean.scope
    assert mean.measured == pytest.approx(np.mean(list(mean.over_seeds.values.values())))
    assert mean.over_seeds.values[4] == pytest.approx(7.25**2 / (4.25**2 + 9))
    curve, series = verdicts["curve"], found.correlations["training"].pearson
    assert curve.over_seeds.rule == "mean curve" and curve.measured == pytest.approx(series.mean(axis=0).max())
    assert list(curve.over_seeds.values.values()) == pytest.approx(series.max(axis=1))
    assert curve.measured < np.mean(list(curve.over_seeds.values.values()))
    assert verdicts["departure"].over_seeds.rule == "mean"
    assert verdicts["pooled"].over_seeds is None and verdicts["data"].over_seeds is None
    written = json.loads(json.dumps(verdicts["mean"].to_dict(), allow_nan=False))["over_seeds"]
    values = list(mean.over_seeds.values.values())
    assert written["values"] == {str(seed): value for seed, value in zip(SCALES, values, strict=True)}
    assert written["range"] == [min(values), max(values)] and written["confidence"] == 0.95
    # Student: 4.3027 for three seeds.
    half = 4.302653 * np.std(values, ddof=1) / math.sqrt(3)
    assert written["interval"] == pytest.approx([np.mean(values) - half, np.mean(values) + half], rel=1e-6)
    assert judged("token-error").over_seeds is None and judged("token-error").to_dict()["over_seeds"] is None


def test_of_seeds_measured_alone_the_worst_counts_in_the_sense_of_the_claim():
    def alone(value, comparison):
        return replace(judged("accuracy", comparison=comparison, threshold=0.5), measured=value)

    (at_least,) = worst_of({3: (alone(0.9, ">="),), 5: (alone(0.4, ">="),)})
    assert at_least.measured == 0.4 and at_least.verdict == "fails" and at_least.seeds_met == 1
    (at_most,) = worst_of({3: (alone(0.9, "<="),), 5: (alone(0.4, "<="),)})
    assert at_most.measured == 0.9 and at_most.over_seeds.values == {3: 0.9, 5: 0.4}
    (unknown,) = worst_of({3: (alone(math.nan, "<="),), 5: (alone(0.4, "<="),)})
    assert unknown.verdict == "undefined" and "worst of 2 seeds" in unknown.scope
    assert unknown.to_dict()["over_seeds"]["mean"] is None
    (single,) = worst_of({3: (alone(0.9, "<="),)})
    assert "interval" not in single.to_dict()["over_seeds"]


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
        ({"measure": "ordered-similarity", "tokens": ("1", "2")}, "at least 3 different tokens, found 1, 2"),
        ({"measure": "ordered-similarity", "tokens": ("1", "2", "3", "1")}, "different tokens, found 1, 2, 3, 1"),
        ({"measure": "cyclic-similarity", "tokens": ("1", "2", "3")}, "at least 4 different tokens"),
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


def test_the_unembedding_is_held_against_trace_back_signatures():
    axes = {"E": ("token", "embed"), "U": ("label", "embed")}
    noise, psi = np.random.default_rng(3).normal(size=(12, 6)), trace_back(DATA)
    U = np.stack([noise, noise, noise])
    U[1, psi.indices] = psi.array
    U[2, psi.indices] = psi.array - token_probability(DATA)
    phi = label_signature(DATA, 0).array - label_probability(DATA)
    E = np.stack([noise[:6].repeat(2, axis=1), noise[:6].repeat(2, axis=1), phi])
    U = np.pad(U, ((0, 0), (0, 0), (0, 6)))
    training = build([0, 1, 2], {"E": E, "U": U}, [1.0, 1.0, 1.0], axes=axes)
    found = replace(EVIDENCE, training=training, architecture=architectures.feed_forward("tanh"))

    def verdict(measure, **options):
        return evaluate_claims({"it": claim(measure, **options)}, found, parameter="E")[0].measured

    assert verdict("trace-back-correlation-peak") == pytest.approx(1.0)
    assert verdict("trace-back-correlation", at=1.0) == pytest.approx(1.0)
    assert verdict("trace-back-correlation", at=0.0) < 0.9
    assert verdict("centred-trace-back-correlation", at=2.0) == pytest.approx(1.0)
    assert verdict("centred-trace-back-correlation-peak", parameter="U") == pytest.approx(1.0)
    assert verdict("trace-back-correlation", at=2.0) < 0.999 > verdict("centred-trace-back-correlation", at=1.0)
    assert verdict("centred-signature-correlation") == pytest.approx(1.0)
    assert verdict("centred-signature-correlation-peak") == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("measure", "parameter", "message"),
    [
        ("trace-back-correlation", "E", "has no rows of labels"),
        ("centred-signature-correlation", "U", "no rows of tokens"),
    ],
)
def test_a_claim_on_the_wrong_side_is_refused(measure, parameter, message):
    with pytest.raises(UserError, match=message):
        MEASURES[measure].check(claim(measure, parameter=parameter), architectures.linear(), DATA)


def test_tokens_are_held_against_their_prediction_by_frequency():
    values = np.array([[0.1, 0.2, 0.3, 0.4, 0.5], [1.0, 2.0, 3.0, 4.0, 5.0]])
    unmoved = np.where(np.arange(5) == 1, np.nan, values)
    by_token = TokenAgreement("it", "E", "token", tuple("abcde"), np.array([0.0, 1.0]), values, values, unmoved)
    # From the most frequent on: e, b (before d, which is as frequent), d, a; c never occurs.
    found = by_frequency(by_token, np.array([0.1, 0.2, 0.0, 0.2, 0.5]), bands=2)
    assert found.tokens == (2, 2) and found.probability == pytest.approx((0.7, 0.3))
    np.testing.assert_allclose(found.relative_error, [[0.35, 0.25], [3.5, 2.5]])
    np.testing.assert_allclose(found.displacement_cosine, [[0.5, 0.25], [5.0, 2.5]])
    json.dumps(found.to_dict(), allow_nan=False)
    with pytest.raises(UserError, match="from 1 to 4, the number of tokens that occur, found 5"):
        by_frequency(by_token, np.array([0.1, 0.2, 0.0, 0.2, 0.5]), bands=5)
    with pytest.raises(UserError, match="of 5 tokens, found the shape"):
        by_frequency(by_token, np.full(4, 0.25))


@pytest.mark.parametrize(("factor", "place"), [(3.0, "frequent"), (0.2, "rare")])
def test_claims_about_frequent_and_rare_tokens(factor, place):
    # Token number 2 is off by 0.5, and in another flow moves the wrong way; the others are right, and a third is two tokens.
    weights = np.where((DATA.tokens == 2).any(axis=1), factor, 1.0)
    arrays, axes = states()
    arrays["E"][:, 2] = 2 * arrays["E"][0, 2] - arrays["E"][:, 2]
    astray = build(TIMES, arrays, np.ones(5), axes=axes, name="astray", kind="flow")
    given = replace(
        EVIDENCE,
        dataset=replace(DATA, weights=weights / weights.sum()),
        flows={**EVIDENCE.flows, "astray": astray},
        agreements={**EVIDENCE.agreements, "astray": compare(EVIDENCE.training, astray)["astray"]},
    )
    for one in ("frequent", "rare"):
        names = {f"{one}-token-error": "order-0", f"{one}-token-cosine": "astray"}
        found = evaluate_claims({name: claim(name, flow=flow) for name, flow in names.items()}, given, parameter="E")
        expected = [0.25, 0.0] if one == place else [0.0, 1.0]
        assert [verdict.measured for verdict in found] == pytest.approx(expected, abs=1e-12), one
