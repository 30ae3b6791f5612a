"""Network adapters as ethtool sees them: the driver's statistics, the link's settings, the transceivers.

Statistics are read at each reading, by ioctl; link settings every ten seconds and transceivers one a reading, over netlink.
The names of a driver's statistics are asked for once: when an interface is first seen, and when its driver, its index or the
number of statistics has changed, which is also where its counters begin anew.

Interfaces are those with a device behind them; representors of virtual functions, of which there may be hundreds, are not
read. An interface that is in sysfs but not in this network namespace answers ENODEV and is left out.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from pathlib import Path
from typing import Any

from goodput_collector.adapters.ethtool_ioctl import EthtoolIoctl
from goodput_collector.adapters.ethtool_modules import Modules
from goodput_collector.adapters.ethtool_netlink import EthtoolNetlink
from goodput_collector.adapters.netdevs import Netdev, Pods, netdev
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.small_file import small_text
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.deltas import Deltas
from goodput_collector.domain.deltas import Reading as CounterReading
from goodput_collector.domain.ethtool_link import LinkSettings
from goodput_collector.domain.ethtool_stats import Stat, chosen
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.pause import PauseShares, storms
from goodput_common.contracts.telemetry import Gauge, Sample, Source, State
from goodput_common.runtime.clock import Clock

INTERFACES_MAX = 64
SETTINGS_EVERY_S = 10.0
_REPRESENTOR = re.compile(r"pf\d+(?:vf|sf)\d+|c\d+pf\d+(?:vf|sf)\d+")
_SETTINGS = "link settings"
_NOISE = {
    "pause_share": 0.01,
    "outbound_pci_stalled_rd_percent": 2.0,
    "outbound_pci_stalled_wr_percent": 2.0,
    "conntrack_allowance_available": 1000.0,
}


@dataclass(slots=True)
class _Interface:
    name: str
    known: Netdev
    incarnation: str = ""
    seen: bool = False
    count: int = -1
    counters: tuple[Stat, ...] = ()
    gauges: tuple[Stat, ...] = ()
    take: Any = None  # picks the counters out of the driver's list
    deltas: Deltas | None = None
    shares: PauseShares = field(default_factory=PauseShares)


class EthtoolReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.ETHTOOL
    instance = ""
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        ignore: re.Pattern[str],
        sys_root: Path = Path("/sys"),
        interval_s: float = 1.0,
        modules_every_s: float = 60.0,
        full_every_s: float = 60.0,
        ioctl: EthtoolIoctl | None = None,
        netlink: EthtoolNetlink | None = None,
        pods: Pods | None = None,
        virtual: bool = False,  # also interfaces with no device behind them
    ) -> None:
        self.interval_s = interval_s
        self._root = sys_root / "class" / "net"
        self._sys_root = sys_root
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._ignore = ignore
        self._virtual = virtual
        self._modules_every_s = modules_every_s
        self._full_every_s = full_every_s
        self._pods = pods if pods is not None else Pods()
        self._given_ioctl = ioctl
        self._netlink = netlink or EthtoolNetlink()
        self._ioctl: EthtoolIoctl | None = None
        self._modules: Modules | None = None
        self._listed: list[tuple[str, int]] | None = None
        self._interfaces: list[_Interface] = []
        self._settings: dict[str, LinkSettings] = {}
        self._settings_at_s = float("-inf")
        self._changes = Changes(full_every_s=full_every_s)
        self._gauges = Gauges(full_every_s=full_every_s)
        self._trouble: dict[str, str] = {}

    def open(self) -> None:
        if not self._root.is_dir():
            raise Absent(f"there is no {self._root}")
        self.close()  # a call that hung may have kept it from being closed
        self._ioctl = self._given_ioctl or EthtoolIoctl()
        if self._modules_every_s:
            self._modules = Modules(
                self._netlink,
                self._ioctl,
                clock=self._clock,
                every_s=self._modules_every_s,
                full_every_s=self._full_every_s,
            )

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        """What the counters stood at is kept, so that a short outage loses no increase."""
        self._netlink.close()
        if self._ioctl is not None and self._given_ioctl is None:
            self._ioctl.close()
        self._ioctl, self._modules = None, None
        self._settings_at_s = float("-inf")

    def read(self) -> Reading:
        self._list()
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        self._trouble = {name: text for name, text in self._trouble.items() if name == _SETTINGS}
        samples: list[Sample] = []
        gauges: list[Gauge] = []
        for interface in self._interfaces:
            told, measured = self._statistics(interface, now, now_s)
            samples += told
            gauges += measured
        self._read_settings(now_s)
        states = list(self._link_states(now))
        if self._modules is not None:
            samples += self._modules.read_one((each.name, each.known) for each in self._interfaces)
            states += self._modules.states()
            if self._modules.trouble:
                self._trouble["modules"] = self._modules.trouble
        samples += self._gauges.of(gauges, now_s, noise=_NOISE)
        samples += self._changes.of(states, now_s)
        return Reading(
            samples=samples,
            trouble="; ".join(self._trouble.values()),
            covered=tuple(dict.fromkeys(each.known.component for each in self._interfaces if each.seen)),
        )

    # -- which interfaces -------------------------------------------------------------------------------------------

    def _list(self) -> None:
        try:
            with os.scandir(self._root) as entries:
                present = sorted((each.name, each.inode()) for each in entries)
        except OSError as error:
            raise Unreadable(f"{self._root}: {error.strerror or error}") from None
        if present == self._listed:
            return
        self._listed = present
        self._pods.refresh()
        before = {each.name: each for each in self._interfaces}
        self._interfaces = []
        for name, _ in present:
            if len(self._interfaces) < INTERFACES_MAX and self._is_read(name):
                known = netdev(self._sys_root, self._host, name, self._pods)
                kept = before.get(name)
                if kept is None or kept.known.component != known.component:
                    kept = _Interface(name, known)
                kept.known = known
                self._interfaces.append(kept)
        if not self._interfaces:
            self._listed = None
            raise Absent(f"no network adapter in {self._root}")
        self._settings_at_s = float("-inf")

    def _is_read(self, name: str) -> bool:
        if self._ignore.fullmatch(name):
            return False
        try:
            port = small_text(self._root / name / "phys_port_name")
        except OSError:
            port = ""
        return not _REPRESENTOR.fullmatch(port) and (self._virtual or (self._root / name / "device").exists())

    # -- statistics -------------------------------------------------------------------------------------------------

    def _statistics(self, interface: _Interface, now: datetime, now_s: float) -> tuple[list[Sample], list[Gauge]]:
        assert self._ioctl is not None
        name = interface.name
        try:
            interface.seen, count = False, self._ioctl.count(name)
            interface.seen = True
            if count != interface.count:
                self._learn(interface, count)
            if not interface.counters and not interface.gauges:
                return [], []
            values = self._ioctl.values(name, count)
        except OSError as error:
            interface.count = -1
            # no statistics, or (their number changed) none of this reading, but link settings perhaps
            interface.seen = error.errno in (errno.EOPNOTSUPP, errno.EAGAIN)
            if error.errno not in (errno.EOPNOTSUPP, errno.EAGAIN, errno.ENODEV):
                self._trouble[name] = f"cannot read {name}: {error.strerror or error}"
            return [], []
        at = Gauge(component=interface.known.component, name="", observed_at=now, value=0.0, attrs={"netdev": name})
        gauges = [
            Gauge(
                component=at.component, name=stat.name, observed_at=now, value=float(values[1 + stat.place]), attrs=at.attrs
            )
            for stat in interface.gauges
        ]
        if interface.deltas is None:
            return [], gauges
        names = [stat.name for stat in interface.counters]
        moved = interface.deltas.update(
            CounterReading(
                values=dict(zip(names, interface.take(values), strict=True)),
                at=now,
                monotonic_s=now_s,
                incarnation=interface.incarnation,
            )
        )
        gauges += interface.shares.of(moved, names, at, now_s)
        return [*moved, *storms(moved, interface.known.attrs)], gauges

    def _learn(self, interface: _Interface, count: int) -> None:
        """Names, and which of them are told. Raises OSError."""
        assert self._ioctl is not None
        driver = self._ioctl.driver(interface.name)
        stats = chosen(self._ioctl.names(interface.name, count)) if count else ()
        interface.counters = tuple(stat for stat in stats if not stat.gauge)
        interface.gauges = tuple(stat for stat in stats if stat.gauge)
        indexes = [1 + stat.place for stat in interface.counters]
        interface.take = itemgetter(*indexes) if len(indexes) > 1 else lambda values: [values[at] for at in indexes]
        interface.incarnation = f"{self._boot_id}/{driver.name}/{driver.bus}/{self._index(interface.name)}"
        if interface.deltas is None and interface.counters:
            widths = {stat.name: stat.width for stat in interface.counters}
            interface.deltas = Deltas(interface.known.component, widths)
        interface.count = count

    def _index(self, name: str) -> str:
        """An interface that is made anew gets another one."""
        try:
            return small_text(self._root / name / "ifindex")
        except OSError:
            return ""

    # -- the link ---------------------------------------------------------------------------------------------------

    def _read_settings(self, now_s: float) -> None:
        if now_s - self._settings_at_s < SETTINGS_EVERY_S:
            return
        self._settings_at_s = now_s
        if self._pods.refresh():
            self._listed = None
        self._trouble.pop(_SETTINGS, None)
        try:
            self._settings = self._netlink.settings()
        except Absent:
            self._settings = {}
        except (Unreadable, OSError) as error:
            self._settings = {}
            self._netlink.close()
            self._trouble[_SETTINGS] = f"cannot read link settings: {error}"

    def _link_states(self, now: datetime) -> Iterable[State]:
        for interface in self._interfaces:
            found = self._settings.get(interface.name)
            if found is not None and found.link is not None:
                yield State(
                    component=interface.known.component,
                    name="link",
                    observed_at=now,
                    value="up" if found.link else "down",
                    attrs=interface.known.attrs | found.attrs(),
                )
