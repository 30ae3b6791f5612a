"""What the simulator says a collector saw is what the collector's parsers make of the very same line.

Every kernel-log and job-log event that any scenario puts out, over several seeds, goes through the real parsers:
component, name, severity, attributes and excerpt must come out equal. A simulation that drifts from the collector would
train the engines on fiction.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from goodput_collector.domain.host_log import parse_host
from goodput_collector.domain.kernel_log import parse_text
from goodput_collector.domain.nccl_log import JobLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.domain.xid import SxidLines
from goodput_common.contracts.telemetry import Event, EventName, Source, TelemetryBatch
from goodput_faultlab.simulate import SCENARIOS, NoiseSpec, Simulation, scenario

LOUD = NoiseSpec(corrected_aer=600, management_flaps=600, application_xids=600, kernel_chatter=600)


def seen(name: str, source: Source) -> list[tuple[str, Event]]:
    """(host, event) of every event of a source in one run with much noise."""

    spec = scenario(name, hosts=2, spares=1, others=2)
    simulation = Simulation(replace(spec, noise=replace(LOUD, checkpoint_every=spec.noise.checkpoint_every)), 5)
    return [
        (out.struct.host, sample)
        for out in simulation.advance(simulation.spec.start + timedelta(seconds=55))
        if isinstance(out.struct, TelemetryBatch) and out.struct.source is source
        for sample in out.struct.samples
        if isinstance(sample, Event)
    ]


@pytest.mark.parametrize("name", SCENARIOS)
def test_kernel_log_events_are_those_that_the_parser_reads(name: str) -> None:
    found = seen(name, Source.KERNEL_LOG)
    assert found
    for host, event in found:
        if event.name is EventName.SXID:
            parsed = SxidLines().feed(event.excerpt, host=host, at=event.observed_at)
        elif event.name is EventName.HOST_STALL:
            parsed = parse_host(event.excerpt, host=host, at=event.observed_at)
        else:
            parsed = parse_text(event.excerpt, host=host, at=event.observed_at)
        assert parsed == event


@pytest.mark.parametrize("name", [name for name in SCENARIOS if SCENARIOS[name].faults])
def test_job_log_events_are_those_that_the_parser_reads(name: str) -> None:
    for host, event in seen(name, Source.JOB_LOG):
        parser = JobLogParser(
            host=host,
            clock=LineClock(),
            job="train-1",
            rank=int(event.attrs["rank"]),
            reference=event.observed_at,
        )
        parsed = parser.feed(event.excerpt)
        assert parsed is not None
        assert (parsed.component, parsed.name, parsed.severity) == (event.component, event.name, event.severity)
        assert {key: value for key, value in parsed.attrs.items() if key != "at"} == event.attrs
