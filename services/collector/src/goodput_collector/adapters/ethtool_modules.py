"""Transceivers, one a reading: their memory is behind a slow two-wire bus, and the adapter's firmware waits for it.

So each module is read once in `every_s`, and in one reading of the source at most one module. An interface without a module
(or whose driver cannot reach it) is asked again after ten times as long, as is one that gives nonsense. One that could be
read and cannot be any more is `absent` or `unknown`, not what it was.

A module keeps its complaints until they are read. What the first reading of a module finds may be from months ago (another
host, the link before it was plugged in): it clears them and tells none; what is true still is there again in the next.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace

from goodput_collector.adapters.ethtool_ioctl import EthtoolIoctl
from goodput_collector.adapters.ethtool_netlink import I2C_DIAGNOSTICS, EthtoolNetlink
from goodput_collector.adapters.netdevs import Netdev
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain import module_report
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.module_eeprom import (
    CMIS_ADVERTISING_PAGE,
    CMIS_LANES_PAGE,
    PAGE_BYTES,
    Module,
    decode,
    has_pages,
    is_cmis,
    is_sfp,
)
from goodput_common.contracts.telemetry import Sample, State
from goodput_common.runtime.clock import Clock

_LATER = 10
_ABSENT = (errno.ENODEV, errno.ENXIO, errno.ENOMEDIUM)
_ASK_OTHERWISE = (errno.EOPNOTSUPP, errno.ENOSYS)


@dataclass(slots=True)
class _Seen:
    due_s: float
    module: Module | None = None
    state: State | None = None


class Modules:
    def __init__(
        self, netlink: EthtoolNetlink, ioctl: EthtoolIoctl, *, clock: Clock, every_s: float, full_every_s: float
    ) -> None:
        self._netlink = netlink
        self._ioctl = ioctl
        self._clock = clock
        self._every_s = every_s
        self._seen: dict[str, _Seen] = {}
        self._gauges = Gauges(full_every_s=max(full_every_s, every_s))
        self.trouble = ""

    def read_one(self, interfaces: Iterable[tuple[str, Netdev]]) -> list[Sample]:
        """Measurements and complaints of the module that is due, if one is."""
        now_s = self._clock.monotonic_s()
        present = dict(interfaces)
        for gone in self._seen.keys() - present.keys():
            del self._seen[gone]
        for name in present.keys() - self._seen.keys():
            self._seen[name] = _Seen(due_s=now_s)
        due = min(self._seen.items(), key=lambda item: item[1].due_s, default=None)
        if due is None or due[1].due_s > now_s:
            return []
        name, seen = due
        seen.due_s = now_s + self._every_s
        try:
            module = self._module(name)
        except PermissionError as error:
            self.trouble = "not allowed to read transceivers: run with CAP_NET_ADMIN"
            self._lost(seen, error, now_s)
            return []
        except (OSError, ValueError, Unreadable) as error:
            self._lost(seen, error, now_s)
            return []
        self.trouble = ""
        return self._told(seen, module, present[name], now_s)

    def states(self) -> Iterable[State]:
        """Of all modules that have been read."""
        return [seen.state for seen in self._seen.values() if seen.state is not None]

    def _lost(self, seen: _Seen, error: Exception, now_s: float) -> None:
        if seen.module is None:  # nor could it be read the last time
            seen.due_s = now_s + self._every_s * _LATER
        seen.module = None
        if seen.state is not None:
            number = error.errno if isinstance(error, OSError) else None
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            seen.state = module_report.lost_of(seen.state, reason, gone=number in _ABSENT, at=self._clock.now())

    def _told(self, seen: _Seen, module: Module, known: Netdev, now_s: float) -> list[Sample]:
        now = self._clock.now()
        if seen.module is None or (seen.module.vendor, seen.module.serial) != (module.vendor, module.serial):
            seen.module = module = replace(module, flags=())
        told: list[Sample] = list(module_report.complaints(seen.module, module, known.component, known.attrs, now))
        told += self._gauges.of(
            module_report.gauges_of(module, known.component, {"netdev": known.attrs["netdev"]}, now),
            now_s,
            noise=module_report.NOISE,
        )
        seen.module = module
        seen.state = module_report.state_of(module, known.component, known.attrs, now)
        return told

    def _module(self, name: str) -> Module:
        """Raises OSError, ValueError, Unreadable."""
        try:
            return self._by_pages(name)
        except Absent:
            return self._whole(name)
        except OSError as error:
            if error.errno in _ASK_OTHERWISE:
                return self._whole(name)
            raise

    def _by_pages(self, name: str) -> Module:
        lower = self._netlink.page(name, page=0, offset=0, length=PAGE_BYTES)
        if is_sfp(lower):
            more = self._netlink.page(name, page=0, offset=0, length=PAGE_BYTES, i2c=I2C_DIAGNOSTICS)
            return decode(lower, b"", more)
        upper = self._netlink.page(name, page=0, offset=PAGE_BYTES, length=PAGE_BYTES)
        more = advertised = b""
        if is_cmis(lower) and has_pages(lower):
            advertised = self._netlink.page(name, page=CMIS_ADVERTISING_PAGE, offset=PAGE_BYTES, length=PAGE_BYTES)
            more = self._netlink.page(name, page=CMIS_LANES_PAGE, offset=PAGE_BYTES, length=PAGE_BYTES)
        return decode(lower, upper, more, advertised)

    def _whole(self, name: str) -> Module:
        memory = self._ioctl.eeprom(name)
        lower, upper = memory[:PAGE_BYTES], memory[PAGE_BYTES : 2 * PAGE_BYTES]
        return decode(lower, upper, memory[2 * PAGE_BYTES : 3 * PAGE_BYTES] if is_sfp(lower) else b"")
