"""The thread of one source: open, read when due or woken, close and try again later when it fails.

A read of a hung device does not return, and no Python can make it: so each source has a thread of its own, which may block
for as long as it likes. The event loop hears of it only when there is something to say: a reading with content, or a
state that has changed. A quiet source that is read every second costs its read and one wake-up, nothing in the loop.

Whoever watches calls `overdue`: a call that has not returned at its deadline makes the source unknown until it does.
What it brings then is late but not false, for samples carry their own times; and the reader has moved on (the next delta
counts from there, a change is told once), so what is not published now is never told. For the same reason a reading that
could not be published is offered again before the next read, a few times.
"""

from __future__ import annotations

import contextlib
import os
import select
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
WAKE_SETTLE_S = 0.02  # lines come in bursts: one batch for them

_T = TypeVar("_T")
_log = get_logger(__name__)

Say = Callable[[SourceStatus, str], None]


class _Stopped(BaseException):
    """Not an error of the source."""


class _Undelivered(Exception):
    """A reading could not be published, however often it was tried."""


class SourceThread:
    """`say` and `take` are called in this thread; `take` returns once the reading has been published, or raises."""

    def __init__(
        self,
        reader: SourceReader,
        *,
        name: str,
        say: Say,
        take: Callable[[Reading], None],
        shorten: Callable[[float], float],
        offset_s: float = 0.0,
    ) -> None:
        self._reader = reader
        self._name = name
        self._say = say
        self._take = take
        self._shorten = shorten
        self._offset_s = offset_s
        self._called_at_s: float | None = None
        self._late = False
        self._stop_read, self._stop_write = os.pipe()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends after the call that it is in."""
        if not self._stopping:
            self._stopping = True
            os.close(self._stop_write)

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def overdue(self) -> bool:
        """Whether its call has passed the deadline, once for each such call."""
        began_s = self._called_at_s
        if began_s is None or self._late or time.monotonic() - began_s <= self._reader.deadline_s:
            return False
        self._late = True
        return True

    # -- in the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(_Stopped):
            self._go_on_for_ever()
        os.close(self._stop_read)

    def _go_on_for_ever(self) -> None:
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                self._call(self._reader.open)
                while True:
                    self._read()
                    backoff_s = BACKOFF_FIRST_S
                    self._wait(self._reader.interval_s, self._reader.wake_fd())
            except Exception as error:  # noqa: BLE001 - one source's bug must not take the others down
                if isinstance(error, Absent):
                    backoff_s = BACKOFF_MAX_S
                self._failed(error)
            finally:
                self._close()
            self._wait(backoff_s, None)
            backoff_s = min(backoff_s * 2, BACKOFF_MAX_S)

    def _read(self) -> None:
        reading = self._call(self._reader.read)
        if self._stopping:
            raise _Stopped
        self._say(SourceStatus.OK, reading.trouble)
        self._deliver(reading)

    def _deliver(self, reading: Reading) -> None:
        """Raises _Undelivered."""
        backoff_s = BACKOFF_FIRST_S
        for attempt in range(1, DELIVERIES_MAX + 1):
            try:
                self._take(reading)
            except Exception as error:
                reason = f"what was read cannot be published: {type(error).__name__}: {error}"
                if attempt == DELIVERIES_MAX:
                    raise _Undelivered(reason) from error
                self._say(SourceStatus.UNKNOWN, reason)
                if attempt == 1:
                    _log.error("reading not published; it is tried again", source=self._name, exc_info=error)
            else:
                if attempt > 1:
                    self._say(SourceStatus.OK, reading.trouble)
                return
            self._wait(backoff_s, None)
            backoff_s *= 2

    def _call(self, function: Callable[[], _T]) -> _T:
        """Raises whatever `function` raises."""
        self._late = False
        self._called_at_s = time.monotonic()
        try:
            return function()
        finally:
            self._called_at_s = None

    def _failed(self, error: Exception) -> None:
        match error:
            case Absent():
                self._say(SourceStatus.ABSENT, str(error))
            case Unreadable() | _Undelivered():
                self._say(SourceStatus.UNKNOWN, str(error))
            case OSError():
                self._say(SourceStatus.UNKNOWN, f"{error.strerror or error}: {error.filename or self._name}")
            case _:
                self._say(SourceStatus.UNKNOWN, f"{type(error).__name__}: {error}")
                _log.error("source failed", source=self._name, exc_info=error)

    def _close(self) -> None:
        """A reader whose `close` raises, against its promise, is opened again all the same."""
        try:
            self._call(self._reader.close)
        except Exception as error:  # noqa: BLE001 - it would end the thread, and the source with it
            _log.error("source not closed properly", source=self._name, exc_info=error)

    def _wait(self, seconds: float, wake_fd: int | None) -> None:
        """Until the next multiple of so many seconds, or the descriptor wakes. Raises _Stopped.

        Sources of one interval wake right after each other (`offset_s`): the processor sleeps once for all of them and
        finds its caches warm, and no two want the interpreter at the same time.
        """
        seconds = self._shorten(seconds)
        if self._poll(seconds - (time.monotonic() - self._offset_s) % seconds, wake_fd):
            self._poll(WAKE_SETTLE_S, None)

    def _poll(self, seconds: float, wake_fd: int | None) -> bool:
        poll = select.poll()
        poll.register(self._stop_read, select.POLLIN | select.POLLHUP)
        if wake_fd is not None:
            poll.register(wake_fd, select.POLLIN)
        woken = poll.poll(seconds * 1000)
        if self._stopping:
            raise _Stopped
        return bool(woken)
