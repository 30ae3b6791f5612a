"""When the ranks of a host report, and what becomes of a report that nobody takes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from goodput_agent.handover import ANSWER_WITHIN_S, TRY_AGAIN_S, UNREAD_BYTES_MAX, Handover, phase_s, until_next_s
from goodput_agent.outqueue import Outgoing
from goodput_common.contracts.job import RankProgress
from goodput_common.runtime.clock import ManualClock

T0 = datetime(2026, 1, 1, tzinfo=UTC)


@given(st.floats(0, 1e7), st.text(max_size=20))
def test_the_ranks_of_a_host_meet_at_the_same_moments(now_s: float, host: str) -> None:
    phase = phase_s(host, 1.0)
    wait_s = until_next_s(now_s, 1.0, phase)
    assert 0.0 <= phase < 1.0
    assert 0.0 < wait_s <= 1.0
    away_s = (now_s + wait_s - phase) % 1.0
    assert min(away_s, 1.0 - away_s) < 1e-6


class Writer:
    """A connection whose other end does nothing by itself."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.unread = 0
        self.closed = False
        self.transport = self

    def write(self, data: bytes) -> None:
        self.lines.append(data)

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Rig:
    def __init__(self) -> None:
        self.clock, self.writer = ManualClock(T0), Writer()
        self.untaken: list[int] = []
        self.handover = Handover(Path("nowhere"), self._back, self.clock.monotonic_s)
        connected: Any = self.writer
        self.handover._writer, self.handover._trusted = connected, True
        self._seq = 0

    def _back(self, messages: Sequence[Outgoing]) -> None:
        self.untaken += [each.data.seq for each in messages]  # type: ignore[attr-defined]

    def offer(self) -> bool:
        self._seq += 1
        report = RankProgress(fabric="f", job="j", rank=0, host="h", seq=self._seq, at=T0)
        message = Outgoing(subject="s", data=report, id=f"{self._seq}", component="c", time=T0)
        return self.handover.offer(message, report)


def test_without_a_collector_nothing_is_handed_over() -> None:
    rig = Rig()
    rig.handover._writer = None
    assert not rig.offer()


async def test_what_is_not_answered_in_time_goes_out_by_itself_and_nothing_is_entrusted_after_it() -> None:
    rig = Rig()
    assert rig.offer()
    await rig.clock.advance(ANSWER_WITHIN_S - 0.1)
    rig.handover.look()
    assert rig.untaken == []
    await rig.clock.advance(0.2)
    rig.handover.look()
    assert rig.untaken == [1]
    assert not rig.offer()
    assert len(rig.writer.lines) == 1


async def test_a_collector_that_hangs_gets_a_copy_now_and_then() -> None:
    rig = Rig()
    rig.offer()
    rig.handover.give_back()
    await rig.clock.advance(TRY_AGAIN_S + 0.1)
    assert not rig.offer(), "a copy: the rank sends this one by itself"
    assert not rig.offer()
    assert len(rig.writer.lines) == 2
    assert rig.untaken == [1]


def test_a_collector_that_reads_nothing_is_left() -> None:
    rig = Rig()
    rig.writer.unread = UNREAD_BYTES_MAX + 1
    assert not rig.offer()
    assert rig.writer.closed
