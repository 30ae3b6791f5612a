"""The correlator's REST and event stream on a real Postgres: what is answered, and what a tenant is never told."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest

from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Consumer
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import ComponentKind, host_id, kind_of, link_id
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
from goodput_correlator.bootstrap import openapi
from goodput_correlator.domain.case import Observed

T0 = datetime(2026, 1, 1, tzinfo=UTC)
TOKENS = {
    "operator-operator": {"role": "operator", "name": "op"},
    "tenant-of-red-job": {"role": "tenant", "name": "red team", "jobs": ["redjob"]},
    "tenant-of-nothing": {"role": "tenant", "name": "new team", "jobs": ["notyet"]},
}
OPERATOR, RED, NOTHING = ({"Authorization": f"Bearer {token}"} for token in TOKENS)
FOREIGN = re.compile(r"blue", re.IGNORECASE)  # every name of the other tenant has it
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
            Alternative(component="gpu:blue1/0", fault_class=FaultClass.GPU_OFF_BUS, confidence=0.1),
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
    url: str
    ticked_to: datetime | None = None

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
        rig = Rig(PostgresStore(engine, lease), Reign("f", token), bus, client, server.url)
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


# ----------------------------------------------------------------------------------------------------- what is answered


async def test_verdicts_are_listed_newest_first_in_their_newest_version_as_published(world: Rig) -> None:
    listed = (await world.get("/v1/verdicts"))["items"]
    assert [(each["id"], each["version"]) for each in listed] == [("v-red", 2), ("v-switch", 1), ("v-blue", 1)]
    answer = await world.client.get("/v1/verdicts/v-blue", headers=OPERATOR)
    assert answer.content == msgspec.json.encode(
        verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0", fault_class=FaultClass.NVLINK)
    )


FILTERS: tuple[tuple[dict[str, str], list[str]], ...] = (
    ({"job": "bluejob"}, ["v-red", "v-switch", "v-blue"]),
    ({"host": "blue0"}, ["v-blue"]),
    ({"fault_class": "nvlink"}, ["v-blue"]),
    ({"state": "revised"}, ["v-red"]),
    ({"component": "switch:leafblue"}, ["v-switch"]),
    ({"since": "2026-01-01T00:00:30Z"}, ["v-red"]),
    ({"all_versions": "true", "host": "red0"}, ["v-red", "v-red"]),
    ({"host": "nowhere"}, []),
)


async def test_filters_of_verdicts(world: Rig) -> None:
    for params, expected in FILTERS:
        assert [each["id"] for each in (await world.get("/v1/verdicts", **params))["items"]] == expected, params


async def test_pages_are_whole_while_new_verdicts_come_in(world: Rig) -> None:
    first = await world.get("/v1/verdicts", limit=2)
    await world.decide(verdict("v-later", "redjob", "gpu:red1/0", "red1"))
    second = await world.get("/v1/verdicts", limit=2, cursor=first["next"])
    assert [each["id"] for each in first["items"] + second["items"]] == ["v-red", "v-switch", "v-blue"]
    assert second["next"] is None
    other = await world.client.get("/v1/verdicts", headers=OPERATOR, params={"cursor": first["next"], "job": "redjob"})
    assert (other.status_code, other.headers["content-type"]) == (400, "application/problem+json")


async def test_a_poller_gets_304_until_something_changes(world: Rig) -> None:
    tag = (await world.client.get("/v1/verdicts", headers=OPERATOR)).headers["etag"]
    unchanged = await world.client.get("/v1/verdicts", headers={**OPERATOR, "If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    await world.decide(verdict("v-later", "redjob", "gpu:red1/0", "red1"))
    assert (await world.client.get("/v1/verdicts", headers={**OPERATOR, "If-None-Match": tag})).status_code == 200


async def test_all_versions_of_a_verdict_oldest_first(world: Rig) -> None:
    items = (await world.get("/v1/verdicts/v-red/versions"))["items"]
    assert [(each["version"], each["state"]) for each in items] == [(1, "open"), (2, "revised")]


async def test_an_incident_comes_with_its_verdict_and_the_evidence_cited(world: Rig) -> None:
    assert [each["id"] for each in (await world.get("/v1/incidents"))["items"]] == [
        "incident-v-red",
        "incident-v-switch",
        "incident-v-blue",
    ]
    detail = await world.get("/v1/incidents/incident-v-red")
    assert detail["incident"]["version"] == detail["verdict"]["version"] == 2
    assert detail["incident"]["opened_at"] < detail["incident"]["updated_at"]
    assert [each["id"] for each in detail["evidence"]] == ["e-blue", "e-red"]
    assert detail["evidence"][1]["fact"]["excerpt"] == "unlike blue0"


async def test_a_resolved_incident_is_found_by_its_state(world: Rig) -> None:
    base = verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0")
    await world.decide(msgspec.structs.replace(base, version=2, state=VerdictState.RESOLVED, published_at=at(40)))
    resolved = (await world.get("/v1/incidents", state="resolved"))["items"]
    assert [(each["id"], each["resolved_at"]) for each in resolved] == [("incident-v-blue", "2026-01-01T00:00:40Z")]
    assert len((await world.get("/v1/incidents", state="open"))["items"]) == 2


async def test_jobs_show_placement_and_the_last_step_of_each_rank(world: Rig) -> None:
    jobs = (await world.get("/v1/jobs"))["items"]
    assert [(each["job"], each["state"], each["step_min"], each["step_max"]) for each in jobs] == [
        ("bluejob", "stalled", 3, 4),
        ("redjob", "stalled", 3, 4),
    ]
    detail = await world.get("/v1/jobs/redjob")
    assert [(each["rank"], each["host"], each["step"], each["phase"]) for each in detail["ranks"]] == [
        (0, "red0", 3, "forward"),
        (1, "red1", 4, "forward"),
    ]


async def test_the_topology_whole_and_around_a_component(world: Rig) -> None:
    whole = await world.get("/v1/topology")
    assert len(whole["edges"]) == len(fabric().edges)
    near = await world.get("/v1/topology", component="gpu:red0/0", distance=2)
    assert {each["id"] for each in near["components"]} == {
        "gpu:red0/0",
        "host:red0",
        "nic:red0/eth0/1",
        link_id("nic:red0/eth0/1", "port:leaf0/red0"),
    }
    assert not near["truncated"]
    assert (await world.get("/v1/topology", component="switch:spine0", limit=2))["truncated"]
    assert (await world.client.get("/v1/topology", headers=OPERATOR, params={"component": "gpu:x/1"})).status_code == 404


async def test_evidence_by_its_id_also_with_slashes(world: Rig) -> None:
    item = await world.get("/v1/evidence/progress/redjob/0/3")
    assert (item["kind"], item["component"], item["fact"]["step"]) == ("rank_progress", "rank:redjob/0", 3)
    assert (await world.client.get("/v1/evidence/nothing/here", headers=OPERATOR)).status_code == 404


async def test_rejected_messages_are_shown_with_the_reason(world: Rig) -> None:
    subject = subjects.telemetry("f", "h1", "rdma")
    foreign = subjects.telemetry("g", "h1", "rdma")

    async def refuse(_: object) -> None:
        raise AssertionError("never handed out")

    for each in (subject, foreign):
        await world.bus.publish_raw(each, b"\xff junk", {"ce-type": "no.such.type", "ce-id": "m1"})
    subscription = await world.bus.consume(
        Consumer(durable="d", stream="TELEMETRY", subjects=("goodput.telemetry.>",)), refuse
    )
    while await subscription.pending():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    (item,) = (await world.get("/v1/rejected"))["items"]
    assert (item["id"], item["stream"], item["subject"], item["head"]) == (
        "m1",
        "TELEMETRY",
        subject,
        "\N{REPLACEMENT CHARACTER} junk",
    )
    assert "no.such.type" in item["reason"]


# ----------------------------------------------------------------------------------------------------- the event stream


async def read_events(rig: Rig, headers: dict[str, str], count: int, **params: Any) -> list[tuple[str, str, Any]]:
    """(id, event, data) of the first `count` events."""
    found: list[tuple[str, str, Any]] = []
    async with rig.client.stream("GET", "/v1/events", headers=headers, params=params) as answer:
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


async def test_the_stream_resumes_behind_the_last_event_seen_and_goes_on_live(world: Rig) -> None:
    from_start = await read_events(world, {**OPERATOR, "Last-Event-ID": "0"}, 9)
    assert [event for _, event, _ in from_start] == ["hello", *["verdict", "incident"] * 4]
    fourth = from_start[4][0]

    async def later() -> None:
        await asyncio.sleep(0.2)
        await world.decide(verdict("v-later", "redjob", "gpu:red1/0", "red1"))

    writing = asyncio.create_task(later())
    resumed = await read_events(world, {**OPERATOR, "Last-Event-ID": fourth}, 7)
    await writing
    assert resumed[1:5] == from_start[5:9]
    assert resumed[5][2]["id"] == "v-later"


async def test_a_stream_without_an_id_begins_now_and_an_id_that_is_not_kept_is_reset(world: Rig) -> None:
    async def later() -> None:
        await asyncio.sleep(0.3)
        await world.decide(verdict("v-later", "redjob", "gpu:red1/0", "red1"))

    writing = asyncio.create_task(later())
    fresh = await read_events(world, OPERATOR, 2)
    await writing
    assert fresh[1][2]["id"] == "v-later"
    gone = await read_events(world, {**OPERATOR, "Last-Event-ID": "99999"}, 2)
    assert [event for _, event, _ in gone] == ["hello", "reset"]
    bad = await world.client.get("/v1/events", headers={**OPERATOR, "Last-Event-ID": "x"})
    assert bad.status_code == 400


async def test_streams_of_one_kind_and_of_one_job(world: Rig) -> None:
    start = {**OPERATOR, "Last-Event-ID": "0"}
    kinds = [event for _, event, _ in await read_events(world, start, 5, kind="verdict")]
    assert kinds == ["hello"] + ["verdict"] * 4
    blue = await read_events(world, start, 3, kind="verdict", job="bluejob")
    assert [data["id"] for _, event, data in blue if event == "verdict"] == ["v-blue", "v-switch"]


# ----------------------------------------------------------------------------------------------------- who may see what

READABLE = (
    "/v1/verdicts",
    "/v1/verdicts?all_versions=true",
    "/v1/verdicts?job=redjob",
    "/v1/verdicts/v-red",
    "/v1/verdicts/v-red/versions",
    "/v1/verdicts/v-switch",
    "/v1/incidents",
    "/v1/incidents/incident-v-red",
    "/v1/incidents/incident-v-switch",
    "/v1/jobs",
    "/v1/jobs/redjob",
    "/v1/topology",
    "/v1/topology?component=switch:leaf0&distance=10",
    "/v1/evidence/e-red",
    "/v1/evidence/progress/redjob/0/3",
)


async def test_a_tenant_reads_its_own_and_no_name_of_anybody_else(world: Rig) -> None:
    for path in READABLE:
        await check_no_leak(world, path)


async def check_no_leak(world: Rig, path: str) -> None:
    """The tenant's answer has content and no name of the others; the operator's has, or this would prove nothing."""
    answer = await world.client.get(path, headers=RED)
    assert answer.status_code == 200, path
    assert not FOREIGN.search(answer.text), (path, FOREIGN.findall(answer.text))
    assert "red" in answer.text or "v-switch" in answer.text
    assert "blue" in (await world.client.get(path, headers=OPERATOR)).text or path.startswith(
        ("/v1/jobs/red", "/v1/evidence/pro")
    )


HIDDEN = (
    "/v1/verdicts/v-blue",
    "/v1/verdicts/v-blue/versions",
    "/v1/incidents/incident-v-blue",
    "/v1/jobs/bluejob",
    "/v1/evidence/e-blue",
    "/v1/evidence/e-loose",
    "/v1/evidence/progress/bluejob/0/3",
    "/v1/evidence/reg/bluejob/0",
    "/v1/topology?component=gpu:blue0/0",
    "/v1/topology?component=switch:leafblue",
    "/v1/events?job=bluejob",
)


async def test_what_is_not_a_tenants_looks_as_if_it_did_not_exist(world: Rig) -> None:
    for path in HIDDEN:
        answer = await world.client.get(path, headers=RED)
        assert answer.status_code == 404, path
        invented = path
        for name, other in (("v-blue", "v-no"), ("bluejob", "nojob"), ("e-blue", "e-no"), ("e-loose", "e-no")):
            invented = invented.replace(name, other)
        twin = await world.client.get(invented, headers=RED)
        assert {**answer.json(), "instance": "", "request_id": ""} == {**twin.json(), "instance": "", "request_id": ""}


async def test_a_tenants_filter_answers_nothing_about_others(world: Rig) -> None:
    for name, value in (("job", "bluejob"), ("host", "blue0"), ("component", "switch:leafblue")):
        assert (await world.get("/v1/verdicts", RED, **{name: value}))["items"] == []


async def test_a_tenants_verdict_keeps_its_shape_and_its_own_facts(world: Rig) -> None:
    shown = msgspec.convert(await world.get("/v1/verdicts/v-red", RED), Verdict)
    assert shown.culprit == verdict("v-red", "redjob", "gpu:red0/0", "red0").culprit
    assert [each.event_id for each in shown.evidence] == ["e-red"]
    assert shown.evidence[0].excerpt == "as on (elsewhere)"
    assert shown.affected == Affected(jobs=("redjob",), ranks=(0, 1), hosts=("red0", "red1"))
    assert [each.component for each in shown.explained] == ["rank:redjob/1"]
    about_switch = msgspec.convert(await world.get("/v1/verdicts/v-switch", RED), Verdict)
    assert (about_switch.culprit.component, about_switch.culprit.kind) == (None, ComponentKind.SWITCH)


async def test_a_tenants_stream_tells_only_its_own(world: Rig) -> None:
    events = await read_events(world, {**RED, "Last-Event-ID": "0"}, 7)
    assert [event for _, event, _ in events] == ["hello", *["verdict", "incident"] * 3]
    assert not FOREIGN.search(json.dumps(events))


async def test_a_tenant_sees_the_fabric_between_its_hosts(world: Rig) -> None:
    shown = {each["id"] for each in (await world.get("/v1/topology", RED))["components"]}
    assert {
        "host:red0",
        "gpu:red1/0",
        "switch:leaf0",
        "switch:spine0",
        link_id("port:leaf0/up", "port:spine0/leaf0"),
    } <= shown
    assert "switch:leafblue" not in shown
    assert (await world.get("/v1/topology", NOTHING))["components"] == []


async def test_a_tenant_without_a_running_job_sees_nothing(world: Rig) -> None:
    for path in ("/v1/verdicts", "/v1/incidents", "/v1/jobs"):
        assert (await world.get(path, NOTHING))["items"] == []


async def test_rejected_messages_are_not_for_tenants(world: Rig) -> None:
    answer = await world.client.get("/v1/rejected", headers=RED)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")


async def test_every_path_but_health_and_metrics_asks_for_a_token(world: Rig) -> None:
    for path in openapi()["paths"]:
        answer = await world.client.get(re.sub(r"{\w+}", "x", path))
        assert (answer.status_code == 401) == path.startswith("/v1/"), path
