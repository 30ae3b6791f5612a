"""The recovery service on a real NATS and a real Postgres: from a verdict to a job that moves again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy.ext.asyncio import AsyncConnection

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.contracts.recovery import AgentCommandKind
from goodput_common.contracts.verdict import ActionKind, FaultClass, Verdict, VerdictState
from goodput_common.runtime.lifecycle import run_service
from goodput_common.store.engine import create_engine
from goodput_common.store.migrate import upgrade
from goodput_recovery.adapters import schema
from goodput_recovery.bootstrap import build
from goodput_recovery.settings import Settings
from goodput_recovery.testing import LINK, FakeJob, make_verdict, publish_verdict

A, F = ActionKind, FaultClass
TOKENS = {
    "operator-token-123": {"role": "operator", "name": "anna"},
    "viewer-token-12345": {"role": "viewer", "name": "board"},
    "tenant-token-12345": {"role": "tenant", "name": "others", "jobs": ["their-job"]},
}
ANNA, BOARD, OTHERS = ({"Authorization": f"Bearer {token}"} for token in TOKENS)
POLICY: dict[str, Any] = {
    "settle_s": 0.3,
    "link_wait_s": 0.5,
    "verify_hold_s": 0.5,
    "verify_within_s": 4.0,
    "prices": {"downtime_scale": 0.01},
    "verify_watch_s_min": 3.0,
}
Ask = Callable[[], Awaitable[Any]]
_numbers = itertools.count(1)


@dataclass
class World:
    """One fabric with a running service, a job on it, and a REST client."""

    fabric: str
    bus: JetStreamBus
    job: FakeJob
    http: httpx.AsyncClient

    def verdict(self, *args: Any, **more: Any) -> Verdict:
        now = datetime.now(UTC)
        return make_verdict(*args, **({"fabric": self.fabric, "at": now} | more))

    async def plans(self, **query: Any) -> list[dict[str, Any]]:
        answer = await self.http.get("/v1/plans", params=query, headers=BOARD)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["items"])

    async def deeds(self) -> list[dict[str, Any]]:
        return list((await self.http.get("/v1/actions", headers=BOARD)).json()["items"])

    async def newest(self, *states: str) -> dict[str, Any]:
        """The newest plan once it is in one of `states`."""

        async def reached() -> dict[str, Any] | None:
            plans = await self.plans()
            return plans[0] if plans and plans[0]["state"] in states else None

        return await until(reached, f"the newest plan to be {' or '.join(states)}", self.plans)


async def until(condition: Ask, what: str, shown: Ask | None = None, *, within_s: float = 60) -> Any:
    deadline = asyncio.get_running_loop().time() + within_s
    while asyncio.get_running_loop().time() < deadline:
        if found := await condition():
            return found
        await asyncio.sleep(0.05)
    pytest.fail(f"waited {within_s} s for {what}; now: {await shown() if shown else ''}")


@pytest.fixture
def start(nats_url: str, fresh_database: str, tmp_path: Any) -> Any:
    @contextlib.asynccontextmanager
    async def begin(
        policy: dict[str, Any] | None = None, offers: list[ActionKind] | None = None, **job: Any
    ) -> AsyncIterator[World]:
        fabric = f"recovery-{os.getpid()}-{next(_numbers)}"
        file = tmp_path / "policy.json"
        file.write_text(json.dumps(POLICY | (policy or {})))
        settings = Settings(
            nats_url=nats_url,
            database_url=fresh_database,
            fabric=fabric,
            http_port=0,
            api_tokens=json.dumps(TOKENS),
            recovery_policy=file,
            recovery_evidence_s=1.0,
            recovery_tick_s=0.1,
            **({"recovery_offers": offers} if offers else {}),
        )
        service = await build(settings)
        stop = asyncio.Event()
        running = asyncio.create_task(
            run_service("recovery", service.parts, health=service.health, tasks=service.tasks, stop=stop)
        )
        bus = await JetStreamBus.connect(nats_url, name="test")
        await provision(bus)
        fake = FakeJob(bus, fabric)
        try:
            await until(_truth(lambda: service.health.ready or running.done()), "the service to be ready")
            assert not running.done()
            await fake.start(**job)
            async with httpx.AsyncClient(base_url=service.server.url, timeout=30) as http:
                await until(_leads(http), "the lease")
                yield World(fabric, bus, fake, http)
        finally:
            await fake.stop()
            stop.set()
            assert await running == 0
            await bus.close()

    return begin


def _truth(condition: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    async def asked() -> object:
        return condition()

    return asked


def _leads(http: httpx.AsyncClient) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return bool((await http.get("/v1/status", headers=BOARD)).json()["role"] == "leader")

    return asked


async def test_a_verdict_ends_in_one_action_and_a_job_that_moves_again(start: Any) -> None:
    async with start(silent=(3,)) as world:
        await until(_truth(lambda: world.job.step > 102), "the job to move")
        world.job.moving = False
        await publish_verdict(world.bus, world.verdict(F.GPU_OFF_BUS, "gpu:h3/0", ranks=(3,)))
        plan = await world.newest("recovered", "failed")
        assert (plan["state"], plan["action"], plan["target"]) == ("recovered", "swap_node", "host:h3")
        await until(_truth(lambda: "recovered" in world.job.states()), "the announcement")
        assert world.job.states() == ["proposed", "approved", "executing", "verifying", "recovered"]
        assert world.job.acted_on == [plan["id"]]
        detail = (await world.http.get(f"/v1/plans/{plan['id']}", headers=BOARD)).json()
        assert [each["state"] for each in detail["history"]] == world.job.states()
        assert detail["deed"]["fencing_token"] == plan["fencing_token"] == 1
        assert detail["deed"]["done"] is True
        asked = {each["rank"]: each["status"] for each in detail["asked"]}
        assert asked == {0: "done", 1: "done", 2: "done"}, "healthy ranks are asked for a dump, the culprit is not"
        assert {each.fencing_token for each in world.job.commands} == {1}
        assert all(each.kind is AgentCommandKind.DUMP for each in world.job.commands)
        first = next(each for each in detail["audit"] if each["decision"] == "moved")
        assert first["inputs"]["verdict"] == plan["verdict"]
        assert first["inputs"]["confidence"] == 0.95
        assert [each["why"] for each in plan["not_chosen"]] and "GPU-seconds" in plan["why"]


async def test_doubled_and_reordered_versions_give_one_chain_and_one_action(start: Any) -> None:
    async with start() as world:
        world.job.moving = False
        first = world.verdict(F.LINK_FLAP, LINK, recommended=A.SWAP_NODE, ranks=(1,))
        second = world.verdict(F.LINK_FLAP, LINK, recommended=A.REINIT_COMMUNICATORS, version=2, ranks=(1,))
        for copy in ("", "/b", "/c"):
            for verdict in (second, first):
                await publish_verdict(world.bus, verdict, doubled=copy)
        plan = await world.newest("recovered", "failed")
        await publish_verdict(world.bus, first, doubled="/late")
        await publish_verdict(world.bus, world.verdict(F.NVLINK, "nvlink:h2/0/1", version=3), doubled="/late")
        await until(lambda: _noted(world, plan["id"], "verdict_after_recovery"), "the late version to be noted")
        plans = await world.plans()
        assert [each["state"] for each in plans if each["state"] != "superseded"] == ["recovered"]
        assert len(await world.deeds()) == 1 == len(world.job.acted_on)


async def _noted(world: World, plan: str, what: str) -> bool:
    audit = (await world.http.get(f"/v1/plans/{plan}", headers=BOARD)).json()["audit"]
    return any(each["decision"] == what for each in audit)


async def test_a_verdict_resolved_in_time_cancels_the_plan(start: Any) -> None:
    async with start({"settle_s": 3.0}) as world:
        await publish_verdict(world.bus, world.verdict())
        await world.newest("proposed")
        await publish_verdict(world.bus, world.verdict(version=2, state=VerdictState.RESOLVED))
        plan = await world.newest("superseded")
        assert "before anything was done" in plan["reason"]
        assert await world.deeds() == []


async def test_a_person_approves_what_is_uncertain(start: Any) -> None:
    async with start() as world:
        world.job.moving = False
        await publish_verdict(world.bus, world.verdict(confidence=0.4))
        plan = await world.newest("awaiting_approval")
        url = f"/v1/plans/{plan['id']}/approve"
        assert "0.40 is below 0.60" in plan["reason"]
        assert (await world.http.post(url)).status_code == 401
        assert (await world.http.post(url, headers=BOARD)).status_code == 403
        assert (await world.http.get(f"/v1/plans/{plan['id']}", headers=OTHERS)).status_code == 404
        assert (await world.http.get("/v1/plans", headers=OTHERS)).json()["items"] == []
        answer = await world.http.post(url, headers=ANNA, json={"reason": "seen the log"})
        assert (answer.status_code, answer.json()["approved_by"]) == (200, "anna")
        assert (await world.http.post(url, headers=ANNA)).status_code == 200
        done = await world.newest("recovered")
        refused = await world.http.post(f"/v1/plans/{plan['id']}/veto", headers=ANNA)
        assert (refused.status_code, refused.headers["content-type"]) == (409, "application/problem+json")
        assert refused.json()["type"].endswith("illegal-transition")
        audit = (await world.http.get(f"/v1/plans/{done['id']}", headers=BOARD)).json()["audit"]
        assert any(each["actor"] == "anna" and "seen the log" in each["reason"] for each in audit)


async def test_a_person_vetoes_and_nothing_is_done(start: Any) -> None:
    async with start({"settle_s": 2.0}) as world:
        world.job.moving = False
        await publish_verdict(world.bus, world.verdict())
        plan = await world.newest("proposed")
        url = f"/v1/plans/{plan['id']}/veto"
        assert (await world.http.post(url, headers=ANNA, json={"reason": "it is being repaired"})).status_code == 200
        assert (await world.http.post(url, headers=ANNA)).status_code == 200
        await publish_verdict(world.bus, world.verdict(version=2, confidence=0.99))
        await until(lambda: _noted(world, plan["id"], "verdict_same_step"), "the revision to be noted")
        assert [each["state"] for each in await world.plans()] == ["vetoed"]
        assert await world.deeds() == []


async def test_a_used_up_budget_refuses_and_hands_to_a_person(start: Any) -> None:
    async with start({"budget": {"fabric_actions_max": 0}}) as world:
        world.job.moving = False
        await publish_verdict(world.bus, world.verdict())
        person = await world.newest("verifying")
        assert person["action"] == "hand_to_person"
        refused = (await world.plans(state="refused"))[0]
        assert "budget of the fabric is used up" in refused["reason"]
        await until(_truth(lambda: "refused" in world.job.states()), "the announcement")
        assert await world.deeds() == []


async def test_a_pause_holds_and_a_resume_lets_go(start: Any) -> None:
    async with start() as world:
        world.job.moving = False
        paused = await world.http.post("/v1/pause", headers=ANNA, json={"reason": "maintenance"})
        assert (paused.status_code, paused.json()["paused_by"]) == (200, "anna")
        await publish_verdict(world.bus, world.verdict())

        async def waits() -> bool:
            plans = await world.plans(state="approved")
            return bool(plans) and plans[0].get("waiting") == "recovery is paused by anna: maintenance"

        await until(waits, "the plan to wait", world.plans)
        assert await world.deeds() == []
        assert (await world.http.post("/v1/resume", headers=ANNA)).json()["paused"] is False
        await world.newest("recovered")


async def test_an_action_that_does_not_help_is_followed_by_the_next_step(start: Any) -> None:
    async with start({"spare_nodes": 1, "budget": {"nodes_out_share_max": 1.0}}) as world:
        world.job.moving = world.job.heals = False
        await publish_verdict(world.bus, world.verdict())

        async def escalated() -> Any:
            plans = await world.plans()
            return plans if len(plans) > 1 else None

        second, first = (await until(escalated, "the escalation", world.plans))[:2]
        assert (first["state"], first["action"]) == ("failed", "swap_node")
        assert "not beyond step" in first["result"]
        assert (second["action"], second["escalates"]) == ("drain_and_resume", first["id"])


async def test_a_moving_job_is_paused_for_a_link_to_be_taken_out_and_goes_on_after_it(start: Any) -> None:
    async with start({"links_redundant": True}, offers=[A.ISOLATE_LINK]) as world:
        await until(_truth(lambda: world.job.step > 103), "the job to move")
        await publish_verdict(world.bus, world.verdict(F.PFC_STORM, "port:leaf0/h1", ranks=()))
        plan = await world.newest("recovered", "failed")
        assert (plan["state"], plan["action"], plan["target"]) == ("recovered", "isolate_link", "port:leaf0/h1")
        kinds = [each.kind for each in world.job.commands]
        assert kinds == [AgentCommandKind.PAUSE] * 4 + [AgentCommandKind.RESUME] * 4
        assert sorted({each.rank for each in world.job.commands}) == [0, 1, 2, 3]


async def test_lists_page_filter_and_answer_not_modified(start: Any) -> None:
    async with start({"settle_s": 60.0}) as world:
        for n in range(5):
            await publish_verdict(world.bus, world.verdict(incident=f"i{n}", job=f"job-{n}"))
        await until(lambda: _count(world, 5), "five plans")
        pages, cursor = [], None
        while True:
            query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
            answer = await world.http.get("/v1/plans", params=query, headers=BOARD)
            pages.append([each["job"] for each in answer.json()["items"]])
            cursor = answer.json()["next"]
            if cursor is None:
                break
        assert [len(page) for page in pages] == [2, 2, 1]
        assert sorted(job for page in pages for job in page) == [f"job-{n}" for n in range(5)]
        assert [each["job"] for each in await world.plans(job="job-3")] == ["job-3"]
        assert await world.plans(state=["recovered", "failed"]) == []
        answer = await world.http.get("/v1/plans", headers=BOARD)
        again = await world.http.get("/v1/plans", headers=BOARD | {"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        policy = (await world.http.get("/v1/policy", headers=BOARD)).json()
        assert [each["kind"] for each in policy["ladder"]] == [str(kind) for kind in ActionKind]
        assert (await world.http.get("/readyz")).status_code == 200
        assert "goodput_recovery_plans_total" in (await world.http.get("/metrics")).text


async def _count(world: World, n: int) -> bool:
    return len(await world.plans()) == n


async def test_the_migrations_make_the_tables_that_the_code_describes(fresh_database: str) -> None:
    engine = create_engine(fresh_database)
    await upgrade(engine, "goodput_recovery", schema.SCHEMA)

    def differences(connection: sa.Connection) -> list[Any]:
        options = {"include_schemas": True, "include_name": _ours, "compare_type": True}
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), schema.metadata))

    async with engine.connect() as connection:
        assert await connection.run_sync(differences) == []
        await _audit_refuses(connection)
    await engine.dispose()


def _ours(name: str | None, kind: str, parents: Any) -> bool:
    return name == schema.SCHEMA if kind == "schema" else name != "schema_version"


async def _audit_refuses(connection: AsyncConnection) -> None:
    row = "INSERT INTO recovery.audit (at, fabric, actor, decision, reason, inputs) VALUES (now(), 'f', 'a', 'd', '', '{}')"
    await connection.execute(sa.text(row))
    await connection.commit()
    for statement in ("DELETE FROM recovery.audit", "UPDATE recovery.audit SET reason = ''", "TRUNCATE recovery.audit"):
        with pytest.raises(sa.exc.DBAPIError, match="append-only"):
            await connection.execute(sa.text(statement))
        await connection.rollback()
