"""A GPU that its host has lost: Xid 79, or the driver's other words for it. Only a reboot or another node helps.

"It could not be initialised" (RmInitAdapter failed) is said of a GPU that is gone, and of one that is there and whose
firmware or driver does not come up. Which it is, tells what else is known of the GPU and its neighbours (`_driver`).
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, State
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import canonical
from goodput_correlator.domain.diagnosis._device import device_finding
from goodput_correlator.domain.diagnosis._driver import held_by_driver, hosts_without_driver, lost_lines
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_off_bus"
GONE = frozenset({"lost", "reset_required", "unreadable"})


def diagnose(case: Case) -> tuple[Finding, ...]:
    held = held_by_driver(case) | {gpu for gpus in hosts_without_driver(case).values() for gpu in gpus}
    found = [
        device_finding(
            case,
            gpu,
            seen,
            fault_class=FaultClass.GPU_OFF_BUS,
            engine=ENGINE,
            score=0.93,
            why=_why,
            because="a GPU that is off the bus executes nothing, so its rank never finishes a collective",
            action=Action(
                kind=ActionKind.SWAP_NODE,
                target=gpu,
                reason="the GPU is gone until its machine is reset: continue on a spare node from the newest saved state",
            ),
            repeated=_still_gone(case, gpu),
        )
        for gpu, seen in lost_lines(case).items()
        if gpu not in held
    ]
    return tuple(each for each in found if each is not None)


def _still_gone(case: Case, gpu: ComponentId) -> bool:
    """Whether it has not been seen again, by the newest word of whoever looks for it. Where nobody does, the steps of its
    ranks tell."""
    for each in reversed(case.observed):
        fact = each.fact
        if isinstance(fact, State) and fact.name == "gpu" and canonical(case, fact.component) == gpu:
            return fact.value in GONE
    return False


def _why(event: Event) -> str:
    if event.attrs.get("xid") == "79":
        return "Xid 79: the driver can no longer reach the GPU over PCIe"
    return "the driver reports the GPU lost"
