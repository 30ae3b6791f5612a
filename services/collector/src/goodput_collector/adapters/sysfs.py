"""RDMA devices under /sys/class/infiniband: what each port is, and how its counters moved.

    <root>/class/infiniband/<device>/ports/<n>/{state,phys_state,rate,lid,link_layer,counters/,hw_counters/,gids/,pkeys/}

The tree is listed when devices come or go or a driver is loaded anew (its folder is another one then), and its files stay
open in between. One that goes is noticed by the next reading, because its open files say so; one that comes within 5 s,
which is how often the names are looked at. Addresses are many files and change rarely: they are read once a minute, and when
the state, the LID or an address of an interface has changed. Hardware counters are asked for over netlink where it tells all
that the files do, else read from the files.

Reading a counter asks the adapter's firmware. On a function that may not answer (a restricted VF) that fills the kernel
log with errors of our own making, so a device can be left out by name. A counter that cannot be read is left out of
this reading; a device none of whose files can be read is trouble, and says so.

Nearly all of this stands still from one second to the next: a port's state is taken apart when its text has changed, and
the states of all ports are gone through when one of them did, and when all are to be told again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from goodput_collector.adapters.netdevs import Pods, function_of
from goodput_collector.adapters.rdma_hints import AddressHints
from goodput_collector.adapters.rdma_netlink import RdmaStatistics
from goodput_collector.adapters.rdma_ports import HW_FOLDER, Counted, Descriptors, PortFiles, Stale
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.rdma_tree import Port, identity_of, ports_in, word_of
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.rdma_addresses import Addresses, address
from goodput_collector.domain.rdma_rate import Rates, gbps
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, Sample, Source, State
from goodput_common.runtime.clock import Clock

_ADDRESSES_EVERY_S = 60.0
_ADDRESSES_APART_S = 5.0  # however often interfaces change
_NAMES_EVERY_S = 5.0
_LISTINGS_MAX = 3


@dataclass(slots=True)
class _Series:
    """One folder of counters of one port; outlives a reopening."""

    deltas: Deltas
    standing: frozenset[str] = frozenset()  # at their ceiling
    ever: frozenset[str] = frozenset()  # have been at it


@dataclass(slots=True)
class _Known:
    """What is kept of a port while it is open; its addresses outlive a reopening."""

    files: PortFiles
    incarnation: str
    attrs: dict[str, str]
    series: list[tuple[str, _Series]]  # by folder
    netlink: _Series | None  # its hardware counters were told so when it was listed
    state: State | None = None
    read: dict[str, str] | None = None  # what it was made from


class RdmaReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.RDMA
    instance = ""
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        sys_root: Path = Path("/sys"),
        ignore: Collection[str] = (),
        interval_s: float = 1.0,
        full_every_s: float = 60.0,
        descriptors: Descriptors | None = None,
        statistics: RdmaStatistics | None = None,
        pods: Pods | None = None,
    ) -> None:
        self.interval_s = interval_s
        self._root = sys_root / "class" / "infiniband"
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._ignore = frozenset(ignore)
        self._descriptors = descriptors or Descriptors()
        self._statistics = statistics or RdmaStatistics()
        self._pods = pods if pods is not None else Pods()
        self._hints: AddressHints | None = None
        self._ports: list[_Known] = []
        self._listed: dict[str, int] | None = None
        self._names_due_s = float("-inf")
        self._series: dict[tuple[str, str], _Series] = {}
        self._addresses: dict[str, Addresses] = {}
        self._addresses_at_s = float("-inf")
        self._addresses_due = True
        self._rates = Rates()
        self._changes = Changes(full_every_s=full_every_s)
        self._changed = True  # a state, since all were gone through
        self._covered: list[ComponentId] = []

    def open(self) -> None:
        if not self._root.is_dir():
            raise Absent(f"no RDMA devices: there is no {self._root}")
        self.close()  # a call that hung may have kept it from being closed
        self._hints = AddressHints()

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        for _ in range(_LISTINGS_MAX):
            self._list()
            try:
                return self._read()
            except Stale:
                self._forget()
        raise Unreadable(f"devices under {self._root} come and go faster than they can be read")

    def close(self) -> None:
        """What the counters stood at is kept, so that a short outage loses no increase."""
        self._forget()
        self._statistics.close()
        if self._hints is not None:
            self._hints.close()
        self._hints = None

    # -- which ports ------------------------------------------------------------------------------------------------

    def _list(self) -> None:
        """List the ports anew if the devices are not those of the last time."""
        now_s = self._clock.monotonic_s()
        if self._listed is not None and now_s < self._names_due_s and len(self._covered) == len(self._ports):
            return
        self._names_due_s = now_s + _NAMES_EVERY_S
        try:
            with os.scandir(self._root) as entries:  # the inode comes with the name: no further call
                present = {each.name: each.inode() for each in entries if each.name not in self._ignore}
        except FileNotFoundError:
            if self._root.is_dir():
                self._forget()  # one went while we looked
                return
            raise Absent(f"no RDMA devices: {self._root} is gone") from None
        except OSError as error:
            raise Unreadable(f"{self._root}: {error.strerror or error}") from None
        if present == self._listed:
            return
        self._forget()
        self._pods.refresh()
        try:
            for port in ports_in(self._root, self._host, self._ignore):
                self._ports.append(self._known(port, present.get(port.device.name, 0)))
        except OSError as error:
            raise Unreadable(f"{self._root}: {error.strerror or error}") from None
        if not self._ports:
            raise Absent(f"no RDMA devices in {self._root}")
        self._listed = present
        self._addresses_due = True

    def _known(self, port: Port, inode: int) -> _Known:
        first = all(each.files.port.device != port.device for each in self._ports)
        attrs = identity_of(port)
        told = self._statistics.counters(port.device.name, port.number)
        files = PortFiles(port, self._descriptors, first=first, told_elsewhere=told)
        if told and HW_FOLDER not in files.folders:
            files.widths |= self._statistics.widths(port.device.name, port.number)
            netlink = self._series_of(port, HW_FOLDER, files)
        else:
            netlink = None
        return _Known(
            files=files,
            series=[(folder, self._series_of(port, folder, files)) for folder in files.folders],
            netlink=netlink,
            incarnation=f"{self._boot_id}/{inode}",
            attrs=attrs | function_of(port.device / "device", self._pods),
        )

    def _series_of(self, port: Port, folder: str, files: PortFiles) -> _Series:
        key = (port.component, folder)
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = _Series(Deltas(port.component, files.widths))
        return series

    def _forget(self) -> None:
        for known in self._ports:
            known.files.close()
        self._ports, self._listed, self._changed = [], None, True
        self._statistics.forget()

    # -- what they tell ---------------------------------------------------------------------------------------------

    def _read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        samples: list[Sample] = []
        for known in self._ports:
            found = known.files.state()
            if found is not known.read or known.state is None:
                self._look(known, found, now)
            if found is None:
                continue
            for folder, series in known.series:
                counted = known.files.counters(folder)
                if counted.values:
                    samples += self._moved(known, folder, series, counted, now, now_s)
            if known.netlink is not None:
                counted = self._over_netlink(known)
                if counted.values:
                    samples += self._moved(known, HW_FOLDER, known.netlink, counted, now, now_s)
        samples += self._changed_addresses(now, now_s)
        if self._changed:
            self._covered = [known.files.port.component for known in self._ports if known.read is not None]
        if self._changed or self._changes.due(now_s):
            samples += self._changes.of(self._states(now), now_s)
            self._changed = False
        return Reading(samples=samples, trouble=self._trouble(), covered=self._covered)

    def _look(self, known: _Known, found: dict[str, str] | None, now: datetime) -> None:
        """Make the port's state of what its files say now."""
        self._changed |= known.read is not found
        known.read = found
        if found is None:
            return
        port, value = known.files.port, word_of(found["state"])
        attrs = dict(known.attrs)
        for name in ("phys_state", "rate"):
            if name in found:
                attrs[name] = word_of(found[name])
        if lid := address("lid", found.get("lid", "")):
            attrs["lid"] = lid
        active, rate = value == "ACTIVE", found.get("rate", "")
        best = self._rates.best(port.component, rate, active=active)
        if active and best is not None and (gbps(rate) or best) < best:
            attrs |= {"rate_max_gbps": f"{best:g}", "degraded": "true"}
        self._changed = self._addresses_due = True
        known.state = State(component=port.component, name="port_state", observed_at=now, value=value, attrs=attrs)

    def _moved(
        self, known: _Known, folder: str, series: _Series, counted: Counted, now: datetime, now_s: float
    ) -> tuple[Counter, ...]:
        lifespan_s = known.files.lifespan_s if folder == HW_FOLDER else 0.0
        values, since, moved = counted
        counters = series.deltas.update(CounterReading(values, now, now_s, known.incarnation, lifespan_s, since, moved))
        if series.standing is not (standing := series.deltas.saturated()):
            series.standing, series.ever, self._changed = standing, series.ever | standing, True
        return counters

    def _over_netlink(self, known: _Known) -> Counted:
        port = known.files.port
        values = self._statistics.counters(port.device.name, port.number)
        if not values:
            self._listed = None  # list anew: there may be files
        return Counted(values)

    def _states(self, now: datetime) -> Iterator[State]:
        """Of all ports. Counters that stand at their ceiling tell of nothing more, and say so; and when they count again."""
        for known in self._ports:
            if known.read is None or known.state is None:
                continue
            yield msgspec.structs.replace(known.state, observed_at=now)
            for series in (*(each for _, each in known.series), *((known.netlink,) if known.netlink else ())):
                for name in sorted(series.ever):
                    value = "saturated" if name in series.standing else "counting"
                    yield State(component=known.state.component, name=f"counter:{name}", observed_at=now, value=value)

    def _trouble(self) -> str:
        if len(self._covered) == len(self._ports):
            return ""
        ports = [known.files.port for known in self._ports if known.read is None]
        return f"cannot read {', '.join(f'{port.device.name}/{port.number}' for port in ports)}"

    def _changed_addresses(self, now: datetime, now_s: float) -> list[Sample]:
        if self._hints is not None and self._hints.changed():
            self._addresses_due = True
        age_s = now_s - self._addresses_at_s
        if age_s < (_ADDRESSES_APART_S if self._addresses_due else _ADDRESSES_EVERY_S):
            return []
        self._addresses_at_s, self._addresses_due = now_s, False
        moved = self._pods.refresh()
        events: list[Sample] = []
        for known in self._ports:
            files, component = known.files, known.files.port.component
            if moved:
                known.attrs |= function_of(files.port.device / "device", self._pods)
                known.state = None  # to be made anew
            files.refresh_lifespan()
            found, unknown = files.addresses()
            if known.read is not None and "lid" in known.read:
                found["lid", 0] = address("lid", known.read["lid"])
            else:
                unknown.add(("lid", 0))
            attrs = {"device": files.port.device.name}
            addresses = self._addresses.setdefault(component, Addresses(component, attrs))
            events += addresses.update(found, now, unknown=unknown)
        return events
