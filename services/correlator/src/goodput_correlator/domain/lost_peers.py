"""Whom the others lost: errors about closed connections name the address at the other end.

A process that ends leaves sockets behind, and the kernel of its host closes them at once. Whoever notices says so, with the
address of that host, and then often ends as well and is lost by others in turn. So the first few to say it name the host
where it began, and later ones name whoever followed. An address tells the host and not which of its ranks.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from goodput_common.contracts.ids import InvalidComponentId, host_of
from goodput_common.contracts.telemetry import EventName
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import events

FIRST_WITHIN_S = 2.0  # by the broker's clock: those who noticed at about the same time
TOLD_MIN = 2  # one address alone may as well be that of the first victim
MOST = 0.7


def lost_host(case: Case) -> tuple[str, tuple[Observed, ...]] | None:
    """The host that the first of the others lost, and who said so; None where they say nothing or do not agree."""
    told = []
    for each, event in events(case, EventName.NCCL_NET_ERROR):
        if event.attrs.get("kind", "").startswith("connection_") and (peer := event.attrs.get("peer")):
            host = host_at(case, peer)
            if host is not None and host != each.host and (case.since is None or each.received_at >= case.since):
                told.append((each, host))
    if not told:
        return None
    until = min(each.received_at for each, _ in told) + timedelta(seconds=FIRST_WITHIN_S)
    first = [(each, host) for each, host in told if each.received_at <= until]
    counts = Counter(host for _, host in first)
    most = max(sorted(counts), key=lambda host: counts[host])
    if counts[most] < TOLD_MIN or counts[most] < MOST * len(first):
        return None
    return most, tuple(each for each, host in first if host == most)


def host_at(case: Case, address: str) -> str | None:
    """The host of the job that has this address, by the topology or because it is called so."""
    component = case.topology.resolve(None, address)
    hosts = case.placement.hosts if case.placement is not None else ()
    try:
        host = host_of(component) if component is not None else address
    except InvalidComponentId:
        return None
    return host if host in hosts else None
