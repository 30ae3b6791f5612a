"""Is what the correlator said about a run right? A pure comparison of its verdicts with the ledger.

Right means: the last version of some verdict names the component in the ledger (or one that is as good) and nobody beside
it, in the ledger's fault class, with its ranks; and no version of any verdict ever blamed anything else with a confidence
above 0.7.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts.verdict import Verdict
from goodput_faultlab.ledger import LedgerEntry

CONFIDENT = 0.7


class Judgement(NamedTuple):
    correct: bool
    named_at: datetime | None  # when the first right version was published
    why: str


def judge(entry: LedgerEntry, verdicts: Iterable[Verdict], *, blames: bool = True, may_abstain: bool = False) -> Judgement:
    versions = sorted(verdicts, key=lambda verdict: (verdict.published_at, verdict.version))
    last = {verdict.id: verdict for verdict in sorted(versions, key=lambda verdict: verdict.version)}
    for verdict in versions:
        if blames_somebody(verdict) and verdict.confidence > CONFIDENT and wrong_about(entry, verdict):
            return Judgement(False, None, f"blamed another with confidence {verdict.confidence:.2f}: {_said(verdict)}")
    if not blames:
        blamed = [verdict for verdict in versions if verdict.culprit.component is not None]
        if blamed:
            return Judgement(False, None, f"blamed somebody where nothing was broken: {_said(blamed[0])}")
        return Judgement(True, None, "nobody was blamed, and nothing was broken")
    right = [verdict for verdict in versions if wrong_about(entry, verdict) is None]
    if right and any(wrong_about(entry, verdict) is None for verdict in last.values()):
        return Judgement(True, right[0].published_at, _said(right[0]))
    if right:
        changed = max(last.values(), key=lambda verdict: verdict.published_at)
        return Judgement(False, right[0].published_at, f"was right and changed its mind: {_said(changed)}")
    if may_abstain and all(verdict.culprit.component is None for verdict in last.values()):
        return Judgement(True, None, "nobody was blamed; nothing that is measured here would have shown it")
    if not versions:
        return Judgement(False, None, "no verdict")
    latest = max(last.values(), key=lambda verdict: verdict.published_at)
    return Judgement(False, None, f"{wrong_about(entry, latest)}: {_said(latest)}")


def wrong_about(entry: LedgerEntry, verdict: Verdict) -> str | None:
    """What the verdict has wrong, or None."""
    named = verdict.culprits or (verdict.culprit,)
    if any(culprit.component not in (entry.component, *entry.also_right) for culprit in named):
        return f"the culprit is {entry.component}" + (" alone" if len(named) > 1 else "")
    if verdict.fault_class is not entry.fault_class:
        return f"the class is {entry.fault_class.value}"
    ranks = {rank for culprit in named for rank in culprit.ranks}
    if entry.ranks and ranks != set(entry.ranks):
        return f"the ranks are {list(entry.ranks)}, not {sorted(ranks)}"
    return None


def blames_somebody(verdict: Verdict) -> bool:
    return any(culprit.component is not None for culprit in (verdict.culprit, *verdict.culprits))


def _said(verdict: Verdict) -> str:
    named = " and ".join(culprit.component or "nobody" for culprit in verdict.culprits or (verdict.culprit,))
    return f"{verdict.fault_class.value} on {named} ({verdict.confidence:.2f})"
