"""What only a server can do: hand out within limits, be killed, lose what it was given, come back."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.errors import (
    BusUnavailable,
)
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Message
from goodput_common.bus.provision import delete_all_streams, provision
from goodput_common.bus.testing import (
    GOOD,
    LONG_S,
    SUBJECT,
    Collected,
    eventually,
    job_consumer,
    nothing_pending,
    publish,
)
from goodput_common.embedded import EmbeddedNats


async def test_the_server_hands_out_no_more_than_the_slots(jetstream: JetStreamBus) -> None:
    gate = asyncio.Event()

    async def held(message: Message) -> None:
        await gate.wait()

    got = Collected(held)
    await jetstream.consume(job_consumer(slots=4), got)
    for rank in range(20):
        await publish(jetstream, rank)
    await got.until(lambda: len(got.messages) == 4)
    info = await (await jetstream.client()).jetstream().consumer_info("JOB", "test")
    assert (info.num_ack_pending, info.num_pending) == (4, 16)
    gate.set()
    await got.count(20)


async def test_all_that_was_stored_is_delivered_though_the_server_is_killed(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        bus = await JetStreamBus.connect(server.url, name="contract", registry=CollectorRegistry(), publish_timeout_s=15.0)
        await provision(bus)
        got = Collected()
        await bus.consume(job_consumer(slots=4), got)
        stored: list[int] = []

        async def producer() -> None:
            for rank in itertools.count():
                await publish(bus, rank)
                stored.append(rank)

        producing = asyncio.create_task(producer())
        for kills in range(1, 4):
            await got.until(lambda wanted=kills * 40: len(got.finished) >= wanted)  # type: ignore[misc]
            server.kill()
            await server.restart()
        await got.until(lambda: len(got.finished) >= 200)
        producing.cancel()
        await asyncio.wait([producing])
        await got.until(lambda: set(stored) <= set(got.finished))
        await bus.close()
    assert len(stored) >= 200
    assert set(stored) - set(got.finished) == set()


async def test_publishing_without_a_server_ends_in_bus_unavailable(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        bus = await JetStreamBus.connect(
            server.url, name="contract", registry=CollectorRegistry(), publish_timeout_s=0.3, pending_max=2
        )
        await provision(bus)
        server.kill()
        results = await asyncio.gather(*(publish(bus, rank) for rank in range(6)), return_exceptions=True)
        assert all(isinstance(result, BusUnavailable) for result in results)
        assert not await bus.healthy()
        await bus.close()


async def test_the_first_connection_is_tried_until_a_server_is_there(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    await server.start()
    await server.stop()
    connecting = asyncio.create_task(
        JetStreamBus.connect(server.url, name="early", registry=CollectorRegistry(), wait_s=LONG_S)
    )
    await asyncio.sleep(0.3)
    assert not connecting.done()
    await server.start()
    bus = await connecting
    assert await bus.healthy()
    await bus.close()
    await server.stop()


async def test_no_server_within_the_wait_is_bus_unavailable(tmp_path: Path) -> None:
    server = EmbeddedNats(tmp_path)
    await server.start()
    await server.stop()
    with pytest.raises(BusUnavailable, match="not connected"):
        await JetStreamBus.connect(server.url, name="early", registry=CollectorRegistry(), wait_s=0.3)


async def test_a_deleted_durable_is_made_again(jetstream: JetStreamBus) -> None:
    got = Collected()
    subscription = await jetstream.consume(job_consumer(), got)
    await publish(jetstream, 1)
    await got.count(1)
    await nothing_pending(subscription)
    await (await jetstream.client()).jetstream().delete_consumer("JOB", "test")
    await publish(jetstream, 2)
    await got.until(lambda: 2 in got.finished)
    assert rebinds(jetstream) == 1


async def test_a_deleted_durable_of_new_messages_loses_none_and_repeats_none(jetstream: JetStreamBus) -> None:
    got = Collected()
    await publish(jetstream, 0)
    subscription = await jetstream.consume(job_consumer(deliver_new_only=True), got)
    await publish(jetstream, 1)
    await got.count(1)
    await nothing_pending(subscription)
    await (await jetstream.client()).jetstream().delete_consumer("JOB", "test")
    await publish(jetstream, 2)
    await got.count(2)
    assert got.finished == [1, 2]


async def test_lost_streams_are_made_again_and_consumed(jetstream: JetStreamBus, nats_url: str) -> None:
    got = Collected()
    await jetstream.consume(job_consumer(), got)
    await publish(jetstream, 1)
    await got.count(1)
    await delete_all_streams(nats_url)
    await publish(jetstream, 2)
    await got.until(lambda: 2 in got.finished)
    assert rebinds(jetstream) < 10


async def test_a_rejected_message_is_not_acknowledged_before_it_is_kept(jetstream: JetStreamBus) -> None:
    jetstream.keep_streams(())
    js = (await jetstream.client()).jetstream()
    await js.delete_stream("REJECTED")
    got = Collected()
    await jetstream.consume(job_consumer(), got)
    await jetstream.publish_raw(SUBJECT, b"junk", GOOD.headers)

    async def put_off() -> bool:
        return (await js.consumer_info("JOB", "test")).num_redelivered == 1

    await provision_later(jetstream, put_off)
    (kept,) = await jetstream.rejections()
    assert kept.body == b"junk"


async def provision_later(bus: JetStreamBus, condition: Callable[[], Awaitable[bool]]) -> None:
    await eventually(condition)
    assert await bus.rejections() == []
    await provision(bus)

    async def kept() -> bool:
        return len(await bus.rejections()) == 1

    await eventually(kept)


async def test_the_rejected_stream_cannot_be_consumed_like_messages(jetstream: JetStreamBus) -> None:
    with pytest.raises(ValueError, match="rejections"):
        await jetstream.consume(job_consumer(stream="REJECTED", subjects=("goodput.rejected.>",)), Collected())


def rebinds(bus: JetStreamBus) -> float:
    return bus._metrics.rebinds.labels("JOB", "test")._value.get()
