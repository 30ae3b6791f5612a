"""Facts as they are kept, and back again without loss.

What a training process or a heartbeat says is one row: a kind name and a JSON text. A telemetry batch is one row, too,
compressed as it came: a fabric tells some seventy thousand samples a second in a few thousand batches. Two kinds tell
batches apart: `measured` holds nothing but counters, gauges and probes, of which only the newest matter; a `batch` also
says what happened or how things stand.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import zstandard

from goodput_common.contracts.ids import ComponentId, host_id, rank_id
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
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
BATCH, MEASURED = "batch", "measured"
BATCH_BYTES_MAX = 16 << 20  # decompressed, as on the bus
_COMPRESSOR = zstandard.ZstdCompressor(level=1, write_content_size=True)
_DECOMPRESSOR = zstandard.ZstdDecompressor()
_BATCH_DECODER = msgspec.json.Decoder(TelemetryBatch)


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
    lasts = any(isinstance(sample, Event | State) for sample in batch.data.samples)
    return BATCH if lasts else MEASURED


def pack(batch: Batch) -> bytes:
    return _COMPRESSOR.compress(_ENCODER.encode(batch.data))


def unpack(id: str, received_at: datetime, packed: bytes) -> Batch:
    """Raises zstandard.ZstdError or msgspec.ValidationError for bytes that `pack` did not make."""
    body = _DECOMPRESSOR.decompress(packed, max_output_size=BATCH_BYTES_MAX)
    return Batch(id, received_at, _BATCH_DECODER.decode(body))


def row_of(event_id: str) -> tuple[str, int] | None:
    """The message and the number of a sample's id (`<message id>#<n>`); None for the id of a message of one fact."""
    message, mark, number = event_id.rpartition("#")
    return (message, int(number)) if mark and number.isascii() and number.isdigit() and len(number) < 7 else None


def fact_in(batch: Batch, n: int) -> Observed | None:
    """A batch's sample n, None where it has none."""
    return batch.observed(n) if n < len(batch.data.samples) else None
