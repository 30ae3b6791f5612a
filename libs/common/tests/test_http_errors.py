"""One shape for every error, whoever raised it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter
from starlette.responses import StreamingResponse

from goodput_common.contracts.job import RankExited
from goodput_common.http.api import create_api
from goodput_common.http.auth import Auth, Operator, Tenant
from goodput_common.http.middleware import BODY_BYTES_MAX
from goodput_common.http.paging import Limit
from goodput_common.http.problem import Problem
from goodput_common.http.structs import StructResponse, returns
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics

TOKEN = "viewer-token-of-the-tests"
TENANT = "tenant-token-of-the-tests"
VIEWER = {"Authorization": f"Bearer {TOKEN}"}
TOKENS = f'{{"{TOKEN}": {{"role": "viewer"}}, "{TENANT}": {{"role": "tenant", "name": "team-a", "jobs": ["a"]}}}}'


def _router() -> APIRouter:
    router = APIRouter(prefix="/v1")

    @router.get("/items/{number}")
    async def item(number: int, who: Tenant, limit: Limit = 50) -> StructResponse:
        if number == 0:
            raise Problem(409, "item 0 is busy: wait", kind="busy", busy_until="noon")
        return StructResponse({"number": number, "limit": limit, "who": who.name})

    @router.post("/items")
    async def create(body: dict[str, Any]) -> StructResponse:
        return StructResponse(body, status_code=201)

    @router.post("/approve")
    async def approve(_: Operator) -> StructResponse:
        return StructResponse({})

    @router.get("/crash")
    async def crash() -> None:
        raise RuntimeError("internal detail pa55word")

    @router.get("/half")
    async def half() -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"one"
            raise RuntimeError("broke in the middle")

        return StreamingResponse(body())

    @router.get("/exits", responses=returns(RankExited))
    async def exits() -> None: ...

    return router


@pytest.fixture
def health() -> Health:
    return Health(cache_s=0)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(process=False)


@pytest.fixture
async def client(health: Health, metrics: Metrics) -> AsyncIterator[httpx.AsyncClient]:
    app = create_api(
        "test",
        "1.0",
        health=health,
        auth=Auth.from_json(TOKENS),
        metrics=metrics,
        routers=[_router()],
        structs=[RankExited],
        cors_origins=["https://dashboard.example"],
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        yield client


def _problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert body["instance"] == response.request.url.path
    assert body["request_id"] == response.headers["x-request-id"]
    return body


async def test_404_405_and_the_allow_header(client: httpx.AsyncClient) -> None:
    assert "/openapi.json" in _problem(await client.get("/v1/nothing"), 404)["detail"]
    response = await client.delete("/v1/items/1", headers=VIEWER)
    assert _problem(response, 405)["title"] == "Method Not Allowed"
    assert response.headers["allow"] == "GET"


async def test_401_names_the_scheme_and_403_the_role(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/items/1")
    assert "Authorization: Bearer" in _problem(response, 401)["detail"]
    assert response.headers["www-authenticate"] == 'Bearer realm="goodput"'
    response = await client.get("/v1/items/1", headers={"Authorization": "Bearer wrong"})
    _problem(response, 401)
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    body = _problem(await client.post("/v1/approve", headers=VIEWER), 403)
    assert (body["type"], body["required_role"]) == ("urn:goodput:problem:forbidden", "operator")


async def test_a_route_that_asks_for_no_role_still_needs_a_token(client: httpx.AsyncClient) -> None:
    refused = _problem(await client.get("/v1/crash"), 401)
    assert refused["type"] == "urn:goodput:problem:unauthenticated"
    assert (await client.get("/v1/crash", headers=VIEWER)).status_code == 500  # with one, the route is reached


async def test_422_names_each_wrong_field_and_does_not_echo_it(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/items/seven?limit=5000", headers=VIEWER)
    body = _problem(response, 422)
    assert [(each["where"], each["name"]) for each in body["errors"]] == [("path", "number"), ("query", "limit")]
    assert "less than or equal to 500" in body["errors"][1]["expected"]
    assert "5000" not in response.text


async def test_422_for_a_body_that_is_not_json_says_where(client: httpx.AsyncClient) -> None:
    headers = VIEWER | {"Content-Type": "application/json"}
    body = _problem(await client.post("/v1/items", content=b'{"a": }', headers=headers), 422)
    assert body["errors"][0]["where"] == "body"
    assert "at character 6" in body["errors"][0]["expected"]


async def test_a_problem_raised_by_a_route_keeps_its_kind_and_extras(client: httpx.AsyncClient) -> None:
    body = _problem(await client.get("/v1/items/0", headers=VIEWER), 409)
    assert (body["type"], body["detail"], body["busy_until"]) == ("urn:goodput:problem:busy", "item 0 is busy: wait", "noon")


async def test_a_crash_tells_the_client_only_where_to_look(client: httpx.AsyncClient) -> None:
    response = await client.get("/v1/crash", headers=VIEWER)
    body = _problem(response, 500)
    assert "pa55word" not in response.text
    assert "RuntimeError" not in response.text
    assert body["type"] == "urn:goodput:problem:internal"


async def test_a_crash_in_the_middle_of_an_answer_breaks_it_off(client: httpx.AsyncClient) -> None:
    with pytest.raises(RuntimeError, match="broke in the middle"):
        await client.get("/v1/half", headers=VIEWER)


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_bound_is_refused(client: httpx.AsyncClient, announced: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65536 + 1):
            yield b"x" * 65536

    content = b"x" * (BODY_BYTES_MAX + 1) if announced else chunks()
    headers = VIEWER | {"Content-Type": "application/json"}
    body = _problem(await client.post("/v1/items", content=content, headers=headers), 413)
    assert body["type"] == "urn:goodput:problem:too-large"


async def test_a_body_at_the_bound_is_taken(client: httpx.AsyncClient) -> None:
    body = b'{"a": "' + b"x" * (BODY_BYTES_MAX - 9) + b'"}'
    assert len(body) == BODY_BYTES_MAX
    response = await client.post("/v1/items", content=body, headers=VIEWER | {"Content-Type": "application/json"})
    assert response.status_code == 201


async def test_a_request_id_is_kept_when_well_formed_and_replaced_otherwise(client: httpx.AsyncClient) -> None:
    given = await client.get("/healthz", headers={"X-Request-Id": "abc-1.2"})
    assert given.headers["x-request-id"] == "abc-1.2"
    junk = await client.get("/healthz", headers={"X-Request-Id": "a b\tc" + "x" * 100})
    assert len(junk.headers["x-request-id"]) == 32


async def test_readyz_names_the_failing_check(client: httpx.AsyncClient, health: Health) -> None:
    async def gone() -> None:
        raise OSError("connection refused")

    assert _problem(await client.get("/readyz"), 503)["detail"] == "the service is starting"
    health.set_phase("ready", ready=True)
    health.add("database", gone)
    body = _problem(await client.get("/readyz"), 503)
    assert body["detail"] == "database is failing: connection refused"
    assert [(each["name"], each["state"]) for each in body["checks"]] == [("database", "failing")]
    assert (await client.get("/healthz")).json() == {"status": "alive", "phase": "ready"}


async def test_readyz_is_200_when_all_checks_pass(client: httpx.AsyncClient, health: Health) -> None:
    health.set_phase("ready", ready=True)
    response = await client.get("/readyz")
    assert response.status_code == 200
    assert response.json() == {"ready": True, "reason": "", "checks": []}


async def test_requests_are_measured_by_route_template_and_never_by_path(client: httpx.AsyncClient) -> None:
    await client.get("/v1/items/7", headers=VIEWER)
    await client.get("/v1/items/8", headers=VIEWER)
    await client.get("/no/such/path")
    response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'goodput_http_request_seconds_count{method="GET",route="/v1/items/{number}",status="200"} 2.0' in response.text
    assert "/no/such/path" not in response.text
    assert "/v1/items/7" not in response.text


async def test_a_browser_of_a_named_origin_may_read_and_others_may_not(client: httpx.AsyncClient) -> None:
    named = await client.get("/healthz", headers={"Origin": "https://dashboard.example"})
    assert named.headers["access-control-allow-origin"] == "https://dashboard.example"
    other = await client.get("/healthz", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


async def test_openapi_describes_structs_problems_and_the_token(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    assert schemas["RankExited"]["required"] == ["fabric", "job", "rank", "host", "at"]
    responses = document["paths"]["/v1/exits"]["get"]["responses"]
    assert responses["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/RankExited"}
    assert list(responses["default"]["content"]) == ["application/problem+json"]
    assert set(responses) == {"200", "default"}
    assert document["components"]["securitySchemes"]["HTTPBearer"]["scheme"] == "bearer"
    assert document["paths"]["/v1/items/{number}"]["get"]["security"]
    _assert_references_resolve(document, document)


def _assert_references_resolve(node: Any, document: dict[str, Any]) -> None:
    if isinstance(node, dict):
        if "$ref" in node:
            target: Any = document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
        for value in node.values():
            _assert_references_resolve(value, document)
    elif isinstance(node, list):
        for value in node:
            _assert_references_resolve(value, document)
