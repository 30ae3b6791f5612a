"""What the correlator answers, to whoever may see everything."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from goodput_common.bus.ports import Consumer
from goodput_common.contracts import subjects
from goodput_common.contracts.ids import link_id
from goodput_common.contracts.verdict import FaultClass, VerdictState

Rig = Any  # of conftest


async def test_verdicts_are_listed_newest_first_in_their_newest_version_as_published(world: Rig) -> None:
    listed = (await world.get("/v1/verdicts"))["items"]
    assert [(each["id"], each["version"]) for each in listed] == [("v-red", 2), ("v-switch", 1), ("v-blue", 1)]
    answer = await world.client.get("/v1/verdicts/v-blue", headers=world.operator)
    assert answer.content == msgspec.json.encode(
        world.verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0", fault_class=FaultClass.NVLINK)
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


async def test_a_poller_gets_304_until_something_changes(world: Rig) -> None:
    tag = (await world.client.get("/v1/verdicts", headers=world.operator)).headers["etag"]
    unchanged = await world.client.get("/v1/verdicts", headers={**world.operator, "If-None-Match": tag})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
    await world.decide(world.verdict("v-later", "redjob", "gpu:red1/0", "red1"))
    assert (await world.client.get("/v1/verdicts", headers={**world.operator, "If-None-Match": tag})).status_code == 200


async def test_all_versions_of_a_verdict_oldest_first(world: Rig) -> None:
    items = (await world.get("/v1/verdicts/v-red/versions"))["items"]
    assert [(each["version"], each["state"]) for each in items] == [(1, "open"), (2, "revised")]


async def test_an_incident_comes_with_its_verdict_and_the_evidence_cited(world: Rig) -> None:
    assert [each["id"] for each in (await world.get("/v1/incidents"))["items"]] == [
        "incident-v-switch",
        "incident-v-blue",
        "incident-v-red",
    ]
    detail = await world.get("/v1/incidents/incident-v-red")
    assert detail["incident"]["version"] == detail["verdict"]["version"] == 2
    assert detail["incident"]["opened_at"] < detail["incident"]["updated_at"]
    assert [each["id"] for each in detail["evidence"]] == ["e-blue", "e-red"]
    assert detail["evidence"][1]["fact"]["excerpt"] == "unlike blue0"


async def test_a_resolved_incident_is_found_by_its_state(world: Rig) -> None:
    base = world.verdict("v-blue", "bluejob", "gpu:blue0/0", "blue0")
    await world.decide(msgspec.structs.replace(base, version=2, state=VerdictState.RESOLVED, published_at=world.at(40)))
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
    assert len(whole["edges"]) == len(world.fabric().edges)
    near = await world.get("/v1/topology", component="gpu:red0/0", distance=2)
    assert {each["id"] for each in near["components"]} == {
        "gpu:red0/0",
        "host:red0",
        "nic:red0/eth0/1",
        link_id("nic:red0/eth0/1", "port:leaf0/red0"),
    }
    assert not near["truncated"]
    assert (await world.get("/v1/topology", component="switch:spine0", limit=2))["truncated"]
    assert (
        await world.client.get("/v1/topology", headers=world.operator, params={"component": "gpu:x/1"})
    ).status_code == 404


async def test_evidence_by_its_id_also_with_slashes(world: Rig) -> None:
    item = await world.get("/v1/evidence/progress/redjob/0/3")
    assert (item["kind"], item["component"], item["fact"]["step"]) == ("rank_progress", "rank:redjob/0", 3)
    assert (await world.client.get("/v1/evidence/nothing/here", headers=world.operator)).status_code == 404


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
