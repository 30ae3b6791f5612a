"""The GPU's firmware or driver has stopped answering: GSP time-outs (Xid 119, 120) and others that ask for a reset."""

from __future__ import annotations

from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import events
from goodput_correlator.domain.diagnosis import gpu_memory, nvlink
from goodput_correlator.domain.diagnosis._device import by_component, device_finding
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_driver"
GSP = frozenset({"119", "120"})
ELSEWHERE = frozenset({"79", "74", "45", "154"}) | nvlink.NVLINK5 | gpu_memory.SCORES.keys()


def diagnose(case: Case) -> tuple[Finding, ...]:
    seen = [(each, event) for each, event in events(case, EventName.XID) if _counts(event)]
    found = [
        device_finding(
            case,
            gpu,
            errors,
            fault_class=FaultClass.GPU_DRIVER,
            engine=ENGINE,
            score=0.9 if any(event.attrs.get("xid") in GSP for _, event in errors) else 0.8,
            why=_why,
            because="a driver that waits for the GPU's firmware holds up every call of its process",
            action=Action(
                kind=ActionKind.RESET_GPU, target=gpu, reason="the GPU's firmware does not answer until the GPU is reset"
            ),
        )
        for gpu, errors in by_component(case, seen).items()
    ]
    return tuple(each for each in found if each is not None)


def _counts(event: Event) -> bool:
    code = event.attrs.get("xid", "")
    return code in GSP or (code not in ELSEWHERE and event.attrs.get("impact") in ("reset", "reboot"))


def _why(event: Event) -> str:
    code = event.attrs.get("xid", "")
    if code in GSP:
        return f"Xid {code}: the driver waited in vain for the GPU's firmware (GSP)"
    return f"Xid {code}: {event.attrs.get('what', 'an error')} that asks for a reset"
