"""Topology: what this host is built of and cabled to, and where asked for the InfiniBand fabric whole."""

from __future__ import annotations

import re
from pathlib import Path

from goodput_collector.adapters.discovery import DiscoveryReader, GpuFacts
from goodput_collector.adapters.discovery_fabric import FabricScanReader
from goodput_collector.adapters.discovery_gpus import GpuFactsReader
from goodput_collector.adapters.discovery_memory import DiscoveryMemory
from goodput_collector.adapters.discovery_nics import own_interfaces
from goodput_collector.application.ports import SourceReader
from goodput_collector.settings import listed
from goodput_collector.wiring.given import Given


def readers(given: Given) -> list[SourceReader]:
    settings = given.settings
    facts = GpuFacts()
    found: list[SourceReader] = [
        DiscoveryReader(
            fabric=settings.fabric,
            host=given.host,
            boot_id=given.boot_id,
            clock=given.clock,
            memory=DiscoveryMemory(settings.spool_directory / "discovery.json"),
            gpus=facts,
            ignore=re.compile(settings.netdev_ignore),
            rdma_ignore=listed(settings.rdma_ignore),
            training=listed(settings.training_nics),
            lldp=settings.lldp,
            cloud=settings.cloud_topology,
            sys_root=given.sys_root,
            proc_root=given.proc_root,
            visible=own_interfaces if given.sys_root == Path("/sys") else None,
        ),
        GpuFactsReader(facts, host=given.host, sys_root=given.sys_root, library=given.nvml),
    ]
    if settings.ibnetdiscover:
        memory = DiscoveryMemory(settings.spool_directory / "ibnetdiscover.json")
        found.append(
            FabricScanReader(
                settings.ibnetdiscover, fabric=settings.fabric, host=given.host, clock=given.clock, memory=memory
            )
        )
    return found
