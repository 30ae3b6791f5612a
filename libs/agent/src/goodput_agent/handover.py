"""Reports go to the host's collector, which sends those of all ranks on in one message; where nobody takes them, the rank
sends them by itself.

A report is handed over, not given away: it is kept until the collector says that the bus has stored it. When the
connection breaks (the collector was killed), or no answer comes within `ANSWER_WITHIN_S` (it hangs, or its bus is away),
what is kept goes out by itself, in time for nobody to think the rank silent. A collector that hangs is tried again with a
copy of a report now and then, and trusted again with its first answer. So a report may arrive twice, and its `seq` says
so; it is never lost on the way.

Only reports go this way. What is said once (a registration, a suspicion, last words) the rank always says by itself.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from goodput_agent.guard import complaints
from goodput_agent.outqueue import Outgoing
from goodput_common.contracts.job import RankProgress

ANSWER_WITHIN_S = 0.6  # the collector waits 0.2 s for the other ranks; a report may be 1.8 s apart from the last
TRY_AGAIN_S = 5.0  # between two tries to reach a collector, or copies for one that hangs
KEPT_MAX = 8
UNREAD_BYTES_MAX = 64 << 10  # of a collector that does not read
LINE_BYTES_MAX = 64


def phase_s(host: str, every_s: float) -> float:
    """When in each second the ranks of this host report, all of them at once, and those of other hosts at another time."""
    return crc32(host.encode()) / (1 << 32) * every_s


def until_next_s(now_s: float, every_s: float, phase: float) -> float:
    """From `now_s` to the next of the host's own moments, more than zero."""
    return every_s - (now_s - phase) % every_s


class Handover:
    """`untaken` gets back what nobody has taken, oldest first. All calls from one event loop."""

    def __init__(
        self, socket: Path, untaken: Callable[[Sequence[Outgoing]], None], monotonic_s: Callable[[], float]
    ) -> None:
        self._socket = socket
        self._untaken = untaken
        self._monotonic_s = monotonic_s
        self._writer: asyncio.StreamWriter | None = None
        self._trusted = False
        self._try_at_s = 0.0
        self._kept: OrderedDict[int, tuple[float, Outgoing]] = OrderedDict()

    def offer(self, message: Outgoing, report: RankProgress) -> bool:
        """Whether the collector may have it. False: send it by itself."""
        writer = self._writer
        if writer is None or writer.is_closing():
            return False
        now_s = self._monotonic_s()
        if not self._trusted and now_s < self._try_at_s:
            return False
        if writer.transport.get_write_buffer_size() > UNREAD_BYTES_MAX:
            writer.close()
            return False
        self._try_at_s = now_s + TRY_AGAIN_S
        writer.write(msgspec.json.encode(report) + b"\n")
        if not self._trusted or len(self._kept) >= KEPT_MAX:
            return False  # a copy, to see whether it is answered
        self._kept[report.seq] = (now_s, message)
        return True

    def look(self) -> None:
        """Called a few times a second: what was not answered in time goes out by itself."""
        if self._kept and self._monotonic_s() - next(iter(self._kept.values()))[0] > ANSWER_WITHIN_S:
            self.give_back()

    def give_back(self) -> None:
        """Everything that is kept goes out by itself, and nothing is entrusted before the next answer."""
        self._trusted = False
        kept, self._kept = [message for _, message in self._kept.values()], OrderedDict()
        if kept:
            self._untaken(kept)

    async def run(self) -> None:
        """Find the collector and listen to it, for ever."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=LINE_BYTES_MAX)
            except OSError:  # no collector, or an older one: ranks report by themselves
                await asyncio.sleep(TRY_AGAIN_S)
                continue
            self._writer, self._trusted, self._try_at_s = writer, True, 0.0
            try:
                await self._listen(reader)
            except (OSError, ValueError) as error:  # ValueError: a line that is too long, or no number
                complaints.failed("handing reports over", error)
            finally:
                self._writer = None
                writer.close()
                self.give_back()
            await asyncio.sleep(TRY_AGAIN_S / 10)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            self._kept.pop(int(line), None)
            self._trusted = True
            complaints.worked("handing reports over")
