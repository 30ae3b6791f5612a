"""The connection pool of one service to Postgres.

Every limit that keeps one bad statement or one lost server from stopping the whole service is set here: pool size, connect
timeout, statement timeout, and the time a transaction may sit idle with its locks.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.logs import redact

_DRIVERS = {"postgresql", "postgres", "postgresql+asyncpg"}


def normal_url(url: str) -> URL:
    """Any of the usual spellings of a Postgres URL, as SQLAlchemy wants it. Raises StartError, without the password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StartError(
            f"{redact(url)!r} is not a database URL",
            do_next="set GOODPUT_DATABASE_URL to postgresql://user:password@host:5432/name",
        ) from None
    if parsed.drivername not in _DRIVERS:
        raise StartError(
            f"the database URL begins with {parsed.drivername}://, but only Postgres through asyncpg is supported",
            do_next="set GOODPUT_DATABASE_URL to postgresql://user:password@host:5432/name",
        )
    query = dict(parsed.query)
    if "sslmode" in query:  # libpq's name; asyncpg takes the same values under `ssl`
        query["ssl"] = query.pop("sslmode")
    return parsed.set(drivername="postgresql+asyncpg", query=query)


def create_engine(
    url: str,
    *,
    application_name: str = "goodput",
    pool_size: int = 5,
    pool_overflow: int = 5,
    pool_wait_s: float = 10.0,
    connect_timeout_s: float = 5.0,
    statement_timeout_s: float = 15.0,
    idle_in_transaction_timeout_s: float = 60.0,
) -> AsyncEngine:
    """An engine; nothing is connected yet. JSON columns are written by msgspec, so structs and datetimes may go in.

    At the bounds: with all connections taken, a caller waits `pool_wait_s` and gets `sqlalchemy.exc.TimeoutError`; a
    statement over its time is cancelled by the server; a transaction left idle loses its connection.
    """
    settings = {
        "application_name": application_name[:63],
        "timezone": "UTC",
        "statement_timeout": str(int(statement_timeout_s * 1e3)),
        "idle_in_transaction_session_timeout": str(int(idle_in_transaction_timeout_s * 1e3)),
        # A peer that vanished without a word (power, partition) must free its locks within about half a minute.
        "tcp_keepalives_idle": "10",
        "tcp_keepalives_interval": "5",
        "tcp_keepalives_count": "4",
    }
    return create_async_engine(
        normal_url(url),
        pool_size=pool_size,
        max_overflow=pool_overflow,
        pool_timeout=pool_wait_s,
        pool_pre_ping=True,
        pool_recycle=1800,
        connect_args={
            "timeout": connect_timeout_s,
            "command_timeout": statement_timeout_s + 5.0,
            "server_settings": settings,
        },
        json_serializer=_json_text,
        json_deserializer=msgspec.json.decode,
    )


def _json_text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class EnginePart(Part):
    """Closes the pool at the end; list it before every part that uses the database."""

    name = "database pool"

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def close(self) -> None:
        await self.engine.dispose()
