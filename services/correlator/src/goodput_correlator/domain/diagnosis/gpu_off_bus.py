"""A GPU that its host has lost: Xid 79, or the driver's other words for it. Only a reboot or another node helps.

"It could not be initialised" (RmInitAdapter failed) is said of a GPU that is gone, and of one that is there and whose
firmware or driver does not come up. Which it is, tells what else is known of the GPU and its neighbours (`_driver`).

Any one witness is enough, for lines get lost: the kernel, NVML that calls the GPU lost, or NVML without an answer from a GPU
whose process the driver has handed an error.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, State
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import canonical, cite
from goodput_correlator.domain.diagnosis._device import device_finding
from goodput_correlator.domain.diagnosis._driver import (
    handed_an_error,
    held_by_driver,
    hosts_without_driver,
    lost_lines,
    told_lost,
    unanswering,
)
from goodput_correlator.domain.finding import Finding

ENGINE = "gpu_off_bus"
SCORE, TOLD, HANDED_AN_ERROR = 0.93, 0.92, 0.82  # by a line of the kernel, by NVML, by what nothing else explains as well
GONE = frozenset({"lost", "reset_required", "unreadable"})


def diagnose(case: Case) -> tuple[Finding, ...]:
    held = held_by_driver(case) | {gpu for gpus in hosts_without_driver(case).values() for gpu in gpus}
    lines, lost, mute = lost_lines(case), told_lost(case), unanswering(case)
    found = []
    for gpu in sorted((lines.keys() | lost.keys() | mute.keys()) - held):
        more = _more(case, gpu, lost.get(gpu), mute.get(gpu))
        if gpu not in lines and not more:
            continue  # NVML has no answer from it, and that is all: `gpu_driver`
        found.append(
            device_finding(
                case,
                gpu,
                lines.get(gpu, []),
                fault_class=FaultClass.GPU_OFF_BUS,
                engine=ENGINE,
                score=SCORE if gpu in lines else TOLD if gpu in lost else HANDED_AN_ERROR,
                why=_why,
                because="a GPU that is off the bus executes nothing, so its rank never finishes a collective",
                action=Action(
                    kind=ActionKind.SWAP_NODE,
                    target=gpu,
                    reason="the GPU is gone until its machine is reset: continue on a spare node from the newest state",
                ),
                more=more,
                repeated=_still_gone(case, gpu),
            )
        )
    return tuple(each for each in found if each is not None)


def _more(case: Case, gpu: ComponentId, lost: Observed | None, mute: Observed | None) -> tuple[Evidence, ...]:
    """What says so besides the kernel log: NVML by itself; or that it has no answer from the GPU whose rank was handed an
    error."""
    if lost is not None:
        return (cite(lost, "NVML calls it lost", TOLD, gpu),)
    errors = handed_an_error(case, gpu) if mute is not None else {}
    if mute is None or not errors:
        return ()
    words = "its process was handed an error of the device, where a driver that waits would let it wait"
    ended = [cite(left, words, 0.6, gpu) for left in errors.values()]
    return (*ended, cite(mute, "NVML has no answer from it, and from the other GPUs of this host it has", 0.6, gpu))


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
