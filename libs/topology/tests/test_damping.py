"""Link-flap damping, held to the published vector and to what must hold for every history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_topology.damping import Damped, DampingPolicy, damped

START = datetime(2026, 3, 1, tzinfo=UTC)
POLICY = DampingPolicy(suppress=1600, reuse=1200, half_life_s=15, max_suppress_s=30, penalty=1000)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def penalties(state: Damped, *seconds: float) -> list[int]:
    return [round(state.as_of(at(each)).penalty) for each in seconds]


def test_the_published_vector() -> None:
    """Down at 3, 10 and 17 s; suppress 1600, reuse 1200, half-life 15 s."""
    assert POLICY.ceiling == 4800
    once = Damped(POLICY).lost(at(3))
    assert (once.penalty, once.held) == (1000, False)
    assert penalties(once, 7, 10) == [831, 724]
    twice = once.lost(at(10))
    assert round(twice.penalty, -1) == 1720
    assert twice.held
    assert penalties(twice, 14) == [1433]
    assert twice.as_of(at(14)).held
    thrice = twice.lost(at(17))
    assert round(thrice.penalty) == 2247
    assert penalties(thrice, 20) == [1956]
    assert thrice.as_of(at(30)).held
    assert not thrice.as_of(at(31)).held
    assert thrice.released_at is not None
    assert abs((thrice.released_at - at(30.6)).total_seconds()) < 0.1


def test_a_link_that_was_never_lost_is_not_held() -> None:
    never = Damped()
    assert (never.held, never.penalty, never.released_at) == (False, 0.0, None)
    assert never.as_of(at(100)) == never


def test_losses_far_apart_never_hold_a_link() -> None:
    assert not damped([at(60.0 * n) for n in range(100)], POLICY).held


def test_between_reuse_and_suppress_it_stays_what_it_was() -> None:
    held = damped([at(0), at(1)], POLICY)
    later = held.as_of(at(7))
    assert POLICY.reuse < later.penalty < POLICY.suppress
    assert later.held
    never = damped([at(0), at(11.5)], POLICY)
    assert POLICY.reuse < never.penalty < POLICY.suppress
    assert not never.held


@given(gaps=st.lists(st.floats(0.0, 120.0), min_size=1, max_size=60))
def test_no_history_holds_a_link_longer_than_the_policy_says(gaps: list[float]) -> None:
    now, losses = 0.0, []
    for gap in gaps:
        now += gap
        losses.append(at(now))
    state = damped(losses, POLICY)
    assert 0 < state.penalty <= POLICY.ceiling + 1e-6
    if state.held:
        assert state.released_at is not None
        assert losses[-1] <= state.released_at <= losses[-1] + timedelta(seconds=POLICY.max_suppress_s, milliseconds=1)
        assert not state.as_of(state.released_at + timedelta(milliseconds=1)).held
        assert state.as_of(state.released_at - timedelta(milliseconds=1)).held or state.released_at == state.at
    assert state.as_of(losses[-1] + timedelta(seconds=POLICY.max_suppress_s + 0.001)).held is False


@given(gap=st.floats(0.0, 100.0), split=st.floats(0.0, 1.0))
def test_looking_in_between_changes_nothing(gap: float, split: float) -> None:
    state = damped([at(0), at(1), at(2)], POLICY)
    whole = state.as_of(at(2 + gap))
    parts = state.as_of(at(2 + gap * split)).as_of(at(2 + gap))
    assert parts.penalty == pytest.approx(whole.penalty, rel=1e-4)


def test_a_loss_dated_before_the_last_counts_as_of_the_last() -> None:
    assert damped([at(10), at(3)], POLICY) == damped([at(10), at(10)], POLICY)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"half_life_s": 0.0}, "positive"),
        ({"penalty": -1.0}, "positive"),
        ({"reuse": 2000.0}, "not above suppress"),
        ({"max_suppress_s": 1.0}, "no link would ever be held"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DampingPolicy(**wrong)
