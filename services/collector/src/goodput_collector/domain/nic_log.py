"""Lines about network adapters: links and transceivers, firmware that no longer answers, carrier as user space sees it.

    mlx5_core 0000:01:00.0 enp1s0f0: Link down
    mlx5_core 0000:01:00.0: Port module event[error]: module 0, Cable error, High Temperature
    mlx5_core 0000:01:00.0: wait_func:1132:(pid 4242): CREATE_DCT(0x710) timeout. Will cause a leak of a command resource
    systemd-networkd[5398]: ib6: lost carrier

A firmware hang leaves the link UP: NIC_HANG and LINK_DOWN are different events. `mlx5_cmd_out_err … ACCESS_REG …
failed` is what a monitoring tool causes by reading registers it may not read: no event.

The component is named as the line names it: by network interface where there is one, else by PCI address; the topology
knows which adapter that is.
"""

from __future__ import annotations

import re
from datetime import datetime

from goodput_collector.domain.xid import excerpt
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

_BDF = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])"
_DRIVERS = (
    r"(?P<driver>mlx4_core|mlx4_en|mlx5_core|bnxt_en|ice|i40e|ixgbe|igb|igc|e1000e|tg3|ena|r8169|qede|cxgb4|efa|gve|idpf)"
)
_LINK = re.compile(
    rf"\b{_DRIVERS}(?: {_BDF})?:? (?P<netdev>[A-Za-z][\w.@-]*)(?: \([^)]*\))?:? "
    r"(?:NIC )?Link (?:is )?(?P<what>[Dd]own|[Uu]p)\b"
)
_LINK_BY_PCI = re.compile(rf"\b{_DRIVERS} {_BDF}: Port: \d+ Link (?P<what>[Dd]own|[Uu]p|DOWN|ACTIVE)", re.IGNORECASE)
_MODULE = re.compile(
    rf"\b(?P<driver>mlx5_core) {_BDF}(?: [\w.-]+)?: Port module event(?P<error>\[error\])?: "
    r"module (?P<module>\d+), (?P<what>.+)$"
)
_HANG = re.compile(
    rf"\b(?P<driver>mlx5_core) {_BDF}(?: (?P<netdev>[A-Za-z][\w.-]*))?: .*?(?P<what>"
    r"timeout\. Will cause a leak of a command resource|health compromised - reached miss count|unrecoverable hardware error"
    r"|synd 0x[0-9a-f]+: [^:]*not responding|Fatal error \d+ detected|TX timeout detected|handling bad device here"
    r"|device is in an internal error|Health issue observed, firmware internal error)",
    re.IGNORECASE,
)
_NETWORKD = re.compile(r"systemd-networkd(?:\[\d+\])?: (?P<netdev>[\w.@-]+): (?P<what>Lost|lost|Gained|gained) carrier")
_NETWORK_MANAGER = re.compile(
    r"NetworkManager(?:\[\d+\])?: .*device \((?P<netdev>[^)]+)\): (?:carrier: )?link (?P<what>disconnected|connected)"
)
_DOWN_WORDS = frozenset({"down", "lost", "disconnected"})


def pci_name(address: str) -> str:
    """`0000:01:00.0` -> `0000:01:00`, `0000:01:00.1` -> `0000:01:00.1`: function 0 is the device, others are ports of it."""
    short = ids.normal_pci(address)
    function = address.rpartition(".")[2] if "." in address else "0"
    return short if function == "0" else f"{short}.{function}"


def parse_nic(text: str, *, host: str, at: datetime) -> Event | None:
    """The event that one line tells about a network adapter, or None."""
    if "arrier" in text or "connected" in text:
        for form, by in ((_NETWORKD, "systemd-networkd"), (_NETWORK_MANAGER, "NetworkManager")):
            if (match := form.search(text)) is not None:
                return _link(match, by, text, host, at)
    if (match := _LINK.search(text) or _LINK_BY_PCI.search(text)) is not None:
        return _link(match, "kernel", text, host, at)
    if "mlx5_core" not in text:
        return None
    if (match := _MODULE.search(text)) is not None:
        return _cable(match, text, host, at)
    if (match := _HANG.search(text)) is not None:
        name = match["netdev"] or pci_name(match["pci"])
        return Event(
            component=ids.nic_id(host, name),
            name=EventName.NIC_HANG,
            observed_at=at,
            severity=Severity.FATAL,
            excerpt=excerpt(text),
            attrs={"pci": pci_name(match["pci"]), "driver": "mlx5_core", "what": match["what"].rstrip(".").lower()},
        )
    return None


def _link(match: re.Match[str], by: str, text: str, host: str, at: datetime) -> Event:
    found = match.groupdict()
    down = found["what"].lower() in _DOWN_WORDS
    attrs = {"by": by}
    if found.get("pci"):
        attrs["pci"] = pci_name(found["pci"])
    if found.get("driver"):
        attrs["driver"] = found["driver"]
    netdev = found.get("netdev") or ""
    if netdev:
        attrs["netdev"] = netdev
    return Event(
        component=ids.nic_id(host, netdev or attrs["pci"]),
        name=EventName.LINK_DOWN if down else EventName.LINK_UP,
        observed_at=at,
        severity=Severity.ERROR if down else Severity.INFO,
        excerpt=excerpt(text),
        attrs=attrs,
    )


def _cable(match: re.Match[str], text: str, host: str, at: datetime) -> Event:
    what = match["what"].strip()
    bad = match["error"] is not None or "error" in what.lower() or "high temperature" in what.lower()
    severity = Severity.ERROR if bad else Severity.WARNING if "unplugged" in what.lower() else Severity.INFO
    return Event(
        component=ids.nic_id(host, pci_name(match["pci"])),
        name=EventName.CABLE,
        observed_at=at,
        severity=severity,
        excerpt=excerpt(text),
        attrs={"pci": pci_name(match["pci"]), "module": match["module"], "what": what, "error": str(bad).lower()},
    )
