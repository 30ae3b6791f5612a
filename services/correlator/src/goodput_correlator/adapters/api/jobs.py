"""`/v1/jobs`: which jobs there are, where their ranks run, how far they have come."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec.structs import replace
from starlette.responses import Response

from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.http.auth import Tenant
from goodput_common.http.etag import conditional
from goodput_common.http.paging import LIMIT_DEFAULT, Cursor, Limit, decode_cursor, encode_cursor, next_cursor
from goodput_common.http.structs import returns
from goodput_correlator.adapters.api.context import Context, InContext, Since, Until, instant, list_of, missing, page
from goodput_correlator.adapters.queries import JobFilter
from goodput_correlator.application.placement import job_state
from goodput_correlator.application.ports import JobProgress
from goodput_correlator.application.views import Job, JobDetail, JobState, Rank
from goodput_correlator.domain.case import Observed

router = APIRouter(tags=["jobs"])

# A job's state is worked out, not stored: with a filter on it so many rows are looked at for one page.
ROWS_A_ROUND = 500
ROUNDS_MAX = 20


def _job(context: Context, progress: JobProgress, open_verdict: bool) -> Job:
    state = job_state(progress, open_verdict=open_verdict, now=context.clock.now())
    return Job(fabric=context.fabric, state=state, **asdict(progress))


@router.get("/v1/jobs", summary="List jobs by name", responses=list_of(Job))
async def list_jobs(
    request: Request,
    context: InContext,
    principal: Tenant,
    state: JobState | None = None,
    host: Annotated[str | None, Query(description="that carries a rank of it")] = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> Response:
    """`since` and `until` are about the last word of the job. With `state`, a page may be short although more follow."""
    wanted = JobFilter(host=host, since=instant(since), until=instant(until))
    listing = f"jobs {state} {wanted}"
    after = decode_cursor(cursor, (str,), listing=listing)[0] if cursor else None
    found: list[Job] = []
    for _ in range(ROUNDS_MAX):
        rows = await context.queries.jobs(principal.jobs, wanted, after=after, limit=ROWS_A_ROUND if state else limit + 1)
        jobs = [_job(context, *row) for row in rows]
        found += [each for each in jobs if state is None or each.state is state]
        if len(found) > limit or not state or len(rows) < ROWS_A_ROUND:
            shown, following = next_cursor(found, limit, lambda each: (each.job,), listing=listing)
            return conditional(request, page(list(shown), following))
        after = jobs[-1].job
    return conditional(request, page(found, encode_cursor((after,), listing=listing)))


@router.get("/v1/jobs/{job}", summary="One job with all its ranks", responses=returns(JobDetail))
async def get_job(request: Request, context: InContext, principal: Tenant, job: str) -> Response:
    principal.check_job(job)
    rows = await context.queries.jobs(frozenset((job,)))
    if not rows:
        raise missing("job")
    placed = await context.queries.placement(job, rows[0][0].generation)
    reports = await context.queries.newest_progress(job, placed)
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
