"""What tells, now and then, that this collector lives and how each of its sources is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from goodput_collector.application.publish import Publisher
from goodput_collector.application.schedule import Condition
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.tasks import Tasks, stop_task


class Heartbeat(Part):
    """Tells every `interval_s` that this collector lives and how each source is."""

    name = "heartbeat"

    def __init__(
        self,
        publisher: Publisher,
        conditions: Callable[[], Sequence[Condition]],
        *,
        interval_s: float,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._publisher = publisher
        self._conditions = conditions
        self._interval_s = interval_s
        self._clock = clock
        self._tasks = tasks
        self._beating: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._beating = self._tasks.spawn("heartbeat", self._beat())

    async def stop_pulling(self) -> None:
        await stop_task(self._beating)

    async def _beat(self) -> None:
        first_s = min(1.0, self._interval_s)  # by then the sources have been read once
        await self._clock.sleep(first_s)
        while True:
            self._publisher.heartbeat(self._conditions(), self._interval_s)
            await self._clock.sleep(self._interval_s)
