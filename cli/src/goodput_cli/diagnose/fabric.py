"""The fabric as far as pastes tell it, where nobody gives a drawing of it.

    ibnetdiscover               switches, adapters and every cable of an InfiniBand fabric
    lldpctl                     the switch port at the other end of an interface
    nvidia-smi -q, topo -m      a host's GPUs, what NVLink joins, which adapter is whose
    ibstat, ibstatus, rdma link a host's adapters, with GUIDs (which join them with the scan) and interfaces

They are laid together by the same rules as snapshots of live collectors. What no paste tells is left out, never made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from goodput_cli.diagnose.known import Known
from goodput_cli.diagnose.placed import Placed
from goodput_collector.domain.discovery import Records, far_end, ordered
from goodput_collector.domain.lldp import Neighbour
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.graph import Fabric

NAME = "files"
_INTERFACE = re.compile(r"^[A-Za-z][\w.@-]{0,31}$")
_AT = datetime(1970, 1, 1, tzinfo=UTC)


def infer(placed: Iterable[Placed], known: Known, unknown_host: str, notes: list[str]) -> Fabric:
    """Never raises; an empty fabric where nothing is told of any."""
    by_host: dict[str, list[Placed]] = {}
    for each in placed:
        by_host.setdefault(each.host, []).append(each)
    drawn = [
        (f"discovery-{host}", _host(host, reports, known))
        for host, reports in sorted(by_host.items())
        if host != unknown_host
    ]
    drawn += [(f"ibnet-{number}", records) for number, records in enumerate(known.scans, 1)]
    snapshots = [
        TopologySnapshot(fabric=NAME, source=source, version=1, at=_AT, components=components, edges=edges)
        for source, (components, edges) in drawn
        if components
    ]
    try:
        return Fabric.from_snapshots(NAME, snapshots) if snapshots else Fabric.empty(NAME)
    except ValueError as error:  # InvalidFabric, or a name that makes no id
        notes.append(f"what the files say of the fabric contradicts itself, and is not used: {str(error).splitlines()[0]}")
        return Fabric.empty(NAME)


class _Host:
    def __init__(self, host: str) -> None:
        self.id = ids.host_id(host)
        self.components: dict[ComponentId, ComponentRecord] = {}
        self.edges: list[EdgeRecord] = []

    def put(self, component: ComponentId, attrs: Mapping[str, str], *wholes: ComponentId) -> None:
        if component not in self.components:
            kept = {name: value for name, value in attrs.items() if value}
            self.components[component] = ComponentRecord(id=component, kind=ids.kind_of(component), attrs=kept)
            self.edges += [EdgeRecord(a=component, b=whole, relation=Relation.PART_OF) for whole in wholes]


def _host(host: str, reports: list[Placed], known: Known) -> Records:
    drawing = _Host(host)
    drawing.put(drawing.id, {})
    gpus = _gpus(host, reports, known, drawing)
    _nics(host, reports, drawing)
    for each in reports:
        if (topo := each.report.content.topo) is not None:
            joined = {gpu for gpu, row in topo.nvlinks.items() if row}
            if joined:
                domain = ids.nvdomain_id(host)
                drawing.put(domain, {})
                _part_of(drawing, [gpus[gpu] for gpu in sorted(joined) if gpu in gpus], domain)
            for gpu, near in sorted(topo.near.items()):
                for device, nearness in near:
                    _rail(drawing, host, gpus.get(gpu), device, nearness)
    _cables(host, reports, known, drawing)
    return ordered(drawing.components.values(), drawing.edges)


def _gpus(host: str, reports: list[Placed], known: Known, drawing: _Host) -> dict[int, ComponentId]:
    names = known.of(host)
    indexes = set(names.pci_of_index)
    for each in reports:
        topo = each.report.content.topo
        indexes.update(topo.gpus if topo is not None else (), (gpu.index for gpu in each.report.content.listed))
    found = {}
    for index in sorted(indexes):
        pci = names.pci_of_index.get(index, "")
        attrs = {"pci": pci, "uuid": names.uuid_of_pci.get(pci, ""), "chip": names.model_of_pci.get(pci, "")}
        found[index] = ids.gpu_id(host, index)
        drawing.put(found[index], attrs, drawing.id)
    return found


def _nics(host: str, reports: list[Placed], drawing: _Host) -> None:
    """What several tools say of one port is put together, the first word standing."""
    said: dict[ComponentId, dict[str, str]] = {}
    for each in reports:
        for port in each.report.content.ports:
            attrs = {
                "rdma": port.device,
                "netdev": port.netdev,
                "link_layer": port.link_layer,
                "guid": f"0x{port.guid}" if port.guid else "",
            }
            component = ids.nic_id(host, port.device, port.port)
            told = {name: value for name, value in attrs.items() if value}
            said[component] = told | said.get(component, {})
    for component, attrs in sorted(said.items()):
        drawing.put(component, attrs, drawing.id)


def _part_of(drawing: _Host, parts: list[ComponentId], whole: ComponentId) -> None:
    for part in parts:
        edge = EdgeRecord(a=part, b=whole, relation=Relation.PART_OF)
        if edge not in drawing.edges:
            drawing.edges.append(edge)


def _rail(drawing: _Host, host: str, gpu: ComponentId | None, device: str, nearness: str) -> None:
    if gpu is None:
        return
    nic = ids.nic_id(host, device)
    drawing.put(nic, {"rdma": device}, drawing.id)
    edge = EdgeRecord(a=gpu, b=nic, relation=Relation.RAIL, attrs={"by": nearness.lower()})
    if edge not in drawing.edges:
        drawing.edges.append(edge)


def _cables(host: str, reports: list[Placed], known: Known, drawing: _Host) -> None:
    """An interface with one neighbour has a cable; where several speak none of them is *the* other end."""
    heard: dict[str, list[Neighbour]] = {}
    for each in reports:
        heard |= each.report.content.neighbours
    taken: set[ComponentId] = set()
    for netdev, neighbours in sorted(heard.items()):
        if len(neighbours) != 1 or _INTERFACE.match(netdev) is None:
            continue
        nic = known.netdev(host, netdev)
        drawing.put(nic, {"netdev": netdev}, drawing.id)
        for edge in far_end(nic, neighbours[0], drawing.put):
            if edge.a != edge.b and taken.isdisjoint((edge.a, edge.b)):
                taken |= {edge.a, edge.b}
                drawing.edges.append(edge)
