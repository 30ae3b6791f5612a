"""Time as an input (a port), so that a run can be replayed."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, timezone-aware UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """Stands still until told; sleepers wake in order as it is advanced."""

    def __init__(self, start: datetime) -> None:
        self._now = start
        self._monotonic = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> datetime:
        return self._now

    def monotonic_s(self) -> float:
        return self._monotonic

    async def sleep(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self._monotonic + max(0.0, seconds), waiter))
        await waiter

    async def advance(self, seconds: float) -> None:
        """Move on, waking sleepers whose time has come."""
        target = self._monotonic + seconds
        while due := sorted((at, i) for i, (at, _) in enumerate(self._sleepers) if at <= target):
            at, index = due[0]
            _, waiter = self._sleepers.pop(index)
            self._now += timedelta(seconds=max(0.0, at - self._monotonic))
            self._monotonic = max(self._monotonic, at)
            if not waiter.done():
                waiter.set_result(None)
            for _ in range(5):
                await asyncio.sleep(0)
        self._now += timedelta(seconds=target - self._monotonic)
        self._monotonic = target
