"""Cancellations that nats-py swallows, and delays that grow."""

from __future__ import annotations

import asyncio

import pytest

from goodput_common.bus.connection import BACKOFF_S_MAX, Backoff, heeding_cancel, inbox_prefix


async def swallowing() -> str:
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        return "went on"
    return "slept"


async def test_a_swallowed_cancellation_is_raised_after_the_call() -> None:
    task = asyncio.create_task(heeding_cancel(swallowing()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_swallowed_time_out_is_a_time_out() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await heeding_cancel(swallowing())


async def test_cleaning_up_after_a_cancellation_may_still_call() -> None:
    async def quick() -> str:
        await asyncio.sleep(0)
        return "flushed"

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return await heeding_cancel(quick())
        return "never"

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "flushed"


def test_delays_grow_to_their_bound_and_start_again_after_a_reset() -> None:
    backoff = Backoff()
    delays = [backoff.next_s() for _ in range(20)]
    assert delays[0] < 0.2
    assert all(delay <= BACKOFF_S_MAX * 1.25 for delay in delays)
    assert delays[-1] > BACKOFF_S_MAX * 0.7
    backoff.reset()
    assert backoff.next_s() < 0.2


@pytest.mark.parametrize(
    ("user", "server", "prefix"),
    [
        (None, "nats://h:4222", "_INBOX"),
        ("reader", "nats://h:4222", "_INBOX.reader"),
        (None, "nats://agent:secret@h:4222", "_INBOX.agent"),
        ("team.a", "nats://h:4222", "_INBOX.team-a"),
    ],
)
def test_replies_come_to_an_inbox_of_the_user(user: str | None, server: str, prefix: str) -> None:
    assert inbox_prefix(user, [server]) == prefix
