"""How much faster would the step have been without this straggler? Answered by replaying the recorded schedule.

A slow worker does not cost what it is slow by: work that nobody waits for may be slow for nothing, and a small delay on the
critical path holds up everybody. So the step is replayed, operation by operation, with some durations exchanged:

* T: with the durations as they were recorded. What an operation waited for others is not its own: of a meeting, only the
  time from the last arrival to the end counts. Gaps in which nothing was recorded are left out on both sides;
* T_ideal: every operation takes what its kind usually takes (the mean of computations, the median of communication);
* T_fixed: only the suspect is made ideal.

The slowdown is S = T / T_ideal, the suspect's contribution M = (T - T_fixed) / (T - T_ideal): 1 where it is the whole
reason, 0 where it costs nothing. The slowdown *of* a suspect is the reverse, everybody ideal but it (Lin et al., OSDI 2025).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median

from goodput_correlator.domain.schedule import CLIP, FORWARD, TALK, Node, Schedule, UnknownSchedule, Work, schedule

CLOCK_DOUBT_S = 0.01  # a meeting that seems to end by more than this before its last member came is one of unequal clocks
WORST_SHARE = 0.03

Chosen = Callable[[int, Node], bool]  # (replica, operation) -> whether it belongs to the suspect
Durations = list[list[float]]  # operation -> lane -> seconds


def stage(number: int) -> Chosen:
    return lambda _, node: node.stage == number


def replica(number: int) -> Chosen:
    return lambda mine, _: mine == number


def kinds(*names: str) -> Chosen:
    return lambda _, node: node.kind in names


def workers(*places: tuple[int, int]) -> Chosen:
    """By (replica, stage)."""
    return lambda mine, node: (mine, node.stage) in places


class WhatIf:
    """Of one trace. A lane is one replica in one step; steps or replicas that lack an operation are left out (`left_out`
    steps). Raises UnknownSchedule where nothing complete remains or the schedule is unknown. Each question costs one replay,
    linear in the operations of the trace."""

    def __init__(self, works: Iterable[Work]) -> None:
        lanes: dict[tuple[int, int], dict[Node, Work]] = defaultdict(dict)
        for work in works:
            lanes[work.step, work.replica][Node(work.stage, work.kind, work.seq)] = work
        if not lanes:
            raise UnknownSchedule("the trace is empty")
        first = max(lanes, key=lambda lane: (len(lanes[lane]), -lane[0], -lane[1]))
        self._schedule: Schedule = schedule(lanes[first].values())
        self.replicas = tuple(sorted({mine for _, mine in lanes}))
        whole = set(self._schedule.nodes)
        steps = sorted({step for step, _ in lanes})
        self.steps = tuple(
            step for step in steps if all(lanes.get((step, mine), {}).keys() == whole for mine in self.replicas)
        )
        self.left_out = len(steps) - len(self.steps)
        if not self.steps:
            raise UnknownSchedule("no step has the same operations in all replicas: the trace is incomplete")
        self.stages = tuple(sorted({node.stage for node in self._schedule.nodes}))
        self._lanes = [(step, mine) for step in self.steps for mine in self.replicas]
        self._recorded = self._own([[lanes[lane][node] for lane in self._lanes] for node in self._schedule.nodes])
        self._ideal = self._usual()
        self.actual_s = self._replay(self._recorded)
        self.ideal_s = self._replay(self._ideal)

    @property
    def slowdown(self) -> float:
        """S."""
        return self.actual_s / self.ideal_s if self.ideal_s > 0 else 1.0

    def fixed_s(self, chosen: Chosen) -> float:
        """T_fixed: mean time of a step with the chosen operations ideal."""
        return self._replay(self._mixed(self._ideal, self._recorded, chosen))

    def contribution(self, chosen: Chosen) -> float:
        """M of the chosen operations. It may leave 0..1, as others get slower when one gets ideal; 0 without a slowdown."""
        lost_s = self.actual_s - self.ideal_s
        return (self.actual_s - self.fixed_s(chosen)) / lost_s if abs(lost_s) > 1e-9 else 0.0

    def slowdown_of(self, chosen: Chosen) -> float:
        """S of a step in which everything is ideal but the chosen operations."""
        return self._replay(self._mixed(self._recorded, self._ideal, chosen)) / self.ideal_s if self.ideal_s > 0 else 1.0

    def worst_workers(self, share: float = WORST_SHARE) -> tuple[tuple[int, int], ...]:
        """The (replica, stage) that slow the step most, `share` of all and one at least. A worker is scored by the lesser of
        its replica's and its stage's slowdown: one question a replica and a stage instead of one for each worker."""
        by_replica = {mine: self.slowdown_of(replica(mine)) for mine in self.replicas}
        by_stage = {number: self.slowdown_of(stage(number)) for number in self.stages}
        places = [(mine, number) for number in self.stages for mine in self.replicas]
        places.sort(key=lambda place: (-min(by_replica[place[0]], by_stage[place[1]]), place))
        return tuple(places[: math.ceil(len(places) * share)])

    def _own(self, works: Sequence[Sequence[Work]]) -> Durations:
        """What each operation took by itself: of meetings, from the last arrival on."""
        found = [[work.duration_s for work in mine] for mine in works]
        for members in self._schedule.order:
            if members[0] not in self._schedule.meets:
                continue
            starts = [max(each) for each in zip(*([work.start_s for work in works[n]] for n in members), strict=True)]
            if members[0] in self._schedule.across:
                starts = self._latest_of_replicas(starts)
            for n in members:
                own = [w.start_s + w.duration_s - begun for w, begun in zip(works[n], starts, strict=True)]
                found[n] = [0.0 if each <= -CLOCK_DOUBT_S else each for each in own]
        return found

    def _usual(self) -> Durations:
        by_kind: dict[str, list[float]] = defaultdict(list)
        for node, mine in zip(self._schedule.nodes, self._recorded, strict=True):
            by_kind[node.kind].extend(mine)
        usual = {kind: median(mine) if kind in TALK else fmean(mine) for kind, mine in by_kind.items()}
        return [[usual[node.kind]] * len(self._lanes) for node in self._schedule.nodes]

    def _mixed(self, inside: Durations, outside: Durations, chosen: Chosen) -> Durations:
        """`inside` for the chosen operations, `outside` for all others."""
        found = []
        for node, one, other in zip(self._schedule.nodes, inside, outside, strict=True):
            takes = {mine for mine in self.replicas if chosen(mine, node)}
            if len(takes) in (0, len(self.replicas)):
                found.append(one if takes else other)
            else:
                found.append([a if lane[1] in takes else b for lane, a, b in zip(self._lanes, one, other, strict=True)])
        return found

    def _replay(self, durations: Durations) -> float:
        """Mean time of a step, in seconds."""
        plan = self._schedule
        begin = [0.0] * len(self._lanes)
        ends: list[list[float]] = [begin] * len(plan.nodes)
        for members in plan.order:
            starts = begin
            for n in members:
                for need in plan.needs[n]:
                    starts = list(map(max, starts, ends[need]))
            if members[0] in plan.across:
                starts = self._latest_of_replicas(starts)
            for n in members:
                ends[n] = list(map(float.__add__, starts, durations[n]))
        width = len(self.replicas)
        last = list(map(max, *ends)) if len(ends) > 1 else ends[0]
        return fmean(max(last[at : at + width]) for at in range(0, len(last), width))

    def _latest_of_replicas(self, times: list[float]) -> list[float]:
        width = len(self.replicas)
        return [latest for at in range(0, len(times), width) for latest in [max(times[at : at + width])] * width]


def side_by_side(own_s: Mapping[int, Sequence[float]]) -> WhatIf:
    """Where no schedule is recorded: workers that each do their own work in a step and then wait for each other. `own_s`
    holds each rank's own time, step by step; ranks are the replicas, and steps that a rank lacks are left out."""
    works = []
    for rank, times in own_s.items():
        for step, time_s in enumerate(times):
            works.append(Work(step, rank, 0, FORWARD, 0, 0.0, float(time_s)))
            works.append(Work(step, rank, 0, CLIP, 0, float(time_s), 0.0))
    return WhatIf(works)
