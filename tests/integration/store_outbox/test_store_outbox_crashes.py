"""The outbox among replicas and crashes: one works at a time, and each message goes out once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.outbox import OutboxPublisher
from goodput_common.store.testing import (
    FakeBus,
    all_sent,
    ids_of,
    kill_backends,
    put_all,
    rows,
)


async def test_of_two_publishers_one_works_and_each_message_goes_out_once_in_order(
    engine: AsyncEngine, publisher_of: Callable[..., OutboxPublisher]
) -> None:
    one, two = FakeBus(), FakeBus()
    await publisher_of(one).start()
    await publisher_of(two).start()

    async def write(key: str) -> None:
        for number in range(30):
            await put_all(engine, [f"{key}{number:02}"], key=key)

    await asyncio.gather(*(write(key) for key in "abcd"))
    await all_sent(engine)
    together = one.ids + two.ids
    assert len(together) == 120
    assert set(together) == {f"{key}{number:02}" for key in "abcd" for number in range(30)}
    for bus in (one, two):
        assert bus.ids == [] or all(ids_of(bus, key) == [f"{key}{number:02}" for number in range(30)] for key in "abcd")


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
    await put_all(engine, ["m0"])
    await one.until(lambda: one.ids == ["m0"])
    await publisher_of(two).start()
    await put_all(engine, ["m1", "m2", "m3", "m4"])
    await stuck.wait()
    assert one.ids == ["m0", "m1", "m2"]
    assert two.ids == []
    await kill_backends(engine, "publisher-0")
    await all_sent(engine)
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
            await kill_backends(engine, "publisher-0")

    bus, tasks = FakeBus(fault=fault), Tasks()
    await put_all(engine, ["m1", "m2"])
    await publisher_of(bus, tasks=tasks).start()
    await all_sent(engine)
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
    await put_all(engine, ids)
    script = tmp_path / "publisher.py"
    script.write_text(KILLED_AFTER_PUBLISH)
    url = engine.url.render_as_string(hide_password=False)
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), url, clean_streams)
    assert await process.wait() == -signal.SIGKILL
    assert not any(await rows(engine, "sent_at"))

    await publisher_of(bus).start()
    await all_sent(engine)
    js = (await bus.client()).jetstream()
    state = (await js.stream_info("JOB")).state
    stored = [await js.get_msg("JOB", sequence) for sequence in range(state.first_seq, state.last_seq + 1)]
    assert [(message.headers or {})["Nats-Msg-Id"] for message in stored] == ids
    await bus.close()
