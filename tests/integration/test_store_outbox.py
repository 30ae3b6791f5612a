"""The outbox on a real Postgres: stored with its cause, published in order, neither lost nor doubled by a crash."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.errors import BusUnavailable, MessageTooLarge, Refused
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.topology import ComponentRecord
from goodput_common.runtime.metrics import Metrics
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


def _ids_of(bus: FakeBus, prefix: str) -> list[str]:
    """First sight of each id with this prefix, in order."""
    return list(dict.fromkeys(each for each in bus.ids if each.startswith(prefix)))


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    engine = create_engine(fresh_database, application_name="service")
    async with engine.begin() as connection:
        await connection.execute(sa.text("CREATE SCHEMA svc"))
        await connection.run_sync(METADATA.create_all)
    yield engine
    await engine.dispose()


@pytest.fixture
async def publisher_of(engine: AsyncEngine) -> AsyncIterator[Callable[..., OutboxPublisher]]:
    """Makes publishers, each with a pool of its own like a replica, and closes them."""
    made: list[tuple[OutboxPublisher, AsyncEngine]] = []

    def make(bus: Any, *, tasks: Tasks | None = None, **options: Any) -> OutboxPublisher:
        url = engine.url.render_as_string(hide_password=False)
        own = create_engine(url, application_name=f"publisher-{len(made)}")
        options = {"poll_s": 0.05, "backoff_s_min": 0.01, "backoff_s_max": 0.05} | options
        publisher = OutboxPublisher(own, OUTBOX, bus, tasks=tasks or Tasks(), **options)
        made.append((publisher, own))
        return publisher

    yield make
    for publisher, own in made:
        await publisher.close()
        await own.dispose()


async def _put(connection: Any, id: str, key: str = "k", rank: int = 0, time: datetime | None = None) -> bool:
    data = RankExited(fabric="f", job="j", rank=rank, host="h", at=AT)
    return await enqueue(connection, OUTBOX, subject=SUBJECT, id=id, data=data, source="test", key=key, time=time)


async def _put_all(engine: AsyncEngine, ids: Sequence[str], key: str = "k") -> None:
    async with engine.begin() as connection:
        for id in ids:
            await _put(connection, id, key)


async def _rows(engine: AsyncEngine, *columns: str) -> list[Any]:
    async with engine.connect() as connection:
        query = sa.select(*(OUTBOX.c[name] for name in columns)).order_by(OUTBOX.c.position)
        return [tuple(row) if len(columns) > 1 else row[0] for row in await connection.execute(query)]


async def _all_sent(engine: AsyncEngine) -> None:
    await _until(engine, lambda rows: all(sent or parked for sent, parked in rows), "sent_at", "parked_at")


async def _until(engine: AsyncEngine, condition: Callable[[list[Any]], bool], *columns: str) -> None:
    for _ in range(3000):
        if condition(await _rows(engine, *columns)):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"never: {await _rows(engine, 'message_id', *columns)}")


async def _kill_backends(engine: AsyncEngine, application: str) -> None:
    query = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name"
    async with engine.begin() as connection:
        killed = (await connection.execute(sa.text(query), {"name": application})).scalar_one()
    assert killed >= 1


# -- storing ---------------------------------------------------------------------------------------------------------


async def test_a_message_is_stored_exactly_when_its_transaction_is(engine: AsyncEngine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with engine.begin() as connection:
            await _put(connection, "rolled-back")
            raise ZeroDivisionError
    with pytest.raises(DBAPIError):
        async with engine.begin() as connection:
            await _put(connection, "killed")
            pid = (await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
            async with engine.begin() as other:
                await other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
            await connection.execute(sa.text("SELECT 1"))
    await _put_all(engine, ["committed"])
    assert await _rows(engine, "message_id") == ["committed"]


async def test_the_same_id_is_stored_once(engine: AsyncEngine) -> None:
    async with engine.begin() as connection:
        assert await _put(connection, "m1", rank=1)
        assert not await _put(connection, "m1", rank=2)
    async with engine.begin() as connection:
        assert not await _put(connection, "m1", rank=3)
    assert [json.loads(data)["rank"] for data in await _rows(engine, "data")] == [1]


async def test_a_struct_that_is_no_message_is_refused(engine: AsyncEngine) -> None:
    record = ComponentRecord(id="host:h", kind="host")  # type: ignore[arg-type]
    async with engine.begin() as connection:
        with pytest.raises(TypeError, match="ComponentRecord is not a message"):
            await enqueue(connection, OUTBOX, subject="x", id="1", data=record, source="s", key="k")


async def test_positions_of_a_key_follow_the_order_of_commits(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    """The first transaction to enqueue a key holds up the others of that key, and of no other key."""
    bus = FakeBus()
    await publisher_of(bus).start()
    async with engine.connect() as slow:
        begun = await slow.begin()
        await _put(slow, "a1", key="a")
        waiting = asyncio.create_task(_put_all(engine, ["a2"], key="a"))
        await _put_all(engine, ["b1"], key="b")
        await bus.until(lambda: "b1" in bus.ids)
        assert not waiting.done()
        await begun.commit()
    await waiting
    await bus.until(lambda: "a2" in bus.ids)
    assert bus.ids == ["b1", "a1", "a2"]


# -- publishing ------------------------------------------------------------------------------------------------------


async def test_what_is_published_is_what_was_stored(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    async with engine.begin() as connection:
        await _put(connection, "m1", rank=7, time=AT)
        await _put(connection, "m2")
    await publisher_of(bus).start()
    await _all_sent(engine)
    assert bus.published[0] == ("m1", RankExited(fabric="f", job="j", rank=7, host="h", at=AT))
    assert bus.times["m1"] == AT
    assert bus.times["m2"] == (await _rows(engine, "created_at"))[1]


async def test_a_commit_wakes_the_publisher_without_a_poll(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await publisher_of(bus, poll_s=3600).start()
    for number in range(5):
        await _put_all(engine, [f"m{number}"])
        await bus.until(lambda number=number: f"m{number}" in bus.ids)  # type: ignore[misc]


async def test_a_row_whose_notification_was_missed_is_found_by_the_poll(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await publisher_of(bus).start()
    await _put_all(engine, ["m1"])
    await bus.until(lambda: "m1" in bus.ids)
    async with engine.begin() as connection:  # a copy made without enqueue, hence without a notification
        columns = [c.name for c in OUTBOX.c if c.name not in ("position", "message_id", "sent_at")]
        copy = sa.select(sa.literal("m2"), *(OUTBOX.c[name] for name in columns))
        await connection.execute(OUTBOX.insert().from_select(["message_id", *columns], copy))
    await bus.until(lambda: "m2" in bus.ids)


async def test_a_bus_that_is_away_delays_rows_and_loses_none(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    away = 3

    async def fault(_: str) -> None:
        nonlocal away
        if away:
            away -= 1
            raise BusUnavailable("no server")

    bus = FakeBus(fault=fault)
    ids = [f"m{number}" for number in range(200)]  # more than a batch
    await _put_all(engine, ids)
    await publisher_of(bus, batch=32).start()
    await _all_sent(engine)
    assert bus.ids == ids


async def test_a_publish_that_never_returns_counts_as_the_bus_being_away(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    hanging = True

    async def fault(_: str) -> None:
        if hanging:
            await asyncio.Event().wait()

    bus = FakeBus(fault=fault)
    publisher = publisher_of(bus, publish_timeout_s=0.05)
    await _put_all(engine, ["m1"])
    await publisher.start()
    with pytest.raises(RuntimeError, match="no acknowledgement within"):
        async with asyncio.timeout(30):
            while True:
                await asyncio.sleep(0.02)
                try:
                    await publisher.check()
                except RuntimeError as error:
                    if "not started" not in str(error):
                        raise
    hanging = False
    await _all_sent(engine)
    await publisher.check()


async def test_a_row_that_fails_holds_back_only_its_own_key_and_then_goes_first(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    broken = True

    async def fault(id: str) -> None:
        if id == "a1" and broken:
            raise ValueError("cannot encode")

    bus = FakeBus(fault=fault)
    await _put_all(engine, ["a1", "a2"], key="a")
    await _put_all(engine, ["b1", "b2"], key="b")
    await publisher_of(bus, attempts_max=1000).start()
    await bus.until(lambda: "b2" in bus.ids)
    assert _ids_of(bus, "a") == []
    broken = False
    await bus.until(lambda: "a2" in bus.ids)
    assert bus.ids == ["b1", "b2", "a1", "a2"]


@pytest.mark.parametrize(("error", "attempts"), [(ValueError("no"), 3), (MessageTooLarge(9, 8), 1), (Refused("s", "no"), 1)])
async def test_a_row_is_parked_at_the_bound_and_its_key_goes_on(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher], error: Exception, attempts: int
) -> None:
    async def fault(id: str) -> None:
        if id == "bad":
            raise error

    bus, metrics = FakeBus(fault=fault), Metrics(process=False)
    await _put_all(engine, ["bad", "good"])
    await publisher_of(bus, attempts_max=3, metrics=metrics).start()
    await bus.until(lambda: "good" in bus.ids)
    (bad, good) = await _rows(engine, "message_id", "attempts", "parked_at", "last_error")
    assert bad[:2] == ("bad", attempts)
    assert bad[2] is not None
    assert type(error).__name__ in bad[3]
    assert good[2] is None
    assert f'goodput_outbox_failures_total{{reason="row"}} {attempts}.0' in metrics.render()[0].decode()


async def test_a_row_of_a_type_that_this_build_does_not_know_is_parked_and_kept(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await _put_all(engine, ["old", "torn", "good"])
    async with engine.begin() as connection:
        await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == "old").values(type="goodput.gone.v1"))
        await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == "torn").values(data='{"fabric": 1'))
    await publisher_of(bus).start()
    await bus.until(lambda: "good" in bus.ids)
    assert bus.ids == ["good"]
    parked = {id: error for id, at, error in await _rows(engine, "message_id", "parked_at", "last_error") if at}
    assert set(parked) == {"old", "torn"}
    assert "'goodput.gone.v1' is unknown to this build" in parked["old"]


async def test_sent_rows_are_pruned_after_their_time_and_waiting_ones_never(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    await _put_all(engine, ["old", "recent", "waiting", "parked"])
    async with engine.begin() as connection:
        now = sa.func.now()
        for id, values in {
            "old": {"sent_at": now - timedelta(days=2)},
            "recent": {"sent_at": now - timedelta(hours=2)},
            "waiting": {"created_at": now - timedelta(days=9)},
            "parked": {"parked_at": now - timedelta(days=9)},
        }.items():
            await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == id).values(**values))
    bus = FakeBus()
    await publisher_of(bus, keep_sent=timedelta(days=1)).start()
    await _until(engine, lambda ids: "old" not in ids, "message_id")
    await _all_sent(engine)
    assert await _rows(engine, "message_id") == ["recent", "waiting", "parked"]


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_a_stop_sends_what_is_waiting(engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]) -> None:
    release = asyncio.Event()

    async def fault(_: str) -> None:
        await release.wait()

    bus = FakeBus(fault=fault)
    publisher = publisher_of(bus, batch=4)
    await _put_all(engine, [f"m{number}" for number in range(20)])
    await publisher.start()
    flushing = asyncio.create_task(publisher.flush())
    await asyncio.sleep(0.05)
    release.set()
    await flushing
    assert all(await _rows(engine, "sent_at"))


async def test_a_stop_while_the_bus_is_away_keeps_the_rows_for_the_next_start(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    async def fault(_: str) -> None:
        raise BusUnavailable("no server")

    await _put_all(engine, ["m1"])
    first = publisher_of(FakeBus(fault=fault), backoff_s_min=60.0, backoff_s_max=60.0)
    await first.start()
    async with asyncio.timeout(20):  # far below the back-off that it sits in
        await asyncio.sleep(0.2)
        await first.flush()
    await first.close()
    bus = FakeBus()
    await publisher_of(bus).start()
    await bus.until(lambda: bus.ids == ["m1"])


# -- crashes and replicas --------------------------------------------------------------------------------------------


async def test_of_two_publishers_one_works_and_each_message_goes_out_once_in_order(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    one, two = FakeBus(), FakeBus()
    await publisher_of(one).start()
    await publisher_of(two).start()

    async def write(key: str) -> None:
        for number in range(30):
            await _put_all(engine, [f"{key}{number:02}"], key=key)

    await asyncio.gather(*(write(key) for key in "abcd"))
    await _all_sent(engine)
    together = one.ids + two.ids
    assert len(together) == 120
    assert set(together) == {f"{key}{number:02}" for key in "abcd" for number in range(30)}
    for bus in (one, two):
        assert bus.ids == [] or all(_ids_of(bus, key) == [f"{key}{number:02}" for number in range(30)] for key in "abcd")


async def test_the_standby_takes_over_when_the_active_ones_connection_is_killed(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    """The active one is cut off between the bus's acknowledgement and its mark, for ever, so only the other can finish."""
    stuck = asyncio.Event()

    async def fault(_: str) -> None:
        if len(one.ids) >= 3:
            stuck.set()
            await asyncio.Event().wait()

    one, two = FakeBus(fault=fault), FakeBus()
    await publisher_of(one, publish_timeout_s=3600).start()
    await _put_all(engine, ["m0"])
    await one.until(lambda: one.ids == ["m0"])
    await publisher_of(two).start()
    await _put_all(engine, ["m1", "m2", "m3", "m4"])
    await stuck.wait()
    assert one.ids == ["m0", "m1", "m2"]
    assert two.ids == []
    await _kill_backends(engine, "publisher-0")
    await _all_sent(engine)
    # m1 and m2 were acknowledged but not marked: they go out again under the same ids, which the bus drops.
    assert two.ids == ["m1", "m2", "m3", "m4"]


async def test_a_publisher_whose_connection_is_killed_between_publish_and_mark_sends_the_same_id_again(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    killed = False

    async def fault(_: str) -> None:
        nonlocal killed
        if not killed:
            killed = True
            await _kill_backends(engine, "publisher-0")

    bus, tasks = FakeBus(fault=fault), Tasks()
    await _put_all(engine, ["m1", "m2"])
    await publisher_of(bus, tasks=tasks).start()
    await _all_sent(engine)
    assert bus.ids[0] == "m1"
    assert bus.published[-2:] == [bus.published[0], ("m2", bus.published[-1][1])]
    assert len(bus.ids) >= 3
    assert tasks.crash is None


KILLED_AFTER_PUBLISH = """
import asyncio, os, signal, sys
import sqlalchemy as sa
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import create_engine
from goodput_common.store.outbox import OutboxPublisher, outbox_table

class DiesAfter:
    def __init__(self, bus, count):
        self.bus, self.left = bus, count
    async def publish(self, *args, **kwargs):
        await self.bus.publish(*args, **kwargs)
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

async def main():
    bus = await JetStreamBus.connect(sys.argv[2], name="crashing")
    table = outbox_table(sa.MetaData(schema="svc"))
    await OutboxPublisher(create_engine(sys.argv[1]), table, DiesAfter(bus, 3), tasks=Tasks()).start()
    await asyncio.sleep(60)

asyncio.run(main())
"""


async def test_kill_9_between_publish_and_mark_leaves_each_message_once_on_a_real_bus(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher], clean_streams: str, tmp_path: Path
) -> None:
    bus = await JetStreamBus.connect(clean_streams, name="test")
    await provision(bus)
    ids = [f"m{number}" for number in range(6)]
    await _put_all(engine, ids)
    script = tmp_path / "publisher.py"
    script.write_text(KILLED_AFTER_PUBLISH)
    url = engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), url, clean_streams)
    assert await process.wait() == -signal.SIGKILL
    assert not any(await _rows(engine, "sent_at"))

    await publisher_of(bus).start()
    await _all_sent(engine)
    js = (await bus.client()).jetstream()
    state = (await js.stream_info("JOB")).state
    stored = [await js.get_msg("JOB", sequence) for sequence in range(state.first_seq, state.last_seq + 1)]
    assert [(message.headers or {})["Nats-Msg-Id"] for message in stored] == ids
    await bus.close()
