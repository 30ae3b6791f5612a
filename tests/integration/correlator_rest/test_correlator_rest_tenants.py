"""Who may see what: a tenant is told of its own, and no name of anybody else."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from goodput_common.contracts.ids import ComponentKind, link_id
from goodput_common.contracts.verdict import Affected, Verdict
from goodput_correlator.bootstrap import openapi

Rig = Any  # of conftest
FOREIGN = re.compile(r"blue", re.IGNORECASE)  # every name of the other tenant has it

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
    answer = await world.client.get(path, headers=world.red)
    assert answer.status_code == 200, path
    assert not FOREIGN.search(answer.text), (path, FOREIGN.findall(answer.text))
    assert "red" in answer.text or "v-switch" in answer.text
    assert "blue" in (await world.client.get(path, headers=world.operator)).text or path.startswith(
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
        answer = await world.client.get(path, headers=world.red)
        assert answer.status_code == 404, path
        invented = path
        for name, other in (("v-blue", "v-no"), ("bluejob", "nojob"), ("e-blue", "e-no"), ("e-loose", "e-no")):
            invented = invented.replace(name, other)
        twin = await world.client.get(invented, headers=world.red)
        assert {**answer.json(), "instance": "", "request_id": ""} == {**twin.json(), "instance": "", "request_id": ""}


async def test_a_tenants_filter_answers_nothing_about_others(world: Rig) -> None:
    for name, value in (("job", "bluejob"), ("host", "blue0"), ("component", "switch:leafblue")):
        assert (await world.get("/v1/verdicts", world.red, **{name: value}))["items"] == []


async def test_a_tenants_verdict_keeps_its_shape_and_its_own_facts(world: Rig) -> None:
    shown = msgspec.convert(await world.get("/v1/verdicts/v-red", world.red), Verdict)
    assert shown.culprit == world.verdict("v-red", "redjob", "gpu:red0/0", "red0").culprit
    assert [each.event_id for each in shown.evidence] == ["e-red"]
    assert shown.evidence[0].excerpt == "as on (elsewhere)"
    assert shown.affected == Affected(jobs=("redjob",), ranks=(0, 1), hosts=("red0", "red1"))
    assert [each.component for each in shown.explained] == ["rank:redjob/1"]
    about_switch = msgspec.convert(await world.get("/v1/verdicts/v-switch", world.red), Verdict)
    assert (about_switch.culprit.component, about_switch.culprit.kind) == (None, ComponentKind.SWITCH)


async def test_a_tenants_stream_tells_only_its_own(world: Rig) -> None:
    events = await world.events({**world.red, "Last-Event-ID": "0"}, 7)
    assert [event for _, event, _ in events] == ["hello", *["verdict", "incident"] * 3]
    assert not FOREIGN.search(json.dumps(events))


async def test_a_tenant_sees_the_fabric_between_its_hosts(world: Rig) -> None:
    shown = {each["id"] for each in (await world.get("/v1/topology", world.red))["components"]}
    assert {
        "host:red0",
        "gpu:red1/0",
        "switch:leaf0",
        "switch:spine0",
        link_id("port:leaf0/up", "port:spine0/leaf0"),
    } <= shown
    assert "switch:leafblue" not in shown
    assert (await world.get("/v1/topology", world.nothing))["components"] == []


async def test_a_tenant_without_a_running_job_sees_nothing(world: Rig) -> None:
    for path in ("/v1/verdicts", "/v1/incidents", "/v1/jobs"):
        assert (await world.get(path, world.nothing))["items"] == []


async def test_rejected_messages_are_not_for_tenants(world: Rig) -> None:
    answer = await world.client.get("/v1/rejected", headers=world.red)
    assert (answer.status_code, answer.headers["content-type"]) == (403, "application/problem+json")


async def test_every_path_but_health_and_metrics_asks_for_a_token(world: Rig) -> None:
    for path in openapi()["paths"]:
        answer = await world.client.get(re.sub(r"{\w+}", "x", path))
        assert (answer.status_code == 401) == path.startswith("/v1/"), path
