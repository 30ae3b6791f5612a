"""What tests of the store share: a schema in a fresh database; for the outbox a bus that can fail and a look at its rows."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import create_engine
from goodput_common.store.outbox import OutboxPublisher, enqueue, outbox_table

METADATA = sa.MetaData(schema="svc")
OUTBOX = outbox_table(METADATA)
SUBJECT = subjects.job("f", "j", "rank_exited")
AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class FakeBus:
    """Notes what it acknowledged; `fault(id)` may raise or wait before it does."""

    published: list[tuple[str, Any]] = field(default_factory=list)
    times: dict[str, datetime | None] = field(default_factory=dict)
    fault: Callable[[str], Any] | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    async def publish(self, subject: str, data: Any, *, id: str, source: str, component: str = "", time: Any = None) -> None:
        if self.fault is not None:
            await self.fault(id)
        self.published.append((id, data))
        self.times[id] = time
        self.news.set()

    @property
    def ids(self) -> list[str]:
        return [each for each, _ in self.published]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():
                self.news.clear()
                await self.news.wait()


def ids_of(bus: FakeBus, prefix: str) -> list[str]:
    """First sight of each id with this prefix, in order."""
    return list(dict.fromkeys(each for each in bus.ids if each.startswith(prefix)))


@contextlib.asynccontextmanager
async def schema_in(database: str, metadata: sa.MetaData = METADATA) -> AsyncIterator[AsyncEngine]:
    """An engine on the database, in which the schema has been made with its tables."""
    engine = create_engine(database, application_name="service")
    try:
        async with engine.begin() as connection:
            await connection.execute(sa.text(f"CREATE SCHEMA {metadata.schema}"))
            await connection.run_sync(metadata.create_all)
        yield engine
    finally:
        await engine.dispose()


@contextlib.asynccontextmanager
async def publishers(engine: AsyncEngine) -> AsyncIterator[Callable[..., OutboxPublisher]]:
    """Makes publishers, each with a pool of its own like a replica, and closes them."""
    made: list[tuple[OutboxPublisher, AsyncEngine]] = []

    def make(bus: Any, *, tasks: Tasks | None = None, **options: Any) -> OutboxPublisher:
        url = engine.url.render_as_string(hide_password=False)
        own = create_engine(url, application_name=f"publisher-{len(made)}")
        options = {"poll_s": 0.05, "backoff_s_min": 0.01, "backoff_s_max": 0.05} | options
        publisher = OutboxPublisher(own, OUTBOX, bus, tasks=tasks or Tasks(), **options)
        made.append((publisher, own))
        return publisher

    try:
        yield make
    finally:
        for publisher, own in made:
            await publisher.close()
            await own.dispose()


async def put(connection: Any, id: str, key: str = "k", rank: int = 0, time: datetime | None = None) -> bool:
    data = RankExited(fabric="f", job="j", rank=rank, host="h", at=AT)
    return await enqueue(connection, OUTBOX, subject=SUBJECT, id=id, data=data, source="test", key=key, time=time)


async def put_all(engine: AsyncEngine, ids: Sequence[str], key: str = "k") -> None:
    async with engine.begin() as connection:
        for id in ids:
            await put(connection, id, key)


async def rows(engine: AsyncEngine, *columns: str) -> list[Any]:
    async with engine.connect() as connection:
        query = sa.select(*(OUTBOX.c[name] for name in columns)).order_by(OUTBOX.c.position)
        return [tuple(row) if len(columns) > 1 else row[0] for row in await connection.execute(query)]


async def all_sent(engine: AsyncEngine) -> None:
    await until(engine, lambda rows: all(sent or parked for sent, parked in rows), "sent_at", "parked_at")


async def until(engine: AsyncEngine, condition: Callable[[list[Any]], bool], *columns: str) -> None:
    for _ in range(3000):
        if condition(await rows(engine, *columns)):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {await rows(engine, 'message_id', *columns)}")


async def kill_backends(engine: AsyncEngine, application: str) -> None:
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name"
    async with engine.begin() as connection:
        killed = (await connection.execute(sa.text(query), {"name": application})).scalar_one()
    assert killed >= 1
