"""Recording a live bus, and going on where an earlier recording ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.codec import encode
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.bus.recording import read_records
from goodput_common.bus.tail import TailReport, record
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankExited
from goodput_common.embedded import EmbeddedNats

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = subjects.job("f", "j", "rank_exited")


async def publish(bus: JetStreamBus, *ranks: int) -> None:
    for rank in ranks:
        data = RankExited(fabric="f", job="j", rank=rank, host="h", at=NOW)
        await bus.publish(SUBJECT, data, id=f"m{rank}", source="test", time=NOW)


@pytest.fixture
async def bus(clean_streams: str) -> AsyncIterator[JetStreamBus]:
    made = await JetStreamBus.connect(clean_streams, name="test", registry=CollectorRegistry())
    await provision(made)
    yield made
    await made.close()


class Running:
    """A recording in the background."""

    def __init__(self, url: str, path: Path, **options: object) -> None:
        self.until, self.ready = asyncio.Event(), asyncio.Event()
        self.report = TailReport()
        self.task = asyncio.create_task(
            record(url, path, ("JOB", "VERDICT"), until=self.until, ready=self.ready, report=self.report, **options)  # type: ignore[arg-type]
        )

    async def started(self) -> Running:
        waiting = asyncio.create_task(self.ready.wait())
        await asyncio.wait({self.task, waiting}, return_when=asyncio.FIRST_COMPLETED, timeout=20)
        assert self.ready.is_set(), self.task
        return self

    async def stop(self) -> TailReport:
        self.until.set()
        return await asyncio.wait_for(self.task, 20)


async def test_what_is_published_while_it_runs_is_recorded(bus: JetStreamBus, clean_streams: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    await publish(bus, 1, 2)
    running = await Running(clean_streams, path).started()
    await publish(bus, *range(3, 400))
    report = await running.stop()
    assert [message.data.rank for message in read_records(path)] == list(range(3, 400))
    assert (report.written, report.last["JOB"]) == (397, 399)


async def test_a_start_sequence_reaches_back(bus: JetStreamBus, clean_streams: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    await publish(bus, 1, 2, 3)
    running = await Running(clean_streams, path, start={"JOB": 2}).started()
    await running.stop()
    first = next(read_records(path))
    assert (first.data.rank, first.sequence, first.stream, first.subject, first.id) == (2, 2, "JOB", SUBJECT, "m2")
    assert [message.data.rank for message in read_records(path)] == [2, 3]


async def test_resume_goes_on_behind_the_last_recorded_message(
    bus: JetStreamBus, clean_streams: str, tmp_path: Path
) -> None:
    path = tmp_path / "log.jsonl"
    running = await Running(clean_streams, path).started()
    await publish(bus, 1, 2)
    await running.stop()
    await publish(bus, 3)
    with path.open("ab") as file:
        file.write(b'{"stream":"JOB","seq')
    running = await Running(clean_streams, path, resume=True).started()
    await publish(bus, 4)
    await running.stop()
    assert [message.data.rank for message in read_records(path)] == [1, 2, 3, 4]


async def test_what_cannot_be_decoded_is_left_out_and_counted(bus: JetStreamBus, clean_streams: str, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    running = await Running(clean_streams, path).started()
    wire = encode(RankExited(fabric="f", job="j", rank=1, host="h", at=NOW), id="x", source="t", time=NOW)
    await bus.publish_raw(SUBJECT, b"junk", wire.headers)
    await publish(bus, 2)
    report = await running.stop()
    assert [message.data.rank for message in read_records(path)] == [2]
    assert (report.written, report.undecodable) == (1, 1)


async def test_a_killed_server_leaves_no_hole_and_no_double(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    async with EmbeddedNats(tmp_path / "nats") as server:
        bus = await JetStreamBus.connect(server.url, name="t", registry=CollectorRegistry(), publish_timeout_s=15.0)
        await provision(bus)
        running = await Running(server.url, path).started()
        await publish(bus, *range(100))
        server.kill()
        await server.restart()
        await publish(bus, *range(100, 200))
        await running.stop()
        await bus.close()
    assert [message.data.rank for message in read_records(path)] == list(range(200))
