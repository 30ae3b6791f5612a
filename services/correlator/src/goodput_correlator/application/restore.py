"""What a term begins with: the diagnosis and the accounts as they stood at the grid's place, made from the store.

The window of evidence is read page by page, in the order in which it is judged. Of batches that only measure, which are
most, the last minute and a half is read: what a decision needs of counters and gauges is told again every few seconds, and
no older report of probes counts. What had been judged is folded into the timelines with its page; only what came in after
the grid's place is held until it is judged. So the start takes the memory that the diagnosis itself takes and one page,
whatever the window holds.

A job that has been quiet for longer than the window has nothing in it. When it was last heard of, how far it had come and
who had left then stands in its row, and what its ranks said last is fetched beside it: a start is no word of a job, and a
job that went without a goodbye is judged neither anew nor otherwise because of one.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from goodput_common.contracts.job import HostProgress
from goodput_common.runtime.logs import get_logger
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.ports import JobProgress, Store
from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.incidents import JOB_FORGET_S, LOOK_BACK_S, Incidents
from goodput_correlator.domain.timeline import Noted

_log = get_logger(__name__)

ROWS_MAX = 500_000  # the newest; older ones than fit have been judged before
PAGE_ROWS = 5000
MEASURED_S = 90.0  # more than the windows of probes that count, with their grace


async def rebuilt(store: Store, fabric: str) -> tuple[datetime | None, Incidents, JobBoard]:
    """The grid's place (None: nothing was ever judged), the diagnosis, and the accounts. Raises StoreUnavailable."""
    found = await store.restore(fabric, window_s=LOOK_BACK_S, jobs_s=JOB_FORGET_S)
    judged = found.ticked_to
    incidents, board = Incidents(found.topology), JobBoard()
    incidents.reopen(found.verdicts)
    board.restore(found.jobs)
    for each in sorted(found.observed, key=lambda o: o.order):
        incidents.observe(each)
        board.observe(each)
    since, rows = judged - timedelta(seconds=LOOK_BACK_S) if judged else None, 0
    measured_since = judged - timedelta(seconds=MEASURED_S) if judged else None
    async for page in store.evidence_pages(
        fabric, since=since, measured_since=measured_since, rows_max=ROWS_MAX, page_rows=PAGE_ROWS
    ):
        incidents.recall(page, judged=judged)
        for row in page:
            if isinstance(row, Observed):
                board.observe(row)
            elif isinstance(row.data, HostProgress):
                board.reported(row.data.reports, row.received_at)
        rows += len(page)
    board.restored(found.jobs)
    incidents.resume(judged=judged, jobs=[_noted(each) for each in found.jobs])
    _log.info("restored", fabric=fabric, jobs=len(found.jobs), early_facts=len(found.observed), rows=rows)
    return judged, incidents, board


def _noted(row: JobProgress) -> Noted:
    return Noted(job=row.job, generation=row.generation, heard_at=row.last_seen_at, step=row.step_max, step_at=row.step_at)
