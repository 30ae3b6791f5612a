"""Lines about the host itself: PCIe errors, stalls of the kernel, memory exhausted, storage that does not answer, boots.

    pcieport 0000:15:01.0: AER: Corrected error received: 0000:17:00.0
    nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)
    INFO: task python3:4242 blocked for more than 122 seconds.
    watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python3:4242]
    Memory cgroup out of memory: Killed process 4242 (python3) total-vm:…

Kernels spell an uncorrected error Uncorrected or Uncorrectable. An AER line of a root port often names the device
behind it that reported: that device is the component's address (`attrs["pci"]`), the port stays in `attrs["port"]`.
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
_NFS = re.compile(r"nfs: server (?P<server>\S+) not responding")
_LUSTRE = re.compile(r"Lustre: .*Connection to (?P<server>\S+) .*was lost|LustreError: .*(?P<what>timed out)")
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
        return Event(component=ids.host_id(host), name=EventName.BOOT, observed_at=at, excerpt=excerpt(text))
    return _stall(text, host, at)


def _stall(text: str, host: str, at: datetime) -> Event | None:
    for what, severity, form in (
        ("hung_task", Severity.ERROR, _HUNG_TASK),
        ("soft_lockup", Severity.ERROR, _SOFT),
        ("hard_lockup", Severity.FATAL, _HARD),
        ("rcu_stall", Severity.ERROR, _RCU),
        ("oom_kill", Severity.ERROR, _OOM),
        ("storage", Severity.ERROR, _NFS),
        ("storage", Severity.ERROR, _LUSTRE),
    ):
        if (match := form.search(text)) is None:
            continue
        attrs = {"what": what}
        for key in ("pid", "process", "cpu", "server"):
            if match.groupdict().get(key):
                attrs[key] = match[key]
        if match.groupdict().get("s"):
            attrs["for_s"] = match["s"]
        if what == "oom_kill" and "cgroup" in match["scope"].lower():
            attrs["scope"] = "cgroup"
        return Event(
            component=ids.host_id(host),
            name=EventName.HOST_STALL,
            observed_at=at,
            severity=severity,
            excerpt=excerpt(text),
            attrs=attrs,
        )
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
