"""Facts as they are kept, and back again without loss.

What a training process or a heartbeat says is one row: a kind name and a JSON text. A batch is one row, too, compressed as
it came: a fabric tells some seventy thousand samples a second in a few thousand batches. Three kinds tell batches apart:
`measured` holds nothing but counters, gauges and probes, of which only the newest matter; a `batch` also says what happened
or how things stand; `host_progress` are the reports of a job's ranks on one host.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec
import zstandard

from goodput_common.contracts.ids import ComponentId, host_id, rank_id
from goodput_common.contracts.job import (
    FlightRecorderDump,
    HostProgress,
    RankExited,
    RankProgress,
    RankRegistered,
    StallSuspected,
)
from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, Event, Gauge, Probe, State, TelemetryBatch
from goodput_correlator.domain.case import Fact, Observed
from goodput_correlator.domain.remembered import Batch

KINDS: dict[str, type[Any]] = {
    "event": Event,
    "counter": Counter,
    "gauge": Gauge,
    "state": State,
    "probe": Probe,
    "heartbeat": CollectorHeartbeat,
    "rank_registered": RankRegistered,
    "rank_progress": RankProgress,
    "stall_suspected": StallSuspected,
    "rank_exited": RankExited,
    "flight_recorder": FlightRecorderDump,
}
_NAMES = {struct: kind for kind, struct in KINDS.items()}
_DECODERS = {kind: msgspec.json.Decoder(struct) for kind, struct in KINDS.items()}
_ENCODER = msgspec.json.Encoder()
BATCH, MEASURED, REPORTS = "batch", "measured", "host_progress"
BATCH_BYTES_MAX = 16 << 20  # decompressed, as on the bus
_COMPRESSOR = zstandard.ZstdCompressor(level=1, write_content_size=True)
_DECOMPRESSOR = zstandard.ZstdDecompressor()
_BATCH_DECODER = msgspec.json.Decoder(TelemetryBatch)
_REPORTS_DECODER = msgspec.json.Decoder(HostProgress)


def kind_of(fact: Fact) -> str:
    return _NAMES[type(fact)]


def component_of(fact: Fact) -> ComponentId:
    """What the fact speaks of."""
    if isinstance(fact, Event | Counter | State | Gauge | Probe):
        return fact.component
    if isinstance(fact, CollectorHeartbeat):
        return host_id(fact.host)
    return rank_id(fact.job, fact.rank)


def encode(fact: Fact) -> str:
    return _ENCODER.encode(fact).decode()


def decode(kind: str, text: str | bytes) -> Fact:
    """Raises KeyError for an unknown kind and msgspec.ValidationError for a body of another shape."""
    fact: Fact = _DECODERS[kind].decode(text)
    return fact


def kind_of_batch(batch: Batch) -> str:
    if isinstance(batch.data, HostProgress):
        return REPORTS
    lasts = any(isinstance(sample, Event | State) for sample in batch.data.samples)
    return BATCH if lasts else MEASURED


def row_about(batch: Batch) -> tuple[ComponentId | None, str | None, datetime]:
    """What its row is found by: component, job, and when it was observed."""
    data = batch.data
    if isinstance(data, HostProgress):
        return host_id(data.host), data.job, data.at
    return None, None, data.observed_to


def newest_reports(batches: Iterable[Batch]) -> dict[ComponentId, Observed]:
    """The newest report of each rank that is in any of them."""
    newest: dict[ComponentId, Observed] = {}
    for batch in sorted(batches, key=lambda each: (each.received_at, each.id)):
        newest |= {component_of(each.fact): each for each in batch.all()}
    return newest


def pack(batch: Batch) -> bytes:
    return _COMPRESSOR.compress(_ENCODER.encode(batch.data))


def unpack(id: str, kind: str, received_at: datetime, packed: bytes) -> Batch:
    """Raises zstandard.ZstdError or msgspec.ValidationError for bytes that `pack` did not make."""
    body = _DECOMPRESSOR.decompress(packed, max_output_size=BATCH_BYTES_MAX)
    return Batch(id, received_at, (_REPORTS_DECODER if kind == REPORTS else _BATCH_DECODER).decode(body))


def row_of(event_id: str) -> tuple[str, int] | None:
    """The message and the number of a part's id (`<message id>#<n>`); None for the id of a message of one fact."""
    message, mark, number = event_id.rpartition("#")
    return (message, int(number)) if mark and number.isascii() and number.isdigit() and len(number) < 7 else None


def fact_in(batch: Batch, n: int) -> Observed | None:
    """A batch's part n, None where it has none."""
    return batch.observed(n) if n < len(batch.parts) else None
