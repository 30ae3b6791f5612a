"""An agent's reports over a real socket to the collector's side of it: answered, given back, trusted again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from goodput_agent import handover as agent_side
from goodput_agent.handover import Handover
from goodput_agent.outqueue import Outgoing
from goodput_collector.adapters.report_socket import ReportSocket
from goodput_collector.application.publish import Origin
from goodput_collector.application.send_reports import ReportSender
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks


class Rig:
    def __init__(self, path: Path) -> None:
        self.path, self.clock, self.tasks = path, SystemClock(), Tasks()
        self.stored: list[int] = []
        self.untaken: list[int] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.handover = Handover(path, self._back, self.clock.monotonic_s)
        self.running = asyncio.create_task(self.handover.run())
        self._seq = 0

    def _back(self, messages: Sequence[Outgoing]) -> None:
        self.untaken += [each.data.seq for each in messages]  # type: ignore[attr-defined]

    async def connect(self) -> Any:
        return self

    async def publish(self, subject: str, data: HostProgress, **_: Any) -> None:
        await self.answers.wait()
        self.stored += [each.seq for each in data.reports]

    async def listen(self) -> ReportSocket:
        sender = ReportSender(
            Origin(fabric="f", host="h", boot_id="b"), "life", self.connect, clock=self.clock, tasks=self.tasks
        )
        socket = ReportSocket(self.path, sender)
        await socket.start()
        return socket

    def offer(self) -> bool:
        self._seq += 1
        report = RankProgress(fabric="f", job="j", rank=0, host="h", seq=self._seq, at=self.clock.now())
        message = Outgoing(subject="s", data=report, id=f"{self._seq}", component="c", time=report.at)
        return self.handover.offer(message, report)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - a test may poll
                await asyncio.sleep(0.005)


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(agent_side, "TRY_AGAIN_S", 0.02)
    monkeypatch.setattr(agent_side, "ANSWER_WITHIN_S", 1e9)  # silence is judged by the test, not by how busy a machine is
    rig = Rig(tmp_path / "h.sock")
    yield rig
    rig.answers.set()
    rig.running.cancel()
    await rig.tasks.close()


async def test_a_report_is_kept_until_the_bus_has_it(rig: Rig) -> None:
    rig.answers.clear()
    socket = await rig.listen()
    await rig.until(rig.offer)
    (seq,) = rig.handover._kept
    rig.answers.set()
    await rig.until(lambda: not rig.handover._kept)
    assert seq in rig.stored
    assert not rig.untaken
    await socket.close()


async def test_what_a_collector_had_in_hand_comes_back_when_it_goes_and_the_next_one_is_found(rig: Rig) -> None:
    rig.answers.clear()
    socket = await rig.listen()
    await rig.until(rig.offer)
    (seq,) = rig.handover._kept
    await socket.close()
    await rig.until(lambda: rig.untaken == [seq])
    assert not rig.offer()
    rig.answers.set()
    again = await rig.listen()
    await rig.until(rig.offer)
    await rig.until(lambda: not rig.handover._kept)
    await again.close()


async def test_a_collector_that_did_not_answer_is_trusted_again_with_its_first_answer(rig: Rig) -> None:
    rig.answers.clear()
    socket = await rig.listen()
    await rig.until(rig.offer)
    rig.handover.give_back()
    assert len(rig.untaken) == 1
    rig.answers.set()
    await rig.until(rig.offer)
    await socket.close()


async def test_what_is_no_report_ends_the_connection_and_nothing_else(rig: Rig) -> None:
    socket = await rig.listen()
    reader, writer = await asyncio.open_unix_connection(str(rig.path))
    writer.write(b"{}\n")
    assert await reader.read() == b""
    writer.close()
    await rig.until(rig.offer)
    await rig.until(lambda: not rig.handover._kept)
    await socket.close()
