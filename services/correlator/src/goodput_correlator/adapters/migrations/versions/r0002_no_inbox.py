"""Drop the inbox: evidence is told apart by its own id, and nothing ever asked this table."""

from __future__ import annotations

from alembic import op

revision = "r0002"
down_revision = "r0001"


def upgrade() -> None:
    op.drop_table("inbox")
