"""How many flows cross each component and how many probes they sent, kept up to date from window to window.

Nearly all flows are well, and of those it only matters how many probes crossed a component unharmed. So what a flow crosses
is learned once, when it is first heard of, and its probes are added to the sums of its components; from one window to the
next only the flows change whose probes within the minute have become more or fewer. The flows of which something is wrong
come one by one; with them and the sums `matrix` makes what `matrix.matrix` makes of all flows, number for number.

A *cell* is a component and the share of a flow's ways that lead over it (1 where the way is known). All sums are of whole
numbers, so they do not depend on the order or the moments in which windows were added. Which components cannot be told apart
is seen by their *signs*: each flow has a number of 64 bits, drawn once, and a cell the sum of those of its flows. Cells with
the same sums are crossed by the same flows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId
from goodput_correlator.domain.localise.counted import Counted
from goodput_correlator.domain.localise.matrix import INTO, Column, Matrix, Ways, by_row, told_apart
from goodput_correlator.domain.localise.reports import Told
from goodput_topology.graph import Fabric

CELLS_MAX = 2_000_000
_64 = (1 << 64) - 1


@dataclass(slots=True)
class _Change:
    """What is different in one cell from its sums."""

    flows: int = 0
    sent: int = 0
    sign: int = 0
    bad: int = 0
    of_bad: int = 0  # sent by flows with bad probes


class Crossings:
    """Windows that were `take`n must not change; who changes one calls `start_anew`."""

    def __init__(self, topology: Fabric) -> None:
        self.topology = topology
        self._ways = Ways(topology)
        self._numbered: dict[tuple[ComponentId, float], int] = {}
        self._cells_of: dict[str, list[int]] = {}  # component, or component and direction; by share
        self._component: list[str] = []
        self._share: list[float] = []
        self._flows: list[int] = []
        self._sent: list[int] = []
        self._sign: list[int] = []
        self._drawn = 0
        self._sign_of: dict[Counted, int] = {}
        self._sent_by: dict[Counted, int] = {}
        self._taken: dict[int, Told] = {}

    @property
    def full(self) -> bool:
        """With what nobody crosses any more, most likely: a new one has room."""
        return len(self._share) >= CELLS_MAX

    def learn(self, counted: Counted) -> None:
        counted.way = tuple([self._cell(each, share) for each, share in self._ways.round_trip(counted).items()])
        counted.learned = self

    def _cell(self, component: ComponentId, share: float) -> int:
        cell = self._numbered.get((component, share))
        if cell is None:
            cell = self._numbered[component, share] = len(self._share)
            self._component.append(component)
            self._share.append(share)
            self._flows.append(0)
            self._sent.append(0)
            self._sign.append(0)
            cells = self._cells_of.setdefault(component, [])
            cells.append(cell)
            cells.sort(key=lambda each: self._share[each])
        return cell

    def start_anew(self) -> None:
        for sums in (self._flows, self._sent, self._sign):
            sums[:] = [0] * len(sums)
        self._taken, self._sent_by, self._sign_of = {}, {}, {}

    def take(self, told: Mapping[int, Told], first: int, closed: int) -> None:
        """Have the sums cover these windows and no others."""
        if self._taken and (max(self._taken) < first or min(self._taken) > closed):
            self.start_anew()  # nothing in common
        change: dict[Counted, int] = {}
        for window in [each for each in self._taken if not first <= each <= closed]:
            for counted, sent in self._taken.pop(window).by_flow.items():
                change[counted] = change.get(counted, 0) - sent
        for window, what in told.items():
            if first <= window <= closed and window not in self._taken:
                self._taken[window] = what
                what.read = True
                for counted, sent in what.by_flow.items():
                    change[counted] = change.get(counted, 0) + sent
        sums, sent_by = self._sent, self._sent_by
        for counted, more in change.items():
            if not more:
                continue
            if counted.learned is not self:
                self.learn(counted)
            before = sent_by.get(counted, 0)
            for cell in counted.way:
                sums[cell] += more
            if not before:
                sent_by[counted] = more
                self._counts(counted, 1)
            elif before + more:
                sent_by[counted] = before + more
            else:
                self._counts(counted, -1)
                del sent_by[counted]

    def _counts(self, counted: Counted, one: int) -> None:
        """A flow has come (1) or gone (-1)."""
        if one > 0:
            self._drawn += 1
            self._sign_of[counted] = _scattered(self._drawn)
        sign = one * (self._sign_of[counted] if one > 0 else self._sign_of.pop(counted))
        flows, signs = self._flows, self._sign
        for cell in counted.way:
            flows[cell] += one
            signs[cell] += sign

    def matrix(
        self, apart: Sequence[Counted], sent: Sequence[int], bad: Sequence[int], *, flows: int, sent_in_all: int
    ) -> Matrix:
        """Of the flows in `apart`, in order, `bad[i]` of `sent[i]` probes fared badly; all others are well and sent what
        the sums say. `flows` and `sent_in_all` are of all."""
        rows = tuple(i for i in range(len(apart)) if bad[i] > 0 and sent[i] > 0)
        changes: dict[int, _Change] = {}
        crossing: dict[str, list[tuple[int, float]]] = {}  # the bad rows of each component
        row = 0
        for counted, now, spoiled in zip(apart, sent, bad, strict=True):
            before = self._sent_by.get(counted, 0)
            is_bad = spoiled > 0 and now > 0
            if not is_bad and now == before:
                continue
            came = (now > 0) - (before > 0)
            sign = came * self._sign_of.get(counted, 0)
            for cell in counted.way:
                change = changes.get(cell)
                if change is None:
                    change = changes[cell] = _Change()
                change.sent += now - before
                change.flows += came
                change.sign += sign
                if is_bad:
                    change.bad += spoiled
                    change.of_bad += now
                    crossing.setdefault(self._component[cell], []).append((row, self._share[cell]))
            row += is_bad
        groups: dict[tuple[tuple[float, int, int, int], ...], list[str]] = {}
        for component in sorted(crossing):
            groups.setdefault(self._crossed(component, changes), []).append(component)
        columns = tuple(self._column(members, tuple(crossing[members[0]]), changes) for members in groups.values())
        return Matrix(
            columns=columns,
            rows=rows,
            sent=tuple(sent[i] for i in rows),
            bad=tuple(min(bad[i], sent[i]) for i in rows),
            lengths=tuple(self._length(apart[i]) for i in rows),
            of_row=by_row(columns, len(rows)),
            sent_in_all=sent_in_all,
            bad_in_all=sum(bad[i] for i in rows),
            flows=flows,
        )

    def _crossed(self, component: str, changes: Mapping[int, _Change]) -> tuple[tuple[float, int, int, int], ...]:
        """The same for two components only if the same flows cross them in the same shares."""
        found = []
        for cell in self._cells_of[component]:
            change = changes.get(cell, _NONE)
            if flows := self._flows[cell] + change.flows:
                found.append((self._share[cell], flows, self._sent[cell] + change.sent, self._sign[cell] + change.sign))
        return tuple(found)

    def _column(self, members: list[str], rows: tuple[tuple[int, float], ...], changes: Mapping[int, _Change]) -> Column:
        good: list[tuple[float, int]] = []
        clean: list[tuple[float, int]] = []
        flows, weight, crossed = 0, 0.0, 0.0
        for cell in self._cells_of[members[0]]:
            change, share = changes.get(cell, _NONE), self._share[cell]
            n, sent = self._flows[cell] + change.flows, self._sent[cell] + change.sent
            if not n:
                continue
            good.append((share, sent - change.bad))
            if sent > change.of_bad:
                clean.append((share, sent - change.of_bad))
            flows += n
            weight += share * n
            crossed += share * sent
        components, into = told_apart(members)
        return Column(
            components=components, into=into, rows=rows, good=tuple(good), clean=tuple(clean), flows=flows, weight=weight,
            sent=crossed,
        )  # fmt: skip

    def _length(self, counted: Counted) -> float:
        return sum(self._share[cell] for cell in counted.way if INTO not in self._component[cell])


_NONE = _Change()


def _scattered(number: int) -> int:
    """A number of 64 bits that looks drawn by chance and is always the same (splitmix64)."""
    mixed = number * 0x9E3779B97F4A7C15 & _64
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64
    return mixed ^ mixed >> 31
