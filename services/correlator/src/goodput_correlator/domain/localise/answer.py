"""The answer of localisation: ranked suspects, what each explains, what nothing explains, and what is not known.

First the slow hosts, for what is lost at them says nothing of the network; then losses, then delays, each by the chosen
variant. A suspect is a component with those that probes cannot tell from it (`same`): an adapter and its cable lose the
same probes. Which of them is named first is only a habit: where nothing comes through it is more often the adapter (or
its host) that is dead, where some do the cable or its optics. Counters at both ends tell.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentId, ComponentKind, kind_of
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.counted import Flow
from goodput_correlator.domain.localise.ends import Role, SlowEnd, delayed, host_behind, slow_ends
from goodput_correlator.domain.localise.likelihood import likelihood
from goodput_correlator.domain.localise.matrix import Column, Matrix, Ways, matrix
from goodput_correlator.domain.localise.pick import Pick, Variant
from goodput_correlator.domain.localise.reports import Gathered
from goodput_topology.graph import Fabric

DEAD_RATE = 0.95
CITED_MAX = 8
_DEAD_FIRST = (ComponentKind.NIC, ComponentKind.LINK, ComponentKind.PORT, ComponentKind.SWITCH, ComponentKind.HOST)
_LOSSY_FIRST = (ComponentKind.LINK, ComponentKind.PORT, ComponentKind.NIC, ComponentKind.SWITCH, ComponentKind.HOST)


class Trouble(enum.StrEnum):
    LOSS = "loss"
    DELAY = "delay"  # in the network
    SLOW_RESPONDER = "slow_responder"
    SLOW_PROBER = "slow_prober"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A component that explains bad probes. `score` 0..1 is how sure the variant is, no calibrated probability; `rate` the
    share of the probes crossing it that it spoils; `explains` how many bad probes of how many `flows`."""

    component: ComponentId
    trouble: Trouble
    score: float
    rate: float
    explains: float
    flows: int  # bad ones among those that cross it
    flows_in_all: int
    same: tuple[ComponentId, ...] = ()  # what probes cannot tell from it
    into: ComponentId | None = None  # the end of a link that it fails towards, where only one direction does
    delay_us: float = -1.0
    usual_us: float = -1.0
    told: tuple[Observed, ...] = ()  # some of the reports that say so


@dataclass(frozen=True, slots=True, kw_only=True)
class Localised:
    """`lost`, `late`: probes in all; `*_unexplained`: those laid on no suspect. `came_late` and `waiting` reports as in
    `reports.Gathered`."""

    suspects: tuple[Suspect, ...] = ()
    flows: int = 0
    sent: int = 0
    lost: int = 0
    lost_unexplained: float = 0.0
    delayed: int = 0
    delayed_unexplained: float = 0.0
    unexplained_flows: tuple[tuple[ComponentId, ComponentId, int], ...] = ()  # some (prober, target, flow)
    waiting: int = 0
    came_late: int = 0
    odd: int = 0


NOTHING = Localised()
UNEXPLAINED_LISTED = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What every variant starts from. `late` is of each flow how many answers the network delayed."""

    gathered: Gathered
    slow: tuple[SlowEnd, ...]
    late: tuple[int, ...]
    losses: Matrix
    delays: Matrix


def prepare(gathered: Gathered, topology: Fabric, ways: Ways | None = None) -> Prepared:
    """Lay what happened at slow hosts aside, and the rest out as flows against components. `ways`: what is known of this
    topology from before."""
    flows = gathered.flows
    ways = ways if ways is not None else Ways(topology)
    slow = slow_ends(flows)
    counts = counting(flows, slow, delayed(flows))
    crossed = [ways.of(f) for f in flows] if any(counts.lost) or any(counts.late) else [{} for _ in flows]
    return Prepared(
        gathered=gathered,
        slow=slow,
        late=counts.late,
        losses=matrix(crossed, counts.sent, counts.lost),
        delays=matrix(crossed, counts.answered, counts.late),
    )


@dataclass(frozen=True, slots=True)
class Counts:
    """Of each flow, the probes that say something of the network."""

    sent: tuple[int, ...]
    lost: tuple[int, ...]
    answered: tuple[int, ...]
    late: tuple[int, ...]


def counting(flows: Sequence[Flow], slow: Sequence[SlowEnd], late: Sequence[int]) -> Counts:
    """None of those from and to slow hosts."""
    busy = {each.host for each in slow}
    aside = [bool(busy) and bool(busy & {host_behind(f.prober), host_behind(f.target)}) for f in flows]
    sent = tuple(0 if apart else f.sent for f, apart in zip(flows, aside, strict=True))
    answered = tuple(0 if apart else f.answered for f, apart in zip(flows, aside, strict=True))
    return Counts(
        sent=sent,
        lost=tuple(min(n, f.lost) for f, n in zip(flows, sent, strict=True)),
        answered=answered,
        late=tuple(min(n, k) for n, k in zip(answered, late, strict=True)),
    )


def localise(gathered: Gathered, topology: Fabric, variant: Variant = likelihood, *, ways: Ways | None = None) -> Localised:
    """The order of reports and their doubles make no difference."""
    return answer(prepare(gathered, topology, ways), variant)


def answer(prepared: Prepared, variant: Variant = likelihood) -> Localised:
    gathered, losses, delays = prepared.gathered, prepared.losses, prepared.delays
    flows, in_all = gathered.flows, gathered.in_all
    at_loss, at_delay = variant(losses), variant(delays)
    suspects = [
        *(_slow_suspect(each, flows) for each in prepared.slow),
        *(_suspect(pick, losses, flows, Trouble.LOSS) for pick in at_loss),
        *(_suspect(pick, delays, flows, Trouble.DELAY) for pick in at_delay),
    ]
    suspects.sort(key=lambda each: -each.score)  # stable: the variant's own order within equal scores
    lost_left, unexplained = _left(losses, at_loss)
    return Localised(
        suspects=tuple(suspects),
        flows=in_all.flows,
        sent=in_all.sent,
        lost=in_all.lost,
        lost_unexplained=round(lost_left, 3),
        delayed=sum(prepared.late),
        delayed_unexplained=round(_left(delays, at_delay)[0], 3),
        unexplained_flows=tuple((flows[i].prober, flows[i].target, flows[i].flow) for i in unexplained[:UNEXPLAINED_LISTED]),
        waiting=gathered.waiting,
        came_late=gathered.came_late,
        odd=gathered.odd,
    )


def _left(of: Matrix, picks: Sequence[Pick]) -> tuple[float, list[int]]:
    """The bad probes that no pick explains, and the flows with most of theirs unexplained, the worst first."""
    explained = [0.0] * len(of.rows)
    for pick in picks:
        for row, probes in pick.explained:
            explained[row] += probes
    left = [max(0.0, bad - explained[row]) for row, bad in enumerate(of.bad)]
    worst = sorted((row for row, rest in enumerate(left) if rest > of.bad[row] / 2), key=lambda row: (-left[row], row))
    return sum(left), [of.rows[row] for row in worst]


def _suspect(pick: Pick, of: Matrix, flows: Sequence[Flow], trouble: Trouble) -> Suspect:
    column = of.columns[pick.column]
    first, *same = _named(column, pick.rate, trouble)
    rows = sorted((row for row, _ in pick.explained), key=lambda row: (-of.bad[row], row))
    return Suspect(
        component=first,
        trouble=trouble,
        score=round(pick.score, 4),
        rate=round(pick.rate, 6),
        explains=round(pick.explains, 3),
        flows=len(column.rows),
        flows_in_all=column.flows,
        same=tuple(same),
        into=column.into or None,
        told=_cited(flows[of.rows[row]] for row in rows[:CITED_MAX]),
    )


def _named(column: Column, rate: float, trouble: Trouble) -> list[ComponentId]:
    order = _DEAD_FIRST if rate >= DEAD_RATE and trouble is Trouble.LOSS else _LOSSY_FIRST
    return sorted(column.components, key=lambda each: (order.index(kind_of(each)), each))


def _slow_suspect(slow: SlowEnd, flows: Sequence[Flow]) -> Suspect:
    end: Callable[[Flow], ComponentId] = (lambda f: f.target) if slow.role is Role.RESPONDER else (lambda f: f.prober)
    own = [f for f in flows if slow.host in (host_behind(f.prober), host_behind(f.target))]
    bad = [f for f in own if f.lost or f.late]
    witnesses = sorted((f for f in flows if host_behind(end(f)) == slow.host), key=lambda f: (not f.told, -f.late, -f.lost))
    return Suspect(
        component=slow.host,
        trouble=Trouble.SLOW_RESPONDER if slow.role is Role.RESPONDER else Trouble.SLOW_PROBER,
        score=round(1 - 1 / (1 + slow.flows), 4),  # each flow is one more witness
        rate=round(sum(f.late for f in own) / max(1, sum(f.answered for f in own)), 6),
        explains=float(sum(f.lost + f.late for f in bad)),
        flows=len(bad),
        flows_in_all=len(own),
        delay_us=round(slow.delay_us, 1),
        usual_us=round(slow.usual_us, 1),
        told=_cited(witnesses[:CITED_MAX]),
    )


def _cited(flows: Iterable[Flow]) -> tuple[Observed, ...]:
    return tuple({each.id: each for f in flows for each in f.told[:2]}.values())[:CITED_MAX]
