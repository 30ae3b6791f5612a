"""What every service's first revision needs: the shared tables, in the shape they were given when that revision was written.

Revisions are history and must not change when the code does, so these functions are frozen: a new column comes as a new
function (`outbox_v2`), called by a new revision. `tests/integration/test_store_migrate.py` checks that all of them together
make what the table factories describe.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

_NOW = sa.text("now()")


def create_outbox() -> None:
    """The table of `goodput_common.store.outbox`."""
    op.create_table(
        "outbox",
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("message_id", sa.Text, nullable=False, unique=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("component", sa.Text, nullable=False, server_default=""),
        sa.Column("traceparent", sa.Text, nullable=False, server_default=""),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
        sa.Column("sent_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("parked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text, nullable=False, server_default=""),
    )
    op.create_index(
        "outbox_waiting", "outbox", ["position"], postgresql_where=sa.text("sent_at IS NULL AND parked_at IS NULL")
    )
    op.create_index("outbox_sent", "outbox", ["sent_at"], postgresql_where=sa.text("sent_at IS NOT NULL"))


def create_inbox() -> None:
    """The table of `goodput_common.store.inbox`."""
    op.create_table(
        "inbox",
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    )
    op.create_index("inbox_seen", "inbox", ["seen_at"])


def create_lease() -> None:
    """The table of `goodput_common.store.lease`."""
    op.create_table(
        "lease",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, server_default=_NOW),
    )
