"""The inbox: remembers which messages a consumer has acted on, so that a redelivery does nothing.

`first_time` inserts the message's id in the caller's transaction, next to the effects of the message: either both are
kept or neither. A second delivery that is handled at the same moment waits for the first transaction and then sees its
outcome.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import Tasks, stop_task

_log = get_logger(__name__)

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


class InboxPruner(Part):
    """Keeps the inbox small: every `every_s`, in short transactions. While the database is away it waits for its turn."""

    name = "inbox pruner"

    def __init__(
        self, engine: AsyncEngine, table: sa.Table, *, tasks: Tasks, keep: timedelta = KEEP, every_s: float = 600.0
    ) -> None:
        self._engine, self._table, self._tasks, self._keep, self._every_s = engine, table, tasks, keep, every_s
        self._task: asyncio.Task[Any] | None = None
        self._state = StateLog(_log)

    async def start(self) -> None:
        self._task = self._tasks.spawn(self.name, self._run())

    async def stop_pulling(self) -> None:
        await stop_task(self._task)

    async def prune(self) -> int:
        """Once, completely; returns how many messages were forgotten."""
        total, rows_max = 0, 5000
        while True:
            async with self._engine.begin() as connection:
                gone = await prune_inbox(connection, self._table, keep=self._keep, rows_max=rows_max)
            total += gone
            if gone < rows_max:
                return total

    async def _run(self) -> None:
        while True:
            try:
                await self.prune()
                self._state.report(self.name, "works", "inbox is pruned", level="debug")
            except (OSError, TimeoutError, SQLAlchemyError) as error:
                self._state.report(self.name, "fails", "cannot prune the inbox", level="warning", error=repr(error))
            await asyncio.sleep(self._every_s)
