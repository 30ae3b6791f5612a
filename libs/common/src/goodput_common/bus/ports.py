"""The bus as services see it: publish, consume, ask, answer.

Two implementations pass the same contract tests: `goodput_common.bus.jetstream.JetStreamBus` on a real server and
`goodput_common.bus.memory.MemoryBus`, which can drop, double, delay and reorder from a seed. Delivery is at least once and
in no promised order; a handler is done when it returns, and only then is the message acknowledged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A decoded message. `received_at` is the broker's time stamp, the same at every delivery; `sequence` its place in the
    stream (0 outside a stream)."""

    id: str
    type: str
    source: str
    subject: str
    time: datetime
    data: Any
    stream: str = ""
    sequence: int = 0
    received_at: datetime
    deliveries: int = 1
    component: str = ""
    traceparent: str = ""


Handler = Callable[[Message], Awaitable[None]]
Responder = Callable[[Message], Awaitable[msgspec.Struct]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumer:
    """A durable pull consumer. At most `slots` messages are in hand at once; each may take `ack_wait_s` between signs of
    life (sent for it while its handler runs). After `max_deliveries` it is rejected with its last error."""

    durable: str
    stream: str
    subjects: tuple[str, ...]
    slots: int = 16
    ack_wait_s: float = 30.0
    max_deliveries: int = 20
    deliver_new_only: bool = False


class Subscription(Protocol):
    @property
    def binds(self) -> int:
        """How often it has been bound. More than once: a connection or durable was lost meanwhile, and what was on its way
        then comes again later than what followed it."""

    async def drain(self) -> None:
        """Take no more, finish what is in hand."""

    async def pending(self) -> int:
        """How many messages of the stream this consumer has not been given yet."""


class Bus(Protocol):
    async def publish(
        self,
        subject: str,
        data: msgspec.Struct,
        *,
        id: str,
        source: str,
        component: str = "",
        time: datetime | None = None,
    ) -> None:
        """Store one message in its stream; returns once the server has it. The same `id` twice is stored once within the
        stream's duplicate window. Raises BusUnavailable (keep it, try again) or Refused (put it aside)."""

    async def consume(self, consumer: Consumer, handler: Handler) -> Subscription:
        """Start a pull loop. Handler outcomes: return -> ack; Retry -> nak with its delay; Reject -> kept as rejected;
        any other exception -> nak with growing delay."""

    async def request(self, subject: str, data: msgspec.Struct, *, id: str, source: str, timeout_s: float) -> msgspec.Struct:
        """Ask and wait. Raises NoResponders, RequestTimeout, BusUnavailable, MessageTooLarge."""

    async def serve(self, subject: str, responder: Responder) -> Subscription:
        """Answer requests on `subject`."""

    async def healthy(self) -> bool:
        """Connected now."""

    async def close(self) -> None:
        """Flush and disconnect."""
