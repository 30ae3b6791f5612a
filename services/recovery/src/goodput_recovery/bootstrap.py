"""Constructs the recovery service from its settings; nothing else in the service constructs anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.ports import Bus
from goodput_common.bus.provision import provision
from goodput_common.http.auth import Auth
from goodput_common.http.server import HttpServer
from goodput_common.runtime.clock import Clock, SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import EnginePart, create_engine
from goodput_common.store.lease import Lease
from goodput_common.store.migrate import upgrade
from goodput_common.store.outbox import OutboxPublisher
from goodput_common.store.wait import database_answers
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
BUS_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What `run_service` needs; `server.url` is known once started."""

    parts: tuple[Part, ...]
    health: Health
    tasks: Tasks
    server: HttpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """The service without its connections to the outside being up."""

    leader: Leader
    api: ApiContext


class _Migrations(Part):
    """Brings the schema up to date before anything uses it."""

    name = "migrations"

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    async def start(self) -> None:
        await upgrade(self._engine, PACKAGE, schema.SCHEMA)


class _Bus(Part):
    """The streams exist before anything is published or consumed; a broker that is still starting is waited for."""

    name = "bus"

    def __init__(self, bus: JetStreamBus, address: str, clock: Clock) -> None:
        self._bus, self._address, self._clock = bus, address, clock

    async def start(self) -> None:
        until_s = self._clock.monotonic_s() + BUS_WAIT_S
        while True:
            try:
                await provision(self._bus)
                return
            except BusUnavailable as error:
                if self._clock.monotonic_s() > until_s:
                    raise StartError(
                        f"no bus at {self._address} within {BUS_WAIT_S:.0f} s: {error}",
                        do_next="start NATS with JetStream, or correct GOODPUT_NATS_URL",
                    ) from error
            except ProvisioningConflict as error:
                raise StartError(str(error), do_next="bring the stream into the shape named above, or remove it") from error
            await self._clock.sleep(0.5)

    async def close(self) -> None:
        await self._bus.close()


async def build(settings: Settings) -> Service:
    """Construct; nothing is waited for here. Raises StartError or SettingsError for what makes no sense."""
    clock, tasks, health = SystemClock(), Tasks(), Health()
    metrics = Metrics("recovery", fabric=settings.fabric, version=VERSION)
    auth = Auth.from_json(settings.api_tokens.get_secret_value())
    engine = create_engine(
        settings.database_url.get_secret_value(),
        application_name=f"recovery-{settings.fabric}",
        pool_size=settings.database_pool,
    )
    bus = await JetStreamBus.connect(
        settings.nats_url.get_secret_value(),
        name=f"recovery-{settings.fabric}",
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value() if settings.nats_password else None,
        clock=clock,
        wait_s=0,
        registry=metrics.registry,
    )
    core = _core(settings, engine, bus, clock, tasks, metrics)
    app = api.create(version=VERSION, context=core.api, health=health, auth=auth, metrics=metrics)
    server = HttpServer(app, host=settings.http_host, port=settings.http_port, tasks=tasks)
    outbox = OutboxPublisher(engine, schema.outbox, bus, tasks=tasks, metrics=metrics)
    health.add("database", lambda: database_answers(engine))
    health.add("bus", bus.healthy)
    health.add("outbox", outbox.check, required=False)
    bus_part = _Bus(bus, settings.nats_address, clock)
    parts = (EnginePart(engine), _Migrations(engine), bus_part, outbox, core.leader, server)
    return Service(parts=parts, health=health, tasks=tasks, server=server)


def _core(settings: Settings, engine: AsyncEngine, bus: Bus, clock: Clock, tasks: Tasks, metrics: Metrics) -> _Core:
    policy, fabric = settings.policy(), settings.fabric
    holder = f"{settings.host}/{os.getpid()}"
    lease = Lease(engine, schema.lease, service="recovery", fabric=fabric, holder=holder)
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
    core = _core(settings, engine, MemoryBus(clock), clock, Tasks(), metrics)
    app = api.create(version=VERSION, context=core.api, health=Health(), auth=Auth(), metrics=metrics)
    return app.openapi()
