"""Waiting for a database that is still starting, and only for that.

In compose and on Kubernetes everything starts at once. A refused connection, a name that does not resolve yet or "the
database system is starting up" are worth waiting for; a wrong password or a missing database is not, and ends the start
at once.
"""

from __future__ import annotations

import asyncio
import random
import time

import asyncpg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.runtime.lifecycle import StartError
from goodput_common.runtime.logs import StateLog, get_logger

_log = get_logger(__name__)
_BACKOFF_S = (0.1, 2.0)
_HOPELESS: dict[type[Exception], str] = {
    asyncpg.InvalidPasswordError: "check user and password in GOODPUT_DATABASE_URL",
    asyncpg.InvalidAuthorizationSpecificationError: "check the user in GOODPUT_DATABASE_URL and the server's pg_hba.conf",
    asyncpg.InvalidCatalogNameError: "create the database or check its name in GOODPUT_DATABASE_URL",
    asyncpg.InsufficientPrivilegeError: "grant the user CONNECT on the database",
}


async def wait_for_database(engine: AsyncEngine, *, within_s: float = 60.0) -> None:
    """Return once a query has been answered. Raises StartError when that is hopeless or has taken `within_s`."""
    address = f"{engine.url.host or 'the local socket'}:{engine.url.port or 5432}/{engine.url.database}"
    state = StateLog(_log)
    deadline_s = time.monotonic() + within_s
    delay_s = _BACKOFF_S[0]
    while True:
        try:
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
            state.report(address, "answers", "database answers", level="debug")
            return
        except (OSError, TimeoutError, DBAPIError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            cause = root_cause(error)
            for kind, do_next in _HOPELESS.items():
                if isinstance(cause, kind):
                    raise StartError(f"the database at {address} refused us: {cause}", do_next=do_next) from None
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise StartError(
                    f"the database at {address} did not answer within {within_s:g} s; last: {cause!r}",
                    do_next="start Postgres or correct GOODPUT_DATABASE_URL",
                ) from None
            state.report(address, repr(cause), "waiting for the database", give_up_in_s=round(left_s, 1))
        await asyncio.sleep(min(left_s, delay_s * random.uniform(0.7, 1.3)))
        delay_s = min(_BACKOFF_S[1], delay_s * 2)


def root_cause(error: BaseException) -> BaseException:
    """The driver's own exception below SQLAlchemy's wrappers."""
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        deeper = (error.orig if isinstance(error, DBAPIError) else None) or error.__cause__
        if deeper is None:
            break
        error = deeper
    return error


async def database_answers(engine: AsyncEngine) -> bool:
    """Health check."""
    async with engine.connect() as connection:
        await connection.execute(text("SELECT 1"))
    return True
