"""Pages put together are the list: whatever comes or changes meanwhile, nothing is left out or comes twice."""

from __future__ import annotations

from typing import Any

import msgspec

from goodput_common.contracts.ids import kind_of
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.topology import ComponentRecord
from goodput_common.contracts.verdict import FaultClass, VerdictState
from goodput_correlator.application.ports import Registration, Write
from goodput_correlator.domain.case import Observed

Rig = Any  # of conftest


async def test_pages_are_whole_while_new_verdicts_come_in(world: Rig) -> None:
    first = await world.get("/v1/verdicts", limit=2)
    await world.decide(world.verdict("v-later", "redjob", "gpu:red1/0", "red1"))
    second = await world.get("/v1/verdicts", limit=2, cursor=first["next"])
    assert [each["id"] for each in first["items"] + second["items"]] == ["v-red", "v-switch", "v-blue"]
    assert second["next"] is None
    other = await world.client.get("/v1/verdicts", headers=world.operator, params={"cursor": first["next"], "job": "redjob"})
    assert (other.status_code, other.headers["content-type"]) == (400, "application/problem+json")


async def test_a_verdict_revised_during_the_walk_is_listed_once_as_it_was(world: Rig) -> None:
    first = await world.get("/v1/verdicts", limit=1)
    for version in (2, 3):
        base = world.verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0", fault_class=FaultClass.NVLINK)
        await world.decide(msgspec.structs.replace(base, version=version, state=VerdictState.REVISED))
    rest = await world.get("/v1/verdicts", limit=50, cursor=first["next"])
    shown = [(each["id"], each["version"]) for each in first["items"] + rest["items"]]
    assert shown == [("v-red", 2), ("v-switch", 1), ("v-blue", 1)]
    anew = [(each["id"], each["version"]) for each in (await world.get("/v1/verdicts"))["items"]]
    assert anew == [("v-blue", 3), ("v-red", 2), ("v-switch", 1)]


async def test_an_incident_that_changes_or_opens_during_the_walk_shifts_nothing(world: Rig) -> None:
    seen: list[str] = []
    base = world.verdict("v-red", "redjob", "gpu:red0/0", "red0")
    version = 3
    async for page in world.walk("/v1/incidents", limit=1):
        seen += [each["id"] for each in page["items"]]
        await world.decide(
            msgspec.structs.replace(base, version=version, state=VerdictState.REVISED),
            world.verdict(f"v-later-{version}", "redjob", "gpu:red1/0", "red1"),
        )
        version += 1
    assert seen == ["incident-v-switch", "incident-v-blue", "incident-v-red"]


async def register(world: Rig, job: str, seconds: float) -> None:
    body = RankRegistered(fabric="f", job=job, rank=0, world_size=1, host="red0", pid=1, at=world.at(seconds))
    seen = Observed(f"reg/{job}", "red0", "agent", body.at, body.at, body)
    await world.store.write(
        world.reign,
        [Write(observed=(seen,), registrations=(Registration(id=seen.id, received_at=seen.received_at, body=body),))],
    )


async def test_jobs_in_pages_while_others_begin(world: Rig) -> None:
    for name in ("c", "e"):
        await register(world, name, 1)
    seen: list[str] = []
    async for page in world.walk("/v1/jobs", limit=2):
        seen += [each["job"] for each in page["items"]]
        await register(world, f"a{len(seen)}", 2)
    assert seen == ["bluejob", "c", "e", "redjob"]


async def test_jobs_of_one_state_in_pages(world: Rig) -> None:
    for number in range(5):
        await register(world, f"j{number}", 1)
    pages = [page async for page in world.walk("/v1/jobs", limit=2, state="unknown")]
    assert [[each["job"] for each in page["items"]] for page in pages] == [["j0", "j1"], ["j2", "j3"], ["j4"]]
    assert [each["job"] for each in (await world.get("/v1/jobs", state="stalled"))["items"]] == ["bluejob", "redjob"]
    assert (await world.get("/v1/jobs", state="running")) == {"items": [], "next": None}


async def test_the_pages_of_the_topology_are_the_graph_and_no_edge_comes_before_its_ends(world: Rig) -> None:
    whole = await world.get("/v1/topology")
    assert (whole["next"], len(whole["edges"])) == (None, len(world.fabric().edges))
    for limit in (1, 4, 7):
        known: list[str] = []
        edges: list[Any] = []
        names = set()
        async for page in world.walk("/v1/topology", limit=limit):
            known += [each["id"] for each in page["components"]]
            assert len(page["components"]) <= limit
            assert all(edge["a"] in known and edge["b"] in known for edge in page["edges"])
            edges += page["edges"]
            names.add(page["graph"])
        assert known == [each["id"] for each in whole["components"]] == sorted(known)
        assert sorted(map(str, edges)) == sorted(map(str, whole["edges"]))
        assert names == {whole["graph"]}


async def test_the_topology_changes_during_the_walk(world: Rig) -> None:
    before = [each["id"] for each in (await world.get("/v1/topology"))["components"]]
    first = await world.get("/v1/topology", limit=10)
    more = tuple(ComponentRecord(id=each, kind=kind_of(each)) for each in ("gpu:blue0/1", "switch:zz"))
    graph = world.fabric()
    grown = msgspec.structs.replace(graph, version=2, components=(*graph.components, *more))
    await world.store.write(world.reign, [Write(topology=(grown,))])
    rest = await world.get("/v1/topology", limit=500, cursor=first["next"])
    seen = [each["id"] for each in first["components"] + rest["components"]]
    assert len(seen) == len(set(seen))
    assert set(before) <= set(seen)
    assert "switch:zz" in seen
    assert first["graph"] != rest["graph"]


async def test_the_topology_by_kind_and_host_and_its_tag(world: Rig) -> None:
    gpus = await world.get("/v1/topology", kind="gpu")
    assert {each["id"] for each in gpus["components"]} == {f"gpu:{host}/0" for host in ("red0", "red1", "blue0", "blue1")}
    red0 = await world.get("/v1/topology", host="red0")
    assert {each["id"] for each in red0["components"]} == {"host:red0", "gpu:red0/0", "nic:red0/eth0/1"}
    assert len(red0["edges"]) == 3
    first = await world.client.get("/v1/topology", headers=world.operator, params={"limit": 3})
    tag = {**world.operator, "If-None-Match": first.headers["etag"]}
    assert (await world.client.get("/v1/topology", headers=tag, params={"limit": 3})).status_code == 304
    following = {"limit": 3, "cursor": first.json()["next"]}
    assert (await world.client.get("/v1/topology", headers=tag, params=following)).status_code == 200
    other = await world.client.get("/v1/topology", headers=world.operator, params={**following, "kind": "gpu"})
    assert other.status_code == 400


INCIDENTS: tuple[tuple[dict[str, str], list[str]], ...] = (
    ({"fault_class": "nvlink"}, ["incident-v-blue"]),
    ({"component": "switch:leafblue"}, ["incident-v-switch"]),
    ({"job": "nojob"}, []),
    ({"since": "2026-01-01T00:00:03Z"}, ["incident-v-switch", "incident-v-blue", "incident-v-red"]),
    ({"until": "2026-01-01T00:00:03Z"}, []),
    ({"since": "2026-01-01T00:00:03.5"}, []),
)


async def test_filters_of_incidents_and_jobs(world: Rig) -> None:
    for params, expected in INCIDENTS:
        assert [each["id"] for each in (await world.get("/v1/incidents", **params))["items"]] == expected, params
    for params, jobs in (
        ({"host": "blue1"}, ["bluejob"]),
        ({"since": "2026-01-01T00:00:04Z"}, ["bluejob", "redjob"]),
        ({"until": "2026-01-01T00:00:04Z"}, []),
    ):
        assert [each["job"] for each in (await world.get("/v1/jobs", **params))["items"]] == jobs, params
    assert (await world.get("/v1/verdicts", until="2026-01-01T00:00:30Z", all_versions="true"))["items"][-1]["id"] == "v-red"


async def test_a_tenants_filters_and_pages_tell_nothing_of_others(world: Rig) -> None:
    for params in ({"job": "bluejob"}, {"component": "switch:leafblue"}):
        assert (await world.get("/v1/incidents", world.red, **params))["items"] == []
    assert (await world.get("/v1/jobs", world.red, host="blue0"))["items"] == []
    assert (await world.get("/v1/topology", world.red, host="blue0"))["components"] == []
    shown = [
        each["id"] async for page in world.walk("/v1/topology", headers=world.red, limit=2) for each in page["components"]
    ]
    assert shown == [each["id"] for each in (await world.get("/v1/topology", world.red))["components"]]
    assert not [each for each in shown if "blue" in each]
