"""Escape, plateaus, departures, bands over seeds and errors by token, on curves and arrays whose numbers are known."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from constructed import build
from scipy import stats

from compare.bands import band
from compare.departures import departures, first_passage
from compare.escape import escape_shift, escape_time, plateaus
from compare.tokens import token_agreement
from theory.errors import UserError

# log loss = −(ln t)²/2 has the slope −ln t: |slope| ≤ b exactly on [e^−b, e^b].
TIMES = np.concatenate([[0.0], np.exp(np.linspace(-2.03, 2.11, 38))])


STAIRS = np.exp(np.linspace(0, 16, 641))


def stair(at):
    """A fall from 1 to 0.01 near t = e^at."""
    return 0.01 + 1 / (1 + (STAIRS / math.exp(at)) ** 2)


def hill(times, scale=1.0):
    with np.errstate(divide="ignore"):
        return np.where(times > 0, np.exp(-0.5 * np.log(times / scale) ** 2), 1.0)


@pytest.mark.parametrize("bound", [0.25, 0.5, 1.0])
def test_a_plateau_ends_where_the_slope_crosses_the_bound_between_save_times(bound):
    (found,) = plateaus(TIMES, hill(TIMES), bound=bound)
    assert (found.start, found.end) == (pytest.approx(math.exp(-bound)), pytest.approx(math.exp(bound)))
    assert found.loss == pytest.approx(math.exp(-0.5 * bound**2), rel=2e-3)
    assert not found.open_start and not found.open_end
    assert escape_time(TIMES, hill(TIMES), bound=bound) == pytest.approx(math.exp(bound))


def test_two_plateaus_and_an_open_end():
    # Flat, a fall, flat, another fall, flat to the end.
    found = plateaus(STAIRS, stair(3) * stair(10))
    assert len(found) == 3
    assert [p.open_start for p in found] == [True, False, False]
    assert [p.open_end for p in found] == [False, False, True]
    assert found[0].start == STAIRS[0] and found[2].end == STAIRS[-1]
    assert found[0].end < found[1].start < found[1].end < found[2].start


def test_a_constant_loss_is_one_plateau_without_escape_and_a_steep_one_is_none():
    (found,) = plateaus(TIMES, np.ones_like(TIMES))
    assert (found.start, found.end, found.open_start, found.open_end) == (TIMES[1], TIMES[-1], True, True)
    assert math.isnan(escape_time(TIMES, np.ones_like(TIMES)))
    assert plateaus(TIMES[1:], TIMES[1:] ** -1.0) == ()
    np.testing.assert_array_equal(escape_time(TIMES, np.stack([np.ones_like(TIMES)] * 2)), [math.nan] * 2)


def test_plateaus_refuse_what_has_no_logarithm():
    for loss, message in ((np.zeros(39), "positive and finite"), (np.full(39, np.nan), "positive and finite")):
        with pytest.raises(UserError, match=message):
            plateaus(TIMES, loss)
    with pytest.raises(UserError, match="two save times after t = 0"):
        plateaus(TIMES[:2], hill(TIMES[:2]))
    with pytest.raises(UserError, match="must be positive"):
        plateaus(TIMES, hill(TIMES), bound=0.0)
    with pytest.raises(UserError, match="one curve"):
        plateaus(TIMES, np.ones((2, 39)))


def test_a_prediction_that_is_late_by_five_percent_shifts_escape_by_five_percent():
    E = np.ones((39, 2, 1))
    late = build(TIMES, {"E": E}, hill(TIMES, 1.05), kind="flow", name="exact")
    trained = build(TIMES, {"E": np.stack([E, E])}, np.stack([hill(TIMES), hill(TIMES, 2.1)]), seeds=(3, 4))
    found = escape_shift(trained, late, bound=0.3)
    np.testing.assert_allclose(found.escape_shift, [0.05, -0.5], rtol=1e-9)
    np.testing.assert_allclose(found.end_shifts, [[0.05], [-0.5]], rtol=1e-9)
    content = found.to_dict()
    assert content["escape_time"]["predicted"] == pytest.approx(1.05 * math.exp(0.3))
    json.dumps(content, allow_nan=False)


def test_plateaus_that_cannot_be_paired_have_no_shift():
    E = np.ones((641, 2, 1))
    two = build(STAIRS, {"E": E}, stair(3) * stair(10))
    one = build(STAIRS, {"E": E}, stair(3), name="order-0")
    found = escape_shift(two, one)
    assert np.isnan(found.end_shifts).all() and found.end_shifts.shape == (1, 1)
    assert abs(found.escape_shift[0]) < 0.01


def agreement(name, times, error):
    return SimpleNamespace(name=name, times=np.asarray(times, float), relative_error={"E": np.asarray(error, float)})


def test_departures_by_order_are_where_the_error_passes_the_threshold():
    t = np.arange(5.0)
    flows = [
        agreement("exact", t, 9 * t),
        agreement("order-10", t, 0 * t),
        agreement("order-1", t, [[0, 0, 0.1, 0.5, 0.9], [0, 0, 0, 0, 0.8]]),
        agreement("order-0", t, 0.09 * t),
        agreement("order-0 of mine", t, t),
    ]
    found = departures(flows, 0.2, parameter="E")
    assert list(found.times) == [0, 1, 10]
    assert found.times[0] == pytest.approx(2 + 2 / 9)
    np.testing.assert_allclose(found.times[1], [2.25, 3.25])
    assert np.isnan(found.times[10]) and found.until[10] == 4.0
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["times"]["10"] is None and content["threshold"] == 0.2
    with pytest.raises(UserError, match="set flow.orders"):
        departures(flows[:1], 0.2, parameter="E")
    with pytest.raises(UserError, match="no error was computed for parameter 'U'"):
        departures(flows, 0.2, parameter="U")
    with pytest.raises(UserError, match="must be positive"):
        departures(flows, 0.0, parameter="E")


def test_a_passage_at_the_threshold_itself_is_none_and_a_number_lost_is_one():
    t = np.arange(3.0)
    assert np.isnan(first_passage(t, np.array([0, 0.2, 0.2]), 0.2))
    assert first_passage(t, np.array([0.3, 0.0, 0.0]), 0.2) == 0.0
    assert first_passage(t, np.array([0, math.nan, 0]), 0.2) == 1.0
    assert first_passage(t, np.array([0, 0, math.inf]), 0.2) == 2.0


def test_a_band_is_scipys_t_interval_and_numpys_quantiles():
    series = np.random.default_rng(0).normal(size=(6, 4))
    found = band(series, confidence=0.9)
    low, high = stats.t.interval(0.9, 5, loc=series.mean(0), scale=stats.sem(series))
    np.testing.assert_allclose((found.low, found.high), (low, high))
    np.testing.assert_allclose(found.mean, series.mean(0))
    expected = np.quantile(series, [0.05, 0.95], axis=0)
    np.testing.assert_allclose((found.quantile_low, found.quantile_high), expected)
    assert found.count.tolist() == [6] * 4
    # By hand: 0 and 2 have mean 1, s/√n = 1 and t_{0.975, 1} = 12.7062.
    assert band(np.array([0.0, 2.0])).high == pytest.approx(13.7062, abs=1e-4)


def test_nan_is_propagated_or_omitted_as_stated():
    nan = math.nan
    series = np.array([[1.0, 1.0, 1.0, nan], [3.0, nan, nan, nan], [5.0, 5.0, nan, nan]])
    strict, left = band(series), band(series, nan_policy="omit")
    assert strict.count.tolist() == [3, 0, 0, 0]
    np.testing.assert_array_equal(strict.mean, [3, nan, nan, nan])
    np.testing.assert_array_equal(np.isnan(strict.quantile_low), [False, True, True, True])
    assert left.count.tolist() == [3, 2, 1, 0]
    np.testing.assert_array_equal(left.mean, [3, 3, 1, nan])
    np.testing.assert_allclose(left.high[1], 3 + 2 * stats.t.ppf(0.975, 1))
    np.testing.assert_array_equal(np.isnan(left.low), [False, False, True, True])
    np.testing.assert_allclose(left.quantile_high, [4.9, 4.9, 1, nan])
    json.dumps(left.to_dict(), allow_nan=False)
    for bad, message in (
        ({"series": series[:1]}, "at least two seeds"),
        ({"series": series, "confidence": 95}, "between 0 and 1"),
        ({"series": series, "nan_policy": "drop"}, "unknown nan_policy"),
    ):
        with pytest.raises(UserError, match=message):
            band(**bad)


def test_errors_of_single_tokens():
    E = np.zeros((2, 3, 2))
    E[0] = [[1, 0], [0, 1], [2, 0]]
    E[1] = [[2, 0], [0, 1], [0, 2]]
    predicted = E.copy()
    predicted[1] = [[1, 1], [0, 1], [0, 3]]
    found = token_agreement(
        build([0, 4], {"E": E}, [1, 1]), build([0, 4], {"E": predicted}, [1, 1]), parameter_name="E"
    )
    np.testing.assert_allclose(found.relative_error[1], [math.sqrt(2) / 2, 0, 0.5])
    np.testing.assert_allclose(found.direction_cosine[1], [math.sqrt(0.5), 1, 1])
    # Displacements (1, 0), 0, (−2, 2) against (0, 1), 0, (−2, 3).
    np.testing.assert_allclose(found.displacement_cosine[1], [0, math.nan, 10 / math.sqrt(8 * 13)])
    assert np.isnan(found.displacement_cosine[0]).all()
    assert found.worst(1) == (pytest.approx(math.sqrt(0.5)), 0)
    json.dumps(found.to_dict(), allow_nan=False)


def test_tokens_are_matched_by_axis_with_seeds_and_on_shared_times():
    rng = np.random.default_rng(1)
    E = rng.normal(size=(2, 3, 4, 5))
    trained = build([0, 1, 2], {"E": E}, np.ones((2, 3)), seeds=(0, 1))
    predicted = rng.normal(size=(2, 5, 4))
    flow = build([0, 2], {"E": predicted}, [1, 1], axes={"E": ("embed", "token")})
    found = token_agreement(trained, flow, parameter_name="E")
    w, v = E[1, 2, 3], predicted[1, :, 3]
    assert found.relative_error.shape == (2, 2, 4)
    assert found.relative_error[1, 1, 3] == pytest.approx(np.linalg.norm(v - w) / np.linalg.norm(w))
    a, b = w - E[1, 0, 3], v - predicted[0, :, 3]
    assert found.displacement_cosine[1, 1, 3] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    with pytest.raises(UserError, match="no axis 'label'"):
        token_agreement(trained, flow, parameter_name="E", axis="label")
    with pytest.raises(UserError, match="has a seed axis"):
        token_agreement(flow, trained, parameter_name="E")
