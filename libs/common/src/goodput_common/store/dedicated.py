"""A connection of one's own, outside the pool.

Session locks and LISTEN belong to a connection, so whoever uses them must keep it and notice its end. The connection is in
autocommit (no transaction is begun on it) and is closed, not returned, at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

# What a statement on such a connection raises when the database is away or the connection breaks.
DATABASE_ERRORS = (
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # a statement on a connection that broke under another one
    SQLAlchemyError,
)
_CLOSE_WITHIN_S = 1.0


@contextlib.asynccontextmanager
async def dedicated(engine: AsyncEngine) -> AsyncIterator[Any]:
    """An `asyncpg.Connection` with the engine's settings."""
    connection = await engine.connect()
    driver: Any = (await connection.get_raw_connection()).driver_connection
    await connection.run_sync(lambda sync: sync.detach())
    try:
        yield driver
    finally:
        try:
            async with asyncio.timeout(_CLOSE_WITHIN_S):
                await driver.close()
        except Exception:  # noqa: BLE001 - it is dead or does not answer: what counts is that it is gone
            driver.terminate()
        with contextlib.suppress(Exception):
            await connection.invalidate()
            await connection.close()
