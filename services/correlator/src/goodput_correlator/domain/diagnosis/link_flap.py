"""A network link that is down, or has been down and up, under the job's traffic.

A link that goes down holds up its ranks from that moment: steps that went on after it prove that the job does not need it.
Both ends of a cable report the same loss, so the *link* is named; one end's own trouble (a hung adapter, a bad transceiver)
would show there alone. Ports that carry no traffic (management, unprovisioned) never count.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import EVIDENCE_PER_FINDING, cite, ranks_on, symptoms_of
from goodput_correlator.domain.diagnosis import _probes
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.losses import Losses, happened, host_of_link, in_order, is_down, losses_of
from goodput_topology.damping import damped

ENGINE = "link_flap"
SAME_LOSS_S = 3.0  # kernel log, netlink and user space report one loss within this
COUNTS_CHANGES = frozenset({"netlink"})  # sources that tell a loss only of a link that they saw up, or the kernel did
FLAPS_OFFLINE_MIN = 3  # losses in a log without a job that make a flapping link
TOO_LATE_S = 3.0  # a loss told this long, and two steps, after the last step has not stopped it
BEFORE_SLOW_S = 3.0  # steps are looked at in windows; the first slow one may begin this much after the loss
MOVED_ON_S = 4.0  # steps that end this long after the loss prove that the job goes on without the link


def diagnose(case: Case) -> tuple[Finding, ...]:
    found = []
    for losses in losses_of(case):
        finding = _finding(case, losses)
        if finding is not None:
            found.append(finding)
    return tuple(found)


def _finding(case: Case, losses: Losses) -> Finding | None:
    ranks = ranks_on(case, losses.nic)
    link = case.topology.link_of(losses.nic)
    component = link if link is not None else losses.nic
    if case.slow is not None and case.placement is not None:
        return _slowed(case, losses, component) if ranks else None
    if case.stalled_since is None or case.placement is None:
        return _without_job(case, losses, component)
    if not ranks:
        return None
    outage = _outage(losses, case.stalled_since + timedelta(seconds=TOO_LATE_S + 2 * case.usual_step_s))
    began = outage - timedelta(seconds=1.0)
    if case.stalled_since > began + timedelta(seconds=MOVED_ON_S + 2 * case.usual_step_s) and not losses.down_now:
        return None  # over before the stall began
    score = 0.93 if losses.down_now else 0.88 if losses.count > 1 else 0.8
    if case.stalled_since > began + timedelta(seconds=MOVED_ON_S + 3 * case.usual_step_s):
        score = 0.3  # it went down and the job went on
    factor, words, extra = agreement(case, ranks, network=True)
    score, probes = _probes.support(case, component, score)
    what = f"lost {losses.count} times" if losses.count > 1 else "lost"
    evidence = [
        cite(each, f"the carrier of {losses.nic} was lost", score, component) for each in losses.downs[:EVIDENCE_PER_FINDING]
    ]
    evidence += [cite(each, "the port itself reads down", 0.4, component) for each in losses.told[:2]]
    evidence += [cite(each, "the carrier came back", 0.2, component) for each in losses.ups[-2:]]
    return Finding(
        fault_class=FaultClass.LINK_FLAP,
        component=component,
        score=min(0.97, score * factor),
        evidence=(*evidence, *probes, *extra),
        engine=ENGINE,
        ranks=ranks,
        host=host_of_link(case, losses.nic),
        explains=symptoms_of(case),
        because=f"carrier {what}, and every collective of these ranks crosses that link" + (f"; {words}" if words else ""),
        decisive=factor >= 0.9 and score >= 0.8,
        hardware=True,
        action=_action(component, losses),
    )


def _slowed(case: Case, losses: Losses, component: ComponentId) -> Finding | None:
    """A link that comes and goes while steps are slow: each time what crosses it is sent again for seconds, and goes on."""
    assert case.slow is not None
    since = case.slow.since - timedelta(seconds=BEFORE_SLOW_S)
    downs = [each for each in losses.downs if happened(each) >= since]
    if not downs:
        return None
    again = losses.count > 1 and len(downs) > 1
    score, probes = _probes.support(case, component, 0.86 if again else 0.78)
    evidence = [cite(each, f"the carrier of {losses.nic} was lost", score, component) for each in downs]
    evidence += [cite(each, "the carrier came back", 0.2, component) for each in losses.ups[-2:]]
    return Finding(
        fault_class=FaultClass.LINK_FLAP,
        component=component,
        score=score,
        evidence=(*evidence[:EVIDENCE_PER_FINDING], *probes),
        engine=ENGINE,
        ranks=ranks_on(case, losses.nic),
        host=host_of_link(case, losses.nic),
        explains=symptoms_of(case),
        because="the carrier was lost as steps became slow, and what crosses that link was sent again until it came back",
        hardware=True,
        action=_action(component, losses),
    )


def _outage(losses: Losses, until: datetime) -> datetime:
    """When the loss that is under way, or was the last, began. A loss is new only if the link was back in between: somebody
    said so, or it is told by a witness that counts changes, or only for the second time (then up to `until`: what comes
    later may as well be the old loss, told again). A dead port may say "down" again for ever."""
    told = sorted((*losses.downs, *losses.ups), key=in_order)
    began: datetime | None = None
    before = losses.first_at
    back = False
    up_at = max((happened(each) for each in losses.ups), default=None)
    since = [happened(each) for each in told if is_down(each) and (up_at is None or happened(each) >= up_at)]
    repeats = sum(1 for one, other in pairwise(since) if other - one > timedelta(seconds=SAME_LOSS_S))
    for each in told:
        at = happened(each)
        if not is_down(each):
            back = True
            continue
        changed = (
            (each.source in COUNTS_CHANGES or repeats == 1) and at - before > timedelta(seconds=SAME_LOSS_S) and at <= until
        )
        if began is None or back or changed:
            began = at
        before, back = at, False
    return began if began is not None else losses.last_at


def _without_job(case: Case, losses: Losses, component: ComponentId) -> Finding | None:
    """From a log alone: a link that was lost again and again is flapping; a single loss may be anybody's maintenance."""
    if losses.count < FLAPS_OFFLINE_MIN:
        return None
    return Finding(
        fault_class=FaultClass.LINK_FLAP,
        component=component,
        score=min(0.95, 0.7 + 0.04 * losses.count),
        evidence=tuple(cite(each, "the carrier was lost", 0.5, component) for each in losses.downs[:EVIDENCE_PER_FINDING]),
        engine=ENGINE,
        host=host_of_link(case, losses.nic),
        because=f"the carrier was lost {losses.count} times",
        hardware=True,
        action=_action(component, losses),
    )


def _action(component: ComponentId, losses: Losses) -> Action:
    if losses.down_now:
        return Action(
            kind=ActionKind.SWAP_NODE,
            target=component,
            reason="the link is down and does not come back: continue on a node whose links are up",
        )
    state = damped(happened(each) for each in losses.downs)
    held = ""
    if state.released_at is not None:
        held = (
            f". It was lost again and again (damping penalty {state.penalty:.0f}, held from "
            f"{state.policy.suppress:.0f}): not to be trusted before {state.released_at:%H:%M:%S}"
        )
    return Action(
        kind=ActionKind.REINIT_COMMUNICATORS,
        target=component,
        reason="the link is up again; the connections that it carried are dead and must be made anew" + held,
    )
