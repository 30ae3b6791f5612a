"""Constructs the correlator from its settings; nothing else in the service constructs anything."""

from __future__ import annotations

from typing import Any

from goodput_common.bus.memory import MemoryBus
from goodput_common.http.auth import Auth
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks
from goodput_common.service import Foundation, Service
from goodput_common.store.engine import create_engine
from goodput_correlator.adapters import schema
from goodput_correlator.adapters.api import app as api
from goodput_correlator.adapters.api.context import Context
from goodput_correlator.adapters.api.events import EventFeed
from goodput_correlator.adapters.postgres import PostgresStore
from goodput_correlator.adapters.queries import Queries
from goodput_correlator.application.correlator import Correlator
from goodput_correlator.application.metrics import CorrelatorMetrics
from goodput_correlator.application.ports import Retention
from goodput_correlator.collecting import settle
from goodput_correlator.settings import Settings

PACKAGE = "goodput_correlator"
VERSION = "0.1.0"


async def build(settings: Settings) -> Service:
    """Construct; nothing is waited for here. Raises StartError for tokens or a database address that make no sense."""
    settle()
    base = await Foundation.lay(
        "correlator", settings, version=VERSION, package=PACKAGE, outbox=schema.outbox, lease=schema.lease
    )
    queries = Queries(base.engine, settings.fabric)
    correlator = Correlator(
        fabric=settings.fabric,
        bus=base.bus,
        store=PostgresStore(base.engine, base.lease),
        lease=base.lease,
        clock=base.clock,
        tasks=base.tasks,
        metrics=CorrelatorMetrics(base.metrics),
        retention=Retention(
            evidence_s=settings.evidence_keep_s,
            measured_s=settings.measured_keep_s,
            evidence_rows_max=settings.evidence_rows_max,
            verdicts_s=settings.verdicts_keep_s,
        ),
        slots=settings.ingest_slots,
        named_min=settings.named_min,
    )
    feed = EventFeed(queries, clock=base.clock, tasks=base.tasks)
    context = Context(queries=queries, bus=base.bus, clock=base.clock, fabric=settings.fabric)
    app = api.create(version=VERSION, context=context, feed=feed, health=base.health, auth=base.auth, metrics=base.metrics)
    base.health.add("correlator", correlator.check)
    return base.assemble(app, correlator, feed)


def openapi() -> dict[str, Any]:
    """The OpenAPI document; connects to nothing."""
    clock, tasks, metrics = SystemClock(), Tasks(), Metrics(process=False)
    queries = Queries(create_engine("postgresql://nobody@localhost/none"), "default")
    context = Context(queries=queries, bus=MemoryBus(clock), clock=clock, fabric="default")
    feed = EventFeed(queries, clock=clock, tasks=tasks)
    app = api.create(version=VERSION, context=context, feed=feed, health=Health(), auth=Auth(), metrics=metrics)
    return app.openapi()
