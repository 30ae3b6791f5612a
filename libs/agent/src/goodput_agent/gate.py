"""Pausing at a step boundary, on request.

The training thread passes the gate between two steps: an attribute read when nothing is asked, a bounded wait when it is.
The bound is the command's expiry, or `PAUSE_S_MAX`: a job that nobody resumes goes on by itself.
"""

from __future__ import annotations

import threading
import time

PAUSE_S_MAX = 300.0


class PauseGate:
    def __init__(self) -> None:
        self.requested = False
        self.waiting = False
        self._until_s = 0.0
        self._resumed = threading.Event()

    def pause(self, for_s: float) -> None:
        """Ask for a pause that begins at the next boundary and ends `for_s` from now at the latest."""
        self._until_s = time.monotonic() + min(max(0.0, for_s), PAUSE_S_MAX)
        self._resumed.clear()
        self.requested = True

    def resume(self) -> None:
        self.requested = False
        self._resumed.set()

    def expire(self) -> bool:
        """Called by the reporter: a pause that no boundary was reached for in time is off. True when that happened."""
        if self.requested and not self.waiting and time.monotonic() >= self._until_s:
            self.resume()
            return True
        return False

    def passage(self) -> bool:
        """Called by the training thread at a boundary, only when `requested`. True if it waited."""
        left = self._until_s - time.monotonic()
        if left <= 0:
            self.requested = False
            return False
        self.waiting = True
        try:
            self._resumed.wait(left)
        finally:
            self.waiting = False
            if time.monotonic() >= self._until_s:
                self.requested = False
        return True
