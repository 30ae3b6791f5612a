"""What a tenant may see: their jobs, the hosts under these, and the fabric that carries traffic between those hosts.

Everything else does not exist for them: rows are left out by the query, a verdict that is theirs is shown without what
it says of others (a component elsewhere, another job's rank), and names of other hosts and jobs inside free text are
blanked. Operators and viewers see everything; for them `Sight.everything()`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from msgspec.structs import replace

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId
from goodput_common.contracts.verdict import Affected, Culprit, Verdict
from goodput_topology.graph import Fabric

LEAVES_PAIRED_MAX = 64  # beyond this all uplinks of the tenant's leaves stand for the paths between them
_WORD = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_BLANK = "(elsewhere)"


@dataclass(frozen=True, slots=True)
class Sight:
    """`jobs` None: everything. `foreign` are the names of hosts and jobs that must not be told."""

    jobs: frozenset[str] | None
    hosts: frozenset[str] = frozenset()
    components: frozenset[ComponentId] = frozenset()
    foreign: frozenset[str] = field(default=frozenset())

    @classmethod
    def everything(cls) -> Sight:
        return cls(None)

    @classmethod
    def of_tenant(
        cls,
        jobs: frozenset[str],
        hosts: frozenset[str],
        fabric: Fabric,
        *,
        known_jobs: Iterable[str],
        known_hosts: Iterable[str],
    ) -> Sight:
        """`hosts` are those that `jobs` run on; `known_*` all names there are."""
        foreign = {*known_hosts, *fabric.hosts(), *known_jobs} - hosts - jobs
        return cls(jobs, hosts, under(fabric, hosts), frozenset(foreign))

    def sees_job(self, job: str | None) -> bool:
        return self.jobs is None or (job is not None and job in self.jobs)

    def sees(self, component: ComponentId | None) -> bool:
        """Whether this component may be named to the asker."""
        if self.jobs is None or component is None:
            return True
        try:
            kind = ids.kind_of(component)
            if kind is ComponentKind.RANK:
                return ids.rank_of(component)[0] in self.jobs
            if kind is ComponentKind.JOB:
                return ids.parse(component).path in self.jobs
            host = ids.host_of(component)
        except InvalidComponentId:
            return False
        return host in self.hosts if host is not None else component in self.components

    def text(self, text: str) -> str:
        """The text without names that are not the asker's."""
        if not self.foreign:
            return text
        return _WORD.sub(lambda word: _BLANK if word[0] in self.foreign else word[0], text)

    def tree(self, value: Any) -> Any:
        """JSON data with every text in it as `text` gives it; keys stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {key: self.tree(each) for key, each in value.items()}
        return [self.tree(each) for each in value] if isinstance(value, list) else value

    def verdict(self, verdict: Verdict) -> Verdict:
        """The verdict as the asker may read it. Whoever sees everything gets it unchanged."""
        if self.jobs is None:
            return verdict
        action = verdict.action
        return replace(
            verdict,
            culprit=self._culprit(verdict.culprit, verdict),
            culprits=tuple(self._culprit(each, verdict) for each in verdict.culprits),
            alternatives=tuple(
                replace(each, because=self.text(each.because)) for each in verdict.alternatives if self.sees(each.component)
            ),
            evidence=tuple(
                replace(each, excerpt=self.text(each.excerpt), why=self.text(each.why))
                for each in verdict.evidence
                if self.sees(each.component)
            ),
            explained=tuple(
                replace(each, symptom=self.text(each.symptom), because=self.text(each.because))
                for each in verdict.explained
                if self.sees(each.component)
            ),
            affected=Affected(
                jobs=tuple(job for job in verdict.affected.jobs if self.sees_job(job)),
                ranks=verdict.affected.ranks if self.sees_job(verdict.job) else (),
                hosts=tuple(host for host in verdict.affected.hosts if host in self.hosts),
            ),
            action=replace(
                action, target=action.target if self.sees(action.target) else None, reason=self.text(action.reason)
            ),
            resolution=self.text(verdict.resolution),
            unknown=tuple(self.text(each) for each in verdict.unknown),
            unexplained=tuple(self.text(each) for each in verdict.unexplained),
        )

    def _culprit(self, culprit: Culprit, verdict: Verdict) -> Culprit:
        """Kind and class stay: a tenant may know that a switch is to blame without being told which."""
        ranks = culprit.ranks if self.sees_job(verdict.job) else ()
        if self.sees(culprit.component):
            return replace(culprit, ranks=ranks)
        return Culprit(component=None, kind=culprit.kind, host=None, ranks=ranks)


def under(fabric: Fabric, hosts: frozenset[str]) -> frozenset[ComponentId]:
    """The hosts with all their parts, their cables, and every link, port and switch on a path between two of them."""
    found: set[ComponentId] = set()
    by_leaf: dict[ComponentId, ComponentId] = {}
    for host in hosts:
        if ids.host_id(host) not in fabric:
            continue
        inside = _inside(fabric, ids.host_id(host))
        found |= inside
        for part in inside:
            found.update(up for up in fabric.part_of(part) if ids.kind_of(up) is ComponentKind.NVDOMAIN)
            link = fabric.link_of(part)
            if link is None or ids.kind_of(part) is not ComponentKind.NIC:
                continue
            peer, leaf = fabric.peer_of(part), fabric.switch_of(part)
            found.update(each for each in (link, peer, leaf) if each is not None)
            if leaf is not None:
                by_leaf.setdefault(leaf, part)
    links: set[ComponentId] = set()
    if len(by_leaf) <= LEAVES_PAIRED_MAX:
        for a, b in combinations(sorted(by_leaf.values()), 2):
            path = fabric.path(a, b, limit=1)
            links |= path.links
            found |= path.switches
    else:
        links = {link for leaf in by_leaf for link in fabric.links_of_switch(leaf) if _between_switches(fabric, link)}
        found.update(s for link in links for end in fabric.ends_of(link) or () if (s := fabric.switch_of(end)) is not None)
    found |= links
    found.update(end for link in links for end in fabric.ends_of(link) or ())
    return frozenset(found)


def _inside(fabric: Fabric, component: ComponentId) -> set[ComponentId]:
    found, frontier = {component}, [component]
    while frontier:
        for part in fabric.parts(frontier.pop()):
            if part not in found:
                found.add(part)
                frontier.append(part)
    return found


def _between_switches(fabric: Fabric, link: ComponentId) -> bool:
    return all(ids.kind_of(end) is ComponentKind.PORT for end in fabric.ends_of(link) or ())
