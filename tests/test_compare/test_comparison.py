import itertools
import json
import math

import numpy as np
import pytest
from constructed import build

from compare.comparison import (
    compare,
    half_loss_time,
    jsonable,
    learning_rate_convergence,
    validity_window,
)
from theory.errors import UserError

TIMES = np.linspace(0.0, 4.0, 5)


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    return {"E": rng.normal(size=(5, 3, 4)), "U": rng.normal(size=(5, 5, 4))}


AXES = {"E": ("token", "embed"), "U": ("label", "embed")}
LOSS = np.array([4.0, 3.0, 2.5, 1.0, 0.5])


def trained(parameters, **options):
    return build(TIMES, parameters, options.pop("loss", LOSS), axes=AXES, **options)


def predicted(parameters, loss=LOSS, **options):
    options = {"axes": AXES, "name": "exact", "kind": "flow"} | options
    return build(options.pop("times", TIMES), parameters, loss, **options)


def test_a_known_error_is_measured():
    theta = arrays()
    delta = np.array([0.0, 0.01, 0.02, 0.2, 0.03])
    scaled = {name: array * (1 + delta)[:, None, None] for name, array in theta.items()}
    agreement = compare(trained(theta), predicted(scaled), threshold=0.05)["exact"]
    for name in ("E", "U"):
        np.testing.assert_allclose(agreement.relative_error[name], delta, atol=1e-15)
        np.testing.assert_allclose(agreement.direction_cosine[name], 1.0)
        # Up to and not beyond the time the threshold is first exceeded, though it is met again later.
        assert agreement.validity_window[name] == 2.0
    assert agreement.worst_error("E") == pytest.approx(0.2)
    assert agreement.worst_error("E", until=2.5) == pytest.approx(0.02)


def test_the_error_is_relative_to_the_trained_norm():
    theta = {"E": np.full((5, 3, 4), 2.0)}
    off = {"E": np.full((5, 3, 4), 3.0)}
    axes = {"E": AXES["E"]}
    agreement = compare(build(TIMES, theta, LOSS, axes=axes), predicted(off, axes=axes))["exact"]
    np.testing.assert_allclose(agreement.relative_error["E"], 0.5)


def test_displacement_cosine_ignores_the_start():
    start = np.random.default_rng(5).normal(size=(3, 4)) * 100
    moved = np.random.default_rng(6).normal(size=(3, 4))
    aside = np.random.default_rng(7).normal(size=(3, 4))
    aside -= moved * np.sum(aside * moved) / np.sum(moved * moved)
    ramp = np.arange(5.0)[:, None, None]
    axes = {"E": AXES["E"]}
    reference = build(TIMES, {"E": start + ramp * moved}, LOSS, axes=axes)
    other = predicted({"E": start + ramp * (moved + aside)}, axes=axes)
    agreement = compare(reference, other)["exact"]
    size = np.linalg.norm(moved)
    expected = size / math.hypot(size, np.linalg.norm(aside))
    assert math.isnan(agreement.displacement_cosine["E"][0])
    np.testing.assert_allclose(agreement.displacement_cosine["E"][1:], expected)
    assert agreement.direction_cosine["E"][1] > 0.999


def test_the_null_is_the_mean_over_all_matchings_of_rows():
    theta, guess = arrays(1), arrays(2)
    agreement = compare(trained(theta), predicted(guess))["exact"]
    a, b = theta["E"][3] - theta["E"][0], guess["E"][3] - guess["E"][0]
    cosines = [
        np.sum(a * b[list(order)]) / (np.linalg.norm(a) * np.linalg.norm(b))
        for order in itertools.permutations(range(3))
    ]
    assert agreement.displacement_null["E"][3] == pytest.approx(np.mean(cosines))
    assert agreement.displacement_null_std["E"][3] == pytest.approx(np.std(cosines))


def test_matching_is_by_name_and_axis_not_by_position():
    theta, guess = arrays(1), arrays(2)
    plain = compare(trained(theta), predicted(guess))["exact"]
    swapped = predicted(
        {"U": np.swapaxes(guess["U"], 1, 2), "E": guess["E"]},
        axes={"U": ("embed", "label"), "E": AXES["E"]},
    )
    permuted = compare(trained(theta), swapped)["exact"]
    for name in ("E", "U"):
        np.testing.assert_allclose(permuted.relative_error[name], plain.relative_error[name])
        np.testing.assert_allclose(permuted.displacement_null["E"], plain.displacement_null["E"])


def test_rows_are_matched_by_their_coordinate():
    theta, guess = arrays(1), arrays(2)
    reference, prediction = trained(theta), predicted(guess)
    plain = compare(reference, prediction)["exact"]
    names = np.array(["a", "b", "c"])
    order = [2, 0, 1]
    object.__setattr__(reference, "data", reference.data.assign_coords(token=names))
    shuffled = prediction.data.assign_coords(token=names).isel(token=order)
    object.__setattr__(prediction, "data", shuffled)
    again = compare(reference, prediction)["exact"]
    np.testing.assert_allclose(again.relative_error["E"], plain.relative_error["E"])
    object.__setattr__(prediction, "data", shuffled.assign_coords(token=["a", "b", "x"]))
    with pytest.raises(UserError, match="names other rows"):
        compare(reference, prediction)


def test_only_shared_times_are_compared():
    theta = arrays()
    finer = np.array([0.0, 0.5, 1.0 + 1e-13, 3.0 - 1e-13])
    guess = {name: np.stack([array[0], array[0], array[1], array[3]]) for name, array in theta.items()}
    agreement = compare(trained(theta), predicted(guess, [4.0, 3.5, 3.1, 1.1], times=finer))["exact"]
    np.testing.assert_array_equal(agreement.times, [0.0, 1.0, 3.0])
    np.testing.assert_array_equal(agreement.relative_error["E"], 0.0)
    np.testing.assert_array_equal(agreement.reference_loss, [4.0, 3.0, 1.0])
    np.testing.assert_array_equal(agreement.predicted_loss, [4.0, 3.1, 1.1])


def test_parameters_stored_at_some_of_the_times():
    theta = arrays()
    some = {name: array[[0, 2, 4]] for name, array in theta.items()}
    agreement = compare(trained(theta), predicted(some, parameter_times=TIMES[[0, 2, 4]]))["exact"]
    np.testing.assert_array_equal(agreement.times, [0.0, 2.0, 4.0])
    np.testing.assert_array_equal(agreement.predicted_loss, LOSS[[0, 2, 4]])
    np.testing.assert_array_equal(agreement.relative_error["U"], 0.0)


def test_every_seed_has_its_own_error():
    theta = arrays()
    members = {name: np.stack([array, 1.25 * array]) for name, array in theta.items()}
    loss = np.stack([LOSS, LOSS[::1] * 1.0])
    reference = trained(members, seeds=(0, 1), loss=loss)
    agreement = compare(reference, predicted(theta), threshold=0.1)["exact"]
    np.testing.assert_allclose(agreement.relative_error["E"][0], 0.0)
    np.testing.assert_allclose(agreement.relative_error["E"][1], 0.2)
    assert math.isnan(agreement.validity_window["E"])
    assert agreement.half_loss_reference.shape == (2,)
    json.dumps(compare(reference, predicted(theta)).to_dict(), allow_nan=False)


def test_half_loss_times_and_their_shift():
    assert half_loss_time(TIMES, LOSS) == pytest.approx(2.0 + (2.5 - 2.0) / (2.5 - 1.0))
    assert math.isnan(half_loss_time(TIMES, LOSS[:2]))
    np.testing.assert_allclose(half_loss_time(TIMES, np.stack([LOSS, LOSS[0] - TIMES])), [7 / 3, 2.0])
    theta = arrays()
    late = predicted(theta, LOSS[0] - TIMES / 2)
    agreement = compare(trained(theta), late)["exact"]
    assert agreement.half_loss_predicted == pytest.approx(4.0)
    assert float(agreement.half_loss_shift) == pytest.approx(4.0 / (7 / 3) - 1)


def test_the_window_is_broken_by_nan():
    error = np.array([0.0, 0.01, np.nan, 0.01])
    assert validity_window(TIMES[:4], error, 0.05) == 1.0
    assert math.isnan(validity_window(TIMES[:4], error + 1, 0.05))
    assert validity_window(TIMES[:4], np.zeros(4), 0.05) == 3.0


def test_convergence_in_the_learning_rate():
    theta = arrays()
    direction = np.random.default_rng(3).normal(size=theta["E"].shape)
    runs = [
        trained({"E": theta["E"] + rate * direction, "U": theta["U"]}, learning_rate=rate)
        for rate in (1e-3, 4e-3, 2e-3)
    ]
    result = learning_rate_convergence(predicted(theta), runs, parameter="E", until=3.5)
    assert result.time == 3.0
    assert result.learning_rates == (4e-3, 2e-3, 1e-3)
    np.testing.assert_allclose(result.ratios, 2.0, rtol=5e-3)
    assert result.slope == pytest.approx(1.0, abs=5e-3)
    quartered = learning_rate_convergence(predicted(theta), runs[:2], parameter="E")
    np.testing.assert_allclose(quartered.ratios, 2.0, rtol=5e-3)
    with pytest.raises(UserError, match="two different learning rates"):
        learning_rate_convergence(predicted(theta), runs[:1], parameter="E")
    with pytest.raises(UserError, match="no parameter 'F'"):
        learning_rate_convergence(predicted(theta), runs, parameter="F")


def test_missing_parameters_axes_sizes_and_times_are_named():
    theta = arrays()
    reference = trained(theta)
    with pytest.raises(UserError, match="'exact' lacks parameter 'U'"):
        compare(reference, predicted({"E": theta["E"]}, axes={"E": AXES["E"]}))
    extra = {**theta, "b": np.ones((5, 4))}
    with pytest.raises(UserError, match="'sgd' lacks parameter 'b'"):
        compare(reference, predicted(extra, axes={**AXES, "b": ("embed",)}))
    with pytest.raises(UserError, match=r"'E' has axes \('token', 'embed'\).*\('token', 'width'\)"):
        other = {"E": ("token", "width"), "U": AXES["U"]}
        compare(reference, predicted(theta, axes=other))
    with pytest.raises(UserError, match="axis 'token' of parameter 'E' has size 3 .* 2"):
        compare(reference, predicted({"E": theta["E"][:, :2], "U": theta["U"]}))
    with pytest.raises(UserError, match="share no time after t = 0.*0.25"):
        compare(reference, predicted(theta, times=[0, 0.25, 0.5, 0.75, 1.25]))
    with pytest.raises(UserError, match="did you mean 'exact'"):
        compare(reference, predicted(theta))["exakt"]
    with pytest.raises(UserError, match="two predictions are named 'exact'"):
        compare(reference, predicted(theta), predicted(theta))
    with pytest.raises(UserError, match="threshold must be positive"):
        compare(reference, predicted(theta), threshold=0.0)
    with pytest.raises(UserError, match="at least one prediction"):
        compare(reference)


def test_a_flow_that_failed_at_once_is_compared_at_the_start_only():
    theta = arrays()
    first = {name: array[:1] for name, array in theta.items()}
    failed = predicted(first, LOSS[:1], times=[0.0], status="blow-up")
    agreement = compare(trained(theta), failed)["exact"]
    assert agreement.times.tolist() == [0.0]
    assert agreement.status == "blow-up"
    assert "blow-up" in compare(trained(theta), failed).table()


def test_table_and_json_say_the_same():
    theta = arrays()
    scaled = {name: 1.01 * array for name, array in theta.items()}
    comparison = compare(trained(theta), predicted(scaled), threshold=0.02)
    table = comparison.table()
    assert "exact" in table and "0.01" in table
    assert len(table.splitlines()) == 4
    assert "1.000000" in table and "-0.000000" not in table
    data = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert data["predictions"]["exact"]["validity"]["window"] == {"E": 4.0, "U": 4.0}
    assert data["predictions"]["exact"]["displacement_cosine"]["E"][0] is None
    assert jsonable(np.array([np.inf, -np.inf, np.nan, 1.0])) == ["inf", "-inf", None, 1.0]
