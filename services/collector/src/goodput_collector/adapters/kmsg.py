"""The kernel's own log, from /dev/kmsg: every record once, in order, the moment it is written.

A record is `<priority>,<number>,<µs since boot>,<flags>;<text>`. Numbers have no gaps; when one shows, or the kernel
answers EPIPE, records were overwritten before they were read, and how many is told as a state. The kernel's clock
stands still in suspend and drifts against the wall clock, so a record that has just been written takes the wall clock's
time if the two disagree.

What was logged before the collector started is read too (a GPU may have been lost a minute ago), but not told again
after a restart: the last number told is kept as a bookmark.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.kernel_log import NEEDLES, KernelLogParser
from goodput_collector.domain.timestamps import LineClock, Placed
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock

RECORD_BYTES = 16 * 1024
RECORDS_PER_READ = 5000
DRIFT_S = 1.0
_RECORD = re.compile(rb"^\d+,(?P<number>\d+),(?P<usec>\d+),[^;]*;(?P<text>[^\n]*)")


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
        self._host = host
        self._mark = f"kmsg/{boot_id}"
        self._clock = clock
        self._bookmarks = bookmarks
        self._history_s = history_s
        self._kernel_s = kernel_s
        self._read_record = read_record
        self._parser = KernelLogParser(host=host, clock=LineClock())
        self._folder = Folder()
        self._fd: int | None = None
        self._number: int | None = None
        self._told_up_to: int | None = None
        self._lost = 0
        self._lost_told = 0
        self._caught_up = False

    def open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise Absent(f"there is no {self._path} here") from None
        except PermissionError:
            raise Unreadable(
                f"not allowed to read {self._path}: give the collector CAP_SYSLOG, or set GOODPUT_KERNEL_LOG to a log file"
            ) from None
        self._caught_up = False
        self._told_up_to = self._number if self._number is not None else self._bookmarks.get(self._mark)

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
            samples += self._tell(record)
        samples += self._folder.flush(self._clock.now())
        if self._lost > self._lost_told:
            self._lost_told = self._lost
            samples.append(
                State(
                    component=ids.host_id(self._host),
                    name="kernel_log_lost",
                    observed_at=self._clock.now(),
                    value=str(self._lost),
                )
            )
        if self._number is not None:
            self._bookmarks.set(self._mark, self._number)
        return Reading(samples=samples)

    def close(self) -> None:
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = None
        self._bookmarks.save()

    def _tell(self, record: bytes) -> list[Sample]:
        match = _RECORD.match(record)
        if match is None:
            return []
        number = int(match["number"])
        if self._number is not None and number > self._number + 1:
            self._lost += number - self._number - 1
        if self._told_up_to is not None and number <= self._told_up_to:
            return []
        self._number = number
        text = match["text"]
        if not NEEDLES.found_in(text):
            return []
        age_s = self._kernel_s() - int(match["usec"]) / 1e6
        if self._caught_up and abs(age_s) > DRIFT_S:
            age_s = 0.0
        elif self._told_up_to is None and age_s > self._history_s:
            return []
        at = self._clock.now() - timedelta(seconds=max(0.0, age_s))
        event = self._parser.see(Placed(at, text.decode("utf-8", "replace"), "", "", ""))
        return [] if event is None else list(self._folder.add(event))
