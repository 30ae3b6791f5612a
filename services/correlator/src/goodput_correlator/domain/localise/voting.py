"""Localisation by votes.

Each bad flow has one vote and divides it evenly among the components that it crosses (1/hops each). The component with
the most votes is blamed, the flows that cross it are set aside, and the rest vote again. Of components with as many votes
the one whose flows are bad more often is taken: a leaf switch gets every vote that its one bad adapter gets.
"""

from __future__ import annotations

from goodput_correlator.domain.localise.matrix import Matrix
from goodput_correlator.domain.localise.pick import SUSPECTS_MAX, Pick, rate_of

SHARE_OF_VOTES_MIN = 0.02  # of all: fewer are noise
HIT_RATIO_MIN = 0.02


def voting(matrix: Matrix) -> list[Pick]:
    open_rows = [True] * len(matrix.rows)
    votes = [0.0] * len(matrix.columns)
    for at, column in enumerate(matrix.columns):
        votes[at] = sum(share / matrix.lengths[row] for row, share in column.rows)
    hits = [sum(share for _, share in column.rows) / column.weight for column in matrix.columns]
    cast, longest = float(len(matrix.rows)), max(matrix.lengths, default=1.0)
    picks: list[Pick] = []
    taken: set[int] = set()
    while len(picks) < SUSPECTS_MAX:
        open_ = [each for each in range(len(votes)) if each not in taken]
        if not open_:
            break
        at = max(open_, key=lambda each: (round(votes[each], 9), round(hits[each], 9), -each))
        if votes[at] * longest < SHARE_OF_VOTES_MIN * cast or hits[at] < HIT_RATIO_MIN:
            break
        taken.add(at)
        explained = tuple((row, share * matrix.bad[row]) for row, share in matrix.columns[at].rows if open_rows[row])
        score = sum(share for row, share in matrix.columns[at].rows if open_rows[row]) / cast
        for row, share in matrix.columns[at].rows:
            if open_rows[row] and share >= 0.5:
                open_rows[row] = False
                for other, its_share in matrix.of_row[row]:
                    votes[other] -= its_share / matrix.lengths[row]
        picks.append(Pick(column=at, score=min(1.0, score), rate=rate_of(matrix, at), explained=explained))
    return picks
