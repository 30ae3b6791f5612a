"""`/v1/topology`: the fabric's graph in pages, or around one component; for a tenant, what lies under its jobs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId
from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional, not_modified, weak_etag
from goodput_common.http.paging import Cursor, decode_cursor, encode_cursor
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import InContext, missing
from goodput_correlator.application.views import Topology
from goodput_correlator.application.visibility import Sight
from goodput_topology.graph import Fabric

router = APIRouter(tags=["topology"])

DISTANCE_MAX = 10
COMPONENTS_MAX = 10_000


@router.get("/v1/topology", summary="The graph, or the neighbourhood of a component", responses=returns(Topology))
async def get_topology(
    request: Request,
    context: InContext,
    principal: Tenant,
    component: Annotated[str | None, Query(description="leave out for the whole graph")] = None,
    distance: Annotated[int, Query(ge=0, le=DISTANCE_MAX, description="steps from the component")] = 2,
    kind: Annotated[ComponentKind | None, Query(description="of the whole graph: only components of this kind")] = None,
    host: Annotated[str | None, Query(description="of the whole graph: only this host and what it carries")] = None,
    limit: Annotated[
        int, Query(ge=1, le=COMPONENTS_MAX, description="components a page, or of the neighbourhood, nearest first")
    ] = 1000,
    cursor: Cursor = None,
) -> Response:
    """Components come by id, each edge with the later of its ends: pages put together are the graph. `graph` is the same on
    all pages as long as the graph is; what stays in it is shown exactly once even when it changes in between. A
    neighbourhood is one page, `truncated` where it has more components than `limit`."""
    version, graph = await context.graph()
    sight = await context.sight(principal)
    listing = f"topology {component} {distance} {kind} {host}"
    after = decode_cursor(cursor, (str,), listing=listing)[0] if cursor else None
    tag = weak_etag(
        context.fabric, version, listing, limit, after, sorted(sight.jobs or ()), sorted(sight.hosts), sight.jobs is None
    )
    unchanged = not_modified(request, tag)
    if unchanged is not None:
        return unchanged
    name = weak_etag(context.fabric, version).removeprefix("W/").strip('"')
    if component is None:
        page = (await context.graph_pages()).page(_wanted(graph, sight, kind, host), after=after, limit=limit)
        whole = Topology(
            fabric=context.fabric,
            components=tuple(graph.components[each] for each in page.components),
            edges=page.edges,
            graph=name,
            next=encode_cursor((page.following,), listing=listing) if page.following is not None else None,
        )
        return conditional(request, whole, tag)
    if sight.jobs is not None:
        graph = graph.subgraph(sight.components)
    centre = graph.canonical(component)
    if centre not in graph:
        raise missing("component")
    near = graph.neighbourhood(centre, distance, limit=limit)
    around = Topology(
        fabric=context.fabric,
        components=tuple(graph.components[each] for each in near),
        edges=tuple(edge for edge in graph.edges if edge.a in near and edge.b in near),
        truncated=len(near) >= limit,
        graph=name,
    )
    return conditional(request, around, tag)


def _wanted(graph: Fabric, sight: Sight, kind: ComponentKind | None, host: str | None) -> Callable[[ComponentId], bool]:
    components = graph.components

    def wanted(component: ComponentId) -> bool:
        return (
            (sight.jobs is None or component in sight.components)
            and (kind is None or components[component].kind is kind)
            and (host is None or _host(component) == host)
        )

    return wanted


def _host(component: ComponentId) -> str | None:
    try:
        return ids.host_of(component)
    except InvalidComponentId:
        return None
