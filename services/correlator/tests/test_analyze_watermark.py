"""The watermark: how far everything that the broker has is also here."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_correlator.application.watermark import GRACE_S, BrokerClock, StreamBound, smallest

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def test_nothing_is_known_before_the_first_message_or_calm() -> None:
    assert StreamBound().bound is None
    assert smallest([StreamBound(), StreamBound()]) is None


def test_the_oldest_message_in_hand_bounds_the_stream_and_the_newest_handled_one_otherwise() -> None:
    bound = StreamBound()
    for sequence in (1, 2, 3):
        bound.began(sequence, at(sequence))
    bound.done(2)
    bound.done(1)
    assert bound.bound == at(3)
    bound.done(3)
    assert bound.bound == at(3)


def test_a_message_given_back_holds_the_bound_until_it_is_handled_after_all() -> None:
    bound = StreamBound()
    bound.began(1, at(1))
    bound.began(2, at(2))
    bound.done(2)
    bound.calm(at(9))
    assert bound.bound == at(1)
    bound.began(1, at(1))
    bound.done(1)
    assert bound.bound == at(9 - GRACE_S)


def test_how_late_a_message_came_after_a_calm_moment_is_measured_and_one_given_back_is_not_late() -> None:
    bound = StreamBound()
    bound.began(1, at(1))
    bound.calm(at(5))
    bound.began(1, at(1))
    assert bound.late_s_max == 0.0
    bound.began(2, at(4.9))
    bound.began(3, at(6))
    assert abs(bound.late_s_max - 0.1) < 1e-6


def test_a_quiet_stream_moves_on_by_calm_only_and_the_slowest_stream_decides() -> None:
    quiet, busy = StreamBound(), StreamBound()
    busy.began(7, at(20))
    busy.done(7)
    assert smallest([quiet, busy]) is None
    quiet.calm(at(10))
    assert smallest([quiet, busy]) == at(10 - GRACE_S)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), min_size=1, max_size=30))
def test_no_message_in_hand_is_ever_below_the_bound(arrivals: list[tuple[float, bool]]) -> None:
    bound, open_ = StreamBound(), {}
    for sequence, (seconds, finished) in enumerate(sorted(arrivals)):
        bound.began(sequence, at(seconds))
        open_[sequence] = at(seconds)
        if finished:
            bound.done(sequence)
            del open_[sequence]
        assert bound.bound is not None
        assert all(received_at >= bound.bound for received_at in open_.values())


def test_the_brokers_clock_is_read_off_the_fastest_delivery() -> None:
    clock = BrokerClock()
    assert clock.at(at(5)) == at(5)
    for n, transit_s in enumerate((0.4, 0.002, 0.3)):  # the broker is 2 s behind us
        clock.seen(at(n), at(n + 2 + transit_s))
    assert abs(clock.skew_s() - 2.002) < 1e-6


def test_a_broker_ahead_of_us_gives_a_negative_difference() -> None:
    clock = BrokerClock()
    clock.seen(at(2), at(0.1))
    assert clock.at(at(1)) == at(2.9)


def test_a_backlog_is_no_clock_difference_and_an_old_sample_is_forgotten() -> None:
    clock = BrokerClock()
    clock.seen(at(0), at(3600))
    assert clock.skew_s() == 0.0
    clock.seen(at(0), at(0.1))
    clock.seen(at(98), at(100))
    assert clock.skew_s() == 2.0


def test_a_stream_made_anew_counts_from_one_again_and_the_bound_goes_on() -> None:
    bound = StreamBound()
    bound.began(90_000, at(10))
    bound.done(90_000)
    bound.began(1, at(20))
    bound.done(1)
    assert bound.bound == at(20)
