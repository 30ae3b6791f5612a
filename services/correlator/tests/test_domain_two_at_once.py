"""Two faults that have nothing to do with each other: each is an incident of its own and does not hide the other."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import EventName, Severity
from goodput_common.contracts.verdict import ActionKind, FaultClass, Trouble, Verdict, VerdictState
from goodput_correlator.domain.incidents import Incidents
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]
POD = h100_pod(hosts=8, spines=2)
SLOW_AT_S, STALL_S, END_S = 40.0, 70.0, 85.0
START = datetime(2026, 3, 2, 8, 0, 0, tzinfo=UTC)
LATE, GPU = 10, "gpu:h5/0"


def slow_then_dead(script: Script, rank: int, stall_s: float = STALL_S, end_s: float = END_S) -> Any:
    """A GPU that is held down makes its rank late and the job slow; then the process of `rank` is killed."""
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(end_s + 60)
    step = log.run(1, SLOW_AT_S)
    log.step_s *= 1.5
    step = log.run(SLOW_AT_S, stall_s, first_step=step)
    log.log = [replace(each, fact=_with_own_time(each.fact)) for each in log.log]
    log.event(GPU, EventName.THROTTLED, SLOW_AT_S, host="h5", source="nvml", reason="hw_power_brake", state="start")
    log.state("h5", GPU, "clocks_held_down_by", "hw_power_brake", SLOW_AT_S, "nvml")
    log.event(
        f"rank:j/{rank}", EventName.PROCESS_EXITED, stall_s + 0.1, host=log.host(rank), source="process",
        pid=str(1000 + rank), clean="false",
    )  # fmt: skip
    log.stand(stall_s, end_s, step=step, silent=(rank,))
    log.last_step = step
    return log


def by_incident(found: list[Verdict]) -> list[list[Verdict]]:
    """The chains, in the order in which they were opened."""
    chains: dict[str, list[Verdict]] = {}
    for each in found:
        chains.setdefault(each.incident, []).append(each)
    return list(chains.values())


def said(chain: list[Verdict]) -> set[tuple[FaultClass, str | None]]:
    return {(each.fault_class, each.culprit.component) for each in chain}


def _with_own_time(fact: Any) -> Any:
    """Of a step's 100 ms a rank works 80; the late one has all that the step has grown by."""
    if not isinstance(fact, RankProgress):
        return fact
    own_ms = 80.0 + (fact.step_ms_mean - 100.0 if fact.rank == LATE else 0.0)
    return msgspec.structs.replace(fact, phases_ms={"forward": own_ms}, waiting_ms=fact.step_ms_mean - own_ms)


def test_a_rank_that_dies_elsewhere_in_a_slow_job_is_an_incident_of_its_own(script: Script) -> None:
    first, second = by_incident(slow_then_dead(script, 3).verdicts(END_S))
    assert said(first) == {(FaultClass.STRAGGLER, GPU)}
    assert said(second) == {(FaultClass.PROCESS_DEAD, "rank:j/3")}
    assert (first[0].trouble, second[0].trouble) == (Trouble.SLOW, Trouble.STALLED)
    assert VerdictState.RESOLVED not in {first[-1].state, second[-1].state}  # side by side: nothing of either is over


@pytest.mark.parametrize("before_s", [7.0, 9.0])
def test_what_made_a_job_slow_just_before_it_stood_still_is_told_beside_why_it_stands(
    script: Script, before_s: float
) -> None:
    """The standstill breaks off the windows in which a slow job would have been told from a pause."""
    log = slow_then_dead(script, 3, SLOW_AT_S + before_s, SLOW_AT_S + before_s + 25)
    slow, dead = sorted(by_incident(log.verdicts(SLOW_AT_S + before_s + 25)), key=lambda chain: chain[0].trouble)
    assert said(slow) == {(FaultClass.STRAGGLER, GPU)}
    assert said(dead) == {(FaultClass.PROCESS_DEAD, "rank:j/3")}
    assert slow[0].trouble is Trouble.SLOW
    assert slow[0].confidence >= 0.8


def test_two_seconds_of_slow_steps_before_a_standstill_are_too_little_to_name_anybody(script: Script) -> None:
    log = slow_then_dead(script, 3, SLOW_AT_S + 2, SLOW_AT_S + 27)
    (only,) = by_incident(log.verdicts(SLOW_AT_S + 27))
    assert said(only) == {(FaultClass.PROCESS_DEAD, "rank:j/3")}


@pytest.mark.parametrize("before_s", [7.0, 30.0])
def test_each_of_two_incidents_ends_for_its_own_reason(script: Script, before_s: float) -> None:
    stall_s = SLOW_AT_S + before_s
    log = slow_then_dead(script, 3, stall_s, stall_s + 20)
    log.register(at_s=stall_s + 21, generation=1)
    log.step_s /= 1.5
    log.run(stall_s + 22, stall_s + 60, first_step=log.last_step, generation=1)
    ends = {each.fault_class: each for each in log.verdicts(stall_s + 60) if each.state is VerdictState.RESOLVED}
    assert "steps resumed in generation 1" in ends[FaultClass.PROCESS_DEAD].resolution
    assert ends[FaultClass.STRAGGLER].resolution == "generation 1 keeps its own pace"
    assert ends[FaultClass.PROCESS_DEAD].published_at < ends[FaultClass.STRAGGLER].published_at


def test_a_rank_that_dies_on_what_was_slow_stays_in_the_incident(script: Script) -> None:
    found = slow_then_dead(script, LATE).verdicts(END_S)
    assert len({each.incident for each in found}) == 1
    assert found[-1].trouble is Trouble.STALLED


def test_a_rank_that_was_held_back_and_then_stands_still_stands_for_what_held_it_back(script: Script) -> None:
    log = slow_then_dead(script, LATE, end_s=STALL_S)
    log.log = [each for each in log.log if getattr(each.fact, "name", None) is not EventName.PROCESS_EXITED]
    usual = log.last_step * 4 + 3
    log.stand(STALL_S, END_S + 30, step=log.last_step, joined={LATE: usual - 1})
    found = log.verdicts(END_S + 30)
    assert len({each.incident for each in found}) == 1
    assert said(found) == {(FaultClass.STRAGGLER, GPU)}
    last = found[-1]
    assert (last.trouble, last.action.kind, last.action.target) == (Trouble.STALLED, ActionKind.SWAP_NODE, "host:h5")
    assert any("stand" in each.why or "join" in each.why for each in last.evidence), "it is shown to stand, too"


@pytest.mark.parametrize("before_s", [7.0, 30.0])
def test_a_restart_with_two_incidents_open_goes_on_as_if_nothing_had_happened(script: Script, before_s: float) -> None:
    stall_s = SLOW_AT_S + before_s
    log = slow_then_dead(script, 3, stall_s, stall_s + 20)
    log.register(at_s=stall_s + 21, generation=1)
    log.run(stall_s + 22, stall_s + 50, first_step=log.last_step, generation=1)
    expected = log.verdicts(stall_s + 50)
    for crash_s in (stall_s + 4, stall_s + 12, stall_s + 25):
        assert msgspec.json.encode(_restarted(log, crash_s, stall_s + 50)) == msgspec.json.encode(expected)


def _restarted(log: Any, crash_s: float, end_s: float) -> list[Verdict]:
    at = START + timedelta(seconds=crash_s)
    before, after = Incidents(log.fabric), Incidents(log.fabric)
    had = [each for each in log.log if each.received_at <= at]
    for each in had:
        before.observe(each)
    told = before.tick(at)
    after.restore(told, had, judged=at)
    for each in log.log:
        after.observe(each)
    return told + after.tick(START + timedelta(seconds=end_s))


# -------------------------------------------------------------------------------------------- two that stop a job


def standing(script: Script, *, silent: tuple[int, ...] = (), **more: Any) -> Any:
    log = script(hosts=8, fabric=more.pop("fabric", POD))
    log.register()
    log.beats(90)
    log.last_step = log.run(1, 30)
    log.stand(30, 60, step=log.last_step, silent=silent, **more)
    return log


def lose(log: Any, host: int, at_s: float, name: EventName = EventName.LINK_DOWN) -> None:
    log.event(f"nic:h{host}/mlx5_0/1", name, at_s, host=f"h{host}", source="netlink")


def xid(log: Any, gpu: str, number: int, at_s: float) -> None:
    host = gpu.partition(":")[2].partition("/")[0]
    log.event(gpu, EventName.XID, at_s, host=host, severity=Severity.FATAL, xid=str(number), impact="reset")


def link(host: int) -> str:
    found = POD.link_of(f"nic:h{host}/mlx5_0/1")
    assert found is not None
    return found


@pytest.mark.parametrize("apart_s", [0.5, 10.0])
def test_a_gpu_that_is_lost_and_a_link_that_dies_elsewhere_are_two_incidents(script: Script, apart_s: float) -> None:
    log = standing(script, silent=(2,))
    xid(log, "gpu:h1/0", 79, 30.1)
    lose(log, 5, 30.1 + apart_s)
    chains = by_incident(log.verdicts(60))
    assert [said(chain) for chain in chains] == [
        {(FaultClass.GPU_OFF_BUS, "gpu:h1/0")},
        {(FaultClass.LINK_FLAP, link(5))},
    ]


def test_a_dead_link_and_a_memory_error_of_another_rank_of_the_job_are_two_incidents(script: Script) -> None:
    log = standing(script, silent=(10,))
    lose(log, 1, 30.1)
    xid(log, "gpu:h5/0", 95, 30.6)
    found = {pair for chain in by_incident(log.verdicts(60)) for pair in said(chain)}
    assert found == {(FaultClass.LINK_FLAP, link(1)), (FaultClass.GPU_MEMORY, "gpu:h5/0")}


def test_a_dead_link_and_a_memory_error_where_no_job_runs_are_two_incidents(script: Script) -> None:
    log = standing(script, fabric=h100_pod(hosts=12, spines=2))
    lose(log, 1, 30.1)
    xid(log, "gpu:h10/0", 95, 30.6)
    chains = by_incident(log.verdicts(60))
    assert [(chain[0].trouble, chain[0].fault_class) for chain in chains] == [
        (Trouble.STALLED, FaultClass.LINK_FLAP),
        (Trouble.IDLE, FaultClass.GPU_MEMORY),
    ]


def test_a_mount_that_hangs_in_a_job_that_an_adapter_elsewhere_slows_down_is_an_incident_of_its_own(script: Script) -> None:
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(100)
    step = log.run(1, SLOW_AT_S)
    log.step_s *= 1.3
    step = log.run(SLOW_AT_S, STALL_S, first_step=step)
    for at_s in range(int(SLOW_AT_S), int(STALL_S), 8):
        lose(log, 5, at_s + 0.1)
        lose(log, 5, at_s + 2.0, EventName.LINK_UP)
    at_input = dict.fromkeys((2, 3), step * 4 + 2)
    log.stand(STALL_S, 95, step=step, joined=at_input, phases=dict.fromkeys(at_input, "data"))
    log.event(
        "host:h1", EventName.STORAGE_STALL, STALL_S + 3, host="h1", source="host",
        mount="/data", server="10.0.0.9:/data", what="no completion", state="stalled",
    )  # fmt: skip
    first, second = by_incident(log.verdicts(95))
    assert said(first) == {(FaultClass.LINK_FLAP, link(5))}
    assert {each.trouble for each in first} == {Trouble.SLOW}
    assert (second[-1].fault_class, second[-1].culprit.component) == (FaultClass.STORAGE_STALL, "host:h1")


def test_whatever_follows_from_the_first_fault_is_no_second_one(script: Script) -> None:
    """A lost GPU ends its rank, peers lose their connections and end, their drivers clean up."""
    log = standing(script, silent=(2, 7, 9))
    xid(log, "gpu:h1/0", 79, 30.1)
    for rank in (2, 7, 9):
        log.event(
            f"rank:j/{rank}", EventName.PROCESS_EXITED, 30.5 + rank / 5, host=log.host(rank), source="process",
            pid=str(1000 + rank), clean="false",
        )  # fmt: skip
    log.event("gpu:h4/1", EventName.XID, 33.0, host="h4", xid="45", impact="victim")
    (only,) = by_incident(log.verdicts(60))
    assert said(only) == {(FaultClass.GPU_OFF_BUS, "gpu:h1/0")}
