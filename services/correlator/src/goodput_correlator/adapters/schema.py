"""The tables of schema `correlator`, as SQLAlchemy Core. The migrations create them; a test checks that the two agree.

Three families. *Input*: `evidence` (a report is a row, and so is a telemetry batch, compressed as it came),
`registrations` (which process carried which rank, by generation), `topology_parts` (snapshots as they came, until all
parts are there). *Decisions*: `incidents`, `verdicts` (one row a version, `body` being the exact bytes that went to the
bus), `citations` (which evidence a version rests on), `events` (what the SSE stream tells, in order). *When*: `grid` (the
last second that was analysed, and under which term of the lease). Outbox and lease come from `goodput_common.store`;
there is no inbox, because a message's id is the key of its row of evidence.

The graph itself lives in the tables of `goodput_topology.postgres`, in the same schema.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSON

from goodput_common.store.lease import lease_table
from goodput_common.store.outbox import outbox_table
from goodput_topology.postgres import topology_tables

SCHEMA = "correlator"
metadata = MetaData(schema=SCHEMA)

topology = topology_tables(metadata)
outbox = outbox_table(metadata)
lease = lease_table(metadata)
_INSTANT = DateTime(timezone=True)

grid = Table(
    "grid",
    metadata,
    Column("fabric", Text, primary_key=True),
    Column("ticked_to", _INSTANT, nullable=False),
    Column("token", BigInteger, nullable=False),
)

# `body` is json, not jsonb: the exact text comes back (a restored fact equals the live one to the last digit), a NUL inside
# an excerpt of a kernel log is no error, and inserting is cheaper. A batch has `packed` instead.
evidence = Table(
    "evidence",
    metadata,
    Column("id", Text, primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("component", Text),
    Column("job", Text),
    Column("observed_at", _INSTANT, nullable=False),
    Column("received_at", _INSTANT, nullable=False),
    Column("pinned", Boolean, nullable=False, server_default=text("false")),
    Column("body", JSON),
    Column("packed", LargeBinary),
    Index("evidence_by_arrival", "fabric", "received_at"),
    Index("evidence_measured", "fabric", "received_at", postgresql_where=text("kind = 'measured' AND NOT pinned")),
    Index("evidence_by_component", "component", "received_at"),
)

registrations = Table(
    "registrations",
    metadata,
    Column("fabric", Text),
    Column("job", Text),
    Column("generation", Integer),
    Column("rank", Integer),
    Column("host", Text, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("id", Text, nullable=False),
    Column("received_at", _INSTANT, nullable=False),
    Column("body", JSON, nullable=False),
    PrimaryKeyConstraint("fabric", "job", "generation", "rank"),
    Index("registrations_by_host", "fabric", "host"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("fabric", Text),
    Column("job", Text),
    Column("generation", Integer, nullable=False),
    Column("world_size", Integer, nullable=False),
    Column("first_seen_at", _INSTANT, nullable=False),
    Column("last_seen_at", _INSTANT, nullable=False),
    Column("step_min", BigInteger, nullable=False, server_default=text("-1")),
    Column("step_max", BigInteger, nullable=False, server_default=text("-1")),
    Column("step_at", _INSTANT),
    Column("exited_clean", Integer, nullable=False, server_default=text("0")),
    Column("exited_failed", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("fabric", "job"),
)

topology_parts = Table(
    "topology_parts",
    metadata,
    Column("fabric", Text),
    Column("source", Text),
    Column("version", BigInteger),
    Column("part", Integer),
    Column("parts", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("fabric", "source", "version", "part"),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("job", Text),
    Column("jobs", ARRAY(Text), nullable=False),
    Column("state", Text, nullable=False),
    Column("fault_class", Text, nullable=False),
    Column("component", Text),
    Column("verdict", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("first_evidence_at", _INSTANT, nullable=False),
    Column("opened_at", _INSTANT, nullable=False),
    Column("updated_at", _INSTANT, nullable=False),
    Column("resolved_at", _INSTANT),
    Column("position", BigInteger, nullable=False),
    Index("incidents_by_position", "fabric", "position"),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Text),
    Column("version", Integer),
    Column("position", BigInteger, Identity(always=True), nullable=False, unique=True),
    Column("latest", Boolean, nullable=False),
    Column("fabric", Text, nullable=False),
    Column("incident", Text, nullable=False),
    Column("job", Text),
    Column("jobs", ARRAY(Text), nullable=False),
    Column("hosts", ARRAY(Text), nullable=False),
    Column("components", ARRAY(Text), nullable=False),
    Column("state", Text, nullable=False),
    Column("fault_class", Text, nullable=False),
    Column("confidence", Double, nullable=False),
    Column("first_evidence_at", _INSTANT, nullable=False),
    Column("published_at", _INSTANT, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("id", "version"),
    Index("verdicts_by_position", "fabric", "position"),
    Index("verdicts_by_incident", "incident", "position"),
    Index("verdicts_latest", "fabric", "position", postgresql_where=text("latest")),
    Index("verdicts_by_job", "jobs", postgresql_using="gin"),
)

citations = Table(
    "citations",
    metadata,
    Column("verdict", Text),
    Column("version", Integer),
    Column("ordinal", Integer),
    Column("event_id", Text, nullable=False),
    Column("kept_in", Text, nullable=False),  # the row of evidence: of a sample, its batch
    PrimaryKeyConstraint("verdict", "version", "ordinal"),
    Index("citations_by_event", "event_id"),
    Index("citations_by_row", "kept_in"),
)

events = Table(
    "events",
    metadata,
    Column("position", BigInteger, Identity(always=True), primary_key=True),
    Column("fabric", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("job", Text),
    Column("jobs", ARRAY(Text), nullable=False),
    Column("at", _INSTANT, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("events_by_position", "fabric", "position"),
)
