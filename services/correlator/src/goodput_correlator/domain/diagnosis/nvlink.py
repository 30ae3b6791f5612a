"""A failing NVLink: Xid 74, the NVLink5 family 144-150 where the line itself is fatal, and fatal SXids of an NVSwitch.

The number alone says nothing: 145 is mostly non-fatal, and a link that goes down is reported at both ends. The line that
says its *peer* went away (down reasons 32-37) is a victim's; the local one is the culprit's.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, events
from goodput_correlator.domain.diagnosis._device import Seen, by_component, device_finding
from goodput_correlator.domain.finding import Finding

ENGINE = "nvlink"
NVLINK5 = frozenset(str(number) for number in range(144, 151))


def diagnose(case: Case) -> tuple[Finding, ...]:
    xids = [(each, event) for each, event in events(case, EventName.XID) if _score(event) > 0]
    switches = [(each, event) for each, event in events(case, EventName.SXID) if event.attrs.get("fatal") == "true"]
    found: list[Finding | None] = []
    for gpu, seen in by_component(case, xids).items():
        found.append(_finding(case, gpu, seen, switches))
    if not xids:
        for switch, seen in by_component(case, switches).items():
            found.append(_switch(case, switch, seen))
    return tuple(each for each in found if each is not None)


def _score(event: Event) -> float:
    """How much one line says about the GPU that logs it."""
    code = event.attrs.get("xid", "")
    if code == "74":
        return 0.9
    if code not in NVLINK5 or event.attrs.get("impact") not in ("reset", "reboot", "workflow"):
        return 0.0
    if event.attrs.get("side") == "peer":
        return 0.45
    return 0.9 if event.attrs.get("fatal") != "false" else 0.4


def _finding(case: Case, gpu: ComponentId, seen: list[Seen], switches: list[Seen]) -> Finding | None:
    score = max(_score(event) for _, event in seen)
    host = gpu.partition(":")[2].partition("/")[0]
    also = tuple(
        cite(each, "the NVSwitch sees the other end of a link fail", 0.3) for each, _ in switches[:2] if each.host == host
    )
    return device_finding(
        case,
        gpu,
        seen,
        fault_class=FaultClass.NVLINK,
        engine=ENGINE,
        score=score,
        why=_why,
        because="collectives inside the node run over NVLink and stop with it",
        action=Action(
            kind=ActionKind.SWAP_NODE,
            target=gpu,
            reason="an NVLink does not come back without a reset of the node: use a spare",
        ),
        decisive=score >= 0.8,
        more=also,
    )


def _switch(case: Case, switch: ComponentId, seen: list[Seen]) -> Finding | None:
    return device_finding(
        case,
        switch,
        seen,
        fault_class=FaultClass.NVLINK,
        engine=ENGINE,
        score=0.75,
        why=lambda event: f"fatal SXid {event.attrs.get('sxid', '')} on the NVSwitch",
        because="collectives inside the node cross the NVSwitch",
        action=Action(
            kind=ActionKind.SWAP_NODE, target=switch, reason="a fatal NVSwitch error needs a reset of the node: use a spare"
        ),
        decisive=False,
    )


def _why(event: Event) -> str:
    link = f" on link {event.attrs['link']}" if "link" in event.attrs else ""
    if event.attrs.get("xid") == "74":
        return f"Xid 74: NVLink error{link}"
    side = " at the other end" if event.attrs.get("side") == "peer" else ""
    fatal = "fatal" if _score(event) > 0.5 else "reported"
    return f"Xid {event.attrs.get('xid', '')}: {event.attrs.get('unit', 'NVLink')} {fatal}{link}{side}"
