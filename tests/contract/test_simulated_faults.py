"""Lines of every flavour of every fault, as blatant and as marginal as it comes, are what the collector's parsers read.

`test_simulated_lines` does the same for the scenarios by name.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from goodput_collector.domain.host_log import parse_host
from goodput_collector.domain.kernel_log import parse_text
from goodput_collector.domain.nccl_log import JobLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.domain.xid import SxidLines
from goodput_common.contracts.telemetry import Event, EventName, Source
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, Simulation
from goodput_faultlab.simulate.faults import MAKERS
from goodput_faultlab.simulate.lines import ANY_TIME
from goodput_faultlab.testing import small_job

EACH = [(fault_class, flavour) for fault_class in MAKERS for flavour in sorted(MAKERS[fault_class])]


def told(fault_class: FaultClass, flavour: str, source: Source) -> Iterator[tuple[str, Event]]:
    """(host, event) of everything that the fault itself says to one source."""
    for severity in (0.0, 0.3, 0.6, 1.0):
        fault = FaultSpec(fault_class=fault_class, flavour=flavour, severity=severity)
        for each in Simulation(small_job(fault), 4)._faults[0].emissions:
            sample = each.make(ANY_TIME)
            if each.source is source and isinstance(sample, Event):
                yield each.host, sample


@pytest.mark.parametrize(("fault_class", "flavour"), EACH)
def test_kernel_log_lines_are_those_that_the_parser_reads(fault_class: FaultClass, flavour: str) -> None:
    for host, event in told(fault_class, flavour, Source.KERNEL_LOG):
        if event.name is EventName.SXID:
            parsed = SxidLines().feed(event.excerpt, host=host, at=event.observed_at)
        elif event.name in (EventName.HOST_STALL, EventName.MACHINE_CHECK, EventName.STORAGE_STALL):
            parsed = parse_host(event.excerpt, host=host, at=event.observed_at)
        else:
            parsed = parse_text(event.excerpt, host=host, at=event.observed_at)
        assert parsed == event


@pytest.mark.parametrize(("fault_class", "flavour"), EACH)
def test_job_log_lines_are_those_that_the_parser_reads(fault_class: FaultClass, flavour: str) -> None:
    for host, event in told(fault_class, flavour, Source.JOB_LOG):
        parser = JobLogParser(
            host=host, clock=LineClock(), job="train-1", rank=int(event.attrs["rank"]), reference=event.observed_at
        )
        parsed = parser.feed(event.excerpt)
        assert parsed is not None
        assert (parsed.component, parsed.name, parsed.severity) == (event.component, event.name, event.severity)
        assert {key: value for key, value in parsed.attrs.items() if key != "at"} == event.attrs
