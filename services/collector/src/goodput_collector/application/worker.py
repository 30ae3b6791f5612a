"""One thread for one source, and a deadline on what it is asked: for `check`, which reads all sources at the same time.
(The collector itself reads them one after the other: `lane`.)

A read of a hung device does not return, and no Python can make it. So the caller stops waiting at the deadline, says so,
and asks no more of the thread until it comes back. The thread is a daemon: it does not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")
_Call = tuple[Callable[[], Any], "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class Hung(Exception):
    """The call has not returned in time and is still on its way."""


class Worker:
    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck: asyncio.Future[Any] | None = None

    async def call(self, function: Callable[[], _T], *, deadline_s: float) -> _T:
        """Run `function` in the thread. Raises Hung at the deadline, and whatever `function` raises."""
        if self._stuck is not None:
            done, _ = await asyncio.wait([self._stuck], timeout=deadline_s)
            if not done:
                raise Hung
            self._stuck = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()
        self._calls.put((function, future, loop))
        done, _ = await asyncio.wait([future], timeout=deadline_s)
        if not done:
            self._stuck = future
            future.add_done_callback(_swallow)
            raise Hung
        return future.result()

    def stop(self) -> None:
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            function, future, loop = call
            try:
                outcome: Any = function()
            except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it
                _hand_over(loop, future, error=error)
            else:
                _hand_over(loop, future, outcome=outcome)


def _hand_over(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    *,
    outcome: Any = None,
    error: BaseException | None = None,
) -> None:
    def settle() -> None:
        if future.done():
            return
        if error is None:
            future.set_result(outcome)
        else:
            future.set_exception(error)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        return  # the loop has ended before the hung call did


def _swallow(future: asyncio.Future[Any]) -> None:
    """The late outcome of a hung call interests nobody; asking for it keeps asyncio from complaining."""
    if not future.cancelled():
        future.exception()
