"""The lab's cables and switches, for real: veth pairs into bridges, one namespace for every host and every switch.

A cable is a veth pair. Taking down the switch's end makes the host's end lose its carrier, as pulling the cable does: the
host's kernel counts it and says so over netlink, and TCP connections across it hang.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from goodput_faultlab.lab import packetloss
from goodput_faultlab.lab.linux import in_thread, inside_network, new_network
from goodput_faultlab.lab.plan import MANAGEMENT_BRIDGE, MANAGEMENT_DEVICE, Host, LabPlan, leaf, rail_device

T = TypeVar("T")


class Network:
    """Built in the caller's network namespace, which must be the lab's own."""

    def __init__(self, plan: LabPlan) -> None:
        self._plan = plan
        self.host_namespace: dict[str, int] = {}  # host -> open file
        self._switch_namespace: dict[str, int] = {}
        self._lossy: set[tuple[str, int]] = set()

    def build(self) -> None:
        for host in self._plan.all_hosts:
            self.host_namespace[host.name] = new_network()
        for rail in range(self._plan.rails):
            self._switch_namespace[leaf(rail)] = new_network()
            self._within(self._switch_namespace[leaf(rail)], partial(self._build_leaf, rail))
        self._within(None, self._build_management)
        for host in self._plan.all_hosts:
            self._within(self.host_namespace[host.name], partial(self._build_host, host))

    def close(self) -> None:
        for namespace in (*self.host_namespace.values(), *self._switch_namespace.values()):
            os.close(namespace)
        self.host_namespace.clear()
        self._switch_namespace.clear()

    # -- faults --------------------------------------------------------------------------------------------------------

    def set_port(self, host: str, rail: int, *, up: bool) -> None:
        """The switch's end of the host's cable."""
        self._within(
            self._switch_namespace[leaf(rail)],
            lambda ip: ip.link("set", index=ip.link_lookup(ifname=host)[0], state="up" if up else "down"),
        )

    def port_is_up(self, host: str, rail: int) -> bool:
        def look(ip: Any) -> bool:
            (found,) = ip.get_links(ip.link_lookup(ifname=host)[0])
            return bool(found.get_attr("IFLA_OPERSTATE") == "UP")

        return self._within(self._switch_namespace[leaf(rail)], look)

    def lose_packets(self, host: str, rail: int, per_mille: int) -> None:
        """Random loss in both directions of one cable. Raises PacketLossUnavailable."""
        inside_network(self._switch_namespace[leaf(rail)], lambda: packetloss.add(host, per_mille))
        self._lossy.add((host, rail))
        inside_network(self.host_namespace[host], lambda: packetloss.add(rail_device(rail), per_mille))

    def heal(self) -> None:
        """Every port up, no loss anywhere."""
        for name, rail in sorted(self._lossy):
            inside_network(self._switch_namespace[leaf(rail)], packetloss.remove)
            inside_network(self.host_namespace[name], packetloss.remove)
        self._lossy.clear()
        for rail in range(self._plan.rails):
            for host in self._plan.all_hosts:
                if not self.port_is_up(host.name, rail):
                    self.set_port(host.name, rail, up=True)

    # -- building ------------------------------------------------------------------------------------------------------

    def _build_leaf(self, rail: int, ip: Any) -> None:
        bridge = _bridge(ip, leaf(rail))
        for host in self._plan.all_hosts:
            peer = {"ifname": rail_device(rail), "net_ns_fd": self.host_namespace[host.name]}
            _cable(ip, host.name, peer, bridge)

    def _build_management(self, ip: Any) -> None:
        ip.link("set", index=1, state="up")
        bridge = _bridge(ip, MANAGEMENT_BRIDGE)
        ip.addr("add", index=bridge, address=self._plan.bus_address, prefixlen=24)
        for host in self._plan.all_hosts:
            peer = {"ifname": MANAGEMENT_DEVICE, "net_ns_fd": self.host_namespace[host.name]}
            _cable(ip, f"m-{host.name}", peer, bridge)

    def _build_host(self, host: Host, ip: Any) -> None:
        ip.link("set", index=1, state="up")
        addresses = {MANAGEMENT_DEVICE: host.management_address}
        addresses |= {rail_device(rail): host.rail_address(rail) for rail in range(self._plan.rails)}
        for device, address in addresses.items():
            index = ip.link_lookup(ifname=device)[0]
            ip.addr("add", index=index, address=address, prefixlen=24)
            ip.link("set", index=index, state="up")

    def _within(self, namespace: int | None, do: Callable[[Any], T]) -> T:
        def run() -> T:
            from pyroute2 import IPRoute

            with IPRoute() as ip:
                return do(ip)

        return in_thread(run) if namespace is None else inside_network(namespace, run)


def _bridge(ip: Any, name: str) -> int:
    ip.link("add", ifname=name, kind="bridge", br_forward_delay=0, br_stp_state=0)
    index = int(ip.link_lookup(ifname=name)[0])
    ip.link("set", index=index, state="up")
    return index


def _cable(ip: Any, name: str, peer: dict[str, Any], bridge: int) -> None:
    ip.link("add", ifname=name, kind="veth", peer=peer)
    ip.link("set", index=ip.link_lookup(ifname=name)[0], master=bridge, state="up")
