"""Whoever is killed meanwhile: one chain, and nothing lost."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from goodput_common.contracts.verdict import FaultClass

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]
World = Any  # of conftest


async def test_kill_minus_nine_at_random_moments_leaves_one_chain_and_loses_nothing(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    await world.begin()
    await world.healthy_for(10)
    moments = random.Random(20)
    for life in range(8):
        await asyncio.sleep(moments.uniform(0.0, 1.5))
        if life == 1:
            await world.gpu_falls_off()
            await asyncio.sleep(moments.uniform(0.0, 1.5))
        if life == 5:
            await world.until(world.opened)
            world.stalled = False
            await asyncio.sleep(moments.uniform(0.0, 3.0))
        await correlator.kill()
        await correlator.start()
        if life % 2:  # every other time it is killed while it starts
            await correlator.active()
    await correlator.active()
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert (chain[0].fault_class, chain[0].culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")


async def test_postgres_and_nats_killed_in_the_middle_leave_one_chain_and_the_process_alive(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    await world.begin()
    await world.healthy_for(10)
    world.postgres.kill()
    await asyncio.sleep(1.0)
    assert await correlator.not_ready()
    await world.postgres.restart()
    await world.gpu_falls_off()
    await asyncio.sleep(0.5)
    world.nats.kill()
    await asyncio.sleep(1.0)
    await world.nats.restart()
    await world.until(world.opened)
    world.postgres.kill()
    world.stalled = False
    await asyncio.sleep(1.0)
    await world.postgres.restart()
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert (chain[0].fault_class, chain[0].culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")
    await correlator.active()
    assert correlator.process is not None and correlator.process.returncode is None


async def test_a_standby_waits_says_so_and_takes_over(world: World) -> None:
    active, standby = world.correlator(), world.correlator()
    await active.start()
    await active.active()
    await standby.start()
    assert "standby" in await standby.not_ready()
    await world.listen()
    await world.begin()
    await world.healthy_for(10)
    await world.gpu_falls_off()
    await active.kill()
    await standby.active()
    await world.until(world.opened)
    assert len((await standby.get("/v1/verdicts")).json()["items"]) == 1
    world.stalled = False
    await world.until(world.resolved)
    await world.check_one_chain()
