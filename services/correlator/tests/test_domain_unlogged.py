"""Devices whose kernel line got lost on its way: what else tells of the fault is enough, and no more than it can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.contracts.telemetry import Counter
from goodput_common.contracts.verdict import FaultClass, Verdict

Script = Callable[..., Any]
STALL_S = 30.0
FIRST, SECOND = "0000:1b:00", "0000:43:00"  # the GPUs of each host, ranks 2n and 2n + 1
CUDA_LOST = "RuntimeError: CUDA error: unspecified launch failure"


def running(script: Script) -> Any:
    log = script()
    log.register()
    log.beats(60)
    log.last_step = log.run(1, STALL_S)
    for pci in (FIRST, SECOND):
        log.state("h1", f"gpu:h1/{pci}", "gpu", "present", 5.0, "nvml")
    return log


def inside(log: Any, silent: tuple[int, ...] = ()) -> None:
    """All are in one collective that does not end."""
    log.stand(STALL_S, 50, step=log.last_step, silent=silent)


def mute(log: Any, pci: str, at_s: float, value: str = "unreadable") -> None:
    log.state("h1", f"gpu:h1/{pci}", "gpu", value, at_s, "nvml")


def counts(log: Any, name: str, at_s: float, source: str) -> None:
    at = log.clock("h1", at_s)
    made = Counter(component=f"gpu:h1/{FIRST}", name=name, observed_at=at, delta=2, interval_s=5.0, value=2)
    log.sample("h1", at_s, made, source)


def last(log: Any) -> Verdict:
    found: list[Verdict] = [verdict for verdict in log.verdicts(50) if verdict.job]
    assert found, "no verdict"
    return found[-1]


def test_a_gpu_that_nvml_calls_lost_is_off_the_bus(script: Script) -> None:
    log = running(script)
    mute(log, FIRST, STALL_S + 2.0, "lost")
    inside(log)
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h1/0")
    assert found.confidence >= 0.85


def test_a_gpu_without_an_answer_whose_process_was_handed_an_error_is_off_the_bus(script: Script) -> None:
    log = running(script)
    log.exited(2, STALL_S + 2.0, clean=False, reason=CUDA_LOST)
    mute(log, FIRST, STALL_S + 11.0)
    inside(log, silent=(2,))
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h1/0")
    assert found.confidence >= 0.7


def test_the_error_of_a_process_alone_loses_no_gpu(script: Script) -> None:
    log = running(script)
    log.exited(2, STALL_S + 2.0, clean=False, reason=CUDA_LOST)
    inside(log, silent=(2,))
    assert last(log).fault_class is FaultClass.PROCESS_DEAD


def test_a_gpu_without_an_answer_whose_process_waits_is_held_by_its_driver(script: Script) -> None:
    log = running(script)
    mute(log, FIRST, STALL_S + 11.0)
    inside(log)
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_DRIVER, "gpu:h1/0")
    assert found.confidence < 0.9


@pytest.mark.parametrize("why", ["both are", "it was so before", "nobody knows of the other"])
def test_readings_that_fail_for_another_reason_name_no_gpu(script: Script, why: str) -> None:
    log = running(script)
    mute(log, FIRST, STALL_S - 20.0 if why == "it was so before" else STALL_S + 11.0)
    if why != "it was so before":
        mute(log, SECOND, STALL_S + 11.0, "unreadable" if why == "both are" else "unseen")
    inside(log)
    assert last(log).fault_class is FaultClass.UNDETERMINED


@pytest.mark.parametrize(
    ("counter", "source", "fault_class"),
    [
        ("aer_nonfatal", "host", FaultClass.PCIE),
        ("aer_fatal", "host", FaultClass.PCIE),
        ("ecc_uncorrected_volatile_total", "nvml", FaultClass.GPU_MEMORY),
    ],
)
def test_what_a_device_counts_as_the_job_stops_names_it(
    script: Script, counter: str, source: str, fault_class: FaultClass
) -> None:
    log = running(script)
    counts(log, counter, STALL_S + 3.0, source)
    inside(log)
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (fault_class, "gpu:h1/0")
    assert found.confidence >= 0.7


@pytest.mark.parametrize("counter", ["aer_nonfatal", "ecc_uncorrected_volatile_total"])
def test_what_it_counted_long_before_names_nobody(script: Script, counter: str) -> None:
    log = running(script)
    counts(log, counter, STALL_S - 15.0, "host" if counter.startswith("aer") else "nvml")
    inside(log)
    assert last(log).fault_class is FaultClass.UNDETERMINED


def test_a_row_that_could_not_be_put_out_of_use_is_a_fault_of_the_memory(script: Script) -> None:
    log = running(script)
    log.state("h1", f"gpu:h1/{FIRST}", "row_remap", "failed", STALL_S + 6.0, "nvml")
    inside(log)
    found = last(log)
    assert (found.fault_class, found.culprit.component) == (FaultClass.GPU_MEMORY, "gpu:h1/0")


def test_a_row_that_is_only_marked_is_none(script: Script) -> None:
    log = running(script)
    log.state("h1", f"gpu:h1/{FIRST}", "row_remap", "pending", STALL_S + 6.0, "nvml")
    inside(log)
    assert last(log).fault_class is FaultClass.UNDETERMINED
