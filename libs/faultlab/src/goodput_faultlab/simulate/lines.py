"""Samples as the collector reads them from real lines: each helper writes the line and the event that the parser makes
of it.

GPUs are named by PCI address and NICs by network interface, as in the logs: resolving those names is the correlator's
task and part of what a simulation exercises. The contract tests feed every line written here to the collector's parsers
and compare.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Counter, CounterDoubt, Event, EventName, Severity, State
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.layout import Place
from goodput_topology.graph import Fabric

ANY_TIME = datetime(2026, 1, 1, tzinfo=UTC)  # to ask a maker of samples what it makes


class XidMeaning(NamedTuple):
    """What the vendor's catalogue says of a number."""

    mnemonic: str
    what: str
    action: str
    impact: str
    severity: Severity


_ROBUST = "ROBUST_CHANNEL_"
XIDS = {
    13: XidMeaning(
        f"{_ROBUST}GR_EXCEPTION / {_ROBUST}GR_ERROR_SW_NOTIFY",
        "Graphics Engine Exception",
        "RESTART_APP",
        "app",
        Severity.WARNING,
    ),
    31: XidMeaning(f"{_ROBUST}FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault", "RESTART_APP", "app", Severity.WARNING),
    43: XidMeaning(f"{_ROBUST}RESETCHANNEL_VERIF_ERROR", "GPU stopped processing", "IGNORE", "ignore", Severity.INFO),
    45: XidMeaning(
        f"{_ROBUST}PREEMPTIVE_REMOVAL",
        "Preemptive cleanup, due to previous errors -- Most likely to see when ",
        "WORKFLOW_XID_45",
        "victim",
        Severity.WARNING,
    ),
    48: XidMeaning(f"{_ROBUST}GPU_ECC_DBE", "Double Bit ECC Error", "WORKFLOW_XID_48", "workflow", Severity.ERROR),
    63: XidMeaning("INFOROM_DRAM_RETIREMENT_EVENT", "GPU memory remapping event", "IGNORE", "ignore", Severity.INFO),
    64: XidMeaning("INFOROM_DRAM_RETIREMENT_FAILURE", "GPU memory remapping failure", "RESET_GPU", "reset", Severity.FATAL),
    74: XidMeaning("NVLINK_ERROR", "NVLINK Error", "WORKFLOW_NVLINK_ERR", "workflow", Severity.ERROR),
    79: XidMeaning(
        f"{_ROBUST}GPU_HAS_FALLEN_OFF_THE_BUS", "GPU has fallen off the bus", "RESTART_BM", "reboot", Severity.FATAL
    ),
    94: XidMeaning(f"{_ROBUST}CONTAINED_ERROR", "Contained memory error", "RESTART_APP", "app", Severity.WARNING),
    95: XidMeaning(f"{_ROBUST}UNCONTAINED_ERROR", "Uncontained memory error", "RESET_GPU", "reset", Severity.FATAL),
    119: XidMeaning("GSP_RPC_TIMEOUT", "GSP RPC Timeout", "RESET_GPU", "reset", Severity.FATAL),
    120: XidMeaning("GSP_ERROR", "GSP Error", "RESET_GPU", "reset", Severity.FATAL),
    145: XidMeaning("NVLINK_RLW_ERROR", "NVLINK: RLW Error", "IGNORE", "nonfatal", Severity.WARNING),
    149: XidMeaning("NVLINK_NETIR_ERROR", "NVLINK: NETIR Error", "RESET_GPU", "reset", Severity.FATAL),
    154: XidMeaning("GPU_RECOVERY_ACTION_CHANGED", "GPU Recovery Action Changed", "XID_154", "reboot", Severity.FATAL),
}
DETAILS = {
    145: {
        "unit": "RLW_RXPIPE", "fatal": "false", "link": "13",
        "words": "0x0409a0c2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000",
        "investigate": "CONTACT_SUPPORT", "catalogue_severity": "non_fatal",
    },
    149: {
        "unit": "NETIR_LINK_EVT", "fatal": "true", "link": "8",
        "words": "0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000",
        "down_reason": "4", "side": "local", "investigate": "INVESTIGATE_LINK_SI", "catalogue_severity": "link_fatal",
    },
}  # fmt: skip
TEXTS = {
    79: "GPU has fallen off the bus.",
    145: "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000000 0x00000000 0x00000000 0x00000000)",
    149: "NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
}


def event(
    component: ComponentId, name: EventName, severity: Severity, excerpt: str, attrs: dict[str, str], count: int = 1
) -> MakeSample:
    def make(at: datetime) -> Event:
        return Event(
            component=component, name=name, observed_at=at, severity=severity, excerpt=excerpt, attrs=attrs, count=count
        )

    return make


def boot(host: str) -> MakeSample:
    line = "Linux version 6.8.0-1024 (gcc 13.3.0) #26-Ubuntu SMP"
    return event(ids.host_id(host), EventName.BOOT, Severity.INFO, line, {})


def counter(
    component: ComponentId, name: str, delta: int, value: int, interval_s: float, saturated: bool = False
) -> MakeSample:
    doubt = CounterDoubt.SATURATED if saturated else CounterDoubt.NONE

    def make(at: datetime) -> Counter:
        return Counter(
            component=component, name=name, observed_at=at, delta=delta, interval_s=interval_s, value=value, doubt=doubt
        )

    return make


def state(component: ComponentId, name: str, value: str, **attrs: str) -> MakeSample:
    return lambda at: State(component=component, name=name, observed_at=at, value=value, attrs=attrs)


def pci_of(fabric: Fabric, component: ComponentId) -> str:
    """domain:bus:device, as the collector normalises it."""
    return ids.normal_pci(fabric.attr(component, "pci"))


def xid(
    fabric: Fabric, gpu: ComponentId, number: int, text: str = "", *, pid: int | None = None, **details: str
) -> MakeSample:
    """One Xid line. `details` are what the parser takes from the text (link, channel, cause, gpc …)."""
    host, pci, meaning = ids.host_of(gpu) or "", pci_of(fabric, gpu), XIDS[number]
    if number in (145, 149, 154):
        who = ""
    else:
        who = "pid='<unknown>', name=<unknown>, " if pid is None else f"pid={pid}, name=python3, "
    attrs = {"xid": str(number), "pci": pci}
    if pid is not None:
        attrs |= {"pid": str(pid), "process": "python3"}
    attrs |= {"mnemonic": meaning.mnemonic, "what": meaning.what, "action": meaning.action}
    attrs |= DETAILS.get(number, {}) | details
    attrs.setdefault("impact", meaning.impact)
    severity = Severity.FATAL if attrs["impact"] == "reset" else meaning.severity
    line = f"NVRM: Xid (PCI:{pci}): {number}, {who}{text or TEXTS[number]}"
    return event(ids.gpu_id(host, pci), EventName.XID, severity, line, attrs)


def recovery_action(fabric: Fabric, gpu: ComponentId, code: int) -> MakeSample:
    """Xid 154: what the driver wants done, 1 GPU reset, 2 node reboot."""
    name, words, impact = {
        1: ("gpu_reset", "GPU Reset Required", "reset"),
        2: ("node_reboot", "Node Reboot Required", "reboot"),
    }[code]
    text = f"GPU recovery action changed from 0x0 (None) to 0x{code} ({words})"
    return xid(fabric, gpu, 154, text, recovery_action=name, recovery_action_before="none", impact=impact)


def victim(fabric: Fabric, gpu: ComponentId, pid: int, cause: int | None = None) -> MakeSample:
    """Xid 45: a channel torn down because of something else."""
    text = "Ch 00000008" + (f" caused by previous Xid {cause}" if cause else "")
    details = {"cause": str(cause)} if cause else {}
    return xid(fabric, gpu, 45, text, pid=pid, channel="00000008", **details)


def gpu_lost(fabric: Fabric, gpu: ComponentId) -> MakeSample:
    """The bus is gone and the driver says so without a number."""
    host, pci = ids.host_of(gpu) or "", pci_of(fabric, gpu)
    line = f"NVRM: GPU {pci}.0: RmInitAdapter failed! (0x22:0x40:631)"
    return event(
        ids.gpu_id(host, pci), EventName.GPU_LOST, Severity.FATAL, line, {"pci": pci, "what": "RmInitAdapter failed"}
    )


def kernel_link(fabric: Fabric, nic: ComponentId, up: bool) -> MakeSample:
    """`mlx5_core 0000:18:00.0 rdma0: Link down`, as the driver logs it."""
    host, netdev, pci = ids.host_of(nic) or "", fabric.attr(nic, "netdev"), fabric.attr(nic, "pci")
    name, severity = (EventName.LINK_UP, Severity.INFO) if up else (EventName.LINK_DOWN, Severity.ERROR)
    line = f"mlx5_core {pci} {netdev}: Link {'up' if up else 'down'}"
    attrs = {"by": "kernel", "pci": ids.normal_pci(pci), "driver": "mlx5_core", "netdev": netdev}
    return event(ids.nic_id(host, netdev), name, severity, line, attrs)


def cable(fabric: Fabric, nic: ComponentId, what: str, error: bool) -> MakeSample:
    host, pci = ids.host_of(nic) or "", fabric.attr(nic, "pci")
    number = fabric.attr(nic, "rdma").rpartition("_")[2] or "0"
    line = f"mlx5_core {pci}: Port module event{'[error]' if error else ''}: module {number}, {what}"
    severity = Severity.ERROR if error else Severity.WARNING if "unplugged" in what else Severity.INFO
    attrs = {"pci": ids.normal_pci(pci), "module": number, "what": what, "error": str(error).lower()}
    return event(ids.nic_id(host, ids.normal_pci(pci)), EventName.CABLE, severity, line, attrs)


def netlink_link(fabric: Fabric, nic: ComponentId, up: bool) -> list[MakeSample]:
    """The same change as netlink tells it: the event and the new operational state."""
    component, attrs = _netdev(fabric, nic)
    name, severity = (EventName.LINK_UP, Severity.INFO) if up else (EventName.LINK_DOWN, Severity.ERROR)
    operstate = "up" if up else "down"
    line = f"{attrs['netdev']}: carrier {'gained' if up else 'lost'} (operstate {operstate}, admin up)"
    told = event(component, name, severity, line, attrs | {"by": "netlink", "operstate": operstate, "admin": "up"})
    return [told, operstate_of(fabric, nic, up)]


def operstate_of(fabric: Fabric, nic: ComponentId, up: bool, *, admin_up: bool = True) -> MakeSample:
    component, attrs = _netdev(fabric, nic)
    attrs |= {"admin": "up" if admin_up else "down", "carrier": str(int(up))}
    return state(component, "operstate", "up" if up else "down", **attrs)


def port_state(fabric: Fabric, nic: ComponentId, up: bool, *, disabled: bool = False) -> MakeSample:
    """What sysfs says of an RDMA port."""
    _, attrs = _netdev(fabric, nic)
    phys = "LinkUp" if up else "Disabled" if disabled else "Polling"
    more = {"device": attrs["rdma"], "phys_state": phys, "rate": "400 Gb/sec (4X NDR)", "link_layer": "Ethernet"}
    more |= {name: attrs[name] for name in ("pci", "netdev") if name in attrs}
    return state(rdma_port(fabric, nic), "port_state", "ACTIVE" if up else "DOWN", **more)


def rdma_port(fabric: Fabric, nic: ComponentId) -> ComponentId:
    """How the collector names the port: by its RDMA device where there is one, else by its interface."""
    return ids.nic_id(ids.host_of(nic) or "", fabric.attr(nic, "rdma") or fabric.attr(nic, "netdev"))


def _netdev(fabric: Fabric, nic: ComponentId) -> tuple[ComponentId, dict[str, str]]:
    attrs = {"netdev": fabric.attr(nic, "netdev")}
    if pci := fabric.attr(nic, "pci"):
        attrs["pci"] = ids.normal_pci(pci)
    if rdma := fabric.attr(nic, "rdma"):
        attrs["rdma"] = rdma
    return rdma_port(fabric, nic), attrs


def async_event(fabric: Fabric, nic: ComponentId, place: Place, what: str) -> MakeSample:
    """NCCL heard of its adapter's port from the verbs library."""
    host, device = place.host, fabric.attr(nic, "rdma")
    severity = Severity.ERROR if what == "port error" else Severity.INFO
    line = f"{_nccl(place)}NET/IB : {device}:1 Got async event : {what}"
    attrs = {"event": what.replace(" ", "_"), "device": device} | _teller(place)
    return event(ids.nic_id(host, device), EventName.NCCL_ASYNC_EVENT, severity, line, attrs)


def net_error(fabric: Fabric, near: ComponentId, far: ComponentId, place: Place, *, flushed: bool = False) -> MakeSample:
    """NCCL's completion error at one end of a connection: it names two ends, neither of which need be guilty."""
    device = fabric.attr(near, "rdma") or fabric.attr(near, "netdev")
    status, kind, vendor = ("5", "flushed", "249") if flushed else ("12", "retry_exceeded", "129")
    local, remote = fabric.attr(near, "addr"), fabric.attr(far, "addr")
    line = (
        f"{_nccl(place)}NET/IB: Got completion from peer {remote}<47133> with status={status} opcode=0 len=0 "
        f"vendor err {vendor} (Recv) localGid ::ffff:{local} remoteGids::ffff:{remote} hca {device}"
    )
    attrs = {"status": status, "kind": kind, "peer": remote, "vendor_err": vendor, "opcode": "0"}
    attrs |= {"local_gid": f"::ffff:{local}", "remote_gid": f"::ffff:{remote}", "device": device} | _teller(place)
    severity = Severity.INFO if flushed else Severity.ERROR
    return event(ids.nic_id(place.host, device), EventName.NCCL_NET_ERROR, severity, line, attrs)


def watchdog(job: str, place: Place, seq: int, op: str, timeout_ms: int) -> MakeSample:
    """Torch's watchdog gives up on a collective: every rank says the same."""
    line = (
        f"[rank{place.rank}]:[E ProcessGroupNCCL.cpp:685] [PG ID 0 PG GUID 0(default_pg) Rank {place.rank}] Watchdog "
        f"caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1, NumelOut=1, "
        f"Timeout(ms)={timeout_ms}) ran for {timeout_ms + 64} milliseconds before timing out."
    )
    attrs = {
        "seq": str(seq), "kind": "timeout", "group": "0", "group_desc": "default_pg", "group_rank": str(place.rank),
        "op": op.lower(), "timeout_ms": str(timeout_ms), "ran_ms": str(timeout_ms + 64), "rank": str(place.rank),
    }  # fmt: skip
    return event(ids.rank_id(job, place.rank), EventName.NCCL_WATCHDOG, Severity.ERROR, line, attrs)


def _nccl(place: Place) -> str:
    return f"{place.host}:{place.pid}:{place.pid + 71} [{place.local}] NCCL WARN "


def _teller(place: Place) -> dict[str, str]:
    return {"rank": str(place.rank), "pid": str(place.pid), "gpu": str(place.local)}


def corrected(host: str, number: int) -> MakeSample:
    """A corrected PCIe error of some device: noise on every large machine."""
    port, device = f"0000:{0x15 + number % 8 * 0x10:02x}:01.0", f"0000:{0x17 + number % 8 * 0x10:02x}:00.0"
    line = f"pcieport {port}: AER: Corrected error message received from {device}"
    attrs = {"severity": "corrected", "pci": ids.normal_pci(device), "driver": "pcieport", "port": ids.normal_pci(port)}
    return event(ids.host_id(host), EventName.AER, Severity.INFO, line, attrs)


def uncorrected(fabric: Fabric, gpu: ComponentId) -> MakeSample:
    """The root port above a GPU reports it gone."""
    host, pci = ids.host_of(gpu) or "", pci_of(fabric, gpu)
    port = f"{pci[:5]}{int(pci[5:7], 16) - 1:02x}:01"
    line = f"pcieport {port}.0: AER: Uncorrected (Fatal) error message received from {pci}.0"
    attrs = {"severity": "fatal", "pci": pci, "driver": "pcieport", "port": port}
    return event(ids.host_id(host), EventName.AER, Severity.FATAL, line, attrs)


def sxid(host: str, switch: int, pci: str, link: int) -> MakeSample:
    """The NVSwitch's side of a broken NVLink."""
    line = f"nvidia-nvswitch{switch}: SXid (PCI:{pci}): 20034, Fatal, Link {link} LTSSM Fault Up"
    attrs = {"sxid": "20034", "pci": ids.normal_pci(pci), "nvswitch": str(switch), "fatal": "true", "link": str(link)}
    return event(ids.nvswitch_id(host, str(switch)), EventName.SXID, Severity.FATAL, line, attrs)
