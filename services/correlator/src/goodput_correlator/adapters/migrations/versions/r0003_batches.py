"""A telemetry batch is one row, compressed; a citation names the row that holds its fact.

Rows of single samples that are there already stay, and go with their age.
"""

from __future__ import annotations

from alembic import op

revision = "r0003"
down_revision = "r0002"

_DDL = """
ALTER TABLE evidence ADD COLUMN packed bytea;
ALTER TABLE evidence ALTER COLUMN body DROP NOT NULL;
CREATE INDEX evidence_measured ON evidence (fabric, received_at) WHERE kind = 'measured' AND NOT pinned;
ALTER TABLE citations ADD COLUMN kept_in text;
UPDATE citations SET kept_in = event_id;
ALTER TABLE citations ALTER COLUMN kept_in SET NOT NULL;
CREATE INDEX citations_by_row ON citations (kept_in);
"""


def upgrade() -> None:
    for statement in _DDL.split(";"):
        if statement.strip():
            op.execute(statement)
