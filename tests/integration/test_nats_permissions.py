"""deploy/nats/nats.conf: each user may do what its service does, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from goodput_common.bus.errors import Refused, RequestTimeout
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus
from goodput_common.embedded import EmbeddedNats

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy/nats/nats.conf"
AT = datetime(2026, 1, 1, tzinfo=UTC)
EXITED = RankExited(fabric="default", job="j", rank=0, host="h", at=AT)
Connect = Callable[[str], Awaitable[JetStreamBus]]


@pytest.fixture
async def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connect]:
    """Connects as one of the users; the correlator has made the streams."""
    for user in ("COLLECTOR", "AGENT", "CORRELATOR", "RECOVERY", "READER"):
        monkeypatch.setenv(f"NATS_{user}_PASSWORD", f"password-of-{user.lower()}")
    text = CONFIGURATION.read_text()
    server = EmbeddedNats(tmp_path, extra_config=text[text.index("authorization {") :])
    async with AsyncExitStack() as stack:
        await server.start()
        stack.push_async_callback(server.stop)

        async def made(user: str) -> JetStreamBus:
            bus = await JetStreamBus.connect(
                server.url, name=user, user=user, password=f"password-of-{user}", publish_timeout_s=1.0
            )
            stack.push_async_callback(bus.close)
            return bus

        await provision(await made("correlator"))
        yield made


async def heard(bus: JetStreamBus, consumer: Consumer, *, within_s: float = 20.0) -> Message:
    """The first message of a consumer."""
    got: asyncio.Queue[Message] = asyncio.Queue()
    await bus.consume(consumer, got.put)
    return await asyncio.wait_for(got.get(), within_s)


async def test_recovery_may_make_the_streams_too(connect: Connect) -> None:
    await provision(await connect("recovery"))


async def test_collector_and_agent_report_and_the_correlator_hears(connect: Connect) -> None:
    collector, agent, correlator = [await connect(user) for user in ("collector", "agent", "correlator")]
    for number, bus in enumerate((collector, agent)):
        await bus.publish(subjects.job("default", "j", "rank_exited"), EXITED, id=str(number), source="t")
    consumer = Consumer(durable="correlator-default-job", stream="JOB", subjects=("goodput.job.default.>",))
    assert (await heard(correlator, consumer)).data == EXITED


@pytest.mark.parametrize("user", ["collector", "agent", "reader"])
async def test_who_does_not_own_the_streams_cannot_make_them(connect: Connect, user: str) -> None:
    client = await (await connect(user)).client()
    with pytest.raises(TimeoutError):
        await client.request("$JS.API.STREAM.CREATE.MINE", b'{"name":"MINE","subjects":["mine"]}', timeout=0.5)


@pytest.mark.parametrize("user", ["correlator", "recovery", "reader"])
async def test_nobody_deletes_a_stream(connect: Connect, user: str) -> None:
    client = await (await connect(user)).client()
    with pytest.raises(TimeoutError):
        await client.request("$JS.API.STREAM.DELETE.VERDICT", b"", timeout=0.5)


async def test_recovery_commands_an_agent_and_nobody_else_does(connect: Connect) -> None:
    agent, recovery, correlator = [await connect(user) for user in ("agent", "recovery", "correlator")]
    command = AgentCommand(id="c", kind=AgentCommandKind.DUMP, fabric="default", job="j", rank=0, fencing_token=1)

    async def answer(message: Message) -> AgentReply:
        return AgentReply(id=message.data.id, status=AgentReplyStatus.DONE, rank=0, at=AT)

    subject = subjects.agent("default", "j", 0)
    await agent.serve(subject, answer)
    reply = await recovery.request(subject, command, id="1", source="t", timeout_s=20)
    assert isinstance(reply, AgentReply)
    with pytest.raises(RequestTimeout):
        await correlator.request(subject, command, id="2", source="t", timeout_s=0.5)


@pytest.mark.parametrize("user", ["collector", "agent", "recovery", "reader"])
async def test_only_the_correlator_publishes_verdicts(connect: Connect, user: str) -> None:
    bus = await connect(user)
    with pytest.raises(Refused, match="no permission to publish it"):
        await bus.publish(subjects.verdict("default", "j", "nvlink"), EXITED, id="1", source="t")


async def test_a_reader_follows_verdicts_by_a_consumer_of_its_own(connect: Connect) -> None:
    correlator, reader = await connect("correlator"), await connect("reader")
    await correlator.publish(subjects.verdict("default", "j", "nvlink"), EXITED, id="1", source="t")
    consumer = Consumer(durable="live-j-verdict", stream="VERDICT", subjects=("goodput.verdict.default.>",))
    assert (await heard(reader, consumer)).data == EXITED


async def test_a_reader_cannot_take_verdicts_from_recovery_nor_read_what_jobs_say(connect: Connect) -> None:
    recovery, reader = await connect("recovery"), await connect("reader")
    durable = Consumer(durable="recovery-default-verdicts", stream="VERDICT", subjects=("goodput.verdict.default.>",))
    await recovery.consume(durable, lambda _: asyncio.sleep(0))
    client = await reader.client()
    for subject in (
        "$JS.API.CONSUMER.MSG.NEXT.VERDICT.recovery-default-verdicts",
        "$JS.API.CONSUMER.DELETE.VERDICT.recovery-default-verdicts",
        "$JS.API.CONSUMER.INFO.JOB.anything",
    ):
        with pytest.raises(TimeoutError):
            await client.request(subject, b"", timeout=0.5)


async def test_nobody_hears_the_replies_to_another_user(connect: Connect) -> None:
    agent, correlator = await connect("agent"), await connect("correlator")
    listener, asking = await agent.client(), await correlator.client()
    overheard: list[bytes] = []

    async def keep(message: Msg) -> None:
        overheard.append(message.data)

    await listener.subscribe("_INBOX.>", cb=keep)
    await listener.flush()
    await asking.jetstream().stream_info("JOB")
    await listener.flush()
    assert not overheard
