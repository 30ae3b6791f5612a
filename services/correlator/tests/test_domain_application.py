"""A job that stands still though nothing under it is broken: the application, or its storage. And PCIe errors, which are."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from goodput_common.contracts.ids import host_id, job_id, rank_id
from goodput_common.contracts.telemetry import (
    CollectorHeartbeat,
    Event,
    EventName,
    Severity,
    Source,
    SourceHealth,
    SourceStatus,
)
from goodput_common.contracts.verdict import ActionKind, FaultClass, Verdict
from goodput_correlator.domain.diagnosis.no_hardware_fault import shape_of

Script = Callable[..., Any]
STALL_S = 30.0
STORE_WAIT = "torch.distributed.DistStoreError: wait timeout after {}ms, keys: /default_pg/0//cuda//barrier"
NAN = "FloatingPointError: loss is nan at step {} on all ranks"


def running(script: Script, *, status: SourceStatus = SourceStatus.OK) -> Any:
    """A job that has moved for 30 s; its collectors say that they can read what tells of hardware."""
    log = script()
    log.register()
    sources = tuple(SourceHealth(source=each, status=status) for each in (Source.KERNEL_LOG, Source.NVML, Source.RDMA))
    for index in range(log.hosts):
        host = f"h{index}"
        for number in range(13):
            at_s = number * 5.0 + 0.3
            fact = CollectorHeartbeat(
                fabric=log.fabric.name, host=host, boot_id="b", seq=number + 1, at=log.clock(host, at_s), interval_s=5.0,
                sources=sources,
            )  # fmt: skip
            log.put(f"beat/{host}/{number}", host, "heartbeat", at_s, fact)
    log.last_step = log.run(1, STALL_S)
    return log


def last(verdicts: list[Verdict]) -> Verdict:
    assert verdicts, "no verdict"
    return verdicts[-1]


# ---------------------------------------------------------------------------------------------- the same exception


def test_ranks_that_all_raise_the_same_are_the_applications_doing(script: Script) -> None:
    log = running(script)
    for rank in range(log.world):
        log.exited(rank, STALL_S + 0.3 + 0.1 * rank, clean=False, reason=NAN.format(4000 + rank))
    verdicts = log.verdicts(STALL_S + 12)
    assert all(not verdict.culprits for verdict in verdicts if verdict.confidence > 0.7)
    verdict = last(verdicts)
    assert (verdict.fault_class, verdict.culprits, verdict.culprit.component) == (FaultClass.NO_HARDWARE_FAULT, (), None)
    assert verdict.confidence > 0.9
    assert verdict.action.kind is ActionKind.RESTART_JOB and verdict.action.target == job_id("j")
    assert all(each.event_id.startswith("exit/") for each in verdict.evidence)


def test_a_rank_that_raises_alone_is_named_itself(script: Script) -> None:
    log = running(script)
    log.exited(5, STALL_S + 0.3, clean=False, reason=NAN.format(1))
    log.stand(STALL_S, 45, step=log.last_step, silent=(5,))
    verdict = last(log.verdicts(45))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PROCESS_DEAD, rank_id("j", 5))


def test_a_rank_that_ends_while_the_others_have_long_waited_is_not_why_they_give_up(script: Script) -> None:
    """Its own last words got lost: it is gone, and says nothing of why."""
    log = running(script)
    for rank in range(log.world):
        at_s = STALL_S + 0.2 + 0.3 * rank
        if rank == 6:
            attrs = {"pid": "1006", "clean": "false"}
            log.event(rank_id("j", 6), EventName.PROCESS_EXITED, at_s, host="h3", source="process", **attrs)
        else:
            log.exited(rank, at_s, clean=False, reason=STORE_WAIT.format(300000))
    verdicts = log.verdicts(STALL_S + 15)
    assert {verdict.fault_class for verdict in verdicts} == {FaultClass.NO_HARDWARE_FAULT}


def test_a_rank_that_ended_before_the_others_began_to_wait_is_why(script: Script) -> None:
    log = running(script)
    attrs = {"pid": "1006", "clean": "false"}
    log.event(rank_id("j", 6), EventName.PROCESS_EXITED, STALL_S + 0.2, host="h3", source="process", **attrs)
    log.stand(STALL_S, STALL_S + 12, step=log.last_step, silent=(6,))
    for rank in range(log.world):
        if rank != 6:
            log.exited(rank, STALL_S + 12 + 0.1 * rank, clean=False, reason=STORE_WAIT.format(5000))
    verdict = last([verdict for verdict in log.verdicts(STALL_S + 20) if verdict.culprits])
    assert verdict.culprit.component == rank_id("j", 6)


def test_lost_connections_on_all_ranks_say_nothing_of_the_application(script: Script) -> None:
    log = running(script)
    log.stand(STALL_S, 60, step=log.last_step)
    for rank in range(log.world):
        log.exited(rank, 60.0 + 0.1 * rank, clean=False, reason="RuntimeError: NCCL communicator was aborted on rank 3")
    assert FaultClass.NO_HARDWARE_FAULT not in {verdict.fault_class for verdict in log.verdicts(75)}


def test_what_a_broken_gpu_brings_about_is_not_the_application(script: Script) -> None:
    log = running(script)
    log.xid("h1", "1", 48, STALL_S)
    for rank in range(log.world):
        log.exited(rank, STALL_S + 0.8 + 0.1 * rank, clean=False, reason=NAN.format(4000 + rank))
    log.stand(STALL_S, STALL_S + 1, step=log.last_step)
    assert FaultClass.NO_HARDWARE_FAULT not in {v.fault_class for v in log.verdicts(STALL_S + 12) if v.confidence > 0.7}


def test_what_nobody_looks_at_makes_it_less_certain(script: Script) -> None:
    confidences = []
    for status in (SourceStatus.OK, SourceStatus.UNKNOWN):
        log = running(script, status=status)
        for rank in range(log.world):
            log.exited(rank, STALL_S + 0.3 + 0.1 * rank, clean=False, reason=NAN.format(4000 + rank))
        verdict = last(log.verdicts(STALL_S + 12))
        assert verdict.fault_class is FaultClass.NO_HARDWARE_FAULT
        confidences.append(verdict.confidence)
    assert confidences[1] < confidences[0] - 0.1


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("ValueError: bad batch 17", "ValueError: bad batch 3", True),
        ("RuntimeError: at 0x7f12 on rank 3", "RuntimeError: at 0x9ab on rank 5", True),
        ("ValueError: bad batch", "TypeError: bad batch", False),
    ],
)
def test_numbers_and_ranks_do_not_make_an_exception_another_one(one: str, other: str, same: bool) -> None:
    assert (shape_of(one) == shape_of(other)) is same


# ------------------------------------------------------------------------------------- errors that applications cause


def test_application_xids_on_several_gpus_blame_none_of_them(script: Script) -> None:
    log = running(script)
    for n, host in enumerate(("h0", "h1", "h3")):
        log.xid(host, str(n % 2), 13, STALL_S + 0.2 * n, impact="app", gpc=str(n), tpc="1")
    log.exited(
        0, STALL_S + 1.0, clean=False, reason="AcceleratorError: CUDA error: an illegal memory access was encountered"
    )
    log.stand(STALL_S, 50, step=log.last_step, silent=(0,))
    verdicts = log.verdicts(50)
    assert last(verdicts).fault_class is FaultClass.NO_HARDWARE_FAULT
    assert not any(verdict.culprits for verdict in verdicts)


def test_one_gpu_that_logs_an_application_xid_does_not_clear_it(script: Script) -> None:
    log = running(script)
    for at_s in (0.0, 0.5):
        log.xid("h1", "0", 13, STALL_S + at_s, impact="app", gpc="2", tpc="3")
    log.stand(STALL_S, 50, step=log.last_step)
    assert FaultClass.NO_HARDWARE_FAULT not in {verdict.fault_class for verdict in log.verdicts(50)}


# --------------------------------------------------------------------------------------- the CPU side, and long phases


def test_a_library_stuck_on_the_cpu_counts_only_where_devices_are_seen_to_be_well(script: Script) -> None:
    said = {}
    for status in (SourceStatus.OK, SourceStatus.UNKNOWN):
        log = running(script, status=status)
        log.stand(STALL_S, 60, step=log.last_step)
        for rank in range(4):
            log.event(
                rank_id("j", rank), EventName.NCCL_WATCHDOG, STALL_S + 5, host=log.host(rank), source="job_log",
                kind="stuck", rank=str(rank), for_s="480",
            )  # fmt: skip
        said[status] = last(log.verdicts(60)).fault_class
    assert said == {SourceStatus.OK: FaultClass.NO_HARDWARE_FAULT, SourceStatus.UNKNOWN: FaultClass.UNDETERMINED}


def test_a_long_evaluation_on_all_ranks_is_what_the_job_does(script: Script) -> None:
    log = running(script)
    count = log.last_step * 4 + 2
    log.stand(
        STALL_S, 110, step=log.last_step, phases=dict.fromkeys(range(log.world), "evaluation"), waiting=False,
        joined=dict.fromkeys(range(log.world), count), finished=dict.fromkeys(range(log.world), count),
    )  # fmt: skip
    verdicts = log.verdicts(110)
    assert not any(verdict.culprits for verdict in verdicts)
    assert last(verdicts).fault_class is FaultClass.NO_HARDWARE_FAULT
    assert last(verdicts).action.kind is ActionKind.OBSERVE
    assert min(verdict.published_at for verdict in verdicts) - log.log[0].received_at > timedelta(seconds=STALL_S + 50)


# ------------------------------------------------------------------------------------------------------------ storage


def stand_at_storage(log: Any, ranks: tuple[int, ...], to_s: float = 60, phase: str = "data") -> None:
    """Those ranks have not joined the next collective; the others wait in it."""
    count = log.last_step * 4 + 2
    log.stand(STALL_S, to_s, step=log.last_step, joined=dict.fromkeys(ranks, count), phases=dict.fromkeys(ranks, phase))


def beat(seen: Any) -> int:
    number: int = seen.fact.seq
    return number


def stalls(log: Any, host: str, at_s: float, state: str = "stalled", **attrs: str) -> None:
    told = {"mount": "/data", "server": "10.0.0.9:/data", "what": "no completion", "state": state} | attrs
    log.event(host_id(host), EventName.STORAGE_STALL, at_s, host=host, source="host", **told)


def test_a_mount_that_hangs_under_ranks_at_their_input_names_the_host(script: Script) -> None:
    log = running(script)
    stand_at_storage(log, (2,))
    stalls(log, "h1", STALL_S + 9)
    verdict = last(log.verdicts(60))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.STORAGE_STALL, host_id("h1"))
    assert verdict.confidence > 0.85
    assert "/data" in verdict.action.reason


def test_a_mount_that_hangs_for_all_hosts_is_the_jobs_storage(script: Script) -> None:
    log = running(script)
    stand_at_storage(log, (0, 2, 4, 6))
    for host in ("h0", "h1", "h2", "h3"):
        stalls(log, host, STALL_S + 9)
    verdict = last(log.verdicts(60))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.STORAGE_STALL, job_id("j"))
    assert verdict.action.kind is ActionKind.HAND_TO_PERSON and "10.0.0.9" in verdict.action.reason


def test_a_mount_that_answers_again_is_not_why(script: Script) -> None:
    log = running(script)
    stalls(log, "h1", STALL_S - 20)
    stalls(log, "h1", STALL_S - 15, state="restored")
    stand_at_storage(log, (2,))
    assert FaultClass.STORAGE_STALL not in {verdict.fault_class for verdict in log.verdicts(60)}


def test_a_mount_that_hangs_elsewhere_does_not_hide_a_dead_gpu(script: Script) -> None:
    log = running(script)
    stalls(log, "h3", STALL_S - 1)
    log.xid("h1", "1", 79, STALL_S, impact="reboot")
    log.stand(STALL_S, 50, step=log.last_step, silent=(3,))
    assert last(log.verdicts(50)).fault_class is FaultClass.GPU_OFF_BUS


@pytest.mark.parametrize(
    ("frame", "fault_class", "component"),
    [
        ("dataset.py:131 in read_shard", FaultClass.STORAGE_STALL, "host:h1"),
        ("checkpoint.py:71 in write", FaultClass.STORAGE_STALL, "host:h1"),
        ("dataloader.py:1284 in _get_data", FaultClass.PROCESS_STALL, "rank:j/2"),
        ("train.py:12 in spread", FaultClass.PROCESS_STALL, "rank:j/2"),
    ],
)
def test_code_that_reads_on_a_host_that_nobody_tells_of_makes_its_storage_likelier(
    script: Script, frame: str, fault_class: FaultClass, component: str
) -> None:
    log = running(script)
    log.log = [each for each in log.log if each.source != "heartbeat" or each.host != "h1" or beat(each) <= 4]
    stand_at_storage(log, (2,))
    log.suspected(2, STALL_S + 2.0, log.last_step, frames=(frame,))
    verdict = last(log.verdicts(60))
    assert (verdict.fault_class, verdict.culprit.component) == (fault_class, component)
    if fault_class is FaultClass.STORAGE_STALL:
        assert verdict.confidence < 0.8


# --------------------------------------------------------------------------------------------------------------- PCIe


def bus_error(log: Any, gpu: str, severity: str, at_s: float) -> None:
    host = gpu.partition(":")[2].partition("/")[0]
    how = {"corrected": Severity.INFO, "uncorrected": Severity.ERROR, "fatal": Severity.FATAL}[severity]
    fact = Event(
        component=gpu, name=EventName.AER, observed_at=log.clock(host, at_s), severity=how,
        excerpt=f"PCIe Bus Error: severity={severity}", attrs={"severity": severity},
    )  # fmt: skip
    log.sample(host, at_s, fact)


@pytest.mark.parametrize("severity", ["uncorrected", "fatal"])
def test_a_bus_error_that_was_not_corrected_names_the_gpu(script: Script, severity: str) -> None:
    log = running(script)
    bus_error(log, "gpu:h1/1", severity, STALL_S)
    log.stand(STALL_S, 50, step=log.last_step, silent=(3,))
    verdict = last(log.verdicts(50))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.PCIE, "gpu:h1/1")
    assert verdict.culprit.ranks == (3,)


def test_corrected_bus_errors_name_nobody(script: Script) -> None:
    log = running(script)
    for n in range(20):
        bus_error(log, "gpu:h1/1", "corrected", STALL_S - 10 + n)
    log.stand(STALL_S, 50, step=log.last_step)
    assert FaultClass.PCIE not in {verdict.fault_class for verdict in log.verdicts(50)}


def test_bus_errors_of_a_gpu_that_falls_off_the_bus_follow_from_that(script: Script) -> None:
    log = running(script)
    bus_error(log, "gpu:h1/1", "fatal", STALL_S - 7)
    log.xid("h1", "1", 79, STALL_S, impact="reboot")
    log.stand(STALL_S, 50, step=log.last_step, silent=(3,))
    verdict = last(log.verdicts(50))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h1/1")
    assert any("leaves errors on it" in each.because for each in verdict.explained)


# ------------------------------------------------------------------------------------------ what the catalogue asks for


@pytest.mark.parametrize(
    ("impact", "wish", "action"),
    [
        ("reset", "", ActionKind.RESET_GPU),
        ("reboot", "", ActionKind.SWAP_NODE),
        ("reset", "node_reboot", ActionKind.SWAP_NODE),
        ("reboot", "gpu_reset", ActionKind.RESET_GPU),
    ],
)
def test_what_the_driver_wants_goes_before_what_the_catalogue_asks_for(
    script: Script, impact: str, wish: str, action: ActionKind
) -> None:
    log = running(script)
    log.xid("h1", "1", 62, STALL_S, impact=impact)
    if wish:
        log.xid("h1", "1", 154, STALL_S + 0.2, impact="workflow", recovery_action=wish)
    log.stand(STALL_S, 50, step=log.last_step, silent=(3,))
    verdict = last(log.verdicts(50))
    assert (verdict.fault_class, verdict.culprit.component) == (FaultClass.GPU_DRIVER, "gpu:h1/1")
    assert verdict.action.kind is action
