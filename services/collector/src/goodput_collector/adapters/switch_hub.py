"""One thread for the conversations with all switches.

A subscription is silent most of the time, and there may be hundreds: a thread each would be many that only wait. So one
event loop in one thread holds all of them; each reader leaves its coroutines there and collects what came. gRPC knows one
loop for the whole life of a process and minds one that ends, so there is one hub a process, begun when first needed and
never stopped.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class Late(Exception):
    """What was asked for has not come in time; it has been given up."""


class Hub:
    """Its thread is a daemon: it does not keep the process from ending."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="switches", daemon=True).start()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> concurrent.futures.Future[_T]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def call(self, coroutine: Coroutine[Any, Any, _T], *, within_s: float) -> _T:
        """Run it in the hub's thread and wait. Raises Late, and whatever it raises."""
        future = self.submit(coroutine)
        try:
            return future.result(within_s)
        except concurrent.futures.TimeoutError:
            if future.done():
                raise  # it was the coroutine's own
            future.cancel()
            raise Late(f"no answer within {within_s:g} s") from None

    def soon(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)


@functools.cache
def the_hub() -> Hub:
    return Hub()
