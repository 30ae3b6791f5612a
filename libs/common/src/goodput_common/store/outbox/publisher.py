"""Sends what the outbox holds, in order per key, and marks it.

One publisher of a schema works at a time, whichever replica holds the session lock; the others wait for it. All its
statements run on the connection that holds the lock, so a publisher that has lost the lock cannot mark anything. It is
woken by NOTIFY at each commit and looks by itself every `poll_s`, in case a notification went by while it was
reconnecting.

When the bus is away the publisher waits, growing to `backoff_s_max`; rows wait in the table. A row that fails by itself
holds back only its own key, is tried `attempts_max` times and then **parked**: kept, logged, counted, and out of its
key's way. One that the bus refuses for good is parked at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.errors import BusUnavailable, Refused
from goodput_common.bus.ports import Bus
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.logs import StateLog, get_logger
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks, stop_task
from goodput_common.runtime.tracing import span
from goodput_common.store.dedicated import DATABASE_ERRORS, dedicated
from goodput_common.store.locks import lock_key
from goodput_common.store.outbox.statements import Statements
from goodput_common.store.outbox.table import Undecodable, channel_of, decode, schema_of

_log = get_logger(__name__)
_HOUSEKEEPING_S = 30.0
_PRUNE_ROWS_MAX = 5000
_BLOCKED_KEYS_MAX = 1000


class OutboxPublisher(Part):
    """Bounds: `batch` rows read at once, `keys_at_once` publications in the air, one per key."""

    name = "outbox publisher"

    def __init__(
        self,
        engine: AsyncEngine,
        table: sa.Table,
        bus: Bus,
        *,
        tasks: Tasks,
        metrics: Metrics | None = None,
        batch: int = 64,
        keys_at_once: int = 16,
        poll_s: float = 1.0,
        backoff_s_min: float = 0.1,
        backoff_s_max: float = 5.0,
        publish_timeout_s: float = 10.0,
        attempts_max: int = 20,
        keep_sent: timedelta = timedelta(days=1),
    ) -> None:
        self._engine, self._bus, self._tasks = engine, bus, tasks
        self._batch, self._keys_at_once, self._poll_s = batch, asyncio.Semaphore(keys_at_once), poll_s
        self._backoff_s_min, self._backoff_s_max, self._publish_timeout_s = backoff_s_min, backoff_s_max, publish_timeout_s
        self._attempts_max, self._keep_sent = attempts_max, keep_sent
        self._sql = Statements(table)
        self._channel, self._lock = channel_of(table), lock_key("outbox publisher", schema_of(table))
        self._wake = asyncio.Event()
        self._finishing = False
        self._cut_off = False  # the connection that holds the lock has ended: another replica may be publishing
        self._task: asyncio.Task[Any] | None = None
        self._state = StateLog(_log)
        self._trouble = "not started"
        self._blocked: dict[str, float] = {}  # key -> monotonic time at which its first row is tried again
        self._housekeeping_at_s = 0.0
        metrics = metrics or Metrics(process=False)
        self._sent = metrics.counter("outbox_published_total", "Outbox rows published")
        self._failed = metrics.counter("outbox_failures_total", "Attempts to publish a row that failed", ["reason"])
        self._waiting = metrics.gauge("outbox_waiting", "Outbox rows not yet published (seen by the active publisher)")
        self._parked = metrics.gauge("outbox_parked", "Outbox rows given up on: a person has to look")
        self._oldest_s = metrics.gauge("outbox_oldest_waiting_s", "Age of the oldest row not yet published")

    async def start(self) -> None:
        self._task = self._tasks.spawn(self.name, self._run())

    def wake(self) -> None:
        """Look now. Not needed after `enqueue`, whose commit does the same through the database."""
        self._wake.set()

    async def flush(self) -> None:
        """Send what is waiting, unless the bus or the database is away: then the rows stay for the next start."""
        self._finishing = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        self._finishing = True
        await stop_task(self._task)

    async def check(self) -> None:
        """Health check (not `required`: a service that cannot publish can still answer). Raises with the reason."""
        if self._trouble:
            raise RuntimeError(self._trouble)

    async def _run(self) -> None:
        delay_s = self._backoff_s_min
        while not self._finishing:
            try:
                async with dedicated(self._engine) as connection:
                    await connection.add_listener(self._channel, lambda *_: self._wake.set())
                    connection.add_termination_listener(self._on_cut_off)
                    self._cut_off = False
                    delay_s = self._backoff_s_min
                    await self._session(connection)
            except DATABASE_ERRORS as error:
                self._note("database", f"cannot use the outbox: {error!r}")
                self._failed.labels("database").inc()
                await self._pause(delay_s)
                delay_s = min(self._backoff_s_max, delay_s * 2)

    def _on_cut_off(self, _: Any) -> None:
        self._cut_off = True
        self._wake.set()

    async def _session(self, connection: Any) -> None:
        """Work on one connection until it breaks (raises) or the service stops (returns)."""
        active = False
        bus_delay_s = self._backoff_s_min
        while True:
            self._wake.clear()
            if not active:
                active = bool(await connection.fetchval("SELECT pg_try_advisory_lock($1)", self._lock))
                if not active:
                    self._note("standby", "")
                    if self._finishing:
                        return
                    await self._wait(self._poll_s)
                    continue
            try:
                more = await self._publish_batch(connection)
            except BusUnavailable as error:
                self._note("bus", f"the bus is away: {error}")
                if self._finishing:
                    return
                await self._pause(bus_delay_s)
                bus_delay_s = min(self._backoff_s_max, bus_delay_s * 2)
                continue
            bus_delay_s = self._backoff_s_min
            self._note("publishing", "")
            await self._housekeeping(connection)
            if more:
                continue
            if self._finishing:
                return
            await self._wait(self._next_look_s())

    async def _publish_batch(self, connection: Any) -> bool:
        """Send one batch; returns whether there may be more to send at once. Raises BusUnavailable after marking."""
        now_s = time.monotonic()
        self._blocked = {key: at_s for key, at_s in self._blocked.items() if at_s > now_s}
        rows = await connection.fetch(self._sql.waiting, list(self._blocked), self._batch)
        by_key: dict[str, list[Any]] = {}
        for row in rows:
            by_key.setdefault(row["key"], []).append(row)
        sent: list[int] = []
        failed: list[tuple[Any, Exception]] = []
        away: list[BusUnavailable] = []
        try:
            await asyncio.gather(*(self._publish_key(each, sent, failed, away) for each in by_key.values()))
        except asyncio.CancelledError:
            with contextlib.suppress(*DATABASE_ERRORS):  # unmarked rows only go out again, under the same ids
                await self._mark(connection, sent)
            raise
        await self._mark(connection, sent)
        for row, error in failed:
            await self._note_failure(connection, row, error)
        if away:
            raise away[0]
        return len(rows) == self._batch or bool(failed)

    async def _mark(self, connection: Any, sent: list[int]) -> None:
        if sent:
            await connection.execute(self._sql.mark_sent, sent)
            self._sent.inc(len(sent))

    async def _publish_key(
        self, rows: Sequence[Any], sent: list[int], failed: list[tuple[Any, Exception]], away: list[BusUnavailable]
    ) -> None:
        """One key's rows, oldest first; the first that does not go holds back those behind it."""
        for row in rows:
            async with self._keys_at_once:
                if away or self._cut_off:
                    return
                try:
                    await self._publish(row)
                except BusUnavailable as error:
                    self._failed.labels("bus").inc()
                    away.append(error)
                    return
                except Exception as error:  # noqa: BLE001 - kept with the row, retried, then parked
                    failed.append((row, error))
                    return
            sent.append(row["position"])

    async def _publish(self, row: Any) -> None:
        data = decode(row["type"], row["data"])
        with span("outbox publish", parent=row["traceparent"], subject=row["subject"]):
            try:
                async with asyncio.timeout(self._publish_timeout_s):
                    await self._bus.publish(
                        row["subject"],
                        data,
                        id=row["message_id"],
                        source=row["source"],
                        component=row["component"],
                        time=row["time"],
                    )
            except TimeoutError:
                raise BusUnavailable(f"no acknowledgement within {self._publish_timeout_s:g} s") from None

    async def _note_failure(self, connection: Any, row: Any, error: Exception) -> None:
        attempts = row["attempts"] + 1
        park = attempts >= self._attempts_max or isinstance(error, Undecodable | Refused)
        self._failed.labels("row").inc()
        await connection.execute(self._sql.mark_failed, row["position"], f"{type(error).__name__}: {error}"[:1000], park)
        if park:
            self._blocked.pop(row["key"], None)
            _log.error(
                "outbox row parked: it is not published, later rows of its key are",
                message_id=row["message_id"],
                subject=row["subject"],
                attempts=attempts,
                error=str(error),
                next=f"mend the cause, then: {self._sql.unpark_example(row['position'])}",
            )
            return
        delay_s = min(self._backoff_s_max * 12, self._backoff_s_min * 2**attempts)
        if len(self._blocked) >= _BLOCKED_KEYS_MAX:
            raise BusUnavailable(
                f"{_BLOCKED_KEYS_MAX} keys fail at once, last with {error!r}: treated as the bus being away"
            )
        self._blocked[row["key"]] = time.monotonic() + delay_s
        self._state.report(
            row["message_id"], repr(error), "outbox row failed", level="warning", again_in_s=round(delay_s, 2)
        )

    async def _housekeeping(self, connection: Any) -> None:
        now_s = time.monotonic()
        if now_s < self._housekeeping_at_s:
            return
        self._housekeeping_at_s = now_s + _HOUSEKEEPING_S
        pruned = await connection.fetchval(self._sql.prune, self._keep_sent, _PRUNE_ROWS_MAX)
        if pruned == _PRUNE_ROWS_MAX:
            self._housekeeping_at_s = now_s
        waiting, parked, oldest_s = await connection.fetchrow(self._sql.count)
        self._waiting.set(waiting)
        self._parked.set(parked)
        self._oldest_s.set(oldest_s)

    def _next_look_s(self) -> float:
        soonest_s = min(self._blocked.values(), default=float("inf")) - time.monotonic()
        return max(0.01, min(self._poll_s, soonest_s))

    async def _wait(self, seconds: float) -> None:
        """Until woken, or at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _pause(self, seconds: float) -> None:
        """A back-off: new rows do not cut it short, the end of the service does."""
        ends_s = time.monotonic() + seconds
        while not self._finishing and (left_s := ends_s - time.monotonic()) > 0:
            self._wake.clear()
            await self._wait(left_s)

    def _note(self, state: str, trouble: str) -> None:
        self._trouble = trouble
        level = "warning" if trouble else "info"
        self._state.report(self.name, state, f"outbox: {state}", level=level, reason=trouble)
