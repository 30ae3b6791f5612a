"""A leader's lease: one active replica per name, with a fencing token that grows at every takeover.

The lease is a Postgres session lock, so it ends with the connection that holds it: at once when the process dies, within the
server's keepalive when the machine vanishes. A holder that is cut off may believe for a moment that it still leads. Two
things bound the harm: it asks the server every `heartbeat_s` and gives up when no answer comes, and every transaction
that matters calls `check`, which fails once somebody else has taken over, whatever the holder believes.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.tasks import stop_task
from goodput_common.store.dedicated import DATABASE_ERRORS, dedicated
from goodput_common.store.locks import lock_key

_log = get_logger(__name__)


class LeaseLost(Exception):
    """Somebody else may lead now. Stop acting; the service should end and come back as a standby."""


def lease_table(metadata: sa.MetaData) -> sa.Table:
    """One row a lease: its newest fencing token and who took it."""
    return sa.Table(
        "lease",
        metadata,
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.text("now()")),
    )


class Lease:
    """`await acquire()` until this replica leads; `await lost()` until it does not any more; `release()` to step down."""

    def __init__(
        self,
        engine: AsyncEngine,
        table: sa.Table,
        *,
        service: str,
        fabric: str,
        holder: str,
        retry_s: float = 1.0,
        heartbeat_s: float = 1.0,
        heartbeat_timeout_s: float = 3.0,
    ) -> None:
        self.name = f"{service}/{fabric}"
        self._engine, self._table, self._holder = engine, table, holder
        self._retry_s, self._heartbeat_s, self._heartbeat_timeout_s = retry_s, heartbeat_s, heartbeat_timeout_s
        self._lock = lock_key("lease", table.schema or "public", service, fabric)
        self._token: int | None = None
        self._lost = asyncio.Event()
        self._taken = asyncio.Event()
        self._release = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._state = StateLog(_log)

    @property
    def held(self) -> bool:
        return self._token is not None

    @property
    def token(self) -> int:
        """The fencing token of this term. Raises LeaseLost when the lease is not held."""
        if self._token is None:
            raise LeaseLost(f"{self.name}: not held by {self._holder}")
        return self._token

    async def acquire(self) -> int:
        """Wait, for as long as it takes, until the lease is ours; returns the fencing token."""
        if self.held:
            return self.token
        await stop_task(self._task)
        self._lost.clear()
        self._taken.clear()
        self._release.clear()
        self._task = asyncio.create_task(self._hold(), name=f"lease {self.name}")
        taken = asyncio.create_task(self._taken.wait())
        try:
            await asyncio.wait([taken, self._task], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await stop_task(self._task)
            raise
        finally:
            taken.cancel()
        token = self._token
        if token is None:
            if self._task.done() and not self._task.cancelled() and (error := self._task.exception()):
                raise error
            raise LeaseLost(f"{self.name}: lost in the moment it was taken")
        return token

    async def lost(self) -> None:
        """Wait until the lease is no longer held."""
        if self._token is not None:
            await self._lost.wait()

    async def release(self) -> None:
        """Step down; another replica can lead at once."""
        self._release.set()
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait([self._task], timeout=self._heartbeat_timeout_s)
            await stop_task(self._task)

    async def check(self, connection: AsyncConnection) -> int:
        """In the caller's transaction: raise LeaseLost unless our term is still the newest. A takeover waits for the end of
        the transaction, so what is written in it was written by the leader of that time."""
        token = self.token
        statement = sa.select(self._table.c.token).where(self._table.c.name == self.name).with_for_update(read=True)
        newest = (await connection.execute(statement)).scalar_one_or_none()
        if newest != token:
            raise LeaseLost(f"{self.name}: our fencing token is {token}, the newest is {newest}: another replica leads")
        return token

    async def _hold(self) -> None:
        """Take the lease, keep it alive, give it up; all on one connection."""
        while not self._release.is_set():
            try:
                async with dedicated(self._engine) as connection:
                    if await connection.fetchval("SELECT pg_try_advisory_lock($1)", self._lock):
                        await self._term(connection)
                        return
                self._state.report(self.name, "standby", "lease is held elsewhere, standing by", holder=self._holder)
            except DATABASE_ERRORS as error:
                if self._lost.is_set():
                    return
                self._state.report(self.name, "unknown", "cannot ask for the lease", level="warning", error=repr(error))
            await self._sleep(self._retry_s * random.uniform(0.7, 1.3))

    async def _term(self, connection: Any) -> None:
        ended = asyncio.Event()
        connection.add_termination_listener(lambda *_: ended.set())
        reason = "stepped down"
        try:
            self._token = int(await connection.fetchval(self._take_sql(), self.name, self._holder))
            self._taken.set()
            self._state.report(self.name, "leader", "lease taken", holder=self._holder, token=self._token)
            while not self._release.is_set():
                await self._sleep(self._heartbeat_s, ended)
                if ended.is_set():
                    reason = "the connection that held it is gone"
                    break
                async with asyncio.timeout(self._heartbeat_timeout_s):
                    await connection.fetchval("SELECT 1")
        except DATABASE_ERRORS as error:
            reason = f"the database stopped answering: {error!r}"
        finally:
            if self._token is not None:
                self._token = None
                level = "info" if self._release.is_set() else "warning"
                self._state.report(self.name, "not held", "lease ended", level=level, holder=self._holder, reason=reason)
            self._lost.set()

    def _take_sql(self) -> str:
        name = f'"{self._table.schema or "public"}"."{self._table.name}"'
        return (
            f"INSERT INTO {name} AS lease (name, token, holder) VALUES ($1, 1, $2) "
            "ON CONFLICT (name) DO UPDATE SET token = lease.token + 1, holder = excluded.holder, taken_at = now() "
            "RETURNING token"
        )

    async def _sleep(self, seconds: float, *events: asyncio.Event) -> None:
        """At most `seconds`, less when released or one of `events` happens."""
        waits = [asyncio.create_task(event.wait()) for event in (self._release, *events)]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
