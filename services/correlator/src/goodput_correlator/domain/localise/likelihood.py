"""Localisation by likelihood: how many times likelier the counts are if this component loses probes.

A healthy network loses a small share of probes anywhere (the *noise*, measured from the probers that fare best). For each
component: at which rate would it have to lose probes so that the counts of all flows that cross it are as likely as they
can be, and how much likelier is that than noise alone? That gain, in nats, is its case. It counts probes and not flows,
so a rare loss that hits many flows once each adds up; and every probe that passed speaks against it, so a switch is not
blamed for one of its adapters.

- *Dispersion.* A component that loses a share of all its probes leaves every flow with about that share. Where some flows
  lose all and others nothing, the probes of a flow are no independent witnesses: the gain is divided by how much further
  the flows' counts scatter than chance allows. That is what keeps a leaf with two dead adapters from passing for a leaf
  that loses a sixteenth of everything.
- *Several faults.* The best component is accepted and the rest are judged given it. After each, those accepted before are
  judged again given the newer ones, and go if nothing is left for them to explain.
- *How many.* A component has to gain more than the logarithm of the number of components that it was chosen from, and
  some more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from goodput_correlator.domain.localise.matrix import Column, Matrix
from goodput_correlator.domain.localise.pick import SUSPECTS_MAX, Pick

GAIN_MIN = 4.0  # nats beyond the price of choosing
NOISE_LEAST = 1e-5  # nobody measures less within a minute
NOISE_MOST = 1e-3
NOISE_MOVED = 0.2  # by so much of itself: then every case is judged again
RATE_ROUNDS = 12
RATE_MOST = 1 - 1e-9
ROUNDING = 1e-6
STEPS_MAX = 3 * SUSPECTS_MAX


@dataclass(frozen=True, slots=True)
class _Fit:
    """A component's best rate, given the others. `gain` is divided by the dispersion already."""

    rate: float
    gain: float
    dispersion: float


NO_CASE = _Fit(0.0, 0.0, 1.0)


def likelihood(matrix: Matrix) -> list[Pick]:
    search = _Search(matrix)
    search.run()
    return search.picks()


class _Search:
    def __init__(self, matrix: Matrix) -> None:
        self._matrix = matrix
        self._noise = _noise(matrix.sent_in_all, matrix.bad_in_all)
        self._price = math.log(max(1, len(matrix.columns))) + GAIN_MIN
        self._accepted: dict[int, _Fit] = {}
        self._runner_up: dict[int, float] = {}
        self._dropped: set[int] = set()
        self._sums = [_sums(each, matrix.bad) for each in matrix.columns]

    def run(self) -> None:
        fits = {at: self._judged(at) for at in range(len(self._matrix.columns))}
        for _ in range(STEPS_MAX):
            if len(self._accepted) >= SUSPECTS_MAX:
                return
            open_ = [at for at in fits if at not in self._accepted and at not in self._dropped]
            best = max(open_, key=lambda at: (fits[at].gain, -self._matrix.columns[at].flows, -at), default=None)
            if best is None or fits[best].gain <= self._price:
                return
            self._accepted[best] = fits[best]
            self._runner_up[best] = self._rival(best, fits)
            touched = {best, *self._review(best)}
            before, self._noise = self._noise, _noise(self._matrix.sent_in_all, self._unexplained())
            again = fits.keys() if abs(self._noise - before) > NOISE_MOVED * before else self._near(touched)
            for at in again:
                if at not in self._accepted:
                    fits[at] = self._judged(at)

    def picks(self) -> list[Pick]:
        found = []
        for at, fit in self._accepted.items():
            explained = []
            for row, share in self._matrix.columns[at].rows:
                lost = self._expected(row)
                own = share * fit.rate
                explained.append((row, self._matrix.bad[row] * min(1.0, own / lost)))
            margin = min(fit.gain - self._price, fit.gain - self._runner_up[at])
            found.append(Pick(column=at, score=_sigmoid(margin), rate=fit.rate, explained=tuple(explained)))
        found.sort(key=lambda each: (-self._accepted[each.column].gain, each.column))
        return found

    def _near(self, columns: Iterable[int]) -> set[int]:
        """The columns that share a bad flow with one of these."""
        return {other for at in columns for row, _ in self._matrix.columns[at].rows for other, _ in self._matrix.of_row[row]}

    def _rival(self, best: int, fits: Mapping[int, _Fit]) -> float:
        """The best case against another component for what `best` is accepted for."""
        return max((fits[at].gain for at in self._near([best]) if at != best and at not in self._accepted), default=0.0)

    def _review(self, newest: int) -> list[int]:
        """Judge those accepted before again, given the newest; which went."""
        gone = []
        for at in [each for each in self._accepted if each != newest]:
            del self._accepted[at]
            fit = self._fit(at)
            if fit.gain > self._price:
                self._accepted[at] = fit
            else:
                gone.append(at)
        self._dropped.update(gone)
        del self._accepted[newest]
        self._accepted[newest] = self._fit(newest)
        return gone

    def _unexplained(self) -> float:
        left = 0.0
        for row, bad in enumerate(self._matrix.bad):
            passes = 1.0
            for at, share in self._matrix.of_row[row]:
                if at in self._accepted:
                    passes *= 1 - share * self._accepted[at].rate
            left += bad if passes == 1.0 else 0.0
        return left

    def _base(self, row: int) -> tuple[float, float]:
        """What a row would lose by noise and the accepted components, and the latters' dispersion."""
        passes, dispersion = 1 - self._noise, 1.0
        if self._accepted:
            for at, share in self._matrix.of_row[row]:
                if at in self._accepted:
                    passes *= 1 - share * self._accepted[at].rate
                    dispersion = max(dispersion, self._accepted[at].dispersion)
        return 1 - passes, dispersion

    def _expected(self, row: int) -> float:
        return max(self._base(row)[0], 1e-12)

    def _judged(self, at: int) -> _Fit:
        """Its fit, if it can gain the price at all. What gains less is never accepted and no rival either: how much less
        makes no difference, and that is nearly all components."""
        return self._fit(at) if self._gain_most(at) > self._price else NO_CASE

    def _gain_most(self, at: int) -> float:
        """A bound of the gain in closed form: as if noise alone explained its bad probes, the good ones crossed it by their
        least share and the bad ones by their greatest."""
        good, bad, ratio = self._sums[at]
        if not bad:
            return 0.0
        base = self._noise / ratio
        rate = min(RATE_MOST, max(0.0, (bad - good * base) / (bad + good)))  # where the bound is greatest
        return (good * math.log1p(-rate) + bad * math.log1p(rate / base)) * (1 + ROUNDING) + ROUNDING

    def _fit(self, at: int) -> _Fit:
        column = self._matrix.columns[at]
        rows = [(row, share, *self._base(row)) for row, share in column.rows]
        rate = self._rate(column, rows)
        if rate <= 0:
            return NO_CASE
        gain = sum(good * math.log1p(-min(share * rate, RATE_MOST)) for share, good in column.good)
        scatter, base_dispersion = 0.0, 1.0
        for row, share, base, dispersion in rows:
            sent, bad = self._matrix.sent[row], self._matrix.bad[row]
            lost = min(base + (1 - base) * share * rate, RATE_MOST)
            gain += bad * math.log(lost / base)
            scatter += (bad - sent * lost) ** 2 / (sent * lost * (1 - lost))
            base_dispersion = max(base_dispersion, dispersion)
        for share, clean in column.clean:
            lost = min(self._noise + (1 - self._noise) * share * rate, RATE_MOST)
            scatter += clean * lost / (1 - lost)
        dispersion = max(1.0, scatter / max(1, column.flows - 1), base_dispersion)
        return _Fit(rate, gain / dispersion, dispersion)

    def _rate(self, column: Column, rows: list[tuple[int, float, float, float]]) -> float:
        """The likeliest rate, by expectation and maximisation: how many bad probes fell to it, how many crossed it."""
        rate = 0.5
        for _ in range(RATE_ROUNDS):
            fell = 0.0
            for row, share, base, _ in rows:
                own = share * rate
                fell += self._matrix.bad[row] * own / (base + (1 - base) * own)
            crossed = fell + sum(good * share * (1 - rate) / max(1e-12, 1 - share * rate) for share, good in column.good)
            if crossed <= 0:
                return 0.0
            after = min(fell / crossed, RATE_MOST)
            if abs(after - rate) <= 1e-3 * rate:
                return after
            rate = after
        return rate


def _sums(column: Column, bad: Sequence[int]) -> tuple[int, int, float]:
    """Good probes, bad probes, and how much greater the greatest share is than the least."""
    shares = [share for share, _ in column.good]
    return sum(n for _, n in column.good), sum(bad[row] for row, _ in column.rows), max(shares) / min(shares)


def _noise(sent: int, unexplained: float) -> float:
    return min(NOISE_MOST, max(NOISE_LEAST, (unexplained + 0.5) / max(1, sent)))


def _sigmoid(nats: float) -> float:
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, nats))))
