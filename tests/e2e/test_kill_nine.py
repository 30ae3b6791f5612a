"""kill -9 of any one process at a random moment of a run: one verdict chain, one executed action, nothing lost.

Each run plays a simulated job with a fault against real services, kills one of correlator, recovery, NATS and Postgres at a
moment drawn from the seed, starts it again after a pause drawn from it, then holds the outcome against what must be
true. `make chaos` makes 30 runs; as a part of `make test` it makes a few (GOODPUT_CHAOS_RUNS).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.contracts.telemetry import TelemetryBatch
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.contracts.verdict import VerdictState
from goodput_common.runtime.clock import SystemClock
from goodput_faultlab.live import LiveRun, live_spec
from goodput_faultlab.score import score
from goodput_faultlab.simulate import Simulation
from goodput_faultlab.stack import Stack

RUNS = int(os.environ.get("GOODPUT_CHAOS_RUNS", "4"))
FIRST_SEED = int(os.environ.get("GOODPUT_CHAOS_SEED", "1"))
SCENARIOS = ("dead-link", "rank-killed", "gpu-off-bus", "rank-frozen")
TARGETS = ("correlator", "recovery", "nats", "postgres")
FAULT_AT_S = 8.0
KILL_BETWEEN_S = (2.0, 30.0)
OVER_WITHIN_S = 150.0

# Many incidents of many jobs within minutes are this test's own doing: no budget may end a run.
AMPLE = {
    "spare_nodes": 1000,
    "budget": {"nodes_out_share_max": 1.0, "job_actions_max": 1000, "fabric_actions_max": 1000},
}

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("kill-nine"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    directory = tmp_path_factory.mktemp("chaos")
    policy = directory / "policy.json"
    policy.write_text(json.dumps(AMPLE))
    stack = Stack(directory, settings={"GOODPUT_RECOVERY_POLICY": str(policy)})
    await stack.start()
    yield stack
    await stack.stop()


async def kill_and_restart(stack: Stack, target: str, pause_s: float) -> None:
    if target in ("nats", "postgres"):
        server = stack.nats if target == "nats" else stack.postgres
        server.kill()
        await asyncio.sleep(pause_s)
        await server.start()
    else:
        stack.kill_service(target)
        await asyncio.sleep(pause_s)
        await stack.start_service(target)


async def get(stack: Stack, service: str, path: str, **parameters: str) -> list[dict[str, Any]]:
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {stack.operator_token}"}, timeout=10) as client:
        answer = await client.get(stack.service(service).url + path, params={"limit": "200", **parameters})
    answer.raise_for_status()
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def stored_messages(stack: Stack) -> set[str]:
    """Ids of the messages whose facts are in the evidence table."""
    connection = await asyncpg.connect(stack.postgres.url.replace("postgresql+asyncpg://", "postgresql://"))
    try:
        rows = await connection.fetch("SELECT DISTINCT split_part(id, '#', 1) AS id FROM correlator.evidence")
    finally:
        await connection.close()
    return {row["id"] for row in rows}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + RUNS))
async def test_one_chain_and_one_action_whatever_is_killed(stack: Stack, seed: int, tmp_path: Path) -> None:
    draw = random.Random(f"chaos/{seed}")
    target = TARGETS[seed % len(TARGETS)]
    name = SCENARIOS[(seed // len(TARGETS)) % len(SCENARIOS)]
    kill_at_s = draw.uniform(*KILL_BETWEEN_S)
    pause_s = draw.uniform(0.0, 3.0)
    told = f"seed {seed}: {name}, kill -9 of {target} after {kill_at_s:.1f} s, back {pause_s:.1f} s later"
    print(told, flush=True)

    bus = await JetStreamBus.connect(stack.nats.url, name=f"chaos-{seed}")
    try:
        await provision(bus)
        spec = live_spec(name, job=f"chaos-{seed}", start=datetime.now(UTC), fault_at_s=FAULT_AT_S, hosts=4)
        simulation = Simulation(spec, seed)
        run = LiveRun(bus, simulation, SystemClock(), keep=True)
        await run.start()
        killing = asyncio.create_task(_later(kill_at_s, stack, target, pause_s))
        over = await run.play(lambda: run.over and killing.done(), timeout_s=OVER_WITHIN_S)
        await killing
        await run.stop()
        assert over, f"{told}: not over; {[v.state for v in run.chain]}, {[u.state for u in run.recovery]}"

        versions = [v for found in await _verdicts(stack, spec.job) for v in found]
        assert len({v["id"] for v in versions}) == 1, f"{told}: more than one verdict chain"
        assert [v["version"] for v in versions] == list(range(1, len(versions) + 1)), told
        assert [v["state"] for v in versions].count(VerdictState.OPEN) == 1, told
        assert versions[-1]["state"] == VerdictState.RESOLVED, told
        assert {(v.id, v.version) for v in run.chain} == {(v["id"], v["version"]) for v in versions}, told

        actions = await get(stack, "recovery", "/v1/actions", job=spec.job)
        assert len(actions) == 1, f"{told}: {len(actions)} executed actions"

        expected = {
            out.id
            for out in run.published
            if not isinstance(out.struct, TopologySnapshot)
            and not (isinstance(out.struct, TelemetryBatch) and not out.struct.samples)
        }
        missing = expected - await stored_messages(stack)
        assert not missing, f"{told}: {len(missing)} of {len(expected)} acknowledged messages lost, such as {min(missing)}"

        scored = score((*simulation.ledger, *simulation.background), run.chain)
        assert scored.correct, f"{told}\n{scored.text()}"
    finally:
        await bus.close()


async def _later(after_s: float, stack: Stack, target: str, pause_s: float) -> None:
    await asyncio.sleep(after_s)
    await kill_and_restart(stack, target, pause_s)


async def _verdicts(stack: Stack, job: str) -> list[list[dict[str, Any]]]:
    newest = await get(stack, "correlator", "/v1/verdicts", job=job)
    return [await get(stack, "correlator", f"/v1/verdicts/{verdict['id']}/versions") for verdict in newest]
