"""What probes say of the network under a case, for engines: who is suspected, and with what evidence.

An engine asks `suspects_at` for the component that it is about (a link, an adapter, a switch) or `suspects` for all. No
answer means that probes accuse nobody, or that nobody probes: `localised(case).sent` tells how many that rests on.
"""

from __future__ import annotations

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import Evidence
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import canonical, cite
from goodput_correlator.domain.localise.answer import Localised, Suspect, Trouble, localise
from goodput_correlator.domain.localise.reports import gather

EVIDENCE_PER_SUSPECT = 4


def localised(case: Case) -> Localised:
    """The whole answer, once a case: of what the fabric remembers, else of the reports among the case's own facts."""
    found: Localised | None = case.memo.get("localised")
    if found is None:
        if case.probes is not None:
            found = case.probes.localised(case.now, case.topology)
        else:
            found = localise(gather(case.observed, case.now, ended=case.offline), case.topology)
        case.memo["localised"] = found
    return found


def suspects(case: Case) -> tuple[Suspect, ...]:
    """All suspects, the most certain first; () where probes accuse nobody or there are none."""
    return localised(case).suspects


def suspects_at(case: Case, component: ComponentId) -> tuple[Suspect, ...]:
    """The suspects that name this component, or one that probes cannot tell from it. A switch port is as its link."""
    wanted = {canonical(case, component)}
    if component.startswith("port:"):
        wanted |= {link for each in wanted if (link := case.topology.link_of(each)) is not None}
    return tuple(each for each in suspects(case) if wanted & {each.component, *each.same})


def evidence(suspect: Suspect, weight: float) -> tuple[Evidence, ...]:
    """Some of the reports that accuse it."""
    return tuple(cite(each, words(suspect), weight, suspect.component) for each in suspect.told[:EVIDENCE_PER_SUSPECT])


def words(suspect: Suspect) -> str:
    """Why it is suspected, in one line."""
    if suspect.trouble in (Trouble.SLOW_RESPONDER, Trouble.SLOW_PROBER):
        role = "answers probes" if suspect.trouble is Trouble.SLOW_RESPONDER else "takes the answers to its probes"
        return (
            f"{suspect.component} {role} after {suspect.delay_us:.0f} us, usual is {suspect.usual_us:.0f}: not the network"
        )
    spoiled = "loses" if suspect.trouble is Trouble.LOSS else "delays"
    direction = f" towards {suspect.into}" if suspect.into else ""
    return (
        f"{suspect.component}{direction} {spoiled} {suspect.rate:.2%} of the probes that cross it: {suspect.flows} of"
        f" {suspect.flows_in_all} flows"
    )
