"""Up to which moment everything that the broker has is also here.

A grid time T may be analysed only when no message with `received_at <= T` can still turn up, else a replay of the same
log would see evidence that the live run did not. Each subscription gives a bound (exclusive) from two observations:

* *Order.* A stream is handed out in the order in which the broker received it. Everything before the oldest message
  still in hand has been handled; with nothing in hand, everything before the newest that was handled. This is all there
  is while a backlog exists, and under constant load.
* *Calm.* At some moment the broker had nothing left to give and waited for no acknowledgement: then everything it had
  received before that moment has been handled. This moves a quiet stream on. A broker stamps a message a little before
  it can be asked for (it is written, in a cluster agreed upon), so the moment counts only to `GRACE_S` before it; how much
  of that was ever needed is measured (`late_s_max`).

The fabric's bound is the smallest of its streams'. "Moment" means the broker's clock, which may differ from ours by
seconds; `BrokerClock` reads the difference off the messages as they come in.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime, timedelta

GRACE_S = 0.15
SKEW_S_MAX = 5.0
_SKEW_WINDOW_S = 60.0


class BrokerClock:
    """Our clock minus the broker's, estimated by the fastest delivery of the last minute.

    A delivery takes `difference + transit` on our clock, so the smallest value seen is the difference plus the shortest
    transit. Values above `SKEW_S_MAX` are a backlog, not a clock, and are left out. Without a usable sample: no difference.
    """

    def __init__(self) -> None:
        self._minima: deque[tuple[datetime, float]] = deque()  # rising values: the head is the window's minimum

    def seen(self, received_at: datetime, here: datetime) -> None:
        apart_s = (here - received_at).total_seconds()
        if abs(apart_s) > SKEW_S_MAX:
            return
        while self._minima and self._minima[-1][1] >= apart_s:
            self._minima.pop()
        self._minima.append((here, apart_s))
        while (here - self._minima[0][0]).total_seconds() > _SKEW_WINDOW_S:
            self._minima.popleft()

    def skew_s(self) -> float:
        return self._minima[0][1] if self._minima else 0.0

    def at(self, here: datetime) -> datetime:
        """The broker's time when our clock says `here`."""
        return here - timedelta(seconds=self.skew_s())


class StreamBound:
    """The bound of one subscription. A message that was given back (Retry) stays in hand until it is handled after all."""

    def __init__(self) -> None:
        self._in_hand: dict[int, datetime] = {}
        self._newest: datetime | None = None
        self._calm_at: datetime | None = None
        self.late_s_max = 0.0  # how long before a moment called calm a message was received that came after it

    def began(self, sequence: int, received_at: datetime) -> None:
        if self._calm_at is not None and received_at < self._calm_at and sequence not in self._in_hand:
            self.late_s_max = max(self.late_s_max, (self._calm_at - received_at).total_seconds())
        self._in_hand[sequence] = received_at
        if self._newest is None or received_at > self._newest:  # not by sequence: a stream made anew counts from 1
            self._newest = received_at

    def done(self, sequence: int) -> None:
        self._in_hand.pop(sequence, None)

    def calm(self, at: datetime) -> None:
        """The broker had nothing left at `at` (its own time)."""
        if self._calm_at is None or at > self._calm_at:
            self._calm_at = at

    @property
    def in_hand(self) -> int:
        return len(self._in_hand)

    @property
    def bound(self) -> datetime | None:
        """Everything received strictly before this has been handled. None: nothing is known yet."""
        if self._in_hand:
            return min(self._in_hand.values())
        by_order = self._newest
        by_calm = self._calm_at - timedelta(seconds=GRACE_S) if self._calm_at else None
        known = [each for each in (by_order, by_calm) if each is not None]
        return max(known, default=None)


def smallest(bounds: list[StreamBound]) -> datetime | None:
    """The fabric's bound, None while any stream's is unknown."""
    each = [bound.bound for bound in bounds]
    known = [bound for bound in each if bound is not None]
    return min(known) if known and len(known) == len(each) else None
