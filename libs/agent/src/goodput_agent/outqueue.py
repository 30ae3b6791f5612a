"""Messages that wait for the bus, in memory, bounded.

At the bound the oldest is dropped and counted: a rank's latest report says more than an old one. What nothing later can
stand in for (the registration) goes first and is never dropped. Thread-safe: the training thread only ever adds the exit
notice, the reporter's loop takes off.
"""

from __future__ import annotations

import threading
from collections import deque
from datetime import datetime
from typing import NamedTuple

import msgspec

CAPACITY = 512


class Outgoing(NamedTuple):
    subject: str
    data: msgspec.Struct
    id: str
    component: str
    time: datetime


class OutQueue:
    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._vital: deque[Outgoing] = deque()
        self._waiting: deque[Outgoing] = deque()
        self._lock = threading.Lock()
        self.dropped = 0

    def put(self, message: Outgoing, *, vital: bool = False) -> None:
        """`vital` is for the few messages of a process that must not be lost: there is no bound on them."""
        with self._lock:
            if vital:
                self._vital.append(message)
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(message)

    def head(self) -> Outgoing | None:
        with self._lock:
            waiting = self._vital or self._waiting
            return waiting[0] if waiting else None

    def done(self, message: Outgoing) -> None:
        """Take `message` off after it was stored; it may have been dropped meanwhile."""
        with self._lock:
            for waiting in (self._vital, self._waiting):
                if waiting and waiting[0] is message:
                    waiting.popleft()

    def __len__(self) -> int:
        return len(self._vital) + len(self._waiting)
