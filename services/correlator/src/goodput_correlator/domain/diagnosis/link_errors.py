"""A link that stays up and damages what it carries: a bad optic, a dirty or bent cable, a failing port.

Damage is counted where it arrives. Errors at both ends of a link mean what is in between, the cable or its optics; errors at
one end, while the other is watched and clean, mean that end. Where that is a port of a switch, it is the switch's fault and
no cable's: a class of its own, for the cure is another port and no other cable. Only errors after forward error correction
count: before it, every 400G link has millions a second. Ports that carry nothing never alarm.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from datetime import timedelta

from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.verdict import Action, ActionKind, Evidence, FaultClass
from goodput_correlator.domain import probed
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import cite, ranks_on, symptoms_of
from goodput_correlator.domain.diagnosis import _probes
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.losses import host_of_link, losses_of
from goodput_correlator.domain.measurements import Rise

ENGINE = "link_errors"
DAMAGE = (
    "symbol_error",
    "port_rcv_errors",
    "link_error_recovery",
    "local_link_integrity_errors",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "rx_crc_errors_phy",
    "in_crc_errors",
    "rx_fec_uncorrectable_blocks",
    "in_fec_uncorrected_frames",
    "in_fec_uncorrectable",
    "in_fec_uncorrectable_blocks",
)
SINCE_S = 60.0
PER_S_MIN = 0.05  # legacy alarms begin at 120 symbol errors an hour
ABOVE_OTHERS = 10.0  # times what is usual on the job's links
SURE_PER_S = 50.0
CITED = 6
READINGS_MIN = 2  # a link that is going bad does not stop at one reading: that may be a burst
ONCE = 0.6


def diagnose(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or case.since is None:
        return ()
    since = case.since - timedelta(seconds=SINCE_S)
    ends: dict[ComponentId, list[tuple[str, Rise]]] = {}
    mine = [nic for host in case.placement.hosts for nic in case.topology.nics_of_host(host)]
    rates: dict[ComponentId, float] = dict.fromkeys(mine, 0.0)  # what does not rise is not told
    watched = [each for each in case.measurements.components() if each.startswith(("nic:", "port:"))]
    for end in watched:
        if case.topology.carries_traffic(end) is False:
            continue
        rises = [(name, rise) for name in DAMAGE if (rise := case.measurements.rise(end, name, since)).delta]
        rates[end] = sum(rise.per_s for _, rise in rises)
        if rises:
            ends[end] = rises
    found: dict[ComponentId, Finding] = {}
    bar = max(PER_S_MIN, ABOVE_OTHERS * statistics.median(rates.values() or (0.0,)))
    bad = {end for end in ends if rates[end] >= bar}
    for end in sorted(bad):
        finding = _finding(case, end, bad, set(watched), ends, rates)
        if finding is not None and finding.component is not None:
            found.setdefault(finding.component, finding)
    ends_named = {each for end in bad for each in (end, case.topology.link_of(end)) if each is not None}
    ends_named |= {each for losses in losses_of(case) for each in (losses.nic, case.topology.link_of(losses.nic) or "")}
    return (*found.values(), *_by_probes(case, ends_named))


def _by_probes(case: Case, named: set[ComponentId]) -> Iterator[Finding]:
    """Links that lose or delay probes, where nobody counts damage and no link was lost."""
    for suspect in _probes.accused(case, (ComponentKind.LINK, ComponentKind.PORT), without=named):
        ranks = ranks_on(case, suspect.component)
        if not ranks:
            continue
        factor, words, extra = agreement(case, ranks, network=True)
        score = _probes.alone(suspect)
        yield Finding(
            fault_class=FaultClass.LINK_FLAP,
            component=suspect.component,
            score=score * factor,
            evidence=(*probed.evidence(suspect, score), *extra),
            engine=ENGINE,
            ranks=ranks,
            host=host_of_link(case, suspect.into or suspect.component),
            explains=symptoms_of(case),
            because=probed.words(suspect) + (f"; {words}" if words else ""),
            hardware=True,
            action=_action(suspect.component),
        )


def _action(component: ComponentId) -> Action:
    return Action(
        kind=ActionKind.ISOLATE_LINK,
        target=component,
        reason="it damages what it carries; the remaining rails go on without it, and optic and cable can be changed",
    )


def _finding(
    case: Case,
    end: ComponentId,
    bad: set[ComponentId],
    watched: set[ComponentId],
    ends: dict[ComponentId, list[tuple[str, Rise]]],
    rates: dict[ComponentId, float],
) -> Finding | None:
    ranks = ranks_on(case, end)
    if not ranks:
        return None
    link, other = case.topology.link_of(end), case.topology.peer_of(end)
    both = other in bad
    at_one_end = not both and other is not None and other in watched
    component = end if at_one_end or link is None else link
    rate = max(rates[end], rates.get(other, 0.0) if other is not None else 0.0)
    surely = min(1.0, math.log10(max(rate / PER_S_MIN, 1.0)) / math.log10(SURE_PER_S / PER_S_MIN))
    score = 0.5 + 0.4 * surely + (0.04 if both else 0.0)
    told = {seen.observed_at for each in (end, other) if each in bad for _, rise in ends[each] for seen in rise.facts}
    if len(told) < READINGS_MIN:
        score *= ONCE
    factor, words, extra = agreement(case, ranks, network=True)
    score, probes = _probes.support(case, component, score)
    evidence: list[Evidence] = []
    for each in (end, other) if both and other is not None else (end,):
        for name, rise in ends[each]:
            least = "at least " if rise.at_least else ""
            why = f"{each} received damaged data: {name} rose by {least}{rise.delta} in {rise.interval_s:.0f} s"
            evidence.append(cite(rise.facts[-1], why, score, each))
    where = (
        "errors at both ends: what is between them, cable or optics"
        if both
        else "errors at this end alone, while the other is watched and clean"
        if at_one_end
        else "errors at the end that is watched; of the other nothing is known"
    )
    return Finding(
        fault_class=FaultClass.SWITCH_FAULT if at_one_end and end.startswith("port:") else FaultClass.LINK_FLAP,
        component=component,
        score=min(0.96, score * factor),
        evidence=(*evidence[:CITED], *probes, *extra),
        engine=ENGINE,
        ranks=ranks,
        host=host_of_link(case, end),
        explains=symptoms_of(case),
        because=f"{where}; what it carries has to be sent again" + (f"; {words}" if words else ""),
        decisive=surely >= 0.8 and factor >= 0.9 and len(told) >= READINGS_MIN,
        hardware=True,
        action=_action(component),
    )
