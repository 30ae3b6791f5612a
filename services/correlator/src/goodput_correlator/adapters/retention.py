"""Old rows go, a bounded number a round, so that pruning never holds up a write for long.

Batches of mere measurements go soonest. Other evidence goes by age, and by number when a burst fills the table before its
age is up. What a verdict cites is pinned and goes with the verdict.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_correlator.adapters.schema import SCHEMA
from goodput_correlator.application.ports import Retention

# The oldest row that may stay by number is found by walking the index, and only when the table's own statistics say that it
# may be that full (or do not know yet): the walk is long.
_EVIDENCE = f"""
    WITH bound AS (
        SELECT greatest(:evidence_before, coalesce(CASE WHEN (
            SELECT reltuples < 0 OR reltuples > 0.9 * :evidence_rows_max
            FROM pg_class WHERE oid = '{SCHEMA}.evidence'::regclass
        ) THEN (
            SELECT received_at FROM {SCHEMA}.evidence WHERE fabric = :fabric
            ORDER BY received_at DESC OFFSET :evidence_rows_max LIMIT 1
        ) END, :evidence_before)) AS before
    ), old AS (
        SELECT id FROM {SCHEMA}.evidence, bound
        WHERE fabric = :fabric AND NOT pinned AND received_at <= bound.before ORDER BY received_at LIMIT :rows_a_round
    )
    DELETE FROM {SCHEMA}.evidence USING old WHERE evidence.id = old.id
"""
_MEASURED = f"""
    WITH old AS (
        SELECT id FROM {SCHEMA}.evidence
        WHERE fabric = :fabric AND kind = 'measured' AND NOT pinned AND received_at <= :measured_before
        ORDER BY received_at LIMIT :rows_a_round
    )
    DELETE FROM {SCHEMA}.evidence USING old WHERE evidence.id = old.id
"""
_EVENTS = f"""
    DELETE FROM {SCHEMA}.events WHERE position IN (
        SELECT position FROM {SCHEMA}.events WHERE fabric = :fabric AND at < :events_before
        ORDER BY position LIMIT :rows_a_round
    )
"""
# A chain goes whole: all versions, its citations, its incident; evidence that no other chain cites is let go.
_CHAINS = f"""
    WITH old AS (
        SELECT id, incident FROM {SCHEMA}.verdicts
        WHERE fabric = :fabric AND latest AND state = 'resolved' AND published_at < :verdicts_before LIMIT 100
    ), versions AS (
        DELETE FROM {SCHEMA}.verdicts USING old WHERE verdicts.id = old.id
    ), happenings AS (
        DELETE FROM {SCHEMA}.incidents USING old WHERE incidents.id = old.incident
    ), quoted AS (
        DELETE FROM {SCHEMA}.citations USING old WHERE citations.verdict = old.id
        RETURNING citations.verdict, citations.kept_in
    )
    UPDATE {SCHEMA}.evidence SET pinned = false FROM quoted
    WHERE evidence.id = quoted.kept_in AND NOT EXISTS (
        SELECT FROM {SCHEMA}.citations other
        WHERE other.kept_in = quoted.kept_in AND other.verdict NOT IN (SELECT id FROM old)
    )
"""
_JOBS = f"""
    WITH old AS (
        DELETE FROM {SCHEMA}.jobs WHERE fabric = :fabric AND last_seen_at < :verdicts_before RETURNING fabric, job
    )
    DELETE FROM {SCHEMA}.registrations USING old WHERE registrations.fabric = old.fabric AND registrations.job = old.job
"""
_STATEMENTS = tuple(sa.text(each) for each in (_MEASURED, _EVIDENCE, _EVENTS, _CHAINS, _JOBS))


async def prune(connection: AsyncConnection, fabric: str, keep: Retention, now: datetime) -> int:
    """One round; returns the number of rows it let go."""
    given = {
        "fabric": fabric,
        "evidence_before": now - timedelta(seconds=keep.evidence_s),
        "measured_before": now - timedelta(seconds=keep.measured_s),
        "evidence_rows_max": keep.evidence_rows_max,
        "events_before": now - timedelta(seconds=keep.events_s),
        "verdicts_before": now - timedelta(seconds=keep.verdicts_s),
        "rows_a_round": keep.rows_a_round,
    }
    gone = 0
    for statement in _STATEMENTS:
        used = {name: value for name, value in given.items() if f":{name}" in statement.text}
        gone += max(0, (await connection.execute(statement, used)).rowcount)
    return gone
