"""`/v1/topology`: the fabric's graph, whole or around one component; for a tenant, what lies under its jobs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional, not_modified, weak_etag
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import InContext, missing
from goodput_correlator.application.views import Topology

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
    limit: Annotated[int, Query(ge=1, le=COMPONENTS_MAX, description="components of a neighbourhood")] = 1000,
) -> Response:
    version, graph = await context.graph()
    sight = await context.sight(principal)
    tag = weak_etag(context.fabric, version, component, distance, limit, sorted(sight.jobs or ()), sorted(sight.hosts))
    unchanged = not_modified(request, tag)
    if unchanged is not None:
        return unchanged
    if sight.jobs is not None:
        graph = graph.subgraph(sight.components)
    if component is None:
        whole = Topology(fabric=context.fabric, components=tuple(graph.components.values()), edges=graph.edges)
        return conditional(request, whole, tag)
    centre = graph.canonical(component)
    if centre not in graph:
        raise missing("component")
    near = graph.neighbourhood(centre, distance, limit=limit)
    around = Topology(
        fabric=context.fabric,
        components=tuple(graph.components[each] for each in near),
        edges=tuple(edge for edge in graph.edges if edge.a in near and edge.b in near),
        truncated=len(near) >= limit,
    )
    return conditional(request, around, tag)
