"""What every service with a database, a bus and an API stands on, put together in one place.

A service's `bootstrap.py` lays the foundation, builds what is its own on it, and assembles both:

    base = await Foundation.lay("correlator", settings, version=…, package=…, outbox=…, lease=…)
    work = Correlator(bus=base.bus, …)
    return base.assemble(app, work)

The order of the parts is the order in which they need each other: pool, schema, streams, outbox, the service's own work, and
the API last, so that it answers only for what is there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import sqlalchemy as sa
from fastapi import FastAPI
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.part import BusPart
from goodput_common.http.auth import Auth
from goodput_common.http.server import HttpServer
from goodput_common.runtime.clock import Clock, SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.settings import ServiceSettings
from goodput_common.runtime.tasks import Tasks
from goodput_common.store.engine import EnginePart, create_engine
from goodput_common.store.lease import Lease
from goodput_common.store.migrate import MigrationsPart
from goodput_common.store.outbox import OutboxPublisher
from goodput_common.store.wait import database_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What `run_service` needs; `server.url` is known once started."""

    parts: tuple[Part, ...]
    health: Health
    tasks: Tasks
    server: HttpServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Foundation:
    """Made by `lay`, which waits for nothing: the parts do, when the service starts."""

    settings: ServiceSettings
    clock: Clock
    tasks: Tasks
    health: Health
    metrics: Metrics
    auth: Auth
    engine: AsyncEngine
    bus: JetStreamBus
    lease: Lease
    parts: tuple[Part, ...]

    @classmethod
    async def lay(
        cls, name: str, settings: ServiceSettings, *, version: str, package: str, outbox: sa.Table, lease: sa.Table
    ) -> Foundation:
        """`package` holds the migrations of the schema in which `outbox` and `lease` lie. Raises StartError for tokens or a
        database address that make no sense."""
        clock, tasks, health = SystemClock(), Tasks(), Health()
        metrics = Metrics(name, fabric=settings.fabric, version=version)
        auth = Auth.from_json(settings.api_tokens.get_secret_value())
        engine = create_engine(
            settings.database_url.get_secret_value(),
            application_name=f"{name}-{settings.fabric}",
            pool_size=settings.database_pool,
        )
        bus = await JetStreamBus.connect(
            settings.nats_url.get_secret_value(),
            name=f"{name}-{settings.fabric}",
            user=settings.nats_user,
            password=settings.nats_password.get_secret_value() if settings.nats_password else None,
            clock=clock,
            wait_s=0,
            registry=metrics.registry,
        )
        publisher = OutboxPublisher(engine, outbox, bus, tasks=tasks, metrics=metrics)
        health.add("database", lambda: database_answers(engine))
        health.add("bus", bus.healthy)
        health.add("outbox", publisher.check, required=False)
        return cls(
            settings=settings,
            clock=clock,
            tasks=tasks,
            health=health,
            metrics=metrics,
            auth=auth,
            engine=engine,
            bus=bus,
            lease=Lease(engine, lease, service=name, fabric=settings.fabric, holder=f"{settings.host}/{os.getpid()}"),
            parts=(
                EnginePart(engine),
                MigrationsPart(engine, package, outbox.schema or "public"),
                BusPart(bus, settings.nats_address, clock),
                publisher,
            ),
        )

    def assemble(self, app: FastAPI, *work: Part) -> Service:
        """The service: this foundation, its own `work` in the order of need, and `app` on its port."""
        server = HttpServer(app, host=self.settings.http_host, port=self.settings.http_port, tasks=self.tasks)
        return Service(parts=(*self.parts, *work, server), health=self.health, tasks=self.tasks, server=server)
