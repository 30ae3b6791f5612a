"""What becomes of a delivery, by what its handler did."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from goodput_common.bus.delivery import RETRY_S_MAX, Done, Later, Never, Outcome, retry_delay_s, run_handler, too_often
from goodput_common.bus.errors import Reject, Retry
from goodput_common.bus.ports import Message

NOW = datetime(2026, 1, 1, tzinfo=UTC)


async def outcome_of(error: BaseException | None, *, deliveries: int = 1, max_deliveries: int = 3) -> Outcome:
    message = Message(id="1", type="t", source="s", subject="x", time=NOW, data=None, received_at=NOW, deliveries=deliveries)

    async def handler(_: Message) -> None:
        if error is not None:
            raise error

    return await run_handler(handler, message, max_deliveries)


async def test_a_handler_that_returns_is_done() -> None:
    assert await outcome_of(None) == Done()


async def test_retry_keeps_its_delay_within_an_hour() -> None:
    assert await outcome_of(Retry("busy", delay_s=7.0)) == Later(7.0, "busy")
    assert await outcome_of(Retry("busy", delay_s=1e9)) == Later(3600.0, "busy")
    assert await outcome_of(Retry("busy", delay_s=-1.0)) == Later(0.0, "busy")


async def test_reject_ends_it_with_its_reason() -> None:
    assert await outcome_of(Reject("nonsense")) == Never("nonsense")


async def test_an_exception_comes_again_later_and_later() -> None:
    delays = [retry_delay_s(deliveries) for deliveries in range(1, 40)]
    assert delays[0] == 0.25
    assert delays == sorted(delays)
    assert delays[-1] == RETRY_S_MAX
    assert await outcome_of(ValueError("x"), deliveries=2) == Later(0.5, "ValueError: x")


@pytest.mark.parametrize("error", [ValueError("x"), Retry("x")])
async def test_the_last_allowed_failure_is_never(error: Exception) -> None:
    outcome = await outcome_of(error, deliveries=3)
    assert isinstance(outcome, Never)
    assert "delivery 3 of 3" in outcome.reason


async def test_a_cancellation_raised_inside_the_handler_is_a_failure() -> None:
    assert isinstance(await outcome_of(asyncio.CancelledError()), Later)


async def test_a_cancellation_of_the_task_gets_out() -> None:
    message = Message(id="1", type="t", source="s", subject="x", time=NOW, data=None, received_at=NOW)
    started = asyncio.Event()

    async def handler(_: Message) -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(run_handler(handler, message, 3))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_deliveries_over_the_limit_end_without_another_try() -> None:
    assert too_often(3, 3) is None
    assert isinstance(too_often(4, 3), Never)
