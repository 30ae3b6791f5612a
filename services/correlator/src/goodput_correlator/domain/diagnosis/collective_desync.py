"""Ranks that no longer agree on what comes next: one left a collective out, or brought another operation or size.

It is a fault of the program. The odd rank shows itself by what it joined with (another operation at the same place in the
sequence, a call left out or made twice, another order: `desync` compares the dumps), or by having gone on in its program
with fewer collectives than the others. Where the dumps have stacks the finding names the line of user code, and that of the
others. Of two ranks that merely differ both are suspects, and neither is called the culprit.

Fewer collectives alone show nothing. A slow network ends a collective for some members before others, and who is still
inside what the others have finished is late, not out of step: they could not have finished without it. Out of step is who
waits elsewhere for ranks that wait for it in the collective it left out, and stays so from report to report.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from goodput_common.contracts.job import RankProgress
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.blame import analysis, cite_root
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.deaths import deaths, gone_by_themselves
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.roots import Odd, Root, RootKind
from goodput_correlator.domain.standing import OpKey

ENGINE = "collective_desync"
STAYS_S = 1.5  # the counts of a rank that is out of step are the same over two reports at least
ODD_MAX = 16
_WORDS = {
    None: "called something else than its group",
    Odd.TYPE: "called another operation than its group",
    Odd.SHAPE: "called with another shape than its group",
    Odd.DTYPE: "called with another type of data than its group",
    Odd.ORDER: "called in another order than its group, or left a call out",
    Odd.MISSING: "left a call out",
    Odd.EXTRA: "made a call too many",
}
UNSURE = 0.6  # it moved a moment ago, or it is one of several that differ


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
    theirs = f"; the others called at {root.theirs[0]}" if root.theirs and root.theirs[:1] != root.frames[:1] else ""
    return _make(case, root, f"rank {root.rank} {_WORDS[root.odd]}{where}: {root.detail}{theirs}")


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
            rows.append((rank, said.fact.step, standing.joined[group]))
        if len(rows) < 3:
            continue
        (usual_step, usual_joined), most = Counter((step, joined) for _, step, joined in rows).most_common(1)[0]
        if most * 2 <= len(rows):
            continue
        odd = [row for row in rows if row[2] < usual_joined and row[1] >= usual_step]
        if len(odd) > ODD_MAX:
            continue  # so many do not leave out a collective: they are late
        odd = [row for row in odd if _left_out(case, row[0], group, further=row[1] > usual_step)]
        clear = len({row[1:] for row in odd}) == 1 and len(odd) * 4 <= len(rows)
        for rank, step, joined in odd:
            if rank in found:
                continue
            pending = view.standings.known[rank].pending
            key = pending[0].key if pending else view.first_open(group)
            if key is None:
                continue
            certainty = 0.93 if step > usual_step else 0.88
            if not (clear or len(odd) == 1) or not _stays(case, rank):
                certainty = UNSURE
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
                odd=Odd.MISSING,
            )
    return list(found.values())


def _left_out(case: Case, rank: int, group: str, *, further: bool) -> bool:
    """Whether a rank with fewer collectives of `group` can have left one out, and is not merely late. `further`: it has
    finished more steps than the others."""
    view = analysis(case)
    mine = view.standings.known[rank]
    if any(each.key.group == group and not each.key.p2p and _finished_by_another(case, each.key) for each in mine.pending):
        return False  # it is inside what others could not have finished without it
    if further:
        return True
    elsewhere = [each.key for each in mine.pending if each.key.group != group or each.key.p2p]
    waiting = view.blame.graph.follow({rank}).keys()
    return any(set(view.blame.graph.missing(key)) & (waiting | view.standings.absent) for key in elsewhere)


def _finished_by_another(case: Case, key: OpKey) -> bool:
    return any(each.finished.get(key.group, -1) >= key.seq for each in analysis(case).standings.known.values())


def _stays(case: Case, rank: int) -> bool:
    """Whether its newest report counts what one some time before it did."""
    said, since = case.progress.get(rank), case.counted_since.get(rank)
    return since is None or (said is not None and said.received_at - since >= timedelta(seconds=STAYS_S))
