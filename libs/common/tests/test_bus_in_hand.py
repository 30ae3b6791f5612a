"""Signs of life for a message whose handler runs: they go on whatever happens to one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.in_hand import ACK, IN_PROGRESS, Delivery, InHand, subscription_log
from goodput_common.bus.metrics import BusMetrics
from goodput_common.bus.ports import Message
from goodput_common.bus.rejected import Rejection
from goodput_common.bus.testing import GOOD, SUBJECT, job_consumer
from goodput_common.runtime.logs import fields_of

FAILED = "signs of life could not be sent; trying again"


def delivery() -> Delivery:
    return Delivery(
        subject=SUBJECT,
        headers=GOOD.headers,
        body=GOOD.body,
        reply="ack.1",
        sequence=1,
        received_ns=1,
        deliveries=1,
        started_s=0.0,
    )


async def never(_: Rejection) -> None:
    raise AssertionError("nothing is rejected here")


async def test_a_sign_of_life_that_fails_is_told_once_and_the_next_ones_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    release, told = asyncio.Event(), asyncio.Queue[bytes]()
    failures = 3

    async def reply(_: str, word: bytes) -> None:
        nonlocal failures
        if word == IN_PROGRESS and failures:
            failures -= 1
            raise ZeroDivisionError("a bug")
        told.put_nowait(word)

    async def handler(_: Message) -> None:
        await release.wait()

    metrics, consumer = BusMetrics(CollectorRegistry()), job_consumer(ack_wait_s=0.01)
    options: dict[str, Any] = {"store_rejection": never, "freed": lambda: None, "log": subscription_log(consumer)}
    in_hand = InHand(consumer, handler, metrics=metrics, reply=reply, **options)
    in_hand.take(delivery())
    async with asyncio.timeout(20):
        assert [await told.get(), await told.get()] == [IN_PROGRESS, IN_PROGRESS]
        release.set()
        while (word := await told.get()) == IN_PROGRESS:
            pass
        await in_hand.finish()
    assert word == ACK
    assert metrics.signs_failed.labels("JOB", "test")._value.get() == 3
    assert [fields_of(record)["event"] for record in caplog.records].count(FAILED) == 1
