"""Health reporters of adapter drivers over devlink's netlink family: one answer for all devices.

A device is told as the RDMA port behind its PCI function, else its interface, else its address.
"""

from __future__ import annotations

import errno
from pathlib import Path

from goodput_collector.adapters.netlink_socket import GENERIC_PROTOCOL, NetlinkSocket, SocketOf, kernel_socket
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.application.rdma_tree import netdevs_of, pci_of
from goodput_collector.domain import netlink_wire as wire
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.devlink_health import HEALTH_GET, Health, Owner, reporters, state_of
from goodput_collector.domain.nic_log import pci_name
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock

_VERSION = 1
_OWNERS_KEPT_S = 60.0


class DevlinkReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.DEVLINK
    instance = ""
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        clock: Clock,
        sys_root: Path = Path("/sys"),
        interval_s: float = 5.0,
        full_every_s: float = 60.0,
        socket_of: SocketOf = kernel_socket,
    ) -> None:
        self.interval_s = interval_s
        self._host = host
        self._clock = clock
        self._devices = sys_root / "bus" / "pci" / "devices"
        self._socket_of = socket_of
        self._socket: NetlinkSocket | None = None
        self._family = 0
        self._health = Health()
        self._changes = Changes(full_every_s=full_every_s, volatile=("errors", "recoveries"))
        self._owners: dict[str, Owner] = {}
        self._owners_at_s = float("-inf")

    def open(self) -> None:
        self.close()  # a call that hung may have kept it from being closed
        self._socket = NetlinkSocket(GENERIC_PROTOCOL, socket_of=self._socket_of)
        self._family, _ = self._socket.family("devlink")

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def read(self) -> Reading:
        if self._socket is None:
            raise Unreadable("the netlink socket is closed")
        try:
            found = reporters(self._socket.ask(self._family, wire.generic(HEALTH_GET, _VERSION), dump=True))
        except wire.Malformed as error:
            raise Unreadable(f"the kernel's answer about health reporters makes no sense: {error}") from None
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                raise Absent("this kernel has no health reporters") from None
            raise
        if not found:
            raise Absent("no driver here has health reporters")
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        if now_s - self._owners_at_s >= _OWNERS_KEPT_S:
            self._owners.clear()  # a device may have got another name
            self._owners_at_s = now_s
        for reporter in found:
            if reporter.device not in self._owners:
                self._owners[reporter.device] = self._owner(reporter.device)
        states = [state_of(reporter, self._owners[reporter.device], now) for reporter in found]
        return Reading(
            samples=[*self._health.update(found, self._owners, now), *self._changes.of(states, now_s)],
            covered=tuple(dict.fromkeys(each.component for each in states)),
        )

    def _owner(self, address: str) -> Owner:
        device = self._devices / address
        attrs = {"pci": pci_of(device) or _short(address)}
        rdma = _first(device / "infiniband")
        names = netdevs_of(device)
        if rdma:
            attrs["rdma"] = rdma
        if names:
            attrs["netdev"] = names[0]
        return Owner(component=ids.nic_id(self._host, rdma or (names[0] if names else attrs["pci"])), attrs=attrs)


def _short(address: str) -> str:
    try:
        return pci_name(address)
    except ValueError:
        return address


def _first(folder: Path) -> str:
    try:
        return min((each.name for each in folder.iterdir()), default="")
    except OSError:
        return ""
