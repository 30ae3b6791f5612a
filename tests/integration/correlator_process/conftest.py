"""The correlator as a process on a real NATS and Postgres, and a world that it watches.

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
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

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
from goodput_common.contracts.verdict import Verdict, VerdictState
from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres

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
    xid_79: str = XID_79
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

    async def healthy_for(self, reports: int) -> None:
        since = self.seq
        await self.until(lambda: self.seq >= since + reports)

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
