"""The outbox's table, and putting a message into it.

Messages of one `key` are sent in the order in which their transactions committed: `enqueue` takes a lock on the key until
the end of the caller's transaction, so positions and commits agree. Enqueue several keys in a fixed order (sorted), or
two transactions can wait for each other; Postgres then ends one of them with an error.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.contracts.registry import BY_NAME, MESSAGE_TYPES
from goodput_common.runtime.tracing import current_traceparent
from goodput_common.store.locks import lock_key

_NAME_OF: dict[type[msgspec.Struct], str] = {each.struct: each.name for each in MESSAGE_TYPES}


class Undecodable(ValueError):
    """A stored row is no message of this build any more; `str` says why."""


def outbox_table(metadata: sa.MetaData) -> sa.Table:
    """The outbox in the metadata's schema. `parked_at` marks rows given up on; they are kept until a person decides."""
    now = sa.text("now()")
    return sa.Table(
        "outbox",
        metadata,
        sa.Column("position", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("message_id", sa.Text, nullable=False, unique=True),
        sa.Column("key", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("component", sa.Text, nullable=False, server_default=""),
        sa.Column("traceparent", sa.Text, nullable=False, server_default=""),
        sa.Column("data", sa.Text, nullable=False),
        sa.Column("time", sa.DateTime(timezone=True)),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False, server_default=now),
        sa.Column("sent_at", sa.DateTime(timezone=True)),
        sa.Column("parked_at", sa.DateTime(timezone=True)),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("last_error", sa.Text, nullable=False, server_default=""),
        sa.Index("outbox_waiting", "position", postgresql_where=sa.text("sent_at IS NULL AND parked_at IS NULL")),
        sa.Index("outbox_sent", "sent_at", postgresql_where=sa.text("sent_at IS NOT NULL")),
    )


def schema_of(table: sa.Table) -> str:
    return table.schema or "public"


def channel_of(table: sa.Table) -> str:
    """The LISTEN/NOTIFY channel of an outbox."""
    return f"goodput_outbox_{schema_of(table)}"


async def enqueue(
    connection: AsyncConnection,
    table: sa.Table,
    *,
    subject: str,
    id: str,
    data: msgspec.Struct,
    source: str,
    key: str,
    component: str = "",
    time: datetime | None = None,
) -> bool:
    """Store one message for publication in the caller's transaction; the publisher is woken by its commit.

    `key` names what must stay in order (an incident, a plan). Returns False when `id` has been enqueued before: nothing is
    stored then. Raises TypeError for a struct that is in no line of the contract's registry.
    """
    type_name = _NAME_OF.get(type(data))
    if type_name is None:
        raise TypeError(f"{type(data).__name__} is not a message: add it to goodput_common.contracts.registry")
    lock = sa.select(sa.func.pg_advisory_xact_lock(lock_key("outbox", schema_of(table), key)))
    await connection.execute(lock)
    statement = (
        insert(table)
        .values(
            message_id=id,
            key=key,
            type=type_name,
            subject=subject,
            source=source,
            component=component,
            traceparent=current_traceparent(),
            data=msgspec.json.encode(data).decode(),
            time=time,
        )
        .on_conflict_do_nothing()
        .returning(table.c.position, sa.func.pg_notify(channel_of(table), ""))
    )
    return (await connection.execute(statement)).first() is not None


def decode(type_name: str, data: str) -> Any:
    """A row's struct. Raises Undecodable."""
    known = BY_NAME.get(type_name)
    if known is None:
        raise Undecodable(f"message type {type_name!r} is unknown to this build")
    try:
        return msgspec.json.decode(data, type=known.struct)
    except msgspec.MsgspecError as error:
        raise Undecodable(f"{type_name}: {error}") from error
