"""Errors that the job ran on over are history; those of the last seconds, or that go on, are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import EventName, Severity
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 40.0
LINK = "link:nic:h1/rail0/1--port:leaf0/h1"
GPUS = (("h0", "0000:1b:00"), ("h0", "0000:43:00"), ("h2", "0000:1b:00"), ("h3", "0000:43:00"))


def running(script: Script) -> Any:
    log = script()
    log.register()
    log.step = log.run(1, STALL_S)
    return log


def judged(log: Any, to_s: float = 55.0, **stand: Any) -> list[Verdict]:
    log.stand(STALL_S, to_s, step=log.step, **stand)
    found = [verdict for verdict in log.verdicts(to_s) if verdict.job]
    assert found
    return found


def lost(log: Any, at_s: float) -> None:
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, at_s, host="h1", source="netlink", by="netlink")


@pytest.mark.parametrize("number", [79, 48, 74, 119])
def test_old_errors_on_four_gpus_do_not_outweigh_a_link_that_has_just_gone(script: Script, number: int) -> None:
    log = running(script)
    for host, pci in GPUS:
        log.xid(host, pci, number, 12.0)
    lost(log, STALL_S)
    found = judged(log)
    assert {c.component for v in found for c in v.culprits} == {LINK}
    assert found[-1].confidence > 0.8
    told = [each.because for each in found[-1].explained if each.component == "gpu:h0/0"]
    assert any("before steps stopped, and the job ran on for" in because for because in told)


def test_an_old_error_alone_names_nobody(script: Script) -> None:
    log = running(script)
    log.xid("h2", "0000:1b:00", 79, 12.0)
    assert all(not v.culprits for v in judged(log))


def test_an_error_of_the_last_seconds_before_the_stall_remains_a_suspect(script: Script) -> None:
    """A failing memory, or a link that retries, takes its time until it stops the job."""
    log = running(script)
    log.xid("h2", "0000:1b:00", 79, STALL_S - 12.0)
    assert judged(log)[-1].culprit.component == "gpu:h2/0"
    log = running(script)
    log.xid("h2", "0000:1b:00", 79, STALL_S - 6.0)
    found = judged(log)
    assert found[-1].culprit.component == "gpu:h2/0" and found[-1].confidence > 0.8


def test_an_old_error_that_repeats_at_the_stall_counts_in_full(script: Script) -> None:
    log = running(script)
    for at_s in (12.0, STALL_S + 0.2):
        log.xid("h2", "0000:1b:00", 79, at_s)
    found = judged(log)
    assert found[-1].culprit.component == "gpu:h2/0" and found[-1].confidence > 0.9


def test_an_old_row_remap_counts_in_full_once_the_process_dies_of_the_memory(script: Script) -> None:
    log = running(script)
    log.xid("h2", "0000:43:00", 63, 12.0, impact="ignore")
    log.exited(5, STALL_S + 0.3, clean=False, reason="CUDA error: uncorrectable ECC error encountered")
    found = judged(log, silent=(5,))
    assert (found[-1].fault_class, found[-1].culprit.component) == (FaultClass.GPU_MEMORY, "gpu:h2/1")
    assert found[-1].confidence > 0.9


def test_an_old_hang_of_an_adapter_names_nobody(script: Script) -> None:
    log = running(script)
    log.event("nic:h2/rail0/1", EventName.NIC_HANG, 12.0, host="h2", severity=Severity.FATAL, what="unrecoverable error")
    assert all(not v.culprits for v in judged(log))


def test_an_error_from_before_a_job_that_never_worked_is_no_history(script: Script) -> None:
    log = script()
    log.xid("h2", "0000:1b:00", 79, 0.5)
    log.register(at_s=30.0)
    for second in range(31, 180):
        for rank in range(8):
            log.progress(rank, second + 0.05 * rank, step=-1, age_s=0, joined=1, finished=0, phase="forward")
    found = [v for v in log.verdicts(180) if v.job]
    assert found[-1].culprit.component == "gpu:h2/0" and found[-1].confidence > 0.8


def test_a_link_that_is_lost_anew_is_named_although_nobody_told_that_it_had_come_back(script: Script) -> None:
    log = running(script)
    lost(log, 12.0)
    lost(log, STALL_S)
    found = judged(log)
    assert found[-1].culprit.component == LINK and found[-1].confidence > 0.8


def test_an_old_loss_that_is_told_again_during_a_stall_is_not_its_cause(script: Script) -> None:
    log = running(script)
    lost(log, 12.0)
    lost(log, STALL_S + 5.0)
    found = judged(log, joined={6: log.step * 4 + 2})
    assert {c.component for v in found for c in v.culprits} == {"rank:j/6"}


def test_an_old_error_is_no_history_while_only_ranks_elsewhere_went_on(script: Script) -> None:
    log = script()
    log.register()
    log.run(1, 12)
    log.xid("h2", "0000:1b:00", 48, 12.0)
    log.step = log.run(12, STALL_S, first_step=110)
    log.log = [
        each for each in log.log if "prog/0/4/" not in each.id or (each.received_at - log.clock("h3", 0)).seconds < 12
    ]
    for second in range(12, 55):
        log.progress(4, second + 0.7, step=110, age_s=second - 11.3, joined=443, finished=442, inside="all_reduce")
    log.stand(STALL_S, 55, step=log.step, silent=(4,))
    found = [v for v in log.verdicts(55) if v.job]
    assert found[-1].culprit.component == "gpu:h2/0"
    assert found[-1].confidence > 0.8


@pytest.mark.parametrize(("value", "named"), [("lost", True), ("reset_required", True), ("present", False)])
def test_a_gpu_that_was_lost_is_history_only_once_it_is_seen_again(script: Script, value: str, named: bool) -> None:
    log = running(script)
    log.xid("h2", "0000:1b:00", 79, 12.0)
    log.state("h2", "gpu:h2/0", "gpu", value, 14.0, "nvml")
    found = judged(log)
    assert [c.component for c in found[-1].culprits] == (["gpu:h2/0"] if named else [])


def dead_port_says_so_again(log: Any, *, until_s: float) -> None:
    for second in range(5, int(until_s), 4):
        text = f"mlx5_core 0000:1a:00.0 rail0: Link down, {second}"
        log.event("nic:h1/rail0/1", EventName.LINK_DOWN, float(second), host="h1", by="kernel", excerpt=text)


def test_a_dead_port_that_says_down_again_and_again_does_not_outweigh_the_culprit(script: Script) -> None:
    log = running(script)
    dead_port_says_so_again(log, until_s=STALL_S + 6)
    found = judged(log, silent=(6,))
    assert {c.component for v in found for c in v.culprits} == {"rank:j/6"}
    assert found[-1].confidence > 0.7


def test_a_port_that_came_up_after_its_old_losses_is_lost_anew(script: Script) -> None:
    log = running(script)
    dead_port_says_so_again(log, until_s=20)
    log.event("nic:h1/rail0/1", EventName.LINK_UP, 22.0, host="h1", by="kernel")
    log.event("nic:h1/rail0/1", EventName.LINK_DOWN, STALL_S, host="h1", by="kernel", excerpt="rail0: Link down at last")
    found = judged(log)
    assert found[-1].culprit.component == LINK and found[-1].confidence > 0.8
