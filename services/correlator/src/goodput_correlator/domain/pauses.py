"""PFC pauses, traced hop by hop to the port that paused first.

A port that receives pause frames (`rx_prio3_pause`) was told to stop by whoever is at the other end of its link. If that is
a switch, the switch ran out of room because a port *of its own*, on the same priority, may not send either: the trace goes
on there. It ends at an adapter that does not take what it is sent (a slow receiver), or at a switch none of whose ports is
paused itself (the congestion is its own: incast, a slow or broken port). A port that is met twice is a deadlock: every port
of the ring waits for the next, and the ring is the answer.

The loudest port is usually a victim: pauses pile up on the way. They are weighed by duration; frames say little (one frame
may stop a port for a microsecond or for 65 quanta), and are used only where nobody counts durations.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from goodput_common.contracts.ids import ComponentId
from goodput_correlator.domain.measurements import Measurements, Rise
from goodput_topology.graph import Fabric

HOPS_MAX = 64
FRAME_US = 5.0  # a frame, where nobody counts durations: a guess that only orders ports of one kind
SHARE_MIN = 0.01  # of the time: less is the give and take of a busy fabric
_Key = tuple[ComponentId, int]
_NAME = re.compile(r"(?P<direction>[rt]x)_prio(?P<priority>[0-7])_pause(?P<duration>_duration)?")


@dataclass(frozen=True, slots=True)
class Pause:
    """What one port counted of one priority in one direction. `us` were paused of `interval_s`."""

    port: ComponentId
    priority: int
    us: float
    interval_s: float
    rise: Rise
    timed: bool

    @property
    def share(self) -> float:
        return min(1.0, self.us / 1e6 / self.interval_s) if self.interval_s else 0.0


class End(StrEnum):
    """How a trace ends."""

    RECEIVER = "receiver"  # an adapter does not take what it is sent
    CONGESTED = "congested"  # a switch whose own ports are not paused
    RING = "ring"  # a deadlock
    LOST = "lost"  # what is at the other end says nothing


@dataclass(slots=True)
class Origin:
    """Where traces end. `us`: the pauses at the victims' ports that lead here. `last`: the ports that it tells to stop
    itself, by which the traces arrive. `ring`: the ports of a deadlock in order."""

    component: ComponentId
    priority: int
    end: End
    us: float = 0.0
    victims: list[Pause] = field(default_factory=list)
    relays: set[ComponentId] = field(default_factory=set)
    last: set[ComponentId] = field(default_factory=set)
    ring: tuple[ComponentId, ...] = ()


class Pauses:
    """All pauses since a moment. Raises nothing: what is not told is taken for not paused, and `tells` says who told."""

    def __init__(self, measurements: Measurements, topology: Fabric, since: datetime) -> None:
        self._topology = topology
        self.received: dict[tuple[ComponentId, int], Pause] = {}
        self.sent: dict[tuple[ComponentId, int], Pause] = {}
        self._tells: set[ComponentId] = set()
        for component in measurements.components():
            if component.startswith(("port:", "nic:")):
                self._tells.add(component)
                self._read(component, measurements, since)
        self._blocked: dict[tuple[ComponentId, int], list[Pause]] = {}
        for (port, priority), pause in sorted(self.received.items()):
            switch = topology.switch_of(port) if port.startswith("port:") else None
            if switch is not None:
                self._blocked.setdefault((switch, priority), []).append(pause)

    def _read(self, component: ComponentId, measurements: Measurements, since: datetime) -> None:
        found: dict[tuple[str, int], dict[bool, Rise]] = {}
        for name in measurements.names(component):
            if (match := _NAME.fullmatch(name)) is None:
                continue
            rise = measurements.rise(component, name, since)
            if rise.delta:
                key = match["direction"], int(match["priority"])
                found.setdefault(key, {})[match["duration"] is not None] = rise
        for (direction, priority), rises in found.items():
            timed = True in rises
            rise = rises[timed]
            us = float(rise.delta) if timed else rise.delta * FRAME_US
            pause = Pause(component, priority, us, rise.interval_s, rise, timed)
            (self.received if direction == "rx" else self.sent)[component, priority] = pause

    def origins(self, victims: Iterable[ComponentId]) -> list[Origin]:
        """Where the pauses of these ports come from, the one that explains most first."""
        found: dict[_Key, Origin] = {}
        leads: dict[_Key, dict[_Key, float]] = {}
        wanted = set(victims)
        mine = [pause for _, pause in sorted(self.received.items()) if pause.port in wanted and pause.share >= SHARE_MIN]
        for pause in mine:
            for key, part in self._leads(pause.port, pause.priority, (), leads, found).items():
                found[key].us += pause.us * part
                found[key].victims.append(pause)
        for (port, _), to in leads.items():
            for key in to:
                if port not in wanted and port != key[0] and port not in found[key].ring:
                    found[key].relays.add(port)
        return sorted((each for each in found.values() if each.victims), key=lambda each: (-each.us, each.component))

    def tells(self, component: ComponentId) -> bool:
        """Whether anything was heard of a port, or of any port of a switch."""
        if component in self._tells:
            return True
        return any(port in self._tells for port in self._topology.ports_of_switch(component))

    def _leads(
        self,
        port: ComponentId,
        priority: int,
        way: tuple[ComponentId, ...],
        leads: dict[_Key, dict[_Key, float]],
        found: dict[_Key, Origin],
    ) -> dict[_Key, float]:
        """Which origins the pause of a port comes from, each with its part. Every port is looked at once."""
        if port in way:
            ring = way[way.index(port) :]
            return _end(End.RING, min(ring), priority, found, ring)
        known = leads.get((port, priority))
        if known is not None:
            return known
        teller = self._topology.peer_of(port)
        switch = self._topology.switch_of(teller) if teller is not None and teller.startswith("port:") else None
        if teller is None or len(way) >= HOPS_MAX:
            to = _end(End.LOST, port, priority, found)
        elif switch is None:
            to = _end(End.RECEIVER, teller, priority, found)
        else:
            blocked = [each for each in self._blocked.get((switch, priority), ()) if each.port != teller]
            blocked = [each for each in blocked if each.share >= SHARE_MIN]
            to = {} if blocked else _end(End.CONGESTED if self.tells(switch) else End.LOST, switch, priority, found)
            total = sum(each.us for each in blocked)
            for each in blocked:
                for key, part in self._leads(each.port, priority, (*way, port), leads, found).items():
                    to[key] = to.get(key, 0.0) + part * each.us / total
        for component, _ in to:
            if component in (teller, switch, port):
                found[component, priority].last.add(port)
        leads[port, priority] = to
        return to


def _end(
    end: End, component: ComponentId, priority: int, found: dict[_Key, Origin], ring: tuple[ComponentId, ...] = ()
) -> dict[_Key, float]:
    found.setdefault((component, priority), Origin(component, priority, end, ring=ring))
    return {(component, priority): 1.0}


def shares(origins: Iterable[Origin]) -> Mapping[ComponentId, float]:
    """How much of all pauses each origin explains, 0..1."""
    found = list(origins)
    total = sum(origin.us for origin in found)
    return {origin.component: origin.us / total for origin in found} if total else {}
