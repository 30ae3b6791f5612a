"""Puts the collector together. The only place that constructs."""

from __future__ import annotations

import re
import stat
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.dumps import DumpReader
from goodput_collector.adapters.files import FileReader, LineParser
from goodput_collector.adapters.kmsg import KmsgReader
from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.adapters.process import ProcessReader, registered_ranks
from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.application.ports import SourceReader
from goodput_collector.application.publish import Heartbeat, Origin, Publisher
from goodput_collector.application.schedule import Schedule
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.nccl_log import JobLogParser, rank_of_log
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.settings import Settings, listed
from goodput_common.bus.errors import ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.ports import Bus
from goodput_common.bus.provision import provision
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock, SystemClock
from goodput_common.runtime.health import Health
from goodput_common.runtime.lifecycle import Part, StartError
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.metrics import Metrics
from goodput_common.runtime.tasks import Tasks

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    parts: tuple[Part, ...]
    health: Health
    tasks: Tasks


def build(settings: Settings, *, bus: Bus | None = None, clock: Clock | None = None) -> Collector:
    """`bus` and `clock` are given by tests and by `goodput demo`. Raises StartError."""
    clock = clock or SystemClock()
    tasks = Tasks()
    health = Health()
    metrics = Metrics("collector", fabric=settings.fabric)
    boot_id = _boot_id(settings.proc_root)
    directory = settings.spool_directory
    try:
        spool = DiskSpool(directory, boot_id=boot_id, bytes_max=settings.spool_bytes)
    except OSError as error:
        raise StartError(
            f"cannot use {directory} for the spool: {error.strerror or error}",
            do_next="make it writable, or set GOODPUT_SPOOL_DIR or GOODPUT_RUN_DIR",
        ) from error
    connection = _Connection(settings, clock, metrics, bus)
    origin = Origin(fabric=settings.fabric, host=settings.host, boot_id=boot_id)
    publisher = Publisher(origin, spool, connection.connect, clock=clock, tasks=tasks)
    readers = _readers(settings, boot_id, clock, Bookmarks(directory / "bookmarks"))
    schedule = Schedule(readers, publisher.publish, clock=clock, tasks=tasks)
    heartbeat = Heartbeat(publisher, schedule.conditions, interval_s=settings.heartbeat_s, clock=clock, tasks=tasks)

    async def reachable() -> bool:
        return bool(publisher.reachable)

    health.add("bus", reachable, required=False)
    metrics.gauge("collector_spooled", "Messages waiting for the bus").set_function(lambda: spool.state().waiting)
    metrics.gauge("collector_dropped", "Messages dropped at the spool's bound").set_function(lambda: spool.state().dropped)
    metrics.gauge("collector_published", "Messages stored by the bus").set_function(lambda: publisher.published)
    parts: list[Part] = [connection, publisher, schedule, heartbeat]
    if settings.collector_http:
        parts.append(_http(settings, health, metrics, tasks))
    return Collector(parts=tuple(parts), health=health, tasks=tasks)


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


def _readers(settings: Settings, boot_id: str, clock: Clock, bookmarks: Bookmarks) -> list[SourceReader]:
    readers: list[SourceReader] = []
    if kernel_log := _kernel_log(settings, boot_id, clock, bookmarks):
        readers.append(kernel_log)
    readers.append(
        NetlinkReader(host=settings.host, clock=clock, sys_root=settings.sys_root, ignore=re.compile(settings.netdev_ignore))
    )
    readers.append(
        RdmaReader(
            host=settings.host,
            boot_id=boot_id,
            clock=clock,
            sys_root=settings.sys_root,
            ignore=listed(settings.rdma_ignore),
            interval_s=settings.rdma_interval_s,
        )
    )
    readers.append(
        ProcessReader(
            run_dir=settings.run_dir,
            clock=clock,
            host=settings.host,
            boot_id=boot_id,
            proc_root=settings.proc_root,
            cgroup_root=settings.sys_root / "fs" / "cgroup",
            interval_s=settings.process_interval_s,
        )
    )
    readers.append(
        DumpReader(
            run_dir=settings.run_dir,
            patterns=listed(settings.flight_recorder_files),
            fabric=settings.fabric,
            host=settings.host,
            clock=clock,
            bookmarks=bookmarks,
        )
    )
    if patterns := listed(settings.job_logs):
        readers.append(_job_logs(settings, patterns, clock, bookmarks))
    return readers


def _kernel_log(settings: Settings, boot_id: str, clock: Clock, bookmarks: Bookmarks) -> SourceReader | None:
    patterns = listed(settings.kernel_log)
    if not patterns:
        return None
    if len(patterns) == 1 and _is_device(patterns[0]):
        return KmsgReader(
            patterns[0],
            host=settings.host,
            boot_id=boot_id,
            clock=clock,
            bookmarks=bookmarks,
            history_s=settings.history_s,
        )
    clocks = _LineClocks(clock)

    def parser_of(_: Path) -> LineParser:
        return KernelLogParser(host=settings.host, clock=clocks.make())

    return FileReader(
        Source.KERNEL_LOG, patterns, parser_of=parser_of, before_read=clocks.refresh, clock=clock, bookmarks=bookmarks
    )


def _job_logs(settings: Settings, patterns: tuple[str, ...], clock: Clock, bookmarks: Bookmarks) -> SourceReader:
    clocks = _LineClocks(clock)

    def parser_of(path: Path) -> LineParser:
        jobs = {each.job for each in registered_ranks(settings.run_dir)}
        job = jobs.pop() if len(jobs) == 1 else path.stem
        return JobLogParser(host=settings.host, clock=clocks.make(), job=job, rank=rank_of_log(path.name))

    return FileReader(
        Source.JOB_LOG, patterns, parser_of=parser_of, before_read=clocks.refresh, clock=clock, bookmarks=bookmarks
    )


class _LineClocks:
    """The line clocks of files that grow: local time, dated against now, boot-relative against this boot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: list[LineClock] = []

    def make(self) -> LineClock:
        now = self._clock.now()
        made = LineClock(
            reference=now,
            boot_at=now - timedelta(seconds=time.clock_gettime(time.CLOCK_MONOTONIC)),
            zone=datetime.now().astimezone().tzinfo or UTC,
            live=True,
        )
        self._made.append(made)
        return made

    def refresh(self) -> None:
        now = self._clock.now()
        for each in self._made:
            each.collected(now)


def _http(settings: Settings, health: Health, metrics: Metrics, tasks: Tasks) -> Part:
    """Imported late: a collector without HTTP needs no web framework."""
    try:
        from goodput_common.http.api import create_api
        from goodput_common.http.auth import Auth
        from goodput_common.http.server import HttpServer
    except ImportError as error:
        raise StartError(
            f"HTTP needs {error.name}, which is not installed",
            do_next="install goodput-common[service], or set GOODPUT_COLLECTOR_HTTP=false",
        ) from error
    app = create_api("goodput collector", "1", health=health, auth=Auth(), metrics=metrics)
    return HttpServer(app, host=settings.http_host, port=settings.http_port, tasks=tasks)


def _boot_id(proc_root: Path) -> str:
    try:
        return (proc_root / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return "unknown"


def _is_device(path: str) -> bool:
    """A device, or nothing that is there: then the reader says what is missing."""
    try:
        return stat.S_ISCHR(Path(path).stat().st_mode)
    except OSError:
        return path.startswith("/dev/")
