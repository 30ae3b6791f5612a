"""Whoever only looks guilty is not named with certainty, alone or next to the one who is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.job import GroupProgress
from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import ActionKind, Verdict

Script = Callable[..., Any]
SURE = 0.7


def named(verdicts: list[Verdict], above: float = SURE) -> set[str]:
    """Everybody who was called a culprit with this confidence, in any version."""
    return {str(c.component) for v in verdicts if v.confidence > above for c in v.culprits}


def test_an_agent_that_comes_back_late_from_an_outage_of_the_bus_is_not_a_culprit_next_to_the_frozen_rank(
    script: Script,
) -> None:
    log = script()
    log.register()
    for rank in range(8):
        log.state(f"h{rank // 2}", f"rank:j/{rank}", "process", "running", 10, "process", pid=str(1000 + rank))
    step = log.run(1, 25)
    log.event("rank:j/3", EventName.PROCESS_STOPPED, 25.1, host="h1", source="process", pid="1003")
    log.stand(30, 36, step=step, silent=(3, 5))  # nothing is heard of anybody from 25 to 30
    log.stand(36, 50, step=step, silent=(3,))
    assert named(log.verdicts(50)) == {"rank:j/3"}


def test_a_process_last_seen_running_before_the_stall_does_not_count_as_alive(script: Script) -> None:
    log = script()
    log.register()
    log.state("h2", "rank:j/4", "process", "running", 10, "process", pid="1004")
    step = log.run(1, 25)
    log.stand(25, 45, step=step, silent=(4,))
    assert all("still exists" not in e.why for v in log.verdicts(45) for e in v.evidence)
    log.state("h2", "rank:j/4", "process", "running", 27, "process", pid="1004")
    assert any("still exists" in e.why for v in log.verdicts(45) for e in v.evidence)


def test_a_link_and_a_rank_elsewhere_are_rivals_and_not_joint_culprits(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 25.0, host="h1", source="netlink", by="netlink")
    log.stand(25, 45, step=step, silent=(6,))
    found = log.verdicts(45)
    assert found
    assert all(len({c.kind for c in v.culprits}) <= 1 for v in found)
    assert named(found[1:]) == set()


def test_two_frozen_ranks_are_joint_culprits(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    for rank in (3, 6):
        log.event(
            f"rank:j/{rank}", EventName.PROCESS_STOPPED, 25.1, host=log.host(rank), source="process", pid=str(1000 + rank)
        )
    log.stand(25, 45, step=step, silent=(3, 6))
    assert named(log.verdicts(45)) == {"rank:j/3", "rank:j/6"}


def test_a_flap_long_over_that_is_told_during_a_stall_is_not_its_cause(script: Script) -> None:
    """The collector was cut off, or was started anew and read the kernel log again."""
    log = script()
    log.register()
    step = log.run(1, 100)
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 20.0, host="h1", late_s=81.0)
    log.event("nic:h1/rail0/1", EventName.LINK_UP, 21.0, host="h1", late_s=80.1)
    log.stand(100, 125, step=step)
    assert all(not v.culprits for v in log.verdicts(125))


def test_a_loss_that_is_read_again_from_the_kernel_log_is_one_loss(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    for late_s in (0.05, 3.0, 5.0):
        log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 25.0, host="h1", late_s=late_s)
        log.event("nic:h1/rail0/1", EventName.LINK_UP, 26.0, host="h1", late_s=late_s)
    log.stand(25, 45, step=step)
    found = log.verdicts(45)
    assert found[-1].culprit.component == "link:nic:h1/rail0/1--port:leaf0/h1"
    told = [e.event_id for v in found for e in v.evidence if "carrier of nic:h1/rail0/1 was lost" in e.why]
    assert len(set(told)) == 1
    assert found[-1].action.kind is ActionKind.REINIT_COMMUNICATORS


@pytest.mark.parametrize(
    "words",
    [
        "DistBackendError: NCCL communicator was aborted on rank 5.",
        "SystemExit: 1",
        "KeyboardInterrupt: ",
        "FrameworkError: lost the ring, giving up",
    ],
)
def test_what_a_peer_says_of_a_killed_rank_does_not_make_it_the_culprit(script: Script, words: str) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.event("rank:j/3", EventName.PROCESS_EXITED, 25.1, host="h1", source="process", pid="1003", clean="false")
    log.exited(5, 25.6, clean=False, reason=words)
    log.stand(25, 40, step=step, silent=(3, 5))
    assert named(log.verdicts(40)) <= {"rank:j/3"}


def test_a_program_error_is_named_although_the_launcher_kills_a_peer_in_the_same_second(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.exited(5, 25.1, clean=False, reason="ValueError: expected a batch of 4 samples, got 3")
    log.event("rank:j/4", EventName.PROCESS_EXITED, 25.4, host="h2", source="process", pid="1004", clean="false")
    log.stand(25, 40, step=step, silent=(4, 5))
    assert named(log.verdicts(40)) == {"rank:j/5"}


def test_a_rank_that_ends_itself_alone_is_named(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.exited(5, 25.1, clean=False, reason="SystemExit: 3")
    log.stand(25, 40, step=step, silent=(5,))
    assert named(log.verdicts(40)) == {"rank:j/5"}


@pytest.mark.parametrize("left_behind", [(2, 3, 7), (5,)])
def test_ranks_that_only_lack_the_end_of_the_last_collective_are_not_named_with_certainty(
    script: Script, left_behind: tuple[int, ...]
) -> None:
    """No carrier is lost; a path in the fabric loses packets, and some ranks do not get the end of an operation."""
    log = script()
    log.register()
    step = log.run(1, 25)
    done = {rank: step * 4 + 3 for rank in range(8) if rank not in left_behind}
    log.stand(25, 45, step=step, finished=done)
    found = log.verdicts(45)
    assert found
    assert named(found) == set()
    assert len(left_behind) == 1 or all(not v.culprits for v in found)


def test_a_link_that_went_down_under_them_is_named_although_some_finished_the_collective(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 25.0, host="h1", source="netlink", by="netlink")
    log.stand(25, 45, step=step, finished=dict.fromkeys((0, 1, 4, 5, 6), step * 4 + 3))
    assert named(log.verdicts(45)) == {"link:nic:h1/rail0/1--port:leaf0/h1"}


def test_a_rank_held_up_in_a_group_with_the_dead_one_is_not_taken_for_a_device_that_has_not_begun(script: Script) -> None:
    """Its counts of another group show an operation that its peers' devices have started and its own has not."""

    def counts(group: str, ranks: tuple[int, ...], joined: int, started: int) -> GroupProgress:
        return GroupProgress(group=group, ranks=ranks, last_enqueued=joined, last_started=started, last_completed=joined - 1)

    data = (0, 2, 4, 6)
    extra = {rank: (counts("data", data, 9, 8 if rank == 2 else 9),) for rank in data}
    extra[2] = (counts("pair", (2, 3), 5, 5), *extra[2])
    log = script()
    log.register()
    step = log.run(1, 25)
    log.event("rank:j/3", EventName.PROCESS_EXITED, 25.1, host="h1", source="process", pid="1003", clean="false")
    log.stand(25, 40, step=step, silent=(3,), joined=dict.fromkeys(range(8), step * 4 + 2), extra=extra)
    assert named(log.verdicts(40)) == {"rank:j/3"}


def busy(log: Any, rank: int, at_s: float, cpu_ms: int) -> None:
    log.state(
        log.host(rank), f"rank:j/{rank}", "process", "running", at_s, "process", pid=str(1000 + rank), cpu="used",
        cpu_ms=str(cpu_ms), window_ms="1000",
    )  # fmt: skip


def at_s(verdict: Verdict, log: Any) -> float:
    return float((verdict.published_at - log.log[0].received_at).total_seconds())


def test_agents_that_fall_silent_on_a_busy_host_are_not_blamed_with_the_rank_that_did_first(script: Script) -> None:
    """They still spoke when steps stood still already, and then starve."""
    log = script()
    log.register()
    step = log.run(1, 25)
    for rank in (2, 3, 4):
        busy(log, rank, 26.0, 300)
    log.stand(25, 28, step=step, silent=(3,))
    log.stand(28, 45, step=step, silent=(2, 3, 4))
    for verdict in (found := log.verdicts(45)):
        assert {c.component for c in verdict.culprits} <= {"rank:j/3"}
    assert named(found) == {"rank:j/3"}


def test_of_several_ranks_that_fall_silent_together_nobody_is_named_with_certainty_or_at_once(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    for rank in (3, 6):
        busy(log, rank, 26.0, 300)
    log.stand(25, 45, step=step, silent=(3, 6))
    found = log.verdicts(45)
    assert found
    assert named(found, above=0.65) == set()
    assert all(at_s(v, log) >= 30.0 for v in found if v.culprits)


def test_a_silent_rank_that_has_a_whole_cpu_is_likelier_than_one_that_starves(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    busy(log, 3, 26.0, 120)
    busy(log, 6, 26.0, 990)
    log.stand(25, 45, step=step, silent=(3, 6))
    found = log.verdicts(45)
    assert named(found, above=0.0) == {"rank:j/6"}
    assert named(found) == set()
    assert any("not short of it" in each.why for each in found[-1].evidence)


def test_starving_agents_that_come_back_leave_the_silent_rank_to_be_named_with_certainty(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.stand(25, 29, step=step, silent=(3, 6))
    log.stand(29, 45, step=step, silent=(3,))
    found = log.verdicts(45)
    assert named(found) == {"rank:j/3"}
    assert named(found, above=0.0) == {"rank:j/3"}
