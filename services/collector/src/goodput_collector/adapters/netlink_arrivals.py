"""Link messages as they come, each with the moment at which it came.

A link message bears no time. Whoever reads it 30 ms later and takes that time has moved the flap by 30 ms, and a busy event
loop moves it further. So a thread of its own does nothing but wait for messages and note when each came; what they say is
looked at later. It sleeps in the kernel while nothing happens.

What is kept is bounded: past `ARRIVALS_MAX` datagrams, as when the kernel's own buffer overflows, messages are lost, and
`lost` says so. The interfaces are then to be read anew; the counts that they carry tell what was missed.
"""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import select
import socket
import threading
from datetime import datetime
from typing import NamedTuple

from goodput_collector.application.ports import Absent
from goodput_common.runtime.clock import Clock

ARRIVALS_MAX = 4096
_RTMGRP_LINK = 1
_NETLINK_ROUTE = 0
_BUFFER_BYTES = 4 << 20
_RECEIVE_BYTES = 1 << 17


class Arrival(NamedTuple):
    data: bytes
    at: datetime
    monotonic_s: float


class Arrivals:
    """`wake_fd` is readable while there is something to take. Raises Absent."""

    def __init__(self, clock: Clock) -> None:
        family = getattr(socket, "AF_NETLINK", None)
        if family is None:
            raise Absent("this system has no netlink")
        self._clock = clock
        self._waiting: collections.deque[Arrival] = collections.deque()
        self._lost = threading.Event()
        self.socket = socket.socket(family, socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self.socket.bind((0, _RTMGRP_LINK))
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stop_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="netlink arrivals", daemon=True)
        self._thread.start()

    def take(self) -> tuple[list[Arrival], bool]:
        """(what has come since the last call, whether anything was lost)."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        lost = self._lost.is_set()
        self._lost.clear()
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken, lost

    def wait(self, seconds: float) -> bool:
        """Whether something came within that time."""
        waiting = select.poll()  # not select: descriptors may lie above 1023
        waiting.register(self.wake_fd, select.POLLIN)
        return bool(waiting.poll(seconds * 1000))

    def close(self) -> None:
        os.eventfd_write(self._stop_fd, 1)
        self._thread.join(timeout=1.0)
        self.socket.close()
        for fd in (self.wake_fd, self._stop_fd):
            os.close(fd)

    def _run(self) -> None:
        waiting = select.poll()
        waiting.register(self.socket, select.POLLIN)
        waiting.register(self._stop_fd, select.POLLIN)
        while True:
            if any(fd == self._stop_fd for fd, _ in waiting.poll()) or not self._receive():
                return

    def _receive(self) -> bool:
        """False: this socket gives nothing any more, and whoever asks for everything will find that out."""
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return True
            except OSError as error:
                self._lost.set()
                os.eventfd_write(self.wake_fd, 1)
                if error.errno == errno.ENOBUFS:
                    continue
                return False
            if len(self._waiting) >= ARRIVALS_MAX:
                self._lost.set()
            else:
                self._waiting.append(Arrival(data, self._clock.now(), self._clock.monotonic_s()))
            os.eventfd_write(self.wake_fd, 1)
