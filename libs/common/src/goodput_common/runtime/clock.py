"""Time and identity as inputs (ports), so that a run can be replayed."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    def now(self) -> datetime:
        """Wall clock, timezone-aware UTC."""

    def monotonic_s(self) -> float:
        """Seconds that never go back."""

    async def sleep(self, seconds: float) -> None: ...


class Entropy(Protocol):
    def id(self) -> str:
        """A fresh unique id."""

    def uniform(self, low: float, high: float) -> float: ...


class SystemClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SystemEntropy:
    def id(self) -> str:
        return uuid.uuid4().hex

    def uniform(self, low: float, high: float) -> float:
        return random.SystemRandom().uniform(low, high)


class SeededEntropy:
    """The same ids and numbers from the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def id(self) -> str:
        return f"{self._random.getrandbits(128):032x}"

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)


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
