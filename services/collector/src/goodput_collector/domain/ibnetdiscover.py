"""`ibnetdiscover`: an InfiniBand fabric whole, as the subnet shows it to anybody who asks.

    Switch  65 "S-2c5eab0300b87b40"         # "MF0;A09-P1-IBLEAF-04-04:MQM9701/U1" enhanced port 0 lid 73 lmc 0
    [1]     "H-e09d7303007a4bd8"[1](e09d7303007a4bd8)               # "a08-p1-dgx-04-c01 mlx5_5" lid 647 4xNDR
    [35]    "S-2c5eab0300c26280"[32]                # "MF0;A10-P1-IBSPINE-02:MQM9701/U1" lid 236 4xNDR

One block a node, one line a port that has a cable; each cable stands in the blocks of both its ends. A name is only a
description: a host sets it to its name and the device's (`a08-p1-dgx-04-c01 mlx5_5`), a host that has not yet done so says
`MT4129 ConnectX7`, and two installers' images say `localhost`. The GUID is what holds: it names what has no name, and by it
what a host says of its own adapters is joined with this.
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

COMPLAINTS_MAX = 100
_NODE = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([SHR])-([0-9a-fA-F]{1,16})"\s*(?:#\s*"((?:[^"\\]|\\.)*)"(.*))?$')
_CABLE = re.compile(
    r"^\[(?P<port>\d+)\](?:\[ext [^\]]*\])?(?:\((?P<own>[0-9a-fA-F]+)\))?\s*"
    r'"(?P<kind>[SHR])-(?P<peer>[0-9a-fA-F]{1,16})"\[(?P<far>\d+)\](?:\[ext [^\]]*\])?(?:\((?P<guid>[0-9a-fA-F]+)\))?'
    r"\s*(?:#\s*(?P<rest>.*))?$"
)
_SPEED = re.compile(r"\b(\d+x[A-Z]+\d*)\s*$")
_KEY = re.compile(r"^\s*[a-z]+=\S*$")
_CHASSIS = re.compile(r"^(Chassis|Spine|Line|Slot)\b")
_TRAILING_NUMBER = re.compile(r"^(.*?)(\d+)$")


class NodeKind(enum.Enum):
    SWITCH = "S"
    ADAPTER = "H"
    ROUTER = "R"


@dataclass(frozen=True, slots=True)
class Cable:
    """One line: this node's port to `far` of `peer` (a GUID)."""

    port: int
    peer: str
    far: int
    speed: str = ""  # 4xNDR


@dataclass(slots=True, kw_only=True)
class Node:
    guid: str  # 16 hex digits
    kind: NodeKind
    description: str = ""
    cables: list[Cable] = field(default_factory=list)
    port_guids: dict[int, str] = field(default_factory=dict)

    @property
    def is_aggregator(self) -> bool:
        """The reduction engine inside a switch (SHARP) appears as an adapter on a port of its own: no host has it."""
        return self.kind is NodeKind.ADAPTER and "Aggregation Node" in self.description


@dataclass(slots=True)
class Fabric:
    """All nodes by GUID. `complaints` names each line that could not be read and each cable that only one end tells."""

    nodes: dict[str, Node] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
    complained: int = 0

    def complain(self, text: str) -> None:
        self.complained += 1
        if len(self.complaints) < COMPLAINTS_MAX:
            self.complaints.append(text)

    def of(self, kind: NodeKind) -> Iterator[Node]:
        return (node for node in self.nodes.values() if node.kind is kind)

    def links(self) -> dict[tuple[tuple[str, int], tuple[str, int]], Cable]:
        """Each cable once, by its ends (guid, port), the smaller first."""
        found: dict[tuple[tuple[str, int], tuple[str, int]], Cable] = {}
        for node in self.nodes.values():
            for cable in node.cables:
                a, b = sorted(((node.guid, cable.port), (cable.peer, cable.far)))
                found.setdefault((a, b), cable)
        return found


def parse(text: str) -> Fabric:
    """Never raises: what is not understood is complained about."""
    fabric = Fabric()
    node: Node | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#") or _KEY.match(stripped) or _CHASSIS.match(stripped):
            continue
        if (match := _NODE.match(stripped)) is not None:
            node = _node(fabric, match[4], NodeKind(match[3]))
            node.description = " ".join((match[5] or "").split())
        elif (match := _CABLE.match(stripped)) is not None and node is not None:
            _cable(fabric, node, match)
        else:
            fabric.complain(f"line {number}: {stripped[:80]!r} is neither a node nor a cable of one")
    _compare_ends(fabric)
    return fabric


def _node(fabric: Fabric, guid: str, kind: NodeKind) -> Node:
    guid = _guid(guid)
    return fabric.nodes.setdefault(guid, Node(guid=guid, kind=kind))


def _cable(fabric: Fabric, node: Node, match: re.Match[str]) -> None:
    rest = match["rest"] or ""
    peer = _node(fabric, match["peer"], NodeKind(match["kind"]))
    speed = _SPEED.search(rest)
    port, far = int(match["port"]), int(match["far"])
    node.cables.append(Cable(port, peer.guid, far, speed[1] if speed else ""))
    if match["own"]:
        node.port_guids[port] = _guid(match["own"])
    if match["guid"]:
        peer.port_guids[far] = _guid(match["guid"])
    if not peer.description and (quoted := rest.find('"')) >= 0:
        peer.description = " ".join(rest[quoted + 1 :].partition('"')[0].split())


def _compare_ends(fabric: Fabric) -> None:
    told = {(node.guid, c.port, c.peer, c.far) for node in fabric.nodes.values() for c in node.cables}
    spoken = {node.guid for node in fabric.nodes.values() if node.cables}
    for guid, port, peer, far in sorted(told):
        if peer in spoken and (peer, far, guid, port) not in told:
            fabric.complain(f"{guid} port {port} says that it leads to {peer} port {far}, which says otherwise")


def _guid(text: str) -> str:
    return text.lower().rjust(16, "0")[-16:]


# -- names, tiers and rails ------------------------------------------------------------------------------------------

_NAMELESS = re.compile(r"^(MT\d+|ConnectX|Mellanox|Quantum|SwitchX|SwitchIB|localhost\b|.*Mellanox Technologies)", re.I)
_MANAGED = re.compile(r"^MF0;(?P<name>[^:]+):(?P<model>[^/]+)(?:/(?P<chip>\S+))?$")


def host_and_device(description: str) -> tuple[str, str] | None:
    """`a08-p1-dgx-04-c01 mlx5_5` -> (host, device); None where the description names no host."""
    parts = description.split()
    if len(parts) != 2 or _NAMELESS.match(description):
        return None
    return parts[0], parts[1]


def switch_name(description: str) -> str:
    """The name that its administrator gave a managed switch, "" where there is none."""
    match = _MANAGED.match(description)
    if match is not None:
        return match["name"]
    return "" if not description or _NAMELESS.match(description) or " " in description else description


def tiers(fabric: Fabric) -> dict[str, str]:
    """Switch GUID -> leaf (hosts hang on it), spine (leaves do), core (spines do); none where no host is reached."""
    beneath: dict[str, set[str]] = {}
    level: dict[str, int] = {}
    for (a, _), (b, _) in fabric.links():
        beneath.setdefault(a, set()).add(b)
        beneath.setdefault(b, set()).add(a)
    frontier = [n.guid for n in fabric.of(NodeKind.ADAPTER) if not n.is_aggregator]
    switches = {n.guid for n in fabric.of(NodeKind.SWITCH)}
    depth = 0
    while frontier:
        depth += 1
        above = {far for near in frontier for far in beneath.get(near, ())}
        frontier = sorted(above & switches - level.keys())
        level.update(dict.fromkeys(frontier, depth))
    return {guid: ("leaf", "spine", "core")[min(at, 3) - 1] for guid, at in level.items()}


def rails(fabric: Fabric) -> dict[str, int]:
    """Leaf GUID -> rail. On a rail-optimised fabric a leaf has the same adapter of every host (`HCA-6`); the adapters that
    most ports of some leaf name, in order of their numbers, are the rails. Hosts of another naming (`mlx5_5`) are counted
    among themselves. A leaf without a majority, and all of a fabric whose leaves have all the adapters, have no rail."""
    leading: dict[str, tuple[str, int]] = {}
    for guid, tier in tiers(fabric).items():
        named = [
            named[1]
            for cable in fabric.nodes[guid].cables
            if (peer := fabric.nodes[cable.peer]).kind is NodeKind.ADAPTER and not peer.is_aggregator
            and (named := host_and_device(peer.description)) is not None
        ]  # fmt: skip
        device, count = next(iter(Counter(named).most_common(1)), ("", 0))
        match = _TRAILING_NUMBER.match(device)
        if tier == "leaf" and match is not None and count * 2 > len(named):
            leading[guid] = (match[1], int(match[2]))
    ranks: dict[tuple[str, int], int] = {}
    for style in {style for style, _ in leading.values()}:
        numbers = sorted({number for each, number in leading.values() if each == style})
        ranks.update({(style, number): rank for rank, number in enumerate(numbers)})
    return {guid: ranks[key] for guid, key in leading.items()}
