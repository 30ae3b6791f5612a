"""What every route needs: the queries, the graph, and what the caller may see of both."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query, Request

from goodput_common.bus.ports import Bus
from goodput_common.http.auth import Principal
from goodput_common.http.problem import Problem
from goodput_common.runtime.clock import Clock
from goodput_correlator.adapters.queries import Queries
from goodput_correlator.application import facts
from goodput_correlator.application.graph_pages import GraphPages
from goodput_correlator.application.views import EvidenceItem
from goodput_correlator.application.visibility import Sight
from goodput_correlator.domain.case import Observed
from goodput_topology.graph import Fabric

SIGHT_S = 2.0  # a tenant's sight is worked out at most this often
SIGHTS_MAX = 1000

GraphVersion = tuple[tuple[str, int], ...]


@dataclass
class Context:
    queries: Queries
    bus: Bus
    clock: Clock
    fabric: str
    _graph: tuple[GraphVersion, Fabric] | None = field(default=None, repr=False)
    _pages: tuple[Fabric, GraphPages] | None = field(default=None, repr=False)
    _sights: dict[frozenset[str], tuple[float, Sight]] = field(default_factory=dict, repr=False)

    async def graph(self) -> tuple[GraphVersion, Fabric]:
        """The fabric's graph and the version that it was read at."""
        version = await self.queries.topology_version()
        if self._graph is None or self._graph[0] != version:
            self._graph = (version, await self.queries.topology())
        return self._graph

    async def graph_pages(self) -> GraphPages:
        """The same graph in the order of its pages."""
        _, graph = await self.graph()
        if self._pages is None or self._pages[0] is not graph:
            self._pages = (graph, GraphPages.of(graph))
        return self._pages[1]

    async def sight(self, principal: Principal) -> Sight:
        """What the caller may see, at most `SIGHT_S` old."""
        jobs = principal.jobs
        if jobs is None:
            return Sight.everything()
        now_s = self.clock.monotonic_s()
        held = self._sights.get(jobs)
        if held is not None and now_s - held[0] < SIGHT_S:
            return held[1]
        _, graph = await self.graph()
        known_jobs, known_hosts = await self.queries.names()
        hosts = await self.queries.hosts_of(jobs)
        sight = Sight.of_tenant(jobs, hosts, graph, known_jobs=known_jobs, known_hosts=known_hosts)
        if len(self._sights) >= SIGHTS_MAX:
            self._sights.clear()
        self._sights[jobs] = (now_s, sight)
        return sight


def context_of(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


InContext = Annotated[Context, Depends(context_of)]


Since = Annotated[datetime | None, Query(description="at or after; with a time zone, else UTC")]
Until = Annotated[datetime | None, Query(description="before; with a time zone, else UTC")]


def instant(given: datetime | None) -> datetime | None:
    """A moment as a reader wrote it; without a time zone it means UTC."""
    return given.replace(tzinfo=UTC) if given is not None and given.tzinfo is None else given


def missing(what: str) -> Problem:
    """The answer for what does not exist and for what the caller may not know to exist."""
    return Problem(404, f"no such {what}", kind="not-found")


def evidence_item(seen: Observed, sight: Sight) -> EvidenceItem:
    """A fact as the asker may read it."""
    fact: Any = msgspec.to_builtins(seen.fact)
    return EvidenceItem(
        id=seen.id,
        host=seen.host,
        source=seen.source,
        kind=facts.kind_of(seen.fact),
        component=facts.component_of(seen.fact),
        job=seen.job,
        observed_at=seen.observed_at,
        received_at=seen.received_at,
        fact=sight.tree(fact) if sight.jobs is not None else fact,
    )


def page(items: Any, following: str | None) -> dict[str, Any]:
    """The shape of every list."""
    return {"items": items, "next": following}


def list_of(struct: type[msgspec.Struct]) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: a page of these."""
    items = {"type": "array", "items": {"$ref": f"#/components/schemas/{struct.__name__}"}}
    following = {"type": ["string", "null"], "description": "cursor of the next page, null on the last"}
    shape = {"type": "object", "required": ["items", "next"], "properties": {"items": items, "next": following}}
    return {200: {"description": "A page", "content": {"application/json": {"schema": shape}}}}
