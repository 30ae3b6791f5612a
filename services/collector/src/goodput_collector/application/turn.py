"""The life of one source: open, read when due or woken, close and try again later when it fails.

A failure makes *this* source unknown, with the reason, until it answers again: it is tried again after 1, 2, 4 ... at most
60 s. What this host does not have is absent, not unknown, and looked for once a minute: devices appear.

Who calls is a lane's thread (`lane`). A call that has not returned at its deadline makes the source unknown until it does.
What it brings then is late but not false, for samples carry their own times; and the reader has moved on (the next delta
counts from there, a change is told once), so what is not published now is never told. For the same reason a reading that
could not be published is offered again before the next read, a few times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from goodput_collector.application.ports import Absent, Reading, SourceReader, Unreadable
from goodput_common.contracts.telemetry import SourceStatus
from goodput_common.runtime.logs import get_logger

BACKOFF_FIRST_S = 1.0
BACKOFF_MAX_S = 60.0
DELIVERIES_MAX = 5  # of one reading; then it is given up, and the source opened anew: logs go on from their bookmarks
EARLY_S = 0.0005  # before its time a source is read all the same: its neighbours' has come
WAKE_SETTLE_S = 0.02  # lines come in bursts: one batch for them

_INTERVAL_MIN_S = 0.001

_T = TypeVar("_T")
_log = get_logger(__name__)

Say = Callable[[SourceStatus, str], None]  # from the lane's thread and from whoever watches it


class Undelivered(Exception):
    """A reading could not be published, however often it was tried."""


class Turn:
    """`shorten` is how long the source really waits when it is to wait so many seconds."""

    def __init__(self, reader: SourceReader, *, name: str, say: Say, shorten: Callable[[float], float]) -> None:
        self.reader = reader
        self.name = name
        self.due_at_s = 0.0
        self._calling = threading.Lock()  # what a call tells of itself comes after what is told of it
        self._called_at_s: float | None = None
        self._say = say
        self._shorten = shorten
        self._open = False
        self._woken = False
        self._late = False
        self._backoff_s = BACKOFF_FIRST_S
        self._undelivered: Reading | None = None
        self._attempts = 0
        self._bug = ""

    def wake_fd(self) -> int | None:
        """What may wake it now; None once it is awake, and while it waits for another try. Never raises."""
        if not self._open or self._woken or self._undelivered is not None:
            return None
        try:
            fd = self.reader.wake_fd()
        except BaseException as error:  # noqa: BLE001 - as in `take`
            self._failed(error)
            return None
        return fd if fd is not None and fd >= 0 else None

    def wake(self, now_s: float) -> None:
        self._woken = True
        self.due_at_s = min(self.due_at_s, now_s + self._shorten(WAKE_SETTLE_S))

    def take(self) -> Reading | None:
        """Its next reading, which is to be followed by `delivered`; None: there is none now. Never raises."""
        self._woken = False
        if self._undelivered is not None:
            return self._undelivered
        try:
            if not self._open:
                self._call(self.reader.open)
                self._open = True
            reading = self._call(self.reader.read)
            trouble = reading.trouble
        except BaseException as error:  # noqa: BLE001 - one source's bug, or a library's panic, takes no others down
            self._failed(error)
            return None
        self._backoff_s, self._bug = BACKOFF_FIRST_S, ""
        self._say(SourceStatus.OK, trouble)
        return reading

    def delivered(self, reading: Reading, error: Exception | None, *, offset_s: float) -> None:
        """Whether the reading was published. The next read is at a multiple of the interval, so that sources of one interval
        are read together: the processor wakes once for all of them."""
        if error is not None:
            self._not_delivered(reading, error)
            return
        if self._undelivered is not None:
            self._undelivered, self._attempts = None, 0
            self._say(SourceStatus.OK, reading.trouble)
        now_s, interval_s = time.monotonic() + EARLY_S, max(self._shorten(self.reader.interval_s), _INTERVAL_MIN_S)
        self.due_at_s = now_s + interval_s - (now_s - offset_s) % interval_s

    def late_in_s(self) -> float | None:
        """How long its call has until the deadline; None once it has passed, which is told. From any thread."""
        with self._calling:
            if self._late:
                return None
            if self._called_at_s is None:  # between opening and reading
                return self.reader.deadline_s
            left_s = self._called_at_s + self.reader.deadline_s - time.monotonic()
            if left_s > 0:
                return left_s
            self._late = True
            self._say(SourceStatus.UNKNOWN, f"no answer within {self.reader.deadline_s:g} s")
            return None

    def close(self) -> None:
        """A reader whose `close` raises, against its promise, is opened again all the same."""
        self._open = False
        try:
            self._call(self.reader.close)
        except BaseException as error:  # noqa: BLE001 - it would end the thread, and all its sources with it
            _log.error("source not closed properly", source=self.name, exc_info=error)

    def _call(self, function: Callable[[], _T]) -> _T:
        """Raises whatever `function` raises."""
        with self._calling:
            self._late, self._called_at_s = False, time.monotonic()
        try:
            return function()
        finally:
            with self._calling:
                self._late, self._called_at_s = False, None

    def _failed(self, error: BaseException) -> None:
        match error:
            case Absent():
                self._backoff_s = BACKOFF_MAX_S
                self._say(SourceStatus.ABSENT, str(error))
            case Unreadable() | Undelivered():
                self._say(SourceStatus.UNKNOWN, str(error))
            case OSError():
                self._say(SourceStatus.UNKNOWN, f"{error.strerror or error}: {error.filename or self.name}")
            case _:
                reason = f"{type(error).__name__}: {error}"
                self._say(SourceStatus.UNKNOWN, reason)
                if reason != self._bug:  # its traceback once, not at each try
                    _log.error("source failed", source=self.name, exc_info=error)
                self._bug = reason
        self.close()
        self._try_again_after(self._backoff_s)
        self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)

    def _not_delivered(self, reading: Reading, error: Exception) -> None:
        self._attempts += 1
        reason = f"what was read cannot be published: {type(error).__name__}: {error}"
        if self._attempts == DELIVERIES_MAX:
            self._undelivered, self._attempts = None, 0
            self._failed(Undelivered(reason))
            return
        self._undelivered = reading
        self._say(SourceStatus.UNKNOWN, reason)
        if self._attempts == 1:
            _log.error("reading not published; it is tried again", source=self.name, exc_info=error)
        self._try_again_after(BACKOFF_FIRST_S * 2 ** (self._attempts - 1))

    def _try_again_after(self, seconds: float) -> None:
        self.due_at_s = time.monotonic() + self._shorten(seconds)
