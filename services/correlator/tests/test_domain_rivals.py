"""What a verdict says of the runner-up."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.verdict import Evidence, FaultClass
from goodput_correlator.domain.finding import Finding, Symptom
from goodput_correlator.domain.rivals import WORDS_MAX, why_not

AT = datetime(2026, 3, 2, 8, tzinfo=UTC)


def finding(
    component: str, score: float, *ranks: int, excerpt: str = "", hardware: bool = True, history: str = ""
) -> Finding:
    seen = Evidence(event_id="e1", component=component, excerpt=excerpt, observed_at=AT, why="", weight=score)
    return Finding(
        fault_class=FaultClass.LINK_FLAP,
        component=component,
        score=score,
        evidence=(seen,) if excerpt else (),
        engine="test",
        ranks=ranks,
        explains=frozenset(Symptom("stall", f"rank:j/{rank}") for rank in ranks),
        hardware=hardware,
        history=history,
    )


BEST = finding("nic:h0/mlx5_0/1", 0.9, 0, 1, 2)


def test_a_rival_is_told_what_it_leaves_unexplained_and_what_it_rests_on() -> None:
    said = why_not(finding("nic:h1/mlx5_0/1", 0.6, 2, excerpt="Link down"), BEST)
    assert "leaves 2 of 3 symptoms unexplained, such as the stall of rank:j/0" in said
    assert "0.60 likely, that of nic:h0/mlx5_0/1 0.90" in said
    assert said.endswith("it rests on: Link down")


def test_a_rival_that_explains_as_much_is_told_that_its_ranks_are_accounted_for() -> None:
    assert "nic:h0/mlx5_0/1 accounts for the same ranks already" in why_not(finding("rank:j/1", 0.5, 0, 1, 2), BEST)


def test_equals_are_said_to_be_hard_to_tell_apart() -> None:
    assert "hardly tells them apart" in why_not(finding("nic:h1/mlx5_0/1", 0.9), finding("nic:h0/mlx5_0/1", 0.9))


def test_a_process_as_likely_as_broken_hardware_is_told_so() -> None:
    said = why_not(finding("rank:j/1", 0.9, hardware=False), finding("nic:h0/mlx5_0/1", 0.9))
    assert "nic:h0/mlx5_0/1 is hardware that broke" in said


def test_what_contradicts_a_rival_comes_first() -> None:
    said = why_not(finding("gpu:h0/0", 0.5, history="the job ran on over it for 50 steps"), BEST)
    assert said.startswith("the job ran on over it for 50 steps; ")


def test_where_nobody_is_named_a_rival_is_compared_with_no_one() -> None:
    said = why_not(finding("gpu:h0/0", 0.4), None)
    assert said == "by itself its evidence makes it 0.40 likely, which is too little beside the others"


@given(st.text(max_size=600), st.text(max_size=600), st.floats(0, 1))
def test_the_words_are_bounded_and_never_empty(excerpt: str, history: str, score: float) -> None:
    said = why_not(finding("gpu:h0/0", score, excerpt=excerpt, history=history), BEST)
    assert 0 < len(said) <= WORDS_MAX
