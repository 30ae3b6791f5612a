"""When ports lost their links, told once each, whoever told it and however often.

Kernel log, netlink, user space and the switch each tell of one loss, and a collector that starts again tells old ones anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, host_of
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import CLOCK_DOUBT_S, canonical, events

DOWN_WORDS = frozenset({"down", "DOWN", "lowerlayerdown", "dormant", "Disabled", "Polling", "disconnected"})
CARRIER_STATES = frozenset({"operstate", "state", "carrier", "phys_state"})
SAME_MOMENT_S = 0.5  # a line that is read again has nearly the same time
RETOLD_S = 2.0  # and comes at least this much later than it did first


@dataclass(frozen=True, slots=True)
class Losses:
    """The history of one port: distinct losses in order, and whether it is down now."""

    nic: ComponentId
    downs: tuple[Observed, ...]
    ups: tuple[Observed, ...]
    told: tuple[Observed, ...]
    count: int
    down_now: bool
    first_at: datetime  # broker time
    last_at: datetime


def losses_of(case: Case) -> list[Losses]:
    """Of every port that carries traffic, as far as is known, in order of its name."""
    known: list[Losses] | None = case.memo.get("losses")
    if known is None:
        known = case.memo["losses"] = _losses(case)
    return known


def _losses(case: Case) -> list[Losses]:
    changes: dict[ComponentId, list[Observed]] = {}
    for each, event in events(case, EventName.LINK_DOWN, EventName.LINK_UP):
        changes.setdefault(canonical(case, event.component), []).append(each)
    states: dict[ComponentId, list[Observed]] = {}
    for each in case.observed:
        if isinstance(each.fact, State) and each.fact.name in CARRIER_STATES:
            states.setdefault(canonical(case, each.fact.component), []).append(each)
    found = []
    for nic, seen in sorted(changes.items()):
        if case.topology.carries_traffic(nic) is False:
            continue
        seen = sorted(_told_once(seen), key=in_order)
        downs = [each for each in seen if is_down(each)]
        if not downs:
            continue
        ups = [each for each in seen if not is_down(each)]
        distinct = _distinct(downs, ups, offline=case.offline)
        newest = max(seen, key=lambda each: (happened(each), each.observed_at, not is_down(each), each.id))
        down_now = is_down(newest)
        told = tuple(each for each in states.get(nic, []) if isinstance(each.fact, State) and each.fact.value in DOWN_WORDS)
        found.append(
            Losses(nic, tuple(downs), tuple(ups), told, distinct, down_now, happened(downs[0]), happened(downs[-1]))
        )
    return found


def happened(each: Observed) -> datetime:
    """When it happened, by the broker's clock: no later than the broker heard of it, nor than the host's clock allows. A
    collector that was cut off, or starts and reads the kernel log again, tells old losses late."""
    fact = each.fact
    said_at = (fact.last_at or fact.observed_at) if isinstance(fact, Event) else each.observed_at
    return min(each.received_at, said_at + timedelta(seconds=CLOCK_DOUBT_S))


def _told_once(seen: list[Observed]) -> list[Observed]:
    """Without lines that a collector read again after it was killed: the same words of the same moment, heard anew."""
    kept: list[Observed] = []
    known: dict[tuple[str, EventName, str], list[Observed]] = {}
    for each in seen:
        assert isinstance(each.fact, Event)
        same = known.setdefault((each.source, each.fact.name, each.fact.excerpt), [])
        if any(_again(each, other) for other in same):
            continue
        same.append(each)
        kept.append(each)
    return kept


def _again(each: Observed, other: Observed) -> bool:
    heard_s = abs((each.received_at - other.received_at).total_seconds())
    return heard_s > RETOLD_S and abs((each.observed_at - other.observed_at).total_seconds()) < SAME_MOMENT_S


def host_of_link(case: Case, end: ComponentId) -> str | None:
    """The host at a link's end, whichever end told: a switch speaks of its port, the adapter is at the other end."""
    other = case.topology.peer_of(end)
    nics = [each for each in (end, other) if each is not None and each.startswith("nic:")]
    return host_of(nics[0]) if len(nics) == 1 else None


def is_down(each: Observed) -> bool:
    return isinstance(each.fact, Event) and each.fact.name is EventName.LINK_DOWN


def _distinct(downs: list[Observed], ups: list[Observed], *, offline: bool) -> int:
    """How often the link was lost. Several witnesses of one loss are one; one witness that says it twice means two."""
    by_witness: dict[str, int] = {}
    for each in downs:
        assert isinstance(each.fact, Event)
        witness = f"{each.source}/{each.fact.attrs.get('by', '')}"
        by_witness[witness] = by_witness.get(witness, 0) + each.fact.count
    return max(by_witness.values())


def in_order(each: Observed) -> tuple[datetime, datetime, str]:
    return happened(each), each.observed_at, each.id
