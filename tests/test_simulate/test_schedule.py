"""The time map and the save times: values, edge cases, messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulate.schedule import Schedule, as_schedule, step_of_time, time_of_step
from theory.errors import UserError


def test_one_step_advances_time_by_the_learning_rate():
    assert time_of_step(30, 0.05) == 1.5
    assert step_of_time(1.5, 0.05) == 30
    np.testing.assert_array_equal(time_of_step(np.array([0, 1, 4]), 0.5), [0.0, 0.5, 2.0])


def test_momentum_stretches_time_by_one_over_one_minus_mu():
    assert time_of_step(10, 0.1, momentum=0.9) == pytest.approx(10.0, rel=1e-14)
    assert step_of_time(10.0, 0.1, momentum=0.9) == 10


@given(st.integers(0, 10**7), st.floats(1e-4, 10), st.floats(0, 0.99))
def test_step_of_time_inverts_time_of_step(step, learning_rate, momentum):
    time = time_of_step(step, learning_rate, momentum=momentum)
    assert step_of_time(time, learning_rate, momentum=momentum) == step


@pytest.mark.parametrize("until", [0.1 * 3, 1.0, 440.0, 1e-3])
@pytest.mark.parametrize("spacing", ["linear", "log"])
def test_schedules_start_at_zero_and_end_exactly(spacing, until):
    schedule = Schedule.of(spacing, until, count=37)
    assert len(schedule) == 37
    assert schedule.times[0] == 0.0
    assert schedule.times[-1] == until == schedule.until
    assert (np.diff(schedule.times) > 0).all()


def test_spacings_are_what_they_say():
    np.testing.assert_allclose(np.diff(Schedule.linear(2.0, count=5).times), 0.5, rtol=1e-14)
    log = Schedule.log(100.0, count=4, first=1.0).times
    np.testing.assert_allclose(log, [0, 1, 10, 100], rtol=1e-14)


def test_steps_are_unique_whole_and_keep_zero():
    schedule = Schedule([0.02, 0.3, 0.31, 1.0])
    steps = schedule.steps(0.1)
    assert steps.tolist() == [0, 3, 10]
    np.testing.assert_allclose(schedule.snapped(0.1).times, [0, 0.3, 1.0], rtol=1e-14)
    assert Schedule([0.3, 1.0]).steps(0.1).tolist() == [0, 3, 10]


def test_tenfold_smaller_rate_keeps_the_times():
    schedule = Schedule.linear(10.0, count=11)
    fine, coarse = schedule.snapped(0.05), schedule.snapped(0.5)
    np.testing.assert_allclose(fine.times, coarse.times, rtol=1e-13)


@pytest.mark.parametrize(
    ("times", "words"),
    [
        ([], "non-empty"),
        ([[0.0, 1.0]], "non-empty"),
        ([0.0, 0.0, 1.0], "strictly increasing, but 0 follows 0"),
        ([0.0, 2.0, 1.0], "strictly increasing, but 1 follows 2"),
        ([-1.0, 2.0], "start at -1"),
        ([0.0, np.nan], "finite"),
        ([0.0, np.inf], "finite"),
        (["a"], "list of numbers"),
    ],
)
def test_bad_times_are_named(times, words):
    with pytest.raises(UserError, match=words):
        Schedule(times)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Schedule.of("lin", 1.0), "did you mean 'linear'"),
        (lambda: Schedule.linear(0.0), "positive"),
        (lambda: Schedule.linear(1.0, count=1), "at least 2"),
        (lambda: Schedule.log(1.0, first=2.0), "between 0 and the end"),
        (lambda: time_of_step(1, 0.0), "learning_rate"),
        (lambda: time_of_step(1, 0.1, momentum=1.0), "momentum"),
    ],
)
def test_bad_requests_are_named(call, words):
    with pytest.raises(UserError, match=words):
        call()


def test_times_cannot_be_changed_afterwards():
    with pytest.raises(ValueError):
        Schedule([0.0, 1.0]).times[0] = 3.0


def test_as_schedule_takes_lists_and_schedules():
    schedule = Schedule.linear(1.0, count=3)
    assert as_schedule(schedule) is schedule
    assert list(as_schedule(time for time in (0.0, 2.0))) == [0.0, 2.0]
