"""What components measured lately: counters that rose and gauges that moved, for engines to look up by component and name.

A collector tells a counter when it has risen and a gauge when it has moved, so what is not here has not moved (or has not
been seen: the heartbeat's sources tell the two apart). A host has some two hundred such series and a fabric two thousand
hosts: nothing is copied for a case, engines ask for the few components that their suspicion concerns.

A series is a string of bytes, one packed record (`packed`) a fact, and facts are made of it when somebody asks: half a
million series take a hundred megabytes, and are nothing that Python's garbage collector has to walk through.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, overload

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Gauge, Sample
from goodput_correlator.domain.packed import RECORD_BYTES, Packer, Reading, Unpackable
from goodput_topology.graph import Fabric

if TYPE_CHECKING:
    from goodput_correlator.domain.case import Observed  # whose Case holds measurements

COUNTED_MAX = 24  # facts of one counter: two minutes at 5 s
MEASURED_MAX = 4  # of a gauge, and of a counter of mere traffic: only where it stands
TRAFFIC_ENDINGS = ("_bytes", "_packets", "_data", "_requests", "_pkts", "_octets")
COMPONENTS_MAX = 500_000
SERIES_PER_COMPONENT_MAX = 500
RISES_MAX = 200_000  # answers kept
_MEASURED = (Counter, Gauge)


@dataclass(frozen=True, slots=True)
class Rise:
    """How much a counter rose: `delta` in `interval_s` seconds, told by `facts`. `at_least`: it stood at its ceiling."""

    delta: int = 0
    interval_s: float = 0.0
    facts: tuple[Observed, ...] = ()
    at_least: bool = False

    @property
    def per_s(self) -> float:
        return self.delta / self.interval_s if self.interval_s else 0.0


_NO_RISE = Rise()


class Facts(Sequence["Observed"]):
    """One series, oldest first, unpacked as it is read."""

    def __init__(self, packer: Packer, component: ComponentId, name: str, records: bytes) -> None:
        self._packer, self._component, self._name, self._records = packer, component, name, records

    def __len__(self) -> int:
        return len(self._records) // RECORD_BYTES

    @overload
    def __getitem__(self, n: int) -> Observed: ...
    @overload
    def __getitem__(self, n: slice) -> Sequence[Observed]: ...
    def __getitem__(self, n: int | slice) -> Observed | Sequence[Observed]:
        if isinstance(n, slice):
            return [self[each] for each in range(*n.indices(len(self)))]
        place = range(len(self))[n] * RECORD_BYTES
        return self._packer.unpack(self._component, self._name, self._records[place : place + RECORD_BYTES])


class Named(Mapping[str, Sequence["Observed"]]):
    """The series of one component, as one collector calls it; nothing is unpacked before it is asked for."""

    def __init__(self, packer: Packer, component: ComponentId, told: dict[str, bytes]) -> None:
        self._packer, self._component, self._told = packer, component, told

    def __getitem__(self, name: str) -> Facts:
        return Facts(self._packer, self._component, name, self._told[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._told)

    def __len__(self) -> int:
        return len(self._told)

    def __contains__(self, name: object) -> bool:
        return name in self._told


class Measurements:
    """The series of a fabric, bounded. They are kept under the names that collectors use and looked up under those of the
    topology."""

    def __init__(self, topology: Fabric) -> None:
        self.dropped = 0
        self._topology = topology
        self._packer = Packer()
        self._told: dict[ComponentId, dict[str, bytes]] = {}
        self._heard: dict[ComponentId, datetime] = {}
        self._own_names: dict[ComponentId, list[ComponentId]] | None = None  # the topology's name -> names told
        self._sorted: list[ComponentId] | None = None
        self._rises: dict[tuple[ComponentId, str, datetime], tuple[bytes, Rise]] = {}  # an open incident asks every second

    def fold(self, seen: Observed) -> None:
        """Take in a Counter or Gauge; in the order of `Observed.order`."""
        self._take(Reading.of(seen), ((None, seen.fact),))

    def take(self, reading: Reading, samples: Sequence[Sample], order: Iterable[int]) -> list[int]:
        """Take in the counters and gauges of one message in this order. Returns the numbers of its other samples."""
        numbers = tuple(order)
        return self._take(reading, zip(numbers, map(samples.__getitem__, numbers), strict=True))

    def _take(self, reading: Reading, facts: Iterable[tuple[int | None, object]]) -> list[int]:
        """One loop, and as little as possible in it: this is run for every sample that a fabric tells."""
        packer, told, received_at = self._packer, self._told, reading.received_at
        pack, number, others = packer.pack, 0, list[int]()
        component, of_component = "", dict[str, bytes]()
        for n, fact in facts:
            if not isinstance(fact, _MEASURED):  # a tuple: a union made anew for each costs more than the rest
                others.append(-1 if n is None else n)
                continue
            if fact.component != component or not number:  # a component's samples mostly follow each other
                found = told.get(fact.component)
                if found is None:
                    if len(told) >= COMPONENTS_MAX:
                        self.dropped += 1
                        continue
                    found = told[fact.component] = {}
                    self._came(fact.component)
                component, of_component = fact.component, found
                self._heard[component] = received_at
                number = number or packer.begin(reading)
            name = fact.name
            kept = of_component.get(name)
            if kept is None:
                if len(of_component) >= SERIES_PER_COMPONENT_MAX:
                    self.dropped += 1
                    continue
                name, kept = sys.intern(name), b""
            try:
                record = pack(number, n, fact)
            except Unpackable:
                self.dropped += 1
                continue
            held = len(kept)
            if held >= _MEASURED_BYTES and (type(fact) is Gauge or held >= _kept_bytes(name)):
                kept = kept[RECORD_BYTES:]
            of_component[name] = kept + record
        return others

    def use(self, topology: Fabric) -> None:
        """Names are looked up in this topology from now on."""
        if topology is not self._topology:
            self._topology, self._own_names, self._sorted = topology, None, None
            self._rises.clear()

    def forget(self, before: datetime) -> None:
        """Leave out components of which nothing was told since (the broker's time), and messages that nothing kept is of."""
        gone = [component for component, heard_at in self._heard.items() if heard_at < before]
        for component in gone:
            del self._told[component], self._heard[component]
        if gone:
            self._own_names = self._sorted = None
        self._rises.clear()
        self._packer.forget(records for names in self._told.values() for records in names.values())

    def __len__(self) -> int:
        return sum(len(names) for names in self._told.values())

    # -- looking up ---------------------------------------------------------------------------------------------------

    def components(self) -> Sequence[ComponentId]:
        """Those of which anything was told, under the topology's names, in order."""
        if self._sorted is None:
            self._sorted = sorted(self._names())
        return self._sorted

    def names(self, component: ComponentId) -> Mapping[str, Sequence[Observed]]:
        """All series of one component by name."""
        told = self._names().get(component, ())
        if len(told) == 1:
            return Named(self._packer, told[0], self._told[told[0]])
        merged: dict[str, list[Observed]] = {}
        for each in told:
            for name, kept in self._told[each].items():
                merged.setdefault(name, []).extend(Facts(self._packer, each, name, kept))
        return {name: sorted(facts, key=lambda seen: seen.order) for name, facts in merged.items()}

    def of(self, component: ComponentId, name: str) -> Sequence[Observed]:
        """The facts of one series, oldest first."""
        told = self._names().get(component, ())
        if len(told) == 1:
            kept = self._told[told[0]].get(name)
            return Facts(self._packer, told[0], name, kept) if kept is not None else ()
        return self.names(component).get(name, ()) if told else ()

    def newest(self, component: ComponentId, name: str) -> Observed | None:
        facts = self.of(component, name)
        return facts[-1] if facts else None

    def rise(self, component: ComponentId, name: str, since: datetime) -> Rise:
        """What a counter rose by in the intervals that the broker heard of after `since`."""
        told_as = self._names().get(component, ())
        if len(told_as) != 1:
            return _risen(self.of(component, name), since)
        records = self._told[told_as[0]].get(name)
        if records is None:
            return _NO_RISE
        before = self._rises.get((component, name, since))
        if before is not None and before[0] is records:
            return before[1]
        found = _risen(Facts(self._packer, told_as[0], name, records), since)
        if len(self._rises) >= RISES_MAX:
            self._rises.clear()
        self._rises[component, name, since] = (records, found)
        return found

    def _names(self) -> Mapping[ComponentId, Sequence[ComponentId]]:
        if self._own_names is None:
            self._own_names = {}
            for told in self._told:
                self._own_names.setdefault(self._topology.canonical(told), []).append(told)
        return self._own_names

    def _came(self, component: ComponentId) -> None:
        if self._own_names is not None:
            self._own_names.setdefault(self._topology.canonical(component), []).append(component)
            self._sorted = None


def _risen(of: Sequence[Observed], since: datetime) -> Rise:
    if not of or of[-1].received_at <= since:
        return _NO_RISE
    told = [(seen, seen.fact) for seen in of if seen.received_at > since]
    counted = [(seen, fact) for seen, fact in told if isinstance(fact, Counter)]
    return Rise(
        delta=sum(fact.delta for _, fact in counted),
        interval_s=sum(fact.interval_s for _, fact in counted),
        facts=tuple(seen for seen, fact in counted if fact.delta),
        at_least=any(fact.doubt is CounterDoubt.SATURATED for _, fact in counted),
    )


_MEASURED_BYTES = MEASURED_MAX * RECORD_BYTES


@lru_cache(maxsize=10_000)
def _kept_bytes(counter: str) -> int:
    return (MEASURED_MAX if counter.endswith(TRAFFIC_ENDINGS) else COUNTED_MAX) * RECORD_BYTES


def measured(observed: Iterable[Observed], topology: Fabric) -> Measurements:
    """From facts that are at hand: a case that was built of files."""
    found = Measurements(topology)
    for each in observed:
        if isinstance(each.fact, Counter | Gauge):
            found.fold(each)
    return found
