"""The correlator's REST and event stream on a real Postgres: a server, and a small world to ask about."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from goodput_common.bus.memory import MemoryBus
from goodput_common.contracts.ids import host_id, kind_of
from goodput_common.contracts.job import RankProgress, RankRegistered
from goodput_common.contracts.telemetry import Event, EventName
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_common.contracts.verdict import (
    Action,
    ActionKind,
    Affected,
    Alternative,
    Culprit,
    Evidence,
    Explained,
    FaultClass,
    Verdict,
    VerdictState,
)
from goodput_common.http.auth import Auth
from goodput_common.http.server import HttpServer
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease
from goodput_common.store.migrate import upgrade
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.api import app as api
from goodput_correlator.adapters.api.context import Context
from goodput_correlator.adapters.api.events import EventFeed
from goodput_correlator.adapters.postgres import PostgresStore
from goodput_correlator.adapters.queries import Queries
from goodput_correlator.application.placement import JobBoard
from goodput_correlator.application.ports import Registration, Reign, Tick, Write
from goodput_correlator.domain.case import Observed

T0 = datetime(2026, 1, 1, tzinfo=UTC)
TOKENS = {
    "operator-operator": {"role": "operator", "name": "op"},
    "tenant-of-red-job": {"role": "tenant", "name": "red team", "jobs": ["redjob"]},
    "tenant-of-nothing": {"role": "tenant", "name": "new team", "jobs": ["notyet"]},
}
OPERATOR, RED, NOTHING = ({"Authorization": f"Bearer {token}"} for token in TOKENS)
HOSTS = ("red0", "red1", "blue0", "blue1")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def fabric() -> TopologySnapshot:
    """red0 and blue0 under leaf0, red1 and blue1 under leaf1, both leaves under spine0; leaf2 and spine1 carry only blue."""
    components: list[str] = ["switch:leaf0", "switch:leaf1", "switch:spine0", "switch:leafblue"]
    edges: list[tuple[str, str, Relation]] = []
    for leaf, other in (("leaf0", "spine0"), ("leaf1", "spine0"), ("leafblue", "spine0")):
        up, down = f"port:{leaf}/up", f"port:{other}/{leaf}"
        components += [up, down]
        edges += [(up, f"switch:{leaf}", Relation.PART_OF), (down, f"switch:{other}", Relation.PART_OF)]
        edges.append((up, down, Relation.CABLED))
    for host in HOSTS:
        leaf = f"leaf{host[-1]}"
        gpu, nic, port = f"gpu:{host}/0", f"nic:{host}/eth0/1", f"port:{leaf}/{host}"
        components += [host_id(host), gpu, nic, port]
        edges += [(gpu, host_id(host), Relation.PART_OF), (nic, host_id(host), Relation.PART_OF)]
        edges += [(port, f"switch:{leaf}", Relation.PART_OF), (nic, port, Relation.CABLED), (gpu, nic, Relation.RAIL)]
    return TopologySnapshot(
        fabric="f",
        source="test",
        version=1,
        at=T0,
        components=tuple(ComponentRecord(id=each, kind=kind_of(each)) for each in components),
        edges=tuple(EdgeRecord(a=a, b=b, relation=relation) for a, b, relation in edges),
    )


def xid(key: str, host: str, seconds: float, excerpt: str = "Xid 79") -> Observed:
    fact = Event(component=f"gpu:{host}/0", name=EventName.XID, observed_at=at(seconds), excerpt=excerpt)
    return Observed(key, host, "kernel_log", at(seconds), at(seconds), fact)


def registered(job: str, rank: int, host: str) -> Write:
    body = RankRegistered(fabric="f", job=job, rank=rank, world_size=2, host=host, pid=rank + 1, at=T0, gpu=0)
    seen = Observed(f"reg/{job}/{rank}", host, "agent", T0, at(0.1), body)
    return Write(observed=(seen,), registrations=(Registration(id=seen.id, received_at=seen.received_at, body=body),))


def progress(job: str, rank: int, host: str, step: int) -> Observed:
    fact = RankProgress(fabric="f", job=job, rank=rank, host=host, seq=step, at=at(step), step=step, phase="forward")
    return Observed(f"progress/{job}/{rank}/{step}", host, "agent", at(step), at(step), fact)


def verdict(key: str, job: str | None, component: str, host: str | None, version: int = 1, **changes: Any) -> Verdict:
    base = Verdict(
        id=key,
        version=version,
        incident=f"incident-{key}",
        fabric="f",
        job=job,
        state=VerdictState.OPEN,
        fault_class=FaultClass.GPU_OFF_BUS,
        culprit=Culprit(component=component, kind=kind_of(component), host=host, ranks=(0,)),
        confidence=0.9,
        alternatives=(
            Alternative(
                component="gpu:blue1/0",
                fault_class=FaultClass.GPU_OFF_BUS,
                confidence=0.1,
                because="it leaves the stall of rank:red/0 on red1 unexplained",
            ),
            Alternative(component="gpu:red1/0", fault_class=FaultClass.GPU_OFF_BUS, confidence=0.05),
        ),
        evidence=(
            Evidence(event_id="e-red", component="gpu:red0/0", excerpt="as on blue0", observed_at=T0, why="bluejob too"),
            Evidence(event_id="e-blue", component="gpu:blue0/0", excerpt="x", observed_at=T0, why="w"),
        ),
        explained=(
            Explained(component="rank:bluejob/1", symptom="waits", because="b"),
            Explained(component="rank:redjob/1", symptom="waits like blue1", because="of gpu:blue0/0"),
        ),
        affected=Affected(jobs=("bluejob", "redjob"), ranks=(0, 1), hosts=HOSTS),
        action=Action(kind=ActionKind.SWAP_NODE, target=component, reason="not blue1, it is healthy"),
        first_evidence_at=at(1),
        detected_at=at(2),
        published_at=at(2 + version),
        diagnosed_by="gpu_off_bus/1",
        unknown=("collector of blue1 is silent",),
    )
    return msgspec.structs.replace(base, **changes)


@dataclass
class Rig:
    store: PostgresStore
    reign: Reign
    bus: MemoryBus
    client: httpx.AsyncClient
    ticked_to: datetime | None = None

    operator, red, nothing = OPERATOR, RED, NOTHING
    verdict = staticmethod(verdict)
    fabric = staticmethod(fabric)
    at = staticmethod(at)

    async def decide(self, *verdicts: Verdict, progress: JobBoard | None = None) -> None:
        now = self.ticked_to + timedelta(seconds=1) if self.ticked_to else at(10)
        jobs = progress.take_changed() if progress else ()
        assert (
            await self.store.commit(self.reign, Tick(previous=self.ticked_to, now=now, verdicts=verdicts, jobs=jobs)) == ()
        )
        self.ticked_to = now

    async def get(self, path: str, headers: dict[str, str] = OPERATOR, **params: Any) -> Any:
        answer = await self.client.get(path, headers=headers, params=params)
        assert answer.status_code == 200, (path, answer.text)
        return answer.json()

    async def events(self, headers: dict[str, str], count: int, **params: Any) -> list[tuple[str, str, Any]]:
        """(id, event, data) of the first `count` events."""
        found: list[tuple[str, str, Any]] = []
        async with self.client.stream("GET", "/v1/events", headers=headers, params=params) as answer:
            assert answer.status_code == 200
            fields: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    found.append((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
                    fields = {}
                    if len(found) >= count:
                        break
        return found

    async def walk(self, path: str, *, headers: dict[str, str] = OPERATOR, limit: int, **params: Any) -> AsyncIterator[Any]:
        """Page after page, to the end."""
        cursor = None
        while True:
            page = await self.get(path, headers, limit=limit, **params, **({"cursor": cursor} if cursor else {}))
            yield page
            cursor = page["next"]
            if cursor is None:
                return


@pytest.fixture
async def rig(fresh_database: str) -> AsyncIterator[Rig]:
    clock, tasks = SystemClock(), Tasks()
    engine = create_engine(fresh_database)
    await upgrade(engine, "goodput_correlator", "correlator")
    lease = Lease(engine, schema.lease, service="correlator", fabric="f", holder="test", retry_s=0.05)
    token = await lease.acquire()
    bus, queries = MemoryBus(clock), Queries(engine, "f")
    feed = EventFeed(queries, clock=clock, tasks=tasks)
    app = api.create(
        version="1",
        context=Context(queries=queries, bus=bus, clock=clock, fabric="f"),
        feed=feed,
        health=Health(),
        auth=Auth.from_json(json.dumps(TOKENS)),
        metrics=Metrics(process=False),
    )
    server = HttpServer(app, host="127.0.0.1", port=0, tasks=tasks)
    await feed.start()
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
        rig = Rig(PostgresStore(engine, lease), Reign("f", token), bus, client)
        yield rig
    await server.stop_pulling()
    await server.drain()
    await server.close()
    await feed.close()
    await tasks.close()
    await lease.release()
    await engine.dispose()


@pytest.fixture
async def world(rig: Rig) -> Rig:
    """Two jobs of two ranks, on neighbouring hosts, each with a verdict; and one verdict about the switch between them."""
    await rig.store.write(rig.reign, [Write(topology=(fabric(),))])
    board = JobBoard()
    for job in ("redjob", "bluejob"):
        for rank in range(2):
            host = f"{job.removesuffix('job')}{rank}"
            write = registered(job, rank, host)
            reports = tuple(progress(job, rank, host, step) for step in range(1, 4 + rank))
            await rig.store.write(rig.reign, [write, Write(observed=reports)])
            for each in (*write.observed, *reports):
                board.observe(each)
    await rig.store.write(
        rig.reign,
        [Write(observed=(xid("e-red", "red0", 4, "unlike blue0"), xid("e-blue", "blue0", 4), xid("e-loose", "red0", 5)))],
    )
    red = verdict("v-red", "redjob", "gpu:red0/0", "red0")
    blue = verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0", fault_class=FaultClass.NVLINK)
    await rig.decide(red, blue, progress=board)
    await rig.decide(verdict("v-switch", None, "switch:leafblue", None, fault_class=FaultClass.SWITCH_FAULT))
    await rig.decide(
        msgspec.structs.replace(red, version=2, state=VerdictState.REVISED, confidence=0.95, published_at=at(30))
    )
    return rig
