"""The inbox: remembers which messages a consumer has acted on, so that a redelivery does nothing.

`first_time` inserts the message's id in the caller's transaction, next to the effects of the message: either both are
kept or neither. A second delivery that is handled at the same moment waits for the first transaction and then sees its
outcome.
"""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

# Longer than any stream keeps a message (30 days): even a consumer that is made anew and reads all again acts on nothing
# twice.
KEEP = timedelta(days=31)


def inbox_table(metadata: sa.MetaData) -> sa.Table:
    """The inbox in the metadata's schema."""
    return sa.Table(
        "inbox",
        metadata,
        sa.Column("consumer", sa.Text, primary_key=True),
        sa.Column("message_id", sa.Text, primary_key=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
        sa.Index("inbox_seen", "seen_at"),
    )


async def first_time(connection: AsyncConnection, table: sa.Table, consumer: str, message_id: str) -> bool:
    """Whether `consumer` has not handled this message in a committed transaction yet; notes it in this one."""
    statement = (
        insert(table).values(consumer=consumer, message_id=message_id).on_conflict_do_nothing().returning(table.c.consumer)
    )
    return (await connection.execute(statement)).first() is not None


async def prune_inbox(connection: AsyncConnection, table: sa.Table, *, keep: timedelta = KEEP, rows_max: int = 5000) -> int:
    """Forget messages seen more than `keep` ago, at most `rows_max` a call; returns how many."""
    old = sa.select(table.c.consumer, table.c.message_id).where(table.c.seen_at < sa.func.now() - keep).limit(rows_max)
    key = sa.tuple_(table.c.consumer, table.c.message_id)
    return int((await connection.execute(sa.delete(table).where(key.in_(old)))).rowcount)
