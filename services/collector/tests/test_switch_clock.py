"""A switch's clock is believed within what everybody allows for, and moved beyond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.switch_clock import WINDOW_S, SwitchClock

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ns(at: datetime) -> int:
    return int(at.timestamp() * 1e9)


def s(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def test_a_clock_that_is_nearly_right_is_taken_at_its_word() -> None:
    clock = SwitchClock()
    clock.observe(ns(NOW - s(1.0)), NOW)
    assert clock.ours(ns(NOW - s(1.0)), NOW) == NOW - s(1.0)


def test_a_clock_that_is_hours_behind_is_moved_by_the_difference() -> None:
    clock = SwitchClock()
    behind = s(3 * 3600)
    for delay_s in (0.4, 0.1, 2.0):
        clock.observe(ns(NOW - behind - s(delay_s)), NOW)
    assert clock.ours(ns(NOW - behind - s(2.0)), NOW) == NOW - s(1.9)
    assert clock.behind_s is not None and abs(clock.behind_s - 10800.1) < 0.001


def test_a_message_that_waited_says_nothing_of_the_clock() -> None:
    clock = SwitchClock()
    clock.observe(ns(NOW - s(0.2)), NOW)
    clock.observe(ns(NOW - s(600)), NOW)  # a change of ten minutes ago, told at the start
    assert clock.ours(ns(NOW - s(600)), NOW) == NOW - s(600)


def test_a_clock_ahead_tells_nothing_of_the_future() -> None:
    clock = SwitchClock()
    clock.observe(ns(NOW + s(1.0)), NOW)
    assert clock.ours(ns(NOW + s(1.0)), NOW) == NOW


def test_a_clock_that_is_set_right_is_followed() -> None:
    clock = SwitchClock()
    clock.observe(ns(NOW + s(500)), NOW)
    for window in (1, 2):
        later = NOW + s(window * WINDOW_S)
        clock.observe(ns(later), later)
    assert clock.behind_s == 0


def test_no_time_told_means_the_time_of_arrival() -> None:
    clock = SwitchClock()
    clock.observe(0, NOW)
    assert clock.behind_s is None
    assert clock.ours(0, NOW) == NOW
    assert clock.ours(ns(NOW - s(5)), NOW) == NOW


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.floats(0, 10_000)), max_size=20))
def test_no_time_breaks_it_and_none_lies_in_the_future(stamps: list[tuple[int, float]]) -> None:
    clock = SwitchClock()
    for at_ns, after_s in stamps:
        arrived = NOW + s(after_s)
        clock.observe(at_ns, arrived)
        assert clock.ours(at_ns, arrived) <= arrived
