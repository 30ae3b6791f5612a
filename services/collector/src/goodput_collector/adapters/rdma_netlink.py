"""Statistics of RDMA ports over netlink, for ports whose counters sysfs does not have.

A container with a bare /sys, and kernels that keep `hw_counters` out of it, still answer here. Where both are there sysfs
is read: with its files kept open it took 1.1 us a counter, this 2.4 us, most of it for taking the message apart.
"""

from __future__ import annotations

import errno

from goodput_collector.adapters.netlink_socket import RDMA_PROTOCOL, NetlinkSocket, SocketOf, kernel_socket
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain import rdma_netlink
from goodput_collector.domain.netlink_wire import Malformed


class RdmaStatistics:
    """One socket, opened when it is first needed. A host without `rdma` netlink is asked once."""

    def __init__(self, *, socket_of: SocketOf = kernel_socket) -> None:
        self._socket_of = socket_of
        self._socket: NetlinkSocket | None = None
        self._devices: dict[str, int] | None = None
        self._absent = False

    def counters(self, device: str, port: int) -> dict[str, int]:
        """Under the driver's own names; {} where there are none. Raises Unreadable."""
        if self._absent:
            return {}
        try:
            if self._socket is None:
                self._socket = NetlinkSocket(RDMA_PROTOCOL, socket_of=self._socket_of)
            if self._devices is None:
                self._devices = rdma_netlink.devices(self._socket.ask(rdma_netlink.GET, b"", dump=True))
            index = self._devices.get(device)
            if index is None:
                return {}
            return rdma_netlink.counters(self._socket.ask(rdma_netlink.STAT_GET, rdma_netlink.port_request(index, port)))
        except Absent:
            self._absent = True
            return {}
        except Malformed as error:
            raise Unreadable(f"the kernel's answer about {device} makes no sense: {error}") from None
        except OSError as error:
            if error.errno in (errno.ENODEV, errno.EINVAL):
                self._devices = None  # it may have come back under another index
            return {}

    def forget(self) -> None:
        """Devices have come or gone."""
        self._devices = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._devices, self._absent = None, None, False
