"""Changes that were over before anybody looked.

A port that goes down and up again between two looks shows the same state; but the switch counts, or notes when it last
changed. `Missed` keeps account: what the counter has gone up by, less the changes that were seen, is what was missed. The
two come over different ways and at different times, so the account is settled only a moment after the counter was heard,
and one change that is still on its way is left for the next time.
"""

from __future__ import annotations

SETTLE_S = 1.5


class Missed:
    """`unit` is how many counts make one thing that happened: a flap is two changes of state, a storm is one."""

    def __init__(self, *, unit: int) -> None:
        self._unit = unit
        self._total: int | None = None
        self._owed = 0
        self._heard_at_s = 0.0
        self._in_debt = 0

    @property
    def counts(self) -> bool:
        """Whether there is a counter at all."""
        return self._total is not None

    def seen(self) -> None:
        if self._total is not None:
            self._owed -= 1

    def counted(self, total: int, monotonic_s: float) -> None:
        before, self._total = self._total, total
        if before is None or total < before:
            self._owed = self._in_debt = 0
            return
        self._owed += total - before
        self._heard_at_s = monotonic_s
        self._in_debt = self._in_debt + 1 if self._owed < 0 else 0
        if self._in_debt > 1:  # seen twice over without being counted: this counter leaves some out
            self._owed = self._in_debt = 0

    def settle(self, monotonic_s: float) -> int:
        """How many were missed, each told once."""
        if self._owed < self._unit or monotonic_s - self._heard_at_s < SETTLE_S:
            return 0
        times, self._owed = divmod(self._owed, self._unit)
        return times


class Moved:
    """The same for a switch that only notes *when* it last changed: at least one flap, if nothing was seen. A time of 0:
    it does not know any more, which is no move; what it notes next is one."""

    def __init__(self) -> None:
        self._at_ns: int | None = None
        self._seen = False
        self._moved_at_s: float | None = None

    def seen(self) -> None:
        self._seen = True

    def noted(self, at_ns: int, monotonic_s: float) -> None:
        before, self._at_ns = self._at_ns, at_ns
        if before is not None and at_ns > before:
            self._moved_at_s = monotonic_s

    def settle(self, monotonic_s: float) -> bool:
        if self._moved_at_s is None or monotonic_s - self._moved_at_s < SETTLE_S:
            return False
        missed, self._seen, self._moved_at_s = not self._seen, False, None
        return missed
