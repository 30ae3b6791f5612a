"""Logs: the kernel's, and those of training processes."""

from __future__ import annotations

import shlex
import stat
import time
import weakref
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from goodput_collector.adapters.file_reader import FileReader
from goodput_collector.adapters.journal import JournalReader
from goodput_collector.adapters.kmsg import KmsgReader
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.adapters.rank_files import LogOwner, RankFiles
from goodput_collector.adapters.registrations import Registrations
from goodput_collector.application.ports import SourceReader
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.log_lines import JobLines, KernelLines
from goodput_collector.domain.nccl_log import JobLogParser, rank_of_log
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.settings import JOURNAL, listed
from goodput_collector.wiring.given import Given
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock


def readers(given: Given) -> list[SourceReader]:
    found: list[SourceReader] = []
    if kernel_log := _kernel_log(given):
        found.append(kernel_log)
    patterns = listed(given.settings.job_logs)
    if patterns or given.settings.job_logs_of_ranks:
        found.append(_job_logs(given, patterns))
    return found


def _kernel_log(given: Given) -> SourceReader | None:
    settings, clock, bookmarks = given.settings, given.clock, given.bookmarks
    patterns = listed(settings.kernel_log)
    if not patterns:
        return None
    if patterns == (JOURNAL,):
        return JournalReader(
            host=settings.host,
            clock=clock,
            bookmarks=bookmarks,
            command=shlex.split(settings.journalctl),
            history_s=settings.history_s,
        )
    if len(patterns) == 1 and _is_device(patterns[0]):
        return KmsgReader(
            patterns[0],
            host=settings.host,
            boot_id=given.boot_id,
            clock=clock,
            bookmarks=bookmarks,
            history_s=settings.history_s,
        )
    clocks = _LineClocks(clock)

    def lines_of(_: Path) -> KernelLines:
        return KernelLines(KernelLogParser(host=settings.host, clock=clocks.make()))

    return FileReader(
        Source.KERNEL_LOG,
        patterns,
        host=settings.host,
        lines_of=lines_of,
        before_read=clocks.refresh,
        clock=clock,
        bookmarks=bookmarks,
    )


def _job_logs(given: Given, patterns: tuple[str, ...]) -> SourceReader:
    settings, clock, bookmarks = given.settings, given.clock, given.bookmarks
    clocks = _LineClocks(clock)
    ranks = Registrations(settings.run_dir, clock).ranks
    files = RankFiles(ranks, host=settings.host, proc_root=settings.proc_root)
    owners: dict[Path, LogOwner] = {}

    def named() -> Iterable[Path]:
        owners.clear()
        owners.update(files.logs() if settings.job_logs_of_ranks else {})
        return tuple(owners)

    def lines_of(path: Path) -> JobLines:
        owner = owners.get(path)
        job, rank = (owner.job, owner.rank) if owner is not None else (_only_job(settings.run_dir) or path.stem, None)
        rank = rank_of_log(path.name) if rank is None else rank
        return JobLines(JobLogParser(host=settings.host, clock=clocks.make(), job=job, rank=rank))

    return FileReader(
        Source.JOB_LOG,
        patterns,
        host=settings.host,
        lines_of=lines_of,
        before_read=clocks.refresh,
        clock=clock,
        bookmarks=bookmarks,
        named=named,
        named_in=[settings.run_dir / "ranks"] if settings.job_logs_of_ranks else [],
    )


def _only_job(run_dir: Path) -> str:
    jobs = {each.job for each in registered_ranks(run_dir)}
    return jobs.pop() if len(jobs) == 1 else ""


class _LineClocks:
    """The line clocks of files that grow: local time, dated against now, boot-relative against this boot."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._made: weakref.WeakSet[LineClock] = weakref.WeakSet()  # files come and go

    def make(self) -> LineClock:
        now = self._clock.now()
        made = LineClock(
            reference=now,
            boot_at=now - timedelta(seconds=time.clock_gettime(time.CLOCK_MONOTONIC)),
            zone=datetime.now().astimezone().tzinfo or UTC,
            live=True,
        )
        self._made.add(made)
        return made

    def refresh(self) -> None:
        now = self._clock.now()
        for each in self._made:
            each.collected(now)


def _is_device(path: str) -> bool:
    """A device, or nothing that is there: then the reader says what is missing."""
    try:
        return stat.S_ISCHR(Path(path).stat().st_mode)
    except OSError:
        return path.startswith("/dev/")
