"""What the bus will never take is refused at once, and holds up nothing; what it may take later is not refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from nats.js.api import StreamConfig
from prometheus_client import CollectorRegistry

from goodput_common.bus.errors import BusUnavailable, MessageTooLarge, Refused
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import FaultPlan, MemoryBus
from goodput_common.bus.provision import delete_all_streams, provision
from goodput_common.bus.testing import GOOD, SUBJECT, AnyBus, Collected, exited, job_consumer, publish
from goodput_common.embedded import EmbeddedNats

FORBIDDEN = "goodput.job.f.Private.rank_exited"
PERMISSIONS = """
authorization {
  users = [{user: t, password: t, permissions: {publish: {deny: ["goodput.job.f.Private.>"]}}}]
}
"""


@pytest.fixture(params=["memory", "jetstream"])
async def limited(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[AnyBus]:
    """A bus whose user may publish anything but the job `Private`."""
    async with AsyncExitStack() as stack:
        made: AnyBus
        if request.param == "memory":
            made = MemoryBus(faults=FaultPlan(forbidden=("goodput.job.f.Private.>",)))
        else:
            server = await stack.enter_async_context(EmbeddedNats(tmp_path, extra_config=PERMISSIONS))
            made = await JetStreamBus.connect(
                server.url, name="limited", user="t", password="t", registry=CollectorRegistry()
            )
        stack.push_async_callback(made.close)
        await provision(made)
        yield made


async def test_a_subject_that_no_stream_of_ours_keeps_is_refused(bus: AnyBus) -> None:
    with pytest.raises(Refused, match=r"elsewhere\.x was refused for good: no stream keeps this subject") as raised:
        await publish(bus, 1, subject="elsewhere.x")
    assert raised.value.subject == "elsewhere.x"


async def test_a_stream_of_ours_that_is_missing_is_waited_for(server: str | None) -> None:
    made: AnyBus
    if server is None:
        made = MemoryBus(streams=())
    else:
        await delete_all_streams(server)
        made = await JetStreamBus.connect(server, name="t", publish_timeout_s=0.3, registry=CollectorRegistry())
    with pytest.raises(BusUnavailable, match="no stream keeps"):
        await publish(made, 1)
    await made.close()


async def test_a_message_over_the_size_limit_is_refused_at_once(bus: AnyBus) -> None:
    with pytest.raises(MessageTooLarge) as raised:
        await bus.publish(SUBJECT, exited(0, reason="x" * (1 << 21)), id="1", source="t")
    assert isinstance(raised.value, Refused)
    assert raised.value.size_bytes > raised.value.limit_bytes


async def test_headers_count_towards_the_size_limit_and_the_connection_survives(bus: AnyBus) -> None:
    room = (1 << 20) - len(msgspec.json.encode(exited(0))) - 20  # the body fits, body and headers do not
    with pytest.raises(MessageTooLarge):
        await bus.publish(SUBJECT, exited(0, reason="x" * room), id="1", source="t")
    assert await bus.healthy()
    await publish(bus, 1)


async def test_a_subject_without_permission_is_refused_while_others_go_on(limited: AnyBus) -> None:
    got = Collected()
    await limited.consume(job_consumer(), got)
    outcomes = await asyncio.gather(
        *(publish(limited, rank, subject=FORBIDDEN if rank % 2 else SUBJECT) for rank in range(8)), return_exceptions=True
    )
    assert [type(each) for each in outcomes] == [type(None), Refused] * 4
    assert all(each.subject == FORBIDDEN for each in outcomes if isinstance(each, Refused))
    await got.count(4)
    assert sorted(got.ranks) == [0, 2, 4, 6]
    assert await limited.healthy()


async def test_a_struct_outside_the_registry_cannot_be_published(bus: AnyBus) -> None:
    foreign = msgspec.defstruct("Foreign", [("a", int)])(1)
    with pytest.raises(TypeError, match="registry"):
        await bus.publish(SUBJECT, foreign, id="1", source="t")


async def test_what_the_servers_stream_will_not_take_is_refused_with_its_reason(jetstream: JetStreamBus) -> None:
    js = (await jetstream.client()).jetstream()
    await js.add_stream(StreamConfig(name="SMALL", subjects=["small.>"], max_msg_size=10))
    with pytest.raises(Refused, match="message size exceeds maximum allowed"):
        await jetstream.publish_raw("small.x", GOOD.body, GOOD.headers)
    assert jetstream._metrics.publish_refused._value.get() == 1
    assert jetstream._metrics.publish_failed._value.get() == 0


async def test_a_stream_that_is_full_may_have_room_later(nats_url: str) -> None:
    await delete_all_streams(nats_url)
    bus = await JetStreamBus.connect(nats_url, name="t", publish_timeout_s=0.5, registry=CollectorRegistry())
    js = (await bus.client()).jetstream()
    await js.add_stream(StreamConfig(name="FULL", subjects=["full.>"], max_msgs=1, discard="new"))  # type: ignore[arg-type]
    await bus.publish_raw("full.x", b"1", {})
    with pytest.raises(BusUnavailable, match="maximum messages exceeded"):
        await bus.publish_raw("full.x", b"2", {})
    await js.purge_stream("FULL")
    await bus.publish_raw("full.x", b"3", {})
    assert (await js.stream_info("FULL")).state.messages == 1
    await bus.close()
