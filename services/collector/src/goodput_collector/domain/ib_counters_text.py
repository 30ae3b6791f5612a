"""Counters of InfiniBand ports as `perfquery` (with and without `-x`) and `ibqueryerrors` print them.

    # Port counters: Lid 73 port 1 (CapMask: 0x5A00)        Errors for 0x2c5eab0300b87b40 "MF0;leaf-04:MQM9701/U1"
    PortSelect:......................1                         GUID 0x2c5eab0300b87b40 port 1: [LinkDownedCounter == 2] [...]
    LinkDownedCounter:...............2                      ## Summary: 620 nodes checked, 1 bad nodes found

They are the same counters that sysfs has under other names. perfquery names a port by its LID, which only `ibstat` or
`ibnetdiscover` can turn into a component. ibqueryerrors lists ports *above its thresholds*: a port that it leaves out is
below them, which is not zero; and `port ALL` is the sum of a switch's ports, so it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from goodput_collector.domain.pasted import Unread, number
from goodput_collector.domain.rdma_counters import Width, describe

PORTS_MAX = 65_536
_HEAD = re.compile(
    r"^\s*# Port (?P<extended>extended )?counters: (?:Lid (?P<lid>\d{1,6})|DR path slid.*?;.*?) port (?P<port>\d{1,5})\b"
)
_LINE = re.compile(r"^\s*(?P<name>[A-Za-z][A-Za-z0-9]*):\.*\s*(?P<value>\S+)\s*$")
_NODE = re.compile(r'^\s*Errors for (?:0x(?P<guid>[0-9a-fA-F]{1,16}) )?"(?P<description>[^"]*)"')
_PORT = re.compile(r"^\s*GUID 0x(?P<guid>[0-9a-fA-F]{1,16}) port (?P<port>ALL|\d{1,5}):(?P<counts>.*)$")
_COUNT = re.compile(r"\[(?P<name>[A-Za-z][A-Za-z0-9]*) == (?P<value>\d{1,20})(?: \([^)]*\))?\]")
_SUMMARY = re.compile(r"^\s*## Summary: (?P<nodes>\d+) nodes checked, (?P<bad>\d+) bad")
_CHECKED = re.compile(r"^\s*##\s+(?P<ports>\d+) ports checked, (?P<bad>\d+) ports? ha")
_NAMES = {
    "SymbolErrorCounter": "symbol_error", "SymbolErrors": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery", "LinkRecovers": "link_error_recovery",
    "LinkDownedCounter": "link_downed", "LinkDowned": "link_downed",
    "PortRcvErrors": "port_rcv_errors", "RcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "RcvRemotePhysErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors", "RcvSwRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitDiscards": "port_xmit_discards", "XmtDiscards": "port_xmit_discards",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors", "XmtConstraintErrors": "port_xmit_constraint_errors",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors", "RcvConstraintErrors": "port_rcv_constraint_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors", "LinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "ExcBufOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped", "PortXmitWait": "port_xmit_wait", "XmtWait": "port_xmit_wait",
    "PortXmitData": "port_xmit_data", "XmtData": "port_xmit_data",
    "PortRcvData": "port_rcv_data", "RcvData": "port_rcv_data",
    "PortXmitPkts": "port_xmit_packets", "XmtPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets", "RcvPkts": "port_rcv_packets",
}  # fmt: skip
_SAY_NOTHING = frozenset(
    {"PortSelect", "CounterSelect", "CounterSelect2", "QP1Dropped"}
    | {f"{port}{to}{way}Pkts" for port in ("Port", "") for to in ("Unicast", "Multicast") for way in ("Xmit", "Rcv")}
)


@dataclass(slots=True)
class PortCounts:
    """One port's counters under sysfs's names. By `lid` (perfquery), or by `guid` and the node's `description`."""

    port: int
    lid: str = ""
    guid: str = ""
    description: str = ""
    extended: bool = False
    counts: dict[str, int] = field(default_factory=dict)

    def widths(self) -> Mapping[str, Width]:
        """In the extended set traffic and, on adapters that have them, errors count up to 64 bits."""
        return {name: Width.WRAPS_64 if self.extended else describe(name).width for name in self.counts}


@dataclass(slots=True)
class PortErrors:
    """`ports_checked` and `nodes_checked`: -1 where the summary is not there."""

    ports: list[PortCounts] = field(default_factory=list)
    nodes_checked: int = -1
    ports_checked: int = -1


def parse_perfquery(text: str) -> tuple[list[PortCounts], Unread]:
    ports: list[PortCounts] = []
    unread = Unread()
    current: PortCounts | None = None
    for line in text.splitlines():
        if (match := _HEAD.match(line)) is not None and len(ports) < PORTS_MAX:
            current = PortCounts(int(match["port"]), lid=match["lid"] or "", extended=bool(match["extended"]))
            ports.append(current)
            continue
        match = _LINE.match(line)
        value = number(match["value"]) if match is not None else None
        if current is None or match is None or value is None:
            unread.note(line)
        elif (name := _NAMES.get(match["name"])) is not None:
            current.counts[name] = value
        elif match["name"] not in _SAY_NOTHING:
            unread.note(line)
    return ports, unread


def parse_ibqueryerrors(text: str) -> tuple[PortErrors, Unread]:
    found = PortErrors()
    unread = Unread()
    description = ""
    for line in text.splitlines():
        if (match := _NODE.match(line)) is not None:
            description = match["description"][:128]
        elif (match := _PORT.match(line)) is not None:
            if match["port"] != "ALL" and len(found.ports) < PORTS_MAX:
                counts = _counts(match["counts"], unread)
                guid = match["guid"].lower().rjust(16, "0")
                found.ports.append(PortCounts(int(match["port"]), guid=guid, description=description, counts=counts))
        elif (match := _SUMMARY.match(line)) is not None:
            found.nodes_checked = number(match["nodes"]) or 0
        elif (match := _CHECKED.match(line)) is not None:
            found.ports_checked = number(match["ports"]) or 0
        elif not line.strip().startswith(("##", "Link info:", "---")):
            unread.note(line)
    return found, unread


def _counts(text: str, unread: Unread) -> dict[str, int]:
    counts: dict[str, int] = {}
    for match in _COUNT.finditer(text):
        value, name = number(match["value"]), _NAMES.get(match["name"])
        if name is not None and value is not None:
            counts[name] = value
        elif match["name"] not in _SAY_NOTHING and not match["name"].startswith("Port"):
            unread.note(match[0])
    return counts
