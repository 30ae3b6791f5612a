"""A host tells what it is made of: from a tree of sysfs and a switch's frame to the snapshot on the bus."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from collector_fixtures import HangingFile, QuickClock, Rig, Ticking, TurnedClock
from discovery_trees import Tree, gb200, guid, h100, plain_vm
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.discovery import DiscoveryReader, GpuFacts
from goodput_collector.adapters.discovery_host import CloudPlace, identity
from goodput_collector.adapters.discovery_memory import DiscoveryMemory
from goodput_collector.adapters.discovery_nics import read_nics
from goodput_collector.domain.discovery import GpuFact, Inventory, NicFact, Records, Remembered, draw, pcie_words
from goodput_collector.domain.discovery_keep import Keeper, Tell, Telling, next_version
from goodput_collector.domain.lldp import NameKind, Neighbour
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Source, SourceStatus, State
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.runtime.clock import Clock
from goodput_topology.generate import h100_pod
from goodput_topology.graph import Fabric
from goodput_topology.merge import check
from goodput_topology.snapshot import to_snapshots

IGNORE = re.compile("lo|docker.*")


def neighbour(switch: str = "leaf-0", port: str = "Ethernet8", **more: object) -> Neighbour:
    known: dict[str, object] = {
        "chassis": "aa:bb:cc:dd:ee:01", "chassis_kind": NameKind.MAC, "port": port, "port_kind": NameKind.INTERFACE,
        "system": switch, "ttl_s": 120, "is_station": False,
    }  # fmt: skip
    return Neighbour(**(known | more))  # type: ignore[arg-type]


class Host:
    """A reader on a tree, its clock in hand."""

    def __init__(self, tree: Tree, folder: Path, *, clock: Clock | None = None, **settings: object) -> None:
        self.tree, self.folder = tree, folder
        self.turned = TurnedClock()
        self.facts = GpuFacts()
        self.lldpctl = folder / "lldpctl.json"
        self.hear({})
        given: dict[str, object] = {"settle_s": 0.0, "lldp": str(self.lldpctl), "visible": None} | settings
        self.reader = DiscoveryReader(
            fabric="f", host="h7", boot_id="b1", clock=clock or self.turned, memory=DiscoveryMemory(folder / "d.json"),
            gpus=self.facts, ignore=IGNORE, sys_root=tree.root, proc_root=tree.proc, etc_root=tree.etc, **given,  # type: ignore[arg-type]
        )  # fmt: skip

    def hear(self, ports: dict[str, tuple[str, str]]) -> None:
        """What lldpd says: interface -> (switch, its port)."""
        entries = [
            {
                name: {
                    "chassis": {switch: {"id": {"type": "mac", "value": f"aa:bb:cc:dd:ee:{at:02x}"}}},
                    "port": {"id": {"type": "ifname", "value": port}},
                }
            }
            for at, (name, (switch, port)) in enumerate(ports.items())
        ]
        self.lldpctl.write_text(json.dumps({"lldp": {"interface": entries}}))

    def snapshot(self, after_s: float = 31.0) -> TopologySnapshot | None:
        self.turned.seconds += after_s
        reading = self.reader.read()
        if reading.kept is not None:
            reading.kept()
        check(reading.snapshots)
        assert len(reading.snapshots) <= 1
        return reading.snapshots[0] if reading.snapshots else None

    def fabric(self) -> Fabric:
        found = self.snapshot()
        assert found is not None
        return Fabric.from_snapshots("f", [found])


# -- what is told ------------------------------------------------------------------------------------------------------


def test_an_h100_server_tells_its_gpus_adapters_and_rails(tmp_path: Path) -> None:
    fabric = Host(h100(tmp_path), tmp_path).fabric()
    assert fabric.hosts() == ("h7",)
    assert sorted(fabric.gpus_of_host("h7")) == [f"gpu:h7/{n}" for n in range(8)]
    for number in range(8):
        assert fabric.nics_of_gpu(f"gpu:h7/{number}") == (f"nic:h7/mlx5_{number}/1",)
        nic = f"nic:h7/mlx5_{number}/1"
        assert fabric.attr(nic, "rail") == str(number)
        assert fabric.carries_traffic(nic) is True
        assert fabric.attr(nic, "guid") == f"0x{guid(number)}"
        assert fabric.attr(nic, "addr") == f"10.{64 + number}.0.7"
    assert fabric.resolve("h7", "0000:1b:00.0") == "gpu:h7/0"
    assert fabric.resolve("h7", "eth2") == "nic:h7/mlx5_0/1"
    assert fabric.canonical("gpu:h7/0000:df:00") == "gpu:h7/7"
    assert len(fabric.gpus_of_nvdomain("nvdomain:h7")) == 8


def test_management_is_told_from_training_and_storage_stays_unknown(tmp_path: Path) -> None:
    fabric = Host(h100(tmp_path), tmp_path).fabric()
    assert fabric.carries_traffic("nic:h7/eth0/1") is False
    assert fabric.carries_traffic("nic:h7/mlx5_8/1") is None
    assert "rail" not in fabric.components["nic:h7/mlx5_8/1"].attrs


def test_a_port_that_was_never_up_is_not_said_to_carry_traffic(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    state = tree.root / "class/infiniband/mlx5_3/ports/1/state"
    state.write_text("1: DOWN\n")
    host = Host(tree, tmp_path)
    assert host.fabric().carries_traffic("nic:h7/mlx5_3/1") is None
    state.write_text("4: ACTIVE\n")
    host.turned.seconds += 60
    assert host.fabric().carries_traffic("nic:h7/mlx5_3/1") is True
    state.write_text("1: DOWN\n")  # a flap changes nothing of what the port is for
    assert host.snapshot(60) is None


def test_the_setting_names_trainings_adapters(tmp_path: Path) -> None:
    fabric = Host(h100(tmp_path), tmp_path, training=["mlx5_[0-6]"]).fabric()
    assert fabric.carries_traffic("nic:h7/mlx5_0/1") is True
    assert fabric.carries_traffic("nic:h7/mlx5_7/1") is False
    assert fabric.carries_traffic("nic:h7/mlx5_8/1") is False


def test_a_gb200_tray_belongs_to_the_domain_that_the_driver_names(tmp_path: Path) -> None:
    host = Host(gb200(tmp_path), tmp_path)
    host.facts.by_pci = {
        pci: GpuFact(index=n, uuid=f"GPU-{n}", links={"switch": 18}, cluster="c0ffee", clique="3")
        for n, pci in enumerate(("0008:01:00", "0009:01:00", "0018:01:00", "0019:01:00"))
    }
    fabric = host.fabric()
    assert fabric.gpus_of_nvdomain("nvdomain:c0ffee.3") == tuple(f"gpu:h7/{n}" for n in range(4))
    assert fabric.attr("gpu:h7/2", "uuid") == "GPU-2"
    assert fabric.nics_of_gpu("gpu:h7/2") == ("nic:h7/mlx5_2/1",)
    assert fabric.carries_traffic("nic:h7/mlx5_4/1") is None  # the DPU


def test_the_drivers_index_is_believed_over_the_order_on_the_bus(tmp_path: Path) -> None:
    host = Host(gb200(tmp_path), tmp_path)
    turned = ("0019:01:00", "0018:01:00", "0009:01:00", "0008:01:00")
    host.facts.by_pci = {pci: GpuFact(index=n) for n, pci in enumerate(turned)}
    assert host.fabric().resolve("h7", "0008:01:00") == "gpu:h7/3"


def test_a_plain_machine_tells_itself_and_claims_nothing(tmp_path: Path) -> None:
    fabric = Host(plain_vm(tmp_path), tmp_path).fabric()
    assert set(fabric.components) == {"host:h7", "nic:h7/eth0/1"}
    assert fabric.carries_traffic("nic:h7/eth0/1") is None
    assert fabric.attr("nic:h7/eth0/1", "pci") == "0000:00:03"


def test_a_virtual_function_names_its_physical_one_and_gets_no_rail(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    pf = (tree.root / "bus/pci/devices/0000:18:00.0").resolve()
    vf = tree.nic(
        *pf.relative_to(tree.root / "devices").parts[:-1], "0000:18:00.2", netdev="eth2v0", rdma="mlx5_9", guid=guid(50)
    )
    (vf / "physfn").symlink_to("../0000:18:00.0")
    fabric = Host(tree, tmp_path).fabric()
    assert fabric.attr("nic:h7/mlx5_9/1", "pf") == "0000:18:00"
    assert fabric.carries_traffic("nic:h7/mlx5_9/1") is None
    assert fabric.nics_of_gpu("gpu:h7/0") == ("nic:h7/mlx5_0/1",)


def test_foreign_and_unwanted_interfaces_and_representors_are_left_out(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    device = (tree.root / "bus/pci/devices/0000:18:00.0").resolve()
    for name in ("docker0", "pf0vf1"):
        tree.netdev(device, name, dev_port=5)
    (tree.root / "class/net/pf0vf1/phys_port_name").write_text("pf0vf1\n")
    (tree.root / "class/net/bond0").mkdir()
    names = {fact.netdev for fact in read_nics(tree.root, ignore=IGNORE, visible=None)}
    assert names == {"eth0", "stor0", *[f"eth{n}" for n in range(2, 10)]}
    ours = read_nics(tree.root, ignore=IGNORE, rdma_ignore=["mlx5_0"], visible=lambda: frozenset({"eth3"}))
    assert {fact.netdev for fact in ours} == {"", "eth3"}
    assert "mlx5_0" not in {fact.device for fact in ours}


def test_the_machine_id_itself_is_never_told(tmp_path: Path) -> None:
    tree = plain_vm(tmp_path)
    attrs = identity(tree.root, tree.proc, tree.etc, "b1")
    machine_id = (tree.etc / "machine-id").read_text().strip()
    assert machine_id not in json.dumps(attrs) and len(attrs["machine"]) == 32
    assert (attrs["hostname"], attrs["boot_id"]) == ("h7.example", "b1")
    tree.write(tree.root / "class/dmi/id/product_serial", "To Be Filled By O.E.M.")
    assert "serial" not in identity(tree.root, tree.proc, tree.etc, "b1")


def test_the_clouds_document_gives_rack_and_pod_and_a_bad_one_only_trouble(tmp_path: Path) -> None:
    document = tmp_path / "cloud.json"
    document.write_text('{"customerNetworkBlock": "n1", "customerLocalBlock": "l1"}')
    host = Host(plain_vm(tmp_path), tmp_path, cloud=str(document))
    fabric = host.fabric()
    assert (fabric.attr("host:h7", "rack"), fabric.attr("host:h7", "pod")) == ("l1", "n1")
    document.write_text("<html>")
    host.turned.seconds += 600
    reading = host.reader.read()
    assert "not JSON" in reading.trouble
    assert reading.snapshots and reading.snapshots[0].version  # what it said before stands


@pytest.mark.parametrize(
    "url",
    [
        "https://anna:s3cret@topology.example/v1?token=s3cret", "http://topology.example:s3cret/v1",
        "HTTP://anna:s3cret@topology.example", "https://[s3cret/", "http://topology.example\u2100s3cret/",
    ],
)  # fmt: skip
def test_no_secret_of_the_clouds_url_gets_into_what_went_wrong(url: str, tmp_path: Path) -> None:
    found, trouble = CloudPlace(url, tmp_path).read()
    assert found == {}
    assert trouble.startswith(f"cloud topology from {url.partition(':')[0]}://")
    assert "s3cret" not in trouble and "anna" not in trouble


def test_a_url_with_a_password_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("goodput_collector.adapters.discovery_host.fetch", asked.append)
    assert "take them out" in CloudPlace("https://anna:pw@topology.example/", tmp_path).read()[1]
    assert asked == []


def test_a_machine_that_is_in_no_cloud_asks_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr("goodput_collector.adapters.discovery_host.fetch", asked.append)
    tree = plain_vm(tmp_path)
    tree.write(tree.root / "class/dmi/id/sys_vendor", "Supermicro")
    assert CloudPlace("auto", tree.root).read() == ({}, "")
    assert asked == []


# -- cables ---------------------------------------------------------------------------------------------------------------


def test_a_neighbour_makes_a_cable_and_one_that_falls_silent_keeps_it(tmp_path: Path) -> None:
    host = Host(h100(tmp_path), tmp_path)
    host.hear({"eth2": ("leaf-0", "Ethernet8"), "eth3": ("leaf-1", "Ethernet8")})
    fabric = host.fabric()
    assert fabric.peer_of("nic:h7/mlx5_0/1") == "port:leaf-0/Ethernet8"
    assert fabric.attr("switch:leaf-0", "mac") == "aa:bb:cc:dd:ee:00"
    host.hear({"eth2": ("leaf-0", "Ethernet8")})
    assert host.snapshot(60) is None


def test_a_cable_that_is_moved_to_another_port_is_the_only_one(tmp_path: Path) -> None:
    host = Host(h100(tmp_path), tmp_path)
    host.hear({"eth2": ("leaf-0", "Ethernet8")})
    first = host.snapshot()
    host.hear({"eth2": ("leaf-0", "Ethernet16")})
    second = host.snapshot()
    assert first is not None and second is not None and second.version > first.version
    fabric = Fabric.from_snapshots("f", [first, second])
    assert fabric.peer_of("nic:h7/mlx5_0/1") == "port:leaf-0/Ethernet16"
    assert "port:leaf-0/Ethernet8" not in fabric
    restarted = Host(host.tree, tmp_path).snapshot()
    assert restarted is not None and (restarted.version, restarted.at) == (second.version, second.at)


def test_neighbours_outlive_a_restart(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    host.hear({"eth2": ("leaf-0", "Ethernet8")})
    first = host.snapshot()
    again = Host(tree, tmp_path).snapshot()  # lldpd has said nothing yet
    assert first is not None and again is not None
    assert (again.version, again.at, again.edges) == (first.version, first.at, first.edges)


def test_two_adapters_that_hear_one_port_make_one_cable(tmp_path: Path) -> None:
    host = Host(h100(tmp_path), tmp_path)
    host.hear({"eth2": ("hub", "1"), "eth3": ("hub", "1")})
    fabric = host.fabric()
    assert len(list(fabric.of_kind(ComponentKind.LINK))) == 1


def test_an_interface_on_which_several_speak_has_no_cable_and_the_snapshot_stays(tmp_path: Path) -> None:
    """A hub, or a virtual switch that passes LLDP on."""
    host = Host(h100(tmp_path), tmp_path)
    host.hear({"eth2": ("leaf-0", "Ethernet8")})
    assert host.fabric().peer_of("nic:h7/mlx5_0/1") == "port:leaf-0/Ethernet8"
    both = json.loads(host.lldpctl.read_text())
    host.hear({"eth2": ("leaf-1", "Ethernet16")})
    other = json.loads(host.lldpctl.read_text().replace("aa:bb:cc:dd:ee:00", "aa:bb:cc:dd:ee:99"))  # another switch
    entries = [*both["lldp"]["interface"], *other["lldp"]["interface"]]
    host.lldpctl.write_text(json.dumps({"lldp": {"interface": entries}}))
    assert host.fabric().link_of("nic:h7/mlx5_0/1") is None
    for turn in range(4):
        host.lldpctl.write_text(json.dumps({"lldp": {"interface": entries[:: 1 if turn % 2 else -1]}}))
        assert host.snapshot() is None
    host.hear({})  # lldpd starts anew, and so does the collector
    again = Host(host.tree, tmp_path).snapshot()
    assert again is not None and again.version == host.reader._memory.version


def test_a_neighbour_that_is_a_host_is_an_adapter_of_it() -> None:
    back_to_back = neighbour("h8", "eth2", is_station=True)
    components, edges = draw(
        Inventory(host="h7", nics=[NicFact(device="eth2", netdev="eth2")], neighbours={"eth2": back_to_back}), Remembered()
    )
    fabric = Fabric.build("f", components, edges)
    assert fabric.peer_of("nic:h7/eth2/1") == "nic:h8/eth2/1"


@pytest.mark.parametrize(
    ("said", "port", "alias"),
    [
        (neighbour(port="Ethernet8", port_description="etp3a"), "Ethernet8", "etp3a"),
        (neighbour(port="0c:42:a1:00:00:07", port_kind=NameKind.MAC, port_description="swp3"), "swp3", "0c:42:a1:00:00:07"),
        (
            neighbour(port="0c:42:a1:00:00:07", port_kind=NameKind.MAC, port_description="to_host"),
            "0c:42:a1:00:00:07",
            "to_host",
        ),
    ],
)
def test_a_port_is_named_as_it_names_itself(said: Neighbour, port: str, alias: str) -> None:
    components, _ = draw(Inventory(host="h7", neighbours={"eth2": said}, interfaces={"eth2"}), Remembered())
    record = next(each for each in components if each.kind is ComponentKind.PORT)
    assert (record.id, record.attrs["alias"]) == (f"port:leaf-0/{port}", alias)


def test_discovery_agrees_with_the_drawing_of_the_same_host(tmp_path: Path) -> None:
    """The generated pod has the real machine's PCI addresses: hosts that discover themselves fit into it."""
    pod = h100_pod(hosts=8, name="f")
    host = Host(h100(tmp_path), tmp_path)
    found = host.snapshot()
    assert found is not None
    drawn = to_snapshots(pod, source="drawing", version=1, at=found.at)
    joined = Fabric.from_snapshots("f", [*drawn, found])
    assert {each.what for each in joined.contradictions} <= {"guid", "addr", "netdev"}  # invented by the generator
    assert {each for each in joined.components if each.startswith("gpu:h7/")} == {f"gpu:h7/{n}" for n in range(8)}
    assert [joined.nics_of_gpu(f"gpu:h7/{n}") for n in range(8)] == [pod.nics_of_gpu(f"gpu:h7/{n}") for n in range(8)]


# -- devices that vanish, move and are replaced ---------------------------------------------------------------------------


def test_a_gpu_off_the_bus_and_an_adapter_stay_with_what_hung_on_them(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    host.hear({"eth4": ("leaf-2", "Ethernet8")})
    host.fabric()
    tree.remove("0000:52:00.0")
    tree.remove("0000:4f:00.0")
    fabric = host.fabric()
    assert fabric.attr("gpu:h7/2", "missing") == "true"
    assert fabric.resolve("h7", "0000:52:00") == "gpu:h7/2"
    assert fabric.resolve("h7", "0000:61:00") == "gpu:h7/3"  # nobody moved up
    assert fabric.peer_of("nic:h7/mlx5_2/1") == "port:leaf-2/Ethernet8"
    assert fabric.attr("nic:h7/mlx5_3/1", "rail") == "3"
    covered = host.reader.read().covered or ()
    assert "gpu:h7/2" not in covered and "gpu:h7/3" in covered


@pytest.mark.parametrize("restarted", [False, True])
def test_a_driver_that_counts_on_without_a_lost_gpu_renames_none(restarted: bool, tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    everyone = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
    host.facts.by_pci = {f"0000:{bus}:00": GpuFact(index=n) for n, bus in enumerate(everyone)}
    host.fabric()
    tree.remove("0000:43:00.0")
    if restarted:
        host = Host(tree, tmp_path)
    left = [bus for bus in everyone if bus != "43"]
    host.facts.by_pci = {f"0000:{bus}:00": GpuFact(index=n) for n, bus in enumerate(left)}
    fabric = host.fabric()
    assert [fabric.resolve("h7", f"0000:{bus}:00") for bus in left] == [f"gpu:h7/{n}" for n in (0, 2, 3, 4, 5, 6, 7)]


def test_an_adapter_that_was_dead_at_the_first_look_has_its_number_already(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    hidden = [(tree.root / "class" / each, tmp_path / each.replace("/", "-")) for each in ("infiniband/mlx5_2", "net/eth4")]
    for at, away in hidden:
        at.rename(away)
    host = Host(tree, tmp_path)
    fabric = host.fabric()
    rails = {n: fabric.attr(f"nic:h7/mlx5_{n}/1", "rail") for n in range(8) if n != 2}
    assert rails == {n: str(n) for n in rails}
    for at, away in hidden:
        away.rename(at)
    assert host.fabric().attr("nic:h7/mlx5_2/1", "rail") == "2"


def test_rails_are_counted_anew_when_one_more_adapter_comes_up(tmp_path: Path) -> None:
    """It was not even on the bus when the others were counted, and that count was remembered."""
    without = h100(tmp_path / "early")
    without.remove("0000:4f:00.0")
    early = Host(without, tmp_path).fabric()
    assert early.attr("nic:h7/mlx5_3/1", "rail") == "2"
    late = Host(h100(tmp_path / "late"), tmp_path).fabric()
    assert [late.attr(f"nic:h7/mlx5_{n}/1", "rail") for n in range(8)] == [str(n) for n in range(8)]


def test_a_second_port_and_a_bonds_member_are_not_said_to_carry_nothing(tmp_path: Path) -> None:
    """RoCE LAG: two ports, one RDMA device, which hangs on the first."""
    tree = h100(tmp_path)
    above = (tree.root / "bus/pci/devices/0000:18:00.0").resolve().relative_to(tree.root / "devices").parts[:-1]
    tree.nic(*above, "0000:18:00.1", netdev="eth2b")
    for name in ("eth3", "eth0"):
        (tree.root / "class/net" / name / "master").symlink_to("../bond0")
    (tree.root / "class/net/bond0/bonding").mkdir(parents=True)
    fabric = Host(tree, tmp_path).fabric()
    assert fabric.carries_traffic("nic:h7/eth2b/1") is None
    assert fabric.carries_traffic("nic:h7/eth0/1") is None
    assert fabric.carries_traffic("nic:h7/mlx5_0/1") is True
    (tree.root / "class/net/bond0/bonding").rmdir()  # a bridge joins what has nothing to do with each other
    assert Host(tree, tmp_path).fabric().carries_traffic("nic:h7/eth0/1") is False


def test_a_swapped_gpu_keeps_its_id_and_gets_its_own_uuid(tmp_path: Path) -> None:
    host = Host(h100(tmp_path), tmp_path)
    host.facts.by_pci = {"0000:1b:00": GpuFact(index=0, uuid="GPU-old")}
    assert host.fabric().attr("gpu:h7/0", "uuid") == "GPU-old"
    host.facts.by_pci = {"0000:1b:00": GpuFact(index=0, uuid="GPU-new")}
    fabric = host.fabric()
    assert fabric.attr("gpu:h7/0", "uuid") == "GPU-new"
    assert not [each for each in fabric.components.values() if "missing" in each.attrs]


def test_an_adapter_that_was_renamed_is_not_also_missing(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    host.fabric()
    old = tree.root / "class/infiniband/mlx5_0"
    old.rename(old.with_name("rocep24s0"))
    fabric = host.fabric()
    assert "nic:h7/mlx5_0/1" not in fabric
    assert fabric.attr("nic:h7/rocep24s0/1", "rail") == "0"


def test_an_adapter_given_to_a_container_is_out_of_sight_and_not_missing(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    host.fabric()
    (tree.root / "class/net/eth0").rename(tmp_path / "elsewhere")
    assert host.snapshot() is None
    fabric = Fabric.build("f", *host.reader._records)
    assert "missing" not in fabric.components["nic:h7/eth0/1"].attrs


# -- when it is told ------------------------------------------------------------------------------------------------------


def test_a_snapshot_is_told_once_it_has_settled_and_again_under_its_version(tmp_path: Path) -> None:
    host = Host(h100(tmp_path), tmp_path, settle_s=10.0)
    assert host.snapshot(0) is None
    assert host.snapshot(5) is None
    first = host.snapshot(6)
    assert first is not None and first.source == "discovery-h7"
    assert [host.snapshot(60) for _ in range(9)] == [None] * 9
    again = host.snapshot(60)
    assert again is not None
    assert (again.version, again.at) == (first.version, first.at)


def test_what_never_settles_is_told_all_the_same() -> None:
    telling = Telling(settle_s=10, hurry_s=60)
    told = [telling.decide(str(second), second) for second in range(130)]
    assert [second for second, tell in enumerate(told) if tell is Tell.CHANGED] == [60, 121]


@given(st.integers(0, 1 << 40), st.floats(0, 4e9))
def test_versions_only_grow(last: int, now_s: float) -> None:
    assert next_version(last, now_s) > last


def test_a_lost_memory_takes_a_later_version_from_the_clock(tmp_path: Path) -> None:
    tree = plain_vm(tmp_path)
    first = Host(tree, tmp_path).snapshot()
    (tmp_path / "d.json").write_bytes(b"\xff")
    later = Host(tree, tmp_path)
    later.turned.seconds = 100
    second = later.snapshot()
    assert first is not None and second is not None and second.version > first.version


def test_a_network_adapters_pci_link_is_told_with_what_it_could_be(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path)
    states = [each for each in host.reader.read().samples if isinstance(each, State)]
    assert {each.value for each in states} == {"gen5 x16"} and len(states) == 10
    link = (tree.root / "bus/pci/devices/0000:18:00.0").resolve() / "current_link_width"
    link.write_text("8\n")
    host.turned.seconds += 61
    (changed,) = host.reader.read().samples
    assert isinstance(changed, State)
    assert (changed.component, changed.value, changed.attrs["width_max"]) == ("nic:h7/mlx5_0/1", "gen5 x8", "16")


def test_pcie_words_are_those_of_the_gpus() -> None:
    assert pcie_words("32.0 GT/s PCIe", 16) == "gen5 x16"
    assert pcie_words("Unknown", 255) == "" == pcie_words("", 0)


# -- whatever the facts -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["eth0", "mlx5_0", "mlx5_1", "x"])
NICS = st.lists(
    st.builds(NicFact, device=NAMES, port=st.integers(1, 2), netdev=NAMES | st.just(""), rdma=NAMES | st.just("")),
    max_size=6,
)
HEARD = st.dictionaries(
    NAMES,
    st.builds(
        neighbour, st.sampled_from(["leaf", "h7", "a/b", "x.y"]), st.sampled_from(["1", "E1/1", "eth0"]),
        is_station=st.sampled_from([True, False, None]), port_kind=st.sampled_from(NameKind),
    ),
    max_size=4,
)  # fmt: skip


@given(st.lists(st.tuples(NICS, HEARD), min_size=1, max_size=4))
def test_whatever_the_facts_the_records_fit_together(rounds: list[tuple[list[NicFact], dict[str, Neighbour]]]) -> None:
    keeper, remembered = Keeper(), Remembered()
    for nics, heard in rounds:
        records: Records = draw(Inventory(host="h7", nics=nics, neighbours=heard, interfaces={"eth0", "x"}), remembered)
        Fabric.build("f", *keeper.with_vanished(records, ()))


# -- the source among others ------------------------------------------------------------------------------------------


def snapshots(rig: Rig) -> list[TopologySnapshot]:
    return [each.data for each in rig.messages if isinstance(each.data, TopologySnapshot)]


async def test_a_changed_tree_reaches_the_bus(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    host = Host(tree, tmp_path, clock=QuickClock())
    async with Rig(tmp_path, host.reader) as rig:
        await rig.until(lambda: snapshots(rig), "the first snapshot")
        tree.remove("0000:1b:00.0")
        await rig.until(lambda: len(snapshots(rig)) == 2, "the second")
    message = next(each for each in rig.messages if isinstance(each.data, TopologySnapshot))
    assert message.subject == "goodput.topology.f.discovery-h7"
    attrs = {record.id: record.attrs for record in snapshots(rig)[1].components}
    assert attrs["gpu:h7/0"]["missing"] == "true"


async def test_a_hung_tree_garbage_and_a_tree_that_comes_back_disturb_nobody(tmp_path: Path) -> None:
    tree, ticking = h100(tmp_path), Ticking()
    host = Host(tree, tmp_path, clock=QuickClock())
    host.reader.deadline_s = 0.2
    vendor = (tree.root / "bus/pci/devices/0000:1b:00.0").resolve() / "vendor"
    async with Rig(tmp_path, host.reader, ticking) as rig:
        await rig.until(lambda: snapshots(rig), "the first snapshot")
        hanging = HangingFile(vendor)
        host.facts.by_pci = {"0000:43:00": GpuFact(index=1, uuid="GPU-1")}  # makes it look again
        await rig.until(lambda: rig.condition(Source.DISCOVERY).status is SourceStatus.UNKNOWN, "unknown while it hangs")
        seen = ticking.reads
        await rig.until(lambda: ticking.reads > seen + 20, "the neighbour's schedule")
        hanging.release()
        await rig.until(lambda: rig.condition(Source.DISCOVERY).status is SourceStatus.OK, "well again")
        host.lldpctl.write_text("garbage")
        vendor.write_text("garbage")
        host.reader._asked_s = float("-inf")
        await rig.until(lambda: "not JSON" in rig.condition(Source.DISCOVERY).reason, "the garbage's trouble")
        assert rig.condition(Source.DISCOVERY).status is SourceStatus.OK
