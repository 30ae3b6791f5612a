"""Everything of the first release."""

from __future__ import annotations

from alembic import op

from goodput_common.store.tables import create_inbox, create_lease, create_outbox

revision = "r0001"
down_revision = None

_DDL = """
CREATE TABLE grid (
    fabric text PRIMARY KEY,
    ticked_to timestamptz NOT NULL,
    token bigint NOT NULL
);

CREATE TABLE evidence (
    id text PRIMARY KEY,
    fabric text NOT NULL,
    host text NOT NULL,
    source text NOT NULL,
    kind text NOT NULL,
    component text,
    job text,
    observed_at timestamptz NOT NULL,
    received_at timestamptz NOT NULL,
    pinned boolean NOT NULL DEFAULT false,
    body json NOT NULL
);
CREATE INDEX evidence_by_arrival ON evidence (fabric, received_at);
CREATE INDEX evidence_by_component ON evidence (component, received_at);

CREATE TABLE registrations (
    fabric text,
    job text,
    generation integer,
    rank integer,
    host text NOT NULL,
    world_size integer NOT NULL,
    id text NOT NULL,
    received_at timestamptz NOT NULL,
    body json NOT NULL,
    PRIMARY KEY (fabric, job, generation, rank)
);
CREATE INDEX registrations_by_host ON registrations (fabric, host);

CREATE TABLE jobs (
    fabric text,
    job text,
    generation integer NOT NULL,
    world_size integer NOT NULL,
    first_seen_at timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    step_min bigint NOT NULL DEFAULT -1,
    step_max bigint NOT NULL DEFAULT -1,
    step_at timestamptz,
    exited_clean integer NOT NULL DEFAULT 0,
    exited_failed integer NOT NULL DEFAULT 0,
    PRIMARY KEY (fabric, job)
);

CREATE TABLE topology_parts (
    fabric text,
    source text,
    version bigint,
    part integer,
    parts integer NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (fabric, source, version, part)
);

CREATE TABLE topology_source (
    fabric text,
    source text,
    version bigint NOT NULL,
    at timestamptz NOT NULL,
    PRIMARY KEY (fabric, source)
);
CREATE TABLE topology_component (
    fabric text,
    source text,
    id text,
    kind text NOT NULL,
    attrs jsonb NOT NULL,
    PRIMARY KEY (fabric, source, id)
);
CREATE TABLE topology_edge (
    fabric text,
    source text,
    a text,
    b text,
    relation text,
    attrs jsonb NOT NULL,
    PRIMARY KEY (fabric, source, a, b, relation)
);

CREATE TABLE incidents (
    id text PRIMARY KEY,
    fabric text NOT NULL,
    job text,
    jobs text[] NOT NULL,
    state text NOT NULL,
    fault_class text NOT NULL,
    component text,
    verdict text NOT NULL,
    version integer NOT NULL,
    first_evidence_at timestamptz NOT NULL,
    opened_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    resolved_at timestamptz,
    position bigint NOT NULL
);
CREATE INDEX incidents_by_position ON incidents (fabric, position);

CREATE TABLE verdicts (
    id text,
    version integer,
    position bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    latest boolean NOT NULL,
    fabric text NOT NULL,
    incident text NOT NULL,
    job text,
    jobs text[] NOT NULL,
    hosts text[] NOT NULL,
    components text[] NOT NULL,
    state text NOT NULL,
    fault_class text NOT NULL,
    confidence double precision NOT NULL,
    first_evidence_at timestamptz NOT NULL,
    published_at timestamptz NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (id, version)
);
CREATE INDEX verdicts_by_position ON verdicts (fabric, position);
CREATE INDEX verdicts_by_incident ON verdicts (incident, position);
CREATE INDEX verdicts_latest ON verdicts (fabric, position) WHERE latest;
CREATE INDEX verdicts_by_job ON verdicts USING gin (jobs);

CREATE TABLE citations (
    verdict text,
    version integer,
    ordinal integer,
    event_id text NOT NULL,
    PRIMARY KEY (verdict, version, ordinal)
);
CREATE INDEX citations_by_event ON citations (event_id);

CREATE TABLE events (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    fabric text NOT NULL,
    kind text NOT NULL,
    job text,
    jobs text[] NOT NULL,
    at timestamptz NOT NULL,
    body bytea NOT NULL
);
CREATE INDEX events_by_position ON events (fabric, position)
"""


def upgrade() -> None:
    for statement in _DDL.split(";\n"):
        op.execute(statement)
    create_outbox()
    create_inbox()
    create_lease()
