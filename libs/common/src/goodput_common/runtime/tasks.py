"""Background tasks with a name, none of which can die unseen.

A task that ends is fine. A task that raises has lost its service something it was relied on for, so the traceback is logged
under the task's name and the whole service stops (`run_service` waits on `crashed`): a supervisor that starts it again is a
better answer than a process which looks alive and does half its work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from goodput_common.runtime.logs import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Crash:
    """Which task died first, and of what."""

    task: str
    error: BaseException


class Tasks:
    """The running tasks of one service. At most `tasks_max` at once: a leak shows as an error instead of as memory."""

    def __init__(self, *, tasks_max: int = 10_000) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._tasks_max = tasks_max
        self._crash: Crash | None = None
        self._crashed = asyncio.Event()
        self._closed = False

    @property
    def crash(self) -> Crash | None:
        """The first crash, if any; later ones are only logged."""
        return self._crash

    def names(self) -> list[str]:
        """Of the tasks running now."""
        return sorted(task.get_name() for task in self._tasks if not task.done())

    def spawn(self, name: str, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run `coro` in the background. Raises RuntimeError after `close` and at the bound; `coro` is then closed."""
        if self._closed or len(self._tasks) >= self._tasks_max:
            coro.close()
            if self._closed:
                raise RuntimeError(f"task {name!r} was spawned after the service had stopped its tasks")
            raise RuntimeError(f"task {name!r} would be number {self._tasks_max + 1}: something spawns without waiting")
        task = asyncio.get_running_loop().create_task(coro, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        _log.error("task crashed", task=task.get_name(), exc_info=error)
        if self._crash is None:
            self._crash = Crash(task.get_name(), error)
        self._crashed.set()

    async def crashed(self) -> Crash:
        """Wait until some task has crashed."""
        await self._crashed.wait()
        assert self._crash is not None
        return self._crash

    async def close(self, *, within_s: float = 1.0) -> list[str]:
        """Cancel what still runs; returns the names of tasks that ignored it for `within_s`."""
        self._closed = True
        return await cancel_all(list(self._tasks), within_s=within_s)


async def cancel_all(tasks: list[asyncio.Task[Any]], *, within_s: float) -> list[str]:
    """Cancel and wait, but never longer than `within_s`. Returns the names of those that would not go."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if not running:
        return []
    _, stubborn = await asyncio.wait(running, timeout=max(0.0, within_s))
    return sorted(task.get_name() for task in stubborn)


async def stop_task(task: asyncio.Task[Any] | None) -> None:
    """Cancel one task that the caller spawned and wait for its end; its own crash has been logged already."""
    if task is None:
        return
    task.cancel()
    await asyncio.wait([task])
