"""Budgets and the breaker, as arithmetic over what was done."""

from __future__ import annotations

from datetime import datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from goodput_common.contracts.verdict import ActionKind
from goodput_recovery.domain.budget import Grant, Refuse, Spent, Usage, Wait, answer, breaker_until, left
from goodput_recovery.domain.ladder import LADDER
from goodput_recovery.domain.policy import Budget
from goodput_recovery.testing import START

A = ActionKind


def spent(
    n: int, *, ago_s: float = 10.0, job: str | None = None, running: bool = False, kind: ActionKind = A.RESTART_RANK
) -> Spent:
    at = START - timedelta(seconds=ago_s)
    return Spent(plan=f"plan-{n}", job=job or f"job-{n}", kind=kind, host=f"h{n}", at=at, running=running)


def ask(
    usage: Usage, budget: Budget, kind: ActionKind = A.RESTART_RANK, job: str | None = "job-x", host: str | None = "hx"
) -> object:
    return answer(kind, job, host, usage, budget, START)


def test_an_unused_budget_grants() -> None:
    assert isinstance(ask(Usage(), Budget()), Grant)


def test_one_action_at_a_time_on_a_job() -> None:
    usage = Usage(spent=(spent(1, job="job-x", running=True),))
    assert ask(usage, Budget()) == Wait("plan plan-1 is under way on this job")
    assert isinstance(ask(usage, Budget(), job="job-y"), Grant)


def test_the_fabric_has_a_limit_of_actions_under_way() -> None:
    usage = Usage(spent=tuple(spent(n, running=True) for n in range(3)))
    assert isinstance(ask(usage, Budget(fabric_concurrent_max=3)), Wait)
    assert isinstance(ask(usage, Budget(fabric_concurrent_max=4)), Grant)


def test_a_used_up_rate_refuses_or_waits_by_when_room_comes() -> None:
    usage = Usage(spent=(spent(1, ago_s=3590), spent(2, ago_s=20)))
    budget = Budget(fabric_actions_max=2, wait_s_max=60)
    waiting = ask(usage, budget)
    assert isinstance(waiting, Wait)
    assert waiting.until == START + timedelta(seconds=10)
    refused = ask(Usage(spent=(spent(1), spent(2))), budget)
    assert isinstance(refused, Refuse)
    assert "2 actions within 3600 s" in refused.reason


def test_the_rate_of_one_job_does_not_bind_another() -> None:
    usage = Usage(spent=tuple(spent(n, job="job-x") for n in range(2)))
    assert isinstance(ask(usage, Budget(job_actions_max=2)), Refuse)
    assert isinstance(ask(usage, Budget(job_actions_max=2), job="job-y"), Grant)


def test_a_share_of_the_nodes_may_leave_and_one_always() -> None:
    one_out = (spent(1, kind=A.SWAP_NODE),)
    assert isinstance(ask(Usage(hosts_known=None), Budget(), A.SWAP_NODE), Grant)
    assert isinstance(ask(Usage(spent=one_out, hosts_known=10), Budget(), A.SWAP_NODE), Refuse)
    assert isinstance(ask(Usage(spent=one_out, hosts_known=20), Budget(), A.SWAP_NODE), Grant)
    assert isinstance(ask(Usage(spent=one_out, hosts_known=10), Budget(), A.SWAP_NODE, host="h1"), Grant)
    assert isinstance(ask(Usage(spent=one_out, hosts_known=10), Budget(), A.RESTART_RANK), Grant)


def test_the_breaker_opens_on_a_storm_and_closes_by_itself() -> None:
    budget = Budget(breaker_incidents=5, breaker_window_s=60, breaker_quiet_s=100)
    storm = [START - timedelta(seconds=60 - n) for n in range(6)]
    usage = Usage(incidents_opened=tuple(storm))
    waiting = answer(A.RESTART_RANK, None, None, usage, budget, START)
    assert isinstance(waiting, Wait)
    assert "breaker open" in waiting.reason
    closes = storm[-1] + timedelta(seconds=100)
    assert waiting.until == closes
    assert isinstance(answer(A.RESTART_RANK, None, None, usage, budget, closes), Grant)


def test_as_many_incidents_in_a_longer_time_do_not_open_it() -> None:
    budget = Budget(breaker_incidents=5, breaker_window_s=60)
    slow = [START - timedelta(seconds=15 * n) for n in range(20)]
    assert breaker_until(slow, budget, START) is None


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 30.0),  # seconds until the next request
            st.sampled_from(["job-a", "job-b", "job-c"]),
            st.sampled_from(["h0", "h1", "h2", "h3"]),
            st.sampled_from([A.RESTART_RANK, A.SWAP_NODE]),
            st.floats(0.0, 40.0),  # how long it runs
        ),
        max_size=60,
    )
)
def test_no_sequence_of_requests_overdraws_a_budget(requests: list[tuple[float, str, str, ActionKind, float]]) -> None:
    budget = Budget(
        fabric_actions_max=5,
        fabric_window_s=100,
        fabric_concurrent_max=2,
        job_actions_max=3,
        job_window_s=100,
        nodes_out_share_max=0.5,
        nodes_out_window_s=200,
        breaker_incidents=10_000,
    )
    now, done = START, list[tuple[Spent, datetime]]()
    for gap_s, job, host, kind, runs_s in requests:
        now += timedelta(seconds=gap_s)
        log = tuple(
            Spent(plan=each.plan, job=each.job, kind=each.kind, host=each.host, at=each.at, running=ends > now)
            for each, ends in done
        )
        usage = Usage(spent=log, hosts_known=4)
        if not isinstance(answer(kind, job, host, usage, budget, now), Grant):
            continue
        done.append(
            (
                Spent(plan=f"p{len(done)}", job=job, kind=kind, host=host, at=now, running=True),
                now + timedelta(seconds=runs_s),
            )
        )
        recent = [each for each, _ in done if each.at > now - timedelta(seconds=100)]
        running = [each for each, ends in done if ends > now or each is done[-1][0]]
        out = {each.host for each, _ in done if LADDER[each.kind].nodes_out and each.at > now - timedelta(seconds=200)}
        assert len(recent) <= 5
        assert len(running) <= 2
        assert len({each.job for each in running}) == len(running)
        assert sum(each.job == job for each in recent) <= 3
        assert len(out) <= 2
    remaining = left(Usage(spent=tuple(each for each, _ in done), hosts_known=4), budget, now, "job-a")
    assert min(remaining.fabric_actions, remaining.fabric_concurrent, remaining.nodes_out) >= 0
