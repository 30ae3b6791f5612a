"""What every source is constructed from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.application.small_file import small_text
from goodput_collector.settings import Settings
from goodput_common.runtime.clock import Clock


@dataclass(frozen=True, kw_only=True)
class Given:
    settings: Settings
    boot_id: str
    clock: Clock
    bookmarks: Bookmarks

    @cached_property
    def nvml(self) -> NvmlLibrary:
        """One for all readers of GPUs, made when first used: NVML is started and let go of once for the whole process."""
        return NvmlLibrary(sys_root=self.sys_root)

    @property
    def host(self) -> str:
        return self.settings.host

    @property
    def sys_root(self) -> Path:
        return self.settings.sys_root

    @property
    def proc_root(self) -> Path:
        return self.settings.proc_root


def read_boot_id(proc_root: Path) -> str:
    """Names this boot of the host; `unknown` where the kernel does not tell."""
    try:
        return small_text(proc_root / "sys" / "kernel" / "random" / "boot_id") or "unknown"
    except OSError:
        return "unknown"
