"""The lab on paper: hosts, rails, addresses, ids. Everything else asks here, so that a name means the same everywhere.

h0 .. h3    hosts, each a network namespace      rail0  h0's end of its cable to switch leaf0
h4          spare, idle until a host is swapped  mgmt0  h0's end of the management network (bus, never training)
leaf0       switch of rail 0, a bridge in a namespace of its own; its port towards h0 is called h0
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from goodput_common.contracts import ids

MANAGEMENT_DEVICE = "mgmt0"
MANAGEMENT_BRIDGE = "mgmt"
HOSTS_MAX, RANKS_PER_HOST_MAX, RAILS_MAX = 32, 8, 4


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    index: int
    spare: bool

    @property
    def management_address(self) -> str:
        return f"10.30.0.{self.index + 1}"

    def rail_address(self, rail: int) -> str:
        return f"10.20.{rail}.{self.index + 1}"

    def gpu_pci(self, gpu: int) -> str:
        """No two GPUs of the lab share an address, so that a mistaken host shows."""
        return f"0000:{0x10 + 0x08 * gpu + (self.index % 8):02x}:00"


@dataclass(frozen=True)
class LabPlan:
    """`spares` hosts stand ready beyond the `hosts` that train."""

    hosts: int = 4
    ranks_per_host: int = 2
    rails: int = 1
    spares: int = 1
    fabric: str = "lab"

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("hosts", self.hosts, 2, HOSTS_MAX),
            ("ranks_per_host", self.ranks_per_host, 1, RANKS_PER_HOST_MAX),
            ("rails", self.rails, 1, RAILS_MAX),
            ("spares", self.spares, 0, HOSTS_MAX),
        ):
            if not low <= value <= high:
                raise ValueError(f"{name} is {value}; the lab can do {low} to {high}")

    @property
    def world_size(self) -> int:
        return self.hosts * self.ranks_per_host

    @property
    def small_groups(self) -> tuple[tuple[int, ...], ...]:
        """The ranks' second process groups: those of one host, or where a host has only one, of two neighbours."""
        size = max(2, self.ranks_per_host)
        starts = list(range(0, self.world_size - size + 1, size))
        ends = [*starts[1:], self.world_size]
        return tuple(tuple(range(start, end)) for start, end in zip(starts, ends, strict=True))

    @cached_property
    def all_hosts(self) -> tuple[Host, ...]:
        return tuple(Host(f"h{index}", index, index >= self.hosts) for index in range(self.hosts + self.spares))

    @property
    def training_hosts(self) -> tuple[Host, ...]:
        return self.all_hosts[: self.hosts]

    @property
    def spare_hosts(self) -> tuple[Host, ...]:
        return self.all_hosts[self.hosts :]

    def host(self, name: str) -> Host:
        return next(host for host in self.all_hosts if host.name == name)

    @property
    def bus_address(self) -> str:
        """The lab itself on the management network: NATS listens here."""
        return "10.30.0.254"


def rail_device(rail: int) -> str:
    return f"rail{rail}"


def leaf(rail: int) -> str:
    return f"leaf{rail}"


def nic(host: str, rail: int) -> str:
    return ids.nic_id(host, rail_device(rail))


def port(host: str, rail: int) -> str:
    return ids.port_id(leaf(rail), host)


def link(host: str, rail: int) -> str:
    return ids.link_id(nic(host, rail), port(host, rail))
