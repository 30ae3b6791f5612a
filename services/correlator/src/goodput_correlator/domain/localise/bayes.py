"""Bayesian localisation: the most likely states of all components at once.

Component i passes a share x_i of what crosses it; a flow passes the product of its components. The states that fit the
flows' measured shares y_j best minimise sum (y_j - prod x_i)^2 + w * sum x_i (1 - x_i). The second term is the prior:
components are well or broken, seldom in between; it also settles what the flows leave open. Minimised coordinate by
coordinate, for in each x_i the sum is a parabola. Flows that lost nothing weigh too.
"""

from __future__ import annotations

import math

from goodput_correlator.domain.localise.matrix import Column, Matrix
from goodput_correlator.domain.localise.pick import SUSPECTS_MAX, Pick

PRIOR_WEIGHT = 0.02
ROUNDS_MAX = 40
MOVED_MIN = 1e-6
LEAST = 1e-9
BROKEN_MIN = 0.003  # a component that loses less is well: noise lets many seem to lose a thousandth


def bayes(matrix: Matrix) -> list[Pick]:
    passed = [1 - bad / sent for bad, sent in zip(matrix.bad, matrix.sent, strict=True)]
    state = [1.0] * len(matrix.columns)
    product = [1.0] * len(matrix.rows)
    order = sorted(  # who is looked at first takes the blame that the flows leave open: of equals the one that explains more
        range(len(state)),
        key=lambda at: (-round(_suspicion(matrix.columns[at], passed), 3), -matrix.columns[at].weight, at),
    )
    for _ in range(ROUNDS_MAX):
        moved = 0.0
        for at in order:
            now = _best(matrix, at, state, product, passed)
            if now != state[at]:
                moved = max(moved, abs(now - state[at]))
                _set(matrix, at, now, state, product)
        if moved < MOVED_MIN:
            break
    picks = []
    for at, passes in enumerate(state):
        if 1 - passes < BROKEN_MIN:
            continue
        explained = []
        for row, share in matrix.columns[at].rows:
            lost = 1 - product[row]
            if lost > 0:
                explained.append((row, matrix.bad[row] * min(1.0, share * (1 - passes) / lost)))
        picks.append(Pick(column=at, score=1 - passes, rate=1 - passes, explained=tuple(explained)))
    picks.sort(key=lambda each: (-each.score * each.explains, each.column))
    return picks[:SUSPECTS_MAX]


def _suspicion(column: Column, passed: list[float]) -> float:
    """How much its flows lose on the mean."""
    return sum(share * (1 - passed[row]) for row, share in column.rows) / column.weight


def _best(matrix: Matrix, at: int, state: list[float], product: list[float], passed: list[float]) -> float:
    """The state of one component that fits best while all others stay. In it, a flow with the others' product a and
    share s passes a * (1 - s + s x)."""
    column = matrix.columns[at]
    cc = cd = column.weight - sum(share for _, share in column.rows)  # flows that lost nothing: y = 1, and all others pass
    for row, share in column.rows:
        others = _others(matrix, row, at, share, state, product)
        c, d = others * share, passed[row] - others * (1 - share)
        cc += c * c
        cd += c * d
    if cc > PRIOR_WEIGHT:
        return min(1.0, max(0.0, (2 * cd - PRIOR_WEIGHT) / (2 * (cc - PRIOR_WEIGHT))))
    return 1.0 if cc <= 2 * cd else 0.0  # no minimum in between: the better end


def _others(matrix: Matrix, row: int, at: int, share: float, state: list[float], product: list[float]) -> float:
    """What a flow would pass if column `at` passed everything."""
    own = 1 - share + share * state[at]
    if own > LEAST:
        return product[row] / own
    return math.prod(1 - s + s * state[column] for column, s in matrix.of_row[row] if column != at)


def _set(matrix: Matrix, at: int, now: float, state: list[float], product: list[float]) -> None:
    others = [_others(matrix, row, at, share, state, product) for row, share in matrix.columns[at].rows]
    state[at] = now
    for (row, share), rest in zip(matrix.columns[at].rows, others, strict=True):
        product[row] = rest * (1 - share + share * now)
