"""The GPUs: their driver asked directly, its events, and a dcgm-exporter where one is given."""

from __future__ import annotations

from goodput_collector.adapters.dcgm import DcgmReader
from goodput_collector.adapters.nvml import NvmlReader
from goodput_collector.adapters.nvml_events import NvmlEventReader
from goodput_collector.application.ports import SourceReader
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    library = given.nvml
    found: list[SourceReader] = [
        NvmlReader(
            library,
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            run_dir=settings.run_dir,
            sys_root=given.sys_root,
            proc_root=given.proc_root,
            interval_s=settings.nvml_interval_s,
        ),
        NvmlEventReader(library, host=given.host, clock=given.clock),
    ]
    if settings.dcgm_url:
        found.append(
            DcgmReader(
                settings.dcgm_url,
                host=given.host,
                boot_id=given.boot_id,
                clock=given.clock,
                interval_s=settings.dcgm_interval_s,
            )
        )
    return found
