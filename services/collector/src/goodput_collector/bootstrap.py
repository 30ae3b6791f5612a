"""Puts the collector together; `wiring` constructs its sources. Nothing else constructs."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.report_socket import ReportSocket
from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.adapters.spool_files import numbering
from goodput_collector.application.heartbeat import Heartbeat
from goodput_collector.application.publish import Origin, Publisher
from goodput_collector.application.schedule import Schedule
from goodput_collector.application.send_reports import ReportSender
from goodput_collector.settings import Settings
from goodput_collector.wiring import all_readers
from goodput_collector.wiring.given import Given, read_boot_id
from goodput_common.bus.errors import ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Bus
from goodput_common.bus.provision import provision
from goodput_common.contracts.telemetry import SourceStatus
from goodput_common.http.operations import OperationsServer
from goodput_common.runtime.clock import Clock, SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.run_dir import reports_socket
from goodput_common.runtime.tasks import Tasks

COMPRESS_OVER_BYTES = 4096
DESCRIPTORS_MAX = 65536

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    parts: tuple[Part, ...]
    health: Health
    tasks: Tasks


def build(settings: Settings, *, bus: Bus | None = None, clock: Clock | None = None) -> Collector:
    """`bus` and `clock` are given by tests and by `goodput demo`. Raises StartError."""
    raise_descriptor_limit()
    clock = clock or SystemClock()
    tasks = Tasks()
    health = Health()
    metrics = Metrics("collector", fabric=settings.fabric)
    boot_id = read_boot_id(settings.proc_root)
    directory = settings.spool_directory
    bookmarks = Bookmarks(directory / "bookmarks")
    told_as = numbering(directory, boot_id=boot_id)
    try:
        spool = DiskSpool(directory, boot_id=told_as, bytes_max=settings.spool_bytes, mark_number=bookmarks.next_number)
    except OSError as error:
        raise StartError(
            f"cannot use {directory} for the spool: {error.strerror or error}",
            do_next="make it writable, or set GOODPUT_SPOOL_DIR or GOODPUT_RUN_DIR",
        ) from error
    connection = _Connection(settings, clock, metrics, bus)
    origin = Origin(fabric=settings.fabric, host=settings.host, boot_id=told_as)
    publisher = Publisher(
        origin, spool, connection.connect, clock=clock, tasks=tasks, measures_every_s=settings.measures_every_s
    )
    bookmarks.restore(spool.marks)  # of what was spooled before a kill that the bookmarks have not heard of
    given = Given(settings=settings, boot_id=boot_id, clock=clock, bookmarks=bookmarks)
    readers = all_readers(given)
    schedule = Schedule(readers, publisher.publish, settled=lambda: publisher.settled)
    heartbeat = Heartbeat(publisher, schedule.conditions, interval_s=settings.heartbeat_s, clock=clock, tasks=tasks)

    async def reachable() -> bool:
        return bool(publisher.reachable)

    health.add("bus", reachable, required=False)
    metrics.gauge("collector_spooled", "Messages waiting for the bus").set_function(lambda: spool.state().waiting)
    metrics.gauge("collector_dropped", "Messages dropped: at the spool's bound, or refused by the bus").set_function(
        lambda: spool.state().dropped + publisher.refused
    )
    metrics.gauge("collector_published", "Messages stored by the bus").set_function(lambda: publisher.published)
    readable = metrics.gauge("collector_source_ok", "1: this source is read; 0: unknown or absent", ["source"])
    for each in schedule.conditions():
        readable.labels(each.name).set_function(lambda each=each: float(each.status is SourceStatus.OK))  # type: ignore[misc]
    parts: list[Part] = [connection, publisher, schedule, heartbeat]
    if settings.reports_together:
        # told apart by when this process began: numbers of messages begin anew with each
        name = f"{boot_id[:8]}.{os.getpid()}.{int(clock.now().timestamp() * 1e6)}"
        sender = ReportSender(origin, name, connection.connect, clock=clock, tasks=tasks)
        socket = ReportSocket(reports_socket(settings.run_dir, settings.host), sender)
        metrics.gauge("collector_reports_sent_on", "Reports of ranks that the bus has stored").set_function(
            lambda: sender.sent_on
        )
        metrics.gauge("collector_reports_dropped", "Reports of ranks left to the ranks to send").set_function(
            lambda: sender.dropped
        )
        metrics.gauge("collector_ranks_connected", "Ranks that hand their reports over").set_function(
            lambda: socket.connected
        )
        parts.append(socket)
    if settings.collector_http:
        parts.append(OperationsServer(health=health, metrics=metrics, host=settings.http_host, port=settings.http_port))
    return Collector(parts=tuple(parts), health=health, tasks=tasks)


def raise_descriptor_limit() -> int:
    """Many hosts start services with 1024 descriptors and allow far more: logs, counters and sockets of a large host need
    them. Returns what holds now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        _log.warning("descriptor limit not raised", soft=soft, wanted=wanted, error=str(error))
        return soft
    return wanted


class _Connection(Part):
    """The bus, made when it is first needed: a collector starts without one.

    Its streams are somebody else's to make (the correlator, recovery): whoever owns a host's credentials must not be able to
    change them. Until they are there, messages wait in the spool.
    """

    name = "bus"

    def __init__(self, settings: Settings, clock: Clock, metrics: Metrics, bus: Bus | None) -> None:
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._given = bus
        self._bus: JetStreamBus | None = None

    async def connect(self) -> Bus:
        """Raises BusUnavailable."""
        if self._given is not None:
            return self._given
        if self._bus is None:
            password = self._settings.nats_password
            self._bus = await JetStreamBus.connect(
                self._settings.nats_url.get_secret_value(),
                name=f"collector/{self._settings.host}",
                user=self._settings.nats_user,
                password=password.get_secret_value() if password is not None else None,
                clock=self._clock,
                wait_s=0,
                compress_over=COMPRESS_OVER_BYTES,
                registry=self._metrics.registry,
            )
        await self._bus.client()
        if self._settings.provision_streams:
            try:
                await provision(self._bus)
            except ProvisioningConflict as error:
                _log.error("streams differ from what is wanted; publishing all the same", error=str(error))
        return self._bus

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()
