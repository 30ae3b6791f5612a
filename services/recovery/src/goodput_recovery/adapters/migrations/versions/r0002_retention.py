"""The audit log lets rows go that are older than any verdict on the bus; all else of it stays append-only."""

from __future__ import annotations

from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    op.execute("DROP TRIGGER audit_append_only ON audit")
    op.execute(
        "CREATE TRIGGER audit_append_only BEFORE UPDATE OR TRUNCATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION audit_is_append_only()"
    )
    op.execute(
        "CREATE FUNCTION audit_keeps_what_is_recent() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN "
        "IF OLD.at > now() - interval '30 days' THEN "
        "RAISE EXCEPTION 'recovery.audit is append-only: % of a row of the last 30 days is refused', TG_OP; "
        "END IF; RETURN OLD; END $$"
    )
    op.execute(
        "CREATE TRIGGER audit_keeps BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_keeps_what_is_recent()"
    )
