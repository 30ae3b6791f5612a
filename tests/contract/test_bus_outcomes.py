"""What becomes of a message by what its handler does: acknowledged, delivered again, or kept as rejected."""

from __future__ import annotations

import asyncio
import time

import pytest

from goodput_common.bus.codec import encode
from goodput_common.bus.errors import (
    Reject,
    Retry,
)
from goodput_common.bus.ports import Message
from goodput_common.bus.testing import (
    GOOD,
    NOW,
    SUBJECT,
    AnyBus,
    Collected,
    eventually,
    exited,
    job_consumer,
    nothing_pending,
    publish,
)
from goodput_common.contracts import subjects


async def test_an_acknowledged_message_is_not_delivered_again(bus: AnyBus) -> None:
    first = Collected()
    subscription = await bus.consume(job_consumer(), first)
    await publish(bus, 1)
    await first.count(1)
    await nothing_pending(subscription)
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


async def test_a_slow_handler_keeps_its_message(bus: AnyBus) -> None:
    async def slow(message: Message) -> None:
        await asyncio.sleep(1.5)

    got = Collected(slow)
    subscription = await bus.consume(job_consumer(ack_wait_s=0.4), got)
    await publish(bus, 1)
    await got.count(1)
    await nothing_pending(subscription)
    assert len(got.messages) == 1


async def test_a_rejected_message_is_kept_with_its_reason(bus: AnyBus) -> None:
    async def refuse(message: Message) -> None:
        if message.data.rank == 1:
            raise Reject("rank 1 is not welcome")

    got = Collected(refuse)
    subscription = await bus.consume(job_consumer(), got)
    await publish(bus, 1, id="bad one")
    await publish(bus, 2)
    await got.count(1)
    await nothing_pending(subscription)
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
    await nothing_pending(subscription)
    assert len(got.messages) == 2


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
    await nothing_pending(subscription)
    assert got.ranks == [2]
    (kept,) = await bus.rejections()
    assert reason in kept.reason
    assert kept.body == body


async def test_what_others_put_under_rejected_is_listed_all_the_same(bus: AnyBus) -> None:
    foreign = {"goodput-sequence": "many", "goodput-deliveries": "-", "goodput-received-at": "yesterday", "x-no": "1"}
    await bus.publish_raw(subjects.rejected("JOB"), b"foreign", foreign)
    await bus.publish_raw(subjects.rejected("JOB"), b"bare", {})
    await bus.publish_raw(subjects.rejected("JOB"), b"accents", {"goodput-reason": "na\u00efve"})
    foreign_one, bare, accents = await bus.rejections()
    assert (foreign_one.body, foreign_one.sequence, foreign_one.deliveries) == (b"foreign", 0, 0)
    assert foreign_one.received_at == foreign_one.rejected_at
    assert foreign_one.headers == {"x-no": "1"}
    assert (bare.body, bare.headers, bare.reason) == (b"bare", {}, "")
    assert (accents.body, accents.reason[:2]) == (b"accents", "na")
