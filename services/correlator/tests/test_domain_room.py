"""Who gives way at a bound: the ended, then the longest silent; never who speaks, has an open incident or is under a job."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_common.contracts.telemetry import CollectorHeartbeat
from goodput_common.contracts.verdict import VerdictState
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.sources import Sources
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.incidents import Incidents
from goodput_correlator.domain.room import AGAIN_S, QUIET_S, Leave, Room
from goodput_topology.graph import Fabric

T0 = datetime(2026, 1, 1, tzinfo=UTC)
Script = Callable[..., Any]


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


held_jobs = st.dictionaries(st.text(min_size=1, max_size=3), st.tuples(st.booleans(), st.integers(0, 200)), max_size=12)


@given(held=held_jobs, staying=st.sets(st.text(min_size=1, max_size=3)), bound=st.integers(1, 12))
def test_the_ended_go_first_then_the_longest_silent_and_nobody_who_speaks(
    held: dict[str, tuple[bool, int]], staying: set[str], bound: int
) -> None:
    def leave(each: str) -> Leave | None:
        ended, heard_s = held[each]
        return None if each in staying else Leave(ended, at(heard_s))

    room: Room[str] = Room(bound)
    gone = room.leaving({name: name for name in held}, leave, at(200))
    may_go = sorted(
        ((not ended, heard_s), name)
        for name, (ended, heard_s) in held.items()
        if name not in staying and (ended or heard_s <= 200 - QUIET_S)
    )
    assert gone == ([name for _, name in may_go][:1] if len(held) >= bound else [])


def test_a_search_in_vain_is_not_repeated_at_once() -> None:
    asked = []

    def leave(each: str) -> Leave | None:
        asked.append(each)
        return Leave(False, at(0))

    room: Room[str] = Room(1)
    assert room.leaving({"a": "a"}, leave, at(10)) == []
    assert room.leaving({"a": "a"}, leave, at(10 + AGAIN_S / 2)) == []
    assert asked == ["a"]
    assert room.leaving({"a": "a"}, leave, at(100)) == ["a"]


# ----------------------------------------------------------------------------------------------------- the diagnosis


def register(job: str, seconds: float, generation: int = 0) -> Observed:
    host = f"host-of-{job}"
    fact = RankRegistered(fabric="f", job=job, rank=0, world_size=1, host=host, pid=1, at=at(seconds), generation=generation)
    return Observed(f"reg/{job}/{seconds}", host, "agent", at(seconds), at(seconds), fact)


def report(job: str, seconds: float, step: int = 1) -> Observed:
    fact = RankProgress(fabric="f", job=job, rank=0, host="h", seq=int(seconds), at=at(seconds), step=step)
    return Observed(f"progress/{job}/{seconds}", "h", "agent", at(seconds), at(seconds), fact)


def goodbye(job: str, seconds: float) -> Observed:
    fact = RankExited(fabric="f", job=job, rank=0, host="h", at=at(seconds), clean=True)
    return Observed(f"exit/{job}/{seconds}", "h", "agent", at(seconds), at(seconds), fact)


def beat(host: str, seconds: float) -> Observed:
    fact = CollectorHeartbeat(fabric="f", host=host, boot_id="b", seq=int(seconds), at=at(seconds), interval_s=5.0)
    return Observed(f"beat/{host}/{seconds}", host, "heartbeat", at(seconds), at(seconds), fact)


def test_a_new_job_puts_out_an_ended_one_and_is_left_out_where_all_speak() -> None:
    incidents = Incidents(Fabric.empty("f"), jobs_max=2)
    for each in (register("ended", 1), register("speaks", 1), goodbye("ended", 2), register("new", 3)):
        incidents.observe(each)
    incidents.tick(at(4))
    assert incidents.overflow == 0
    incidents.observe(report("ended", 5))
    incidents.tick(at(6))
    assert incidents.overflow == 1  # both others were heard within a minute


def test_a_job_with_an_open_incident_is_not_put_out(script: Script) -> None:
    log = script()
    log.register()
    step = log.run(1, 25)
    log.stand(25, 40, step=step, silent=(4,))
    incidents = Incidents(log.fabric, jobs_max=1)
    for each in log.log:
        incidents.observe(each)
    start = log.log[0].received_at
    (said,) = incidents.tick(start + timedelta(seconds=40))
    assert said.state is VerdictState.OPEN
    newcomer = register("new", 0)
    incidents.observe(replace(newcomer, received_at=start + timedelta(seconds=300)))
    incidents.tick(start + timedelta(seconds=301))
    assert (incidents.overflow, incidents.open) == (1, (said,))


def test_a_silent_host_gives_way_unless_a_job_runs_on_it() -> None:
    incidents = Incidents(Fabric.empty("f"), hosts_max=2)
    for each in (register("j", 0), report("j", 1), beat("host-of-j", 1), beat("old", 2)):
        incidents.observe(each)
    incidents.tick(at(3))
    incidents.observe(beat("new", 3 + QUIET_S))
    incidents.tick(at(4 + QUIET_S))
    assert incidents.overflow == 0
    incidents.observe(beat("newer", 5 + QUIET_S))
    incidents.tick(at(6 + QUIET_S))
    assert incidents.overflow == 1  # `new` speaks, and the silence of the job's host may be evidence


# ----------------------------------------------------------------------------------------------------- the accounts


def names(board: JobBoard) -> set[str]:
    return {each.job for each in board.take_changed()}


def test_the_board_shows_a_new_job_in_place_of_one_that_has_ended() -> None:
    board = JobBoard(held_max=2)
    for each in (register("speaks", 1), register("ended", 2), goodbye("ended", 3)):
        board.observe(each)
    assert names(board) == {"speaks", "ended"}
    board.observe(register("new", 4))
    assert (names(board), board.left_out) == ({"new"}, 0)
    board.observe(register("newer", 5))
    assert (names(board), board.left_out) == (set(), 1)


def test_the_board_lets_no_job_go_whose_row_has_not_been_written() -> None:
    board = JobBoard(held_max=1)
    for each in (register("ended", 1), goodbye("ended", 2), register("new", 3)):
        board.observe(each)
    assert names(board) == {"ended"}


def test_a_silent_host_gives_way_in_the_account_of_sources() -> None:
    sources = Sources(held_max=1)
    for host, seconds in (("old", 0), ("too-soon", 10), ("new", 100)):
        beat_of = beat(host, seconds).fact
        assert isinstance(beat_of, CollectorHeartbeat)
        sources.heartbeat(msgspec.structs.replace(beat_of, interval_s=5.0), at(seconds))
    assert sources.unknown(at(101)) == {}
    assert sources.unknown(at(200)) == {"heartbeat": 1}
