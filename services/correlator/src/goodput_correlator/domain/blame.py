"""The collectives of a case, as engines use them: computed once, held against a suspicion, cited as evidence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from goodput_common.contracts.verdict import Evidence
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite
from goodput_correlator.domain.collectives import Blame, find_roots
from goodput_correlator.domain.roots import Root, RootKind
from goodput_correlator.domain.standing import OpKey, Standing, Standings, standings


@dataclass(frozen=True, slots=True)
class Analysis:
    """Standings and blame of one case, computed once."""

    standings: Standings
    blame: Blame

    def first_open(self, group: str) -> OpKey | None:
        """The oldest collective of a group that somebody is in."""
        keys = [p.key for s in self.standings.known.values() for p in s.pending if not p.key.p2p and p.key.group == group]
        return min(keys, default=None)


def analysis(case: Case) -> Analysis:
    found = case.memo.get("collectives")
    if not isinstance(found, Analysis):
        all_of = standings(case)
        found = case.memo["collectives"] = Analysis(all_of, find_roots(all_of))
    return found


def agreement(case: Case, ranks: Iterable[int], *, network: bool) -> tuple[float, str, tuple[Evidence, ...]]:
    """What the recorder says to a suspicion on the component under `ranks`: a factor for its score, the reason in words, and
    evidence to cite. `network`: the suspect is a path, whose loss can leave either side of it behind."""
    mine = set(ranks)
    if not case.stalled or not mine:
        return 1.0, "", ()
    blame = analysis(case).blame
    strong = [root for root in blame.roots if root.certainty >= 0.75]
    here = [root for root in strong if root.rank in mine]
    if here:
        names = ", ".join(str(root.rank) for root in here[:4])
        cited = tuple(each for root in here[:2] for each in cite_root(case, root)[:2])
        return 1.05, f"rank {names} on it is what the others wait for", cited
    elsewhere = [root for root in strong if not (network and root.kind is RootKind.BEHIND)]
    if network:
        elsewhere = [root for root in elsewhere if root.kind is not RootKind.ABSENT]
    if elsewhere:
        return 0.5, f"but the recorder points at rank {elsewhere[0].rank}, which is not on it", ()
    if any(mine & set(each.ranks) for each in blame.inside):
        return 1.02, "its ranks are inside a collective that everybody has joined and that does not end", ()
    return 1.0, "", ()


def code_lines(case: Case, root: Root) -> str:
    """Where in the user's code it happened, as far as the dumps have stacks: what the rank called last, and where those wait
    whom it holds up."""
    all_of = analysis(case).standings
    own = all_of.known.get(root.rank)
    words = [f"its last call was {own.last_call}"] if own is not None and own.last_call else []
    for other in root.waiting:
        standing = all_of.known.get(other)
        opened = standing.opened(root.key) if standing is not None else None
        if opened is not None and opened.frames:
            words.append(f"rank {other} waits for it at {opened.frames[0]}")
            break
    return "; ".join(words)


def cite_root(case: Case, root: Root) -> list[Evidence]:
    """The dumps and reports that show a root: its own, or its last word where none tells where it stands, and two of those
    that wait for it."""
    all_of = analysis(case).standings
    what = all_of.describe(root.key, root.op)
    component = case.rank_component(root.rank)
    cited: list[Evidence] = []
    own = all_of.known.get(root.rank)
    if root.kind is RootKind.BEHIND:
        mine = f"rank {root.rank} has not finished {what}; {root.detail}, up to {root.lag} operations further"
    elif root.kind is RootKind.MISMATCH:
        mine = f"rank {root.rank} at {what}: {root.detail}"
    elif root.kind is RootKind.ABSENT:
        mine = f"rank {root.rank} {root.detail}"
    else:
        mine = (
            f"rank {root.rank} has not joined {what}; {root.detail}" if root.waiting else f"rank {root.rank}: {root.detail}"
        )
    if own is not None:
        cited.append(_evidence(own, mine, root.certainty, component, _counts(own, root.key)))
    elif (last := case.progress.get(root.rank)) is not None:
        cited.append(cite(last, f"the last word of rank {root.rank}, which joins nothing since", 0.3, component))
    for other in root.waiting[:2]:
        standing = all_of.known.get(other)
        if standing is None:
            continue
        done = standing.finished.get(root.key.group, -1) >= root.key.seq and not root.key.p2p
        word = "has finished" if done else "waits in"
        text = f"rank {other} {word} {what}" + ("" if own is not None else f"; {mine}")
        cited.append(_evidence(standing, text, 0.4, case.rank_component(other), _counts(standing, root.key)))
    return cited


def _counts(standing: Standing, key: OpKey) -> str:
    if key.p2p or key.group not in standing.joined:
        return f"rank {standing.rank}: {standing.open_count} operations open"
    joined, finished = standing.joined[key.group], standing.finished.get(key.group, -1)
    return f"rank {standing.rank}, group {key.group or 'default'}: joined {joined}, finished {finished}"


def _evidence(standing: Standing, why: str, weight: float, component: str, excerpt: str) -> Evidence:
    return Evidence(
        event_id=standing.seen.id,
        component=component,
        excerpt=excerpt,
        observed_at=standing.seen.observed_at,
        why=why,
        weight=round(weight, 3),
    )
