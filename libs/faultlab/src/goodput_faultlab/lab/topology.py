"""What the lab tells the correlator about its own shape, in the words that a real fabric would use."""

from __future__ import annotations

from datetime import datetime

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_faultlab.lab.plan import MANAGEMENT_DEVICE, Host, LabPlan, leaf, link, nic, port, rail_device

SOURCE = "lab"


def snapshot(plan: LabPlan, at: datetime, version: int = 1) -> TopologySnapshot:
    components: list[ComponentRecord] = []
    edges: list[EdgeRecord] = []
    for rail in range(plan.rails):
        switch = ids.switch_id(leaf(rail))
        components.append(ComponentRecord(id=switch, kind=ComponentKind.SWITCH, attrs={"tier": "leaf", "rail": str(rail)}))
        for host in plan.all_hosts:
            end = port(host.name, rail)
            components.append(ComponentRecord(id=end, kind=ComponentKind.PORT, attrs={"netdev": host.name}))
            edges.append(EdgeRecord(a=end, b=switch, relation=Relation.PART_OF))
    for host in plan.all_hosts:
        _host(plan, host, components, edges)
    return TopologySnapshot(
        fabric=plan.fabric, source=SOURCE, version=version, at=at, components=tuple(components), edges=tuple(edges)
    )


def _host(plan: LabPlan, host: Host, components: list[ComponentRecord], edges: list[EdgeRecord]) -> None:
    here = ids.host_id(host.name)
    attrs = {"spare": "true"} if host.spare else {}
    components.append(ComponentRecord(id=here, kind=ComponentKind.HOST, attrs=attrs))
    for rail in range(plan.rails):
        end = nic(host.name, rail)
        attrs = {
            "netdev": rail_device(rail),
            "rail": str(rail),
            "carries_traffic": "true",
            "address": host.rail_address(rail),
        }
        components.append(ComponentRecord(id=end, kind=ComponentKind.NIC, attrs=attrs))
        edges.append(EdgeRecord(a=end, b=here, relation=Relation.PART_OF))
        cable = {"id": link(host.name, rail)}
        edges.append(EdgeRecord(a=end, b=port(host.name, rail), relation=Relation.CABLED, attrs=cable))
    management = ids.nic_id(host.name, MANAGEMENT_DEVICE)
    attrs = {"netdev": MANAGEMENT_DEVICE, "carries_traffic": "false", "address": host.management_address}
    components.append(ComponentRecord(id=management, kind=ComponentKind.NIC, attrs=attrs))
    edges.append(EdgeRecord(a=management, b=here, relation=Relation.PART_OF))
    for gpu in range(plan.ranks_per_host):
        device = ids.gpu_id(host.name, gpu)
        components.append(ComponentRecord(id=device, kind=ComponentKind.GPU, attrs={"pci": host.gpu_pci(gpu)}))
        edges.append(EdgeRecord(a=device, b=here, relation=Relation.PART_OF))
        # gloo spreads the collectives of every rank over all rails
        edges.extend(EdgeRecord(a=device, b=nic(host.name, rail), relation=Relation.RAIL) for rail in range(plan.rails))
