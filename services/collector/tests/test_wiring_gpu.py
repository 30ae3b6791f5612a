"""All readers of GPUs in one process share one NVML."""

from __future__ import annotations

from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.settings import Settings
from goodput_collector.wiring import discovery, gpu
from goodput_collector.wiring.given import Given
from goodput_common.runtime.clock import SystemClock


def test_telemetry_events_and_discovery_ask_one_nvml(tmp_path: Path) -> None:
    """Each would start it by itself otherwise, and a renewal after a driver's reload would wait for nobody it knows of."""
    settings = Settings(host="h7", run_dir=tmp_path)
    given = Given(settings=settings, boot_id="b1", clock=SystemClock(), bookmarks=Bookmarks(tmp_path / "bookmarks"))
    used = [
        library
        for reader in (*gpu.readers(given), *discovery.readers(given))
        if isinstance(library := getattr(getattr(reader, "_gpus", reader), "_library", None), NvmlLibrary)
    ]
    assert len(used) == 3 and all(each is given.nvml for each in used)
