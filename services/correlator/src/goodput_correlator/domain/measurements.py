"""What components measured lately: counters that rose and gauges that moved, for engines to look up by component and name.

A collector tells a counter when it has risen and a gauge when it has moved, so what is not here has not moved (or has not
been seen: the heartbeat's sources tell the two apart). A host has some three hundred such series and a fabric two thousand
hosts: nothing is copied for a case, engines ask for the few components that their suspicion concerns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Gauge
from goodput_topology.graph import Fabric

if TYPE_CHECKING:
    from goodput_correlator.domain.case import Observed  # whose Case holds measurements

COUNTED_MAX = 24  # facts of one counter: two minutes at 5 s
MEASURED_MAX = 4  # of a gauge, and of a counter of mere traffic: only where it stands
TRAFFIC_ENDINGS = ("_bytes", "_packets", "_data", "_requests", "_pkts", "_octets")
COMPONENTS_MAX = 500_000
SERIES_PER_COMPONENT_MAX = 500


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


class Measurements:
    """The series of a fabric, bounded. They are kept under the names that collectors use and looked up under those of the
    topology."""

    def __init__(self, topology: Fabric) -> None:
        self.dropped = 0
        self._topology = topology
        self._told: dict[ComponentId, dict[str, deque[Observed]]] = {}
        self._own_names: dict[ComponentId, list[ComponentId]] | None = None  # the topology's name -> names told

    def fold(self, seen: Observed) -> None:
        """Take in a Counter or Gauge; in the order of `Observed.order`."""
        fact = seen.fact
        assert isinstance(fact, Counter | Gauge)
        of_component = self._told.get(fact.component)
        if of_component is None:
            if len(self._told) >= COMPONENTS_MAX:
                self.dropped += 1
                return
            of_component = self._told[fact.component] = {}
            self._own_names = None
        kept = of_component.get(fact.name)
        if kept is None:
            if len(of_component) >= SERIES_PER_COMPONENT_MAX:
                self.dropped += 1
                return
            short = isinstance(fact, Gauge) or fact.name.endswith(TRAFFIC_ENDINGS)
            kept = of_component[fact.name] = deque(maxlen=MEASURED_MAX if short else COUNTED_MAX)
        kept.append(seen)

    def use(self, topology: Fabric) -> None:
        """Names are looked up in this topology from now on."""
        if topology is not self._topology:
            self._topology, self._own_names = topology, None

    def forget(self, before: datetime) -> None:
        """Leave out components of which nothing was told since (the broker's time)."""
        gone = [
            component
            for component, names in self._told.items()
            if all(kept[-1].received_at < before for kept in names.values())
        ]
        for component in gone:
            del self._told[component]
        if gone:
            self._own_names = None

    def __len__(self) -> int:
        return sum(len(names) for names in self._told.values())

    # -- looking up ---------------------------------------------------------------------------------------------------

    def components(self) -> Iterable[ComponentId]:
        """Those of which anything was told, under the topology's names, in order."""
        return sorted(self._names())

    def names(self, component: ComponentId) -> Mapping[str, Sequence[Observed]]:
        """All series of one component by name."""
        told = self._names().get(component, ())
        if len(told) == 1:
            return self._told[told[0]]
        merged: dict[str, list[Observed]] = {}
        for each in told:
            for name, facts in self._told[each].items():
                merged.setdefault(name, []).extend(facts)
        return {name: sorted(facts, key=lambda seen: seen.order) for name, facts in merged.items()}

    def of(self, component: ComponentId, name: str) -> Sequence[Observed]:
        """The facts of one series, oldest first."""
        return self.names(component).get(name, ())

    def newest(self, component: ComponentId, name: str) -> Observed | None:
        facts = self.of(component, name)
        return facts[-1] if facts else None

    def rise(self, component: ComponentId, name: str, since: datetime) -> Rise:
        """What a counter rose by in the intervals that the broker heard of after `since`."""
        told = [(seen, seen.fact) for seen in self.of(component, name) if seen.received_at > since]
        counted = [(seen, fact) for seen, fact in told if isinstance(fact, Counter)]
        return Rise(
            delta=sum(fact.delta for _, fact in counted),
            interval_s=sum(fact.interval_s for _, fact in counted),
            facts=tuple(seen for seen, fact in counted if fact.delta),
            at_least=any(fact.doubt is CounterDoubt.SATURATED for _, fact in counted),
        )

    def _names(self) -> Mapping[ComponentId, Sequence[ComponentId]]:
        if self._own_names is None:
            self._own_names = {}
            for told in self._told:
                self._own_names.setdefault(self._topology.canonical(told), []).append(told)
        return self._own_names


def measured(observed: Iterable[Observed], topology: Fabric) -> Measurements:
    """From facts that are at hand: a case that was built of files."""
    found = Measurements(topology)
    for each in observed:
        if isinstance(each.fact, Counter | Gauge):
            found.fold(each)
    return found
