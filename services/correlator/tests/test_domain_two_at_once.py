"""Two faults that have nothing to do with each other: each is an incident of its own and does not hide the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import FaultClass, Trouble, Verdict, VerdictState
from goodput_topology.generate import h100_pod

Script = Callable[..., Any]
POD = h100_pod(hosts=8, spines=2)
SLOW_AT_S, STALL_S, END_S = 40.0, 70.0, 85.0
LATE, GPU = 10, "gpu:h5/0"


def slow_then_dead(script: Script, rank: int) -> list[Verdict]:
    """A GPU that is held down makes its rank late and the job slow; then the process of `rank` is killed."""
    log = script(hosts=8, fabric=POD)
    log.register()
    log.beats(END_S)
    step = log.run(1, SLOW_AT_S)
    log.step_s *= 1.5
    step = log.run(SLOW_AT_S, STALL_S, first_step=step)
    log.log = [replace(each, fact=_with_own_time(each.fact)) for each in log.log]
    log.event(GPU, EventName.THROTTLED, SLOW_AT_S, host="h5", source="nvml", reason="hw_power_brake", state="start")
    log.state("h5", GPU, "clocks_held_down_by", "hw_power_brake", SLOW_AT_S, "nvml")
    log.event(
        f"rank:j/{rank}", EventName.PROCESS_EXITED, STALL_S + 0.1, host=log.host(rank), source="process",
        pid=str(1000 + rank), clean="false",
    )  # fmt: skip
    log.stand(STALL_S, END_S, step=step, silent=(rank,))
    found: list[Verdict] = log.verdicts(END_S)
    return found


def _with_own_time(fact: Any) -> Any:
    """Of a step's 100 ms a rank works 80; the late one has all that the step has grown by."""
    if not isinstance(fact, RankProgress):
        return fact
    own_ms = 80.0 + (fact.step_ms_mean - 100.0 if fact.rank == LATE else 0.0)
    return msgspec.structs.replace(fact, phases_ms={"forward": own_ms}, waiting_ms=fact.step_ms_mean - own_ms)


def test_a_rank_that_dies_elsewhere_in_a_slow_job_is_an_incident_of_its_own(script: Script) -> None:
    found = slow_then_dead(script, 3)
    first = [each for each in found if each.incident == found[0].incident]
    second = [each for each in found if each.incident != found[0].incident]
    assert {each.culprit.component for each in first} == {GPU}
    assert (first[0].fault_class, first[0].trouble) == (FaultClass.STRAGGLER, Trouble.SLOW)
    assert first[-1].state is VerdictState.RESOLVED
    assert {(each.fault_class, each.culprit.component) for each in second} == {(FaultClass.PROCESS_DEAD, "rank:j/3")}
    assert second[0].trouble is Trouble.STALLED


def test_a_rank_that_dies_on_what_was_slow_stays_in_the_incident(script: Script) -> None:
    found = slow_then_dead(script, LATE)
    assert len({each.incident for each in found}) == 1
    assert found[-1].trouble is Trouble.STALLED
