"""The lab's ear on the bus: every message into the run's recording, and what the run waits for into memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message, Subscription
from goodput_common.bus.recording import write_record
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_common.contracts.recovery import RecoveryUpdate
from goodput_common.contracts.subjects import STREAMS
from goodput_common.contracts.telemetry import CollectorHeartbeat, Source, SourceStatus
from goodput_common.contracts.verdict import Verdict

RECORDED = tuple(stream for stream in STREAMS if stream.name != "REJECTED")
VERSIONS_KEPT = 1000


@dataclass
class RunLog:
    """What one run's job said and had said about it."""

    job: str
    recording: IO[bytes]
    on_recovery: Callable[[RecoveryUpdate], None]
    progress: dict[int, RankProgress] = field(default_factory=dict)
    verdicts: dict[tuple[str, int], Verdict] = field(default_factory=dict)
    recovery: dict[tuple[str, str], RecoveryUpdate] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, message: Message) -> None:
        write_record(self.recording, message)
        data = message.data
        if getattr(data, "job", None) != self.job:
            return
        if isinstance(data, RankProgress | HostProgress):
            for report in data.reports if isinstance(data, HostProgress) else (data,):
                known = self.progress.get(report.rank)
                if known is None or (known.generation, known.seq) < (report.generation, report.seq):
                    self.progress[report.rank] = report
        elif isinstance(data, Verdict) and len(self.verdicts) < VERSIONS_KEPT:
            self.verdicts[data.id, data.version] = data
        elif isinstance(data, RecoveryUpdate) and (data.plan, data.state.value) not in self.recovery:
            self.recovery[data.plan, data.state.value] = data
            self.on_recovery(data)
        else:
            return
        self.changed.set()

    async def until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait until `condition` holds, looked at whenever something arrives. False when the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not condition():
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), min(1.0, deadline - loop.time()))
            except TimeoutError:
                if loop.time() >= deadline:
                    return condition()
        return True


class Observer:
    """One consumer a stream for the life of the lab; `run` says whose messages are wanted now."""

    def __init__(self, bus: JetStreamBus) -> None:
        self._bus = bus
        self._subscriptions: list[Subscription] = []
        self.run: RunLog | None = None
        self.collectors: set[str] = set()  # hosts whose collector has said that its process source works
        self.changed = asyncio.Event()

    async def start(self) -> None:
        for stream in RECORDED:
            consumer = Consumer(
                durable="lab-observer", stream=stream.name, subjects=stream.subjects, slots=64, deliver_new_only=True
            )
            self._subscriptions.append(await self._bus.consume(consumer, self._take))

    async def stop(self) -> None:
        for subscription in self._subscriptions:
            await subscription.drain()

    async def _take(self, message: Message) -> None:
        data = message.data
        if isinstance(data, CollectorHeartbeat) and any(
            each.source is Source.PROCESS and each.status is SourceStatus.OK for each in data.sources
        ):
            self.collectors.add(data.host)
            self.changed.set()
        if self.run is not None:
            self.run.take(message)
