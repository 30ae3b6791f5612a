"""Who is who: the names by which different tools call the same thing, gathered from all reports before any fact is told.

perfquery knows a port by its LID, ethtool a NIC by its interface, `nvidia-smi nvlink` a GPU by its index: the component
behind each is known only if some other paste of the same host (or the fabric's scan) says both names. What cannot be
joined keeps a name that says so, and `missing` says what would join it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from goodput_cli.diagnose.placed import Placed
from goodput_collector.domain import dcgm, discovery_fabric, ib_lids
from goodput_collector.domain.discovery import Records
from goodput_collector.domain.ib_counters_text import PortCounts
from goodput_collector.domain.ibnetdiscover import host_and_device, switch_name
from goodput_collector.domain.lldp import clean
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.telemetry import Source


@dataclass(slots=True)
class HostNames:
    """One host's: GPUs by index and by UUID -> PCI address; interfaces -> RDMA device and port."""

    pci_of_index: dict[int, str] = field(default_factory=dict)
    pci_of_uuid: dict[str, str] = field(default_factory=dict)
    uuid_of_pci: dict[str, str] = field(default_factory=dict)
    model_of_pci: dict[str, str] = field(default_factory=dict)
    port_of_netdev: dict[str, tuple[str, int]] = field(default_factory=dict)


@dataclass(slots=True)
class Known:
    hosts: dict[str, HostNames] = field(default_factory=dict)
    guids: dict[str, ComponentId] = field(default_factory=dict)  # of adapter ports and of switches
    lids: dict[str, ComponentId] = field(default_factory=dict)
    scans: list[Records] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)

    def of(self, host: str) -> HostNames:
        return self.hosts.setdefault(host, HostNames())

    # -- components ---------------------------------------------------------------------------------------------------

    def gpu(
        self, host: str, *, index: int | None = None, uuid: str = "", pci: str = ""
    ) -> tuple[ComponentId, dict[str, str]]:
        """The GPU by its PCI address where that can be known, else by its index; with what is known of it."""
        names = self.of(host)
        pci = pci or names.pci_of_uuid.get(uuid, "") or names.pci_of_index.get(-1 if index is None else index, "")
        if index is None:
            index = next((at for at, address in names.pci_of_index.items() if address == pci), None)
        told = {
            "index": "" if index is None else str(index),
            "uuid": uuid or names.uuid_of_pci.get(pci, ""),
            "pci": pci,
            "model": names.model_of_pci.get(pci, ""),
        }
        component = ids.gpu_id(host, pci or ("unknown" if index is None else index))
        return component, {name: value for name, value in told.items() if value}

    def netdev(self, host: str, name: str) -> ComponentId:
        """The NIC behind an interface: its RDMA device where some paste names both."""
        if name in self.of(host).port_of_netdev:
            return ids.nic_id(host, *self.of(host).port_of_netdev[name])
        return ids.nic_id(host, name)

    def ib_port(self, counts: PortCounts) -> tuple[ComponentId, str, Source]:
        """(component, host, source) of a port that an InfiniBand tool names. Of a LID that nobody explains there is only the
        number."""
        component = self._ib_component(counts)
        if component.startswith("nic:"):
            return component, ids.host_of(component) or "", Source.RDMA
        switch = component.partition(":")[2].partition("/")[0]
        return component, switch, Source.SWITCH

    def _ib_component(self, counts: PortCounts) -> ComponentId:
        known = self.lids.get(counts.lid) if counts.lid else self.guids.get(counts.guid)
        if known is not None:
            name = known.partition(":")[2]
            return ids.port_id(name, str(counts.port)) if known.startswith("switch:") else known
        if counts.lid:
            self.missing.add(f"LID {counts.lid}: give `ibnetdiscover`, or `ibstat` of its host, to say whose port it is")
            return ids.port_id(f"lid-{counts.lid}", str(counts.port))
        if counts.guid and (named := host_and_device(counts.description)) is not None:
            host, device = (clean(part).replace("/", "_") for part in named)
            if host and device:
                return ids.nic_id(host, device, counts.port)
        name = clean(switch_name(counts.description)).replace("/", "_")
        return ids.port_id(name or f"ib-{counts.guid or 'unknown'}", str(counts.port))


def gather(placed: Iterable[Placed]) -> Known:
    """From all reports of all files. A name that two reports explain differently is explained by the first."""
    known = Known()
    reports = list(placed)
    for each in reports:
        _gpus(each, known.of(each.host))
        for port in each.report.content.ports:
            component = ids.nic_id(each.host, port.device, port.port)
            if port.netdev:
                known.of(each.host).port_of_netdev.setdefault(port.netdev, (port.device, port.port))
            if port.guid:
                known.guids.setdefault(port.guid, component)
            if port.lid:
                known.lids.setdefault(port.lid, component)
    for each in reports:
        if each.report.content.fabric is not None:
            _scan(each, known)
    return known


def _gpus(each: Placed, names: HostNames) -> None:
    content = each.report.content
    rows = [(gpu.index, gpu.pci, "", gpu.model) for gpu in content.table]
    log = content.query
    if log is not None:
        whole = log.attached == len(log.gpus)  # of one GPU alone (`-i 3`) the place in the text is no index
        rows += [(gpu.index if whole else -1, gpu.pci, gpu.uuid, gpu.model) for gpu in log.gpus]
    for scraped in dcgm.by_gpu(content.metrics, each.host).values():
        attrs = scraped.gpu.attrs
        number = attrs.get("index", "")
        if "pci" in attrs:
            rows.append(
                (int(number) if number.isdigit() else -1, attrs["pci"], attrs.get("uuid", ""), attrs.get("model", ""))
            )
    for index, pci, uuid, model in rows:
        if index >= 0:
            names.pci_of_index.setdefault(index, pci)
        if uuid:
            names.pci_of_uuid.setdefault(uuid, pci)
            names.uuid_of_pci.setdefault(pci, uuid)
        if model:
            names.model_of_pci.setdefault(pci, model)


def _scan(each: Placed, known: Known) -> None:
    content = each.report.content
    assert content.fabric is not None
    records = discovery_fabric.draw(content.fabric)
    known.scans.append(records)
    for record in records[0]:
        guid = record.attrs.get("guid", "").removeprefix("0x")
        if guid and record.kind in (ComponentKind.SWITCH, ComponentKind.NIC):
            known.guids.setdefault(guid, record.id)
    for lid, guid in ib_lids.lids(content.fabric_text).items():
        if guid in known.guids:
            known.lids.setdefault(lid, known.guids[guid])
