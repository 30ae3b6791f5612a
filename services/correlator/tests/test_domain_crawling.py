"""A slow network ends a collective for some members before others: whoever is late is not out of step."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump, GroupProgress
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 25.0
SIZES = ((16385,), (8320,), (256,), (2,))


def small(rank: int, joined: int, finished: int) -> tuple[GroupProgress, ...]:
    pair = (rank // 2 * 2, rank // 2 * 2 + 1)
    return (GroupProgress(group=str(1 + rank // 2), ranks=pair, last_enqueued=joined, last_completed=finished),)


def dump(log: Any, rank: int, at_s: float, open_seq: int, *, key: str = "") -> None:
    """As gloo's recorder shows a rank inside number `open_seq` of the world, with the two before it."""
    entries = tuple(
        Collective(
            group="0",
            seq=seq,
            op="all_reduce",
            state=CollectiveState.SCHEDULED if seq == open_seq else CollectiveState.COMPLETED,
            input_sizes=(SIZES[seq % 4],),
        )
        for seq in range(open_seq - 2, open_seq + 1)
    )
    fact = FlightRecorderDump(
        fabric=log.fabric.name,
        job=log.job,
        rank=rank,
        host=log.host(rank),
        at=log.clock(log.host(rank), at_s),
        backend="gloo",
        reason="stall",
        groups=(
            GroupProgress(group="0", ranks=tuple(range(8)), last_enqueued=open_seq, last_completed=open_seq - 1),
            *small(rank, 18, 18),
        ),
        collectives=entries,
    )
    log.put(f"dump/{rank}/{at_s}{key}", log.host(rank), "flight_recorder", at_s, fact)


def running(script: Script) -> Any:
    log = script()
    log.register()
    log.beats(60)
    log.last_step = log.run(1, STALL_S)
    return log


def blamed(verdicts: list[Verdict]) -> set[tuple[str, str]]:
    return {(str(c.component), v.fault_class.value) for v in verdicts for c in v.culprits}


def stand_between(
    log: Any, from_s: float, to_s: float, joined: dict[int, int], extra: dict[int, tuple[GroupProgress, ...]]
) -> None:
    """Goes on with reports of ranks that stand still since `STALL_S`; a rank waits in the last it joined, unless `extra`
    shows it waiting in another group."""
    elsewhere = {rank for rank, groups in extra.items() if any(g.last_enqueued > g.last_completed for g in groups)}
    for second in range(int(from_s), int(to_s)):
        for rank in range(8):
            at_s = second + 0.5 + rank * 0.05
            done = joined[rank] if rank in elsewhere else joined[rank] - 1
            log.progress(
                rank,
                at_s,
                step=log.last_step,
                age_s=at_s - STALL_S,
                joined=joined[rank],
                finished=done,
                phase="gradients",
                inside="all_reduce",
                extra=extra.get(rank, small(rank, 18, 18)),
            )


def test_ranks_that_catch_up_after_their_dumps_are_not_out_of_step(script: Script) -> None:
    """As recorded with a third of one host's packets lost: a ring ended for five ranks, then for two more, last for one."""
    log = running(script)
    late = log.last_step * 4 + 1
    joined = {rank: late if rank in (0, 6, 7) else late + 1 for rank in range(8)}
    stand_between(log, 25, 28, joined, {})
    for rank in range(8):
        dump(log, rank, 27.0 + rank * 0.03, joined[rank])
    for rank in (6, 0):
        joined[rank] = late + 1
        at_s = 28 if rank == 6 else 29
        stand_between(log, at_s, at_s + 1, joined, {})
    stand_between(log, 30, 45, joined, {})
    assert blamed(log.verdicts(45)) == set()


def test_several_that_stay_behind_inside_what_others_have_finished_are_not_out_of_step(script: Script) -> None:
    log = running(script)
    late = log.last_step * 4 + 1
    joined = {rank: late if rank in (0, 6, 7) else late + 1 for rank in range(8)}
    stand_between(log, 25, 45, joined, {})
    assert blamed(log.verdicts(45)) == set()


def test_who_waits_for_a_neighbour_that_is_late_is_not_out_of_step(script: Script) -> None:
    """Rank 7 is still inside what the others have finished; rank 6 has, too, and waits for it in their own small group."""
    log = running(script)
    late = log.last_step * 4 + 2
    joined = {**dict.fromkeys(range(6), late + 1), 6: late, 7: late}
    stand_between(log, 25, 45, joined, {6: small(6, 19, 18)})
    assert blamed(log.verdicts(45)) == set()


@pytest.mark.parametrize("dumped", [False, True])
def test_a_rank_that_left_one_out_is_named_within_four_seconds(script: Script, dumped: bool) -> None:
    log = running(script)
    usual = log.last_step * 4 + 2
    joined = {**dict.fromkeys(range(8), usual), 5: usual - 1}
    stand_between(log, 25, 45, joined, {5: small(5, 19, 18)})
    if dumped:
        for rank in range(8):
            if rank != 5:
                dump(log, rank, 27.0 + rank * 0.03, usual)
    found = [v for v in log.verdicts(45) if v.fault_class is FaultClass.COLLECTIVE_DESYNC]
    assert found
    assert blamed(found) == {("rank:j/5", "collective_desync")}
    assert found[0].confidence >= 0.8
    assert (found[0].published_at - log.clock("h3", STALL_S)) <= timedelta(seconds=4)


def test_two_that_differ_each_in_its_own_way_are_named_with_doubt(script: Script) -> None:
    log = running(script)
    usual = log.last_step * 4 + 2
    joined = {**dict.fromkeys(range(8), usual), 5: usual - 1, 2: usual - 2}
    stand_between(log, 25, 45, joined, {5: small(5, 19, 18), 2: small(2, 19, 18)})
    assert all(v.confidence <= 0.6 for v in log.verdicts(45) if v.culprits)


def test_a_rank_whose_counts_still_change_is_named_with_doubt(script: Script) -> None:
    log = running(script)
    usual = log.last_step * 4 + 2
    for second in range(25, 45):
        joined = {**dict.fromkeys(range(8), usual), 5: usual - 40 + second}
        stand_between(log, second, second + 1, joined, {5: small(5, 19, 18)})
    assert all(v.confidence <= 0.7 for v in log.verdicts(41) if v.culprits)
