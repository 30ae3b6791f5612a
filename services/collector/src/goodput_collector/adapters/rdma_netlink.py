"""Statistics of RDMA ports over netlink: all `hw_counters` of a port in one question, cheaper than a file each.

Also where there are no files: a container with a bare /sys, kernels that keep `hw_counters` out of it. A host whose kernel
has no `rdma` netlink, or a driver without statistics, is asked once until its devices change.
"""

from __future__ import annotations

import errno

from goodput_collector.adapters.netlink_socket import RDMA_PROTOCOL, NetlinkSocket, SocketOf, kernel_socket
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain import rdma_netlink
from goodput_collector.domain.netlink_wire import Malformed
from goodput_collector.domain.rdma_counters import Width, describe, is_reported


class _Port:
    """One port's answers, and the names under which they are told."""

    def __init__(self, payload: bytes) -> None:
        self.layout = rdma_netlink.Layout(payload)
        told = [(at, describe(name)) for at, name in enumerate(self.layout.names) if is_reported(name)]
        self.widths = {counter.name: counter.width for _, counter in told}
        self._all = len(told) == len(self.layout.names)
        self._places = [at for at, _ in told]
        self._names = [counter.name for _, counter in told]

    def named(self, values: tuple[int, ...]) -> dict[str, int]:
        kept = values if self._all else [values[at] for at in self._places]
        return dict(zip(self._names, kept, strict=True))


class RdmaStatistics:
    """One socket, opened when it is first needed."""

    def __init__(self, *, socket_of: SocketOf = kernel_socket) -> None:
        self._socket_of = socket_of
        self._socket: NetlinkSocket | None = None
        self._devices: dict[str, int] | None = None
        self._ports: dict[tuple[str, int], _Port] = {}
        self._without: set[str] = set()
        self._absent = False

    def widths(self, device: str, port: int) -> dict[str, Width]:
        """Of the counters that this port has told, under mlx5's names."""
        known = self._ports.get((device, port))
        return known.widths if known is not None else {}

    def counters(self, device: str, port: int) -> dict[str, int]:
        """Counter -> value, under mlx5's names; {} where there are none, or the kernel's answer is of no use."""
        if self._absent or device in self._without:
            return {}
        try:
            return self._ask(device, port)
        except Unreadable:  # or absent: there are files, too
            self._absent = True
        except Malformed:
            self._without.add(device)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                self._without.add(device)
            self._devices = None  # it may come back under another index
        return {}

    def forget(self) -> None:
        """Devices have come or gone."""
        self._devices = None
        self._ports.clear()
        self._without.clear()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self.forget()
        self._socket, self._absent = None, False

    def _ask(self, device: str, port: int) -> dict[str, int]:
        if self._socket is None:
            self._socket = NetlinkSocket(RDMA_PROTOCOL, socket_of=self._socket_of)
        if self._devices is None:
            self._devices = rdma_netlink.devices(self._socket.ask(rdma_netlink.GET, b"", dump=True))
        index = self._devices.get(device)
        if index is None:
            return {}
        answer = self._socket.ask(rdma_netlink.STAT_GET, rdma_netlink.port_request(index, port))
        if not answer:
            return {}
        payload, known = answer[0].payload, self._ports.get((device, port))
        values = known.layout.values(payload) if known is not None else None
        if known is None or values is None:
            known = self._ports[device, port] = _Port(payload)
            values = known.layout.values(payload) or ()
        return known.named(values)
