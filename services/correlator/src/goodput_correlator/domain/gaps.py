"""How long a rank has to be without a report before that tells anything of it.

Agents report every second, and reports get lost on their way. Where a tenth of them does, somebody among 64 ranks misses
three in a row every few seconds, and a job that stands still for half a minute gives them time to. So a fixed limit would
find a silent rank in every stall. The limit is taken from how often the ranks that report have gaps: as long as mere loss
makes any rank of the job so silent with a chance of `BY_CHANCE`.
"""

from __future__ import annotations

import math
from datetime import timedelta

from goodput_correlator.domain.case import Case

SILENT_S = 2.4  # reports come every second: this long without one, while others report, is silence where nothing is lost
BY_CHANCE = 0.003  # how likely it may be that mere loss makes any rank of the job as silent as this
REPORT_S = 1.0
LOST_MAX = 0.5


def lost_share(case: Case) -> float:
    """The share of reports that get lost on their way, from how long ago the last gap of each rank was: after a gap reports
    go on for 1/share on average."""
    ages_s, gaps = 0.0, 0
    first = min(case.reporting_since.values(), default=None)
    for rank, since in case.reporting_since.items():
        last = case.progress.get(rank)
        if last is None or first is None:
            continue
        ages_s += max(0.0, (last.received_at - since).total_seconds()) + REPORT_S
        gaps += since > first + timedelta(seconds=2 * REPORT_S)
    return min(LOST_MAX, gaps * REPORT_S / ages_s) if ages_s else 0.0


def silent_after_s(case: Case) -> float:
    """From when on an agent's silence tells anything: longer where reports get lost."""
    known: float | None = case.memo.get("silent_after_s")
    if known is None:
        lost, ranks = lost_share(case), max(1, len(case.reporting_since))
        in_a_row = math.ceil(math.log(BY_CHANCE / ranks) / math.log(lost)) if 0 < lost < 1 else 0
        known = case.memo["silent_after_s"] = max(SILENT_S, in_a_row * REPORT_S + SILENT_S - 2 * REPORT_S)
    return known
