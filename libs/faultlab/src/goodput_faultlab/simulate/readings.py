"""Samples of the sources that measure (NVML, ethtool, devlink, RDMA, the host's own tables, switches), under the names that
the collector gives them (docs/collector/sources.md).

GPUs go by their PCI address and NICs by RDMA device, as these sources name them. What a log line says is in `lines`,
`fault_lines`.
"""

from __future__ import annotations

from datetime import datetime

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import EventName, Gauge, Severity
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_topology.graph import Fabric

THROTTLE_SEVERITY = {
    "hw_power_brake": Severity.ERROR,
    "hw_thermal_slowdown": Severity.ERROR,
    "hw_slowdown": Severity.ERROR,
    "sw_thermal_slowdown": Severity.WARNING,
}


def gauge(component: ComponentId, name: str, value: float, **attrs: str) -> MakeSample:
    def make(at: datetime) -> Gauge:
        return Gauge(component=component, name=name, observed_at=at, value=value, attrs=attrs)

    return make


# ------------------------------------------------------------------------------------------------------------ GPUs


def gpu_by_pci(fabric: Fabric, gpu: ComponentId) -> ComponentId:
    return ids.gpu_id(ids.host_of(gpu) or "", lines.pci_of(fabric, gpu))


def _gpu_attrs(fabric: Fabric, gpu: ComponentId) -> dict[str, str]:
    return {
        "index": gpu.rpartition("/")[2],
        "pci": lines.pci_of(fabric, gpu),
        "uuid": fabric.attr(gpu, "uuid"),
        "model": f"NVIDIA {fabric.attr(gpu, 'chip')}",
    }


def throttled(fabric: Fabric, gpu: ComponentId, reason: str, begins: bool = True) -> MakeSample:
    """`reason`: hw_power_brake, hw_thermal_slowdown, sw_thermal_slowdown. At its power cap a GPU is not *throttled*."""
    severity = THROTTLE_SEVERITY[reason] if begins else Severity.INFO
    words = f"clocks held down by {reason}" if begins else f"clocks no longer held down by {reason}"
    attrs = _gpu_attrs(fabric, gpu) | {"reason": reason, "state": "start" if begins else "end", "reasons": reason}
    return lines.event(gpu_by_pci(fabric, gpu), EventName.THROTTLED, severity, words, attrs)


def clocks_held_down(fabric: Fabric, gpu: ComponentId, by: str, reasons: str = "") -> MakeSample:
    return lines.state(gpu_by_pci(fabric, gpu), "clocks_held_down_by", by or "nothing", reasons=reasons or by)


def gpu_presence(fabric: Fabric, gpu: ComponentId, value: str, why: str = "") -> MakeSample:
    """`present`, `lost`, `reset_required`, `unreadable`, `unseen`."""
    return lines.state(gpu_by_pci(fabric, gpu), "gpu", value, **(_gpu_attrs(fabric, gpu) | ({"why": why} if why else {})))


def nvml_lost(fabric: Fabric, gpu: ComponentId) -> MakeSample:
    attrs = _gpu_attrs(fabric, gpu) | {"what": "NVML lost", "by": "nvml", "code": "15"}
    line = f"{lines.pci_of(fabric, gpu)}: NVML lost"
    return lines.event(gpu_by_pci(fabric, gpu), EventName.GPU_LOST, Severity.FATAL, line, attrs)


def row_remap(fabric: Fabric, gpu: ComponentId, value: str, uncorrectable: int) -> MakeSample:
    """`ok`, `pending` (a reset is wanted), `failed` (the board is to be replaced)."""
    pending = str(int(value == "pending"))
    return lines.state(
        gpu_by_pci(fabric, gpu), "row_remap", value, correctable="0", uncorrectable=str(uncorrectable), pending=pending
    )


def wants(fabric: Fabric, gpu: ComponentId, action: str) -> MakeSample:
    """`none`, `gpu_reset`, `node_reboot` …: what the driver wants done."""
    return lines.state(gpu_by_pci(fabric, gpu), "recovery_action", action)


def pcie_link(component: ComponentId, gen: int, width: int, gen_max: int = 5, width_max: int = 16) -> MakeSample:
    """Of a GPU by its PCI address, of an adapter by the topology's own id (that one is told by discovery)."""
    return lines.state(
        component, "pcie_link", f"gen{gen} x{width}",
        gen=str(gen), width=str(width), gen_max=str(gen_max), width_max=str(width_max),
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ NICs


def slow_port(fabric: Fabric, nic: ComponentId, gbps: int, best_gbps: int = 400) -> MakeSample:
    """An RDMA port that is up at less than it could: fewer lanes, or slower ones."""
    device = fabric.attr(nic, "rdma")
    words = {400: "4X NDR", 200: "2X NDR", 100: "1X NDR"}.get(gbps, "4X EDR")
    attrs = {"device": device, "phys_state": "LinkUp", "rate": f"{gbps} Gb/sec ({words})", "link_layer": "Ethernet"}
    attrs |= {"pci": lines.pci_of(fabric, nic), "netdev": fabric.attr(nic, "netdev")}
    attrs |= {"degraded": f"{gbps} of {best_gbps} Gb/sec"} if gbps < best_gbps else {}
    return lines.state(lines.rdma_port(fabric, nic), "port_state", "ACTIVE", **attrs)


def link_settings(fabric: Fabric, nic: ComponentId, gbps: int, lanes: int) -> MakeSample:
    return lines.state(
        lines.rdma_port(fabric, nic), "link", "up", netdev=fabric.attr(nic, "netdev"),
        speed_mbps=str(gbps * 1000), duplex="full", lanes=str(lanes), autoneg="on", fec="rs",
    )  # fmt: skip


def health_reporter(
    fabric: Fabric, nic: ComponentId, reporter: str, state: str, errors: int
) -> tuple[MakeSample, MakeSample]:
    """devlink's reporter as event and as state. `fw_fatal` in error is the adapter's firmware that has died."""
    pci = fabric.attr(nic, "pci")
    component = lines.rdma_port(fabric, nic)
    attrs = {"errors": str(errors), "recoveries": "0", "pci": lines.pci_of(fabric, nic)}
    severity = Severity.WARNING if state == "healthy" else Severity.FATAL if "fatal" in reporter else Severity.ERROR
    line = f"pci/{pci}: health reporter {reporter} is {state} ({errors} errors, 0 recoveries)"
    told = attrs | {"reporter": reporter, "state": state}
    return (
        lines.event(component, EventName.DEVICE_HEALTH, severity, line, told),
        lines.state(component, f"health:{reporter}", state, **attrs),
    )


# ------------------------------------------------------------------------------------------------------------ hosts


def stalled_mount(host: str, mount: str, server: str, for_s: float, stalled: bool = True) -> tuple[MakeSample, MakeSample]:
    """A network mount whose requests go unanswered, as event and as state."""
    attrs = {"mount": mount, "server": server, "fstype": "nfs4"}
    words = f"{mount} of {server}: requests sent, none answered" if stalled else f"{mount} answers again"
    return _stalled(host, f"mount:{mount}", words, attrs, for_s, stalled)


def stalled_disk(host: str, disk: str, in_flight: int, for_s: float, stalled: bool = True) -> tuple[MakeSample, MakeSample]:
    attrs = {"device": disk, "in_flight": str(in_flight)}
    words = f"disk {disk}: {in_flight} requests in flight" if stalled else f"{disk} answers again"
    return _stalled(host, f"disk:{disk}", words, attrs, for_s, stalled)


def _stalled(
    host: str, name: str, words: str, attrs: dict[str, str], for_s: float, stalled: bool
) -> tuple[MakeSample, MakeSample]:
    component = ids.host_id(host)
    told = attrs | {"what": "no completion", "state": "stalled" if stalled else "restored", "for_s": f"{for_s:.0f}"}
    severity = Severity.ERROR if stalled else Severity.INFO
    line = f"{words} for {for_s:.0f} s" if stalled else words
    return (
        lines.event(component, EventName.STORAGE_STALL, severity, line, told),
        lines.state(component, name, "stalled" if stalled else "ok", **attrs),
    )


# ------------------------------------------------------------------------------------------------------------ switches


def switch_port(port: ComponentId, up: bool, *, admin: str = "up") -> tuple[MakeSample, MakeSample]:
    """A switch's port that changed, as event and as state. The switch itself tells it, under its own name."""
    interface, oper = port.rpartition("/")[2], "up" if up else "down"
    line = f"{interface}: link {oper} (oper {oper}, admin {admin})"
    attrs = {"by": "on change", "operstate": oper, "admin": admin}
    name, severity = (EventName.LINK_UP, Severity.INFO) if up else (EventName.LINK_DOWN, Severity.ERROR)
    return (
        lines.event(port, name, severity, line, attrs),
        lines.state(port, "operstate", oper, by="switch", admin=admin),
    )


def switch_name(port: ComponentId) -> str:
    """The host name under which a port's telemetry comes."""
    return port.partition(":")[2].partition("/")[0]
