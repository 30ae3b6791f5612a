"""Network adapters under sysfs: each port once, by its RDMA device where it has one, with its interface.

    <root>/class/infiniband/<dev>/{node_guid,ports/<n>/{state,link_layer,gids/<i>}}
    <root>/class/net/<netdev>/{address,dev_port,device -> PCI function}

Interfaces without hardware behind them (bridges, bonds, veth, VLANs) are no adapters; neither are the representors of
virtual functions on a switchdev adapter. sysfs shows the interfaces of the network namespace in which it was mounted:
inside a container that may be another one than ours, so what our own namespace does not have is left out.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from goodput_collector.adapters.pci import address_path, names_in, text_of
from goodput_collector.domain.discovery import NicFact

PORTS_MAX = 512
GIDS_MAX = 16  # the first IPv4 address is among the first few
_REPRESENTOR = re.compile(r"^(c\d+)?pf\d+(vf|sf)\d+$")


def own_interfaces() -> frozenset[str]:
    """The interfaces of this process's network namespace."""
    return frozenset(name for _, name in socket.if_nameindex())


def read_nics(
    sys_root: Path,
    *,
    ignore: re.Pattern[str],
    rdma_ignore: Collection[str] = (),
    visible: Callable[[], frozenset[str]] | None = own_interfaces,
) -> list[NicFact]:
    """`visible` gives the interfaces to be believed; None: all that sysfs shows (a copy of another machine's)."""
    seen = None if visible is None else visible()
    netdevs: dict[tuple[str, int], tuple[str, str]] = {}  # (PCI function, port) -> (interface, MAC address)
    for name in sorted(names_in(sys_root / "class" / "net"), key=lambda each: (len(each), each)):
        if ignore.fullmatch(name) or (seen is not None and name not in seen):
            continue
        interface = sys_root / "class" / "net" / name
        path = address_path(interface / "device")
        if path and not _REPRESENTOR.match(text_of(interface / "phys_port_name")):
            netdevs.setdefault((path[-1], _port(interface)), (name, _mac(text_of(interface / "address"))))
    found = list(_rdma(sys_root, rdma_ignore, netdevs))
    found = [replace(fact, master=_bond(sys_root, fact.netdev)) for fact in found]
    taken = {fact.netdev for fact in found}
    for (pci, _), (name, mac) in netdevs.items():
        if name not in taken:
            found.append(NicFact(device=name, pci=pci, netdev=name, mac=mac, master=_bond(sys_root, name)))
    return found[:PORTS_MAX]


def _rdma(sys_root: Path, ignore: Collection[str], netdevs: dict[tuple[str, int], tuple[str, str]]) -> Iterator[NicFact]:
    for name in sorted(names_in(sys_root / "class" / "infiniband")):
        if name in ignore:
            continue
        device = sys_root / "class" / "infiniband" / name
        path = address_path(device / "device")
        pci = path[-1] if path else ""
        for number in sorted(int(each) for each in names_in(device / "ports") if each.isdigit()):
            port = device / "ports" / str(number)
            netdev, mac = netdevs.get((pci, number), ("", ""))
            layer = text_of(port / "link_layer")
            yield NicFact(
                device=name,
                port=number,
                pci=pci,
                netdev=netdev,
                rdma=name,
                mac=mac,
                guid=_guid(device, port, layer),
                link_layer=layer,
                addr=_address(port),
                active=_active(text_of(port / "state")),
            )


def _guid(device: Path, port: Path, layer: str) -> str:
    """The port's own on InfiniBand (the second half of its first GID), as a scan of the subnet shows it; else the node's."""
    if layer == "InfiniBand":
        groups = text_of(port / "gids" / "0").split(":")
        if len(groups) == 8 and any(int(each or "0", 16) for each in groups[4:] if _is_hex(each)):
            return f"0x{''.join(groups[4:]).lower()}"
    node = text_of(device / "node_guid").replace(":", "").lower()
    return f"0x{node}" if len(node) == 16 and node.strip("0") else ""


def _address(port: Path) -> str:
    """The IPv4 address by which RoCE peers know this port."""
    for index in range(GIDS_MAX):
        text = text_of(port / "gids" / str(index))
        if not text:
            break
        try:
            mapped = ipaddress.IPv6Address(text).ipv4_mapped
        except ValueError:
            continue
        if mapped is not None:
            return str(mapped)
    return ""


def _bond(sys_root: Path, netdev: str) -> str:
    """The bond that an interface is a member of; a bridge is none."""
    master = sys_root / "class" / "net" / netdev / "master"
    try:
        name = master.readlink().name if netdev else ""
    except OSError:
        return ""
    return name if (sys_root / "class" / "net" / name / "bonding").is_dir() else ""


def _active(state: str) -> bool | None:
    return None if not state else state.startswith("4:")


def _port(interface: Path) -> int:
    """`dev_port` counts from 0 where several ports share a PCI function."""
    text = text_of(interface / "dev_port")
    return int(text) + 1 if text.isdigit() else 1


def _mac(text: str) -> str:
    """An InfiniBand interface has 20 bytes there, which are no MAC address."""
    return text.lower() if len(text) == 17 and text != "00:00:00:00:00:00" else ""


def _is_hex(text: str) -> bool:
    return bool(text) and all(each in "0123456789abcdefABCDEF" for each in text)
