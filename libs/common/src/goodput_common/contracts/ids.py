"""Component ids: readable, stable names for everything that can break.

An id is ``<kind>:<path>``. It is the join key of the whole system: a collector stamps it on a sample, the topology graph
uses it as a node name, a verdict names its culprit by it. The same component has the same id from every source; where a
source knows only part of the name (a kernel log knows a GPU's PCI address, not its index), the alias is resolved against
the topology (`goodput_topology`), never guessed here.

    host:h7            gpu:h7/3             nic:h7/mlx5_0/1            nvlink:h7/3/17      switch:leaf-2
    port:leaf-2/Ethernet8                   link:nic:h7/mlx5_0/1--port:leaf-2/Ethernet8
    nvdomain:rack-4    rank:job-1/12        job:job-1
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

ComponentId = str


class ComponentKind(enum.StrEnum):
    """What sort of thing a component id names."""

    HOST = "host"
    GPU = "gpu"
    NIC = "nic"
    LINK = "link"
    SWITCH = "switch"
    PORT = "port"
    NVLINK = "nvlink"
    NVSWITCH = "nvswitch"
    NVDOMAIN = "nvdomain"
    RANK = "rank"
    JOB = "job"


class Component(NamedTuple):
    """A parsed component id."""

    kind: ComponentKind
    path: str


class InvalidComponentId(ValueError):
    """The text is not a component id; `text` is what was given."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"{text!r} is not a component id: {why}")
        self.text = text


_KINDS = {kind.value: kind for kind in ComponentKind}
_PCI = re.compile(
    r"^(?:(?P<domain>[0-9a-fA-F]{4,8}):)?(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.(?P<fn>[0-7]))?$"
)


def host_id(host: str) -> ComponentId:
    return f"host:{host}"


def gpu_id(host: str, gpu: int | str) -> ComponentId:
    """`gpu` is the index, or the PCI address (`0000:9b:00`) as long as the index is unknown."""
    return f"gpu:{host}/{gpu}"


def nic_id(host: str, device: str, port: int = 1) -> ComponentId:
    """`device` is the RDMA device where there is one, else the network interface."""
    return f"nic:{host}/{device}/{port}"


def nvlink_id(host: str, gpu: int | str, link: int) -> ComponentId:
    return f"nvlink:{host}/{gpu}/{link}"


def nvswitch_id(host: str, name: str) -> ComponentId:
    return f"nvswitch:{host}/{name}"


def nvdomain_id(name: str) -> ComponentId:
    return f"nvdomain:{name}"


def switch_id(name: str) -> ComponentId:
    return f"switch:{name}"


def port_id(switch: str, interface: str) -> ComponentId:
    return f"port:{switch}/{interface}"


def link_id(end: ComponentId, other: ComponentId) -> ComponentId:
    """The same link whichever end is named first."""
    first, second = sorted((end, other))
    return f"link:{first}--{second}"


def rank_id(job: str, rank: int) -> ComponentId:
    return f"rank:{job}/{rank}"


def job_id(job: str) -> ComponentId:
    return f"job:{job}"


def parse(component: ComponentId) -> Component:
    """Split an id into kind and path. Raises InvalidComponentId."""
    kind, colon, path = component.partition(":")
    if not colon or not path:
        raise InvalidComponentId(component, "expected <kind>:<path>")
    if kind not in _KINDS:
        raise InvalidComponentId(component, f"unknown kind {kind!r}, expected one of {', '.join(_KINDS)}")
    return Component(_KINDS[kind], path)


def kind_of(component: ComponentId) -> ComponentKind:
    return parse(component).kind


def link_ends(link: ComponentId) -> tuple[ComponentId, ComponentId]:
    """The two ends of a link id."""
    kind, path = parse(link)
    first, dashes, second = path.partition("--")
    if kind is not ComponentKind.LINK or not dashes:
        raise InvalidComponentId(link, "expected link:<end>--<end>")
    return first, second


def rank_of(rank: ComponentId) -> tuple[str, int]:
    """(job, rank number) of a rank id."""
    kind, path = parse(rank)
    job, slash, number = path.rpartition("/")
    if kind is not ComponentKind.RANK or not slash or not number.isdigit():
        raise InvalidComponentId(rank, "expected rank:<job>/<n>")
    return job, int(number)


def host_of(component: ComponentId) -> str | None:
    """The host that carries a component: its own name, or None where no single host does (switch, link, rank, job)."""
    kind, path = parse(component)
    if kind is ComponentKind.HOST:
        return path
    if kind in (ComponentKind.GPU, ComponentKind.NIC, ComponentKind.NVLINK, ComponentKind.NVSWITCH):
        return path.split("/", 1)[0]
    return None


def normal_pci(address: str) -> str:
    """`9b:00.0`, `0000:9B:00`, `00000000:9b:00.0` -> `0000:9b:00` (domain:bus:device, four hex digits of domain).

    Raises ValueError when the text is no PCI address.
    """
    match = _PCI.match(address.strip())
    if match is None:
        raise ValueError(f"{address!r} is not a PCI address such as 0000:9b:00.0")
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{match['bus']}:{match['device']}".lower()
