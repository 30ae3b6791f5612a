"""The first tables of recovery.

Revision history: none before.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSON

from goodput_common.store.tables import create_inbox, create_lease, create_outbox

revision = "r0001"
down_revision = None

_INSTANT = sa.DateTime(timezone=True)
_OPEN = "state IN ('proposed', 'awaiting_approval', 'approved', 'executing', 'verifying')"


def upgrade() -> None:
    create_outbox()
    create_inbox()
    create_lease()
    _decisions()
    _deeds()
    _audit()


def _decisions() -> None:
    op.create_table(
        "fabric",
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("last_token", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("paused_by", sa.Text, nullable=False, server_default=""),
        sa.Column("paused_why", sa.Text, nullable=False, server_default=""),
        sa.Column("paused_at", _INSTANT),
    )
    op.create_table(
        "incident",
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("job", sa.Text),
        sa.Column("opened_at", _INSTANT, nullable=False),
        sa.Column("verdict", JSON, nullable=False),
    )
    op.create_index("incident_opened", "incident", ["fabric", "opened_at"])
    op.create_table(
        "verdict",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("version", sa.Integer, primary_key=True),
        sa.Column("fabric", sa.Text, nullable=False),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("heard_at", _INSTANT, nullable=False),
        sa.Column("body", JSON, nullable=False),
    )
    op.create_table(
        "plan",
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("fabric", sa.Text, nullable=False),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("ordinal", sa.Integer, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("host", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("created_at", _INSTANT, nullable=False),
        sa.Column("changed_at", _INSTANT, nullable=False),
        sa.Column("acted_at", _INSTANT),
        sa.Column("body", JSON, nullable=False),
        sa.ForeignKeyConstraint(["fabric", "incident"], ["incident.fabric", "incident.id"]),
        sa.UniqueConstraint("fabric", "incident", "ordinal", name="plan_ordinal"),
    )
    op.create_index("plan_one_open", "plan", ["fabric", "incident"], unique=True, postgresql_where=sa.text(_OPEN))
    op.create_index(
        "plan_token", "plan", ["fabric", "fencing_token"], unique=True, postgresql_where=sa.text("fencing_token > 0")
    )
    op.create_index("plan_job", "plan", ["fabric", "job", "position"])
    op.create_index("plan_acted", "plan", ["fabric", "acted_at"], postgresql_where=sa.text("acted_at IS NOT NULL"))


def _deeds() -> None:
    op.create_table(
        "deed",
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), nullable=False, unique=True),
        sa.Column("plan", sa.Text, sa.ForeignKey("plan.id"), primary_key=True),
        sa.Column("fabric", sa.Text, nullable=False),
        sa.Column("incident", sa.Text, nullable=False),
        sa.Column("job", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("target", sa.Text),
        sa.Column("actuator", sa.Text, nullable=False),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("finished_at", _INSTANT),
        sa.Column("done", sa.Boolean),
        sa.Column("result", sa.Text, nullable=False, server_default=""),
    )
    op.create_index("deed_job", "deed", ["fabric", "job", "fencing_token"])
    op.create_table(
        "asked",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("plan", sa.Text, sa.ForeignKey("plan.id"), nullable=False),
        sa.Column("rank", sa.Integer, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("fencing_token", sa.BigInteger, nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("step", sa.BigInteger, nullable=False, server_default="-1"),
    )
    op.create_index("asked_plan", "asked", ["plan"])
    op.create_table(
        "rank_place",
        sa.Column("fabric", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, primary_key=True),
        sa.Column("rank", sa.Integer, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("generation", sa.Integer, nullable=False),
        sa.Column("world_size", sa.Integer, nullable=False),
        sa.Column("at", _INSTANT, nullable=False),
    )


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("at", _INSTANT, nullable=False),
        sa.Column("fabric", sa.Text, nullable=False),
        sa.Column("incident", sa.Text),
        sa.Column("job", sa.Text),
        sa.Column("plan", sa.Text),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("decision", sa.Text, nullable=False),
        sa.Column("previous", sa.Text),
        sa.Column("state", sa.Text),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("inputs", JSON, nullable=False),
    )
    op.create_index("audit_plan", "audit", ["plan"])
    op.create_index("audit_incident", "audit", ["fabric", "incident"])
    op.execute(
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'recovery.audit is append-only: % is refused', TG_OP; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()"
    )
