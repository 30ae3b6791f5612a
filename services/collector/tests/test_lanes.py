"""Threads that sources share: between two calls, while one is split or stopped, and when a source breaks its promises."""

from __future__ import annotations

import asyncio
import errno
import select
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from schedule_fixtures import Running, Script, state, until

from goodput_collector.application import schedule
from goodput_collector.application.lane import HOLD_S, Lane
from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.application.turn import Turn
from goodput_common.contracts.telemetry import Source, SourceStatus


class Hooked:
    """A lock that calls `hook` whenever it has been let go."""

    def __init__(self, hook: Callable[[], None]) -> None:
        self._lock, self._hook = threading.Lock(), hook

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._hook()


def test_an_alarm_that_rings_between_two_calls_still_watches_the_next() -> None:
    release, heard = threading.Event(), threading.Event()
    hung = Script(Source.RDMA, release)
    turns = [
        Turn(each, name="", say=lambda *_: None, shorten=lambda seconds: seconds)
        for each in (Script(Source.NETLINK, Reading()), hung)
    ]
    lane = Lane("lane", take=lambda told: [None] * len(told), quick=lambda _: None)

    def ring() -> None:
        if lane._in_round and lane._current is None and lane._told and not heard.is_set():
            heard.set()
            lane.alarm.clear()  # as one that has rung
            assert not lane.keeps_waiting()

    lane._lock = Hooked(ring)  # type: ignore[assignment]
    lane.begin(turns)
    assert select.select([lane.alarm.fd], [], [], 20)[0]
    assert heard.is_set()
    assert lane.keeps_waiting()
    assert lane.split() is not None
    lane.stop()
    release.set()
    lane.forget()


class Slow(Script):
    """Takes its time to open, and longer to be read."""

    deadline_s = 2.5 * HOLD_S

    def __init__(self, release: threading.Event) -> None:
        super().__init__(Source.RDMA, release)

    def open(self) -> None:
        time.sleep(1.5 * HOLD_S)  # within its deadline


async def test_a_call_that_follows_a_slow_one_is_watched_without_asking_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rings = 0
    rang = schedule.Schedule._rang

    def count(self: schedule.Schedule, lane: Lane) -> None:
        nonlocal rings
        rings += 1
        rang(self, lane)

    monkeypatch.setattr(schedule.Schedule, "_rang", count)
    release = threading.Event()
    async with Running(Slow(release)) as running:
        await until(lambda: "no answer within" in running.condition(Source.RDMA).reason, "the deadline of the second call")
        release.set()
    assert rings < 10


async def test_the_last_word_of_a_source_counts_however_late_it_is_heard() -> None:
    gate, release = threading.Event(), threading.Event()
    script = Script(Source.RDMA, Reading(), gate, Unreadable("for a moment"), Reading(), release)
    async with Running(script) as running:
        await until(lambda: running.condition(Source.RDMA).status is SourceStatus.OK, "the first reading")
        gate.set()
        while script._steps:  # the loop hears nothing meanwhile
            time.sleep(0.001)  # noqa: ASYNC251
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert running.condition(Source.RDMA).status is SourceStatus.OK
        release.set()


async def test_without_a_descriptor_for_another_thread_the_others_wait_until_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = 3

    def lane(*args: Any, **kwargs: Any) -> Lane:
        nonlocal failures
        if asked and failures:
            failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        asked.append(True)
        return Lane(*args, **kwargs)

    asked: list[bool] = []
    monkeypatch.setattr(schedule, "Lane", lane)
    monkeypatch.setattr(schedule, "SPLIT_AGAIN_S", 0.01)
    release = threading.Event()
    hung, fine = Script(Source.RDMA, release), Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(9)])
    hung.deadline_s = 0.01
    async with Running(hung, fine) as running:
        await until(lambda: len(running.told) == 9, "the other source's readings")
        assert "no answer within" in running.condition(Source.RDMA).reason
        release.set()
    assert failures == 0
    assert [reading.samples for _, reading in running.told] == [[state(str(n))] for n in range(9)]


async def test_sources_that_wait_for_a_hung_one_at_the_end_are_closed_and_read_no_more() -> None:
    release = threading.Event()
    told, hung = Script(Source.NETLINK, Reading(samples=[state()])), Script(Source.RDMA, release)
    waiting = Script(Source.HOST, *[Reading(samples=[state(str(n))]) for n in range(9)])
    async with Running(told, hung, waiting) as running:
        await until(lambda: not hung._steps, "it hangs")
        await running.schedule.stop_pulling()
        await until(lambda: (told.closed, waiting.closed) == (1, 1), "both are closed")
        assert (len(running.told), len(waiting._steps)) == (1, 9)
        release.set()


class Panic(BaseException):
    """As a library raises that is not written in Python."""


class Odd(Script):
    """Breaks a promise of `SourceReader` once."""

    def __init__(self, *steps: object, fd: Callable[[], int | None] = lambda: None, interval_s: float = 0.01) -> None:
        super().__init__(Source.RDMA, *steps, *[Reading()] * 5, Reading(samples=[state("well")]))
        self.interval_s = interval_s
        self._wake_fd = fd

    def read(self) -> Reading:
        step = self._steps[0] if self._steps else None
        if isinstance(step, Panic) or step == "nothing":
            self._steps.pop(0)
            if isinstance(step, Panic):
                raise step
            return None  # type: ignore[return-value]
        return super().read()

    def wake_fd(self) -> int | None:
        return self._wake_fd()


def bug() -> int:
    raise ValueError("closed")


@pytest.mark.parametrize(
    "odd",
    [
        Odd(Panic("out of range")),
        Odd("nothing"),
        Odd(Reading(covered=7)),  # type: ignore[arg-type]
        Odd(fd=lambda: -1),
        Odd(interval_s=0.0),
    ],
    ids=["a panic", "no reading", "covers what is no list", "a descriptor that is none", "no interval"],
)
async def test_whatever_a_source_does_it_and_its_neighbours_go_on(odd: Odd) -> None:
    fine = Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(20)])
    async with Running(odd, fine) as running:
        await until(lambda: len(running.told) == 21, "its own reading and twenty of its neighbour")


async def test_a_source_whose_descriptor_cannot_be_had_is_unknown() -> None:
    odd, fine = Odd(fd=bug), Script(Source.NETLINK, *[Reading(samples=[state(str(n))]) for n in range(20)])
    async with Running(odd, fine) as running:
        await until(lambda: running.condition(Source.RDMA).reason == "ValueError: closed", "its reason")
        await until(lambda: sum(source is Source.NETLINK for source, _ in running.told) == 20, "its neighbour's readings")


async def test_a_publisher_that_raises_gets_the_reading_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = 2
    take = schedule.Schedule._take

    def flaky(self: schedule.Schedule, *args: Any) -> list[Exception | None]:
        nonlocal failures
        if failures:
            failures -= 1
            raise RuntimeError("not now")
        return take(self, *args)

    monkeypatch.setattr(schedule.Schedule, "_take", flaky)
    async with Running(Script(Source.RDMA, Reading(samples=[state()]))) as running:
        await until(lambda: len(running.told) == 1, "the reading")
    assert failures == 0


def test_a_source_that_is_read_a_little_early_is_not_read_again_at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = Turn(Script(Source.RDMA, Reading()), name="", say=lambda *_: None, shorten=lambda _: 1.0)
    monkeypatch.setattr(time, "monotonic", lambda: 4.9998)
    reading = turn.take()
    assert reading is not None
    turn.delivered(reading, None, offset_s=0.0)
    assert turn.due_at_s == pytest.approx(6.0)
