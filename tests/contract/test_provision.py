"""Provisioning on a real server: once or four times at once, on an empty server, a changed one, a small one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.js import JetStreamContext, api
from prometheus_client import CollectorRegistry

from goodput_common.bus.consumers import bind_consumer
from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer
from goodput_common.bus.provision import provision
from goodput_common.contracts.subjects import STREAMS, Stream
from goodput_common.embedded import EmbeddedNats


@pytest.fixture
async def bus(clean_streams: str) -> AsyncIterator[JetStreamBus]:
    made = await JetStreamBus.connect(clean_streams, name="provision", registry=CollectorRegistry())
    yield made
    await made.close()


@pytest.fixture
async def js(bus: JetStreamBus) -> JetStreamContext:
    return (await bus.client()).jetstream()


async def configs(js: JetStreamContext) -> dict[str, api.StreamConfig]:
    return {str(info.config.name): info.config for info in await js.streams_info()}


async def test_an_empty_server_gets_every_stream(bus: JetStreamBus, js: JetStreamContext) -> None:
    await provision(bus)
    made = await configs(js)
    assert set(made) == {stream.name for stream in STREAMS}
    for stream in STREAMS:
        config = made[stream.name]
        assert config.subjects == list(stream.subjects)
        assert config.max_age == stream.max_age_s
        assert config.duplicate_window == stream.duplicate_window_s
        assert config.storage == api.StorageType.FILE
        assert 0 < (config.max_bytes or 0) <= stream.max_bytes


async def test_a_second_time_changes_nothing(bus: JetStreamBus, js: JetStreamContext) -> None:
    await provision(bus)
    before = await configs(js)
    await provision(bus)
    assert await configs(js) == before


async def test_four_services_starting_at_once_all_succeed(clean_streams: str) -> None:
    buses = [
        await JetStreamBus.connect(clean_streams, name=f"s{number}", registry=CollectorRegistry()) for number in range(4)
    ]
    await asyncio.gather(*(provision(bus) for bus in buses))
    made = await configs((await buses[0].client()).jetstream())
    assert set(made) == {stream.name for stream in STREAMS}
    for bus in buses:
        await bus.close()


async def test_what_may_change_in_place_is_changed(bus: JetStreamBus, js: JetStreamContext) -> None:
    await provision(bus, (Stream("JOB", ("goodput.job.a.>",), max_age_s=60, max_bytes=1 << 20, duplicate_window_s=10),))
    await js.publish("goodput.job.a.x", b"kept")
    await provision(bus, (Stream("JOB", ("goodput.job.>",), max_age_s=120, max_bytes=2 << 20, duplicate_window_s=20),))
    info = await js.stream_info("JOB")
    assert info.config.subjects == ["goodput.job.>"]
    assert (info.config.max_age, info.config.max_bytes, info.config.duplicate_window) == (120, 2 << 20, 20)
    assert info.state.messages == 1


async def test_what_an_operator_set_besides_is_left_alone(bus: JetStreamBus, js: JetStreamContext) -> None:
    await provision(bus)
    config = (await js.stream_info("JOB")).config
    await js.update_stream(config.evolve(description="ours", max_age=3600, max_msgs_per_subject=1000))
    await provision(bus)
    config = (await js.stream_info("JOB")).config
    assert (config.description, config.max_msgs_per_subject) == ("ours", 1000)
    assert config.max_age == next(stream.max_age_s for stream in STREAMS if stream.name == "JOB")


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("storage", {"subjects": ["goodput.job.>"], "storage": api.StorageType.MEMORY}),
        ("retention", {"subjects": ["goodput.job.>"], "retention": api.RetentionPolicy.WORK_QUEUE}),
    ],
)
async def test_what_cannot_change_is_a_conflict_that_names_the_field(
    bus: JetStreamBus, js: JetStreamContext, field: str, config: dict[str, object]
) -> None:
    await js.add_stream(api.StreamConfig(name="JOB", **config))  # type: ignore[arg-type]
    with pytest.raises(ProvisioningConflict, match=f"stream JOB: {field} is "):
        await provision(bus)


async def test_subjects_taken_by_a_foreign_stream_are_a_conflict(bus: JetStreamBus, js: JetStreamContext) -> None:
    await js.add_stream(api.StreamConfig(name="FOREIGN", subjects=["goodput.job.x.>"]))
    with pytest.raises(ProvisioningConflict, match="JOB: subjects"):
        await provision(bus)


async def test_a_small_server_gets_smaller_streams_and_keeps_them(tmp_path: Path) -> None:
    limit = 64 << 20
    async with EmbeddedNats(tmp_path, max_store_bytes=limit) as server:
        buses = [await JetStreamBus.connect(server.url, name=f"s{n}", registry=CollectorRegistry()) for n in range(3)]
        await asyncio.gather(*(provision(bus) for bus in buses))
        js = (await buses[0].client()).jetstream()
        before = await configs(js)
        assert set(before) == {stream.name for stream in STREAMS}
        assert sum(config.max_bytes or 0 for config in before.values()) <= limit
        await provision(buses[0])
        assert await configs(js) == before
        for bus in buses:
            await bus.close()


async def test_a_server_without_room_says_so(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path, max_store_bytes=1 << 20) as server:
        bus = await JetStreamBus.connect(server.url, name="small", registry=CollectorRegistry())
        with pytest.raises(BusUnavailable, match="max_file_store"):
            await provision(bus)
        await bus.close()


async def test_a_durable_of_another_sort_is_a_conflict_that_names_the_field(bus: JetStreamBus, js: JetStreamContext) -> None:
    await provision(bus)
    await js.add_consumer("JOB", api.ConsumerConfig(durable_name="d", ack_policy=api.AckPolicy.NONE))
    consumer = Consumer(durable="d", stream="JOB", subjects=("goodput.job.>",))
    with pytest.raises(ProvisioningConflict, match="durable d on JOB: ack_policy"):
        await bus.consume(consumer, _ignore)


async def test_a_durable_whose_settings_changed_is_updated_and_keeps_its_place(
    bus: JetStreamBus, js: JetStreamContext
) -> None:
    await provision(bus)
    client = await bus.client()
    await bind_consumer(client, Consumer(durable="d", stream="JOB", subjects=("goodput.job.a.>",), ack_wait_s=30.0), None)
    created = (await js.consumer_info("JOB", "d")).created
    wanted = Consumer(durable="d", stream="JOB", subjects=("goodput.job.a.>", "goodput.job.b.>"), ack_wait_s=5.0)
    await bind_consumer(client, wanted, None)
    info = await js.consumer_info("JOB", "d")
    assert (info.config.filter_subjects, info.config.ack_wait) == (["goodput.job.a.>", "goodput.job.b.>"], 5.0)
    assert info.created == created


async def _ignore(_: object) -> None:
    return None
