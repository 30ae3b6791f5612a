"""Every counter, measurement and state that the simulator tells is one that the collector publishes.

`docs/collector/sources.md` lists them; for RDMA ports and NIC statistics it points at what the driver has, so there the
collector's own tables decide. An engine that is tried on names which no host ever says would be tried on nothing.
"""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from goodput_collector.domain import ethtool_stats, rdma_counters
from goodput_common.contracts.telemetry import Counter, Gauge, Source, State, TelemetryBatch
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.simulate import FaultSpec, NoiseSpec, Simulation, SimulationSpec
from goodput_faultlab.simulate.faults import MAKERS
from goodput_topology.generate import h100_pod

SOURCES = Path(__file__).parents[2] / "docs" / "collector" / "sources.md"
FLAVOURS = sorted((fault, flavour) for fault, flavours in MAKERS.items() for flavour in flavours)
PACKETS = {f"{way}_{direction}_packets" for way in ("unicast", "multicast") for direction in ("xmit", "rcv")}
RDMA = {*rdma_counters.QUEUE_COUNTERS, *rdma_counters.PORT_COUNTERS, *rdma_counters.OTHER_COUNTERS, *PACKETS}


def documented() -> re.Pattern[str]:
    """All names in backticks, as one pattern: `<n>` and `*` stand for anything, `<a|b>` for either; `_restored` or
    `..._restored` behind `pfc_watchdog_stormed` is that name with another last word, `:<error>` behind a name follows it."""
    patterns, last = [], ""
    for name in re.findall(r"`([A-Za-z_.:][^`\s]*)`", SOURCES.read_text()):
        if name.startswith(("...", "_")):
            patterns.append(last.rpartition("_")[0] + name.removeprefix("..."))
        elif name.startswith(":"):
            patterns.append(last + name)
        else:
            last = name
            patterns.append(name)
    return re.compile("|".join(map(_pattern, patterns)))


def _pattern(name: str) -> str:
    found = ""
    for part in re.split(r"(<[^>]*>|\*)", name.replace("\\|", "|")):
        if part.startswith("<") and "|" in part:
            found += f"(?:{part[1:-1]})"
        elif part == "*" or part.startswith("<"):
            found += r"[\w/.:-]+"
        else:
            found += re.escape(part)
    return found


def told(fault: FaultClass, flavour: str) -> set[tuple[Source, str]]:
    fabric = h100_pod(hosts=3, pods=2, spines=2)
    spec = SimulationSpec(
        fabric=fabric, hosts=fabric.hosts()[:5], spares=fabric.hosts()[5:], step_s=0.4, switches=True,
        faults=(FaultSpec(fault_class=fault, flavour=flavour, at_s=8.0),), noise=NoiseSpec(checkpoint_every=30),
    )  # fmt: skip
    out = Simulation(spec, 4).advance(spec.start + timedelta(seconds=45))
    return {
        (each.struct.source, sample.name)
        for each in out
        if isinstance(each.struct, TelemetryBatch)
        for sample in each.struct.samples
        if isinstance(sample, Counter | Gauge | State)
    }


@pytest.mark.parametrize(("fault", "flavour"), FLAVOURS)
def test_every_name_that_is_told_is_one_that_the_collector_publishes(fault: FaultClass, flavour: str) -> None:
    known = documented()
    unknown = []
    for source, name in sorted(told(fault, flavour)):
        if source is Source.ETHTOOL and ethtool_stats.chosen([name]):
            continue
        if not (known.fullmatch(name) or (source is Source.RDMA and name in RDMA)):
            unknown.append(f"{source.value}: {name}")
    assert not unknown


def test_names_that_nobody_publishes_are_found_out() -> None:
    known = documented()
    assert all(known.fullmatch(name) for name in ("pcie_link", "in_crc_errors", "pressure_io_some_share", "rx_prio3_pause"))
    assert not any(known.fullmatch(name) for name in ("gpu_fan_rpm", "in_crc", "pause", "tx_prio3_drops"))
