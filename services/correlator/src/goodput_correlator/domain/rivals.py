"""Why a finding that stands on its own is not the answer: what contradicts it, what it lacks, what it rests on.

The words go into the verdict (`Alternative.because`), so that whoever reads it can judge the runner-up, too. They are made
from the findings alone: the same findings give the same words.
"""

from __future__ import annotations

from goodput_correlator.domain.finding import Finding

WORDS_MAX = 400  # characters; an excerpt may be long
EXCERPT_MAX = 160


def why_not(rival: Finding, best: Finding | None) -> str:
    """Why `rival` is behind `best`; None where nobody is named, and then why it is not named either."""
    reasons = [reason for reason in (rival.history, rival.aftermath) if reason]
    if best is None:
        reasons.append(f"by itself its evidence makes it {rival.score:.2f} likely, which is too little beside the others")
    else:
        reasons += _beside(rival, best)
    if rival.evidence:
        strongest = max(rival.evidence, key=lambda each: (each.weight, each.event_id))
        reasons.append(f"it rests on: {strongest.excerpt[:EXCERPT_MAX]}")
    return "; ".join(reasons)[:WORDS_MAX]


def _beside(rival: Finding, best: Finding) -> list[str]:
    name = best.component or best.fault_class.value
    reasons = []
    left = best.explains - rival.explains
    if left:
        what, where = min(left)
        reasons.append(f"it leaves {len(left)} of {len(best.explains)} symptoms unexplained, such as the {what} of {where}")
    elif set(rival.ranks) & set(best.ranks):
        reasons.append(f"{name} accounts for the same ranks already")
    if rival.score < best.score:
        reasons.append(f"by itself its evidence makes it {rival.score:.2f} likely, that of {name} {best.score:.2f}")
    elif not rival.hardware and best.hardware:
        reasons.append(f"it is as likely by itself, and {name} is hardware that broke")
    else:
        reasons.append(f"by itself it is as likely as {name}: what was seen hardly tells them apart")
    return reasons
