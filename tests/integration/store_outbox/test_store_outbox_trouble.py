"""The outbox when the bus is away or a row cannot go: nothing is lost, and what can go goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.errors import BusUnavailable, MessageTooLarge, Refused
from goodput_common.runtime.metrics import Metrics
from goodput_common.store.outbox import OutboxPublisher
from goodput_common.store.testing import (
    OUTBOX,
    FakeBus,
    all_sent,
    ids_of,
    put_all,
    rows,
)


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
    await put_all(engine, ids)
    await publisher_of(bus, batch=32).start()
    await all_sent(engine)
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
    await put_all(engine, ["m1"])
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
    await all_sent(engine)
    await publisher.check()


async def test_a_row_that_fails_holds_back_only_its_own_key_and_then_goes_first(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    broken = True

    async def fault(id: str) -> None:
        if id == "a1" and broken:
            raise ValueError("cannot encode")

    bus = FakeBus(fault=fault)
    await put_all(engine, ["a1", "a2"], key="a")
    await put_all(engine, ["b1", "b2"], key="b")
    await publisher_of(bus, attempts_max=1000).start()
    await bus.until(lambda: "b2" in bus.ids)
    assert ids_of(bus, "a") == []
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
    await put_all(engine, ["bad", "good"])
    await publisher_of(bus, attempts_max=3, metrics=metrics).start()
    await bus.until(lambda: "good" in bus.ids)
    (bad, good) = await rows(engine, "message_id", "attempts", "parked_at", "last_error")
    assert bad[:2] == ("bad", attempts)
    assert bad[2] is not None
    assert type(error).__name__ in bad[3]
    assert good[2] is None
    assert f'goodput_outbox_failures_total{{reason="row"}} {attempts}.0' in metrics.render()[0].decode()


async def test_a_row_of_a_type_that_this_build_does_not_know_is_parked_and_kept(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    bus = FakeBus()
    await put_all(engine, ["old", "torn", "good"])
    async with engine.begin() as connection:
        await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == "old").values(type="goodput.gone.v1"))
        await connection.execute(OUTBOX.update().where(OUTBOX.c.message_id == "torn").values(data='{"fabric": 1'))
    await publisher_of(bus).start()
    await bus.until(lambda: "good" in bus.ids)
    assert bus.ids == ["good"]
    parked = {id: error for id, at, error in await rows(engine, "message_id", "parked_at", "last_error") if at}
    assert set(parked) == {"old", "torn"}
    assert "'goodput.gone.v1' is unknown to this build" in parked["old"]


async def test_a_stop_while_the_bus_is_away_keeps_the_rows_for_the_next_start(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    async def fault(_: str) -> None:
        raise BusUnavailable("no server")

    await put_all(engine, ["m1"])
    first = publisher_of(FakeBus(fault=fault), backoff_s_min=60.0, backoff_s_max=60.0)
    await first.start()
    async with asyncio.timeout(20):  # far below the back-off that it sits in
        await asyncio.sleep(0.2)
        await first.flush()
    await first.close()
    bus = FakeBus()
    await publisher_of(bus).start()
    await bus.until(lambda: bus.ids == ["m1"])
