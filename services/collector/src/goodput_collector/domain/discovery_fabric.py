"""An InfiniBand fabric as `ibnetdiscover` shows it, as records of the topology.

Names are what administrators gave; a node without one, or one that shares its name with another, is named by its GUID
(`switch:ib-2c5eab0300b87b40`, `nic:ib-e09d7303007a4bd8/hca/1`). Such an adapter belongs to no host here: the host itself
says that it does, and the two are joined by the GUID. The reduction engines inside switches are left out: they are no
adapters of anybody.
"""

from __future__ import annotations

from collections import Counter

from goodput_collector.domain.discovery import Records
from goodput_collector.domain.ibnetdiscover import Fabric, Node, NodeKind, host_and_device, rails, switch_name, tiers
from goodput_collector.domain.lldp import clean
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation


def draw(fabric: Fabric) -> Records:
    """Records that fit together: each port has one cable (the first told), each port its switch."""
    switches = _switch_names(fabric)
    adapters = _adapter_names(fabric)
    tier, rail = tiers(fabric), rails(fabric)
    components: dict[ComponentId, ComponentRecord] = {}
    edges: list[EdgeRecord] = []

    def put(component: ComponentId, kind: ComponentKind, attrs: dict[str, str]) -> bool:
        if component in components:
            return False
        kept = {name: value for name, value in attrs.items() if value}
        components[component] = ComponentRecord(id=component, kind=kind, attrs=kept)
        return True

    for guid, name in switches.items():
        number = rail.get(guid)
        attrs = {"guid": f"0x{guid}", "tier": tier.get(guid, ""), "rail": "" if number is None else str(number)}
        put(ids.switch_id(name), ComponentKind.SWITCH, attrs)

    def end(guid: str, port: int, peer: str) -> ComponentId | None:
        node = fabric.nodes[guid]
        if guid in switches:
            component = ids.port_id(switches[guid], str(port))
            if put(component, ComponentKind.PORT, {}):
                edges.append(EdgeRecord(a=component, b=ids.switch_id(switches[guid]), relation=Relation.PART_OF))
            return component
        if guid not in adapters:
            return None
        host, device = adapters[guid]
        component = ids.nic_id(host or f"ib-{guid}", device, port)
        number = rail.get(peer)
        attrs = {
            "guid": f"0x{node.port_guids.get(port, guid)}",
            "link_layer": "InfiniBand",
            "rail": "" if number is None else str(number),
        }
        if put(component, ComponentKind.NIC, attrs) and host:
            put(ids.host_id(host), ComponentKind.HOST, {})
            edges.append(EdgeRecord(a=component, b=ids.host_id(host), relation=Relation.PART_OF))
        return component

    taken: set[ComponentId] = set()
    for ((a, a_port), (b, b_port)), cable in sorted(fabric.links().items()):
        one, other = end(a, a_port, b), end(b, b_port, a)
        if one is None or other is None or one == other or not taken.isdisjoint((one, other)):
            continue
        taken |= {one, other}
        attrs = {"speed": cable.speed} if cable.speed else {}
        edges.append(EdgeRecord(a=one, b=other, relation=Relation.CABLED, attrs=attrs))
    return tuple(components.values()), tuple(edges)


def _switch_names(fabric: Fabric) -> dict[str, str]:
    """GUID -> name; routers are switches to us."""
    nodes = [node for node in fabric.nodes.values() if node.kind is not NodeKind.ADAPTER]
    names = {node.guid: clean(switch_name(node.description)).replace("/", "_") for node in nodes}
    times = Counter(names.values())
    return {guid: name if name and times[name] == 1 else f"ib-{guid}" for guid, name in names.items()}


def _adapter_names(fabric: Fabric) -> dict[str, tuple[str, str]]:
    """GUID -> (host or "", device). Two adapters under one name have none."""
    nodes: list[Node] = [node for node in fabric.of(NodeKind.ADAPTER) if not node.is_aggregator]
    named = {node.guid: host_and_device(node.description) for node in nodes}
    clean_ = {
        guid: (clean(pair[0]).replace("/", "_"), clean(pair[1]).replace("/", "_"))
        for guid, pair in named.items()
        if pair is not None
    }
    times = Counter(clean_.values())
    return {
        node.guid: clean_[node.guid]
        if node.guid in clean_ and all(clean_[node.guid]) and times[clean_[node.guid]] == 1
        else ("", "hca")
        for node in nodes
    }
