"""The GPU's firmware or driver has stopped answering: GSP time-outs (Xid 119, 120) and others that ask for a reset.

What is to be done says the line: the driver's own wish (Xid 154, the state `recovery_action`) before the vendor's catalogue,
whose action the collector reads from its table. Only what asks for a restart of the machine takes a node out of service.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import canonical, events, states
from goodput_correlator.domain.diagnosis import gpu_memory, nvlink
from goodput_correlator.domain.diagnosis._device import Seen, by_component, device_finding
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_driver"
GSP = frozenset({"119", "120"})
MACHINE = frozenset({"node_reboot", "system_reboot", "bus_reset"})
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
            action=_action(case, gpu, errors),
        )
        for gpu, errors in by_component(case, seen).items()
    ]
    return tuple(each for each in found if each is not None)


def _action(case: Case, gpu: ComponentId, errors: list[Seen]) -> Action:
    wanted = _wanted(case, gpu)
    machine = wanted in MACHINE if wanted else any(event.attrs.get("impact") == "reboot" for _, event in errors)
    if machine:
        who = "the driver" if wanted else "the vendor's catalogue"
        return Action(
            kind=ActionKind.SWAP_NODE,
            target=gpu,
            reason=f"{who} asks to restart the machine, a reset of the GPU is not enough: continue on a spare node",
        )
    return Action(kind=ActionKind.RESET_GPU, target=gpu, reason="the GPU's firmware does not answer until the GPU is reset")


def _wanted(case: Case, gpu: ComponentId) -> str:
    """What the driver says it wants done with the GPU; "" where it says nothing."""
    said = [
        event.attrs["recovery_action"]
        for _, event in events(case, EventName.XID)
        if event.attrs.get("recovery_action", "none") != "none" and canonical(case, event.component) == gpu
    ]
    state = states(case).get((gpu, "recovery_action"))
    if state is not None and isinstance(state.fact, State) and state.fact.value != "none":
        said.append(state.fact.value)
    return said[-1] if said else ""


def _counts(event: Event) -> bool:
    code = event.attrs.get("xid", "")
    return code in GSP or (code not in ELSEWHERE and event.attrs.get("impact") in ("reset", "reboot"))


def _why(event: Event) -> str:
    code = event.attrs.get("xid", "")
    if code in GSP:
        return f"Xid {code}: the driver waited in vain for the GPU's firmware (GSP)"
    return f"Xid {code}: {event.attrs.get('what', 'an error')} that asks for a reset"
