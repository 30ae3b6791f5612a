"""Network interfaces and RDMA devices."""

from __future__ import annotations

import re

from goodput_collector.adapters.devlink import DevlinkReader
from goodput_collector.adapters.ethtool import EthtoolReader
from goodput_collector.adapters.netdevs import Pods
from goodput_collector.adapters.netlink import NetlinkReader
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.adapters.verbs import VerbsReader
from goodput_collector.application.ports import SourceReader
from goodput_collector.settings import listed
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    ignored_devices = listed(settings.rdma_ignore)
    ignored = re.compile(settings.netdev_ignore)
    return [
        NetlinkReader(host=given.host, clock=given.clock, sys_root=given.sys_root, ignore=ignored, pods=Pods()),
        RdmaReader(
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            sys_root=given.sys_root,
            ignore=ignored_devices,
            interval_s=settings.rdma_interval_s,
            pods=Pods(),
        ),
        VerbsReader(host=given.host, clock=given.clock, sys_root=given.sys_root, ignore=ignored_devices),
        EthtoolReader(
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            sys_root=given.sys_root,
            ignore=ignored,
            interval_s=settings.ethtool_interval_s,
            modules_every_s=settings.modules_every_s,
            pods=Pods(),
        ),
        DevlinkReader(
            host=given.host,
            clock=given.clock,
            sys_root=given.sys_root,
            interval_s=settings.devlink_interval_s,
        ),
    ]
