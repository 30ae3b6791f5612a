"""Devices that look alike when they fail: a GPU that is gone and one whose driver is, a hung adapter and its cable, a host
that is down and its links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import Event, EventName, Severity
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 30.0
FIRST, SECOND = "0000:1b:00", "0000:43:00"  # the GPUs of each host, ranks 2n and 2n + 1
NIC, LINK = "nic:h1/rail0/1", "link:nic:h1/rail0/1--port:leaf0/h1"


def running(script: Script) -> Any:
    log = script()
    log.register()
    log.beats(60)
    log.last_step = log.run(1, STALL_S)
    return log


def no_init(log: Any, pci: str, at_s: float) -> None:
    """A GPU that the driver could not bring up."""
    what = "RmInitAdapter failed"
    log.event(f"gpu:h1/{pci}", EventName.GPU_LOST, at_s, host="h1", severity=Severity.FATAL, what=what, pci=pci)


def said(verdicts: list[Verdict]) -> tuple[FaultClass, str | None]:
    mine = [verdict for verdict in verdicts if verdict.job]
    assert mine, "no verdict"
    return mine[-1].fault_class, mine[-1].culprit.component


def test_a_gpu_that_could_not_be_initialised_and_says_nothing_else_is_off_the_bus(script: Script) -> None:
    log = running(script)
    no_init(log, FIRST, STALL_S + 0.5)
    log.stand(STALL_S, 45, step=log.last_step, joined={2: log.last_step * 4 + 2})
    assert said(log.verdicts(45)) == (FaultClass.GPU_OFF_BUS, "gpu:h1/0")


@pytest.mark.parametrize("by", ["firmware timed out before", "NVML wants a reset"])
def test_one_that_is_still_on_the_bus_is_held_by_its_driver(script: Script, by: str) -> None:
    log = running(script)
    no_init(log, FIRST, STALL_S + 3.0)
    if by == "NVML wants a reset":
        log.state("h1", f"gpu:h1/{FIRST}", "gpu", "reset_required", STALL_S + 4.0, "nvml")
    else:
        log.xid("h1", FIRST, 119, STALL_S + 0.2)
    log.stand(STALL_S, 45, step=log.last_step, joined={2: log.last_step * 4 + 2})
    assert said(log.verdicts(45)) == (FaultClass.GPU_DRIVER, "gpu:h1/0")


@pytest.mark.parametrize("by", ["Xid 79", "NVML", "the root port"])
def test_whoever_says_that_it_is_off_the_bus_is_believed_although_firmware_timed_out(script: Script, by: str) -> None:
    log = running(script)
    log.xid("h1", FIRST, 119, STALL_S + 0.2)
    no_init(log, FIRST, STALL_S + 1.0)
    if by == "Xid 79":
        log.xid("h1", FIRST, 79, STALL_S + 0.1, impact="reboot")
    elif by == "NVML":
        log.state("h1", f"gpu:h1/{FIRST}", "gpu", "lost", STALL_S + 2.0, "nvml")
    else:
        at = log.clock("h1", STALL_S + 0.1)
        attrs = {"severity": "fatal", "pci": FIRST}
        log.sample("h1", STALL_S + 0.1, Event(component="host:h1", name=EventName.AER, observed_at=at, attrs=attrs))
    log.stand(STALL_S, 45, step=log.last_step, joined={2: log.last_step * 4 + 2})
    assert said(log.verdicts(45)) == (FaultClass.GPU_OFF_BUS, "gpu:h1/0")


def test_gpus_of_a_host_that_stop_answering_together_are_the_driver_of_the_host(script: Script) -> None:
    log = running(script)
    no_init(log, FIRST, STALL_S + 2.0)
    log.state("h1", f"gpu:h1/{SECOND}", "gpu", "unreadable", STALL_S + 1.5, "nvml")
    log.stand(STALL_S, 45, step=log.last_step, joined=dict.fromkeys((2, 3), log.last_step * 4 + 2))
    found = log.verdicts(45)
    assert said(found) == (FaultClass.GPU_DRIVER, "host:h1")
    assert found[-1].culprit.ranks == (2, 3)
    assert {"gpu:h1/0", "gpu:h1/1"} <= {each.component for each in found[-1].explained}


def test_processes_that_the_driver_took_with_it_say_so(script: Script) -> None:
    log = running(script)
    for rank in (2, 3):
        log.exited(rank, STALL_S + 1.0 + rank / 10, clean=False, reason="RuntimeError: CUDA error: driver shutting down")
    log.stand(STALL_S, 45, step=log.last_step, silent=(2, 3))
    assert said(log.verdicts(45)) == (FaultClass.GPU_DRIVER, "host:h1")


def test_readings_that_wait_behind_one_hung_gpu_are_no_driver_of_the_host(script: Script) -> None:
    log = running(script)
    log.xid("h1", FIRST, 119, STALL_S + 0.2)
    for pci in (FIRST, SECOND):
        log.state("h1", f"gpu:h1/{pci}", "gpu", "unreadable", STALL_S + 8.0, "nvml")
    log.stand(STALL_S, 45, step=log.last_step, joined={2: log.last_step * 4 + 2})
    assert said(log.verdicts(45)) == (FaultClass.GPU_DRIVER, "gpu:h1/0")


def test_ports_that_switches_see_go_down_follow_from_the_host_at_their_other_end(script: Script) -> None:
    log = script()
    log.register()
    log.beats(60, without=("h1",))
    for number in range(6):
        log.beat("h1", number * 5.0 + 0.3, number + 1)
    last = log.run(1, STALL_S)
    log.event("port:leaf0/h1", EventName.LINK_DOWN, STALL_S + 0.4, host="h0", source="switch")
    log.stand(STALL_S, 55, step=last, silent=(2, 3))
    found = log.verdicts(55)
    assert said(found) == (FaultClass.HOST_DOWN, "host:h1")
    assert LINK in {each.component for each in found[-1].explained}


def hang(log: Any, name: EventName, at_s: float, **attrs: str) -> None:
    log.event(NIC, name, at_s, host="h1", **attrs)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        (EventName.DEVICE_HEALTH, {"reporter": "fw_fatal", "state": "error"}),
        (EventName.NCCL_ASYNC_EVENT, {"event": "local_catastrophic_error"}),
        (EventName.NIC_HANG, {"what": "health compromised - reached miss count"}),
    ],
)
def test_each_witness_of_a_dead_adapter_names_it(script: Script, name: EventName, attrs: dict[str, str]) -> None:
    log = running(script)
    hang(log, name, STALL_S + 0.5, **attrs)
    log.stand(STALL_S, 45, step=log.last_step)
    assert said(log.verdicts(45)) == (FaultClass.NIC_HANG, NIC)


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        (EventName.DEVICE_HEALTH, {"reporter": "fw", "state": "healthy"}),
        (EventName.DEVICE_HEALTH, {"reporter": "tx", "state": "error"}),
        (EventName.NCCL_ASYNC_EVENT, {"event": "port_error"}),
    ],
)
def test_what_is_said_of_other_things_hangs_no_adapter(script: Script, name: EventName, attrs: dict[str, str]) -> None:
    log = running(script)
    hang(log, name, STALL_S + 0.5, **attrs)
    log.stand(STALL_S, 45, step=log.last_step)
    assert said(log.verdicts(45))[0] is not FaultClass.NIC_HANG


def test_a_link_that_a_hung_adapter_drops_is_explained_whoever_tells_of_it(script: Script) -> None:
    log = running(script)
    hang(log, EventName.NIC_HANG, STALL_S + 0.5, what="health compromised - reached miss count")
    log.event("port:leaf0/h1", EventName.LINK_DOWN, STALL_S + 0.9, host="h0", source="switch")
    log.stand(STALL_S, 55, step=log.last_step)
    found = log.verdicts(55)
    assert said(found) == (FaultClass.NIC_HANG, NIC)
    assert any(each.component == LINK and "drops its link" in each.because for each in found[-1].explained)
