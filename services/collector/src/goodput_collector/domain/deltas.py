"""From readings of counters to increases that mean something.

A counter that reads less than before has either passed its width (a wrap: the increase is real) or was set to zero (a
reset: what it counted before is lost). Getting this wrong turns a driver reload into four billion lost packets. The
rules:

* another boot, or another incarnation of the driver: a reset, of every counter;
* a counter that saturates cannot wrap, nor does a 64-bit one in anybody's lifetime: a fall is a reset;
* several counters of one port falling at once: a reset, of all of them;
* one 32-bit counter falling alone: a wrap, unless it would have to have counted more than half its range since.

At its ceiling a saturating counter says "at least". A value above the ceiling proves that this driver counts further.
`lifespan` is how long the driver answers from a cache: a reading sooner than that is old news, and is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt

_WRAP_PLAUSIBLE_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All counters of one port at one moment. `incarnation` names boot and driver load: another one means "from zero"."""

    values: Mapping[str, int]
    at: datetime
    monotonic_s: float
    incarnation: str
    lifespan_s: float = 0.0


class Deltas:
    """Remembers the last reading of one port (or of any set of counters that is reset together)."""

    def __init__(self, component: ComponentId, widths: Mapping[str, Width]) -> None:
        self._component = component
        self._widths = dict(widths)
        self._last: dict[str, tuple[int, float]] = {}
        self._incarnation: str | None = None
        self._read_at_s: float | None = None

    def update(self, reading: Reading) -> tuple[Counter, ...]:
        """The counters that have moved since the last reading. Nothing for a first reading, nor for a cached one."""
        if self._read_at_s is not None and reading.monotonic_s - self._read_at_s < reading.lifespan_s:
            return ()
        self._read_at_s = reading.monotonic_s
        for name, value in reading.values.items():
            if value > self._width(name).ceiling:
                self._widths[name] = Width.WRAPS_64
        reborn = self._incarnation is not None and self._incarnation != reading.incarnation
        self._incarnation = reading.incarnation
        reset = reborn or self._were_reset(reading.values)
        moved = []
        for name, value in reading.values.items():
            known = self._last.get(name)
            self._last[name] = (value, reading.monotonic_s)
            if known is None:
                continue
            delta, doubt = self._delta(name, known[0], value, reborn=reborn, reset=reset)
            if delta > 0:
                moved.append(
                    Counter(
                        component=self._component,
                        name=name,
                        observed_at=reading.at,
                        delta=delta,
                        interval_s=round(reading.monotonic_s - known[1], 3),
                        value=value,
                        doubt=doubt,
                    )
                )
        return tuple(moved)

    def saturated(self) -> tuple[str, ...]:
        """The counters that stand at their ceiling now: they will not tell of anything more."""
        return tuple(
            name
            for name, (value, _) in self._last.items()
            if self._width(name).saturates and value == self._width(name).ceiling
        )

    def _width(self, name: str) -> Width:
        return self._widths.get(name, Width.WRAPS_64)

    def _fell(self, values: Mapping[str, int]) -> list[str]:
        return [name for name, value in values.items() if name in self._last and value < self._last[name][0]]

    def _were_reset(self, values: Mapping[str, int]) -> bool:
        fell = self._fell(values)
        return len(fell) > 1 or any(self._width(name) is not Width.WRAPS_32 for name in fell)

    def _delta(self, name: str, before: int, value: int, *, reborn: bool, reset: bool) -> tuple[int, CounterDoubt]:
        width = self._width(name)
        if reborn or (reset and value < before):
            return value, CounterDoubt.RESET
        if value < before:
            wrapped = value + width.ceiling + 1 - before
            if wrapped > width.ceiling * _WRAP_PLAUSIBLE_SHARE:
                return value, CounterDoubt.RESET
            return wrapped, CounterDoubt.WRAPPED
        if width.saturates and value == width.ceiling:
            return value - before, CounterDoubt.SATURATED
        return value - before, CounterDoubt.NONE
