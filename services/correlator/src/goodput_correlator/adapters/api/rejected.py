"""`/v1/rejected`: messages that nobody could use, newest first. They may be anybody's, so tenants do not see them."""

from __future__ import annotations

from typing import Annotated, Protocol, cast

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.rejected import Rejection
from goodput_common.contracts import subjects
from goodput_common.http.auth import Viewer
from goodput_common.http.etag import conditional
from goodput_common.http.problem import Problem
from goodput_correlator.adapters.api.context import InContext, list_of, page
from goodput_correlator.application.views import RejectedItem

router = APIRouter(tags=["rejected"])

LOOKED_AT_MAX = 500  # newest of the stream; those of other fabrics are left out of them
HEAD_CHARS_MAX = 500


class KeepsRejections(Protocol):
    async def rejections(self, limit: int = 100) -> list[Rejection]: ...


@router.get("/v1/rejected", summary="The newest rejected messages", responses=list_of(RejectedItem))
async def list_rejected(
    request: Request,
    context: InContext,
    _: Viewer,
    limit: Annotated[int, Query(ge=1, le=LOOKED_AT_MAX)] = 50,
) -> Response:
    try:
        kept = await cast(KeepsRejections, context.bus).rejections(LOOKED_AT_MAX)
    except BusUnavailable as away:
        raise Problem(503, f"{away}; the messages are kept there", kind="bus-away", headers={"Retry-After": "2"}) from away
    ours = [each for each in reversed(kept) if _of_fabric(each.subject, context.fabric)]
    return conditional(request, page([_item(each) for each in ours[:limit]], None))


def _of_fabric(subject: str, fabric: str) -> bool:
    """`goodput.<what>.<fabric>.…`; a subject without a fabric is everybody's."""
    tokens = subject.split(".")
    return len(tokens) < 3 or tokens[2] == subjects.token(fabric)


def _item(rejection: Rejection) -> RejectedItem:
    headers = {name.lower(): value for name, value in rejection.headers.items()}
    return RejectedItem(
        id=headers.get("ce-id", ""),
        type=headers.get("ce-type", ""),
        source=headers.get("ce-source", ""),
        stream=rejection.stream,
        subject=rejection.subject,
        sequence=rejection.sequence,
        durable=rejection.durable,
        deliveries=rejection.deliveries,
        reason=rejection.reason,
        received_at=rejection.received_at,
        rejected_at=rejection.rejected_at,
        size_bytes=len(rejection.body),
        head=rejection.body[: 4 * HEAD_CHARS_MAX].decode(errors="replace")[:HEAD_CHARS_MAX],
    )
