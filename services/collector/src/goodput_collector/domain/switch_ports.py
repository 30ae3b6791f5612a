"""The ports of one switch: from facts to samples.

Counters become increases, states are told on change, and a change of state is an event with the switch's own time. Only
`up` and the ways of not being up are states of a link: `unknown` and `testing` say nothing about it, so neither going
there nor coming back is an event. A port that somebody shut (`admin: down`) is told as such.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.rdma_counters import Width
from goodput_collector.domain.switch_clock import SwitchClock
from goodput_collector.domain.switch_facts import About, BootFact, CountersFact, Fact, PortFact, PortGone, WatchdogFact
from goodput_collector.domain.switch_port import Port, Stamp, clock_attrs
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import EventName, Sample, State

PORTS_MAX = 2_048
COUNTERS_MAX = 256  # of one port
EVENTS_MAX = 10_000
BOOT_TOLERANCE_NS = 10_000_000_000  # a boot time worked out from an uptime wavers
_STORMED = "_stormed"
DOWN = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})


class SwitchPorts:
    """`widths` of the counters that have less than 64 bits."""

    def __init__(self, switch: str, *, full_every_s: float = 60.0, widths: Mapping[str, Width] | None = None) -> None:
        self.switch = switch
        self._widths = widths or {}
        self.clock = SwitchClock()
        self.left_out = 0  # facts beyond the bounds
        self._ports: dict[str, Port] = {}
        self._aliases: dict[str, str] = {}
        self._named: set[str] = set()  # what is certainly a port's own name
        self._events: list[Sample] = []
        self._changes = Changes(full_every_s=full_every_s)
        self._full_every_s = full_every_s
        self._full_at_s: float | None = None
        self._dirty = False
        self._boot_ns = 0
        self._rebooted = False
        self._incarnation = 0
        self._fell = False

    # ---------------------------------------------------------------------------------------------- what is known

    def ports(self) -> dict[str, str]:
        """Each port's operational state by its name."""
        return {name: port.oper for name, port in self._ports.items()}

    def covered(self) -> tuple[ComponentId, ...]:
        return (ids.switch_id(self.switch), *(port.component for port in self._ports.values()))

    def name(self, spoken: str) -> str:
        """The port's own name where the switch uses another for it."""
        return self._aliases.get(spoken, spoken)

    def aliases(self) -> dict[str, str]:
        return dict(self._aliases)

    # ------------------------------------------------------------------------------------------------------ taking

    def take(self, facts: Iterable[Fact], stamp: Stamp) -> None:
        """Facts of one notification."""
        later: list[PortFact] = []
        for fact in facts:
            if isinstance(fact, CountersFact):
                self._counters(fact, stamp)
            elif isinstance(fact, PortFact):
                if fact.about in (About.OPER, About.TRANSITIONS):
                    later.append(fact)  # a row tells everything at once: what else it says of the port comes first
                else:
                    self._port_fact(fact, stamp)
            elif isinstance(fact, WatchdogFact):
                self._watchdog(fact, stamp)
            elif isinstance(fact, PortGone):
                self._gone(fact.port, stamp)
            elif isinstance(fact, BootFact):
                self._boot(fact.at_ns)
        for fact in later:
            self._port_fact(fact, stamp)

    def _port(self, spoken: str) -> Port | None:
        name = self._aliases.get(spoken, spoken)
        port = self._ports.get(name)
        if port is None:
            if len(self._ports) >= PORTS_MAX:
                self.left_out += 1
                return None
            port = self._ports[name] = Port(self.switch, name, self._widths)
            self._dirty = True
        return port

    def _counters(self, fact: CountersFact, stamp: Stamp) -> None:
        port = self._port(fact.port)
        if port is None:
            return
        if 0 < stamp.at_ns < port.heard_ns.get(stamp.stream, 0):
            return  # overtaken on the way: an older value is no fall
        port.heard_ns[stamp.stream] = stamp.at_ns
        counted = port.counted
        for name, value in fact.values.items():
            known = counted.get(name)
            if known is None:
                if len(counted) >= COUNTERS_MAX:
                    self.left_out += 1
                    continue
                if name.endswith(_STORMED):
                    port.storm_counters[name] = int(name[len("pfc_watchdog_prio") : -len(_STORMED)])
            elif value < known:
                self._fell = True
            counted[name] = port.counters[name] = value
        port.stamp = stamp
        for name, priority in port.storm_counters.items():
            if name in fact.values:
                port.storm(priority).missed.counted(fact.values[name], stamp.monotonic_s)

    def _port_fact(self, fact: PortFact, stamp: Stamp) -> None:
        if fact.about is About.ALIAS:
            self._alias(str(fact.value), fact.port)
            return
        port = self._port(fact.port)
        if port is None:
            return
        if fact.about is About.ADMIN:
            self._dirty = self._dirty or port.admin != fact.value
            port.admin = str(fact.value)
        elif fact.about is About.LAST_CHANGE_NS:
            port.changed_ns = int(fact.value)
            port.moved.noted(port.changed_ns, stamp.monotonic_s)
        elif fact.about is About.TRANSITIONS:
            port.flaps_by = fact.counter if port.flaps_by is None else port.flaps_by
            if fact.counter == port.flaps_by:
                port.flaps.counted(int(fact.value), stamp.monotonic_s)
        else:
            self._oper(port, str(fact.value), stamp)

    def _alias(self, alias: str, name: str) -> None:
        """On some platforms one port's alias is another port's name: then it is no alias to go by."""
        self._named.add(name)
        self._aliases.pop(name, None)
        if alias in self._named or len(self._aliases) >= PORTS_MAX:
            return
        self._aliases[alias] = name
        self._ports.pop(alias, None)  # counters came under the alias before the table did: the next go to the port

    def _oper(self, port: Port, value: str, stamp: Stamp) -> None:
        before, port.oper = port.oper, value
        if before == value:
            return
        self._dirty = True
        if before in DOWN and value == "up":
            self._link(port, EventName.LINK_UP, stamp)
        elif before == "up" and value in DOWN:
            self._link(port, EventName.LINK_DOWN, stamp)

    def _link(self, port: Port, name: EventName, stamp: Stamp) -> None:
        port.flaps.seen()
        port.moved.seen()
        at = stamp.at
        if stamp.by != "on change" and port.changed_ns > 0:
            noted = self.clock.ours(port.changed_ns, stamp.arrived)
            at = noted if noted <= stamp.at else at
        self._say(port.link(name, at, by=stamp.by, more=self._clock(stamp.at_ns)))

    def _watchdog(self, fact: WatchdogFact, stamp: Stamp) -> None:
        port = self._port(fact.port)
        if port is None:
            return
        storm = port.storm(fact.priority)
        before, storm.stormed = storm.stormed, fact.stormed
        if before == fact.stormed:
            return
        self._dirty = True
        if before is not None:
            if fact.stormed:
                storm.missed.seen()
            self._say(port.pause(fact.priority, fact.stormed, stamp.at, by=stamp.by))

    def _gone(self, spoken: str, stamp: Stamp) -> None:
        port = self._ports.pop(self._aliases.get(spoken, spoken), None)
        if port is None:
            return
        if port.oper == "up":
            more = {"what": "interface removed"} | self._clock(stamp.at_ns)
            self._say(port.link(EventName.LINK_DOWN, stamp.at, by=stamp.by, more=more))
        self._say(State(component=port.component, name="operstate", observed_at=stamp.at, value="removed"))

    def _boot(self, at_ns: int) -> None:
        if self._boot_ns and at_ns > self._boot_ns + BOOT_TOLERANCE_NS:
            self._rebooted = True
        self._boot_ns = at_ns

    # ------------------------------------------------------------------------------------------------------- telling

    def tell(self, now: datetime, monotonic_s: float) -> list[Sample]:
        """All that is to be told now."""
        for port in self._ports.values():
            self._settle(port, now, monotonic_s)
        samples, self._events = self._events, []
        samples += self._increases()
        full = self._full_at_s is None or monotonic_s - self._full_at_s >= self._full_every_s
        if self._dirty or full:
            self._dirty = False
            self._full_at_s = monotonic_s if full else self._full_at_s
            samples += self._changes.of([state for port in self._ports.values() for state in port.states(now)], monotonic_s)
        return samples

    def _increases(self) -> list[Sample]:
        """A later boot and a counter that fell go together: then every counter began anew, also those that have already
        passed where they stood. A boot time alone may only have been set right."""
        if self._rebooted and self._fell:
            self._incarnation += 1
        self._rebooted = self._fell = False
        samples: list[Sample] = []
        incarnation = str(self._incarnation)
        for port in self._ports.values():
            if port.counters and port.stamp is not None:
                samples += port.deltas.update(
                    CounterReading(
                        values=port.counters,
                        at=port.stamp.at,
                        monotonic_s=port.stamp.monotonic_s,
                        incarnation=incarnation,
                    )
                )
                port.counters = {}
        return samples

    def _settle(self, port: Port, now: datetime, monotonic_s: float) -> None:
        flaps = port.flaps.settle(monotonic_s)
        moved = port.moved.settle(monotonic_s)
        by = "transition counter"
        if not flaps and moved and not port.flaps.counts:
            flaps, by = 1, "last change"
        if flaps and port.oper:
            at = self.clock.ours(port.changed_ns, now) if port.changed_ns else now
            order = (EventName.LINK_DOWN, EventName.LINK_UP)
            for name in order if port.oper == "up" else reversed(order):
                self._say(port.link(name, at, by=by, count=flaps, more=self._clock(port.changed_ns)))
        for priority, storm in port.storms.items():
            if (times := storm.missed.settle(monotonic_s)) and storm.stormed is not None:
                for stormed in (not storm.stormed, storm.stormed):
                    self._say(port.pause(priority, stormed, now, by="storm counter", count=times))

    def _say(self, sample: Sample) -> None:
        if len(self._events) >= EVENTS_MAX:
            self.left_out += 1
            return
        self._events.append(sample)

    def _clock(self, at_ns: int) -> dict[str, str]:
        return clock_attrs(at_ns, self.clock.behind_s)
