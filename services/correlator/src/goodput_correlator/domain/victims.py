"""Why everything that looks broken and is not the culprit looks so: what follows from it, by whom a rank waits.

An alert that is nobody's fault has to say whose consequence it is, or somebody will replace the part that it names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from goodput_common.contracts.verdict import Explained
from goodput_correlator.domain.alerts import Accounted, account, limited
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.finding import Finding

WAITING_MAX = 24
SHOWN_MAX = 16  # of either sort of finding


def consequence(effect: Finding, because: str) -> Explained:
    first = effect.evidence[0].excerpt if effect.evidence else effect.fault_class.value
    return Explained(component=effect.component, symptom=f"{effect.fault_class.value}: {first}"[:300], because=because)


def accounted_for(
    case: Case,
    joint: Sequence[Finding],
    others: Sequence[Finding],
    consequences: Sequence[tuple[Finding, Finding, str]],
) -> Accounted:
    """What follows from the culprits, and which alerts do not: of findings that were set aside, of what the culprits' own
    engines know, of single lines (`alerts`), of ranks that wait. Each sort is bounded and counts the rest."""
    aside = [consequence(effect, because) for effect, _, because in consequences]
    aside += [consequence(finding, finding.history) for finding in others if finding.history]
    known = [each for finding in joint for each in finding.victims]
    lines = account(case, joint, [*(effect for effect, _, _ in consequences), *others], [*aside, *known])
    ranks = {rank for finding in joint for rank in finding.ranks}
    still = waiting(case, ranks, joint[0].because) if joint else []
    explained = (*limited(aside, SHOWN_MAX, _more), *limited(known, SHOWN_MAX, _more), *lines.explained, *still)
    return replace(lines, explained=explained)


def _more(count: int) -> Explained:
    return Explained(component=None, symptom=f"{count} more of the kind", because="they follow in the same ways")


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
    return limited(found, WAITING_MAX, _more_ranks)


def _more_ranks(count: int) -> Explained:
    return Explained(component=None, symptom=f"{count} more ranks stand still", because="they wait in the same way")
