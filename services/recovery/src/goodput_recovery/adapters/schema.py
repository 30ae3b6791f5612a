"""The tables of schema `recovery`, as SQLAlchemy Core. The migrations create them; a test checks that the two agree.

`fabric` is the lock of everything and holds the newest fencing token and the global pause. `incident`, `verdict` and `plan`
are what is decided upon (`plan` and `incident` keep their structs as JSON, with columns for what is searched). `deed` is
the record of executed actions, one row a plan: counting it counts what was done. `asked` are the commands to ranks. `audit`
is append-only: a trigger refuses every update, and the delete of what is younger than 30 days. Outbox, inbox and lease come
from `goodput_common.store`.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSON

from goodput_common.store.inbox import inbox_table
from goodput_common.store.lease import lease_table
from goodput_common.store.outbox import outbox_table

SCHEMA = "recovery"
metadata = MetaData(schema=SCHEMA)
# json, not jsonb: a NUL inside an excerpt of a kernel log is no error, and nothing is searched inside the documents.
_INSTANT = DateTime(timezone=True)
OPEN_STATES = ("proposed", "awaiting_approval", "approved", "executing", "verifying")
IS_OPEN = f"state IN ({', '.join(repr(state) for state in OPEN_STATES)})"

fabric = Table(
    "fabric",
    metadata,
    Column("fabric", Text, primary_key=True),
    Column("last_token", BigInteger, nullable=False, server_default="0"),
    Column("paused_by", Text, nullable=False, server_default=""),
    Column("paused_why", Text, nullable=False, server_default=""),
    Column("paused_at", _INSTANT),
)

incident = Table(
    "incident",
    metadata,
    Column("fabric", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("job", Text),
    Column("opened_at", _INSTANT, nullable=False),
    Column("verdict", JSON, nullable=False),
    Index("incident_opened", "fabric", "opened_at"),
)

verdict = Table(
    "verdict",
    metadata,
    Column("id", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("heard_at", _INSTANT, nullable=False),
    Column("body", JSON, nullable=False),
)

plan = Table(
    "plan",
    metadata,
    Column("position", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("id", Text, primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("ordinal", Integer, nullable=False),
    Column("job", Text),
    Column("host", Text),
    Column("action", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("created_at", _INSTANT, nullable=False),
    Column("changed_at", _INSTANT, nullable=False),
    Column("acted_at", _INSTANT),
    Column("body", JSON, nullable=False),
    ForeignKeyConstraint(["fabric", "incident"], ["recovery.incident.fabric", "recovery.incident.id"]),
    UniqueConstraint("fabric", "incident", "ordinal", name="plan_ordinal"),
    # What the domain promises, promised again by the database: one open plan an incident, no token twice.
    Index("plan_one_open", "fabric", "incident", unique=True, postgresql_where=text(IS_OPEN)),
    Index("plan_token", "fabric", "fencing_token", unique=True, postgresql_where=text("fencing_token > 0")),
    Index("plan_job", "fabric", "job", "position"),
    Index("plan_acted", "fabric", "acted_at", postgresql_where=text("acted_at IS NOT NULL")),
)

deed = Table(
    "deed",
    metadata,
    Column("position", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("plan", Text, ForeignKey("recovery.plan.id"), primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("job", Text),
    Column("action", Text, nullable=False),
    Column("target", Text),
    Column("actuator", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("at", _INSTANT, nullable=False),
    Column("finished_at", _INSTANT),
    Column("done", Boolean),
    Column("result", Text, nullable=False, server_default=""),
    Index("deed_job", "fabric", "job", "fencing_token"),
)

asked = Table(
    "asked",
    metadata,
    Column("id", Text, primary_key=True),
    Column("plan", Text, ForeignKey("recovery.plan.id"), nullable=False),
    Column("rank", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("fencing_token", BigInteger, nullable=False),
    Column("at", _INSTANT, nullable=False),
    Column("status", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    Column("step", BigInteger, nullable=False, server_default="-1"),
    Index("asked_plan", "plan"),
)

rank_place = Table(
    "rank_place",
    metadata,
    Column("fabric", Text, primary_key=True),
    Column("job", Text, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("host", Text, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("at", _INSTANT, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("at", _INSTANT, nullable=False),
    Column("fabric", Text, nullable=False),
    Column("incident", Text),
    Column("job", Text),
    Column("plan", Text),
    Column("actor", Text, nullable=False),
    Column("decision", Text, nullable=False),
    Column("previous", Text),
    Column("state", Text),
    Column("reason", Text, nullable=False),
    Column("inputs", JSON, nullable=False),
    Index("audit_plan", "plan"),
    Index("audit_incident", "fabric", "incident"),
)

outbox = outbox_table(metadata)
inbox = inbox_table(metadata)
lease = lease_table(metadata)
