"""Lines about the host itself: PCIe errors, stalls of the kernel, memory exhausted, storage that does not answer, boots,
machine checks, heat.

    pcieport 0000:15:01.0: AER: Corrected error received: 0000:17:00.0
    nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)
    INFO: task python3:4242 blocked for more than 122 seconds.
    watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]
    Memory cgroup out of memory: Killed process 4242 (python3) total-vm:…
    mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: 8c00004000010091
    EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0 (channel:1 slot:0 …)
    {3}[Hardware Error]: event severity: fatal
    nfs: server 10.0.0.1 not responding, still trying
    nvme nvme0: I/O 12 QID 4 timeout, aborting

Firmware reports an error in a dozen lines under one number in braces: the one with the severity is the event. A storage
line says `stalled`, or `restored` when the same thing answers again; that a drive tells its timeouts at boot, or
that a drive bay without a disc cannot be read, is no stall. Kernels spell an uncorrected error Uncorrected or
Uncorrectable. An AER line of a root port often names the device behind it that reported: that device is the component's
address (`attrs["pci"]`), the port stays in `attrs["port"]`.
"""

from __future__ import annotations

import re
from datetime import datetime

from goodput_collector.domain.nic_log import pci_name
from goodput_collector.domain.xid import excerpt
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Event, EventName, Severity

_BDF = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]"
_AER = re.compile(
    rf"(?P<driver>[\w-]+) (?P<pci>{_BDF}): AER: (?:Multiple )?(?P<kind>Corrected|Uncorrect(?:ed|able))"
    rf"(?: \((?P<fatal>Non-Fatal|Fatal)\))? error (?:message )?received(?: from|:)?(?: (?:id=)?(?P<source>{_BDF}))?",
    re.IGNORECASE,
)
_BUS_ERROR = re.compile(
    rf"(?P<driver>[\w-]+) (?P<pci>{_BDF}): (?:AER: )?PCIe Bus Error: severity=(?P<kind>Corrected|Uncorrect(?:ed|able))"
    r"(?: \((?P<fatal>Non-Fatal|Fatal)\))?(?:, type=(?P<layer>[\w ]+))?",
    re.IGNORECASE,
)
_DPC = re.compile(rf"(?P<driver>[\w-]+) (?P<pci>{_BDF}): DPC: containment event")
_HOTPLUG = re.compile(rf"(?P<driver>[\w-]+) (?P<pci>{_BDF}): pciehp: Slot\([^)]*\): (?P<what>Link Down|Card not present)")
_HUNG_TASK = re.compile(r"INFO: task (?P<process>.+):(?P<pid>\d+) blocked for more than (?P<s>\d+) seconds")
_SOFT = re.compile(r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<s>\d+)s!(?: \[(?P<process>[^\]]+):(?P<pid>\d+)\])?")
_HARD = re.compile(r"hard LOCKUP on cpu ?(?P<cpu>\d+)", re.IGNORECASE)
_RCU = re.compile(r"rcu: INFO: \S+ (?:self-)?detected (?:expedited )?stall")
_OOM = re.compile(
    r"(?P<scope>Memory cgroup out of memory|Out of memory(?: \([^)]*\))?): "
    r"Killed? process (?P<pid>\d+),? \((?P<process>[^)]+)\)",
    re.IGNORECASE,
)
_STORAGE = (
    ("nfs", "stalled", re.compile(r"nfs: server (?P<server>\S+) not responding")),
    ("nfs", "restored", re.compile(r"nfs: server (?P<server>\S+) OK")),
    ("lustre", "stalled", re.compile(r"Lustre: .*Connection to (?P<server>\S+) .*was lost")),
    ("lustre", "restored", re.compile(r"Lustre: .*Connection restored to (?P<server>[^\s(]+)")),
    ("lustre", "stalled", re.compile(r"LustreError: .*timed out")),
    (
        "ceph",
        "stalled",
        re.compile(r"(?:ceph|libceph): (?P<server>(?:mds|osd|mon)\d+)\b.* (?:hung|down|socket (?:closed|error))"),
    ),
    ("ceph", "restored", re.compile(r"ceph: (?P<server>mds\d+) (?:caps renewed|recovery completed|came back)")),
    ("gpfs", "stalled", re.compile(r"mmfs: .*(?:waiting for|disk lease).*overdue")),
    (
        "nvme",
        "stalled",
        re.compile(r"nvme (?P<device>nvme\d+): (?:I/O (?:tag )?\d+ .*QID \d+ timeout|controller is down|Device not ready)"),
    ),
    ("scsi", "stalled", re.compile(r"sd \S+ \[(?P<device>sd[a-z]+)\].*timing out command")),
    ("io_error", "stalled", re.compile(r"I/O error, dev (?P<device>(?!(?:sr|fd|loop|zram)\d)[\w-]+), sector")),
)
_MCE = re.compile(
    r"mce: \[Hardware Error\]: CPU (?P<cpu>\d+): Machine Check(?: Exception)?: (?P<mcg>\w+) "
    r"Bank (?P<bank>\d+): (?P<status>[0-9a-f]+)"
)
_MCE_FATAL = re.compile(
    r"Kernel panic - not syncing: (?P<what>Fatal machine check|Machine check|Hardware Error|.*MCE)", re.IGNORECASE
)
_EDAC = re.compile(
    r"EDAC (?P<controller>MC\d+): (?P<count>\d+) (?P<kind>CE|UE) (?P<text>.*?)(?: on (?P<module>\S+))?(?: \(|$)"
)
_APEI = re.compile(r"\[Hardware Error\]: event severity: (?P<severity>\w+)")
_POISON = re.compile(r"Memory failure: (?P<page>0x[0-9a-f]+): .*?(?P<how>Recovered|Ignored|Failed|Delayed)\b")
_HOT = re.compile(r"CPU(?P<cpu>\d+): (?P<what>Core|Package) temperature(?:/speed)? above threshold")
_UNCORRECTED_BIT = 1 << 61
_BOOT = re.compile(r"^Linux version \d+\.\d+")
_GPU_DRIVERS = frozenset({"nvidia", "amdgpu"})
_NIC_DRIVERS = frozenset({"mlx5_core", "mlx4_core", "bnxt_en", "ice", "ena", "efa", "i40e", "ixgbe"})


def parse_host(text: str, *, host: str, at: datetime) -> Event | None:
    """The event that one line tells about the host or its PCIe, or None."""
    if "PCIe Bus Error" in text or "AER: " in text:
        match = _AER.search(text) or _BUS_ERROR.search(text)
        return None if match is None else _aer(match, text, host, at)
    if "DPC: " in text and (match := _DPC.search(text)) is not None:
        return _pcie(match["driver"], match["pci"], "fatal", {"what": "downstream port contained"}, text, host, at)
    if "pciehp" in text and (match := _HOTPLUG.search(text)) is not None:
        return _pcie(match["driver"], match["pci"], "fatal", {"what": match["what"].lower()}, text, host, at)
    if _BOOT.match(text):
        return _event(EventName.BOOT, Severity.INFO, {}, text, host, at)
    return _machine_check(text, host, at) or _storage(text, host, at) or _stall(text, host, at)


def _event(
    name: EventName, severity: Severity, attrs: dict[str, str], text: str, host: str, at: datetime, count: int = 1
) -> Event:
    return Event(
        component=ids.host_id(host),
        name=name,
        observed_at=at,
        severity=severity,
        excerpt=excerpt(text),
        attrs=attrs,
        count=count,
    )


def _machine_check(text: str, host: str, at: datetime) -> Event | None:
    """What the processor, the memory controllers and the firmware say of themselves."""
    name, count, corrected, survived = EventName.MACHINE_CHECK, 1, False, False
    attrs: dict[str, str] = {}
    if (match := _MCE.search(text)) is not None:
        corrected = int(match["status"][-16:], 16) & _UNCORRECTED_BIT == 0
        attrs = {"cpu": match["cpu"], "bank": match["bank"], "status": match["status"], "what": "mce"}
    elif (match := _EDAC.search(text)) is not None:
        corrected, count = match["kind"] == "CE", max(1, int(match["count"][:9]))
        attrs = {"controller": match["controller"].lower(), "what": "memory"}
        if match["module"]:
            attrs["module"] = match["module"]
    elif (match := _APEI.search(text)) is not None:
        corrected = match["severity"].lower() in ("corrected", "info")
        survived = match["severity"].lower() == "recoverable"  # uncorrected, and the kernel goes on
        attrs = {"what": "firmware", "severity": match["severity"].lower()}
    elif (match := _POISON.search(text)) is not None:
        attrs = {"what": "memory", "page": match["page"], "handling": match["how"].lower()}
    elif (match := _MCE_FATAL.search(text)) is not None:
        attrs = {"what": "panic"}
    elif (match := _HOT.search(text)) is not None:
        attrs = {"reason": "thermal", "what": match["what"].lower(), "cpu": match["cpu"]}
        return _event(EventName.THROTTLED, Severity.WARNING, attrs, text, host, at)
    else:
        return None
    severity = Severity.INFO if corrected else Severity.ERROR if survived else Severity.FATAL
    return _event(name, severity, attrs | {"corrected": str(corrected).lower()}, text, host, at, count)


def _storage(text: str, host: str, at: datetime) -> Event | None:
    for what, state, form in _STORAGE:
        if (match := form.search(text)) is None:
            continue
        attrs = {"what": what, "state": state} | {key: value for key, value in match.groupdict().items() if value}
        severity = Severity.ERROR if state == "stalled" else Severity.INFO
        return _event(EventName.STORAGE_STALL, severity, attrs, text, host, at)
    return None


def _stall(text: str, host: str, at: datetime) -> Event | None:
    for what, severity, form in (
        ("hung_task", Severity.ERROR, _HUNG_TASK),
        ("soft_lockup", Severity.ERROR, _SOFT),
        ("hard_lockup", Severity.FATAL, _HARD),
        ("rcu_stall", Severity.ERROR, _RCU),
        ("oom_kill", Severity.ERROR, _OOM),
    ):
        if (match := form.search(text)) is None:
            continue
        attrs = {"what": what}
        for key in ("pid", "process", "cpu"):
            if match.groupdict().get(key):
                attrs[key] = match[key]
        if match.groupdict().get("s"):
            attrs["for_s"] = match["s"]
        if what == "oom_kill" and "cgroup" in match["scope"].lower():
            attrs["scope"] = "cgroup"
        return _event(EventName.HOST_STALL, severity, attrs, text, host, at)
    return None


def _aer(match: re.Match[str], text: str, host: str, at: datetime) -> Event:
    found = match.groupdict()
    if found["kind"].lower() == "corrected":
        severity = "corrected"
    else:
        severity = "fatal" if (found.get("fatal") or "").lower() == "fatal" else "uncorrected"
    attrs = {"layer": found["layer"].strip().lower()} if found.get("layer") else {}
    source = found.get("source")
    if source and source != found["pci"]:
        attrs["port"] = pci_name(found["pci"])
    return _pcie(found["driver"], source or found["pci"], severity, attrs, text, host, at)


def _pcie(driver: str, pci: str, severity: str, attrs: dict[str, str], text: str, host: str, at: datetime) -> Event:
    name = pci_name(pci)
    if driver in _GPU_DRIVERS:
        component = ids.gpu_id(host, name)
    elif driver in _NIC_DRIVERS:
        component = ids.nic_id(host, name)
    else:
        component = ids.host_id(host)
    return Event(
        component=component,
        name=EventName.AER,
        observed_at=at,
        severity={"corrected": Severity.INFO, "uncorrected": Severity.ERROR, "fatal": Severity.FATAL}[severity],
        excerpt=excerpt(text),
        attrs={"severity": severity, "pci": name, "driver": driver} | attrs,
    )
