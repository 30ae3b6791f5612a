"""What the in-memory bus is made of: streams, durables, deliveries to come, and the plan of faults."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from goodput_common.bus.ports import Consumer
from goodput_common.contracts import subjects


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """Probabilities per delivery, drawn from `seed`. `delay_s` is the most that a delivery is late. Publishing on
    subjects that match one of `forbidden` is refused, as a server does to a user without the permission."""

    seed: int = 0
    drop: float = 0.0
    double: float = 0.0
    delay_s: float = 0.0
    reorder: float = 0.0
    publish_unavailable: float = 0.0
    forbidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stored:
    subject: str
    headers: Mapping[str, str]
    body: bytes
    sequence: int
    received_at: datetime


@dataclass(order=True, slots=True)
class Due:
    """A delivery to come. `put_off` marks a retry that its handler or its failure asked for."""

    at_s: float
    order: int
    stored: Stored = field(compare=False)
    deliveries: int = field(compare=False)
    put_off: bool = field(compare=False, default=False)


class StreamStore:
    def __init__(self, config: subjects.Stream, messages_max: int) -> None:
        self.config = config
        self.messages: deque[Stored] = deque(maxlen=messages_max)  # the oldest go first, as on the server
        self.last_sequence = 0
        self._ids: OrderedDict[str, float] = OrderedDict()

    def keeps(self, subject: str) -> bool:
        return any(subjects.matches(pattern, subject) for pattern in self.config.subjects)

    def seen(self, message_id: str, now_s: float) -> bool:
        """Whether `message_id` was stored within the duplicate window; remembers it."""
        while self._ids and next(iter(self._ids.values())) < now_s - self.config.duplicate_window_s:
            self._ids.popitem(last=False)
        if message_id in self._ids:
            return True
        self._ids[message_id] = now_s
        return False


class Durable:
    """A consumer's position and retries; outlives its subscriptions."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.due: list[Due] = []
        self.changed = asyncio.Event()

    def wants(self, subject: str) -> bool:
        return any(subjects.matches(pattern, subject) for pattern in self.consumer.subjects)
