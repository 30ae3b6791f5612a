"""What the planner may know besides the verdict, and how each need of a rung is judged from it.

A need is judged true, false or unknown (None), with the reason in words. Unknown never counts as held: an action that is
safe only if enough paths are left is not safe while nobody can count them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from goodput_common.contracts.ids import ComponentKind, InvalidComponentId, host_of, link_ends
from goodput_common.contracts.verdict import ActionKind, Culprit, FaultClass, Verdict
from goodput_recovery.domain.ladder import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """State of the world as this service knows it at the moment of planning; None is unknown."""

    offered: frozenset[ActionKind]  # what the configured actuators can carry out
    world_size: int | None = None
    moving: bool | None = None  # steps of the job were seen to move just now
    ranks_gone: frozenset[int] = frozenset()  # left, and not yet back in a newer generation
    finished: bool = False  # every rank has left cleanly
    spare_nodes: int | None = None
    capacity_left: bool | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    holds: bool | None
    why: str


def culprits_of(verdict: Verdict) -> tuple[Culprit, ...]:
    return verdict.culprits or (verdict.culprit,)


def host_of_culprit(culprit: Culprit) -> str | None:
    """The host to act on: the culprit's own, or for a link the one host at its ends. None where no single host is meant."""
    if culprit.host is not None or culprit.component is None:
        return culprit.host
    try:
        if culprit.kind is ComponentKind.LINK:
            hosts = {host for end in link_ends(culprit.component) if (host := host_of(end)) is not None}
            return hosts.pop() if len(hosts) == 1 else None
        return host_of(culprit.component)
    except InvalidComponentId:
        return None


def hosts_of(verdict: Verdict) -> frozenset[str | None]:
    return frozenset(host_of_culprit(culprit) for culprit in culprits_of(verdict))


def ranks_of(verdict: Verdict) -> tuple[int, ...]:
    return tuple(sorted({rank for culprit in culprits_of(verdict) for rank in culprit.ranks}))


def _job(verdict: Verdict, facts: Facts) -> Judged:
    return Judged(verdict.job is not None, "the verdict names no job")


def _component(verdict: Verdict, facts: Facts) -> Judged:
    return Judged(verdict.culprit.component is not None, "the verdict names no component")


def _one_host(verdict: Verdict, facts: Facts) -> Judged:
    hosts = hosts_of(verdict)
    if None in hosts:
        return Judged(None, "the host of the culprit is not known")
    named = ", ".join(sorted(host for host in hosts if host))
    return Judged(len(hosts) == 1, f"the culprits are on several hosts ({named}): one node is not enough")


def _one_rank(verdict: Verdict, facts: Facts) -> Judged:
    ranks = ranks_of(verdict)
    if not ranks:
        return Judged(None, "the culprit's rank is not known")
    return Judged(len(ranks) == 1, f"ranks {', '.join(map(str, ranks))} are to blame: restarting one is not enough")


def _link_up(verdict: Verdict, facts: Facts) -> Judged:
    # The correlator holds the link's last state and recommends re-init only for a link that is back.
    if verdict.fault_class is not FaultClass.LINK_FLAP:
        return Judged(None, "the state of the link is not known")
    if verdict.action.kind is ActionKind.REINIT_COMMUNICATORS:
        return Judged(True, "the link is up again")
    return Judged(False, "the link has not come back")


def _processes_alive(verdict: Verdict, facts: Facts) -> Judged:
    gone = ", ".join(str(rank) for rank in sorted(facts.ranks_gone)[:16])
    return Judged(not facts.ranks_gone, f"ranks {gone} have left: the same processes cannot go on")


def _spare_node(verdict: Verdict, facts: Facts) -> Judged:
    if facts.spare_nodes is None:
        return Judged(None, "whether a spare node is free is not known")
    return Judged(facts.spare_nodes > 0, "no spare node is free")


def _capacity(verdict: Verdict, facts: Facts) -> Judged:
    if facts.capacity_left is None:
        return Judged(None, "whether enough paths stay without it is not known")
    return Judged(facts.capacity_left, "too few paths would be left without it")


_JUDGES: dict[Need, Callable[[Verdict, Facts], Judged]] = {
    Need.JOB: _job,
    Need.COMPONENT: _component,
    Need.ONE_HOST: _one_host,
    Need.ONE_RANK: _one_rank,
    Need.LINK_UP: _link_up,
    Need.PROCESSES_ALIVE: _processes_alive,
    Need.SPARE_NODE: _spare_node,
    Need.CAPACITY: _capacity,
}


def judge(need: Need, kind: ActionKind, verdict: Verdict, facts: Facts) -> Judged:
    """Whether `need` of rung `kind` holds; `why` is what to say when it does not."""
    if need is Need.ACTUATOR:
        return Judged(kind in facts.offered, "no actuator here can carry it out")
    return _JUDGES[need](verdict, facts)
