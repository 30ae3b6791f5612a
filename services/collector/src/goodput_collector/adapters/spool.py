"""The spool on disk: a log in segments, a place up to which it has been sent, and the numbers given out.

    <directory>/lock                    held while a collector runs: two would give out the same numbers
    <directory>/sent                    segment and offset up to which everything is acknowledged
    <directory>/numbers                 the last number given out to each source, written in place
    <directory>/<n>.spool               records, each with length and checksum

A record is written with one call into the page cache before its message is sent. That outlives kill -9; it does not
outlive a crash of the host, after which the boot id is another one and numbers start anew, so nothing is ever synced. A
record that was cut short by the end of its process is cut off at the next start.

At the bound the oldest segment goes, sent or not, and what had not been sent is counted. If the disk refuses (full,
gone, no descriptor left), the newest messages wait in memory instead, within a small bound, and the trouble is reported.
From then on everything goes through memory until the disk has taken all of it, so that the order stays. What is on the
disk and cannot be read any more is counted as dropped and passed over: it must not stop what stands behind it. A directory
that somebody takes away is made again, numbers and all: else the next start would give them out a second time.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from goodput_collector.adapters.spool_files import NUMBERS, Numbers, Sent, close_file, is_there, lock
from goodput_collector.adapters.spool_found import PASSES, Found, segment_path
from goodput_collector.adapters.spool_records import Damage, Record, count_records, encoded, message_of, records
from goodput_collector.application.ports import Outgoing, SpoolState
from goodput_common.runtime.lifecycle import StartError
from goodput_common.runtime.logs import StateLog, get_logger

_MEMORY_MESSAGES_MAX = 256
_FRESH_MESSAGES_MAX = 64

_log = get_logger(__name__)


class _Held(NamedTuple):
    """A message that waits in memory, and its record as it is to be written."""

    message: Outgoing
    framed: bytes


class DiskSpool:
    """See `goodput_collector.application.ports.Spool`. Used from one thread, but for `state`. `mark_number` is the
    bookmarks' running number. Raises StartError when another collector has the directory, OSError when it cannot be made."""

    def __init__(
        self,
        directory: Path,
        *,
        boot_id: str,
        bytes_max: int = 64 << 20,
        segment_bytes: int = 1 << 20,
        mark_number: Callable[[], int] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._boot_id = boot_id
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, bytes_max // 4)
        self._lock = lock(directory)
        self._mark_number = mark_number or itertools.count(1).__next__
        self.marks: dict[str, tuple[int | str, int]] = {}
        """The bookmarks of the messages that were found at the start, each with its running number."""
        self._dropped = 0
        self._trouble = ""
        self._memory: deque[_Held] = deque()
        self._memory_positions = 0
        self._written_back: dict[int, int] = {}  # position in memory: position on the disk
        self._torn = False  # half a record stands at the newest segment's end and could not be cut off
        self._fresh: deque[tuple[int, Outgoing]] = deque()  # the oldest that wait, while they need not be read back
        self._states = StateLog(_log)
        self._sent = Sent(directory / "sent")
        self._numbers = Numbers(directory / NUMBERS, boot_id=boot_id)
        self._segment, self._offset = self._sent.read()
        self._sizes: dict[int, int] = {}
        self._waiting: dict[int, int] = {}
        self._take_over(Found(directory, sent=(self._segment, self._offset), learn=self._learn, states=self._states))
        self._numbers.write()
        self._file: Any = self._open(self._newest())
        self._state = SpoolState()
        self._tell_state()

    # -- numbers ----------------------------------------------------------------------------------------------------

    def next_seq(self, source: str) -> int:
        return self._numbers.next(source)

    # -- in ---------------------------------------------------------------------------------------------------------

    def append(self, message: Outgoing, *, source: str, seq: int) -> bool:
        marked = self._mark_number() if message.marks else 0
        message, framed = encoded(message, name=source, seq=seq, boot_id=self._boot_id, marked=marked)
        try:
            self._stay_there()
            self._write_back()
            self._put(message, framed)
            self._trouble = ""
            safe = True
        except (OSError, ValueError, StartError) as error:
            reason = error.strerror if isinstance(error, OSError) else ""
            self._trouble = f"spool {self._directory}: {reason or error}; newest messages kept in memory"
            self._remember(_Held(message, framed))
            safe = False
        self._numbers.write()
        self._tell_state()
        return safe

    def _put(self, message: Outgoing, framed: bytes) -> int:
        """Returns its position."""
        self._write(framed)
        self._freshen(message)
        newest = self._newest()
        self._waiting[newest] += 1
        return newest << 32 | self._sizes[newest]

    def _stay_there(self) -> None:
        """Make again what somebody has taken away under it: else it is written to until the process ends, and lost then.
        Raises OSError, StartError."""
        directory = self._directory
        if not is_there(directory / "lock", self._lock):
            directory.mkdir(parents=True, exist_ok=True)
            held, self._lock = self._lock, lock(directory)
            close_file(held)
        if not self._numbers.is_there():
            self._numbers.open_again()
        if not self._sent.is_there():
            self._sent.open_again()
        if not is_there(self._path(self._newest()), self._file.fileno()):
            self._torn = True  # what comes goes into a new segment

    def _write_back(self) -> None:
        """What waits in memory goes first. Raises OSError, ValueError."""
        while self._memory:
            position = self._put(*self._memory[0])
            self._memory.popleft()
            self._memory_positions += 1
            self._written_back[self._memory_positions] = position
            while len(self._written_back) > _MEMORY_MESSAGES_MAX:
                self._written_back.pop(next(iter(self._written_back)))

    def _freshen(self, message: Outgoing) -> None:
        """What has just been written need not be read back, as long as nothing older waits on the disk alone."""
        if sum(self._waiting.values()) == len(self._fresh) < _FRESH_MESSAGES_MAX:
            newest = self._newest()
            self._fresh.append((newest << 32 | self._sizes[newest], message))

    def _remember(self, held: _Held) -> None:
        if len(self._memory) >= _MEMORY_MESSAGES_MAX:
            self._memory.popleft()
            self._memory_positions += 1
            self._dropped += 1
        self._memory.append(held)

    def _write(self, framed: bytes) -> None:
        size = self._sizes[self._newest()]
        if self._torn or (size and size + len(framed) > self._segment_bytes):
            self._roll_over()
        newest = self._newest()
        start = self._sizes[newest]
        try:
            if os.write(self._file.fileno(), framed) != len(framed):
                raise OSError(errno.ENOSPC, "no space left on device")
        except OSError:
            try:
                os.ftruncate(self._file.fileno(), start)
            except OSError:
                self._torn = True
            raise
        self._sizes[newest] = start + len(framed)
        self._drop_oldest()

    def _roll_over(self) -> None:
        newest = self._newest() + 1
        file = self._open(newest)  # first: when it fails nothing has changed
        old, self._file, self._torn = self._file, file, False
        self._sizes[newest], self._waiting[newest] = 0, 0
        with contextlib.suppress(OSError):
            old.close()

    def _drop_oldest(self) -> None:
        while sum(self._sizes.values()) > self._bytes_max and len(self._sizes) > 1:
            oldest = min(self._sizes)
            self._dropped += self._waiting[oldest]
            self._delete(oldest)

    # -- out --------------------------------------------------------------------------------------------------------

    def peek(self, count: int) -> Iterable[tuple[int, Outgoing]]:
        """A position is (segment << 32 | offset behind the record); negative for what waits in memory."""
        found = list(self._fresh)[:count]
        if len(found) < count and sum(self._waiting.values()) > len(found) and not self._peek_on_disk(found, count):
            return found  # memory holds what comes after it
        for index, held in enumerate(list(self._memory)[: count - len(found)]):
            found.append((-(self._memory_positions + index + 1), held.message))
        return found

    def _peek_on_disk(self, found: list[tuple[int, Outgoing]], count: int) -> bool:
        """Fill `found` up; False if more is on the disk. What cannot be read is dropped once it is the oldest that waits."""
        first, offset = divmod(found[-1][0], 1 << 32) if found else (self._segment, self._offset)
        for segment in [each for each in sorted(self._sizes) if each >= first]:
            start = end = offset if segment == first else 0
            try:
                for end, record in records(self._path(segment), start):
                    if len(found) == count:
                        return False
                    if isinstance(record, Damage) and record.torn:
                        break
                    message = "damaged records" if isinstance(record, Damage) else message_of(record)
                    if isinstance(message, Outgoing):
                        found.append((segment << 32 | end, message))
                    elif found:
                        return False
                    else:
                        left = count_records(self._path(segment), end) if isinstance(record, Damage) else None
                        self._pass_over(segment, end, left, message)
            except OSError as error:
                if error.errno in PASSES:
                    return False
            if end < self._sizes.get(segment, 0) or self._left_over(segment, found):
                if found:
                    return False
                self._torn = self._torn or segment == self._newest()  # it ends sooner than what was written to it
                self._pass_over(segment, self._sizes[segment], 0, "records that cannot be read")
        return True

    def _left_over(self, segment: int, found: list[tuple[int, Outgoing]]) -> bool:
        """Do more messages seem to wait in it than it holds?"""
        return self._waiting.get(segment, 0) > sum(position >> 32 == segment for position, _ in found)

    def _pass_over(self, segment: int, offset: int, left: int | None, what: str) -> None:
        """Drop the oldest that wait up to `offset`, behind which so many are left; None: one less than until now."""
        waiting = self._waiting[segment]
        lost = 1 if left is None else max(0, waiting - left)
        self._states.report("spool", what, "messages dropped", level="error", spool=str(self._path(segment)), lost=lost)
        self._dropped += lost
        self._advance(segment, offset, lost if left is None else waiting - left)
        self._tell_state()

    def acknowledge(self, position: int) -> None:
        if position < 0 and (written := self._written_back.get(-position)) is not None:
            position = written
        if position < 0:
            while self._memory and self._memory_positions < -position:
                self._memory.popleft()
                self._memory_positions += 1
        else:
            segment, offset = position >> 32, position & 0xFFFFFFFF
            if segment in self._sizes:  # else dropped at the bound while it was on its way
                self._advance(segment, offset, 1)
        self._tell_state()

    def _advance(self, segment: int, offset: int, count: int) -> None:
        while self._fresh and self._fresh[0][0] <= segment << 32 | offset:
            self._fresh.popleft()
        self._segment, self._offset = segment, offset
        self._waiting[segment] -= count
        self._sent.write(segment, offset)
        for older in [each for each in self._sizes if each < segment]:
            self._delete(older)

    def state(self) -> SpoolState:
        """As of the last change; may be asked from any thread."""
        return self._state

    def _tell_state(self) -> None:
        waiting = sum(self._waiting.values()) + len(self._memory)
        filled = 1.0 if self._trouble else self._unsent_bytes() / self._bytes_max
        self._state = SpoolState(waiting, self._dropped, self._trouble, filled)

    def _unsent_bytes(self) -> int:
        sent = self._offset if self._segment in self._sizes else 0
        return max(0, sum(self._sizes.values()) - sent)

    def close(self) -> None:
        self._file.close()
        self._numbers.close()
        self._sent.close()
        close_file(self._lock)

    # -- segments ---------------------------------------------------------------------------------------------------

    def _newest(self) -> int:
        return max(self._sizes)

    def _path(self, segment: int) -> Path:
        return segment_path(self._directory, segment)

    def _open(self, segment: int) -> Any:
        return self._path(segment).open("ab", buffering=0)

    def _delete(self, segment: int) -> None:
        self._sizes.pop(segment, None)
        self._waiting.pop(segment, None)
        while self._fresh and self._fresh[0][0] >> 32 <= segment:
            self._fresh.popleft()
        with contextlib.suppress(OSError):
            self._path(segment).unlink()

    def _take_over(self, found: Found) -> None:
        """What the last process left."""
        for segment in found.older:
            self._delete(segment)
        self._sizes, self._waiting, self._dropped = found.sizes, found.waiting, found.dropped
        if self._offset > self._sizes.get(self._segment, self._offset):  # cut short: what comes has not been sent
            self._offset = self._sizes[self._segment]
            self._sent.write(self._segment, self._offset)
        if not self._sizes or found.must_roll:
            first = max([self._segment, *found.segments]) + 1
            self._sizes[first], self._waiting[first] = 0, 0

    def _learn(self, record: Record) -> None:
        self.marks |= {name: (mark, record.marked) for name, mark in record.marks.items()}
        if record.boot_id == self._boot_id:
            self._numbers.learn(record.name, record.seq)
