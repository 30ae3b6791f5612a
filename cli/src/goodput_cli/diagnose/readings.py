"""Counters of snapshots: a number that stands there says nothing; two of the same counter, apart in time, do.

    one reading           a state `counter:<name>` of what is not zero. How long it has stood there cannot be told: a large
                          number may be years old, and is never a fault by itself.
    two, apart in time    besides, a counter with its increase, by the collector's own rules for wraps, resets and ceilings
    two of unknown times  the state says by how much it rose; no increase is told, since a rate would be made up

Where times are only those of files, which may have been copied in any order, a set of counters that fell is left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from goodput_collector.application.read_files import Found
from goodput_collector.domain.deltas import Deltas, Reading
from goodput_collector.domain.rdma_counters import Width
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source, State

APART_S = 1.0


class Taken(NamedTuple):
    """When something was read, and whether the text itself says so (`exact`) or only the file's date. `order`: of two at one
    time, which stands first."""

    at: datetime
    exact: bool
    order: int


class Counts(NamedTuple):
    values: Mapping[str, int]
    widths: Mapping[str, Width]
    taken: Taken
    origin: str


@dataclass(slots=True)
class Series:
    """All readings of one set of counters: of one component, as one tool tells them."""

    component: ComponentId
    host: str
    source: Source
    tool: str
    readings: list[Counts] = field(default_factory=list)

    @property
    def has_times(self) -> bool:
        """Are there two readings apart in time?"""
        times = [each.taken.at for each in self.readings]
        return len(times) > 1 and (max(times) - min(times)).total_seconds() >= APART_S

    def facts(self, notes: list[str]) -> list[Found]:
        """The last reading's standing counters, and every increase between two readings."""
        ordered = sorted(self.readings, key=lambda each: (each.taken.at, each.taken.order))
        rose: dict[str, int] = {}
        found: list[Found] = []
        if self.has_times:
            found = self._increases(ordered, notes)
        elif len(ordered) > 1:
            first, last = ordered[0].values, ordered[-1].values
            rose = {name: last[name] - first[name] for name in last if last[name] > first.get(name, last[name])}
            if rose:
                said = ", ".join(f"{name} by {by}" for name, by in sorted(rose.items())[:4])
                notes.append(f"{self.component}: {said} rose between two readings whose times are not known")
        last_read = ordered[-1]
        for name, value in sorted(last_read.values.items()):
            if value:
                found.append(self._standing(name, value, last_read, rose.get(name, 0)))
        return found

    def _increases(self, ordered: list[Counts], notes: list[str]) -> list[Found]:
        deltas = Deltas(self.component, ordered[-1].widths)
        found: list[Found] = []
        before: Counts | None = None
        for each in ordered:
            if before is not None and not (before.taken.exact and each.taken.exact) and _fell(before, each):
                notes.append(
                    f"{self.component}: counters of {each.origin} are below those of {before.origin}: reset in between, or "
                    "the files' dates are not those of the readings; no increase is told"
                )
                deltas = Deltas(self.component, each.widths)
            at = each.taken.at
            told = deltas.update(Reading(each.values, at, at.timestamp(), ""))
            apart = before is not None and (at - before.taken.at).total_seconds() >= APART_S
            found += [Found(counter, self.host, self.source, each.origin) for counter in told if apart]
            before = each
        return found

    def _standing(self, name: str, value: int, last: Counts, rose: int) -> Found:
        width = last.widths.get(name, Width.WRAPS_64)
        attrs = {"saturated": "true"} if width.saturates and value == width.ceiling else {}
        if rose:
            attrs["rose"] = str(rose)
        state = State(
            component=self.component, name=f"counter:{name}", observed_at=last.taken.at, value=str(value), attrs=attrs
        )
        return Found(state, self.host, self.source, last.origin)


def _fell(before: Counts, after: Counts) -> bool:
    """Has a counter gone down that cannot wrap?"""
    return any(
        value < before.values.get(name, 0) and after.widths.get(name, Width.WRAPS_64) is not Width.WRAPS_32
        for name, value in after.values.items()
    )


class Readings:
    """The counters of all files, set by set."""

    def __init__(self) -> None:
        self._series: dict[tuple[ComponentId, str], Series] = {}

    def add(self, component: ComponentId, host: str, source: Source, tool: str, counts: Counts) -> None:
        series = self._series.setdefault((component, tool), Series(component, host, source, tool))
        series.readings.append(counts)

    def facts(self, notes: list[str]) -> list[Found]:
        return [fact for key in sorted(self._series) for fact in self._series[key].facts(notes)]

    def read_once(self) -> list[ComponentId]:
        """Those with something that stands, but of which nothing says when it counted."""
        return sorted(
            {
                series.component
                for series in self._series.values()
                if not series.has_times and any(any(each.values.values()) for each in series.readings)
            }
        )
