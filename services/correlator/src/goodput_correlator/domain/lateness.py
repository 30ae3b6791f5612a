"""Which ranks are late: whose own work has grown while the others only wait for them.

In synchronous training all ranks of a job have the same step time, so a slow step says nothing of who made it slow. A rank's
*own* time does: the step without what it waited for others. Three pictures are told apart.

- One rank's own time (or that of a few, of one host) has grown by about as much as the step: it is late, the others wait.
- Nobody's own time has grown: the time goes by between the ranks, in the network.
- Everybody's has: the work has become more (longer sequences, another model), or something that all share is slow.

A rank is held against its own past first, which leaves out that stages of a pipeline differ; without a past against the
other ranks, with less certainty. Where agents cannot tell waiting from work, phases are compared one by one: who is late has
grown in *another* phase than those who wait for it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.pace import RankPace

STRAGGLER_RATIO = 0.75  # usual over present own time: below, a straggler beyond doubt (NVIDIA's resiliency tools use this)
SHARE_MIN = 0.35  # of what steps have become longer by: a rank that explains less is not why
GROWTH_MIN = 0.04  # of a usual step: less is the give and take of a healthy job
SPREADS_MIN = 4.0  # how far a late rank stands out from the spread of all
SPREAD_MIN = 0.008  # of a usual step: clocks and rounding
CLEAR, MARGINAL = 0.84, 0.66  # how sure own times alone make it that a rank is late
WITHOUT_PAST, WITHOUT_WAITING = 0.15, 0.1  # less sure, where only other ranks or only phases can be compared with
COMMON_MAX = 0.35  # of all ranks: when more are late, what is late is not a rank
IN_NETWORK_MAX = 0.3  # of what steps have become longer by: own times that grew by less leave it to the network
KNOWN_MIN = 0.5  # of all ranks have to tell


@dataclass(frozen=True, slots=True)
class Late:
    """A late rank. `extra_ms` is how much its own work has grown by, `ratio` usual over present own time, `phase` where the
    most of it is ("" is not known), `sure` how sure that alone makes it."""

    rank: int
    extra_ms: float
    own_ms: float
    ratio: float
    phase: str
    sure: float
    told: tuple[Observed, ...]


@dataclass(frozen=True, slots=True)
class Lateness:
    """`known`: of how many ranks own times are told. `slower_ms`: by how much a step has become longer. `common_ms`: by how
    much the own time of the median rank has."""

    known: int = 0
    slower_ms: float = 0.0
    common_ms: float = 0.0
    late: Mapping[int, Late] = field(default_factory=dict)
    tells_waiting: bool = False

    @property
    def in_network(self) -> bool:
        """Whether the time is shown to pass outside of everybody's own work."""
        return bool(self.known) and self.tells_waiting and not self.late and self.common_ms < IN_NETWORK_MAX * self.slower_ms


def lateness(case: Case) -> Lateness:
    """Computed once a case."""
    found = case.memo.get("lateness")
    if not isinstance(found, Lateness):
        found = case.memo["lateness"] = _lateness(case)
    return found


def _lateness(case: Case) -> Lateness:
    slow, paces = case.slow, [pace for _, pace in sorted(case.paces.items())]
    if slow is None or not paces or len(paces) < KNOWN_MIN * len(case.world):
        return Lateness()
    slower_ms = max(statistics.median(pace.step_ms for pace in paces) - slow.usual_ms, GROWTH_MIN * slow.usual_ms)
    told = [pace for pace in paces if pace.own_ms is not None]
    if len(told) < max(2.0, KNOWN_MIN * len(case.world)):
        return Lateness(slower_ms=slower_ms)
    tells = all(pace.tells_waiting for pace in told)
    growth = _of_own(told) if tells else _of_phases(told)
    common_ms = statistics.median(grown for grown, _, _ in growth.values())
    spread_ms = 1.4826 * statistics.median(abs(grown - common_ms) for grown, _, _ in growth.values())
    least_ms = max(
        SHARE_MIN * slower_ms,
        SPREADS_MIN * max(spread_ms, SPREAD_MIN * slow.usual_ms),
        GROWTH_MIN * slow.usual_ms,
    )
    late = {}
    for pace in told:
        grown_ms, phase, has_past = growth[pace.rank]
        if grown_ms - common_ms >= least_ms:
            late[pace.rank] = _late(pace, grown_ms - common_ms, phase, has_past=has_past, tells=tells)
    if len(late) > COMMON_MAX * len(told):
        late = {}
    return Lateness(len(told), slower_ms, common_ms, late, tells)


def _late(pace: RankPace, extra_ms: float, phase: str, *, has_past: bool, tells: bool) -> Late:
    own_ms = pace.own_ms or 0.0
    ratio = max(0.0, own_ms - extra_ms) / own_ms if own_ms else 1.0
    sure = MARGINAL + (CLEAR - MARGINAL) * min(1.0, (1.0 - ratio) / (1.0 - STRAGGLER_RATIO))
    sure -= (0.0 if has_past else WITHOUT_PAST) + (0.0 if tells else WITHOUT_WAITING)
    return Late(pace.rank, extra_ms, own_ms, ratio, phase, sure, pace.told)


_Growth = Mapping[int, tuple[float, str, bool]]  # of each rank: by how much, in which phase most, held against its past


def _of_own(paces: list[RankPace]) -> _Growth:
    """By how much each rank's own time has grown."""
    have_past = sum(1 for pace in paces if pace.usual_own_ms is not None) * 2 >= len(paces)
    typical_ms = statistics.median(pace.own_ms or 0.0 for pace in paces)
    usual = _usual_phases(paces)
    found = {}
    for pace in paces:
        past = pace.usual_own_ms if have_past else None
        grown_ms = (pace.own_ms or 0.0) - (past if past is not None else typical_ms)
        if have_past and past is None:
            grown_ms = 0.0  # a rank that has no past among those that have says nothing
        grown = {name: spent_ms - usual(pace, name) for name, spent_ms in pace.phases_ms.items()}
        phase = max(sorted(grown), key=lambda name: grown[name], default="")
        found[pace.rank] = (grown_ms, phase if phase and grown[phase] >= 0.5 * grown_ms > 0 else "", past is not None)
    return found


def _of_phases(paces: list[RankPace]) -> _Growth:
    """By how much each rank's longest-grown phase has grown beyond what that phase has grown by on others."""
    usual = _usual_phases(paces)
    names = sorted({name for pace in paces for name in pace.phases_ms})
    grown = {pace.rank: {name: pace.phases_ms.get(name, 0.0) - usual(pace, name) for name in names} for pace in paces}
    common = {name: statistics.median(each[name] for each in grown.values()) for name in names}
    found = {}
    for pace in paces:
        beyond = {name: grown[pace.rank][name] - common[name] for name in names}
        phase = max(names, key=lambda name: beyond[name], default="")
        found[pace.rank] = (beyond.get(phase, 0.0), phase, bool(pace.usual_phases_ms))
    return found


def _usual_phases(paces: Iterable[RankPace]) -> Callable[[RankPace, str], float]:
    """How long a phase of a rank usually takes: by its own past, else as long as with the median rank now."""
    now: dict[str, list[float]] = {}
    for pace in paces:
        for name, spent_ms in pace.phases_ms.items():
            now.setdefault(name, []).append(spent_ms)
    typical = {name: statistics.median(spent) for name, spent in now.items()}

    def usual(pace: RankPace, name: str) -> float:
        return pace.usual_phases_ms.get(name, typical.get(name, 0.0) if not pace.usual_phases_ms else 0.0)

    return usual
