"""Reports of a host's ranks on their way together: what is in one message, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.application import send_reports
from goodput_collector.application.publish import Origin
from goodput_collector.application.send_reports import HELD_MAX, SENDING_MAX, STALE_S, ReportSender
from goodput_collector.domain.reports import BYTES_A_MESSAGE, Told, messages
from goodput_common.bus.errors import BusUnavailable
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_common.runtime.clock import ManualClock
from goodput_common.runtime.tasks import Tasks

T0 = datetime(2026, 1, 1, tzinfo=UTC)


def report(rank: int = 0, *, job: str = "j", host: str = "h", fabric: str = "f", seq: int = 1) -> RankProgress:
    return RankProgress(fabric=fabric, job=job, rank=rank, host=host, seq=seq, at=T0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2 * BYTES_A_MESSAGE)), max_size=30))
def test_every_report_is_in_one_message_of_its_job_and_none_is_larger_than_need_be(given: list[tuple[str, int]]) -> None:
    told = [Told(report(n, job=job), size, n) for n, (job, size) in enumerate(given)]
    sizes = {each.number: each.size_bytes for each in told}
    found = list(messages(told, T0))
    assert sorted(number for _, numbers in found for number in numbers) == list(range(len(told)))
    for data, numbers in found:
        assert {each.job for each in data.reports} == {data.job}
        assert [each.rank for each in data.reports] == numbers
        assert len(numbers) == 1 or sum(sizes[number] for number in numbers) <= BYTES_A_MESSAGE


class Wire:
    """A bus that keeps what it is given; `hold` until it answers."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, HostProgress]] = []
        self.away = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def connect(self) -> Any:
        return self

    async def publish(self, subject: str, data: HostProgress, *, id: str, **_: Any) -> None:
        await self.answers.wait()
        if self.away:
            raise BusUnavailable("away")
        self.sent.append((id, data))


class Rig:
    def __init__(self) -> None:
        self.wire, self.clock, self.tasks = Wire(), ManualClock(T0), Tasks()
        self.sender = ReportSender(
            Origin(fabric="f", host="h", boot_id="b"), "life", self.wire.connect, clock=self.clock, tasks=self.tasks
        )
        self.answered: list[int] = []

    def take(self, said: RankProgress) -> None:
        self.sender.take(said, 10, lambda: self.answered.append(said.rank))

    async def send(self) -> None:
        self.sender.send()
        await self.sender.drain()


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.tasks.close()


async def test_reports_are_answered_once_the_bus_has_them(rig: Rig) -> None:
    rig.wire.answers.clear()
    for rank in (0, 1):
        rig.take(report(rank))
    rig.sender.send()
    await asyncio.sleep(0)
    assert not rig.answered
    rig.wire.answers.set()
    await rig.sender.drain()
    ((key, data),) = rig.wire.sent
    assert (key, [each.rank for each in data.reports], rig.answered) == ("f/h/life/host_progress/1", [0, 1], [0, 1])


async def test_the_first_report_sets_the_moment_at_which_all_go(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(send_reports, "HOLD_S", 0.0)
    rig.take(report(0))
    rig.take(report(1, job="k"))
    while len(rig.answered) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert sorted(data.job for _, data in rig.wire.sent) == ["j", "k"]


async def test_what_the_bus_does_not_take_is_not_answered_and_not_sent_later(rig: Rig) -> None:
    rig.wire.away = True
    rig.take(report(0))
    await rig.send()
    rig.wire.away = False
    rig.take(report(0, seq=2))
    await rig.send()
    assert [[each.seq for each in data.reports] for _, data in rig.wire.sent] == [[2]]
    assert (rig.answered, rig.sender.sent_on, rig.sender.dropped) == ([0], 1, 1)


@pytest.mark.parametrize("stray", [report(host="other"), report(fabric="other")])
async def test_a_report_of_another_host_or_fabric_is_not_answered(rig: Rig, stray: RankProgress) -> None:
    rig.take(stray)
    await rig.send()
    assert not rig.wire.sent
    assert not rig.answered


async def test_a_report_that_waited_while_this_process_was_stopped_is_not_sent(rig: Rig) -> None:
    rig.take(msgspec.structs.replace(report(), at=T0 - timedelta(seconds=STALE_S + 0.1)))
    await rig.send()
    assert not rig.wire.sent


async def test_beyond_the_bounds_reports_are_left_to_their_ranks(rig: Rig) -> None:
    for rank in range(HELD_MAX + 3):
        rig.take(report(rank))
    assert rig.sender.dropped == 3
    await rig.send()
    rig.wire.answers.clear()
    for n in range(SENDING_MAX + 2):
        rig.take(report(n))
        rig.sender.send()
    assert rig.sender.dropped == 5
    rig.wire.answers.set()
    await rig.sender.drain()
    assert len(rig.wire.sent) == 1 + SENDING_MAX


async def test_after_a_stop_nothing_is_taken_and_what_was_held_is_sent(rig: Rig) -> None:
    rig.take(report(0))
    rig.sender.stop()
    rig.take(report(1))
    await rig.sender.drain()
    assert rig.answered == [0]
