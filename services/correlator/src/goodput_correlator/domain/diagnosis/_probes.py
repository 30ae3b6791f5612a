"""What probes say to the network engines: a word for a suspicion that rests on something else, or the only word there is.

Probes cross the network on their own, so a component that loses theirs is broken whatever the job does. But they are few and
small, and some components look alike to them (an adapter and its cable): alone they support a finding, never a sure one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from goodput_common.contracts.ids import ComponentId, ComponentKind, kind_of
from goodput_common.contracts.verdict import Evidence
from goodput_correlator.domain import probed
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.localise.answer import Suspect, Trouble

FLOWS_MIN = 2  # bad ones that cross it: one flow may have met anything
SPOILED_MIN = 3.0  # probes
SUPPORT = 0.3  # of the doubt that is left, taken away by a suspect of which probes are sure
ALONE_MIN, ALONE_MAX = 0.5, 0.78
NETWORK = (Trouble.LOSS, Trouble.DELAY)


def support(case: Case, component: ComponentId, score: float) -> tuple[float, tuple[Evidence, ...]]:
    """A score with what probes add to it, and the reports that do. Probes that accuse nobody take nothing away: they may not
    have come there, or their window may not be over."""
    told = [each for each in probed.suspects_at(case, component) if _counts(each)]
    if not told:
        return score, ()
    return min(0.97, score + (1.0 - score) * SUPPORT * told[0].score), probed.evidence(told[0], 0.4)


def accused(case: Case, kinds: Collection[ComponentKind], *, without: Collection[ComponentId] = ()) -> Iterator[Suspect]:
    """Suspects of these kinds that nothing else has named: `without` and what probes cannot tell from it. Of several that
    probes cannot tell apart each is one."""
    for each in probed.suspects(case):
        if not _counts(each) or {each.component, *each.same} & set(without):
            continue
        places = _places(case, each)
        for place in places:
            if kind_of(place) in kinds:
                yield replace(each, component=place, same=tuple(other for other in places if other != place))


def alone(suspect: Suspect) -> float:
    """The score of a finding that rests on probes and nothing else: a part of it for each that it may be."""
    return (ALONE_MIN + (ALONE_MAX - ALONE_MIN) * suspect.score) / (1 + len(suspect.same))


def _places(case: Case, suspect: Suspect) -> tuple[ComponentId, ...]:
    """Where to look: a cable and the adapter at its end are one place, which goes by the name that comes first. A switch
    and two of its cables, or the cables of one tier where nobody knows the ways, are as many as they are."""
    found: dict[ComponentId, None] = {}
    for each in (suspect.component, *suspect.same):
        near = {each, case.topology.link_of(each), *(case.topology.ends_of(each) or ())}
        if not any(other in near for other in found):
            found[each] = None
    return tuple(found)


def _counts(suspect: Suspect) -> bool:
    return suspect.trouble in NETWORK and suspect.flows >= FLOWS_MIN and suspect.explains >= SPOILED_MIN
