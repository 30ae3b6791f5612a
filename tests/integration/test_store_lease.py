"""The leader's lease on a real Postgres: one holder, a token that only grows, and no write by a holder of yesterday."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease, LeaseLost, lease_table
from goodput_common.store.testing import kill_backends, schema_in

METADATA = sa.MetaData(schema="svc")
LEASE = lease_table(METADATA)
QUICK = {"retry_s": 0.05, "heartbeat_s": 0.05}


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    async with schema_in(fresh_database, METADATA) as made:
        yield made


@pytest.fixture
async def replica(engine: AsyncEngine) -> AsyncIterator[Callable[..., Lease]]:
    """A lease as one replica has it, with a pool of its own named after the replica."""
    made: list[tuple[Lease, AsyncEngine]] = []

    def make(holder: str, fabric: str = "f") -> Lease:
        own = create_engine(engine.url.render_as_string(hide_password=False), application_name=holder)
        lease = Lease(own, LEASE, service="correlator", fabric=fabric, holder=holder, **QUICK)
        made.append((lease, own))
        return lease

    yield make
    for lease, own in made:
        await lease.release()
        await own.dispose()


async def test_one_holds_it_and_the_next_gets_it_with_a_higher_token(replica: Callable[..., Lease]) -> None:
    one, two = replica("one"), replica("two")
    assert await one.acquire() == 1
    assert one.held
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    assert not two.held
    await one.release()
    assert await waiting == 2
    assert not one.held
    with pytest.raises(LeaseLost):
        _ = one.token


async def test_fabrics_have_leases_of_their_own(replica: Callable[..., Lease]) -> None:
    assert await replica("one", "eu").acquire() == 1
    assert await replica("two", "us").acquire() == 1


async def test_acquiring_what_is_held_gives_the_same_token(replica: Callable[..., Lease]) -> None:
    one = replica("one")
    assert [await one.acquire() for _ in range(3)] == [1, 1, 1]
    await one.release()
    assert await one.acquire() == 2


async def test_it_is_lost_with_its_connection_and_said_so(engine: AsyncEngine, replica: Callable[..., Lease]) -> None:
    one, two = replica("one"), replica("two")
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    await kill_backends(engine, "one")
    async with asyncio.timeout(20):
        await one.lost()
        assert await waiting == 2
    assert not one.held


async def test_a_holder_of_yesterday_cannot_write_even_if_it_noticed_nothing(
    engine: AsyncEngine, replica: Callable[..., Lease]
) -> None:
    one = replica("one")
    await one.acquire()
    async with engine.begin() as connection:
        assert await one.check(connection) == 1
    async with engine.begin() as connection:  # what a takeover does, with `one` still believing that it leads
        await connection.execute(LEASE.update().values(token=LEASE.c.token + 1, holder="two"))
    assert one.held
    with pytest.raises(LeaseLost, match="our fencing token is 1, the newest is 2"):
        async with engine.begin() as connection:
            await one.check(connection)


async def test_a_takeover_waits_for_the_end_of_a_transaction_that_was_checked(
    engine: AsyncEngine, replica: Callable[..., Lease]
) -> None:
    one, two = replica("one"), replica("two")
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    async with engine.begin() as connection:
        await one.check(connection)
        await kill_backends(engine, "one")
        async with asyncio.timeout(20):
            await one.lost()
        await asyncio.sleep(0.3)
        assert not waiting.done()
    async with asyncio.timeout(20):
        assert await waiting == 2


async def test_waiting_can_be_given_up(engine: AsyncEngine, replica: Callable[..., Lease]) -> None:
    one, two = replica("one"), replica("two")
    await one.acquire()
    waiting = asyncio.create_task(two.acquire())
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await one.release()
    await asyncio.sleep(0.2)
    assert not two.held
    assert await replica("three").acquire() == 2


async def test_a_database_that_is_away_is_waited_for_without_a_lease() -> None:
    away = create_engine("postgresql://goodput@127.0.0.1:1/goodput")
    lease = Lease(away, LEASE, service="correlator", fabric="f", holder="one", **QUICK)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await lease.acquire()
    assert not lease.held
    await away.dispose()


HOLDER = """
import asyncio, sys
import sqlalchemy as sa
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease, lease_table

async def main():
    table = lease_table(sa.MetaData(schema="svc"))
    lease = Lease(create_engine(sys.argv[1]), table, service="correlator", fabric="f", holder="process")
    print(await lease.acquire(), flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


async def test_kill_9_of_the_holder_frees_it(engine: AsyncEngine, replica: Callable[..., Lease], tmp_path: Path) -> None:
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    url = engine.url.render_as_string(hide_password=False)
    process: Any = await asyncio.create_subprocess_exec(sys.executable, str(script), url, stdout=asyncio.subprocess.PIPE)
    assert await process.stdout.readline() == b"1\n"
    waiting = asyncio.create_task(replica("standby").acquire())
    await asyncio.sleep(0.2)
    assert not waiting.done()
    process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(30):
        assert await waiting == 2
    await process.wait()
