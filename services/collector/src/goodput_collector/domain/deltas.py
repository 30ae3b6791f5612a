"""From readings of counters to increases that mean something.

A counter that reads less than before has either passed its width (a wrap: the increase is real) or was set to zero (a
reset: what it counted before is lost). Getting this wrong turns a driver reload into four billion lost packets. The
rules:

* another boot, or another incarnation of the driver: perhaps a reset, of every counter. One that fell began anew; one that
  did not may have gone on all the same (it lives in the adapter, and only its driver was loaded anew), and what it shows
  may be from years ago: it has counted at least what it rose by;
* a counter that saturates cannot wrap, nor does a 64-bit one in anybody's lifetime: a fall is a reset;
* several 32-bit counters of one port falling at once: a reset of all of them, unless a witness speaks against it: another
  counter of the set that is beyond 32 bits and has not fallen, or stands unmoved at a number that it would hardly have
  reached again;
* one 32-bit counter falling alone: a wrap, unless it would have to have counted more than half its range since.

What cannot be told from readings alone, and how it comes out then: what was counted between the last reading and a reset is
lost (the delta is a lower bound, `reset`); a counter that was reset and has since counted beyond its last reading looks as
if it had gone on (a lower bound; `reset` where another shows that the set was reset); two wraps between two readings look
like one. At its ceiling a saturating counter says "at least". A value above the ceiling proves that this driver counts
further. `lifespan` is how long the driver answers from a cache: a reading sooner than that is old news, and is left out.
Intervals are of the monotonic clock, so a step of the wall clock changes no rate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt

_WRAP_PLAUSIBLE_SHARE = 0.5
_UNMOVED_WITNESS = 16  # hardly counted again to the same number within one interval


class Reading(NamedTuple):
    """All counters of one port at one moment; `values` is not changed afterwards. `incarnation` names boot and driver load:
    another one means "perhaps from zero". Who knows what has moved spares the comparison: `moved` are the names, in order,
    whose values are others than in `since`, which has the same names."""

    values: Mapping[str, int]
    at: datetime
    monotonic_s: float
    incarnation: str
    lifespan_s: float = 0.0
    since: Mapping[str, int] | None = None
    moved: Sequence[str] = ()


class Deltas:
    """Remembers the last reading of one port (or of any set of counters that is reset together).

    Most counters stand still between two readings a second apart; only those that moved are looked at.
    """

    def __init__(self, component: ComponentId, widths: Mapping[str, Width]) -> None:
        self._component = component
        self._widths = dict(widths)
        self._ends = {name: width.ceiling for name, width in widths.items()}
        self._values: Mapping[str, int] = {}  # of the last reading
        self._read_at_s: float | None = None
        self._missing: dict[str, tuple[int, float]] = {}  # what the last reading lacked: value and when it was read
        self._incarnation: str | None = None
        self._at_ceiling: frozenset[str] = frozenset()

    def update(self, reading: Reading) -> tuple[Counter, ...]:
        """The counters that have moved since the last reading. Nothing for a first reading, nor for a cached one."""
        if self._read_at_s is not None and reading.monotonic_s - self._read_at_s < reading.lifespan_s:
            return ()
        values, before = reading.values, self._values
        reborn = self._incarnation is not None and self._incarnation != reading.incarnation
        if values is before and not reborn:  # whoever reads knows that nothing has changed
            moved = []
        elif reading.since is before and not reborn:
            risen = self._risen(reading)
            moved = risen if risen is not None else self._moved({name: values[name] for name in reading.moved}, reading)
        else:
            moved = self._moved(dict(values if reborn else values.items() - before.items()), reading, reborn=reborn)
        self._values, self._read_at_s, self._incarnation = values, reading.monotonic_s, reading.incarnation
        return tuple(moved)

    def _risen(self, reading: Reading) -> list[Counter] | None:
        """The usual: what moved went up and is not at its end. None: one is, or fell; there is more to think about."""
        values, before, ends = reading.values, self._values, self._ends
        component, at = self._component, reading.at
        interval_s = round(reading.monotonic_s - (self._read_at_s or 0.0), 3)
        risen = []
        for name in reading.moved:
            value, delta = values[name], values[name] - before[name]
            if delta < 0 or value >= ends.get(name, Width.WRAPS_64.ceiling):
                return None
            risen.append(
                Counter(component=component, name=name, observed_at=at, delta=delta, interval_s=interval_s, value=value)
            )
        return risen

    def _moved(self, changed: Mapping[str, int], reading: Reading, *, reborn: bool = False) -> list[Counter]:
        values, before = reading.values, self._values
        since: dict[str, tuple[int, float]] = {}
        for name in changed:
            if name in before:
                since[name] = (before[name], self._read_at_s or 0.0)
            elif name in self._missing:
                since[name] = self._missing.pop(name)
        self._note_ends(changed)
        reset = reborn or self._were_reset(changed, since, values)
        moved = []
        for name in sorted(since):
            delta, doubt = self._delta(name, since[name][0], changed[name], reset=reset)
            if delta > 0:
                moved.append(
                    Counter(
                        component=self._component,
                        name=name,
                        observed_at=reading.at,
                        delta=delta,
                        interval_s=round(reading.monotonic_s - since[name][1], 3),
                        value=changed[name],
                        doubt=doubt,
                    )
                )
        if before.keys() != values.keys():
            for name in before.keys() - values.keys():
                self._missing[name] = (before[name], self._read_at_s or 0.0)
        return moved

    def saturated(self) -> frozenset[str]:
        """The counters that stand at their ceiling now: they will not tell of anything more. The very same set as long as it
        does not change."""
        return self._at_ceiling

    def _note_ends(self, changed: Mapping[str, int]) -> None:
        standing = set()
        for name, value in changed.items():
            width = self._width(name)
            if value > width.ceiling:
                self._widths[name] = Width.WRAPS_64
                self._ends[name] = Width.WRAPS_64.ceiling
            if width.saturates and value == width.ceiling:
                standing.add(name)
        if standing or self._at_ceiling:
            now = self._at_ceiling.difference(changed) | standing
            if now != self._at_ceiling:
                self._at_ceiling = now

    def _width(self, name: str) -> Width:
        return self._widths.get(name, Width.WRAPS_64)

    def _were_reset(
        self, changed: Mapping[str, int], since: Mapping[str, tuple[int, float]], values: Mapping[str, int]
    ) -> bool:
        fell = 0
        for name, (before, _) in since.items():
            if changed[name] < before:
                if not self._may_have_wrapped(name, before, changed[name]):
                    return True
                fell += 1
        return fell > 1 and not any(self._speaks_against_a_reset(name, value) for name, value in values.items())

    def _may_have_wrapped(self, name: str, before: int, value: int) -> bool:
        width = self._width(name)
        counted = value + width.ceiling + 1 - before
        return width is Width.WRAPS_32 and counted <= width.ceiling * _WRAP_PLAUSIBLE_SHARE

    def _speaks_against_a_reset(self, name: str, value: int) -> bool:
        before = self._values.get(name, 0)
        return before > Width.WRAPS_32.ceiling <= value >= before or value == before >= _UNMOVED_WITNESS

    def _delta(self, name: str, before: int, value: int, *, reset: bool) -> tuple[int, CounterDoubt]:
        width = self._width(name)
        if reset and value < before:
            return value, CounterDoubt.RESET
        if value < before:
            return value + width.ceiling + 1 - before, CounterDoubt.WRAPPED
        if reset:  # it may have been reset, too: then it has counted `value`, at least what it rose by
            return value - before, CounterDoubt.RESET
        if width.saturates and value == width.ceiling:
            return value - before, CounterDoubt.SATURATED
        return value - before, CounterDoubt.NONE
