"""A whole host that has gone quiet: none of its ranks reports, nor does its collector, while the job waits for them.

Silence of a collector alone is *unknown*: it proves nothing. It counts together with the silence of every rank there while
the ranks elsewhere report that they wait. A collector that speaks (of a host that has come up again, say) takes that back,
unless all links of the host were lost together: cables fail one by one, and what they share is the host.

The others' watchdogs end them in time, and nobody reports any more. Then it counts who had gone quiet before the last word
of the job. Where all fell silent together, it is the way to us that is broken.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.ids import ComponentId, host_id, host_of
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, EventName
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, nics_of_job, symptoms_of
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.gaps import SILENT_S
from goodput_correlator.domain.losses import Losses, losses_of
from goodput_correlator.domain.silence import SEVERAL_S, speaks

ENGINE = "host_down"
NO_COLLECTOR = 0.72
CUT_OFF = 0.88
LINKS_MIN = 2
TOGETHER_S = 5.0
LOCKUPS = frozenset({"soft_lockup", "hard_lockup", "panic", "mce"})


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or case.stalled_since is None or case.offline:
        return ()
    last_word = max((seen.received_at for seen in case.progress.values()), default=case.now)
    reporting = {rank for rank, seen in case.progress.items() if seen.received_at >= last_word - timedelta(seconds=SILENT_S)}
    found = []
    for host in case.placement.hosts:
        ranks = case.placement.on_host(host)
        if any(rank in reporting for rank in ranks):
            continue
        finding = _silent(case, host, ranks)
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _heard_until(case: Case) -> datetime:
    """When anybody was last heard of. What nobody could tell any more, this host cannot have missed to tell."""
    return max((each.received_at for each in (*case.progress.values(), *case.observed)), default=case.now)


def _recent(case: Case, seen: Observed, seconds: float) -> bool:
    return seen.received_at >= case.now - timedelta(seconds=seconds)


def _silent(case: Case, host: str, ranks: tuple[int, ...]) -> Finding | None:
    told = [each for each in case.observed if each.host == host]
    cut_off = _cut_off(case, host)
    speaking = speaks(case, host)
    if speaking and not cut_off:
        return None
    beats = [each for each in told if isinstance(each.fact, CollectorHeartbeat)]
    missed = 0.0
    if beats and isinstance(beats[-1].fact, CollectorHeartbeat):
        missed = (_heard_until(case) - beats[-1].received_at).total_seconds() / max(1.0, beats[-1].fact.interval_s)
    score = 0.55 if missed < 1.5 else 0.85 if missed < 2.5 else 0.92
    if (
        not beats
        and len(ranks) > 1
        and all(not _recent(case, case.progress[r], SEVERAL_S) for r in ranks if r in case.progress)
    ):
        score = NO_COLLECTOR  # several ranks that fall silent together and are all that the host has
    if cut_off:
        score = CUT_OFF if speaking else max(score, CUT_OFF)
    evidence = [cite(each, "the last heartbeat of its collector", 0.5, host_id(host)) for each in beats[-1:]]
    evidence += [
        cite(case.progress[rank], f"the last word of rank {rank}", 0.3, host_id(host))
        for rank in ranks
        if rank in case.progress
    ][:4]
    lockups = [
        (each, event)
        for each, event in events(case, EventName.HOST_STALL)
        if each.host == host and isinstance(event, Event) and event.attrs.get("what") in LOCKUPS
    ]
    evidence += [cite(each, "the kernel reported a lockup before it", 0.6, host_id(host)) for each, _ in lockups[:2]]
    evidence += [cite(each.downs[-1], "one of its links, all of which were lost together", 0.6) for each in cut_off[:4]]
    if lockups:
        score = max(score, 0.9)
    return Finding(
        fault_class=FaultClass.HOST_DOWN,
        component=host_id(host),
        score=score,
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=ranks,
        host=host,
        explains=symptoms_of(case),
        because="no process of the job on it speaks any more, so its ranks join nothing"
        + ("; all its links were lost together" if cut_off else ""),
        hardware=True,
        action=Action(
            kind=ActionKind.SWAP_NODE, target=host_id(host), reason="the host does not answer: continue on a spare node"
        ),
    )


def _cut_off(case: Case, host: str) -> list[Losses]:
    """The losses of all its links, where there are several and they came together; [] otherwise."""
    links = {link for nic in nics_of_job(case) if host_of(nic) == host and (link := case.topology.link_of(nic)) is not None}
    lost: dict[ComponentId, Losses] = {}
    for each in losses_of(case):
        link = case.topology.link_of(each.nic)
        if link in links and each.down_now:
            lost.setdefault(link, each)
    if len(links) < LINKS_MIN or lost.keys() != links:
        return []
    times = [each.last_at for each in lost.values()]
    return list(lost.values()) if max(times) - min(times) <= timedelta(seconds=TOGETHER_S) else []
