"""Messages that wait for the bus, in memory, bounded.

At the bound the oldest is dropped and counted: a rank's latest report says more than an old one. Thread-safe: the training
thread only ever adds the exit notice, the reporter's loop takes off.
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
        self._waiting: deque[Outgoing] = deque()
        self._lock = threading.Lock()
        self.dropped = 0

    def put(self, message: Outgoing) -> None:
        with self._lock:
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(message)

    def head(self) -> Outgoing | None:
        with self._lock:
            return self._waiting[0] if self._waiting else None

    def done(self, message: Outgoing) -> None:
        """Take `message` off after it was stored; it may have been dropped meanwhile."""
        with self._lock:
            if self._waiting and self._waiting[0] is message:
                self._waiting.popleft()

    def __len__(self) -> int:
        return len(self._waiting)
