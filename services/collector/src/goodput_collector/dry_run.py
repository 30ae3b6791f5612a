"""`goodput collector check`: the sources constructed as the collector would, and read; nothing is published or kept."""

from __future__ import annotations

import tempfile
from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.check import SourceCheck, check
from goodput_collector.settings import Settings
from goodput_collector.wiring import all_readers, switched_off
from goodput_collector.wiring.given import Given, read_boot_id
from goodput_common.runtime.clock import Clock, SystemClock


async def dry_run(settings: Settings, *, clock: Clock | None = None) -> tuple[SourceCheck, ...]:
    clock = clock or SystemClock()
    with tempfile.TemporaryDirectory(prefix="goodput-check-") as directory:
        bookmarks = Bookmarks(Path(directory) / "bookmarks")
        given = Given(settings=settings, boot_id=read_boot_id(settings.proc_root), clock=clock, bookmarks=bookmarks)
        return await check(all_readers(given), switched_off(given), clock=clock)
