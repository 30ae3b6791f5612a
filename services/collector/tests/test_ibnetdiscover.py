"""A scan of an InfiniBand fabric: every cable once, names where there are any, tiers and rails from the shape."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from collector_fixtures import QuickClock, Rig, Ticking, TurnedClock
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.discovery_fabric import FabricScanReader
from goodput_collector.adapters.discovery_memory import DiscoveryMemory
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.application.schedule import Condition
from goodput_collector.domain.discovery_fabric import draw
from goodput_collector.domain.ibnetdiscover import NodeKind, host_and_device, parse, rails, switch_name, tiers
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Source, SourceStatus
from goodput_common.contracts.topology import TopologySnapshot
from goodput_topology.graph import Fabric

REAL = Path(__file__).parents[4] / "shared/data/public/topograph/ibnetdiscover-example.out"


def small() -> str:
    """Two hosts of two adapters, one nameless; two leaves, a spine; the reduction engine of a leaf."""
    leaves = {1: "aaaa000000000001", 2: "aaaa000000000002"}
    spine = "bbbb000000000001"
    hosts = {
        (1, 1): ("cccc000000000011", "h1 mlx5_0"), (1, 2): ("cccc000000000012", "h1 mlx5_1"),
        (2, 1): ("cccc000000000021", "h2 mlx5_0"), (2, 2): ("cccc000000000022", "MT4129 ConnectX7   Mellanox Technologies"),
    }  # fmt: skip
    lines = ["#", "# Topology file: generated on Wed Aug  6 16:11:23 2025", "#"]
    for rail, guid in leaves.items():
        lines += ["vendid=0x2c9", f"switchguid=0x{guid}({guid})"]
        lines.append(f'Switch\t65 "S-{guid}"\t\t# "MF0;leaf-{rail}:MQM9701/U1" enhanced port 0 lid 7{rail} lmc 0')
        for (host, on_rail), (adapter, name) in hosts.items():
            if on_rail == rail:
                lines.append(f'[{host}]\t"H-{adapter}"[1]({adapter}) \t\t# "{name}" lid 6{host}{rail} 4xNDR')
        lines.append(f'[35]\t"S-{spine}"[{rail}]\t\t# "MF0;spine-1:MQM9701/U1" lid 236 4xNDR')
        lines.append(f'[36][ext 4]\t"S-{spine}"[{rail + 10}][ext 9]\t\t# "MF0;spine-1:MQM9701/U1" lid 236 2xNDR')
    lines.append(
        '[65]\t"H-dddd000000000001"[1](dddd000000000001) \t\t# "Mellanox Technologies Aggregation Node" lid 193 4xNDR'
    )
    lines.append(f'\nSwitch\t65 "S-{spine}"\t\t# "MF0;spine-1:MQM9701/U1" enhanced port 0 lid 236 lmc 0')
    for rail, guid in leaves.items():
        lines.append(f'[{rail}]\t"S-{guid}"[35]\t\t# "MF0;leaf-{rail}:MQM9701/U1" lid 7{rail} 4xNDR')
        lines.append(f'[{rail + 10}]\t"S-{guid}"[36]\t\t# "MF0;leaf-{rail}:MQM9701/U1" lid 7{rail} 2xNDR')
    for (host, rail), (adapter, name) in hosts.items():
        lines += [f"\ncaguid=0x{adapter}", f'Ca\t1 "H-{adapter}"\t\t# "{name}"']
        leaf = f'"MF0;leaf-{rail}:MQM9701/U1" lid 7{rail} 4xNDR'
        lines.append(f'[1]({adapter}) \t"S-{leaves[rail]}"[{host}]\t\t# lid 6{host}{rail} lmc 0 {leaf}')
    return "\n".join(lines) + "\n"


def drawn(text: str) -> Fabric:
    return Fabric.build("f", *draw(parse(text)))


def test_every_cable_is_found_once_and_both_ends_agree() -> None:
    fabric = parse(small())
    assert fabric.complaints == []
    assert Counter(node.kind for node in fabric.nodes.values()) == {NodeKind.SWITCH: 3, NodeKind.ADAPTER: 5}
    assert len(fabric.links()) == 4 + 4 + 1


def test_tiers_and_rails_follow_from_the_shape() -> None:
    graph = drawn(small())
    assert {switch: graph.attr(switch, "tier") for switch in graph.of_kind(ComponentKind.SWITCH)} == {
        "switch:leaf-1": "leaf",
        "switch:leaf-2": "leaf",
        "switch:spine-1": "spine",
    }
    assert (graph.attr("switch:leaf-1", "rail"), graph.attr("switch:leaf-2", "rail")) == ("0", "1")
    assert graph.attr("nic:h1/mlx5_1/1", "rail") == "1"


def test_an_adapter_without_a_name_is_named_by_its_guid_and_has_its_leafs_rail() -> None:
    graph = drawn(small())
    nameless = "nic:ib-cccc000000000022/hca/1"
    assert graph.switch_of(nameless) == "switch:leaf-2"
    assert (graph.attr(nameless, "rail"), graph.attr(nameless, "guid")) == ("1", "0xcccc000000000022")
    assert graph.part_of(nameless) == ()
    assert sorted(graph.hosts()) == ["h1", "h2"]
    assert not any("dddd" in each for each in graph.components)  # the reduction engine is nobody's adapter


def test_names_that_are_none() -> None:
    assert host_and_device("MT4129 ConnectX7   Mellanox Technologies") is None
    assert host_and_device("localhost HCA-1") is None
    assert host_and_device("Mellanox Technologies Aggregation Node") is None
    assert host_and_device("a08-p1-dgx-04-c01 mlx5_5") == ("a08-p1-dgx-04-c01", "mlx5_5")
    assert switch_name("MF0;A09-P1-IBLEAF-04-04:MQM9701/U1") == "A09-P1-IBLEAF-04-04"
    assert switch_name("Quantum Mellanox Technologies") == ""


def test_two_adapters_of_one_name_and_two_chips_of_one_switch_are_told_apart_by_guid() -> None:
    text = small().replace("h2 mlx5_0", "h1 mlx5_0").replace("leaf-2:", "leaf-1:")
    graph = drawn(text)
    assert "nic:h1/mlx5_0/1" not in graph
    assert {"nic:ib-cccc000000000011/hca/1", "nic:ib-cccc000000000021/hca/1"} <= set(graph.components)
    assert {"switch:ib-aaaa000000000001", "switch:ib-aaaa000000000002"} <= set(graph.components)


def test_a_cable_that_one_end_denies_and_a_line_of_rubbish_are_complained_about() -> None:
    text = small().replace('[1]\t"S-aaaa000000000001"[35]', '[1]\t"S-aaaa000000000001"[34]') + "what is this\n"
    fabric = parse(text)
    assert any("what is this" in each for each in fabric.complaints)
    assert any("says otherwise" in each for each in fabric.complaints)
    draw(fabric)


@given(st.lists(st.sampled_from([*small().splitlines(), "[1]", 'Switch 1 "S-1"', '[1] "H-2"[1]', "Chassis 0"]), max_size=60))
def test_any_mixture_of_lines_makes_a_graph_and_loses_none_silently(lines: list[str]) -> None:
    fabric = parse("\n".join(lines))
    Fabric.build("f", *draw(fabric))
    cables = sum(len(node.cables) for node in fabric.nodes.values())
    ports = sum(1 for line in lines if line.startswith("["))
    heads = sum(1 for line in lines if line.startswith(("Switch", "Ca\t", "Ca ")))
    assert cables <= ports
    assert ports - cables <= fabric.complained
    assert heads >= 0


@given(st.text(max_size=400))
def test_no_text_crashes(text: str) -> None:
    fabric = parse(text)
    draw(fabric)


@pytest.mark.skipif(not REAL.exists(), reason="the shared data are not here")
def test_a_real_fabric_of_40_switches_and_582_adapters_is_found_whole() -> None:
    fabric = parse(REAL.read_text())
    assert fabric.complaints == []
    assert Counter(node.kind for node in fabric.nodes.values()) == {NodeKind.SWITCH: 40, NodeKind.ADAPTER: 582}
    lines = sum(1 for line in REAL.read_text().splitlines() if line.startswith("["))
    assert sum(len(node.cables) for node in fabric.nodes.values()) == lines == 2 * len(fabric.links())
    assert Counter(tiers(fabric).values()) == {"leaf": 31, "spine": 9}
    for guid, rail in rails(fabric).items():  # here the leaf's name says its rail: IBLEAF-<rail>-<group>
        assert int(switch_name(fabric.nodes[guid].description).split("-")[3]) == rail + 1
    graph = Fabric.build("f", *draw(fabric))
    aggregators = sum(1 for node in fabric.nodes.values() if node.is_aggregator)
    assert len(list(graph.of_kind(ComponentKind.NIC))) == 582 - aggregators
    assert len(list(graph.of_kind(ComponentKind.LINK))) == len(fabric.links()) - aggregators
    one, other = "nic:a08-p1-dgx-04-c01/mlx5_5/1", "nic:a08-p1-dgx-04-c02/mlx5_5/1"
    assert graph.path(one, other).count == 1


# -- the source ------------------------------------------------------------------------------------------------------


def reader(tmp_path: Path, how: str, clock: TurnedClock) -> FabricScanReader:
    return FabricScanReader(how, fabric="f", host="h1", clock=clock, memory=DiscoveryMemory(tmp_path / "ib.json"))


def test_a_file_is_told_once_again_under_its_version_and_anew_when_it_changes(tmp_path: Path) -> None:
    path, clock = tmp_path / "scan.out", TurnedClock()
    path.write_text(small())
    scan = reader(tmp_path, str(path), clock)
    first = scan.read()
    (snapshot,) = first.snapshots
    assert (snapshot.source, snapshot.fabric) == ("ibnet-h1", "f")
    assert set(first.covered or ()) == {"switch:leaf-1", "switch:leaf-2", "switch:spine-1"}
    assert scan.read().snapshots == ()
    clock.seconds = 601
    (again,) = scan.read().snapshots
    assert again.version == snapshot.version
    path.write_text(small().replace("4xNDR", "4xHDR"))
    (changed,) = scan.read().snapshots
    assert changed.version > again.version


def test_a_restart_goes_on_with_the_version_and_a_lost_memory_with_the_clock(tmp_path: Path) -> None:
    path, clock = tmp_path / "scan.out", TurnedClock()
    path.write_text(small())
    first = reader(tmp_path, str(path), clock).read()
    assert first.kept is not None
    first.kept()
    clock.seconds = 100
    (again,) = reader(tmp_path, str(path), clock).read().snapshots
    assert (again.version, again.at) == (first.snapshots[0].version, first.snapshots[0].at)
    (tmp_path / "ib.json").write_text("{broken")
    (anew,) = reader(tmp_path, str(path), clock).read().snapshots
    assert anew.version > again.version
    assert anew.at > datetime(2026, 1, 1, tzinfo=UTC)


def test_what_cannot_be_scanned_says_why(tmp_path: Path) -> None:
    clock = TurnedClock()
    with pytest.raises(Absent, match="neither a file nor a program"):
        reader(tmp_path, str(tmp_path / "nothing"), clock).read()
    with pytest.raises(Unreadable, match="failed"):
        reader(tmp_path, "false", clock).read()
    (tmp_path / "empty").write_text("# nothing\nrubbish\n")
    with pytest.raises(Unreadable, match="1 lines were not understood"):
        reader(tmp_path, str(tmp_path / "empty"), clock).read()


async def test_a_scan_that_hangs_or_is_garbage_disturbs_nobody_and_comes_back(tmp_path: Path) -> None:
    path, ticking = tmp_path / "scan.out", Ticking()
    path.write_text(small())
    scan = FabricScanReader(
        str(path), fabric="f", host="h1", clock=QuickClock(), memory=DiscoveryMemory(tmp_path / "ib.json"), interval_s=0.01
    )
    scan.deadline_s = 0.2

    def condition() -> Condition:
        return rig.condition(Source.DISCOVERY, "ibnetdiscover")

    async with Rig(tmp_path, scan, ticking) as rig:
        await rig.until(lambda: any(isinstance(each.data, TopologySnapshot) for each in rig.messages), "the snapshot")
        path.write_text("garbage\n")
        await rig.until(lambda: "shows no fabric" in condition().reason, "the garbage's reason")
        seen = ticking.reads
        await rig.until(lambda: ticking.reads > seen + 20, "the neighbour's schedule")
        path.unlink()
        await rig.until(lambda: condition().status is SourceStatus.ABSENT, "absent")
        path.write_text(small().replace("leaf-1", "leaf-9"))
        await rig.until(lambda: condition().status is SourceStatus.OK, "well again")
        await rig.until(lambda: "switch:leaf-9" in condition().covered, "the changed fabric")
