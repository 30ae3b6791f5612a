"""The correlator as a process on a real NATS and Postgres: what comes in goes out as one chain, whoever is killed meanwhile.

The world is a job of four ranks that reports five times a second. A GPU falls off the bus, the job stands still; later it
goes on. A producer here does what collector and agent do: it keeps each message and publishes it until the bus has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import httpx
import msgspec
import pytest

from goodput_common.bus.codec import MESSAGE_ID_HEADER, encode
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.telemetry import Event, EventName, Severity, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass, Verdict, VerdictState
from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

RANKS = 4
WITHIN_S = 180.0  # nothing is expected to take long; this only ends a test that would wait for ever
TOKEN = "operator-of-this-test"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
XID_79 = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def now() -> datetime:
    return datetime.now(UTC)


@dataclass
class Correlator:
    """One process; `log` gathers what all of its lives wrote."""

    environment: dict[str, str]
    log: Path
    port: int
    process: asyncio.subprocess.Process | None = None
    wanted: bool = False

    async def start(self) -> None:
        self.wanted = True
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "goodput_correlator", env=self.environment, stdout=log, stderr=log
            )

    async def kill(self, how: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.wanted = False
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(how)
        return await self.process.wait()

    async def not_ready(self) -> str:
        """What /readyz says is missing, "" when nothing is; waits for an answer."""
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=5) as client:
            while True:
                self.check()
                with contextlib.suppress(httpx.HTTPError):
                    answer = await client.get("/readyz")
                    return "" if answer.status_code == 200 else str(answer.json()["detail"])
                await asyncio.sleep(0.1)

    def check(self) -> None:
        """Nobody but the test ends it."""
        ended = self.wanted and self.process is not None and self.process.returncode is not None
        assert not ended, self.log.read_text()[-3000:]

    async def active(self) -> None:
        while await self.not_ready():  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def get(self, path: str, **params: Any) -> httpx.Response:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=20) as client:
            answer = await client.get(path, headers=HEADERS, params=params)
            assert answer.status_code == 200, answer.text
            return answer


@dataclass
class World:
    nats: EmbeddedNats
    postgres: EmbeddedPostgres
    directory: Path
    bus: JetStreamBus
    stalled: bool = False
    step: int = 0
    step_at: datetime = field(default_factory=now)
    seq: int = 0
    sent: list[str] = field(default_factory=list)
    published: list[tuple[str, bytes]] = field(default_factory=list)
    double: float = 0.0
    late_s: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(7))
    correlators: list[Correlator] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def correlator(self) -> Correlator:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        environment = {
            **os.environ,
            "GOODPUT_NATS_URL": self.nats.url,
            "GOODPUT_DATABASE_URL": self.postgres.url,
            "GOODPUT_FABRIC": "f",
            "GOODPUT_HTTP_PORT": str(port),
            "GOODPUT_API_TOKENS": json.dumps({TOKEN: {"role": "operator", "name": "test"}}),
        }
        made = Correlator(environment, self.directory / f"correlator{len(self.correlators)}.log", port)
        self.correlators.append(made)
        return made

    # -- producing ------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        for rank in range(RANKS):
            fact = RankRegistered(
                fabric="f", job="j", rank=rank, world_size=RANKS, host=f"h{rank}", pid=100 + rank, at=now(), gpu=0
            )
            await self.send(subjects.job("f", "j", "rank_registered"), fact, f"reg/{rank}")
        self._spawn(self._report())

    async def _report(self) -> None:
        while True:
            if not self.stalled:
                self.step, self.step_at = self.step + 2, now()
            self.seq += 1
            for rank in range(RANKS):
                report = RankProgress(
                    fabric="f", job="j", rank=rank, host=f"h{rank}", seq=self.seq, at=now(), step=self.step,
                    step_at=self.step_at, steps=0 if self.stalled else 2, step_ms_mean=0.0 if self.stalled else 100.0,
                    step_ms_max=0.0 if self.stalled else 120.0,
                )  # fmt: skip
                await self.send(subjects.job("f", "j", "rank_progress"), report, f"progress/{rank}/{self.seq}")
            await asyncio.sleep(0.2)

    async def gpu_falls_off(self) -> None:
        self.stalled = True
        event = Event(
            component="gpu:h2/0", name=EventName.XID, observed_at=now(), severity=Severity.FATAL, excerpt=XID_79,
            attrs={"xid": "79", "pci": "0000:05:00"},
        )  # fmt: skip
        batch = TelemetryBatch(
            fabric="f", host="h2", source=Source.KERNEL_LOG, boot_id="b", seq=1, observed_from=now(), observed_to=now(),
            samples=(event,),
        )  # fmt: skip
        await self.send(subjects.telemetry("f", "h2", "kernel_log"), batch, "f/h2/kernel_log/b/1")

    async def send(self, subject: str, data: msgspec.Struct, key: str) -> None:
        """Keep trying until the bus has it; doubled and held back as asked."""
        encoded = encode(data, id=key, source="test", time=now())
        copies = 2 if self.random.random() < self.double else 1
        for copy in range(copies):
            headers = encoded.headers | {MESSAGE_ID_HEADER: f"{key}@{copy}"}  # two copies for the server, one for us
            if self.late_s:
                self._spawn(self._later(subject, encoded.body, headers, self.random.uniform(0, self.late_s)))
            else:
                await self._store(subject, encoded.body, headers)

    async def _later(self, subject: str, body: bytes, headers: dict[str, str], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        await self._store(subject, body, headers)

    async def _store(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        while True:
            try:
                await self.bus.publish_raw(subject, body, headers)
                self.sent.append(headers["ce-id"])  # the bus has acknowledged it
                return
            except BusUnavailable:
                await asyncio.sleep(0.1)

    def _spawn(self, doing: Awaitable[None]) -> None:
        self._tasks = [task for task in self._tasks if not task.done() or task.exception() is not None]
        self._tasks.append(asyncio.ensure_future(doing))  # type: ignore[arg-type]

    async def finish(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- observing ------------------------------------------------------------------------------------------------

    async def listen(self) -> None:
        async def note(message: Message) -> None:
            self.published.append((message.id, msgspec.json.encode(message.data)))

        await self.bus.consume(Consumer(durable="listener", stream="VERDICT", subjects=("goodput.verdict.>",)), note)

    @property
    def chain(self) -> list[Verdict]:
        """What is on the bus, in order of version."""
        verdicts = [msgspec.json.decode(body, type=Verdict) for _, body in self.published]
        return sorted(verdicts, key=lambda v: (v.id, v.version))

    async def until(self, true: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + WITHIN_S
        while not true():
            self._check()
            logs = "\n".join(each.log.read_text()[-4000:] for each in self.correlators)
            assert time.monotonic() < ends_s, f"published: {self.published}\nreports sent: {self.seq}\n{logs}"
            await asyncio.sleep(0.05)

    def _check(self) -> None:
        for each in self.correlators:
            each.check()
        for task in self._tasks:
            if task.done() and not task.cancelled() and (error := task.exception()):
                raise error

    def opened(self) -> bool:
        return bool(self.chain)

    def resolved(self) -> bool:
        return any(each.state is VerdictState.RESOLVED for each in self.chain)

    async def rows(self, statement: str) -> list[Any]:
        connection = await asyncpg.connect(self.postgres.url.replace("+asyncpg", ""))
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()

    async def check_one_chain(self) -> list[Verdict]:
        """One incident, one verdict, each version once, in the store and on the bus alike; and no message lost."""
        await self.finish()
        stored = await self.rows("SELECT id, version, latest, body FROM correlator.verdicts ORDER BY id, version")
        assert len({row["id"] for row in stored}) == 1
        assert [row["version"] for row in stored] == list(range(1, len(stored) + 1))
        assert [row["latest"] for row in stored] == [False] * (len(stored) - 1) + [True]
        await self.until(lambda: len(self.published) >= len(stored))
        assert sorted(self.published) == sorted((f"{row['id']}.{row['version']}", row["body"]) for row in stored)
        missing = set(self.sent)
        while missing:  # the last messages are still on their way
            rows = await self.rows("SELECT split_part(id, '#', 1) AS id FROM correlator.evidence")
            missing -= {row["id"] for row in rows}
            await asyncio.sleep(0.1)
        return self.chain


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    nats, postgres = EmbeddedNats(tmp_path / "nats"), EmbeddedPostgres(tmp_path / "postgres", fsync=False)
    await asyncio.gather(nats.start(), postgres.start())
    bus = await JetStreamBus.connect(nats.url, name="world")
    world = World(nats, postgres, tmp_path, bus)
    try:
        yield world
    finally:
        await world.finish()
        for each in world.correlators:
            if each.process is not None and each.process.returncode is None:
                await each.kill()
        await bus.close()
        await asyncio.gather(nats.stop(), postgres.stop())


async def healthy_for(world: World, reports: int) -> None:
    since = world.seq
    await world.until(lambda: world.seq >= since + reports)


async def test_a_stalled_job_gets_its_culprit_on_the_bus_and_over_rest_and_the_process_stops_cleanly(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    await world.begin()
    await healthy_for(world, 20)
    await world.gpu_falls_off()
    await world.until(world.opened)
    first = world.chain[0]
    assert (first.fault_class, first.culprit.component, first.job) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0", "j")
    assert first.evidence and first.evidence[0].excerpt == XID_79
    answer = await correlator.get(f"/v1/verdicts/{first.id}/versions")
    assert world.published[0][1] in answer.content
    job = (await correlator.get("/v1/jobs/j")).json()
    assert (job["job"]["state"], [rank["host"] for rank in job["ranks"]]) == ("stalled", ["h0", "h1", "h2", "h3"])
    evidence = (await correlator.get(f"/v1/evidence/{quote(first.evidence[0].event_id)}")).json()
    assert evidence["fact"]["excerpt"] == XID_79
    metrics = (await correlator.get("/metrics")).text
    assert 'goodput_correlator_verdicts_total{fault_class="gpu_off_bus",state="open"} 1.0' in metrics
    world.stalled = False
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert chain[-1].state is VerdictState.RESOLVED
    assert await correlator.kill(signal.SIGTERM) == 0


async def test_kill_minus_nine_at_random_moments_leaves_one_chain_and_loses_nothing(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    await world.begin()
    await healthy_for(world, 10)
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
    await healthy_for(world, 10)
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


async def test_poison_doubles_and_late_messages_change_nothing(world: World) -> None:
    correlator = world.correlator()
    await correlator.start()
    await correlator.active()
    await world.listen()
    world.double, world.late_s = 0.3, 0.3
    await world.begin()
    await healthy_for(world, 10)
    good = {"ce-specversion": "1.0", "ce-source": "t", "ce-time": "2026-01-01T00:00:00Z"}
    poison: Iterable[tuple[bytes, dict[str, str]]] = (
        (b"\x80\x02 not JSON", good | {"ce-id": "p1", "ce-type": "goodput.telemetry.batch.v1"}),
        (b"{}", good | {"ce-id": "p2", "ce-type": "goodput.telemetry.unheard.of.v9"}),
        (b'{"fabric":"f","host":7}', good | {"ce-id": "p3", "ce-type": "goodput.telemetry.batch.v1"}),
        (b"{}", {}),
    )
    for body, headers in poison:
        await world.bus.publish_raw(subjects.telemetry("f", "h0", "rdma"), body, headers)
    other = RankProgress(fabric="g", job="j", rank=0, host="h0", seq=1, at=now())
    await world.bus.publish(subjects.job("f", "j", "rank_progress"), other, id="p5", source="t")
    await world.gpu_falls_off()
    await world.until(world.opened)
    world.stalled = False
    await world.until(world.resolved)
    chain = await world.check_one_chain()
    assert (chain[0].fault_class, chain[0].culprit.component) == (FaultClass.GPU_OFF_BUS, "gpu:h2/0")
    reasons = [each["reason"] for each in (await correlator.get("/v1/rejected")).json()["items"]]
    assert len(reasons) == 5
    for part in ("not JSON", "unheard.of", "host", "ce-type is missing", "field fabric is 'g'"):
        assert any(part in reason for reason in reasons), (part, reasons)


async def test_a_standby_waits_says_so_and_takes_over(world: World) -> None:
    active, standby = world.correlator(), world.correlator()
    await active.start()
    await active.active()
    await standby.start()
    assert "standby" in await standby.not_ready()
    await world.listen()
    await world.begin()
    await healthy_for(world, 10)
    await world.gpu_falls_off()
    await active.kill()
    await standby.active()
    await world.until(world.opened)
    assert len((await standby.get("/v1/verdicts")).json()["items"]) == 1
    world.stalled = False
    await world.until(world.resolved)
    await world.check_one_chain()
