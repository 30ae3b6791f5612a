"""A switch over gNMI: the source that reads what its session has received.

States wake the reader at once; counters wait for its next turn. What is known of the switch (where its counters stood,
which links were up) outlives a connection: after an outage the increase over it is told, and so is a link that went down
in between.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from goodput_collector.adapters.switch_credentials import credentials
from goodput_collector.adapters.switch_hub import Late, the_hub
from goodput_collector.application.ports import Reading, Unreadable
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.gnmi_streams import Dialect, Way, dialect
from goodput_collector.domain.switch_facts import NOT_PORTS, Fact, NeighbourFact, NeighbourGone
from goodput_collector.domain.switch_list import Switch
from goodput_collector.domain.switch_lldp import Directory, Neighbours
from goodput_collector.domain.switch_port import Stamp
from goodput_collector.domain.switch_ports import SwitchPorts
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Gauge, Source
from goodput_common.runtime.clock import Clock

if TYPE_CHECKING:
    from goodput_collector.adapters.gnmi_session import Inbox, Session
    from goodput_collector.adapters.gnmi_wire import Reader

CLOSE_S = 3.0
PATIENCE = 0.8  # of the deadline: to say why before it is over
SILENT_INTERVALS = 3.0
SILENT_S_MIN = 20.0
CLOCK_NOISE_S = 0.5
CLOCK_FULL_S = 600.0


class GnmiReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.SWITCH
    deadline_s = 20.0

    def __init__(
        self,
        switch: Switch,
        *,
        fabric: str,
        directory: Directory,
        clock: Clock,
        environment: Callable[[], dict[str, str]] = lambda: dict(os.environ),
    ) -> None:
        self.instance = switch.name
        self.interval_s = min(5.0, switch.every_s)
        self._switch = switch
        self._clock = clock
        self._environment = environment
        self._ignore = re.compile(switch.ignore) if switch.ignore else NOT_PORTS
        self._ports = SwitchPorts(switch.name)
        self._neighbours = Neighbours(switch.name, fabric=fabric, directory=directory)
        self._gauges = Gauges(full_every_s=CLOCK_FULL_S)
        self._fd: int | None = None
        self._session: Session | None = None
        self._inbox: Inbox | None = None
        self._dialect: Dialect | None = None
        self._reader: Reader | None = None

    def open(self) -> None:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its own log would go past ours; read when it is loaded
        try:
            from goodput_collector.adapters import gnmi_channel, gnmi_session, gnmi_wire
        except ImportError as error:
            raise Unreadable(
                f"gNMI needs {error.name}, which is not installed", remedy="install goodput-collector[switch]"
            ) from None
        given = credentials(self._switch, self._environment())
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._inbox = gnmi_session.Inbox(the_hub(), self._fd)
        self._session = gnmi_session.Session(self._switch, given, self._inbox, self._clock)
        make = gnmi_channel.maker(self._switch)
        try:
            the_hub().call(self._session.open(make), within_s=PATIENCE * self.deadline_s)
        except Late as error:
            raise Unreadable(str(error)) from None
        self._dialect = dialect(self._session.kind, self._ignore)
        self._reader = gnmi_wire.Reader()

    def wake_fd(self) -> int | None:
        return self._fd

    def read(self) -> Reading:
        session, inbox = self._session, self._inbox
        if session is None or inbox is None or self._fd is None:
            raise Unreadable("the connection is closed")
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        self._drain(inbox)
        now, monotonic_s = self._clock.now(), self._clock.monotonic_s()
        samples = self._ports.tell(now, monotonic_s)
        if session.failure is not None and not samples:
            raise session.failure
        samples += self._clock_difference(monotonic_s)
        silent_s = monotonic_s - session.heard_at_s
        if silent_s > max(SILENT_S_MIN, SILENT_INTERVALS * self._switch.every_s):
            raise Unreadable(f"nothing heard for {silent_s:.0f} s, though the connection stands")
        return Reading(
            samples=samples,
            trouble=self._trouble(session),
            covered=self._ports.covered(),
            snapshots=self._neighbours.tell(self._ports.ports(), self._ports.aliases(), now, monotonic_s),
        )

    def close(self) -> None:
        session, self._session = self._session, None
        fd, self._fd = self._fd, None
        self._inbox = self._dialect = self._reader = None
        if session is not None:
            with contextlib.suppress(Exception):
                the_hub().call(session.close(), within_s=CLOSE_S)
        if fd is not None:
            os.close(fd)

    def _drain(self, inbox: Inbox) -> None:
        if self._dialect is None or self._reader is None:
            return
        clock = self._ports.clock
        for arrived in inbox.take():
            notice = self._reader.notice(arrived.message)
            clock.observe(notice.at_ns, arrived.at)
            stamp = Stamp(
                at_ns=notice.at_ns,
                at=clock.ours(notice.at_ns, arrived.at),
                arrived=arrived.at,
                monotonic_s=arrived.monotonic_s,
                by=arrived.attempt.way.value,
                stream=arrived.attempt.stream.name,
            )
            of_ports: list[Fact] = []
            for fact in self._dialect.facts(notice):
                if isinstance(fact, NeighbourFact | NeighbourGone):
                    self._neighbours.take(fact, arrived.monotonic_s)
                else:
                    of_ports.append(fact)
            self._ports.take(of_ports, stamp)

    def _clock_difference(self, monotonic_s: float) -> list[Gauge]:
        behind_s = self._ports.clock.behind_s
        if behind_s is None:
            return []
        gauge = Gauge(
            component=ids.switch_id(self._switch.name),
            name="clock_behind_s",
            observed_at=self._clock.now(),
            value=round(behind_s, 3),
        )
        return self._gauges.of((gauge,), monotonic_s, noise=CLOCK_NOISE_S)

    def _trouble(self, session: Session) -> str:
        parts = [str(session.failure)] if session.failure is not None else []
        parts += [f"no {name} ({why})" for name, why in sorted(session.refused.items())]
        parts += [f"{name} only {way.value}" for name, way in sorted(session.ways.items()) if _second_best(name, way)]
        if self._reader is not None and self._reader.unreadable:
            parts.append(f"{self._reader.unreadable} values not understood")
        if self._ports.left_out:
            parts.append(f"{self._ports.left_out} facts beyond the bounds")
        return "; ".join(parts)


def _second_best(name: str, way: Way) -> bool:
    """States that are not told at once: a short flap shows only by its count."""
    return name == "port states" and way is not Way.ON_CHANGE
