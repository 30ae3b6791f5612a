"""RDMA devices under /sys/class/infiniband: what each port is, and how its counters moved.

    <root>/class/infiniband/<device>/ports/<n>/{state,phys_state,rate,lid,link_layer,counters/,hw_counters/,gids/,pkeys/}

The tree is listed when devices come or go or a driver is loaded anew (its folder is another one then), and its files stay
open in between. Addresses are many files and change rarely: they are read once a minute, and when the state, the LID or an
address of an interface has changed. Hardware counters are asked for over netlink where it tells all that the files do, else
read from the files.

Reading a counter asks the adapter's firmware. On a function that may not answer (a restricted VF) that fills the kernel
log with errors of our own making, so a device can be left out by name. A counter that cannot be read is left out of
this reading; a device none of whose files can be read is trouble, and says so.
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
from goodput_collector.adapters.rdma_ports import HW_FOLDER, Descriptors, PortFiles, Stale
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.rdma_tree import Port, identity_of, ports_in, word_of
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.rdma_addresses import Addresses, address
from goodput_collector.domain.rdma_rate import Rates, gbps
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock

_ADDRESSES_EVERY_S = 60.0
_ADDRESSES_APART_S = 5.0  # however often interfaces change
_LISTINGS_MAX = 3


@dataclass(slots=True)
class _Known:
    """What is kept of a port while it is open; its deltas and addresses outlive a reopening."""

    files: PortFiles
    by_netlink: bool  # its hardware counters were told so when it was listed
    incarnation: str
    attrs: dict[str, str]
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
        self._listed: list[tuple[str, int]] | None = None
        self._deltas: dict[tuple[str, str], Deltas] = {}
        self._saturated: dict[tuple[str, str], set[str]] = {}
        self._addresses: dict[str, Addresses] = {}
        self._addresses_at_s = float("-inf")
        self._addresses_due = True
        self._rates = Rates()
        self._changes = Changes(full_every_s=full_every_s)

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
        try:
            with os.scandir(self._root) as entries:  # the inode comes with the name: no further call
                present = sorted((each.name, each.inode()) for each in entries if each.name not in self._ignore)
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
        inodes = dict(present)
        try:
            for port in ports_in(self._root, self._host, self._ignore):
                self._ports.append(self._known(port, inodes.get(port.device.name, 0)))
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
        return _Known(
            files=PortFiles(port, self._descriptors, first=first, told_elsewhere=told),
            by_netlink=bool(told),
            incarnation=f"{self._boot_id}/{inode}",
            attrs=attrs | function_of(port.device / "device", self._pods),
        )

    def _forget(self) -> None:
        for known in self._ports:
            known.files.close()
        self._ports, self._listed = [], None
        self._statistics.forget()

    # -- what they tell ---------------------------------------------------------------------------------------------

    def _read(self) -> Reading:
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        states: list[State] = []
        samples: list[Sample] = []
        covered, unreadable = [], []
        for known in self._ports:
            port = known.files.port
            state = self._state(known, now)
            if state is None:
                unreadable.append(f"{port.device.name}/{port.number}")
                continue
            covered.append(port.component)
            states.append(state)
            for folder, values in self._counters(known):
                deltas = self._deltas_of(known, folder)
                if values:
                    samples += deltas.update(
                        CounterReading(
                            values=values,
                            at=now,
                            monotonic_s=now_s,
                            incarnation=known.incarnation,
                            lifespan_s=known.files.lifespan_s if folder == HW_FOLDER else 0.0,
                        )
                    )
                states += self._at_their_end(port.component, folder, deltas.saturated(), now)
        samples += self._changed_addresses(now, now_s)
        trouble = f"cannot read {', '.join(unreadable)}" if unreadable else ""
        return Reading(samples=[*samples, *self._changes.of(states, now_s)], trouble=trouble, covered=covered)

    def _state(self, known: _Known, now: datetime) -> State | None:
        port, found = known.files.port, known.files.state()
        if found is None:
            return None
        if known.read == found and known.state is not None:
            return msgspec.structs.replace(known.state, observed_at=now)
        value = word_of(found["state"])
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
        known.read, self._addresses_due = found, True
        known.state = State(component=port.component, name="port_state", observed_at=now, value=value, attrs=attrs)
        return known.state

    def _counters(self, known: _Known) -> Iterator[tuple[str, dict[str, int]]]:
        files = known.files
        for folder in files.folders:
            yield folder, files.counters(folder)
        if HW_FOLDER not in files.folders and known.by_netlink:
            device, number = files.port.device.name, files.port.number
            values = self._statistics.counters(device, number)
            files.widths |= self._statistics.widths(device, number)
            if not values:
                self._listed = None  # list anew: there may be files
            yield HW_FOLDER, values

    def _deltas_of(self, known: _Known, folder: str) -> Deltas:
        component = known.files.port.component
        deltas = self._deltas.get((component, folder))
        if deltas is None:
            deltas = self._deltas[component, folder] = Deltas(component, known.files.widths)
        return deltas

    def _at_their_end(self, component: str, folder: str, standing: frozenset[str], now: datetime) -> Iterator[State]:
        """Counters that stand at their ceiling tell of nothing more, and say so; and when they count again."""
        ever = self._saturated.setdefault((component, folder), set())
        ever |= standing
        for name in sorted(ever):
            value = "saturated" if name in standing else "counting"
            yield State(component=component, name=f"counter:{name}", observed_at=now, value=value)

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
