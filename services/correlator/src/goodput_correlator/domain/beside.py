"""A second fault beside the first, in a job that stands still: two that have nothing to do with each other, at once.

What competes with the answer is mostly another reading of the same trouble, and only one can be right. It is another trouble
when it would be plain by itself: with every sign of the first fault taken away, hard evidence still names a component of
another host, with other ranks, and nothing of what the first explains. Processes that end or stand are no such thing: they
follow from everything.
"""

from __future__ import annotations

from dataclasses import replace

from goodput_common.contracts.telemetry import Event, State
from goodput_common.contracts.verdict import FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.course import apart
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.ranking import decide

FOLLOW_FROM_ANYTHING = frozenset({FaultClass.PROCESS_DEAD, FaultClass.PROCESS_STALL, FaultClass.COLLECTIVE_DESYNC})


def beside(case: Case, first: Diagnosis, named_min: float | None = None) -> Diagnosis | None:
    """What else is broken, None where nothing is. A case without a runner-up costs nothing."""
    runners_up = {each.component for each in first.alternatives if each.fault_class not in FOLLOW_FROM_ANYTHING}
    if not first.culprits or not runners_up - {None}:
        return None
    left = tuple(each for each in case.observed if not _of_first(case, first, each))
    second = decide(replace(case, observed=left, memo={}), named_min)
    if second is None or not second.decisive or second.fault_class in FOLLOW_FROM_ANYTHING:
        return None
    if any(culprit.component not in runners_up for culprit in second.culprits):
        return None
    return second if apart(first.culprits, second.culprits) else None


def _of_first(case: Case, first: Diagnosis, seen: Observed) -> bool:
    """Whether it is told of what the first fault is in: its component, the ends of its link, its host."""
    if not isinstance(seen.fact, Event | State):
        return False  # what ranks say of themselves shows that they stand, whyever
    told_of = case.topology.canonical(seen.fact.component)
    for culprit in first.culprits:
        if culprit.component is None:
            continue
        if seen.host == culprit.host or told_of == culprit.component:
            return True
        if case.topology.link_of(told_of) == culprit.component:
            return True
    return False
