"""Greedy localisation by hit ratio.

The *hit ratio* of a component is the share of its probed flows that are bad. Again and again: of the components whose hit
ratio is above the bar take the one that most unexplained bad probes cross, and set aside what it explains; where none is
above the bar, lower it. A dead component spoils all its flows. One that drops a probe in a thousand spoils hardly any
in a minute, and stays below any bar.
"""

from __future__ import annotations

from goodput_correlator.domain.localise.matrix import Matrix
from goodput_correlator.domain.localise.pick import SUSPECTS_MAX, Pick, rate_of

BAR_FIRST = 0.8
BAR_STEP = 0.2
BAR_LEAST = 0.2
BAD_SHARE_MIN = 0.002  # a flow that loses less is not bad: every network loses a probe now and then


def greedy(matrix: Matrix) -> list[Pick]:
    bad = [n if n > BAD_SHARE_MIN * sent else 0 for n, sent in zip(matrix.bad, matrix.sent, strict=True)]
    left = list(bad)
    bar = BAR_FIRST
    picks: list[Pick] = []
    taken: set[int] = set()
    while len(picks) < SUSPECTS_MAX and any(left):
        best: tuple[float, float, int] | None = None
        for at, column in enumerate(matrix.columns):
            if at in taken:
                continue
            hit = sum(share for row, share in column.rows if bad[row]) / column.weight
            unexplained = sum(share * left[row] for row, share in column.rows)
            if unexplained and hit > bar and (best is None or (unexplained, hit, -at) > best):
                best = (unexplained, hit, -at)
        if best is None:
            bar -= BAR_STEP
            if bar < BAR_LEAST - 1e-9:
                break
            continue
        at = -best[2]
        taken.add(at)
        explained = tuple((row, share * left[row]) for row, share in matrix.columns[at].rows if left[row])
        for row, share in matrix.columns[at].rows:
            left[row] = 0 if share == 1.0 else round(left[row] * (1 - share))
        picks.append(Pick(column=at, score=min(1.0, best[1]), rate=rate_of(matrix, at), explained=explained))
    return picks
