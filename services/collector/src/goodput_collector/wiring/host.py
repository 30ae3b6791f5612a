"""The host itself: what it is short of, its storage, and what its hardware counts. Three readers, so that none waits for
another's file."""

from __future__ import annotations

from goodput_collector.adapters.host_hardware import HostHardwareReader
from goodput_collector.adapters.host_load import HostLoadReader
from goodput_collector.adapters.host_storage import HostStorageReader
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.application.ports import SourceReader
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    return [
        HostLoadReader(
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            ranks=lambda: registered_ranks(settings.run_dir),
            proc_root=given.proc_root,
            cgroup_root=given.sys_root / "fs" / "cgroup",
        ),
        HostStorageReader(
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            proc_root=given.proc_root,
            sys_root=given.sys_root,
            stalled_after_s=settings.storage_stalled_after_s,
        ),
        HostHardwareReader(host=given.host, boot_id=given.boot_id, clock=given.clock, sys_root=given.sys_root),
    ]
