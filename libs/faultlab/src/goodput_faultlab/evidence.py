"""Whether the evidence that a verdict cites supports what it claims.

    checker = Checker(fabric, delivered)          # everything that was delivered, in any order
    found = checker.check(verdict)                # () where all of it holds

Two questions a piece of evidence: can *this kind* of fact support that class of fault (`evidence_kinds`), and is the fact
*about the culprit*: about itself, a part of it, what is at its other end, or a rank that it carries, by the topology and by
what ranks said of where they run. Somebody who is seen to wait may be cited beside that, as may what lies elsewhere and can
be shown to come from the culprit (`evidence_effects`): they show the effect. They are no support by themselves: each culprit
needs one piece at least that is about it.

What a rank said of where it stands counts only if it did not move on afterwards, in a job that stands still; in a
slow one, only if it waited no longer than the others.

Independent of the engines on purpose: nothing here is shared with what it checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.telemetry import CollectorHeartbeat, Event, Probe
from goodput_common.contracts.verdict import Evidence, FaultClass, Trouble, Verdict, VerdictState
from goodput_faultlab.evidence_effects import Effects
from goodput_faultlab.evidence_kinds import OF_THE_HOST, SUPPORTS, Kind, stands, waits
from goodput_faultlab.evidence_ranks import Delivered, RankWords
from goodput_topology.graph import Fabric

OF_RANKS = (FaultClass.PROCESS_DEAD, FaultClass.PROCESS_STALL, FaultClass.COLLECTIVE_DESYNC, FaultClass.GPU_DRIVER)
_RANK = re.compile(r"^rank (\d+)\b")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One piece of evidence, or a whole verdict where `event_id` is "", that does not support its claim, and why."""

    verdict: str
    version: int
    fault_class: FaultClass
    culprit: ComponentId | None
    diagnosed_by: str
    event_id: str
    why: str

    def __str__(self) -> str:
        what = f"{self.event_id}: " if self.event_id else ""
        return f"{self.fault_class.value} of {self.culprit} by {self.diagnosed_by}, version {self.version}: {what}{self.why}"


@dataclass(frozen=True, slots=True)
class _Claim:
    """One culprit with the classes that it may be meant by, and all that belongs to it."""

    component: ComponentId | None
    classes: tuple[FaultClass, ...]
    circle: frozenset[ComponentId]
    host: str | None


class Checker:
    """Holds what was delivered of one fabric. Memory goes with the number of facts that it is given."""

    def __init__(self, fabric: Fabric, delivered: Iterable[Delivered]) -> None:
        self._fabric = fabric
        self._facts: dict[str, Delivered] = {}
        for each in delivered:
            self._facts.setdefault(each.id, each)
        self._words = RankWords(fabric, self._facts.values())
        self._effects = Effects(fabric, self._facts.values())

    # ------------------------------------------------------------------------------------------------- the check

    def check(self, verdict: Verdict) -> tuple[Unsupported, ...]:
        """What of one version does not hold; () where all of it does. A resolution claims nothing new."""
        if verdict.state is VerdictState.RESOLVED:
            return ()
        claims = self._claims(verdict)
        found, direct = [], set[ComponentId | None]()
        for each in verdict.evidence:
            why, about = self._weigh(verdict, claims, each)
            direct |= about
            if why:
                found.append(self._failed(verdict, each.event_id, why))
        if not verdict.evidence:
            found.append(self._failed(verdict, "", "nothing is cited"))
        elif verdict.fault_class is not FaultClass.UNDETERMINED:
            bare = [claim.component for claim in claims if claim.component not in direct]
            found += [self._failed(verdict, "", f"nothing that is cited is about {each or 'the job'}") for each in bare]
        return tuple(found)

    def _failed(self, verdict: Verdict, event_id: str, why: str) -> Unsupported:
        return Unsupported(
            verdict=verdict.id,
            version=verdict.version,
            fault_class=verdict.fault_class,
            culprit=verdict.culprit.component,
            diagnosed_by=verdict.diagnosed_by,
            event_id=event_id,
            why=why,
        )

    def _claims(self, verdict: Verdict) -> list[_Claim]:
        culprits = [each for each in verdict.culprits or (verdict.culprit,) if each.component is not None]
        if verdict.fault_class is FaultClass.UNDETERMINED:
            named = [(each.component, (each.fault_class, verdict.fault_class)) for each in verdict.alternatives]
            return [self._claim(verdict, None, (verdict.fault_class,)), *(self._claim(verdict, *each) for each in named)]
        if not culprits:
            return [self._claim(verdict, None, (verdict.fault_class,))]
        found = []
        for number, culprit in enumerate(culprits):
            also = OF_RANKS if number and (culprit.component or "").startswith("rank:") else ()
            found.append(self._claim(verdict, culprit.component, (verdict.fault_class, *also)))
        return found

    def _claim(self, verdict: Verdict, component: ComponentId | None, classes: tuple[FaultClass, ...]) -> _Claim:
        whole = component if component is not None else ids.job_id(verdict.job) if verdict.job else None
        circle = frozenset(self._circle(whole, verdict.job)) if whole is not None else frozenset[ComponentId]()
        host = ids.host_of(component) if component is not None else None
        return _Claim(component, classes, circle, host)

    def _weigh(self, verdict: Verdict, claims: list[_Claim], cited: Evidence) -> tuple[str, set[ComponentId | None]]:
        """(why it is no evidence, or ""; the culprits that it supports by being about them)."""
        seen = self._facts.get(cited.event_id)
        if seen is None:
            return "it was never delivered", set()
        if (wrong := _misquoted(seen, cited)) is not None:
            return wrong, set()
        places, fact = self._places(seen), seen.fact
        about = [claim for claim in claims if places & claim.circle or self._on_host(claim, seen)]
        supported = {claim.component for claim in about if _fits(fact, (SUPPORTS[each] for each in claim.classes))}
        if supported and stands(fact) and verdict.trouble is Trouble.STALLED:
            if not self._words.stood(seen, verdict.published_at):
                return f"that rank moved on after it: {_brief(seen)}", set()
        elif supported and verdict.trouble is Trouble.SLOW and not self._words.late(seen):
            supported = set()
        if supported:
            return "", supported
        if self._shows_effect(verdict, claims, fact):
            return "", set()
        if about:
            return f"this kind of fact says nothing of it: {_brief(seen)}", set()
        return (
            f"it is about {', '.join(sorted(places)[:3]) or 'nothing known'}, which is no part of it: {_brief(seen)}",
            set(),
        )

    def _shows_effect(self, verdict: Verdict, claims: list[_Claim], fact: object) -> bool:
        """Others of the job that wait, and what comes from a culprit though it lies elsewhere."""
        if verdict.job is not None and getattr(fact, "job", None) == verdict.job and waits(fact):
            return True
        return any(self._comes_from(each.component, verdict, fact) for each in claims if each.component is not None)

    def _comes_from(self, culprit: ComponentId, verdict: Verdict, fact: object) -> bool:
        match verdict.fault_class:
            case FaultClass.PROCESS_DEAD if culprit.startswith("rank:"):
                return self._effects.names_host(fact, self._words.hosts_of(ids.rank_of(culprit)))
            case FaultClass.PFC_STORM:
                return self._effects.leads_to(fact, culprit)
            case FaultClass.HOST_DOWN if culprit.startswith("host:"):
                return self._effects.cut_off(fact, self._nics_of(ids.host_of(culprit) or "", verdict.job))
            case _:
                return False

    def _nics_of(self, host: str, job: str | None) -> list[ComponentId]:
        """The adapters of a host that carry the job's traffic."""
        mine = {gpu for place, runs in self._words.runs.items() if place[0] == job for _, gpu in runs}
        found = []
        for nic in self._fabric.nics_of_host(host):
            gpus = self._fabric.gpus_of_nic(nic)
            if self._fabric.carries_traffic(nic) is not False and (not gpus or mine & set(gpus)):
                found.append(nic)
        return found

    def _on_host(self, claim: _Claim, seen: Delivered) -> bool:
        """Whether it was told of the host of that component as a whole."""
        if claim.component is None or not any(kind(seen.fact) for kind in OF_THE_HOST):
            return False
        hosts = {claim.host} if claim.host is not None else {each[5:] for each in claim.circle if each.startswith("host:")}
        if claim.component.startswith("rank:"):
            hosts = self._words.hosts_of(ids.rank_of(claim.component))
        return seen.host in hosts

    # ------------------------------------------------------------------------------------------------- what belongs to what

    def _places(self, seen: Delivered) -> set[ComponentId]:
        """The components that a fact is about."""
        fact = seen.fact
        if isinstance(fact, RankProgress | StallSuspected | RankExited | RankRegistered | FlightRecorderDump):
            return {ids.rank_id(fact.job, fact.rank)}
        if isinstance(fact, CollectorHeartbeat):
            return {ids.host_id(fact.host)}
        if isinstance(fact, Probe):
            return self._crossed(fact)
        found = {self._fabric.canonical(fact.component)}
        if isinstance(fact, Event) and (pci := fact.attrs.get("pci")):
            named = self._fabric.resolve(seen.host, pci)
            found |= {named} if named is not None else set()
        return found

    def _crossed(self, probe: Probe) -> set[ComponentId]:
        """What the probes of a flow, or their answers, passed: as they tell, else all that they may have."""
        ends = [self._fabric.canonical(each) for each in (probe.component, probe.target)]
        found = {*ends, *map(self._fabric.canonical, (*probe.path, *probe.answer_path))}
        if not probe.path or not probe.answer_path:
            paths = self._fabric.path(*ends)
            found |= paths.links | paths.switches
        return found | {switch for each in found if (switch := self._fabric.switch_of(each)) is not None}

    def _circle(self, component: ComponentId, job: str | None) -> set[ComponentId]:
        """The component, its parts, what is at its other end, and the ranks that it carries."""
        fabric, kind = self._fabric, _kind(component)
        found = {component}
        if kind is ComponentKind.JOB:
            mine = [place for place in self._words.runs if place[0] == job]
            hosts = {host for place in mine for host in self._words.hosts_of(place)}
            found |= {ids.rank_id(*place) for place in mine}
            for host in hosts:
                found |= {ids.host_id(host), *fabric.gpus_of_host(host), *fabric.nics_of_host(host)}
            return found
        if kind is ComponentKind.RANK:
            return found | {gpu for _, gpu in self._words.runs.get(ids.rank_of(component), ()) if gpu}
        found |= set(fabric.parts(component))
        if kind in (ComponentKind.GPU, ComponentKind.NVLINK):
            found |= self._around_gpu(component)
        elif kind is ComponentKind.LINK:
            found |= set(fabric.ends_of(component) or ids.link_ends(component))
        elif kind in (ComponentKind.NIC, ComponentKind.PORT):
            found |= {each for each in (fabric.link_of(component), fabric.peer_of(component)) if each is not None}
        elif kind is ComponentKind.SWITCH:
            for link in fabric.links_of_switch(component):
                found |= {link, *(fabric.ends_of(link) or ())}
            found |= set(fabric.nics_behind(component))
        return found | self._carried(component, job)

    def _around_gpu(self, component: ComponentId) -> set[ComponentId]:
        """The links and switches that join a GPU to its partners."""
        host, gpu, *_ = component.partition(":")[2].split("/")
        own = ids.gpu_id(host, gpu)
        domain = self._fabric.nvdomain_of(own)
        switches = self._fabric.parts(domain, ComponentKind.NVSWITCH) if domain is not None else ()
        return {own, *self._fabric.parts(own), *switches}

    def _carried(self, component: ComponentId, job: str | None) -> set[ComponentId]:
        """The ranks whose work runs over it; where a rank has not said which GPU is its own, those of the host."""
        kind, host = _kind(component), ids.host_of(component)
        gpus = set(self._fabric.gpus_behind(component))
        hosts = set(self._fabric.hosts_behind(component)) | ({host} if host is not None else set())
        whole = kind is ComponentKind.HOST or not gpus
        return {
            ids.rank_id(*place)
            for place, runs in self._words.runs.items()
            if place[0] == job and any(self._carries(each, gpus, hosts, whole, runs) for each in runs)
        }

    @staticmethod
    def _carries(
        run: tuple[str, str], gpus: set[ComponentId], hosts: set[str], whole: bool, runs: set[tuple[str, str]]
    ) -> bool:
        host, gpu = run
        if gpu:
            return gpu in gpus or (whole and host in hosts)
        unknown = not any(named for _, named in runs)
        return host in hosts and (whole or unknown)


def _fits(fact: object, tables: Iterable[Iterable[Kind]]) -> bool:
    return any(kind(fact) for table in tables for kind in table)


def _misquoted(seen: Delivered, cited: Evidence) -> str | None:
    if seen.observed_at != cited.observed_at:
        return f"it was observed at {seen.observed_at}, not {cited.observed_at}"
    rank = getattr(seen.fact, "rank", None)
    said = _RANK.match(cited.excerpt)
    if isinstance(rank, int) and said is not None and int(said[1]) != rank:
        return f"it is rank {rank}'s word and is quoted as rank {said[1]}'s"
    return None


def _brief(seen: Delivered) -> str:
    fact = seen.fact
    name = getattr(fact, "name", type(fact).__name__)
    rank = getattr(fact, "rank", None)
    where = getattr(fact, "component", seen.host) if rank is None else f"rank {rank}"
    detail = getattr(fact, "value", getattr(fact, "excerpt", getattr(fact, "reason", "")))
    return f"{name} of {where} {str(detail)[:80]}".strip()


def _kind(component: ComponentId) -> ComponentKind | None:
    try:
        return ids.kind_of(component)
    except ids.InvalidComponentId:
        return None
