"""The learned threshold: what counts as a stall and what does not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from goodput_agent.stall import DEFAULT_POLICY, StallPolicy, StallRule


def fed(*durations_s: float, policy: StallPolicy = DEFAULT_POLICY) -> StallRule:
    rule = StallRule(policy)
    for each in durations_s:
        rule.finished(each)
    return rule


def test_no_threshold_before_the_first_few_steps() -> None:
    assert fed(*[0.1] * 4).threshold_s() is None
    assert fed(*[0.1] * 5).threshold_s() == 2.0


def test_threshold_follows_the_usual_step_above_the_floor() -> None:
    assert fed(*[3.0] * 10).threshold_s() == 15.0


def test_one_recovered_stall_costs_no_sensitivity() -> None:
    rule = fed(*[0.1] * 20, 60.0, *[0.1] * 5)
    assert rule.threshold_s() == 2.0
    assert rule.usual_s == 0.1


def test_a_long_step_seen_twice_is_a_habit() -> None:
    rule = fed(*[0.1] * 20, 30.0, *[0.1] * 100, 28.0, *[0.1] * 5)
    assert rule.threshold_s() == 1.5 * 28.0


def test_a_habit_is_forgotten_after_its_window() -> None:
    policy = StallPolicy(habit_window_steps=50)
    rule = fed(*[0.1] * 20, 30.0, 30.0, *[0.1] * 60, policy=policy)
    assert rule.threshold_s() == 2.0


def test_slow_warm_up_steps_do_not_dull_the_rule_for_long() -> None:
    assert fed(40.0, 0.1, 0.1, 0.1, 0.1, 0.1).threshold_s() == 2.0


@given(st.lists(st.floats(min_value=1e-4, max_value=500.0), max_size=300))
def test_threshold_is_never_below_the_floor_nor_below_factor_times_usual(durations_s: list[float]) -> None:
    rule = fed(*durations_s)
    threshold = rule.threshold_s()
    if threshold is not None:
        assert threshold >= rule.policy.floor_s
        assert threshold >= rule.policy.factor * rule.usual_s
