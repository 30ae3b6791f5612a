"""Sends on what the ranks of this host report: what came within `HOLD_S` in one message.

Nothing is kept here. A report is answered once the bus has stored it; one that is not answered soon the rank sends by
itself. So whatever goes wrong (the bus is away, this process is killed, more comes than can be held), dropping it is
right, and telling it a second time is harmless: its `seq` says that it is the same. What has waited long in the socket,
because this process was stopped, is dropped too: it would show as alive a rank that may be dead by now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from goodput_collector.application.encodable import NOT_ENCODABLE
from goodput_collector.application.publish import Origin
from goodput_collector.domain.reports import Told, messages, refusal
from goodput_common.bus.errors import BusError
from goodput_common.bus.ports import Bus
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import host_id
from goodput_common.contracts.job import HostProgress, RankProgress
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks

HOLD_S = 0.2
STALE_S = 2.0  # by the clock of the host, which is the rank's own
HELD_MAX = 4096
SENDING_MAX = 16  # messages on their way; more: the bus is too slow, and ranks send by themselves
Answer = Callable[[], None]

_log = get_logger(__name__)


class ReportSender:
    """`name` tells this process's messages from those of any other, before or after it."""

    def __init__(
        self, origin: Origin, name: str, connect: Callable[[], Awaitable[Bus]], *, clock: Clock, tasks: Tasks
    ) -> None:
        self._origin = origin
        self._name = name
        self._connect = connect
        self._clock = clock
        self._tasks = tasks
        self._held: list[Told] = []
        self._answers: dict[int, Answer] = {}
        self._told = 0
        self._sent = 0
        self._sending: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._states = StateLog(_log)
        self.sent_on = 0
        self.dropped = 0

    def take(self, report: RankProgress, size_bytes: int, answer: Answer) -> None:
        """`answer` is called once the bus has stored it, or never."""
        why_not = refusal(report, self._origin.fabric, self._origin.host)
        if not why_not and (self._clock.now() - report.at).total_seconds() > STALE_S:
            why_not = f"it is older than {STALE_S} s"
        if not why_not and len(self._held) >= HELD_MAX:
            why_not = f"{HELD_MAX} reports are held already"
        if why_not or self._stopped:
            self.dropped += 1
            self._states.report("taking", "refused", "a rank's report is not sent on", level="warning", reason=why_not)
            return
        self._states.report("taking", "taken", "reports of ranks are taken")
        self._told += 1
        self._answers[self._told] = answer
        self._held.append(Told(report, size_bytes, self._told))
        if len(self._held) == 1:
            asyncio.get_running_loop().call_later(HOLD_S, self.send)

    def send(self) -> None:
        """Everything that is held, now."""
        held, self._held = self._held, []
        for data, numbers in messages(held, self._clock.now()):
            answers = [self._answers.pop(number) for number in numbers]
            if len(self._sending) >= SENDING_MAX:
                self.dropped += len(answers)
                continue
            sending = self._tasks.spawn("reports of ranks", self._publish(data, answers))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)

    def stop(self) -> None:
        """Take no more, send what is held."""
        self._stopped = True
        self.send()

    async def drain(self) -> None:
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _publish(self, data: HostProgress, answers: list[Answer]) -> None:
        self._sent += 1
        number = self._sent
        try:
            bus = await self._connect()
            await bus.publish(
                subjects.job(data.fabric, data.job, "host_progress"),
                data,
                id=f"{data.fabric}/{data.host}/{self._name}/host_progress/{number}",
                source=self._origin.name,
                component=host_id(data.host),
                time=data.at,
            )
        except (BusError, *NOT_ENCODABLE) as error:
            self.dropped += len(answers)
            self._states.report(
                "sending", "failed", "reports are not sent on: ranks do by themselves", level="warning", error=str(error)
            )
            return
        self._states.report("sending", "works", "reports of ranks are sent on")
        self.sent_on += len(answers)
        for answer in answers:
            answer()
