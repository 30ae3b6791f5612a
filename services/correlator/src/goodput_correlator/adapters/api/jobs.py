"""`/v1/jobs`: which jobs there are, where their ranks run, how far they have come."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter, Request
from msgspec.structs import replace
from starlette.responses import Response

from goodput_common.contracts.ids import rank_id
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, next_cursor
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import Context, InContext, list_of, missing, page
from goodput_correlator.application.placement import job_state
from goodput_correlator.application.ports import JobProgress
from goodput_correlator.application.views import Job, JobDetail, Rank
from goodput_correlator.domain.case import Observed

router = APIRouter(tags=["jobs"])


def _job(context: Context, progress: JobProgress, open_verdict: bool) -> Job:
    state = job_state(progress, open_verdict=open_verdict, now=context.clock.now())
    return Job(fabric=context.fabric, state=state, **asdict(progress))


@router.get("/v1/jobs", summary="List jobs by name", responses=list_of(Job))
async def list_jobs(
    request: Request, context: InContext, principal: Tenant, limit: Limit = LIMIT_DEFAULT, cursor: Cursor = None
) -> Response:
    after = decode_cursor(cursor, (str,), listing="jobs")[0] if cursor else None
    rows = await context.queries.jobs(principal.jobs, after=after, limit=limit + 1)
    shown, following = next_cursor(rows, limit, lambda row: (row[0].job,), listing="jobs")
    return conditional(request, page([_job(context, *row) for row in shown], following))


@router.get("/v1/jobs/{job}", summary="One job with all its ranks", responses=returns(JobDetail))
async def get_job(request: Request, context: InContext, principal: Tenant, job: str) -> Response:
    principal.check_job(job)
    rows = await context.queries.jobs(frozenset((job,)))
    if not rows:
        raise missing("job")
    placed = await context.queries.placement(job, rows[0][0].generation)
    reports = await context.queries.newest_progress([rank_id(job, each.rank) for each in placed])
    newest = {each.fact.rank: each for each in reports if isinstance(each.fact, RankProgress)}
    ranks = tuple(_rank(each, newest.get(each.rank)) for each in placed)
    return conditional(request, JobDetail(job=_job(context, *rows[0]), ranks=ranks))


def _rank(placed: RankRegistered, seen: Observed | None) -> Rank:
    where = Rank(
        rank=placed.rank,
        host=placed.host,
        pid=placed.pid,
        gpu=placed.gpu,
        gpu_uuid=placed.gpu_uuid,
        local_rank=placed.local_rank,
    )
    if seen is None or not isinstance(seen.fact, RankProgress) or seen.fact.generation != placed.generation:
        return where
    said = seen.fact
    return replace(where, step=said.step, step_at=said.step_at, phase=said.phase, heard_at=seen.received_at)
