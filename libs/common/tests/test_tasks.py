"""Background tasks: named, and none dies unseen."""

from __future__ import annotations

import asyncio

import pytest

from goodput_common.runtime.tasks import Tasks, stop_task


async def test_a_crash_is_kept_with_the_task_name_and_wakes_the_service() -> None:
    tasks = Tasks()

    async def dies() -> None:
        raise ValueError("no disk")

    tasks.spawn("ticker", dies())
    crash = await tasks.crashed()
    assert crash.task == "ticker"
    assert str(crash.error) == "no disk"


async def test_only_the_first_crash_is_kept() -> None:
    tasks = Tasks()

    async def dies(word: str) -> None:
        raise ValueError(word)

    await asyncio.wait([tasks.spawn("one", dies("first"))])
    await asyncio.wait([tasks.spawn("two", dies("second"))])
    assert tasks.crash is not None
    assert str(tasks.crash.error) == "first"


async def test_returning_and_being_cancelled_are_no_crashes() -> None:
    tasks = Tasks()
    await asyncio.wait([tasks.spawn("returns", asyncio.sleep(0))])
    await stop_task(tasks.spawn("cancelled", asyncio.sleep(3600)))
    assert tasks.crash is None
    assert tasks.names() == []


async def test_close_cancels_and_names_the_tasks_that_ignore_it() -> None:
    tasks = Tasks()
    release = asyncio.Event()

    async def stubborn() -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    tasks.spawn("obedient", asyncio.sleep(3600))
    held = tasks.spawn("stubborn", stubborn())
    await asyncio.sleep(0)
    assert await tasks.close(within_s=0.05) == ["stubborn"]
    release.set()
    await held


async def test_nothing_is_spawned_after_close() -> None:
    tasks = Tasks()
    await tasks.close()
    with pytest.raises(RuntimeError, match="'late' was spawned after"):
        tasks.spawn("late", asyncio.sleep(0))


async def test_the_number_of_tasks_is_bounded() -> None:
    tasks = Tasks(tasks_max=1)
    tasks.spawn("first", asyncio.sleep(3600))
    with pytest.raises(RuntimeError, match="spawns without waiting"):
        tasks.spawn("second", asyncio.sleep(3600))
    await tasks.close()
