"""Readiness: parts up, and every required check passing."""

from __future__ import annotations

import asyncio

import pytest

from goodput_common.runtime.health import CheckState, Health


async def _passes() -> None:
    return None


async def _fails() -> bool:
    return False


async def _raises() -> None:
    raise OSError("connection refused")


async def _hangs() -> None:
    await asyncio.sleep(3600)


def _ready() -> Health:
    health = Health(cache_s=0)
    health.set_phase("ready", ready=True)
    return health


async def test_ready_when_all_parts_are_up_and_all_checks_pass() -> None:
    health = _ready()
    health.add("database", _passes)
    report = await health.report()
    assert report.ready
    assert report.reason == ""
    assert [each.state for each in report.checks] == [CheckState.OK]


async def test_not_ready_before_start_and_while_stopping() -> None:
    health = Health()
    assert (await health.report()).reason == "the service is starting"
    health.set_phase("stopping", ready=False)
    assert (await health.report()).reason == "the service is stopping"


async def test_the_failing_check_is_named_with_its_reason() -> None:
    health = _ready()
    health.add("bus", _fails)
    health.add("database", _raises)
    report = await health.report()
    assert not report.ready
    assert report.reason == "bus is failing: the check answered no; database is failing: connection refused"


async def test_a_check_that_does_not_answer_is_unknown_and_not_ready() -> None:
    health = _ready()
    health.add("database", _hangs, timeout_s=0.02)
    report = await health.report()
    assert not report.ready
    assert report.checks[0].state is CheckState.UNKNOWN


async def test_a_check_that_is_not_required_is_reported_only() -> None:
    health = _ready()
    health.add("outbox", _raises, required=False)
    report = await health.report()
    assert report.ready
    assert report.checks[0].state is CheckState.FAILING


async def test_reports_within_the_cache_time_share_one_round_of_checks() -> None:
    now_s = 0.0
    asked = 0

    async def counts() -> None:
        nonlocal asked
        asked += 1

    health = Health(cache_s=1.0, monotonic_s=lambda: now_s)
    health.add("counted", counts)
    await asyncio.gather(*(health.report() for _ in range(20)))
    await health.report()
    assert asked == 1
    now_s = 2.0
    await health.report()
    assert asked == 2


async def test_a_poller_that_gives_up_does_not_cancel_the_checks_of_the_others() -> None:
    release = asyncio.Event()

    async def waits() -> None:
        await release.wait()

    health = _ready()
    health.add("slow", waits)
    first = asyncio.create_task(health.report())
    second = asyncio.create_task(health.report())
    await asyncio.sleep(0)
    first.cancel()
    release.set()
    assert (await second).ready


def test_two_checks_of_one_name_are_refused() -> None:
    health = Health()
    health.add("bus", _passes)
    with pytest.raises(ValueError, match="'bus' is registered twice"):
        health.add("bus", _passes)
