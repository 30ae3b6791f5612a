"""A timer that any thread may set and the event loop hears: `loop.add_reader(alarm.fd, ...)`.

For watching work in another thread at no cost while all is well: set before the work and cleared after it are two system
calls, and nobody is woken. asyncio's own timers would have to be set from the loop, which means to wake it.
Linux's timerfd_create(2), which `os` has from Python 3.13.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC  # as TFD_NONBLOCK and TFD_CLOEXEC are defined
_libc = ctypes.CDLL(None, use_errno=True)


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Alarm:
    """Raises OSError when there is no descriptor left."""

    def __init__(self) -> None:
        self.fd = _libc.timerfd_create(time.CLOCK_MONOTONIC, _NONBLOCK | _CLOEXEC)
        if self.fd < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._when = _Itimerspec()

    def set(self, seconds: float) -> None:
        """Ring once, so long from now (at once, if that is past); what was set before is forgotten."""
        seconds = max(seconds, 0.0)
        whole = int(seconds)
        self._settime(whole, max(int((seconds - whole) * 1e9), 0 if whole else 1))

    def clear(self) -> None:
        self._settime(0, 0)

    def heard(self) -> None:
        """Take the ring off the descriptor."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 8)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def _settime(self, seconds: int, nanoseconds: int) -> None:
        self._when.it_value.tv_sec, self._when.it_value.tv_nsec = seconds, nanoseconds
        _libc.timerfd_settime(self.fd, 0, ctypes.byref(self._when), None)
