"""What every bus promises, run on the in-memory twin and on a real NATS server.

A behaviour goes here once; the twin may differ from the server in nothing that a service could notice.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.codec import encode
from goodput_common.bus.errors import (
    BusUnavailable,
    MessageTooLarge,
    NoResponders,
    Reject,
    RequestFailed,
    RequestTimeout,
    Retry,
)
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import delete_all_streams, provision
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.embedded import EmbeddedNats

AnyBus = MemoryBus | JetStreamBus
NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
LONG_S = 20.0  # how long a test waits for what must come
_ids = itertools.count(1)


@pytest.fixture(params=["memory", "jetstream"])
def server(request: pytest.FixtureRequest) -> str | None:
    """None for the twin, else the server's address."""
    return None if request.param == "memory" else str(request.getfixturevalue("nats_url"))


@pytest.fixture
async def bus(server: str | None) -> AsyncIterator[AnyBus]:
    made: AnyBus
    if server is None:
        made = MemoryBus()
    else:
        await delete_all_streams(server)
        made = await JetStreamBus.connect(server, name="contract", registry=CollectorRegistry())
    await provision(made)
    yield made
    await made.close()


@pytest.fixture
async def jetstream(nats_url: str) -> AsyncIterator[JetStreamBus]:
    await delete_all_streams(nats_url)
    made = await JetStreamBus.connect(nats_url, name="contract", registry=CollectorRegistry())
    await provision(made)
    yield made
    await made.close()


def exited(rank: int) -> RankExited:
    return RankExited(fabric="f", job="j", rank=rank, host="h0", at=NOW)


def job_consumer(**options: object) -> Consumer:
    settings: dict[str, object] = {"durable": "test", "stream": "JOB", "subjects": ("goodput.job.>",), "ack_wait_s": 5.0}
    return Consumer(**(settings | options))  # type: ignore[arg-type]


SUBJECT = subjects.job("f", "j", "rank_exited")


async def publish(bus: AnyBus, rank: int, *, id: str = "", subject: str = SUBJECT) -> None:
    await bus.publish(subject, exited(rank), id=id or f"m{next(_ids)}", source="goodput://test", time=NOW)


class Collected:
    """A handler that keeps what it gets and lets a test wait for a number of messages."""

    def __init__(self, act: Callable[[Message], Awaitable[None]] | None = None) -> None:
        self.messages: list[Message] = []
        self.finished: list[int] = []
        self._act = act
        self._changed = asyncio.Condition()

    async def __call__(self, message: Message) -> None:
        self.messages.append(message)
        await self._tell()
        if self._act is not None:
            await self._act(message)
        self.finished.append(message.data.rank)
        await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @property
    def ranks(self) -> list[int]:
        return [message.data.rank for message in self.messages]

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(LONG_S), self._changed:
            await self._changed.wait_for(condition)

    async def count(self, number: int) -> None:
        await self.until(lambda: len(self.finished) >= number)


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await condition():  # noqa: ASYNC110 - the state of a server, which tells nobody
            await asyncio.sleep(0.02)


async def nothing_pending(bus: AnyBus, subscription: object) -> None:
    async def done() -> bool:
        return await subscription.pending() == 0  # type: ignore[attr-defined, no-any-return]

    await eventually(done)


# -- publish and consume ---------------------------------------------------------------------------------------------


async def test_a_message_arrives_with_its_data_and_attributes(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await bus.publish(SUBJECT, exited(3), id="id 1%\n", source="goodput://höst/a b", component="rank:j/3", time=NOW)
    await got.count(1)
    message = got.messages[0]
    assert message.data == exited(3)
    assert (message.id, message.type, message.source) == ("id 1%\n", "goodput.job.rank_exited.v1", "goodput://höst/a b")
    assert (message.subject, message.component, message.time) == (SUBJECT, "rank:j/3", NOW)
    assert (message.stream, message.sequence, message.deliveries) == ("JOB", 1, 1)
    assert abs(message.received_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_messages_published_before_the_consumer_exist_for_it(bus: AnyBus) -> None:
    for rank in range(5):
        await publish(bus, rank)
    got = Collected()
    await bus.consume(job_consumer(), got)
    await got.count(5)
    assert sorted(got.ranks) == [0, 1, 2, 3, 4]


async def test_deliver_new_only_skips_what_was_there_before(bus: AnyBus) -> None:
    await publish(bus, 1)
    got = Collected()
    await bus.consume(job_consumer(deliver_new_only=True), got)
    await publish(bus, 2)
    await got.count(1)
    assert got.ranks == [2]


async def test_a_consumer_gets_only_its_subjects(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(subjects=("goodput.job.f.wanted.>", "goodput.job.*.other.rank_exited")), got)
    await publish(bus, 1, subject=subjects.job("f", "unwanted", "rank_exited"))
    await publish(bus, 2, subject=subjects.job("f", "wanted", "rank_exited"))
    await publish(bus, 3, subject=subjects.job("g", "other", "rank_exited"))
    await got.count(2)
    assert sorted(got.ranks) == [2, 3]


async def test_two_durables_each_get_every_message(bus: AnyBus) -> None:
    one, other = Collected(), Collected()
    await bus.consume(job_consumer(durable="one"), one)
    await bus.consume(job_consumer(durable="other"), other)
    await publish(bus, 1)
    await one.count(1)
    await other.count(1)


async def test_subscriptions_of_one_durable_share_its_messages(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(slots=2), got)
    await bus.consume(job_consumer(slots=2), got)
    for rank in range(40):
        await publish(bus, rank)
    await got.count(40)
    assert sorted(got.ranks) == list(range(40))


async def test_the_same_id_is_stored_once(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await publish(bus, 1, id="same")
    await publish(bus, 2, id="same")
    await publish(bus, 3, id="other")
    await got.count(2)
    assert sorted(got.ranks) == [1, 3]


async def test_a_message_that_no_stream_keeps_is_not_taken(server: str | None, nats_url: str) -> None:
    made: AnyBus = (
        MemoryBus()
        if server is None
        else await JetStreamBus.connect(server, name="t", publish_timeout_s=0.3, registry=CollectorRegistry())
    )
    with pytest.raises(BusUnavailable, match="no stream keeps"):
        await made.publish("elsewhere.x", exited(1), id="1", source="t")
    await made.close()


async def test_a_message_over_the_size_limit_is_refused_at_once(bus: AnyBus) -> None:
    big = RankExited(fabric="f", job="j", rank=0, host="h", at=NOW, reason="x" * (1 << 21))
    with pytest.raises(MessageTooLarge):
        await bus.publish(SUBJECT, big, id="1", source="t")


async def test_headers_count_towards_the_size_limit_and_the_connection_survives(bus: AnyBus) -> None:
    nearly = RankExited(fabric="f", job="j", rank=0, host="h", at=NOW, reason="")
    room = (1 << 20) - len(msgspec.json.encode(nearly)) - 20  # the body fits, body and headers do not
    with pytest.raises(MessageTooLarge):
        await bus.publish(SUBJECT, msgspec.structs.replace(nearly, reason="x" * room), id="1", source="t")
    assert await bus.healthy()


async def test_a_struct_outside_the_registry_cannot_be_published(bus: AnyBus) -> None:
    with pytest.raises(TypeError, match="registry"):
        await bus.publish(SUBJECT, subjects_struct(), id="1", source="t")


def subjects_struct() -> object:
    from msgspec import defstruct

    return defstruct("Foreign", [("a", int)])(1)


async def test_a_cancelled_publisher_stops(bus: AnyBus) -> None:
    async def for_ever() -> None:
        while True:
            await publish(bus, 1)

    for turns in range(40):  # wherever in a publish the cancellation hits
        task = asyncio.create_task(for_ever())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=LONG_S)
        assert done
        assert task.cancelled()


# -- outcomes of a handler -------------------------------------------------------------------------------------------


async def test_an_acknowledged_message_is_not_delivered_again(bus: AnyBus) -> None:
    first = Collected()
    subscription = await bus.consume(job_consumer(), first)
    await publish(bus, 1)
    await first.count(1)
    await nothing_pending(bus, subscription)
    await subscription.drain()
    second = Collected()
    await bus.consume(job_consumer(), second)
    await publish(bus, 2)
    await second.count(1)
    assert second.ranks == [2]


async def test_a_failed_message_comes_again_while_others_go_on(bus: AnyBus) -> None:
    async def fail_once(message: Message) -> None:
        if message.data.rank == 1 and message.deliveries == 1:
            raise RuntimeError("not now")

    got = Collected(fail_once)
    await bus.consume(job_consumer(slots=1), got)
    await publish(bus, 1)
    await publish(bus, 2)
    await got.count(2)
    assert got.finished == [2, 1]
    again = [message for message in got.messages if message.data.rank == 1]
    assert [message.deliveries for message in again] == [1, 2]
    assert again[0].received_at == again[1].received_at
    assert again[0].sequence == again[1].sequence


async def test_retry_comes_again_after_its_delay(bus: AnyBus) -> None:
    times: list[float] = []

    async def later(message: Message) -> None:
        times.append(time.monotonic())
        if message.deliveries == 1:
            raise Retry("wait", delay_s=0.4)

    got = Collected(later)
    await bus.consume(job_consumer(), got)
    await publish(bus, 1)
    await got.count(1)
    assert times[1] - times[0] >= 0.39


async def test_a_rejected_message_is_kept_with_its_reason(bus: AnyBus) -> None:
    async def refuse(message: Message) -> None:
        if message.data.rank == 1:
            raise Reject("rank 1 is not welcome")

    got = Collected(refuse)
    subscription = await bus.consume(job_consumer(), got)
    await publish(bus, 1, id="bad one")
    await publish(bus, 2)
    await got.count(1)
    await nothing_pending(bus, subscription)
    (kept,) = await bus.rejections()
    assert (kept.reason, kept.stream, kept.subject) == ("rank 1 is not welcome", "JOB", SUBJECT)
    assert (kept.sequence, kept.durable, kept.deliveries) == (1, "test", 1)
    assert kept.body == encode(exited(1), id="x", source="x", time=NOW).body
    assert kept.headers["ce-id"] == "bad%20one"
    assert kept.received_at == got.messages[0].received_at
    assert got.ranks.count(1) == 1


async def test_the_last_allowed_delivery_that_fails_is_rejected_with_its_error(bus: AnyBus) -> None:
    async def fail(message: Message) -> None:
        raise RuntimeError("always broken")

    got = Collected(fail)
    subscription = await bus.consume(job_consumer(max_deliveries=2), got)
    await publish(bus, 1)

    async def rejected() -> bool:
        return len(await bus.rejections()) == 1

    await eventually(rejected)
    (kept,) = await bus.rejections()
    assert kept.reason == "failed at delivery 2 of 2: RuntimeError: always broken"
    await nothing_pending(bus, subscription)
    assert len(got.messages) == 2


GOOD = encode(exited(1), id="foreign", source="test", time=NOW)


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (b"not json", {}, "body is not JSON"),
        (b"", {}, "body is not JSON"),
        (b"\xff\xfe", {}, "body"),
        (b"[" * 100_000, {}, "body"),
        (b'{"fabric":"f","job":"j","rank":"one","host":"h","at":"2026-01-01T00:00:00Z"}', {}, "$.rank"),
        (b'{"fabric":"f","job":"j","host":"h","at":"2026-01-01T00:00:00Z"}', {}, "`rank`"),
        (GOOD.body, {"ce-type": "goodput.future.v9"}, "goodput.future.v9"),
        (GOOD.body, {"ce-type": ""}, "header ce-type is missing"),
        (GOOD.body, {"ce-id": ""}, "header ce-id is missing"),
        (GOOD.body, {"ce-time": "yesterday"}, "header ce-time"),
        (GOOD.body, {"ce-specversion": "2.0"}, "header ce-specversion"),
    ],
)
async def test_what_cannot_be_decoded_is_kept_and_the_stream_goes_on(
    bus: AnyBus, body: bytes, headers: dict[str, str], reason: str
) -> None:
    got = Collected()
    subscription = await bus.consume(job_consumer(slots=1), got)
    await bus.publish_raw(SUBJECT, body, GOOD.headers | headers)
    await publish(bus, 2)
    await got.count(1)
    await nothing_pending(bus, subscription)
    assert got.ranks == [2]
    (kept,) = await bus.rejections()
    assert reason in kept.reason
    assert kept.body == body


async def test_unknown_fields_are_ignored(bus: AnyBus) -> None:
    got = Collected()
    await bus.consume(job_consumer(), got)
    await bus.publish_raw(SUBJECT, GOOD.body[:-1] + b',"added_later":[1,2]}', GOOD.headers)
    await got.count(1)
    assert got.messages[0].data == exited(1)


# -- bounds ----------------------------------------------------------------------------------------------------------


async def test_no_more_handlers_run_at_once_than_there_are_slots(bus: AnyBus) -> None:
    running = most = 0

    async def measure(message: Message) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    got = Collected(measure)
    await bus.consume(job_consumer(slots=3), got)
    for rank in range(30):
        await publish(bus, rank)
    await got.count(30)
    assert most == 3
    assert sorted(got.ranks) == list(range(30))


async def test_a_slow_handler_keeps_its_message(bus: AnyBus) -> None:
    async def slow(message: Message) -> None:
        await asyncio.sleep(1.5)

    got = Collected(slow)
    subscription = await bus.consume(job_consumer(ack_wait_s=0.4), got)
    await publish(bus, 1)
    await got.count(1)
    await nothing_pending(bus, subscription)
    assert len(got.messages) == 1


async def test_drain_finishes_what_is_in_hand_and_takes_no_more(bus: AnyBus) -> None:
    gate = asyncio.Event()

    async def held(message: Message) -> None:
        await gate.wait()

    first = Collected(held)
    subscription = await bus.consume(job_consumer(slots=2), first)
    for rank in range(6):
        await publish(bus, rank)
    await first.until(lambda: len(first.messages) == 2)
    draining = asyncio.create_task(subscription.drain())
    await asyncio.sleep(0.2)
    assert not draining.done()
    gate.set()
    async with asyncio.timeout(LONG_S):
        await draining
    assert sorted(first.finished) == sorted(first.ranks)
    assert len(first.finished) == 2
    second = Collected()
    await bus.consume(job_consumer(slots=2), second)
    await second.count(4)
    assert sorted(first.finished + second.finished) == list(range(6))


async def test_pending_counts_what_no_handler_has_finished(bus: AnyBus) -> None:
    gate = asyncio.Event()

    async def held(message: Message) -> None:
        await gate.wait()

    got = Collected(held)
    for rank in range(5):
        await publish(bus, rank)
    subscription = await bus.consume(job_consumer(slots=2), got)
    await got.until(lambda: len(got.messages) == 2)
    assert await subscription.pending() == 5
    gate.set()
    await nothing_pending(bus, subscription)
    assert len(got.finished) == 5


# -- request and reply -----------------------------------------------------------------------------------------------


COMMAND = AgentCommand(id="c1", kind=AgentCommandKind.DUMP, fabric="f", job="j", rank=0, fencing_token=1)
AGENT = subjects.agent("f", "j", 0)


async def reply_done(message: Message) -> AgentReply:
    return AgentReply(id=message.data.id, status=AgentReplyStatus.DONE, rank=0, at=NOW)


async def test_a_request_gets_its_reply(bus: AnyBus) -> None:
    await bus.serve(AGENT, reply_done)
    reply = await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)
    assert reply == AgentReply(id="c1", status=AgentReplyStatus.DONE, rank=0, at=NOW)


async def test_nobody_there_is_known_without_waiting_for_the_timeout(bus: AnyBus) -> None:
    async with asyncio.timeout(LONG_S):
        with pytest.raises(NoResponders):
            await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S * 10)


async def test_no_reply_in_time_is_a_timeout(bus: AnyBus) -> None:
    async def silent(message: Message) -> AgentReply:
        await asyncio.sleep(LONG_S)
        return await reply_done(message)

    service = await bus.serve(AGENT, silent)
    with pytest.raises(RequestTimeout):
        await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=0.2)
    if isinstance(bus, JetStreamBus):
        await service.abort()  # type: ignore[union-attr]


async def test_a_responder_that_raises_is_told_to_the_one_who_asked(bus: AnyBus) -> None:
    async def broken(message: Message) -> AgentReply:
        raise RuntimeError("no room left")

    await bus.serve(AGENT, broken)
    with pytest.raises(RequestFailed, match="no room left"):
        await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)


async def test_a_drained_service_is_nobody(bus: AnyBus) -> None:
    service = await bus.serve(AGENT, reply_done)
    await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=LONG_S)
    await service.drain()
    with pytest.raises(NoResponders):
        await bus.request(AGENT, COMMAND, id="c2", source="t", timeout_s=LONG_S)


# -- health ----------------------------------------------------------------------------------------------------------


async def test_a_closed_bus_is_not_healthy_and_takes_nothing(bus: AnyBus) -> None:
    assert await bus.healthy()
    await bus.close()
    assert not await bus.healthy()
    with pytest.raises(BusUnavailable):
        await publish(bus, 1)


# -- what only a server can do ---------------------------------------------------------------------------------------


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


async def test_a_service_answers_again_after_the_server_came_back(tmp_path: Path) -> None:
    async with EmbeddedNats(tmp_path) as server:
        bus = await JetStreamBus.connect(server.url, name="contract", registry=CollectorRegistry())
        await bus.serve(AGENT, reply_done)
        server.kill()
        await server.restart()

        async def answered() -> bool:
            try:
                return bool(await bus.request(AGENT, COMMAND, id="c1", source="t", timeout_s=1.0))
            except (NoResponders, RequestTimeout, BusUnavailable):
                return False

        await eventually(answered)
        await bus.close()


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
    await nothing_pending(jetstream, subscription)
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
    await nothing_pending(jetstream, subscription)
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
