"""`goodput collector check`: the sources constructed as the collector would, and read; nothing is published or kept."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.check import Advice, SourceCheck, check
from goodput_collector.settings import Settings
from goodput_collector.wiring import advice, all_readers, switched_off
from goodput_collector.wiring.given import Given, read_boot_id
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock, SystemClock


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """`notes`: what is odd about the settings. `told_by`: by source, the variables that were set and say where it looks."""

    host: str
    uid: int
    run_dir: str
    notes: tuple[str, ...]
    told_by: dict[Source, str]
    sources: tuple[SourceCheck, ...]


async def report(settings: Settings, *, environ: Mapping[str, str]) -> Report:
    return Report(
        host=settings.host,
        uid=os.getuid(),
        run_dir=str(settings.run_dir),
        notes=advice.notes(settings, environ),
        told_by={source: told for source, told in advice.where_told(settings).items() if told},
        sources=await dry_run(settings),
    )


async def dry_run(settings: Settings, *, clock: Clock | None = None) -> tuple[SourceCheck, ...]:
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(prefix="goodput-check-") as directory:
        bookmarks = Bookmarks(Path(directory) / "bookmarks")
        given = Given(settings=settings, boot_id=read_boot_id(settings.proc_root), clock=clock, bookmarks=bookmarks)
        advised = Advice(why_nothing=advice.why_nothing(given), remedies=advice.remedies(given))
        return await check(all_readers(given), switched_off(given), clock=clock, advice=advised)
