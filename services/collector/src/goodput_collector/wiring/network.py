"""Network interfaces and RDMA devices."""

from __future__ import annotations

import re

from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.application.ports import SourceReader
from goodput_collector.settings import listed
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    return [
        NetlinkReader(
            host=given.host, clock=given.clock, sys_root=given.sys_root, ignore=re.compile(settings.netdev_ignore)
        ),
        RdmaReader(
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            sys_root=given.sys_root,
            ignore=listed(settings.rdma_ignore),
            interval_s=settings.rdma_interval_s,
        ),
    ]
