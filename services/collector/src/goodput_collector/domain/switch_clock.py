"""The switch's clock against ours.

A notification carries the time at which the switch saw what it tells, which is better than when it got here: it may have
waited behind others. But the clocks differ, and one that was never set is years off. A message is never here before it
was sent, so the smallest of (arrival - stamp) over a while is the difference of the clocks plus the shortest way. Up to
2 s the switch's word is taken as it is: everybody above the bus allows for that much between hosts. Beyond, it is moved by
the difference, which is told too.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

TOLERATED_S = 2.0
WINDOW_S = 300.0


class SwitchClock:
    """The difference is the smallest seen in this window and the one before, so that a clock that is set is followed."""

    def __init__(self) -> None:
        self._began_s: float | None = None
        self._now_s: float | None = None  # smallest of this window
        self._before_s: float | None = None

    def observe(self, at_ns: int, arrived: datetime) -> None:
        if at_ns <= 0:
            return
        arrived_s = arrived.timestamp()
        if self._began_s is None or not 0 <= arrived_s - self._began_s < WINDOW_S:
            self._began_s, self._before_s, self._now_s = arrived_s, self._now_s, None
        behind_s = arrived_s - at_ns / 1e9
        self._now_s = behind_s if self._now_s is None else min(self._now_s, behind_s)

    @property
    def behind_s(self) -> float | None:
        """By how much the switch's clock is behind ours (ahead: negative); None as long as nothing was heard."""
        known = [each for each in (self._now_s, self._before_s) if each is not None]
        return min(known) if known else None

    def ours(self, at_ns: int, arrived: datetime) -> datetime:
        """A time of the switch by our clock; `arrived` where it says none, and never later than that."""
        behind_s = self.behind_s
        if at_ns <= 0 or behind_s is None:
            return arrived
        off_s = behind_s if abs(behind_s) > TOLERATED_S else 0.0
        try:
            at = datetime.fromtimestamp(at_ns / 1e9, tz=UTC) + timedelta(seconds=off_s)
        except (OverflowError, ValueError, OSError):
            return arrived
        return min(at, arrived)
