"""Verdict versions into the database: on top of their predecessor or not at all, with their incident, citations, event and
message to the bus, in the caller's transaction.

The primary key (id, version) and the check of the predecessor make the chain: however often a tick is decided, version n is
stored once, queued once, and never without n-1. `body` holds the bytes that are published.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts import subjects
from goodput_common.contracts.verdict import Culprit, Verdict, VerdictState
from goodput_common.store.outbox import enqueue
from goodput_correlator.adapters import schema
from goodput_correlator.application import facts
from goodput_correlator.application.views import EventKind, Incident, incident_state

_encode = msgspec.json.Encoder().encode


async def store(connection: AsyncConnection, fabric: str, versions: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Returns the versions that do not follow on what is stored."""
    unfit = []
    for verdict in versions:
        if await _newest(connection, verdict.id) != verdict.version - 1:
            unfit.append(verdict)
            continue
        await _store(connection, fabric, verdict)
    return tuple(unfit)


async def _newest(connection: AsyncConnection, verdict: str) -> int:
    newest = sa.select(sa.func.max(schema.verdicts.c.version)).where(schema.verdicts.c.id == verdict)
    return (await connection.execute(newest)).scalar() or 0


async def _store(connection: AsyncConnection, fabric: str, verdict: Verdict) -> None:
    body = _encode(verdict)
    verdicts, events = schema.verdicts, schema.events
    before = sa.and_(verdicts.c.id == verdict.id, verdicts.c.version == verdict.version - 1)
    await connection.execute(sa.update(verdicts).where(before).values(latest=False))
    stored = insert(verdicts).values(_row(fabric, verdict, body)).returning(verdicts.c.position)
    position = (await connection.execute(stored)).scalar_one()
    await _cite(connection, verdict)
    incident = await _incident(connection, fabric, verdict, position)
    told = {"fabric": fabric, "job": verdict.job, "jobs": jobs_of(verdict), "at": verdict.published_at}
    await connection.execute(insert(events).values(**told, kind=EventKind.VERDICT.value, body=body))
    await connection.execute(insert(events).values(**told, kind=EventKind.INCIDENT.value, body=_encode(incident)))
    await enqueue(
        connection,
        schema.outbox,
        subject=subjects.verdict(fabric, verdict.job, verdict.fault_class.value),
        data=verdict,
        id=f"{verdict.id}.{verdict.version}",
        source=f"correlator/{fabric}",
        key=verdict.id,
        component=verdict.culprit.component or "",
        time=verdict.published_at,
    )


def culprits_of(verdict: Verdict) -> tuple[Culprit, ...]:
    return verdict.culprits or (verdict.culprit,)


def jobs_of(verdict: Verdict) -> list[str]:
    """The job that stands still and all others that are touched."""
    return sorted({*verdict.affected.jobs, *([verdict.job] if verdict.job else [])})


def _row(fabric: str, verdict: Verdict, body: bytes) -> dict[str, Any]:
    named = culprits_of(verdict)
    return {
        "id": verdict.id,
        "version": verdict.version,
        "latest": True,
        "fabric": fabric,
        "incident": verdict.incident,
        "job": verdict.job,
        "jobs": jobs_of(verdict),
        "hosts": sorted({each.host for each in named if each.host}),
        "components": sorted({each.component for each in named if each.component}),
        "state": verdict.state.value,
        "fault_class": verdict.fault_class.value,
        "confidence": verdict.confidence,
        "first_evidence_at": verdict.first_evidence_at,
        "published_at": verdict.published_at,
        "body": body,
    }


async def _cite(connection: AsyncConnection, verdict: Verdict) -> None:
    """Note what the version rests on, and keep that evidence from being pruned."""
    if not verdict.evidence:
        return
    evidence, ids = schema.evidence, [each.event_id for each in verdict.evidence]
    batches = {each: sample[0] for each in ids if (sample := facts.row_of(each)) is not None}
    asked = sa.select(evidence.c.id).where(evidence.c.id.in_(sorted({*ids, *batches.values()})))
    found = frozenset((await connection.execute(asked)).scalars())
    kept_in = [batches[each] if each not in found and batches.get(each) in found else each for each in ids]
    rows = [
        {"verdict": verdict.id, "version": verdict.version, "ordinal": n, "event_id": each, "kept_in": row}
        for n, (each, row) in enumerate(zip(ids, kept_in, strict=True))
    ]
    await connection.execute(insert(schema.citations), rows)
    cited = evidence.c.id.in_(kept_in)
    await connection.execute(sa.update(evidence).where(cited, sa.not_(evidence.c.pinned)).values(pinned=True))


async def _incident(connection: AsyncConnection, fabric: str, verdict: Verdict, position: int) -> Incident:
    table = schema.incidents
    opened = sa.select(table.c.opened_at).where(table.c.id == verdict.incident)
    opened_at = (await connection.execute(opened)).scalar_one_or_none() or verdict.published_at
    resolved = verdict.state is VerdictState.RESOLVED
    incident = Incident(
        id=verdict.incident,
        fabric=fabric,
        job=verdict.job,
        state=incident_state(verdict.state),
        fault_class=verdict.fault_class,
        component=verdict.culprit.component,
        verdict=verdict.id,
        version=verdict.version,
        first_evidence_at=verdict.first_evidence_at,
        opened_at=opened_at,
        updated_at=verdict.published_at,
        resolved_at=verdict.published_at if resolved else None,
    )
    row = {**msgspec.structs.asdict(incident), "jobs": jobs_of(verdict), "position": position}
    row["state"], row["fault_class"] = incident.state.value, incident.fault_class.value
    upsert = insert(table).values(row)
    changed = {name: upsert.excluded[name] for name in row if name not in ("id", "opened_at")}
    await connection.execute(upsert.on_conflict_do_update(index_elements=["id"], set_=changed))
    return incident
