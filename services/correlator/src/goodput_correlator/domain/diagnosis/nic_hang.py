"""A network adapter whose firmware has stopped: commands time out, the health counter stands still. Its link may read up.

Four witnesses tell of it: the driver (commands without an answer, a health counter that does not move), devlink's health
reporter of the firmware, NCCL's "local catastrophic error", and probes, none of which come through while the port reads up.
The driver's reset of a hung adapter drops its link: then the hang, not the cable, is the cause (`causal`).
"""

from __future__ import annotations

from collections.abc import Iterator

from goodput_common.contracts.ids import ComponentId, ComponentKind, host_of
from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain import probed
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import EVIDENCE_PER_FINDING, cite, events, ranks_on, symptoms_of
from goodput_correlator.domain.diagnosis import _probes
from goodput_correlator.domain.diagnosis._device import Seen, by_component, survived
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.localise.answer import DEAD_RATE
from goodput_correlator.domain.losses import losses_of

ENGINE = "nic_hang"
ONE_LINE, PLAIN = 0.8, 0.88
BOTH_SAY_SO = 0.92  # two witnesses that do not know of each other
FATAL_EVENTS = ("catastrophic", "device_fatal")


def diagnose(case: Case) -> tuple[Finding, ...]:
    hung = by_component(case, _told(case))
    found = [finding for nic, seen in hung.items() if (finding := _finding(case, nic, seen)) is not None]
    if case.stalled_since is not None:
        found += _unheard(case, hung)
    return tuple(found)


def _told(case: Case) -> list[Seen]:
    said = events(case, EventName.NIC_HANG, EventName.DEVICE_HEALTH, EventName.NCCL_ASYNC_EVENT)
    return [(each, event) for each, event in said if _counts(event)]


def _counts(event: Event) -> bool:
    if event.name is EventName.DEVICE_HEALTH:
        return event.attrs.get("reporter", "").startswith("fw") and event.attrs.get("state") == "error"
    if event.name is EventName.NCCL_ASYNC_EVENT:
        return any(word in event.attrs.get("event", "") for word in FATAL_EVENTS)
    return True


def _plain(event: Event) -> bool:
    """Whether one line of it is enough."""
    if event.name is EventName.DEVICE_HEALTH:
        return "fatal" in event.attrs.get("reporter", "")
    return event.name is EventName.NCCL_ASYNC_EVENT or "unrecoverable" in event.attrs.get("what", "")


def _why(event: Event) -> str:
    if event.name is EventName.DEVICE_HEALTH:
        return "the driver's health reporter of the adapter's firmware is in error"
    if event.name is EventName.NCCL_ASYNC_EVENT:
        return "NCCL hears that the adapter is dead"
    return "the adapter's firmware does not answer"


def _finding(case: Case, nic: ComponentId, seen: list[Seen]) -> Finding | None:
    if case.topology.carries_traffic(nic) is False:
        return None
    ranks = ranks_on(case, nic)
    if case.placement is not None and not ranks:
        return None
    factor, words, extra = agreement(case, ranks, network=True)
    plain = len(seen) > 1 or any(_plain(event) for _, event in seen)
    score = BOTH_SAY_SO if len({event.name for _, event in seen}) > 1 else PLAIN if plain else ONE_LINE
    left, history = survived(case, seen, ranks)
    score, told = _probes.support(case, nic, score)
    score *= left
    evidence = [cite(each, _why(event), score, nic) for each, event in seen[:EVIDENCE_PER_FINDING]]
    because = "; ".join(
        each for each in ("nothing leaves or reaches the ranks behind a hung adapter", history, words) if each
    )
    return _named(
        case,
        nic,
        score * factor,
        (*evidence, *told, *extra),
        because,
        history=history,
        decisive=factor >= 0.9 and not history,
    )


def _unheard(case: Case, hung: dict[ComponentId, list[Seen]]) -> Iterator[Finding]:
    """Adapters that no probe comes through, and whose link was not lost."""
    lost = {each.nic for each in losses_of(case)}
    lost |= {link for each in lost if (link := case.topology.link_of(each)) is not None}
    for suspect in _probes.accused(case, (ComponentKind.NIC,), without=(*hung, *lost)):
        nic, ranks = suspect.component, ranks_on(case, suspect.component)
        if suspect.rate < DEAD_RATE or not ranks:
            continue
        factor, words, extra = agreement(case, ranks, network=True)
        score = _probes.alone(suspect)
        because = "no probe comes through it, while its link was not lost" + (f"; {words}" if words else "")
        yield _named(case, nic, score * factor, (*probed.evidence(suspect, score), *extra), because)


def _named(
    case: Case,
    nic: ComponentId,
    score: float,
    evidence: tuple[Evidence, ...],
    because: str,
    *,
    history: str = "",
    decisive: bool = False,
) -> Finding:
    return Finding(
        fault_class=FaultClass.NIC_HANG,
        component=nic,
        score=min(0.96, score),
        evidence=evidence,
        engine=ENGINE,
        ranks=ranks_on(case, nic),
        host=host_of(nic),
        explains=symptoms_of(case),
        because=because,
        history=history,
        decisive=decisive,
        hardware=True,
        action=Action(
            kind=ActionKind.SWAP_NODE, target=nic, reason="the adapter needs a firmware reset: continue on a spare node"
        ),
    )
