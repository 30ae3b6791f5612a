"""kill -9 of the service, of NATS and of Postgres at random moments: one chain and one executed action an incident."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres
from goodput_recovery.testing import FakeJob, make_verdict, publish_verdict

pytestmark = pytest.mark.slow
POLICY = {
    "settle_s": 0.4,
    "verify_hold_s": 0.4,
    "verify_watch_s_min": 3.0,
    "spare_nodes": 100,
    "budget": {"nodes_out_share_max": 1.0, "job_actions_max": 100, "fabric_actions_max": 100},
}


@dataclass
class Service:
    """`python -m goodput_recovery`, killed and started at will."""

    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "goodput_recovery"], env=os.environ | self.environment, stdout=log, stderr=log
            )

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=20)


def a_service(nats_url: str, database_url: str, fabric: str, folder: Path, name: str = "recovery") -> Service:
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY))
    return Service(
        {
            "GOODPUT_NATS_URL": nats_url,
            "GOODPUT_DATABASE_URL": database_url,
            "GOODPUT_FABRIC": fabric,
            "GOODPUT_HTTP_PORT": "0",
            "GOODPUT_RECOVERY_POLICY": str(policy),
            "GOODPUT_RECOVERY_EVIDENCE_S": "0.5",
            "GOODPUT_LOG_JSON": "true",
        },
        folder / f"{name}.log",
    )


async def until(condition: Callable[[], Awaitable[Any]], what: str, *, within_s: float = 240) -> Any:
    deadline = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < deadline:
        with contextlib.suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            if found := await condition():
                return found
        await asyncio.sleep(0.1)
    pytest.fail(f"waited {within_s} s for {what}")


class Rows:
    """What the database says, whatever state the service is in."""

    def __init__(self, url: str) -> None:
        self._dsn = url.replace("postgresql+asyncpg", "postgresql", 1)

    async def __call__(self, query: str, *values: object) -> list[Any]:
        connection = await asyncpg.connect(self._dsn)
        try:
            return list(await connection.fetch(query, *values))
        finally:
            await connection.close()

    async def recovered(self, incident: str) -> bool:
        rows = await self("SELECT state FROM recovery.plan WHERE incident = $1 ORDER BY ordinal", incident)
        return bool(rows) and rows[-1]["state"] == "recovered"


async def check_incident(rows: Rows, job: FakeJob, incident: str) -> None:
    plans = await rows("SELECT id, state FROM recovery.plan WHERE incident = $1 ORDER BY ordinal", incident)
    assert [each["state"] for each in plans] == ["recovered"]
    assert len(await rows("SELECT 1 FROM recovery.deed WHERE incident = $1", incident)) == 1
    await until(_told(job, plans[0]["id"]), "the announcements to be published")
    states = job.states(plans[0]["id"])
    assert states == ["proposed", "approved", "executing", "verifying", "recovered"]


def _told(job: FakeJob, plan: str) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return "recovered" in job.states(plan)

    return asked


@pytest.mark.timeout(1200)
async def test_kill_9_of_the_service_at_random_moments(nats_url: str, fresh_database: str, tmp_path: Path) -> None:
    chance, fabric = random.Random(7), f"kill-{os.getpid()}"
    service, rows = a_service(nats_url, fresh_database, fabric, tmp_path), Rows(fresh_database)
    bus = await JetStreamBus.connect(nats_url, name="test")
    await provision(bus)
    job = FakeJob(bus, fabric)
    await job.start(silent=(1,))
    service.start()
    try:
        await until(lambda: rows("SELECT 1 FROM recovery.lease"), "the first start")
        for n in range(8):
            job.moving = False
            verdict = make_verdict(
                fabric=fabric, incident=f"incident-{n}", component="gpu:h1/0", ranks=(1,), at=datetime.now(UTC)
            )
            await publish_verdict(bus, verdict)
            await asyncio.sleep(chance.uniform(0.0, 2.5))
            service.kill()
            await publish_verdict(bus, verdict, doubled="/again")
            service.start()
            await until(lambda incident=verdict.incident: rows.recovered(incident), f"recovery {n}")  # type: ignore[misc]
            await check_incident(rows, job, verdict.incident)
        assert len(job.acted_on) == 8
        assert service.stop() == 0
    finally:
        if service.process is not None and service.process.poll() is None:
            service.kill()
        await job.stop()
        await bus.close()


@pytest.mark.timeout(1200)
async def test_kill_9_of_the_bus_and_of_the_database_at_random_moments(tmp_path: Path) -> None:
    chance, fabric = random.Random(11), "outage"
    async with EmbeddedNats(tmp_path / "nats") as nats, EmbeddedPostgres(tmp_path / "postgres") as postgres:
        service, rows = a_service(nats.url, postgres.url, fabric, tmp_path), Rows(postgres.url)
        bus = await JetStreamBus.connect(nats.url, name="test")
        await provision(bus)
        job = FakeJob(bus, fabric)
        await job.start()
        service.start()
        try:
            await until(lambda: rows("SELECT 1 FROM recovery.lease"), "the first start")
            for n in range(4):
                victim = nats if n % 2 else postgres
                job.moving = False
                incident = f"incident-{n}"
                await publish_verdict(bus, make_verdict(fabric=fabric, incident=incident, at=datetime.now(UTC)))
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                victim.kill()
                await asyncio.sleep(chance.uniform(0.0, 2.0))
                await victim.restart()
                await until(lambda incident=incident: rows.recovered(incident), f"recovery {n}")  # type: ignore[misc]
                await check_incident(rows, job, incident)
            assert service.process is not None and service.process.poll() is None, "an outage does not end the service"
            assert len(job.acted_on) == 4
            assert service.stop() == 0
        finally:
            if service.process is not None and service.process.poll() is None:
                service.kill()
            await job.stop()
            await bus.close()


@pytest.mark.timeout(1200)
async def test_a_standby_takes_over_and_finishes_what_was_begun(nats_url: str, fresh_database: str, tmp_path: Path) -> None:
    fabric = f"standby-{os.getpid()}"
    first, second = (a_service(nats_url, fresh_database, fabric, tmp_path, name) for name in ("first", "second"))
    rows = Rows(fresh_database)
    bus = await JetStreamBus.connect(nats_url, name="test")
    await provision(bus)
    job = FakeJob(bus, fabric)
    await job.start()
    job.heals = False  # the plan stays under verification until the second one is in charge
    first.start()
    try:
        await until(lambda: rows("SELECT 1 FROM recovery.lease WHERE token = 1"), "the first to lead")
        second.start()
        job.moving = False
        await publish_verdict(bus, make_verdict(fabric=fabric, at=datetime.now(UTC)))
        await until(lambda: rows("SELECT 1 FROM recovery.plan WHERE state = 'verifying'"), "the action")
        first.kill()
        await until(lambda: rows("SELECT 1 FROM recovery.lease WHERE token = 2"), "the second to lead")
        job.moving = True
        await until(lambda: rows.recovered("incident-1"), "the recovery")
        await check_incident(rows, job, "incident-1")
        assert second.stop() == 0
    finally:
        for each in (first, second):
            if each.process is not None and each.process.poll() is None:
                each.kill()
        await job.stop()
        await bus.close()
