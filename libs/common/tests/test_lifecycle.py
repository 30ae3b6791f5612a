"""The order of a service's life, and what a part that fails or hangs does to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part, StartError, run_service
from goodput_common.runtime.logs import fields_of
from goodput_common.runtime.tasks import Tasks


def _said(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, Any]:
    return next(fields for record in caplog.records if (fields := fields_of(record))["event"] == event)


class Recorder(Part):
    """Notes each call; `hang` and `fail` name a phase."""

    def __init__(self, name: str, journal: list[str], *, hang: str = "", fail: str = "") -> None:
        self.name, self._journal, self._hang, self._fail = name, journal, hang, fail

    async def _enter(self, phase: str) -> None:
        self._journal.append(f"{self.name} {phase}")
        if self._fail == phase:
            raise OSError(f"{self.name} broke")
        if self._hang == phase:
            await asyncio.Event().wait()

    async def start(self) -> None:
        await self._enter("start")

    async def stop_pulling(self) -> None:
        await self._enter("stop_pulling")

    async def drain(self) -> None:
        await self._enter("drain")

    async def flush(self) -> None:
        await self._enter("flush")

    async def close(self) -> None:
        await self._enter("close")


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


async def _run(*parts: Part, health: Health | None = None, within_s: float = 5.0) -> int:
    """Start, and stop as soon as ready."""
    health = health or Health()
    stop = asyncio.Event()

    class Stopper(Part):
        async def start(self) -> None:
            asyncio.get_running_loop().call_later(0.02, stop.set)

    return await run_service("test", [*parts, Stopper()], health=health, stop=stop, stop_within_s=within_s)


async def test_parts_start_in_order_and_flush_and_close_in_reverse() -> None:
    journal: list[str] = []
    assert await _run(Recorder("bus", journal), Recorder("http", journal)) == 0
    assert journal == [
        "bus start",
        "http start",
        "bus stop_pulling",
        "http stop_pulling",
        "bus drain",
        "http drain",
        "http flush",
        "bus flush",
        "http close",
        "bus close",
    ]


async def test_ready_only_between_the_last_start_and_the_stop() -> None:
    health = Health()
    seen: list[tuple[str, bool]] = []

    class Watcher(Part):
        async def start(self) -> None:
            seen.append((health.phase, health.ready))

        async def stop_pulling(self) -> None:
            seen.append((health.phase, health.ready))

    stop = asyncio.Event()
    service = asyncio.create_task(run_service("test", [Watcher()], health=health, stop=stop))
    await _until(lambda: health.phase == "ready")
    assert health.ready
    stop.set()
    await service
    assert seen == [("starting", False), ("stopping", False)]


async def test_a_failed_start_closes_what_was_reached_and_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    journal: list[str] = []

    class Refuses(Recorder):
        async def start(self) -> None:
            raise StartError("port 8081 is taken", do_next="set GOODPUT_HTTP_PORT")

    code = await run_service(
        "test",
        [Recorder("bus", journal), Refuses("http", journal), Recorder("never", journal)],
        health=Health(),
        stop=asyncio.Event(),
    )
    assert code == 3
    assert journal[-2:] == ["http close", "bus close"]
    assert not any("never" in entry for entry in journal)
    said = _said(caplog, "start failed")
    assert (said["part"], said["error"], said["next"]) == ("http", "port 8081 is taken", "set GOODPUT_HTTP_PORT")


@pytest.mark.parametrize("phase", ["stop_pulling", "drain", "flush", "close"])
async def test_a_part_that_hangs_while_stopping_is_named_and_the_others_still_close(
    caplog: pytest.LogCaptureFixture, phase: str
) -> None:
    journal: list[str] = []
    parts = [Recorder("bus", journal), Recorder("stuck", journal, hang=phase), Recorder("http", journal)]
    assert await _run(*parts, within_s=0.8) == 4
    assert "bus close" in journal
    assert "http close" in journal
    said = _said(caplog, "part hung while stopping")
    assert (said["part"], said["phase"]) == ("stuck", phase)
    assert "test_lifecycle.py" in str(said["where"])


@pytest.mark.parametrize("phase", ["stop_pulling", "drain", "flush", "close"])
async def test_a_part_that_fails_while_stopping_is_named_and_the_others_still_close(
    caplog: pytest.LogCaptureFixture, phase: str
) -> None:
    journal: list[str] = []
    parts = [Recorder("bus", journal), Recorder("broken", journal, fail=phase), Recorder("http", journal)]
    assert await _run(*parts) == 4
    assert "bus close" in journal
    assert "http close" in journal
    said = _said(caplog, "part failed while stopping")
    assert (said["part"], said["phase"]) == ("broken", phase)


async def test_a_part_that_swallows_cancellation_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    release = asyncio.Event()

    class Stubborn(Part):
        name = "stubborn"

        async def drain(self) -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    assert await _run(Stubborn(), within_s=0.5) == 4
    assert _said(caplog, "part hung while stopping")["part"] == "stubborn"
    release.set()


async def test_a_crashed_task_stops_the_service_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    journal: list[str] = []
    tasks = Tasks()

    class Crashes(Part):
        async def start(self) -> None:
            async def tick() -> None:
                await asyncio.sleep(0)
                raise ValueError("bad state")

            tasks.spawn("ticker", tick())

    code = await run_service(
        "test", [Recorder("bus", journal), Crashes()], health=Health(), tasks=tasks, stop=asyncio.Event()
    )
    assert code == 1
    assert journal[-1] == "bus close"
    assert "ValueError: bad state" in caplog.text
    assert _said(caplog, "stopping: a task crashed")["task"] == "ticker"


async def test_a_stop_during_a_start_that_waits_cuts_it_short() -> None:
    journal: list[str] = []
    stop = asyncio.Event()
    waiting = Recorder("database", journal, hang="start")
    service = asyncio.create_task(run_service("test", [waiting, Recorder("http", journal)], health=Health(), stop=stop))
    await _until(lambda: bool(journal))
    stop.set()
    assert await service == 0
    assert "database close" in journal
    assert "http start" not in journal


async def test_tasks_left_running_end_after_the_flush_and_before_resources_close() -> None:
    journal: list[str] = []
    tasks = Tasks()

    class Pool(Recorder):
        async def close(self) -> None:
            journal.append(f"close with tasks {tasks.names()}")

    class Worker(Part):
        async def start(self) -> None:
            tasks.spawn("worker", asyncio.sleep(3600))

        async def flush(self) -> None:
            journal.append(f"flush with tasks {tasks.names()}")

    stop = asyncio.Event()
    parts = [Pool("pool", journal), Worker()]
    service = asyncio.create_task(run_service("test", parts, health=Health(), tasks=tasks, stop=stop))
    await _until(lambda: bool(tasks.names()))
    stop.set()
    assert await service == 0
    assert journal[-3:] == ["flush with tasks ['worker']", "pool flush", "close with tasks []"]


async def test_time_that_one_phase_leaves_unused_is_there_for_a_later_one() -> None:
    done: list[str] = []

    class SlowFlush(Part):
        async def flush(self) -> None:
            await asyncio.sleep(0.45)  # more than flush's own share of 1 s, less than what is left of it all
            done.append("flushed")

    assert await _run(SlowFlush(), within_s=1.0) == 0
    assert done == ["flushed"]
