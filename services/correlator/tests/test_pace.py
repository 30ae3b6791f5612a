"""A job is slow when its steps take clearly longer than is usual for it, and a rank is late by its own time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.job import RankProgress
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.pace import NEW_USUAL_WINDOWS, SLOW_FACTOR, WINDOW_S, JobPace, Own, own_ms

START = datetime(2026, 3, 2, tzinfo=UTC)


def report(step_ms: float, *, rank: int = 0, steps: int = 2, waiting_ms: float = -1.0, **phases: float) -> RankProgress:
    return RankProgress(
        fabric="f", job="j", rank=rank, host="h", seq=1, at=START, steps=steps, step_ms_mean=step_ms, waiting_ms=waiting_ms,
        phases_ms=phases,
    )  # fmt: skip


def go(pace: JobPace, seconds: int, step_ms: float, *, at_s: int = 0) -> int:
    """One report a second; returns when the next is due."""
    for second in range(at_s, at_s + seconds):
        steps = max(1, round(1000 / step_ms))
        pace.report(report(step_ms, steps=steps), START + timedelta(seconds=second), 8)
    return at_s + seconds


def test_steps_that_take_a_fifth_longer_for_twenty_seconds_make_a_job_slow() -> None:
    pace = JobPace()
    at_s = go(pace, 60, 400)
    assert pace.slow is None
    go(pace, 24, 480, at_s=at_s)
    assert pace.slow is not None
    assert abs(pace.slow.factor - 1.2) < 0.01
    assert abs((pace.slow.since - START).total_seconds() - at_s) <= WINDOW_S


def test_a_job_that_crawls_is_slow_after_one_window() -> None:
    pace = JobPace()
    at_s = go(pace, 60, 400)
    go(pace, 21, 800, at_s=at_s)
    assert pace.slow is not None


def test_one_long_step_such_as_a_checkpoint_makes_nothing_slow() -> None:
    pace = JobPace()
    at_s = go(pace, 60, 400)
    for _ in range(6):
        pace.report(report(9000, steps=1), START + timedelta(seconds=at_s + 9), 8)
        at_s = go(pace, 10, 400, at_s=at_s + 10)
    assert pace.slow is None


def test_a_job_that_is_fast_again_is_slow_no_more_and_one_that_stays_slow_has_a_new_usual() -> None:
    pace = JobPace()
    at_s = go(pace, 60, 400)
    at_s = go(pace, 40, 600, at_s=at_s)
    assert pace.slow is not None
    at_s = go(pace, 40, 400, at_s=at_s)
    assert pace.slow is None
    assert pace.fine_windows >= 2
    go(pace, int(WINDOW_S + 2) * (NEW_USUAL_WINDOWS + 4), 600, at_s=at_s)
    assert pace.slow is None


@given(st.lists(st.floats(380, 400 * SLOW_FACTOR - 5), min_size=30, max_size=300))
def test_noise_within_the_bound_never_makes_a_job_slow(steps_ms: list[float]) -> None:
    pace = JobPace()
    go(pace, 40, 400)
    for second, step_ms in enumerate(steps_ms):
        pace.report(report(max(step_ms, 400)), START + timedelta(seconds=40 + second), 8)
        assert pace.slow is None


def test_a_ranks_own_time_is_the_step_without_what_it_waited_for_others() -> None:
    assert own_ms(report(400, waiting_ms=150)) == 250
    assert own_ms(report(400, forward=100, backward=200)) == 300
    assert own_ms(report(400)) is None


def test_a_late_rank_shows_by_its_own_time_against_its_past() -> None:
    own = Own()
    for second in range(60):
        at = START + timedelta(seconds=second)
        slow = second >= 50
        fact = report(400 if not slow else 520, waiting_ms=150 if not slow else 20)
        own.report(Observed(f"m{second}", "h", "agent", at, at, fact), slow=slow, window=second // 10)
    pace = own.pace(0, START + timedelta(seconds=50))
    assert pace is not None
    assert (pace.own_ms, pace.step_ms) == (500, 520)
    assert pace.usual_own_ms is not None
    assert abs(pace.usual_own_ms - 250) < 1
    assert own.pace(0, START + timedelta(hours=1)) is None


def test_what_a_rank_did_in_windows_that_turn_out_to_be_slow_is_not_its_usual() -> None:
    own = Own()
    for second in range(70):
        at = START + timedelta(seconds=second)
        late = second >= 50  # the job is known to be slow twenty seconds later
        fact = report(400 if not late else 520, waiting_ms=150 if not late else 20, data=10 if not late else 200)
        own.report(Observed(f"m{second}", "h", "agent", at, at, fact), slow=False, window=second // 10)
    pace = own.pace(0, START + timedelta(seconds=60))
    assert pace is not None
    assert (pace.own_ms, pace.usual_own_ms) == (500, 250)
    assert pace.usual_phases_ms == {"data": 10}
