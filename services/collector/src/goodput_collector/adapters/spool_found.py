"""What of a spool a start finds on the disk: its segments, how long they are, and how much in them still waits.

A record that was cut short by the end of its process is cut off. A segment that cannot be read keeps what is in it: nothing
is cut off, and what comes goes into a new one.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

from goodput_collector.adapters.spool_records import Damage, Record, records
from goodput_common.runtime.logs import StateLog

PASSES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})  # says nothing of the file
_SEGMENT_DIGITS = re.compile(r"[0-9]{8,12}")


def segment_path(directory: Path, segment: int) -> Path:
    return directory / f"{segment:08d}.spool"


class Found:
    """`sent` is the segment and offset up to which all is acknowledged; `learn` gets every record that is whole. By segment:
    `sizes`, and how many messages are `waiting`. `older` ones are sent and may go. Raises OSError for what says nothing of
    the files, as no descriptor being left."""

    def __init__(self, directory: Path, *, sent: tuple[int, int], learn: Callable[[Record], None], states: StateLog) -> None:
        self._directory = directory
        self._sent = sent
        self._learn = learn
        self._states = states
        self.sizes: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.older: list[int] = []
        self.dropped = 0  # or more
        self.must_roll = False  # what comes goes into a new segment
        names = [path.stem for path in directory.glob("*.spool")]
        self.segments = sorted(int(name) for name in names if _SEGMENT_DIGITS.fullmatch(name))
        for segment in self.segments:
            if not segment_path(directory, segment).is_file():  # opening a pipe would take for ever
                self.must_roll = True
            elif segment < sent[0]:
                self.older.append(segment)
            else:
                self.sizes[segment], self.waiting[segment] = self._look_into(segment)

    def _look_into(self, segment: int) -> tuple[int, int]:
        """(size, how many wait)"""
        path = segment_path(self._directory, segment)
        end, waiting, is_cut = 0, 0, False
        try:
            for after, record in records(path, 0):
                is_sent = segment == self._sent[0] and after <= self._sent[1]
                if isinstance(record, Damage):
                    is_cut = record.torn
                    waiting += 0 if is_cut or is_sent else record.records
                else:
                    if record is not None:
                        self._learn(record)
                    waiting += not is_sent
                end = end if is_cut else after
        except OSError as error:
            if error.errno in PASSES:
                raise
            self.must_roll = True
            self.dropped += 1
            self._states.report("spool", f"{error.strerror}: {path}", "segment not read", level="error")
            return end, waiting
        if is_cut:
            with contextlib.suppress(OSError):
                os.truncate(path, end)
        return end, waiting
