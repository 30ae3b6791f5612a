"""A switch that fails as a whole, in part, or without a word.

Dead: many links are lost at about the same moment and all of them end at one switch. That beats the many link faults that it
looks like: one cause for all. A host that dies loses many links, too, but each to another switch; so what counts is how many
of a switch's own links are gone, of those that anybody watches.

Silent: it drops packets and counts nothing. Then the adapters whose traffic crosses it resend, and others do not. Which
switch that is follows from the set of those that resend, held against what lies behind each switch. Probes that are lost on
ways whose common part is the switch say the same, or are all there is.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.verdict import Action, ActionKind, Explained, FaultClass
from goodput_correlator.domain import probed
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, ranks_on, symptoms_of
from goodput_correlator.domain.diagnosis import _probes
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.losses import Losses, losses_of

ENGINE = "switch_fault"
LINKS_MIN = 3  # lost together: two may be an accident
TOGETHER_S = 10.0
WHOLE = 0.75  # of its links that anybody watches: the switch; less: a part of it
PART = 0.1
RESENDS = ("packet_seq_err", "out_of_sequence", "local_ack_timeout_err", "roce_adp_retrans", "implied_nak_seq_err")
RESENDS_PER_S_MIN = 1.0
ABOVE_OTHERS = 8.0  # times the median of all adapters of the job
RESENDS_SINCE_S = 15.0
FIT_MIN = 0.7
CITED = 10


def diagnose(case: Case) -> tuple[Finding, ...]:
    dead = tuple(_dead(case))
    if dead:
        return dead
    silent = tuple(_silent(case))
    return (*silent, *_by_probes(case, {each.component for each in silent if each.component is not None}))


# -- dead ---------------------------------------------------------------------------------------------------------------


def _dead(case: Case) -> Iterable[Finding]:
    lost = [each for each in losses_of(case) if each.down_now or case.offline]
    of_switch: dict[ComponentId, dict[ComponentId, Losses]] = {}
    for each in lost:
        link = case.topology.link_of(each.nic)
        for switch in _switches_at(case, each.nic):
            of_switch.setdefault(switch, {})[link or each.nic] = each
    for switch, links in sorted(of_switch.items()):
        together = _together(list(links.values()))
        if len(together) >= LINKS_MIN:
            finding = _finding_dead(case, switch, together)
            if finding is not None:
                yield finding


def _switches_at(case: Case, end: ComponentId) -> set[ComponentId]:
    other = case.topology.peer_of(end)
    ends = [each for each in (end, other) if each is not None and each.startswith("port:")]
    return {switch for each in ends if (switch := case.topology.switch_of(each)) is not None}


def _together(losses: list[Losses]) -> list[Losses]:
    """The largest set that was lost within some seconds."""
    by_time = sorted(losses, key=lambda each: (each.last_at, each.nic))
    best: list[Losses] = []
    for first in range(len(by_time)):
        until = by_time[first].last_at + timedelta(seconds=TOGETHER_S)
        some = [each for each in by_time[first:] if each.last_at <= until]
        if len(some) > len(best):
            best = some
    return best


def _finding_dead(case: Case, switch: ComponentId, lost: list[Losses]) -> Finding | None:
    ranks = ranks_on(case, switch)
    if case.placement is not None and not ranks:
        return None
    watched = _watched(case, switch)
    links = {case.topology.link_of(each.nic) or each.nic for each in lost}
    part = len(links) / max(len(watched | links), 1)
    if part < PART:
        return None
    score = 0.96 if part >= WHOLE else 0.8 + 0.1 * part
    words = "all" if part >= WHOLE else f"{len(links)} of {len(watched | links)}"
    evidence = [cite(each.downs[-1], f"a link of {switch} was lost, with {len(links) - 1} others", 0.7) for each in lost]
    return Finding(
        fault_class=FaultClass.SWITCH_FAULT,
        component=switch,
        score=score,
        evidence=tuple(evidence[:CITED]),
        engine=ENGINE,
        ranks=ranks,
        explains=symptoms_of(case),
        because=f"{words} watched links of {switch} were lost within {TOGETHER_S:g} s: one cause for all of them",
        decisive=part >= 0.5,
        settled=part >= WHOLE,
        hardware=True,
        action=_action(switch),
        victims=_victims(case, switch, lost),
    )


def _watched(case: Case, switch: ComponentId) -> set[ComponentId]:
    """Its links of which anybody would tell a loss: those to hosts of the job, and all where the switch tells of its own."""
    told = {component for component in case.measurements.components() if component.startswith("port:")}
    found = set()
    hosts = set(case.placement.hosts) if case.placement is not None else None
    for link in case.topology.links_of_switch(switch):
        ends = case.topology.ends_of(link) or ()
        near_job = any(
            end.startswith("nic:") and (hosts is None or end.removeprefix("nic:").partition("/")[0] in hosts) for end in ends
        )
        if near_job or any(end in told for end in ends):
            found.add(link)
    return found


def _victims(case: Case, switch: ComponentId, lost: list[Losses]) -> tuple[Explained, ...]:
    return tuple(
        Explained(
            component=case.topology.link_of(each.nic) or each.nic,
            symptom=f"the carrier of {each.nic} was lost",
            because=f"its other end is {switch}, which lost its other links too",
        )
        for each in lost
    )


# -- silent -------------------------------------------------------------------------------------------------------------


def _silent(case: Case) -> Iterable[Finding]:
    if case.placement is None or case.since is None:
        return
    rates, told = _resends(case)
    if not rates:
        return
    usual = statistics.median(rates.values())
    bar = max(RESENDS_PER_S_MIN, ABOVE_OTHERS * usual)
    resend = {nic for nic, rate in rates.items() if rate >= bar}
    if len(resend) < LINKS_MIN:
        return
    for switch in case.topology.of_kind(ComponentKind.SWITCH):
        behind = set(case.topology.nics_behind(switch)) & rates.keys()
        if len(behind) < LINKS_MIN or len(behind) >= 0.9 * len(rates):
            continue  # behind a spine are all of them: their resending tells nothing of it
        hit, alone = len(resend & behind) / len(behind), len(resend & behind) / len(resend)
        if min(hit, alone) >= FIT_MIN:
            yield _finding_silent(case, switch, sorted(resend & behind), hit * alone, told)


def _resends(case: Case) -> tuple[dict[ComponentId, float], Mapping[ComponentId, Observed]]:
    """Of each adapter of the job: how often a second it resent, and the fact that tells most of it."""
    assert case.placement is not None
    assert case.since is not None
    since = case.since - timedelta(seconds=RESENDS_SINCE_S)
    rates: dict[ComponentId, float] = {}
    told: dict[ComponentId, Observed] = {}
    for host in case.placement.hosts:
        for nic in case.topology.nics_of_host(host):
            if case.topology.carries_traffic(nic) is False:
                continue
            rises = [case.measurements.rise(nic, name, since) for name in RESENDS]
            worst = max(rises, key=lambda rise: rise.per_s)
            rates[nic] = sum(rise.per_s for rise in rises)
            if worst.facts:
                told[nic] = worst.facts[-1]
    return (rates if told else {}), told


def _finding_silent(
    case: Case, switch: ComponentId, resend: list[ComponentId], fit: float, told: Mapping[ComponentId, Observed]
) -> Finding:
    score, probes = _probes.support(case, switch, 0.55 + 0.35 * fit)
    why = f"it resends, as do the others behind {switch} and nobody else"
    return Finding(
        fault_class=FaultClass.SWITCH_FAULT,
        component=switch,
        score=score,
        evidence=(*tuple(cite(told[nic], why, 0.5, nic) for nic in resend if nic in told)[:CITED], *probes),
        engine=ENGINE,
        ranks=ranks_on(case, switch),
        explains=symptoms_of(case),
        because=f"{len(resend)} adapters resend, and what they share is {switch}: it drops what it carries",
        hardware=True,
        action=_action(switch),
        victims=tuple(
            Explained(component=nic, symptom="it sends again what was lost", because=f"its traffic crosses {switch}")
            for nic in resend
        ),
    )


# -- as probes tell -----------------------------------------------------------------------------------------------------


def _by_probes(case: Case, named: set[ComponentId]) -> Iterable[Finding]:
    """Switches that lose or delay probes, whatever adapters count."""
    if case.placement is None or case.since is None:
        return
    for suspect in _probes.accused(case, (ComponentKind.SWITCH,), without=named):
        ranks = ranks_on(case, suspect.component)
        if ranks:
            score = _probes.alone(suspect)
            yield Finding(
                fault_class=FaultClass.SWITCH_FAULT,
                component=suspect.component,
                score=score,
                evidence=probed.evidence(suspect, score),
                engine=ENGINE,
                ranks=ranks,
                explains=symptoms_of(case),
                because=probed.words(suspect),
                hardware=True,
                action=_action(suspect.component),
            )


def _action(switch: ComponentId) -> Action:
    return Action(
        kind=ActionKind.HAND_TO_PERSON,
        target=switch,
        reason="a switch carries many hosts: no host's replacement helps, and isolating it needs a look at what is left",
    )
