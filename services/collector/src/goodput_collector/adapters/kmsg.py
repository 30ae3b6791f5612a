"""The kernel's own log, from /dev/kmsg: every record once, in order, the moment it is written.

Records are numbered without gaps; when one shows, records were overwritten before they were read, and how many is told as
an event: what they said is not known. The kernel's clock stands still in suspend and drifts against the wall clock, so a
record that has just been written takes the wall clock's time if the two disagree.

What was logged before the collector started is read too (a GPU may have been lost a minute ago), but not told again
after a restart: the number of the last record whose events are in the spool is kept as a bookmark.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import msgspec

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.kernel_log import NEEDLES, KernelLogParser
from goodput_collector.domain.kernel_record import parse_record
from goodput_collector.domain.line_counts import LineCounts
from goodput_collector.domain.timestamps import LineClock, Placed
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Sample, Severity, Source
from goodput_common.runtime.clock import Clock

RECORD_BYTES = 16 * 1024
RECORDS_PER_READ = 5000
DRIFT_S = 1.0
TEXTS_REMEMBERED = 256


def _kernel_s() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class KmsgReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.KERNEL_LOG
    instance = ""
    interval_s = 5.0
    deadline_s = 5.0

    def __init__(
        self,
        path: str,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        bookmarks: Bookmarks,
        history_s: float = 600.0,
        kernel_s: Callable[[], float] = _kernel_s,
        read_record: Callable[[int, int], bytes] = os.read,
    ) -> None:
        self._path = path
        self._host = ids.host_id(host)
        self._mark = f"kmsg/{boot_id}"
        self._clock = clock
        self._bookmarks = bookmarks
        self._history_s = history_s
        self._kernel_s = kernel_s
        self._read_record = read_record
        self._parser = KernelLogParser(host=host, clock=LineClock())
        self._folder = Folder()
        self._remembered: dict[bytes, Event | None] = {}
        self._counts = LineCounts(self._host, self.source)
        self._fd: int | None = None
        self._number: int | None = None  # of the last record read
        self._kept: int | None = None  # of the last one whose events are in the spool
        self._told_up_to: int | None = None
        self._caught_up = False

    def open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Absent(f"there is no {self._path} here") from None
        except PermissionError:
            raise Unreadable(
                f"not allowed to read {self._path}",
                remedy="give the collector CAP_SYSLOG, run it as root, or set GOODPUT_KERNEL_LOG to `journal` or log files",
            ) from None
        self._caught_up = False
        if self._kept != self._number:  # a reading that never reached the spool: its records are read again
            self._folder = Folder()
        self._told_up_to = self._kept if self._kept is not None else self._bookmarks.get(self._mark)
        self._number = self._told_up_to

    def wake_fd(self) -> int | None:
        return self._fd

    def read(self) -> Reading:
        if self._fd is None:
            raise Unreadable(f"{self._path} is closed")
        samples: list[Sample] = []
        for _ in range(RECORDS_PER_READ):
            try:
                record = self._read_record(self._fd, RECORD_BYTES)
            except BlockingIOError:
                self._caught_up = True
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten; the next read goes on behind the hole
                    continue
                raise
            if not record:
                self._caught_up = True
                break
            self._tell(record, samples)
        now = self._clock.now()
        samples += self._folder.flush(now)
        samples += self._counts.due(now, self._clock.monotonic_s())
        if self._number is None:
            return Reading(samples=samples, covered=[self._host])
        kept = partial(self._keep, self._number, bool(samples))
        return Reading(samples=samples, covered=[self._host], kept=kept, marks={self._mark: self._number})

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = None
        self._bookmarks.save()

    def _keep(self, number: int, told: bool) -> None:
        self._kept = number
        if told:
            self._bookmarks.keep({self._mark: number})
        else:
            self._bookmarks.set(self._mark, number)

    def _tell(self, raw: bytes, samples: list[Sample]) -> None:
        record = parse_record(raw)
        if record is None:
            self._counts.seen += 1
            return
        before, number = self._number, record.number
        if self._told_up_to is not None and number <= self._told_up_to:
            return
        self._number = number
        age_s = self._kernel_s() - record.since_boot_s
        old = not self._caught_up and self._told_up_to is None and age_s > self._history_s
        if before is not None and number > before + 1 and not old:
            samples.append(self._gap(number - before - 1, before))
        self._counts.seen += 1
        if old or not NEEDLES.found_in(record.text):
            return
        if self._caught_up and abs(age_s) > DRIFT_S:
            age_s = 0.0
        at = self._clock.now() - timedelta(seconds=max(0.0, age_s))
        for line in record.text.split(b"\n"):
            event = self._event(line, at)
            if event is not None:
                self._counts.matched += 1
                samples.extend(self._folder.add(event))

    def _event(self, line: bytes, at: datetime) -> Event | None:
        """A broken device says the same line over and over: only the first one is parsed."""
        if line in self._remembered:
            known = self._remembered[line]
            return None if known is None else msgspec.structs.replace(known, observed_at=at)
        event = self._parser.see(Placed(at, line.decode("utf-8", "replace"), "", "", ""))
        if b"SXid" not in line:  # of those the lines before matter
            if len(self._remembered) >= TEXTS_REMEMBERED:
                self._remembered.clear()
            self._remembered[line] = event
        return event

    def _gap(self, missed: int, after: int) -> Event:
        self._counts.lost += missed
        return Event(
            component=self._host,
            name=EventName.LOG_GAP,
            observed_at=self._clock.now(),
            severity=Severity.WARNING,
            excerpt=f"{missed} records of the kernel's log were overwritten before they could be read",
            attrs={"missed": str(missed), "after": str(after), "log": self._path},
        )
