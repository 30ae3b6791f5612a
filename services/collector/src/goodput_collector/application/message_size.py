"""How much goes into one message: the bus takes only so many bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from goodput_collector.application.encodable import NOT_ENCODABLE
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import Sample

SAMPLES_PER_BATCH = 400
DUMP_BYTES_MAX = 700_000


def chunks(samples: Sequence[Sample]) -> Iterator[Sequence[Sample]]:
    for start in range(0, len(samples), SAMPLES_PER_BATCH):
        yield samples[start : start + SAMPLES_PER_BATCH]


def fitting(dump: FlightRecorderDump) -> FlightRecorderDump:
    """The same dump with as many of the newest collectives as a message may carry."""
    with contextlib.suppress(*NOT_ENCODABLE):  # the spool sees to that
        while len(dump.collectives) > 8 and len(msgspec.json.encode(dump)) > DUMP_BYTES_MAX:
            kept = dump.collectives[len(dump.collectives) // 2 :]
            dump = msgspec.structs.replace(dump, collectives=kept, truncated=True)
    return dump
