"""An NVML event as the evidence that it is.

For an Xid NVML tells the GPU and the number, not the line: what the number means comes from the same table as for a
line of the kernel log, so the attributes are the same, as far as a number alone gives them. The same Xid will usually come
from the kernel log too; nothing is left out here for that reason, because either may be missing, and whoever joins the
evidence knows them by `by`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.xid import parse_nvidia
from goodput_common.contracts.telemetry import Event, EventName, Severity

XID = 0x0008
ANY_INSTANCE = 0xFFFFFFFF

# besides Xids: what a driver tells by event and by nothing else that arrives as soon
HEALTH = {
    0x0002: ("ecc", "uncorrected", Severity.ERROR),
    0x0200: ("ecc", "corrected_storm", Severity.WARNING),
    0x0400: ("row_remap", "remapped", Severity.WARNING),
    0x0800: ("row_remap", "failed", Severity.FATAL),
    0x1000: ("poison", "nonfatal", Severity.WARNING),
    0x2000: ("poison", "fatal", Severity.FATAL),
    0x4000: ("gpu", "unavailable", Severity.FATAL),
    0x8000: ("recovery_action", "changed", Severity.WARNING),
}
WANTED = XID | sum(HEALTH)


def event_of(gpu: Gpu, kind: int, data: int, gi: int, ci: int, *, host: str, at: datetime) -> Event | None:
    """None for a kind that nobody asked for."""
    mig = _mig(gi, ci)
    if kind == XID:
        return _xid(gpu, data, mig, host, at)
    if kind not in HEALTH:
        return None
    reporter, state, severity = HEALTH[kind]
    return Event(
        component=gpu.component,
        name=EventName.DEVICE_HEALTH,
        observed_at=at,
        severity=severity,
        excerpt=f"NVML event {kind:#06x}: {reporter} {state}",
        attrs=gpu.attrs | mig | {"reporter": f"nvml_{reporter}", "state": state, "data": str(data), "by": "nvml"},
    )


def _xid(gpu: Gpu, code: int, mig: dict[str, str], host: str, at: datetime) -> Event | None:
    pci = gpu.attrs.get("pci", "")
    known = parse_nvidia(f"NVRM: Xid (PCI:{pci}): {code}, ", host=host, at=at) if pci else None
    if known is None:  # a GPU without an address, or a number that is none of NVIDIA's
        known = Event(
            component=gpu.component,
            name=EventName.XID,
            observed_at=at,
            severity=Severity.ERROR,
            attrs={"xid": str(code), "impact": "unknown"},
        )
    what = known.attrs.get("what", "")
    excerpt = f"NVML event: Xid {code}" + (f", {what}" if what else "")
    return msgspec.structs.replace(
        known, component=gpu.component, excerpt=excerpt, attrs=known.attrs | gpu.attrs | mig | {"by": "nvml"}
    )


def _mig(gi: int, ci: int) -> dict[str, str]:
    return {"mig": instance(gi, ci)} if gi != ANY_INSTANCE else {}


def instance(gi: int, ci: int) -> str:
    """A MIG instance by its ids, `<gpu instance>/<compute instance>`; empty for the whole GPU."""
    if gi == ANY_INSTANCE:
        return ""
    return f"{gi}" + (f"/{ci}" if ci != ANY_INSTANCE else "")
