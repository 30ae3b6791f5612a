"""The parts of the lab that need no namespaces: names, topology, victims, orders, messages between its halves."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.topology import Relation
from goodput_common.contracts.verdict import FaultClass
from goodput_faultlab.lab import SCENARIOS, LabError, LabSession, packetloss
from goodput_faultlab.lab.freezer import Freezer
from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.protocol import Failed, Progress, Report
from goodput_faultlab.lab.sabotage import Order, Sabotage, give, take
from goodput_faultlab.lab.scenarios import choose, kernel_log_line
from goodput_faultlab.lab.topology import snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_address_and_gpu_of_a_plan_is_its_own() -> None:
    plan = LabPlan(hosts=6, ranks_per_host=4, rails=2, spares=2)
    addresses = [host.management_address for host in plan.all_hosts]
    addresses += [host.rail_address(rail) for host in plan.all_hosts for rail in range(plan.rails)]
    assert len(set(addresses)) == len(addresses)
    gpus = [host.gpu_pci(gpu) for host in plan.all_hosts for gpu in range(plan.ranks_per_host)]
    assert len(set(gpus)) == len(gpus)
    assert all(ids.normal_pci(pci) == pci for pci in gpus)


@pytest.mark.parametrize(("field", "value"), [("hosts", 1), ("ranks_per_host", 0), ("rails", 0), ("hosts", 1000)])
def test_a_plan_that_cannot_be_built_says_which_number_is_wrong(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        LabPlan(**{field: value})


@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(4, 2), (4, 1), (5, 1), (2, 8), (3, 1)])
def test_every_rank_has_company_in_exactly_one_small_group(hosts: int, ranks_per_host: int) -> None:
    plan = LabPlan(hosts=hosts, ranks_per_host=ranks_per_host)
    members = [rank for group in plan.small_groups for rank in group]
    assert members == list(range(plan.world_size))
    assert min(len(group) for group in plan.small_groups) >= 2


def test_the_topology_cables_each_rail_nic_to_a_port_named_after_its_host() -> None:
    graph = snapshot(LabPlan(rails=2), NOW)
    known = {component.id for component in graph.components}
    cables = [edge for edge in graph.edges if edge.relation is Relation.CABLED]
    assert len(cables) == 5 * 2
    assert {edge.attrs["id"] for edge in cables} >= {"link:nic:h0/rail0/1--port:leaf0/h0"}
    assert all(edge.a in known and edge.b in known for edge in graph.edges)
    carrying = {each.id for each in graph.components if each.attrs.get("carries_traffic") == "true"}
    assert carrying == {f"nic:h{host}/rail{rail}/1" for host in range(5) for rail in range(2)}


def test_a_seed_always_chooses_the_same_victim_and_seeds_reach_every_rank() -> None:
    plan = LabPlan()
    assert choose(7, plan, "gil-held") == choose(7, plan, "gil-held")
    assert {choose(seed, plan, "gil-held").rank for seed in range(100)} == set(range(plan.world_size))
    assert len({choose(seed, plan, "gil-held").rank for seed in range(10)}) >= 4


@pytest.mark.parametrize("seed", range(8))
def test_a_victims_host_rail_and_gpu_belong_to_its_rank(seed: int) -> None:
    plan = LabPlan(hosts=3, ranks_per_host=4, rails=2)
    victim = choose(seed, plan, "link-down")
    assert victim.rank in victim.ranks_of_host
    assert victim.host == f"h{victim.rank // 4}"
    assert (victim.gpu, victim.rail) == (victim.rank % 4, victim.rank % 4 % 2)


def test_every_scenario_has_a_truth_that_its_kind_of_fault_can_have() -> None:
    expected = {
        "link-down": (FaultClass.LINK_FLAP, ComponentKind.LINK),
        "link-flap": (FaultClass.LINK_FLAP, ComponentKind.LINK),
        "packet-loss": (FaultClass.LINK_FLAP, ComponentKind.LINK),
        "rank-killed": (FaultClass.PROCESS_DEAD, ComponentKind.RANK),
        "rank-frozen": (FaultClass.PROCESS_STALL, ComponentKind.RANK),
        "gil-held": (FaultClass.PROCESS_STALL, ComponentKind.RANK),
        "collective-skipped": (FaultClass.COLLECTIVE_DESYNC, ComponentKind.RANK),
        "gpu-off-bus": (FaultClass.GPU_OFF_BUS, ComponentKind.GPU),
        "healthy": (FaultClass.NO_HARDWARE_FAULT, None),
    }
    assert set(SCENARIOS) == set(expected)
    victim = choose(3, LabPlan(), "gil-held")
    for name, scenario in SCENARIOS.items():
        component, also, ranks, _ = scenario._truth(victim, "j")
        kind = None if component is None else ids.kind_of(component)
        assert (scenario.fault_class, kind) == expected[name]
        assert victim.rank in ranks or kind is None
        assert all(ids.parse(each) for each in also)


def test_an_order_is_found_once(tmp_path: Path) -> None:
    path = tmp_path / "order-3-0"
    assert take(path) is None
    give(path, Order(what=Sabotage.SKIP_COLLECTIVE))
    assert take(path) == Order(what=Sabotage.SKIP_COLLECTIVE)
    assert take(path) is None


def test_the_kernel_log_line_is_one_that_the_collector_can_date() -> None:
    line = kernel_log_line(NOW, "h2", "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.")
    assert line == (
        "2026-01-01T00:00:00.000000+00:00 h2 kernel: NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n"
    )


def test_reports_keep_their_kind_between_the_halves() -> None:
    for report in (Progress(text="hello"), Failed(reason="because", fatal=True)):
        assert msgspec.json.decode(msgspec.json.encode(report), type=Report) == report


def test_a_session_that_was_not_started_says_so() -> None:
    with pytest.raises(LabError, match="not running"):
        LabSession().run("healthy", 1)
    with pytest.raises(LabError, match="there is no scenario 'nonsense'"):
        LabSession().run("nonsense", 1)


@pytest.mark.parametrize("per_mille", [0, -1, 1001])
def test_a_loss_that_is_no_share_is_refused_before_the_kernel_sees_it(per_mille: int) -> None:
    with pytest.raises(ValueError, match="per_mille"):
        packetloss.add("lo", per_mille)


async def test_a_frozen_process_stands_still_until_it_is_thawed() -> None:
    """By whatever means this machine has: its counter stops, and goes on afterwards."""
    process = await asyncio.create_subprocess_exec(
        *("sh", "-c", "while :; do echo; sleep 0.01; done"), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    freezer = Freezer(f"test-{random.randrange(1 << 30):x}")
    freezer.freeze(process.pid)
    assert freezer.means
    try:
        await asyncio.sleep(0.2)
        while True:  # what was written before
            try:
                await asyncio.wait_for(process.stdout.readline(), 0.3)
            except TimeoutError:
                break
    finally:
        freezer.thaw()
    assert await asyncio.wait_for(process.stdout.readline(), 20)
    process.kill()
    await process.wait()
