"""The GPU's firmware or driver has stopped answering: GSP time-outs (Xid 119, 120) and others that ask for a reset.

What is to be done says the line: the driver's own wish (Xid 154, the state `recovery_action`) before the vendor's catalogue,
whose action the collector reads from its table. Only what asks for a restart of the machine takes a node out of service.

A driver that is unloaded or exchanged under the job is gone for a whole host (`_driver`): no GPU of it is to blame.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId, host_id
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, Explained, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import EVIDENCE_PER_FINDING, canonical, cite, events, states, symptoms_of
from goodput_correlator.domain.diagnosis import gpu_memory, nvlink
from goodput_correlator.domain.diagnosis._device import Seen, by_component, device_finding
from goodput_correlator.domain.diagnosis._driver import (
    GSP,
    driver_words,
    handed_an_error,
    held_by_driver,
    hosts_without_driver,
    lost_lines,
    not_initialised,
    unanswering,
)
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_driver"
UNANSWERING = 0.75
MACHINE = frozenset({"node_reboot", "system_reboot", "bus_reset"})
ELSEWHERE = frozenset({"79", "74", "45", "154"}) | nvlink.NVLINK5 | gpu_memory.SCORES.keys()


def diagnose(case: Case) -> tuple[Finding, ...]:
    seen = [(each, event) for each, event in events(case, EventName.XID) if _counts(event)]
    for gpu in held_by_driver(case):
        seen += lost_lines(case)[gpu]
    seen.sort(key=lambda each: each[0].order)
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
    named = {finding.component for finding in found if finding is not None} | lost_lines(case).keys()
    found += [_waited_for(case, gpu, told) for gpu, told in unanswering(case).items() if gpu not in named]
    hosts = [_host(case, host, gpus) for host, gpus in hosts_without_driver(case).items()]
    return (*hosts, *(each for each in found if each is not None))


def _waited_for(case: Case, gpu: ComponentId, told: Observed) -> Finding | None:
    """No line says why, but NVML gets no answer from this GPU and from its neighbours it does."""
    if handed_an_error(case, gpu):
        return None
    return device_finding(
        case,
        gpu,
        [],
        fault_class=FaultClass.GPU_DRIVER,
        engine=ENGINE,
        score=UNANSWERING,
        why=_why,
        because="its driver does not answer, and so it is with every call of its process",
        action=_action(case, gpu, []),
        decisive=False,
        more=(cite(told, "NVML has no answer from it, and from the other GPUs of this host it has", UNANSWERING, gpu),),
    )


def _host(case: Case, host: str, gpus: tuple[ComponentId, ...]) -> Finding:
    """The driver of a whole host is gone."""
    component = host_id(host)
    ranks = case.placement.on_host(host) if case.placement is not None else ()
    words = {rank: left for rank, left in driver_words(case).items() if rank in ranks}
    evidence = [
        cite(each, "its driver cannot bring the GPU up, and so it is with others of this host", 0.7, gpu)
        for gpu in gpus
        for each, _ in lost_lines(case).get(gpu, [])[:1]
    ]
    evidence += [cite(left, "the CUDA runtime says that its driver went away", 0.7, component) for left in words.values()]
    told = states(case)
    evidence += [
        cite(told[gpu, "gpu"], "NVML has no answer for it, nor for others of this host", 0.4, gpu)
        for gpu in gpus
        if (gpu, "gpu") in told and _unreadable(told[gpu, "gpu"].fact)
    ]
    victims = tuple(
        Explained(component=gpu, symptom="it does not answer", because=f"the driver of {host} is gone for all its GPUs")
        for gpu in gpus
    )
    return Finding(
        fault_class=FaultClass.GPU_DRIVER,
        component=component,
        score=0.93 if words else 0.88,
        evidence=tuple(evidence[:EVIDENCE_PER_FINDING]),
        engine=ENGINE,
        ranks=ranks,
        host=host,
        explains=symptoms_of(case),
        because=f"{len(gpus)} GPUs of {host} stop answering together and none is off the bus: what they share is the driver",
        decisive=True,
        hardware=True,
        action=Action(
            kind=ActionKind.SWAP_NODE,
            target=component,
            reason="the driver was unloaded or exchanged under the job: continue elsewhere until it is loaded again",
        ),
        victims=victims,
    )


def _unreadable(fact: object) -> bool:
    return isinstance(fact, State) and fact.value == "unreadable"


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
    if not_initialised(event):
        return "the driver cannot bring the GPU up, which is still on the bus"
    code = event.attrs.get("xid", "")
    if code in GSP:
        return f"Xid {code}: the driver waited in vain for the GPU's firmware (GSP)"
    return f"Xid {code}: {event.attrs.get('what', 'an error')} that asks for a reset"
