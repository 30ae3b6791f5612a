"""Lines of kernel and job logs that faults leave, beyond those of `lines`: firmware that hangs, PCIe errors, lock-ups,
panics, storage that does not answer, application errors.

The contract tests feed every line written here to the collector's parsers and compare.
"""

from __future__ import annotations

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import EventName, Severity
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.collectors import MakeSample
from goodput_faultlab.simulate.layout import Place
from goodput_topology.graph import Fabric

NFS_SERVER = "10.3.0.17"
COMMANDS = ("CREATE_DCT(0x710)", "CREATE_QP(0x500)", "2RST_QP(0x50a)", "QUERY_VPORT_COUNTER(0x770)")


def gsp(fabric: Fabric, gpu: ComponentId, pid: int, seconds: int = 6, sequence: int = 0) -> MakeSample:
    """Xid 119: the GPU's own processor does not answer its driver."""
    number = int(gpu.rpartition("/")[2])
    which = f"GPU{number} GSP! Expected function 76 (GSP_RM_CONTROL)" + (f" sequence {sequence}" if sequence else "")
    text = f"Timeout after {seconds}s of waiting for RPC response from {which} (0x20803032 0x8)."
    return lines.xid(fabric, gpu, 119, text, pid=pid, timeout_s=str(seconds), gpu_number=str(number))


def gsp_error(fabric: Fabric, gpu: ComponentId) -> MakeSample:
    """Xid 120: the GPU's own processor has crashed."""
    return lines.xid(fabric, gpu, 120, "GSP task exception: unhandled exception @ pc:0x5ac3a4, task: 1")


def gsp_rate_limited(fabric: Fabric, gpu: ComponentId, every: int) -> MakeSample:
    """What comes after many of them: from here on counts are lower bounds."""
    host, pci = ids.host_of(gpu) or "", lines.pci_of(fabric, gpu)
    line = f"NVRM: Rate limiting GSP RPC error prints for GPU at PCI:{pci} (printing 1 of every {every})"
    attrs = {"xid": "119", "pci": pci, "impact": "reset", "lower_bound": "true", "printing_one_of": str(every)}
    return lines.event(ids.gpu_id(host, pci), EventName.XID, Severity.FATAL, line, attrs)


def application_xid(fabric: Fabric, gpu: ComponentId, pid: int, number: int, unit: int) -> MakeSample:
    """13, 31, 43 of a rank's own doing. `unit` varies: an application hits other units each time, a broken one always the
    same."""
    if number == 13:
        gpc, tpc = unit % 8, unit // 8 % 9
        text = f"Graphics SM Warp Exception on (GPC {gpc}, TPC {tpc}, SM {unit % 2}): Out Of Range Address"
        return lines.xid(fabric, gpu, 13, text, pid=pid, gpc=str(gpc), tpc=str(tpc))
    if number == 31:
        text = (
            f"Ch {unit:08x}, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_{unit % 16} faulted @ 0x7f12_34560000. "
            "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
        )
        return lines.xid(fabric, gpu, 31, text, pid=pid, channel=f"{unit:08x}")
    return lines.xid(fabric, gpu, 43, f"Ch {unit:08x}", pid=pid, channel=f"{unit:08x}")


def _bus_name(driver: str, host: str, pci: str) -> ComponentId:
    return ids.gpu_id(host, pci) if driver == "nvidia" else ids.nic_id(host, pci)


def bus_error(fabric: Fabric, component: ComponentId, kind: str) -> MakeSample:
    """`PCIe Bus Error` of a GPU or an adapter. `kind`: corrected, uncorrected, fatal."""
    host, pci = ids.host_of(component) or "", lines.pci_of(fabric, component)
    driver = "nvidia" if component.startswith("gpu:") else "mlx5_core"
    words, layer = {
        "corrected": ("Corrected", "Data Link Layer"),
        "uncorrected": ("Uncorrected (Non-Fatal)", "Transaction Layer"),
        "fatal": ("Uncorrected (Fatal)", "Transaction Layer"),
    }[kind]
    line = f"{driver} {pci}.0: PCIe Bus Error: severity={words}, type={layer}, (Requester ID)"
    severity = {"corrected": Severity.INFO, "uncorrected": Severity.ERROR, "fatal": Severity.FATAL}[kind]
    attrs = {"severity": kind, "pci": pci, "driver": driver, "layer": layer.lower()}
    return lines.event(_bus_name(driver, host, pci), EventName.AER, severity, line, attrs)


def _hang(fabric: Fabric, nic: ComponentId, text: str, what: str) -> MakeSample:
    host, pci = ids.host_of(nic) or "", lines.pci_of(fabric, nic)
    line = f"mlx5_core {fabric.attr(nic, 'pci')}: {text}"
    attrs = {"pci": pci, "driver": "mlx5_core", "what": what}
    return lines.event(ids.nic_id(host, pci), EventName.NIC_HANG, Severity.FATAL, line, attrs)


def command_timeout(fabric: Fabric, nic: ComponentId, pid: int, command: str) -> MakeSample:
    """The adapter's firmware does not answer a command. The link may still read UP."""
    text = f"wait_func:1132:(pid {pid}): {command} timeout. Will cause a leak of a command resource"
    return _hang(fabric, nic, text, "timeout. will cause a leak of a command resource")


def health_compromised(fabric: Fabric, nic: ComponentId) -> MakeSample:
    text = "poll_health:825:(pid 0): device's health compromised - reached miss count"
    return _hang(fabric, nic, text, "health compromised - reached miss count")


def syndrome(fabric: Fabric, nic: ComponentId) -> MakeSample:
    text = "print_health_info:431:(pid 0): synd 0x7: irisc not responding"
    return _hang(fabric, nic, text, "synd 0x7: irisc not responding")


def async_catastrophe(fabric: Fabric, nic: ComponentId, place: Place) -> MakeSample:
    """NCCL hears that its adapter is dead."""
    device = fabric.attr(nic, "rdma")
    line = (
        f"{place.host}:{place.pid}:{place.pid + 71} [{place.local}] NCCL WARN "
        f"NET/IB : {device}:1 Got async event : local catastrophic error"
    )
    attrs = {"event": "local_catastrophic_error", "device": device}
    attrs |= {"rank": str(place.rank), "pid": str(place.pid), "gpu": str(place.local)}
    return lines.event(ids.nic_id(place.host, device), EventName.NCCL_ASYNC_EVENT, Severity.FATAL, line, attrs)


def connection_closed(job: str, place: Place, peer: str) -> MakeSample:
    """A peer's process is gone and the bootstrap socket tells."""
    line = (
        f"{place.host}:{place.pid}:{place.pid + 71} [{place.local}] misc/socket.cc:915 NCCL WARN socketProgress: "
        f"Connection closed by remote peer {peer}<40123>"
    )
    attrs = {"kind": "connection_closed", "backend": "nccl", "peer": peer}
    attrs |= {"rank": str(place.rank), "pid": str(place.pid), "gpu": str(place.local)}
    return lines.event(ids.rank_id(job, place.rank), EventName.NCCL_NET_ERROR, Severity.ERROR, line, attrs)


def _host(host: str, name: EventName, severity: Severity, line: str, **attrs: str) -> MakeSample:
    return lines.event(ids.host_id(host), name, severity, line, attrs)


def hung_task(host: str, process: str, pid: int, seconds: int = 122) -> MakeSample:
    line = f"INFO: task {process}:{pid} blocked for more than {seconds} seconds."
    return _host(
        host, EventName.HOST_STALL, Severity.ERROR, line, what="hung_task", process=process, pid=str(pid), for_s=str(seconds)
    )


def soft_lockup(host: str, cpu: int, pid: int, seconds: int = 22) -> MakeSample:
    line = f"watchdog: BUG: soft lockup - CPU#{cpu} stuck for {seconds}s! [python3:{pid}]"
    return _host(
        host, EventName.HOST_STALL, Severity.ERROR, line,
        what="soft_lockup", cpu=str(cpu), process="python3", pid=str(pid), for_s=str(seconds),
    )  # fmt: skip


def hard_lockup(host: str, cpu: int) -> MakeSample:
    line = f"NMI watchdog: Watchdog detected hard LOCKUP on cpu {cpu}"
    return _host(host, EventName.HOST_STALL, Severity.FATAL, line, what="hard_lockup", cpu=str(cpu))


def panic(host: str) -> MakeSample:
    line = "Kernel panic - not syncing: Fatal machine check"
    return _host(host, EventName.MACHINE_CHECK, Severity.FATAL, line, what="panic", corrected="false")


def memory_error(host: str, corrected: bool, count: int = 1) -> MakeSample:
    kind, where = ("CE", "memory read error") if corrected else ("UE", "memory read error")
    line = f"EDAC MC0: {count} {kind} {where} on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 page:0x2c3f81)"
    severity = Severity.INFO if corrected else Severity.FATAL
    attrs = {"controller": "mc0", "what": "memory", "module": "CPU_SrcID#0_MC#0_Chan#1_DIMM#0"}
    return lines.event(
        ids.host_id(host),
        EventName.MACHINE_CHECK,
        severity,
        line,
        attrs | {"corrected": str(corrected).lower()},
        count=count,
    )


def nfs_silent(host: str, back: bool = False, server: str = NFS_SERVER) -> MakeSample:
    state, severity = ("restored", Severity.INFO) if back else ("stalled", Severity.ERROR)
    line = f"nfs: server {server} {'OK' if back else 'not responding, still trying'}"
    return _host(host, EventName.STORAGE_STALL, severity, line, what="nfs", state=state, server=server)


def nvme_timeout(host: str, disk: int, tag: int) -> MakeSample:
    line = f"nvme nvme{disk}: I/O {tag} QID {1 + tag % 16} timeout, aborting"
    return _host(host, EventName.STORAGE_STALL, Severity.ERROR, line, what="nvme", state="stalled", device=f"nvme{disk}")


def disk_error(host: str, disk: str, sector: int) -> MakeSample:
    line = f"blk_update_request: I/O error, dev {disk}, sector {sector} op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0"
    return _host(host, EventName.STORAGE_STALL, Severity.ERROR, line, what="io_error", state="stalled", device=disk)


def host_oom(host: str, pid: int) -> MakeSample:
    """The whole machine is out of memory."""
    line = f"Out of memory: Killed process {pid} (python3) total-vm:1912282160kB, anon-rss:619302120kB"
    return _host(host, EventName.HOST_STALL, Severity.ERROR, line, what="oom_kill", pid=str(pid), process="python3")
