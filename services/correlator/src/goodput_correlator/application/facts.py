"""Facts as they are kept: one kind name and one JSON text each, and back again without loss."""

from __future__ import annotations

from typing import Any

import msgspec

from goodput_common.contracts.ids import ComponentId, host_id, rank_id
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import CollectorHeartbeat, Counter, Event, Gauge, Probe, State
from goodput_correlator.domain.case import Fact

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
