"""The evidence checker: what supports a claim passes, and each way of citing something beside the point is found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from goodput_common.contracts import ids
from goodput_common.contracts.job import GroupProgress, RankExited, RankProgress, RankRegistered
from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, Event, EventName, Probe, Severity, State
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Alternative,
    Culprit,
    Evidence,
    FaultClass,
    Trouble,
    Verdict,
    VerdictState,
)
from goodput_faultlab.evidence import Checker
from goodput_faultlab.evidence_kinds import SUPPORTS
from goodput_faultlab.simulate.spec import START
from goodput_topology.generate import h100_pod

FABRIC = h100_pod(hosts=4, spines=2)
JOB = "train-1"
NIC = FABRIC.nics_of_gpu("gpu:h1/2")[0]
LINK = FABRIC.link_of(NIC) or ""
PORT = FABRIC.peer_of(NIC) or ""
LEAF = FABRIC.switch_of(NIC) or ""
STUCK = (GroupProgress(group="0", ranks=(), last_enqueued=9, last_completed=8),)


@dataclass(frozen=True)
class Seen:
    id: str
    host: str
    fact: Any
    observed_at: datetime = START
    received_at: datetime = START


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def registered(rank: int) -> Seen:
    host, gpu = f"h{rank // 8}", rank % 8
    uuid = FABRIC.attr(f"gpu:{host}/{gpu}", "uuid")
    fact = RankRegistered(
        fabric="default", job=JOB, rank=rank, world_size=32, host=host, pid=100 + rank, at=START, gpu=gpu, gpu_uuid=uuid
    )
    return Seen(f"registered-{rank}", host, fact)


def progress(rank: int, step: int, seconds: float = 0.0, groups: tuple[GroupProgress, ...] = ()) -> Seen:
    host = f"h{rank // 8}"
    fact = RankProgress(fabric="default", job=JOB, rank=rank, host=host, seq=1, at=at(seconds), step=step, groups=groups)
    return Seen(f"progress-{rank}-{step}-{seconds:g}", host, fact, at(seconds), at(seconds))


def event(component: str, name: EventName, host: str = "h1", **attrs: str) -> Seen:
    fact = Event(component=component, name=name, observed_at=START, severity=Severity.ERROR, attrs=attrs)
    return Seen(f"{name.value}-{component}", host, fact)


def counter(component: str, name: str, delta: int = 5, host: str = "h1") -> Seen:
    fact = Counter(component=component, name=name, observed_at=START, delta=delta, interval_s=5.0, value=delta)
    return Seen(f"{name}-{component}", host, fact)


RANKS = tuple(registered(rank) for rank in range(32))


def verdict(fault_class: FaultClass, component: str | None, *cited: Seen, **changes: Any) -> Verdict:
    culprit = Culprit(component=component, kind=ids.kind_of(component) if component else None, host=None)
    made = Verdict(
        id="v", version=1, incident="i", fabric="default", job=JOB, state=VerdictState.OPEN, fault_class=fault_class,
        culprit=culprit, confidence=0.9, alternatives=(), explained=(), affected=Affected(),
        evidence=tuple(
            Evidence(event_id=each.id, component=None, excerpt="", observed_at=each.observed_at, why="") for each in cited
        ),
        action=Action(kind=ActionKind.OBSERVE, target=None, reason=""), first_evidence_at=START, detected_at=at(30),
        published_at=at(30), diagnosed_by="engine/1", culprits=(culprit,) if component else (),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def failures(said: Verdict, *delivered: Seen) -> list[str]:
    return [each.why for each in Checker(FABRIC, (*RANKS, *delivered)).check(said)]


def holds(fault_class: FaultClass, component: str | None, *cited: Seen) -> bool:
    return failures(verdict(fault_class, component, *cited), *cited) == []


C, E = FaultClass, EventName
XID_79 = event(f"gpu:h1/{FABRIC.attr('gpu:h1/2', 'pci')}", E.XID, xid="79")


def test_every_class_has_kinds_of_facts_that_can_support_it() -> None:
    assert SUPPORTS.keys() == set(FaultClass)
    assert all(SUPPORTS.values())


@pytest.mark.parametrize(
    ("fault_class", "component", "seen"),
    [
        (C.GPU_OFF_BUS, "gpu:h1/2", XID_79),
        (C.GPU_OFF_BUS, "gpu:h1/2", progress(10, 5)),
        (C.GPU_MEMORY, "gpu:h1/2", event("gpu:h1/2", E.XID, xid="94")),
        (C.LINK_FLAP, LINK, event(PORT, E.LINK_DOWN, host="leaf-p0-r2")),
        (C.LINK_FLAP, LINK, counter(NIC, "symbol_error")),
        (C.SWITCH_FAULT, LEAF, event(NIC, E.LINK_DOWN)),
        (C.HOST_DOWN, "host:h1", progress(9, 5)),
        (C.PROCESS_DEAD, "rank:train-1/10", event("rank:train-1/10", E.PROCESS_EXITED)),
        (C.PROCESS_DEAD, "rank:train-1/10", event("host:h1", E.HOST_STALL, what="oom_kill")),
        (C.PFC_STORM, NIC, counter(NIC, "tx_prio3_pause")),
        (C.NO_HARDWARE_FAULT, None, event("gpu:h1/2", E.XID, xid="31")),
        (C.UNDETERMINED, None, progress(3, 5)),
    ],
)
def test_a_fact_of_the_right_kind_about_the_culprit_its_parts_its_other_end_or_its_ranks_supports_it(
    fault_class: FaultClass, component: str | None, seen: Seen
) -> None:
    assert holds(fault_class, component, seen)


@pytest.mark.parametrize(
    ("fault_class", "component", "seen", "why"),
    [
        (C.GPU_MEMORY, "gpu:h1/2", XID_79, "says nothing of it"),
        (C.GPU_OFF_BUS, "gpu:h1/3", XID_79, "no part of it"),
        (C.LINK_FLAP, LINK, XID_79, "no part of it"),
        (C.LINK_FLAP, LINK, counter(NIC, "symbol_error", delta=0), "says nothing of it"),
        (C.PROCESS_DEAD, "rank:train-1/3", event("host:h1", E.HOST_STALL, what="oom_kill"), "no part of it"),
        (C.PROCESS_STALL, "rank:train-1/3", progress(10, 5), "no part of it"),
        (C.HOST_DOWN, "host:h2", event("host:h1", E.BOOT), "no part of it"),
    ],
)
def test_another_kind_of_fact_or_one_about_something_else_does_not(
    fault_class: FaultClass, component: str, seen: Seen, why: str
) -> None:
    assert any(why in each for each in failures(verdict(fault_class, component, seen), seen))


def test_what_was_never_delivered_or_is_dated_otherwise_is_no_evidence() -> None:
    said = verdict(C.GPU_OFF_BUS, "gpu:h1/2", XID_79)
    assert "never delivered" in failures(said)[0]
    moved = msgspec.structs.replace(said, evidence=(msgspec.structs.replace(said.evidence[0], observed_at=at(1)),))
    assert "was observed at" in failures(moved, XID_79)[0]


def test_one_ranks_word_quoted_as_anothers_is_no_evidence() -> None:
    seen = progress(10, 5)
    said = verdict(C.PROCESS_STALL, "rank:train-1/10", seen)
    quoted = msgspec.structs.replace(said, evidence=(msgspec.structs.replace(said.evidence[0], excerpt="rank 11: idle"),))
    assert "quoted as rank 11" in failures(quoted, seen)[0]


def test_those_who_wait_may_be_cited_beside_the_culprit_but_not_alone() -> None:
    waits, own = progress(3, 5, groups=STUCK), progress(10, 5)
    assert holds(C.PROCESS_STALL, "rank:train-1/10", own, waits)
    alone = failures(verdict(C.PROCESS_STALL, "rank:train-1/10", waits), waits)
    assert alone == ["nothing that is cited is about rank:train-1/10"]


def test_a_rank_that_moved_on_afterwards_did_not_stand() -> None:
    before, after = progress(10, 5, 1.0), progress(10, 6, 5.0)
    said = verdict(C.PROCESS_STALL, "rank:train-1/10", before)
    assert any("moved on" in each for each in failures(said, before, after))
    assert failures(said, before, progress(10, 5, 5.0)) == []


def working(rank: int, waiting_ms: float, seconds: float = 0.0) -> Seen:
    host = f"h{rank // 8}"
    fact = RankProgress(
        fabric="default", job=JOB, rank=rank, host=host, seq=1, at=at(seconds), step=5, steps=2, step_ms_mean=500.0,
        waiting_ms=waiting_ms,
    )  # fmt: skip
    return Seen(f"working-{rank}-{seconds:g}", host, fact, at(seconds), at(seconds))


@pytest.mark.parametrize(("waiting_ms", "late"), [(5.0, True), (200.0, True), (260.0, False), (-1.0, True)])
def test_in_a_slow_job_the_word_of_a_rank_that_waits_longer_than_others_does_not_blame_it(
    waiting_ms: float, late: bool
) -> None:
    own, others = working(10, waiting_ms), [working(rank, 200.0 + rank) for rank in range(8)]
    said = verdict(C.STRAGGLER, "rank:train-1/10", own, trouble=Trouble.SLOW)
    assert (failures(said, own, *others) == []) is late
    assert failures(said, own, *(working(rank, 200.0, -60.0) for rank in range(8))) == []


def test_each_of_two_culprits_needs_evidence_of_its_own() -> None:
    seen = progress(10, 5)
    one, other = (Culprit(component=f"rank:train-1/{rank}", kind=None, host=None) for rank in (10, 20))
    said = verdict(C.PROCESS_STALL, "rank:train-1/10", seen, culprits=(one, other))
    assert failures(said, seen) == ["nothing that is cited is about rank:train-1/20"]
    assert failures(msgspec.structs.replace(said, culprits=(one,)), seen) == []


def test_probes_support_what_they_crossed_and_nothing_else() -> None:
    other = FABRIC.nics_of_gpu("gpu:h2/2")[0]
    probe = Probe(
        component=NIC, target=other, flow=1, observed_at=START, interval_s=5.0, sent=20, lost=9,
        path=FABRIC.path(NIC, other).listed[0], answer_path=FABRIC.path(other, NIC).listed[0],
    )  # fmt: skip
    seen = Seen("probe", "h1", probe)
    elsewhere = FABRIC.link_of(FABRIC.nics_of_gpu("gpu:h1/5")[0])
    assert holds(C.LINK_FLAP, LINK, seen) and holds(C.SWITCH_FAULT, LEAF, seen)
    assert not holds(C.LINK_FLAP, elsewhere, seen)


def test_undetermined_may_cite_what_speaks_for_its_alternatives() -> None:
    other = Alternative(component="gpu:h1/2", fault_class=C.GPU_OFF_BUS, confidence=0.3)
    assert failures(verdict(C.UNDETERMINED, None, XID_79, alternatives=(other,)), XID_79) == []
    assert failures(verdict(C.UNDETERMINED, None, XID_79), XID_79) != []


def test_a_clean_end_and_a_heartbeat_kill_nobody() -> None:
    ended = Seen("ended", "h1", RankExited(fabric="default", job=JOB, rank=10, host="h1", at=START, clean=True))
    beat = Seen("beat", "h1", CollectorHeartbeat(fabric="default", host="h1", boot_id="b", seq=1, at=START, interval_s=5.0))
    for seen in (ended, beat):
        assert not holds(C.PROCESS_DEAD, "rank:train-1/10", seen)


def test_nothing_cited_is_a_failure_and_a_resolution_claims_nothing() -> None:
    said = verdict(C.GPU_OFF_BUS, "gpu:h1/2")
    assert failures(said) == ["nothing is cited"]
    assert failures(msgspec.structs.replace(said, state=VerdictState.RESOLVED)) == []


# --------------------------------------------------------------------------------------------- effects, and whose they are

ADDRESS = FABRIC.attr(NIC, "addr")
ELSEWHERE = FABRIC.attr(FABRIC.nics_of_gpu("gpu:h2/2")[0], "addr")


def lost_by(rank: int, peer: str, kind: str = "connection_closed") -> Seen:
    return event(f"rank:{JOB}/{rank}", E.NCCL_NET_ERROR, host=f"h{rank // 8}", kind=kind, peer=peer)


@pytest.mark.parametrize(
    ("seen", "supports"),
    [
        (lost_by(3, ADDRESS), True),  # the address of the dead rank's host
        (lost_by(3, "h1"), True),  # or its name
        (lost_by(3, ELSEWHERE), False),
        (lost_by(3, ""), False),
        (lost_by(3, ADDRESS, kind="completion_error"), False),
    ],
)
def test_a_lost_connection_supports_a_death_only_where_it_names_the_host_of_the_dead(seen: Seen, supports: bool) -> None:
    own = event(f"rank:{JOB}/10", E.PROCESS_EXITED)
    said = verdict(C.PROCESS_DEAD, f"rank:{JOB}/10", own, seen)
    assert (failures(said, own, seen) == []) is supports
    assert failures(verdict(C.PROCESS_DEAD, f"rank:{JOB}/10", seen), seen) != []  # beside the death, never instead of it
    assert failures(verdict(C.PROCESS_STALL, f"rank:{JOB}/10", progress(10, 5), seen), progress(10, 5), seen) != []


@pytest.mark.parametrize(
    ("value", "clean", "supports"), [("gone", "false", True), ("gone", "true", False), ("R", "", False)]
)
def test_a_process_that_its_collector_lists_as_gone_is_dead_unless_it_left_in_order(
    value: str, clean: str, supports: bool
) -> None:
    fact = State(component=f"rank:{JOB}/10", name="process", observed_at=START, value=value, attrs={"clean": clean})
    assert holds(C.PROCESS_DEAD, f"rank:{JOB}/10", Seen("gone", "h1", fact)) is supports
    assert not holds(C.PROCESS_DEAD, f"rank:{JOB}/11", Seen("gone", "h1", fact))


def up_to(spine: str, nic: str) -> tuple[str, str]:
    """The two ports between an adapter's leaf and a spine: the leaf's, the spine's."""
    leaf = FABRIC.switch_of(nic) or ""
    for port in FABRIC.ports_of_switch(leaf):
        other = FABRIC.peer_of(port)
        if other is not None and FABRIC.switch_of(other) == spine:
            return port, other
    raise AssertionError


SPINE = next(each for each in FABRIC.of_kind(ids.ComponentKind.SWITCH) if "spine" in each)
FAR_NIC = FABRIC.nics_of_gpu("gpu:h2/5")[0]  # another rail: its way to NIC crosses a spine
FAR_UP, _ = up_to(SPINE, FAR_NIC)
_, DOWN = up_to(SPINE, NIC)


def stormed(port: str, priority: str = "3", state: str = "stormed") -> Seen:
    return event(port, E.PAUSE_STORM, host="a switch", priority=priority, state=state)


def test_a_pause_supports_a_storm_only_where_it_leads_to_the_culprit() -> None:
    own, first = counter(NIC, "tx_prio3_pause"), counter(PORT, "rx_prio3_pause")
    spine, far = counter(DOWN, "rx_prio3_pause"), counter(FAR_UP, "rx_prio3_pause")
    said = verdict(C.PFC_STORM, NIC, own, far)
    assert failures(said, own, first, spine, far) == []
    assert "no part of it" in failures(said, own, far)[0]  # nothing says that the spine passed it on
    other_priority = counter(DOWN, "rx_prio4_pause")
    assert failures(said, own, first, other_priority, far) != []
    assert failures(verdict(C.PFC_STORM, NIC, far), first, spine, far) == [f"nothing that is cited is about {NIC}"]


def test_so_does_a_watchdogs_word_on_a_port_unless_it_says_that_it_is_over() -> None:
    own, far = counter(NIC, "tx_prio3_pause"), stormed(FAR_UP)
    way = (counter(PORT, "rx_prio3_pause"), stormed(DOWN))
    assert failures(verdict(C.PFC_STORM, NIC, own, far), own, far, *way) == []
    assert failures(verdict(C.PFC_STORM, NIC, own, far), own, far) != []
    over = stormed(FAR_UP, state="restored")
    assert failures(verdict(C.PFC_STORM, NIC, own, over), own, over, *way) != []


def test_links_of_a_host_support_its_end_only_where_all_of_them_were_lost() -> None:
    nics = FABRIC.nics_of_host("h1")
    ports = [FABRIC.peer_of(nic) or "" for nic in nics if FABRIC.carries_traffic(nic) is not False]
    downs = [event(port, E.LINK_DOWN, host="a leaf") for port in ports]
    last = progress(10, 5)
    said = verdict(C.HOST_DOWN, "host:h1", last, downs[0])
    assert failures(said, last, *downs) == []
    assert failures(said, last, *downs[:-1]) != []  # one is still up: that is a cable
    assert failures(verdict(C.HOST_DOWN, "host:h2", progress(17, 5), downs[0]), progress(17, 5), *downs) != []
    assert failures(verdict(C.HOST_DOWN, "host:h1", downs[0]), *downs) == ["nothing that is cited is about host:h1"]
