"""Constructs the recovery service from its settings; nothing else in the service constructs anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Bus
from goodput_common.http.auth import Auth
from goodput_common.runtime.clock import Clock, SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_common.service import Foundation, Service
from goodput_common.store.engine import create_engine
from goodput_common.store.lease import Lease
from goodput_recovery.adapters import schema
from goodput_recovery.adapters.agent import AgentCommander
from goodput_recovery.adapters.api import app as api
from goodput_recovery.adapters.api.context import ApiContext
from goodput_recovery.adapters.dry_run import DryRun
from goodput_recovery.adapters.postgres import PostgresLeadership, PostgresStore
from goodput_recovery.adapters.queries import Queries
from goodput_recovery.application.context import Contexts
from goodput_recovery.application.execute import Executor
from goodput_recovery.application.lead import Leader
from goodput_recovery.application.measure import Measures
from goodput_recovery.application.operate import Operator
from goodput_recovery.application.propose import Proposer
from goodput_recovery.application.verify import Ranks, Verifier
from goodput_recovery.settings import Settings

PACKAGE = "goodput_recovery"
VERSION = "0.1.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """The service without its connections to the outside being up."""

    leader: Leader
    api: ApiContext


async def build(settings: Settings) -> Service:
    """Construct; nothing is waited for here. Raises StartError or SettingsError for what makes no sense."""
    base = await Foundation.lay(
        "recovery", settings, version=VERSION, package=PACKAGE, outbox=schema.outbox, lease=schema.lease
    )
    core = _core(settings, base.engine, base.bus, base.lease, base.clock, base.tasks, base.metrics)
    app = api.create(version=VERSION, context=core.api, health=base.health, auth=base.auth, metrics=base.metrics)
    return base.assemble(app, core.leader)


def _core(
    settings: Settings, engine: AsyncEngine, bus: Bus, lease: Lease, clock: Clock, tasks: Tasks, metrics: Metrics
) -> _Core:
    policy, fabric = settings.policy(), settings.fabric
    store = PostgresStore(engine, fabric, lease)
    measures = Measures(metrics)
    ranks = Ranks(store)
    actuator = DryRun(store, frozenset(settings.recovery_offers))
    contexts = Contexts(policy, actuator, ranks, clock)
    proposer = Proposer(store, contexts, ranks, clock, measures, fabric=fabric)
    executor = Executor(
        store,
        proposer,
        actuator,
        AgentCommander(bus, fabric, clock),
        ranks,
        clock,
        tasks,
        measures,
        evidence_within_s=settings.recovery_evidence_s,
    )
    leader = Leader(
        PostgresLeadership(lease),
        bus,
        store,
        proposer,
        executor,
        Verifier(ranks, policy, clock, bus.healthy),
        ranks,
        clock,
        tasks,
        measures,
        fabric=fabric,
        tick_s=settings.recovery_tick_s,
    )
    context = ApiContext(
        queries=Queries(engine, fabric),
        store=store,
        contexts=contexts,
        operator=Operator(store, contexts, proposer, clock),
        clock=clock,
        fabric=fabric,
        policy=policy,
        offers=actuator.offers,
        role=lambda: leader.role,
    )
    return _Core(leader=leader, api=context)


def openapi() -> dict[str, Any]:
    """The OpenAPI document; connects to nothing."""
    clock, metrics = SystemClock(), Metrics(process=False)
    engine = create_engine("postgresql://nobody@localhost/none")
    settings = Settings(_env_file=None)  # type: ignore[call-arg]
    lease = Lease(engine, schema.lease, service="recovery", fabric=settings.fabric, holder="nobody")
    core = _core(settings, engine, MemoryBus(clock), lease, clock, Tasks(), metrics)
    app = api.create(version=VERSION, context=core.api, health=Health(), auth=Auth(), metrics=metrics)
    return app.openapi()
