"""A source that does what it is told, read by read, and a schedule under way that keeps what it has said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from goodput_collector.application.ports import Reading
from goodput_collector.application.schedule import Condition, Schedule
from goodput_common.contracts.telemetry import Source, State
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

AT = datetime(2026, 3, 1, tzinfo=UTC)


def state(value: str = "up") -> State:
    return State(component="nic:h0/rail0/1", name="operstate", observed_at=AT, value=value)


class Script:
    """A source that does what it is told, read by read."""

    deadline_s = 5.0
    interval_s = 0.01

    def __init__(self, source: Source, *steps: object) -> None:
        self.source = source
        self.instance = ""
        self._steps = list(steps)
        self.opened = self.closed = 0
        self.fd: int | None = None

    def open(self) -> None:
        self.opened += 1

    def read(self) -> Reading:
        step = self._steps.pop(0) if self._steps else Reading()
        if isinstance(step, Exception):
            raise step
        if isinstance(step, threading.Event):
            step.wait(30)
            return Reading()
        assert isinstance(step, Reading)
        return step

    def wake_fd(self) -> int | None:
        return self.fd

    def close(self) -> None:
        self.closed += 1


class FastClock(SystemClock):
    """Back-off of minutes takes moments."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.005))

    def shorten(self, seconds: float) -> float:
        self.asked.append(seconds)
        return min(seconds, 0.005)


async def until(condition: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - a test may poll
                await asyncio.sleep(0.005)
    except TimeoutError:
        pytest.fail(f"never happened: {what}")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class Running:
    """A schedule under way, and what it has said."""

    def __init__(self, *scripts: Script, clock: FastClock | None = None) -> None:
        self.told: list[tuple[Source, Reading]] = []
        self.safe = True
        self.tasks = Tasks()
        self.clock = clock or FastClock()
        self.schedule = Schedule(
            scripts,
            self._publish,
            settled=lambda: self.safe,
            shorten=self.clock.shorten,
        )

    def _publish(self, source: Source, reading: Reading) -> bool:
        self.told.append((source, reading))
        return self.safe

    async def __aenter__(self) -> Running:
        await self.schedule.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.schedule.close()
        await self.tasks.close()

    def condition(self, source: Source) -> Condition:
        return next(each for each in self.schedule.conditions() if each.source is source)
