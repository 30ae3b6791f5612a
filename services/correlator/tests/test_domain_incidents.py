"""The grid: the same log gives the same bytes in any order and number of deliveries, across restarts, within bounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from goodput_common.contracts.telemetry import Event, EventName, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_correlator.domain.case import Observed, ordered, unpack
from goodput_correlator.domain.host_timeline import EVENTS_PER_KEY_MAX, HostTimeline
from goodput_correlator.domain.incidents import REMEMBER_IDS_S, Incidents, grid_floor
from goodput_correlator.domain.replay import replay
from goodput_topology.graph import Fabric

Script = Callable[..., Any]
FAULTS = ("xid", "link", "killed", "frozen", "own_code", "none", "flap", "restarted")


def a_log(script: Script, fault: str, *, recovers: bool = True) -> Any:
    """30 s of steps, a fault, and steps again in a new generation."""
    log = script()
    log.register()
    log.beats(70)
    step = log.run(1, 25)
    log.stall_step = step
    usual = step * 4 + 3
    if fault == "xid":
        log.xid("h1", "0000:1b:00", 79, 25.2, impact="reboot")
        log.stand(25, 40, step=step, joined={2: usual - 1})
    elif fault == "link":
        log.event("nic:h1/rail0/1", EventName.LINK_DOWN, 25.0, host="h1", source="netlink", by="netlink")
        log.stand(25, 40, step=step)
    elif fault == "flap":
        for at_s in (25.0, 26.5, 28.0):
            log.event("nic:h1/rail0/1", EventName.LINK_DOWN, at_s, host="h1", source="netlink", by="netlink")
            log.event("nic:h1/rail0/1", EventName.LINK_UP, at_s + 1, host="h1", source="netlink", by="netlink")
        log.stand(25, 40, step=step)
    elif fault == "killed":
        log.event("rank:j/3", EventName.PROCESS_EXITED, 25.1, host="h1", source="process", pid="1003")
        log.stand(25, 40, step=step, silent=(3,))
    elif fault == "frozen":
        log.stand(25, 40, step=step, silent=(4,))
    elif fault == "restarted":  # recovery ends all ranks because of the verdict, the silent one first
        log.stand(25, 30, step=step, silent=(4,))
        for rank in range(8):
            attrs = {"pid": str(1000 + rank), "clean": "false"}
            at_s = 30.1 if rank == 4 else 30.6 + 0.2 * rank
            log.event(f"rank:j/{rank}", EventName.PROCESS_EXITED, at_s, host=log.host(rank), source="process", **attrs)
    elif fault == "own_code":
        log.stand(25, 40, step=step, joined={5: usual - 1})
    else:
        log.stand(25, 40, step=step)
    if recovers:
        log.register(at_s=41, generation=1)
        log.run(42, 50, first_step=step - 5, generation=1)
    return log


def encoded(verdicts: list[Verdict]) -> bytes:
    return msgspec.json.encode(verdicts)


@pytest.mark.parametrize("fault", FAULTS)
def test_an_incident_opens_and_is_resolved_when_steps_move_again(script: Script, fault: str) -> None:
    verdicts = a_log(script, fault).verdicts(55)
    assert len({v.id for v in verdicts}) == 1
    assert [v.version for v in verdicts] == list(range(1, len(verdicts) + 1))
    assert verdicts[0].state is VerdictState.OPEN
    assert verdicts[-1].state is VerdictState.RESOLVED
    assert "generation 1" in verdicts[-1].resolution
    assert all(v.first_evidence_at <= v.detected_at <= v.published_at for v in verdicts)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fault=st.sampled_from(FAULTS), seed=st.integers(0, 10_000))
def test_shuffling_within_two_seconds_and_doubling_changes_no_byte(script: Script, fault: str, seed: int) -> None:
    log = a_log(script, fault)
    rng = random.Random(seed)
    messy = list(log.log)
    for each in rng.sample(log.log, len(log.log) // 10):
        later = rng.choice((0.0, 1.7))  # redelivered as it was, or published twice
        messy.append(replace(each, received_at=each.received_at + timedelta(seconds=later)))
    messy.sort(key=lambda each: each.received_at.timestamp() + rng.uniform(-2, 2))

    in_one_go = log.verdicts(55, messy)
    assert encoded(in_one_go) == encoded(log.verdicts(55))

    live = Incidents(log.fabric)
    streamed: list[Verdict] = []
    newest = messy[0].received_at
    for each in messy:
        live.observe(each)
        newest = max(newest, each.received_at)
        streamed += live.tick(newest - timedelta(seconds=4.2))
    streamed += live.tick(log.log[0].received_at + timedelta(seconds=55))
    assert encoded(streamed) == encoded(in_one_go)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fault=st.sampled_from(FAULTS), crash_s=st.integers(20, 48))
def test_a_restart_at_any_second_goes_on_as_if_nothing_had_happened(script: Script, fault: str, crash_s: int) -> None:
    log = a_log(script, fault)
    start = log.log[0].received_at
    at = grid_floor(start + timedelta(seconds=crash_s))
    before = Incidents(log.fabric)
    for each in log.log:
        if each.received_at <= at:
            before.observe(each)
    said = before.tick(at)
    after = Incidents(log.fabric)
    after.restore(said, [each for each in log.log if each.received_at <= at], judged=at)
    for each in log.log:
        after.observe(each)
    assert encoded(said + after.tick(start + timedelta(seconds=55))) == encoded(log.verdicts(55))


def test_a_restart_loses_no_verdict_that_was_said_but_not_stored(script: Script) -> None:
    """The store knows the grid up to second 20; what was said after it is said again, the same."""
    log = a_log(script, "xid", recovers=False)
    start = log.log[0].received_at
    at = grid_floor(start + timedelta(seconds=20))
    after = Incidents(log.fabric)
    after.restore([], [each for each in log.log if each.received_at <= at], judged=at)
    for each in log.log:
        after.observe(each)
    assert encoded(after.tick(start + timedelta(seconds=45))) == encoded(log.verdicts(45))


def test_evidence_counts_from_the_second_in_which_the_broker_got_it(script: Script) -> None:
    log = a_log(script, "xid", recovers=False)
    verdicts = log.verdicts(45)
    before = grid_floor(verdicts[0].published_at) - timedelta(seconds=1)
    early = [each for each in log.log if each.received_at <= before]
    incidents = Incidents(log.fabric)
    for each in early:
        incidents.observe(each)
    assert incidents.tick(before) == []


def test_a_word_from_a_past_generation_does_not_count(script: Script) -> None:
    log = a_log(script, "none", recovers=True)
    log.exited(3, 44.0, clean=False, reason="ValueError: old", generation=0)
    assert log.verdicts(55)[-1].state is VerdictState.RESOLVED


def test_a_late_better_explanation_revises_the_verdict(script: Script) -> None:
    """The kernel log of the host comes 8 s late: until then the stall is the rank's."""
    log = a_log(script, "own_code", recovers=False)
    fact = Event(
        component="gpu:h2/0000:43:00",
        name=EventName.XID,
        observed_at=log.clock("h2", 25.1),
        attrs={"xid": "79", "impact": "reboot"},
        excerpt="NVRM: Xid 79",
    )
    log.put("late", "h2", "kernel_log", 25.1, fact, late_s=9.0)
    verdicts = log.verdicts(45)
    assert (verdicts[0].fault_class, verdicts[0].culprit.component) == (FaultClass.PROCESS_STALL, "rank:j/5")
    assert (verdicts[-1].fault_class, verdicts[-1].culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/1")
    assert verdicts[-1].state is VerdictState.REVISED
    assert {v.id for v in verdicts} == {verdicts[0].id}


def test_a_job_whose_registrations_were_lost_is_still_judged(script: Script) -> None:
    log = a_log(script, "xid", recovers=False)
    without = [each for each in log.log if not each.id.startswith("reg/")]
    verdicts = log.verdicts(45, without)
    assert verdicts[-1].culprit.component == "gpu:h1/0" or verdicts[-1].culprit.ranks == (2,)


def test_two_jobs_are_judged_apart(script: Script) -> None:
    one = a_log(script, "xid", recovers=False)
    other = script(job="k")
    other.register()
    other.run(1, 45)
    verdicts = one.verdicts(45, one.log + [replace(each, id=f"k/{each.id}") for each in other.log])
    assert {v.job for v in verdicts} == {"j"}


def test_repeats_of_one_error_are_bounded_and_the_first_is_kept(start: datetime) -> None:
    host = HostTimeline("h1")
    for number in range(1000):
        at = start + timedelta(seconds=number * 0.01)
        fact = Event(component="gpu:h1/0", name=EventName.XID, observed_at=at, attrs={"xid": "119"})
        host.fold(Observed(str(number), "h1", "kernel_log", at, at, fact))
    assert [each.id for each in host.events] == [str(number) for number in range(EVENTS_PER_KEY_MAX)]
    assert host.dropped == 1000 - EVENTS_PER_KEY_MAX


def test_ids_are_forgotten_and_what_comes_later_is_left_out(script: Script, start: datetime) -> None:
    log = script()
    log.register()
    incidents = Incidents(log.fabric)
    for each in log.log:
        incidents.observe(each)
    incidents.tick(start + timedelta(seconds=REMEMBER_IDS_S + 60))
    assert not incidents._arrivals.seen
    incidents.observe(log.log[0])
    incidents.tick(start + timedelta(seconds=REMEMBER_IDS_S + 61))
    assert incidents.overflow == 1


def test_an_empty_fabric_and_a_long_time_cost_nothing(script: Script, start: datetime) -> None:
    incidents = Incidents(script().fabric)
    assert incidents.tick(start) == []
    log = script()
    log.register(at_s=30 * 86400.0)
    for each in log.log:
        incidents.observe(each)
    assert incidents.tick(start + timedelta(days=31)) == []


# ------------------------------------------------------------------------------------------------- messages


def message(key: str, at: datetime, data: msgspec.Struct) -> SimpleNamespace:
    return SimpleNamespace(id=key, received_at=at, data=data)


def test_samples_of_a_batch_are_numbered_by_their_place(start: datetime) -> None:
    events = tuple(Event(component=f"gpu:h1/{n}", name=EventName.XID, observed_at=start) for n in range(3))
    batch = TelemetryBatch(
        fabric="f",
        host="h1",
        source=Source.KERNEL_LOG,
        boot_id="b",
        seq=4,
        observed_from=start,
        observed_to=start,
        samples=events,
    )
    facts = unpack(message("m", start, batch))
    assert [each.id for each in facts] == ["m#0", "m#1", "m#2"]
    assert {(each.host, each.source) for each in facts} == {("h1", "kernel_log")}


def test_of_doubles_the_first_received_stands(start: datetime) -> None:
    fact = Event(component="gpu:h1/0", name=EventName.XID, observed_at=start)
    early, late = (Observed("x", "h1", "kernel_log", start, start + timedelta(seconds=s), fact) for s in (1, 2))
    assert ordered([late, early]) == (early,)


def test_replay_of_messages_equals_the_live_grid_and_leaves_other_fabrics_out(script: Script) -> None:
    log = a_log(script, "xid")
    records = [
        message(each.id, each.received_at, _as_message(log, each)) for each in sorted(log.log, key=lambda each: each.order)
    ]
    foreign = [message(f"other/{r.id}", r.received_at, msgspec.structs.replace(r.data, fabric="elsewhere")) for r in records]
    mixed = [each for pair in zip(records, foreign, strict=True) for each in pair]
    verdicts = replay(mixed, log.fabric)
    assert (verdicts[0].state, verdicts[0].fault_class) == (VerdictState.OPEN, FaultClass.GPU_OFF_BUS)
    assert encoded(verdicts) == encoded(replay(records, log.fabric))
    assert verdicts[-1].state is VerdictState.RESOLVED


def _as_message(log: Any, each: Observed) -> msgspec.Struct:
    if not isinstance(each.fact, Event):
        return each.fact
    return TelemetryBatch(
        fabric=log.fabric.name,
        host=each.host,
        source=Source(each.source),
        boot_id="b",
        seq=1,
        observed_from=each.observed_at,
        observed_to=each.observed_at,
        samples=(each.fact,),
    )


def test_a_second_stall_at_the_same_step_of_the_same_generation_is_another_incident(script: Script) -> None:
    """Ranks restarted in place, from a checkpoint, under the same generation: the same step is reached twice."""
    log = a_log(script, "killed", recovers=False)
    step = log.stall_step
    for rank in range(8):
        again = replace(log.log[rank], id=f"again/{rank}", received_at=log.log[rank].received_at + timedelta(seconds=41))
        fact = msgspec.structs.replace(again.fact, pid=2000 + rank)
        log.log.append(replace(again, fact=fact))
    log.run(42, 48, first_step=step - 60)
    log.stand(48, 60, step=step)
    verdicts = log.verdicts(62)
    chains = {v.id for v in verdicts}
    assert len(chains) == 2
    assert [v.version for v in verdicts if v.id == verdicts[0].id][-1] >= 2


def test_an_open_verdict_of_a_job_that_nobody_speaks_of_is_closed_in_the_end(script: Script, start: datetime) -> None:
    log = a_log(script, "xid", recovers=False)
    said = log.verdicts(45)
    after = Incidents(log.fabric)
    after.restore(said, [], judged=start + timedelta(seconds=45))
    verdicts = after.tick(start + timedelta(seconds=45 + 3700))
    assert [v.state for v in verdicts] == [VerdictState.RESOLVED]
    assert after.open == ()


def test_a_graph_is_in_force_from_the_grid_time_after_its_message(script: Script) -> None:
    log = script()
    incidents = Incidents(Fabric.empty(log.fabric.name))
    start = log.clock("h3", 0)
    incidents.tick(start)
    incidents.set_topology(log.fabric, start + timedelta(seconds=10.4))
    incidents.set_topology(Fabric.empty("older"), start + timedelta(seconds=5.0))
    assert incidents.name == log.fabric.name
    seen = {}
    for second in range(1, 13):
        incidents.tick(start + timedelta(seconds=second))
        seen[second] = incidents.topology.name, len(incidents.topology) > 0
    assert seen[4] == (log.fabric.name, False)
    assert seen[5] == seen[10] == ("older", False)
    assert seen[11] == (log.fabric.name, True)


@pytest.mark.parametrize(("seen_s", "late_s"), [(33.1, 1.9), (25.1, 30.0)])
def test_evidence_that_comes_after_the_verdict_names_the_culprit_anew_and_says_why(
    script: Script, seen_s: float, late_s: float
) -> None:
    """A rank was named for standing still; that its GPU was lost is told only then."""
    log = script()
    log.register()
    step = log.run(1, 25)
    log.stand(25, 75, step=step, joined={5: step * 4 + 2})
    fact = Event(
        component="gpu:h2/0000:43:00", name=EventName.XID, observed_at=log.clock("h2", seen_s),
        attrs={"xid": "79", "impact": "reboot"}, excerpt="NVRM: Xid 79",
    )  # fmt: skip
    late = log.put("late", "h2", "kernel_log", seen_s, fact, late_s=late_s)
    found = log.verdicts(75)
    before = [v for v in found if v.published_at < late.received_at]
    after = next(v for v in found if v.published_at >= late.received_at)
    assert before and {v.culprit.component for v in before} == {"rank:j/5"}
    assert (after.state, after.culprit.component) == (VerdictState.REVISED, "gpu:h2/1")
    assert (after.id, after.version) == (before[-1].id, before[-1].version + 1)
    assert after.detected_at == after.published_at
    assert late.id in {each.event_id for each in after.evidence if each.why}  # what came late is why
    accounted = [e.because for e in after.explained if e.component == "rank:j/5"]
    accounted += [e.because for e in after.alternatives if e.component == "rank:j/5"]
    assert all(accounted) and accounted, "why it is no longer the one named first"
    assert {v.culprit.component for v in found[found.index(after) :]} == {"gpu:h2/1"}
