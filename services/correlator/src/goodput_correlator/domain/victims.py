"""Why everything that looks broken and is not the culprit looks so: what follows from it, by whom a rank waits.

An alert that is nobody's fault has to say whose consequence it is, or somebody will replace the part that it names.
"""

from __future__ import annotations

from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import Explained
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import events
from goodput_correlator.domain.finding import Finding

WAITING_MAX = 24
VICTIMS_MAX = 12


def consequence(effect: Finding, because: str) -> Explained:
    first = effect.evidence[0].excerpt if effect.evidence else effect.fault_class.value
    return Explained(component=effect.component, symptom=f"{effect.fault_class.value}: {first}"[:300], because=because)


def victims(case: Case, best: Finding) -> list[Explained]:
    """Lines that look like faults of their own and are not."""
    found: dict[tuple[str, str], Explained] = {}
    for _, event in events(case, EventName.XID, EventName.NCCL_NET_ERROR, EventName.NCCL_WATCHDOG):
        component = case.topology.canonical(event.component)
        if component == best.component:
            continue
        if event.name is EventName.XID and event.attrs.get("impact") == "victim":
            cause = event.attrs.get("cause")
            because = (
                f"the line itself names its cause: Xid {cause}" if cause else "channels are removed when a job is torn down"
            )
        elif event.name is EventName.NCCL_NET_ERROR:
            because = "its transfer partner did not answer; the error names two ends, and neither need be guilty"
        elif event.name is EventName.NCCL_WATCHDOG:
            because = "every rank of the job reports the time-out of the collective that it waits in"
        else:
            continue
        key = (component, event.name.value)
        found.setdefault(
            key, Explained(component=component, symptom=(event.excerpt or event.name.value)[:300], because=because)
        )
    return list(found.values())[:VICTIMS_MAX]


def waiting(case: Case, culprits: set[int], because: str) -> list[Explained]:
    """Every rank that stands still, and how that follows: by whom it waits for, else by what stops its collectives."""
    if not case.stalled:
        return []
    view = analysis(case)
    chain = view.blame.graph.follow(culprits)
    found = []
    for rank in sorted(view.blame.stuck - culprits):
        if rank in chain:
            blocker, key, direct = chain[rank]
            reason = f"it waits for rank {blocker}" if direct else f"it waits for rank {blocker}, which waits itself"
        else:
            key, reason = view.standings.known[rank].pending[0].key, because
        what = view.standings.describe(key)
        found.append(Explained(component=case.rank_component(rank), symptom=f"stands still in {what}", because=reason))
    if len(found) > WAITING_MAX:
        more = len(found) - WAITING_MAX
        rest = Explained(component=None, symptom=f"{more} more ranks stand still", because="they wait in the same way")
        found = [*found[:WAITING_MAX], rest]
    return found
