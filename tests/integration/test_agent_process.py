"""The agent in a process of its own, on a real NATS server: what arrives, whatever way the process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited, RankProgress, RankRegistered
from goodput_common.contracts.recovery import AgentCommand, AgentCommandKind, AgentReply, AgentReplyStatus

LOOP = """
import pathlib, sys, time
import goodput_agent
agent = goodput_agent.attach()
while not pathlib.Path(sys.argv[1]).exists():
    with agent.step(), agent.phase("forward"):
        time.sleep(0.01)
"""


class Job:
    """One rank as a process, and what the bus has of it."""

    def __init__(self, url: str, bus: JetStreamBus, run_dir: Path) -> None:
        self.name = f"job-{uuid.uuid4().hex[:8]}"
        self.bus = bus
        self.data: list[Any] = []
        self._came = asyncio.Event()
        self._run_dir = run_dir
        self._environment = {
            **os.environ,
            "GOODPUT_NATS_URL": url,
            "GOODPUT_JOB": self.name,
            "GOODPUT_HOST": "h1",
            "GOODPUT_RUN_DIR": str(run_dir),
            "RANK": "3",
            "WORLD_SIZE": "8",
        }

    async def listen(self) -> None:
        consumer = Consumer(durable=self.name, stream="JOB", subjects=(subjects.job("default", self.name, "x")[:-1] + "*",))
        await self.bus.consume(consumer, self._take)

    async def start(self, code: str) -> asyncio.subprocess.Process:
        """Returns once the loop moves and is heard; it goes on until `stop`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, str(self._run_dir / "stop")), env=self._environment
        )
        await self.until(moving)
        return process

    def stop(self) -> None:
        (self._run_dir / "stop").touch()

    async def until(self, condition: Callable[[list[Any]], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition(self.data):
                self._came.clear()
                await self._came.wait()

    @property
    def registration(self) -> Path:
        return self._run_dir / "ranks" / f"{self.name}.3.json"

    async def _take(self, message: Message) -> None:
        self.data.append(message.data)
        self._came.set()


@pytest.fixture
async def job(nats_url: str, tmp_path: Path) -> AsyncIterator[Job]:
    bus = await JetStreamBus.connect(nats_url, name="test")
    await provision(bus)
    job = Job(nats_url, bus, tmp_path)
    await job.listen()
    yield job
    await bus.close()


def moving(data: list[Any]) -> bool:
    return any(isinstance(each, RankProgress) and each.step > 5 for each in data)


def exited(data: list[Any]) -> bool:
    return any(isinstance(each, RankExited) for each in data)


async def test_a_loop_that_ends_says_so_last(job: Job) -> None:
    process = await job.start(LOOP)
    job.stop()
    assert await process.wait() == 0
    await job.until(exited)
    assert isinstance(job.data[0], RankRegistered)
    assert (job.data[0].rank, job.data[0].world_size, job.data[0].host) == (3, 8, "h1")
    assert job.data[-1].clean
    assert not job.registration.exists()


async def test_an_exception_is_the_reason(job: Job) -> None:
    process = await job.start(LOOP + "\nraise RuntimeError('Connection closed by peer [10.0.0.3]:77')")
    job.stop()
    assert await process.wait() == 1
    await job.until(exited)
    last = next(each for each in job.data if isinstance(each, RankExited))
    assert (last.clean, last.reason) == (False, "RuntimeError: Connection closed by peer [10.0.0.3]:77")
    assert job.registration.exists()


async def test_a_process_that_is_killed_says_nothing(job: Job) -> None:
    process = await job.start(LOOP)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await asyncio.sleep(1.0)
    assert not exited(job.data)
    assert job.registration.exists()


async def test_a_worker_forked_from_a_rank_does_not_speak_for_it(job: Job) -> None:
    code = (
        LOOP
        + "\nimport os\npid = os.fork()\nif pid == 0:\n    agent.step_end()\n    raise SystemExit(3)\nos.waitpid(pid, 0)\n"
    )
    process = await job.start(code)
    job.stop()
    assert await process.wait() == 0
    await job.until(exited)
    assert [each.clean for each in job.data if isinstance(each, RankExited)] == [True]


async def test_a_pause_holds_the_loop_until_it_is_resumed(job: Job) -> None:
    process = await job.start(LOOP)
    subject = subjects.agent("default", job.name, 3)

    async def ask(kind: AgentCommandKind, number: int) -> AgentReply:
        command = AgentCommand(id=f"c{number}", kind=kind, fabric="default", job=job.name, rank=3, fencing_token=number)
        reply = await job.bus.request(subject, command, id=f"c{number}", source="test", timeout_s=10)
        assert isinstance(reply, AgentReply)
        return reply

    assert (await ask(AgentCommandKind.PAUSE, 1)).status is AgentReplyStatus.ACCEPTED
    await job.until(lambda data: isinstance(data[-1], RankProgress) and data[-1].paused)
    held_at = job.data[-1].step
    await job.until(lambda data: data[-1].paused and data[-1].seq > 0 and data[-1].steps == 0)
    assert job.data[-1].step == held_at
    assert (await ask(AgentCommandKind.RESUME, 2)).status is AgentReplyStatus.DONE
    await job.until(lambda data: isinstance(data[-1], RankProgress) and data[-1].step > held_at + 1)
    assert (await ask(AgentCommandKind.PAUSE, 1)).status is AgentReplyStatus.ACCEPTED  # the same id again: nothing happens
    assert (await ask(AgentCommandKind.DUMP, 3)).status is AgentReplyStatus.REFUSED  # torch is not there
    process.send_signal(signal.SIGKILL)
    await process.wait()
