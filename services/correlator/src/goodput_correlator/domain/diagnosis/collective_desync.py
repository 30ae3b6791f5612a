"""Ranks that no longer agree on what comes next: one left a collective out, or brought another operation or size.

It is a fault of the program. The odd rank shows itself by what it joined with (another operation at the same place in the
sequence), or by having gone further in its program with fewer collectives than the others.
"""

from __future__ import annotations

from collections import Counter

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.blame import analysis, cite_root
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.collectives import Root, RootKind
from goodput_correlator.domain.deaths import deaths, gone_by_themselves
from goodput_correlator.domain.finding import Finding

ENGINE = "collective_desync"


def diagnose(case: Case) -> tuple[Finding, ...]:
    if not case.stalled:
        return ()
    dead = gone_by_themselves(deaths(case).values())
    view = analysis(case)
    found = [_finding(case, root) for root in view.blame.roots if root.kind is RootKind.MISMATCH and root.rank not in dead]
    named = {rank for each in found for rank in each.ranks}
    found += [_skipped(case, root) for root in _ahead_with_less(case) if root.rank not in named | dead]
    return tuple(found)


def _finding(case: Case, root: Root) -> Finding:
    where = f" at {root.frames[0]}" if root.frames else ""
    return _make(case, root, f"rank {root.rank} called something else than its group{where}: {root.detail}")


def _skipped(case: Case, root: Root) -> Finding:
    return _make(case, root, f"rank {root.rank} {root.detail}")


def _make(case: Case, root: Root, because: str) -> Finding:
    component = case.rank_component(root.rank)
    evidence = list(cite_root(case, root))
    said = case.progress.get(root.rank)
    if said is not None:
        evidence.append(cite(said, "its own count", 0.3, component))
    return Finding(
        fault_class=FaultClass.COLLECTIVE_DESYNC,
        component=component,
        score=root.certainty,
        evidence=tuple(evidence[:12]),
        engine=ENGINE,
        ranks=(root.rank,),
        host=case.host_of_rank(root.rank),
        explains=symptoms_of(case),
        because=because,
        settled=root.certainty >= 0.85,
        action=Action(
            kind=ActionKind.RESTART_JOB,
            target=component,
            reason="the ranks disagree on their program: no hardware is at fault, and only a common restart helps",
        ),
    )


def _ahead_with_less(case: Case) -> list[Root]:
    """Ranks that have come as far as the others, or further, with fewer collectives of a group than its other members.

    Only ranks that report now are compared, each at the place where it stands still.
    """
    view = analysis(case)
    found: dict[int, Root] = {}
    for group, members in sorted(view.standings.members.items()):
        rows = []
        for rank in members:
            standing, said = view.standings.known.get(rank), case.progress.get(rank)
            if standing is None or said is None or not isinstance(said.fact, RankProgress) or group not in standing.joined:
                continue
            rows.append((rank, said.fact.step, standing.joined[group], bool(standing.pending)))
        if len(rows) < 3:
            continue
        (usual_step, usual_joined), most = Counter((step, joined) for _, step, joined, _ in rows).most_common(1)[0]
        if most * 2 <= len(rows):
            continue
        for rank, step, joined, waiting in rows:
            further = step > usual_step or (step == usual_step and waiting)
            if joined >= usual_joined or not further or rank in found:
                continue
            pending = view.standings.known[rank].pending
            key = pending[0].key if pending else view.first_open(group)
            if key is None:
                continue
            certainty = 0.93 if step > usual_step else 0.88
            detail = f"has finished step {step} with {usual_joined - joined} collectives fewer than the others need for it"
            if step == usual_step:
                detail = f"waits in a collective of its own, {usual_joined - joined} short of the others in that group"
            others = tuple(other for other, *_ in rows if other != rank)
            found[rank] = Root(
                rank,
                RootKind.MISMATCH,
                certainty,
                key,
                pending[0].op if pending else "",
                others,
                frames=pending[0].frames if pending else (),
                detail=detail,
            )
    return list(found.values())
