"""How a death is known when the word of it is lost, and who died first when several do at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import EventName, Gauge
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 25.0
LISTED_EVERY_S = 5.0
RUNNING = {"cpu": "used", "cpu_ms": "1000", "window_ms": "1000"}
LOST = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"


def dying(script: Script, *ranks: int, to_s: float = 45.0, listed_until_s: float = STALL_S) -> Any:
    """A job of which these ranks say nothing any more. Its collectors list processes every 5 s."""
    log = script()
    log.register()
    for rank in range(8):
        at_s = 2.2 + 0.1 * rank
        while at_s < listed_until_s:
            listed(log, rank, "running", at_s, **RUNNING)
            at_s += LISTED_EVERY_S
    log.step = log.run(1, STALL_S)
    log.stand(STALL_S, to_s, step=log.step, silent=ranks)
    return log


def listed(log: Any, rank: int, value: str, at_s: float, **attrs: str) -> None:
    log.state(log.host(rank), f"rank:j/{rank}", "process", value, at_s, "process", pid=str(1000 + rank), **attrs)


def gone(log: Any, rank: int, at_s: float, **attrs: str) -> None:
    log.event(
        f"rank:j/{rank}", EventName.PROCESS_EXITED, at_s, host=log.host(rank), source="process", pid=str(1000 + rank),
        clean="false", **attrs,
    )  # fmt: skip


def closed(log: Any, teller: int, peer: str, at_s: float) -> None:
    kind, host = "connection_closed", log.host(teller)
    log.event(f"rank:j/{teller}", EventName.NCCL_NET_ERROR, at_s, host=host, source="job_log", kind=kind, peer=peer)


def last(log: Any, to_s: float = 45.0) -> Verdict:
    found: list[Verdict] = log.verdicts(to_s)
    return found[-1]


@pytest.mark.parametrize("from_s", [STALL_S + 1.0, STALL_S + 4.5])
def test_a_rank_that_its_collector_lists_as_gone_is_dead_although_the_word_of_its_exit_was_lost(
    script: Script, from_s: float
) -> None:
    log = dying(script, 5)
    for turn in range(4):
        listed(log, 5, "gone", from_s + turn * LISTED_EVERY_S, clean="false")
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/5")
    assert any("has no process any more" in each.why for each in found.evidence)


def test_a_rank_whose_process_lived_on_in_the_stall_is_a_stall_although_it_is_gone_by_now(script: Script) -> None:
    log = dying(script, 5, listed_until_s=STALL_S + 6.0)
    for turn in range(3):
        listed(log, 5, "gone", STALL_S + 9.0 + turn * LISTED_EVERY_S, clean="false")
    assert last(log).fault_class is FaultClass.PROCESS_STALL


@pytest.mark.parametrize("attrs", [{"pid": "4711", "clean": "false"}, {"clean": "true"}])
def test_another_process_that_is_gone_and_one_that_left_in_order_are_no_death(script: Script, attrs: dict[str, str]) -> None:
    log = dying(script, 5)
    log.state("h2", "rank:j/5", "process", "gone", STALL_S + 1.0, "process", **({"pid": "1005"} | attrs))
    assert last(log).fault_class is not FaultClass.PROCESS_DEAD


def test_a_rank_that_speaks_is_not_dead_whatever_lists_it_as_gone(script: Script) -> None:
    log = dying(script)
    listed(log, 5, "gone", STALL_S + 0.2, clean="false")
    assert not any(verdict.fault_class is FaultClass.PROCESS_DEAD for verdict in log.verdicts(45))


def test_the_line_of_the_kernel_that_killed_it_tells_a_death_of_which_nothing_else_is_known(script: Script) -> None:
    log = dying(script, 4)
    log.event("host:h2", EventName.HOST_STALL, STALL_S + 0.1, host="h2", what="oom_kill", pid="1004")
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")
    assert found.confidence > 0.85


def test_of_several_that_end_at_once_the_one_that_the_kernel_killed_is_the_first(script: Script) -> None:
    log = dying(script, 1, 4, 6)
    log.event("host:h2", EventName.HOST_STALL, STALL_S + 0.1, host="h2", what="oom_kill", pid="1004")
    gone(log, 6, STALL_S + 0.4)
    gone(log, 4, STALL_S + 0.6)
    log.exited(1, STALL_S + 0.8, clean=False, reason=LOST)
    found = last(log)
    assert {each.component for each in found.culprits} == {"rank:j/4"}
    assert found.confidence > 0.85
    assert {"rank:j/1", "rank:j/6"} <= {each.component for each in found.explained}


def test_of_several_that_end_at_once_the_one_on_the_host_that_the_others_lost_is_the_first(script: Script) -> None:
    log = dying(script, 1, 4, 6)
    gone(log, 6, STALL_S + 0.4)
    gone(log, 4, STALL_S + 0.6)
    for teller, at_s in ((0, 0.3), (1, 0.4), (7, 0.5)):
        closed(log, teller, "h2", STALL_S + at_s)
    log.exited(1, STALL_S + 0.8, clean=False, reason=LOST)
    found = last(log)
    assert {each.component for each in found.culprits} == {"rank:j/4"}
    assert any("lost its connection" in each.why for each in found.evidence)


def test_errors_that_name_different_hosts_decide_nothing(script: Script) -> None:
    log = dying(script, 4, 6)
    gone(log, 6, STALL_S + 0.4)
    gone(log, 4, STALL_S + 0.6)
    for teller, peer in ((0, "h2"), (1, "h3"), (2, "h2"), (3, "h3")):
        closed(log, teller, peer, STALL_S + 0.3)
    assert max(verdict.confidence for verdict in log.verdicts(45)) < 0.7


DEVICE_ERROR = "RuntimeError: CUDA error: unspecified launch failure"


def ended_by_device(script: Script, *read_on: int, reason: str = DEVICE_ERROR) -> Any:
    """Rank 4, on GPU 0 of h2, is ended by an error of the device; of that host's GPUs these are read on."""
    log = dying(script, 4)
    log.exited(4, STALL_S + 1.0, clean=False, reason=reason)
    for gpu in (0, 1):
        for second in range(2, 45, 2):
            if second < STALL_S or gpu in read_on:
                gauge = Gauge(
                    component=f"gpu:h2/{gpu}", name="power_w", observed_at=log.clock("h2", second), value=100.0 + second
                )
                log.sample("h2", second, gauge, "nvml")
    return log


def test_a_rank_that_ends_with_an_error_of_its_device_is_not_surely_to_blame_itself(script: Script) -> None:
    found = last(ended_by_device(script, 0, 1))
    assert (found.fault_class, found.culprit.component) == (FaultClass.PROCESS_DEAD, "rank:j/4")
    assert found.confidence < 0.75


@pytest.mark.parametrize("read_on", [(), (1,)])
def test_a_device_that_nothing_clears_of_its_error_is_more_likely_than_its_process(
    script: Script, read_on: tuple[int, ...]
) -> None:
    found = last(ended_by_device(script, *read_on))
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")
    assert found.confidence < 0.8
    assert "rank:j/4" in {each.component for each in found.explained}


def test_until_it_is_read_again_or_should_have_been_neither_is_sure(script: Script) -> None:
    early = ended_by_device(script, 1).verdicts(STALL_S + 5.0)
    assert all(each.confidence < 0.6 and each.culprit.component != "gpu:h2/0" for each in early)


@pytest.mark.parametrize("reason", ["CUDA error: device-side assert triggered", "ValueError: no such key"])
def test_an_error_of_the_program_leaves_a_silent_device_alone(script: Script, reason: str) -> None:
    found = last(ended_by_device(script, reason=reason))
    assert found.culprit.component == "rank:j/4"


def test_a_gpu_that_is_lost_explains_the_end_of_its_rank(script: Script) -> None:
    log = dying(script, 4)
    log.exited(4, STALL_S + 1.0, clean=False, reason="RuntimeError: CUDA error: unspecified launch failure")
    pci = log.fabric.attr("gpu:h2/0", "pci")
    log.xid("h2", pci, 79, STALL_S + 3.0)
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")
    assert ("rank:j/4", "it runs on gpu:h2/0") in {(each.component, each.because) for each in found.explained}


def test_ranks_listed_as_gone_since_nobody_knows_when_do_not_speak_against_the_one_that_left_with_words(
    script: Script,
) -> None:
    log = dying(script, 1, 4, 6)
    log.exited(4, STALL_S + 0.5, clean=False, reason="CUDA error: device-side assert triggered")
    gone(log, 1, STALL_S + 2.4)
    for rank in (1, 6):
        listed(log, rank, "gone", STALL_S + 4.0, clean="false")
    found = last(log)
    assert {each.component for each in found.culprits} == {"rank:j/4"}
    assert "rank:j/1" in {each.component for each in found.explained}
