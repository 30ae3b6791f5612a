"""No line is silently dropped: each is seen, and then it is matched (an event comes of it, told or folded with its count)
or known to say nothing; what was lost before anybody could see it is counted too. The three numbers are told as counters."""

from __future__ import annotations

from datetime import datetime

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Source

TELL_EVERY_S = 60.0


class LineCounts:
    """Of one source. `lost` is a lower bound where lines were lost that nobody had numbered."""

    def __init__(self, component: ComponentId, source: Source) -> None:
        self._component = component
        self._source = source
        self._told = {"seen": 0, "matched": 0, "lost": 0}
        self._told_s: float | None = None
        self.seen = 0
        self.matched = 0
        self.lost = 0

    def due(self, now: datetime, now_s: float) -> list[Counter]:
        """What has moved, once in a while."""
        if self._told_s is None:
            self._told_s = now_s
        over_s = now_s - self._told_s
        if over_s < TELL_EVERY_S:
            return []
        self._told_s = now_s
        counters = []
        for name, value in (("seen", self.seen), ("matched", self.matched), ("lost", self.lost)):
            delta = value - self._told[name]
            self._told[name] = value
            if delta > 0:
                counters.append(
                    Counter(
                        component=self._component,
                        name=f"{self._source}_lines_{name}",
                        observed_at=now,
                        delta=delta,
                        interval_s=round(over_s, 3),
                        value=value,
                    )
                )
        return counters
