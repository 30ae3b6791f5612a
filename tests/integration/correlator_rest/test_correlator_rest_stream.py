"""The event stream: resumed, live, reset, and narrowed."""

from __future__ import annotations

import asyncio
from typing import Any

Rig = Any  # of conftest


async def test_the_stream_resumes_behind_the_last_event_seen_and_goes_on_live(world: Rig) -> None:
    from_start = await world.events({**world.operator, "Last-Event-ID": "0"}, 9)
    assert [event for _, event, _ in from_start] == ["hello", *["verdict", "incident"] * 4]
    fourth = from_start[4][0]

    async def later() -> None:
        await asyncio.sleep(0.2)
        await world.decide(world.verdict("v-later", "redjob", "gpu:red1/0", "red1"))

    writing = asyncio.create_task(later())
    resumed = await world.events({**world.operator, "Last-Event-ID": fourth}, 7)
    await writing
    assert resumed[1:5] == from_start[5:9]
    assert resumed[5][2]["id"] == "v-later"


async def test_a_stream_without_an_id_begins_now_and_an_id_that_is_not_kept_is_reset(world: Rig) -> None:
    async def later() -> None:
        await asyncio.sleep(0.3)
        await world.decide(world.verdict("v-later", "redjob", "gpu:red1/0", "red1"))

    writing = asyncio.create_task(later())
    fresh = await world.events(world.operator, 2)
    await writing
    assert fresh[1][2]["id"] == "v-later"
    gone = await world.events({**world.operator, "Last-Event-ID": "99999"}, 2)
    assert [event for _, event, _ in gone] == ["hello", "reset"]
    bad = await world.client.get("/v1/events", headers={**world.operator, "Last-Event-ID": "x"})
    assert bad.status_code == 400


async def test_streams_of_one_kind_and_of_one_job(world: Rig) -> None:
    start = {**world.operator, "Last-Event-ID": "0"}
    kinds = [event for _, event, _ in await world.events(start, 5, kind="verdict")]
    assert kinds == ["hello"] + ["verdict"] * 4
    blue = await world.events(start, 3, kind="verdict", job="bluejob")
    assert [data["id"] for _, event, data in blue if event == "verdict"] == ["v-blue", "v-switch"]
