"""Many small writes made durable by few transactions.

Each handler hands over its write and waits. One task takes everything that waits and commits it at once; what arrives
meanwhile forms the next group, so groups grow with the load and a lone message waits for nobody. The number of waiting
writes is bounded by the number of handlers, which the subscription's slots bound.

What a failure means decides what happens: a store that is away is waited for (the messages stay in hand, the broker is
told that work goes on); a write that the store refuses is found by halving the group and alone fails, with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from goodput_common.runtime.clock import Clock
from goodput_correlator.application.ports import StoreRefused, StoreUnavailable

W = TypeVar("W")
R = TypeVar("R")

_RETRY_S_FIRST, _RETRY_S_MAX = 0.1, 2.0
_STOPPING = "this term of the correlator has ended"


class GroupCommit(Generic[W, R]):
    """`write` commits a group whole or not at all and returns what `put` returns for each of it; its second argument
    says that the same group was tried before, with an unknown outcome. Raises through `put`: StoreRefused for this
    write; anything else (deposed, a defect) for every write of the group."""

    def __init__(self, write: Callable[[Sequence[W], bool], Awaitable[R]], *, clock: Clock, group_max: int = 256) -> None:
        self._write = write
        self._clock = clock
        self._group_max = group_max
        self._waiting: list[tuple[W, asyncio.Future[R]]] = []
        self._wake = asyncio.Event()
        self._ended = False
        self.available = True

    async def put(self, write: W) -> R:
        """Return once `write` is durable."""
        if self._ended:
            raise StoreUnavailable(_STOPPING)
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((write, done))
        self._wake.set()
        return await done

    async def run(self) -> None:
        """Commit groups until cancelled; then whatever still waits is given back (StoreUnavailable)."""
        try:
            while True:
                await self._wake.wait()
                group, self._waiting = self._waiting[: self._group_max], self._waiting[self._group_max :]
                if not self._waiting:
                    self._wake.clear()
                await self._commit(group)
        finally:
            self._ended = True
            for _, done in self._waiting:
                _fail(done, StoreUnavailable(_STOPPING))

    async def _commit(self, group: list[tuple[W, asyncio.Future[R]]]) -> None:
        group = [each for each in group if not each[1].done()]
        if not group:
            return
        try:
            result = await self._until_there(group)
        except StoreRefused as refused:
            if len(group) == 1:
                _fail(group[0][1], refused)
            else:
                half = len(group) // 2
                await self._commit(group[:half])
                await self._commit(group[half:])
        except asyncio.CancelledError:
            for _, done in group:
                _fail(done, StoreUnavailable(_STOPPING))
            raise
        except Exception as error:
            for _, done in group:
                _fail(done, error)
            raise
        else:
            for _, done in group:
                if not done.done():
                    done.set_result(result)

    async def _until_there(self, group: list[tuple[W, asyncio.Future[R]]]) -> R:
        pause_s, again = _RETRY_S_FIRST, False
        while True:
            try:
                result = await self._write([write for write, _ in group], again)
            except StoreUnavailable:
                self.available, again = False, True
                await self._clock.sleep(pause_s)
                pause_s = min(_RETRY_S_MAX, pause_s * 2)
            else:
                self.available = True
                return result


def _fail(done: asyncio.Future[R], error: BaseException) -> None:
    if not done.done():
        done.set_exception(error)
