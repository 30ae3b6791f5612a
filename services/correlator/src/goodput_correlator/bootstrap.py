"""Constructs the correlator from its settings; nothing else in the service constructs anything."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
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
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.api import app as api
from goodput_correlator.adapters.api.context import Context
from goodput_correlator.adapters.api.events import EventFeed
from goodput_correlator.adapters.postgres import PostgresStore
from goodput_correlator.adapters.queries import Queries
from goodput_correlator.application.correlator import Correlator
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.ports import Retention
from goodput_correlator.settings import Settings

PACKAGE = "goodput_correlator"
VERSION = "0.1.0"


BUS_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What `run_service` needs; `server.url` is known once started."""

    parts: tuple[Part, ...]
    health: Health
    tasks: Tasks
    server: HttpServer


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
        self._bus = bus
        self._address = address
        self._clock = clock

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
    """Construct; nothing is waited for here. Raises StartError for tokens or a database address that make no sense."""
    clock, tasks, health = SystemClock(), Tasks(), Health()
    metrics = Metrics("correlator", fabric=settings.fabric, version=VERSION)
    auth = Auth.from_json(settings.api_tokens.get_secret_value())
    engine = create_engine(
        settings.database_url.get_secret_value(),
        application_name=f"correlator-{settings.fabric}",
        pool_size=settings.database_pool,
    )
    bus = await JetStreamBus.connect(
        settings.nats_url.get_secret_value(),
        name=f"correlator-{settings.fabric}",
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value() if settings.nats_password else None,
        clock=clock,
        wait_s=0,
        registry=metrics.registry,
    )
    lease = Lease(
        engine, schema.lease, service="correlator", fabric=settings.fabric, holder=f"{settings.host}/{os.getpid()}"
    )
    queries = Queries(engine, settings.fabric)
    correlator = Correlator(
        fabric=settings.fabric,
        bus=bus,
        store=PostgresStore(engine, lease),
        lease=lease,
        clock=clock,
        tasks=tasks,
        metrics=CorrelatorMetrics(metrics),
        retention=Retention(
            evidence_s=settings.evidence_keep_s,
            evidence_rows_max=settings.evidence_rows_max,
            verdicts_s=settings.verdicts_keep_s,
        ),
        slots=settings.ingest_slots,
    )
    outbox = OutboxPublisher(engine, schema.outbox, bus, tasks=tasks, metrics=metrics)
    feed = EventFeed(queries, clock=clock, tasks=tasks)
    context = Context(queries=queries, bus=bus, clock=clock, fabric=settings.fabric)
    app = api.create(version=VERSION, context=context, feed=feed, health=health, auth=auth, metrics=metrics)
    server = HttpServer(app, host=settings.http_host, port=settings.http_port, tasks=tasks)
    health.add("correlator", correlator.check)
    health.add("database", lambda: database_answers(engine))
    health.add("bus", bus.healthy)
    health.add("outbox", outbox.check, required=False)
    bus_part = _Bus(bus, settings.nats_address, clock)
    parts = (EnginePart(engine), _Migrations(engine), bus_part, outbox, correlator, feed, server)
    return Service(parts=parts, health=health, tasks=tasks, server=server)


def openapi() -> dict[str, Any]:
    """The OpenAPI document; connects to nothing."""
    clock, tasks, metrics = SystemClock(), Tasks(), Metrics(process=False)
    queries = Queries(create_engine("postgresql://nobody@localhost/none"), "default")
    context = Context(queries=queries, bus=MemoryBus(clock), clock=clock, fabric="default")
    feed = EventFeed(queries, clock=clock, tasks=tasks)
    app = api.create(version=VERSION, context=context, feed=feed, health=Health(), auth=Auth(), metrics=metrics)
    return app.openapi()
