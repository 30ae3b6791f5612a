"""What every generated fabric promises: stable names, whole cabling, and the shape that it is named after."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import ComponentKind
from goodput_topology.generate import KINDS, fat_tree, h100_pod, lab, nvl72, nvl576, size, two_nic_pod
from goodput_topology.graph import Fabric

FABRICS = {
    "h100": lambda: h100_pod(hosts=3, pods=2, spines=2),
    "nvl72": lambda: nvl72(racks=2),
    "nvl576": lambda: nvl576(),
    "fat_tree": lambda: fat_tree(4),
    "two_nic": lambda: two_nic_pod(5, hosts_per_leaf=3),
    "lab": lambda: lab(),
}


def used_nics(fabric: Fabric) -> list[str]:
    return [nic for nic in fabric.of_kind(ComponentKind.NIC) if fabric.carries_traffic(nic)]


def tiers(fabric: Fabric) -> Counter[str]:
    return Counter(fabric.attr(switch, "tier") for switch in fabric.of_kind(ComponentKind.SWITCH))


def test_every_kind_is_tested() -> None:
    assert FABRICS.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", FABRICS)
def test_the_same_arguments_give_the_same_records_in_the_same_order(kind: str) -> None:
    first, second = FABRICS[kind](), FABRICS[kind]()
    assert list(first.components.items()) == list(second.components.items())
    assert first.edges == second.edges


@pytest.mark.parametrize("kind", FABRICS)
def test_nics_that_carry_traffic_are_cabled_and_no_others(kind: str) -> None:
    fabric = FABRICS[kind]()
    for nic in fabric.of_kind(ComponentKind.NIC):
        assert (fabric.link_of(nic) is not None) == (fabric.carries_traffic(nic) is True), nic
    addresses = [fabric.attr(nic, "addr") for nic in used_nics(fabric) if kind != "lab"]
    assert len(set(addresses)) == len(addresses)


@pytest.mark.parametrize("kind", FABRICS)
def test_every_gpu_has_one_nic_of_its_own_host_and_nics_are_shared_evenly(kind: str) -> None:
    fabric = FABRICS[kind]()
    loads = Counter[str]()
    for gpu in fabric.of_kind(ComponentKind.GPU):
        (nic,) = fabric.nics_of_gpu(gpu)
        assert nic.split("/")[0].partition(":")[2] == gpu.split("/")[0].partition(":")[2]
        loads[nic] += 1
    assert set(loads) == set(used_nics(fabric))
    assert len(set(loads.values())) == 1


@pytest.mark.parametrize("kind", [kind for kind in FABRICS if kind != "lab"])
def test_any_two_nics_of_one_rail_reach_each_other(kind: str) -> None:
    fabric = FABRICS[kind]()
    by_rail: dict[str, list[str]] = {}
    for nic in used_nics(fabric):
        by_rail.setdefault(fabric.attr(nic, "rail"), []).append(nic)
    for nics in by_rail.values():
        assert all(fabric.path(nics[0], nic).count >= 1 for nic in nics[1:])


@settings(max_examples=8, deadline=None)
@given(st.sampled_from([(4, 1), (4, 2), (6, 1), (8, 2), (8, 4)]))
def test_a_fat_tree_of_three_tiers_has_the_numbers_of_its_radix(shape: tuple[int, int]) -> None:
    k, nics = shape
    fabric = fat_tree(k, nics=nics)
    assert tiers(fabric) == {"leaf": k * k // 2, "spine": k * k // 2, "core": k * k // 4}
    assert len(fabric.hosts()) * nics == k**3 // 4
    assert all(len(fabric.ports_of_switch(switch)) == k for switch in fabric.of_kind(ComponentKind.SWITCH))
    assert all(fabric.link_of(port) is not None for port in fabric.of_kind(ComponentKind.PORT))


def test_a_fat_tree_has_as_many_ways_as_its_tiers_allow() -> None:
    fabric = fat_tree(8, nics=2)
    h0 = "nic:h0/mlx5_0/1"
    assert fabric.path(h0, "nic:h1/mlx5_0/1").count == 1  # under one leaf
    assert fabric.path(h0, "nic:h2/mlx5_0/1").count == 4  # over any spine of the pod
    far = fabric.path(h0, "nic:h63/mlx5_1/1")
    assert (far.count, far.hops) == (16, 6)  # over any core
    assert fat_tree(8, nics=2, tiers=2).path(h0, "nic:h15/mlx5_1/1").count == 4


def test_a_fat_tree_of_two_tiers_has_every_leaf_under_every_spine() -> None:
    fabric = fat_tree(6, nics=1, tiers=2)
    assert tiers(fabric) == {"leaf": 6, "spine": 3}
    assert len(fabric.hosts()) == 18
    assert fabric.hosts_behind("switch:leaf-1") == ("h3", "h4", "h5")


def test_a_fat_tree_knows_no_rails_and_a_leaf_takes_whole_hosts_with_it() -> None:
    fabric = fat_tree(8, nics=2)
    assert all(not fabric.attr(nic, "rail") for nic in used_nics(fabric))
    leaves = {fabric.switch_of(nic) for nic in used_nics(fabric) if nic.startswith("nic:h0/")}
    assert leaves == {"switch:leaf-p0-0"}


def test_a_fat_tree_may_have_fewer_hosts_than_fit() -> None:
    assert len(fat_tree(8, nics=2, hosts=10).hosts()) == 10
    with pytest.raises(ValueError, match="takes 1 to 64 hosts of 2 NICs, not 65"):
        fat_tree(8, nics=2, hosts=65)


@pytest.mark.parametrize(("k", "nics", "tier"), [(5, 1, 3), (2, 1, 3), (8, 3, 3), (4, 4, 3), (8, 2, 4)])
def test_a_fat_tree_that_cannot_be_is_refused(k: int, nics: int, tier: int) -> None:
    with pytest.raises(ValueError, match="need k even"):
        fat_tree(k, nics=nics, tiers=tier)


def test_a_domain_of_576_gpus_spans_eight_racks_and_two_pods() -> None:
    fabric = nvl576(domains=2)
    assert size(fabric)["gpu"] == 1152 and size(fabric)["nvdomain"] == 2
    gpus = fabric.gpus_of_nvdomain("nvdomain:nvl-1")
    assert len(gpus) == 576
    racks = {fabric.attr(f"host:{gpu.split(':')[1].split('/')[0]}", "rack") for gpu in gpus}
    assert racks == {f"rack-{n}" for n in range(8, 16)}
    assert {fabric.switch_of(nic) for gpu in gpus[:4] for nic in fabric.nics_of_gpu(gpu)} == {
        f"switch:leaf-p2-r{rail}" for rail in range(4)
    }


def test_both_nics_of_a_host_hang_on_one_leaf_or_on_two_of_a_pair() -> None:
    one, two = two_nic_pod(6, hosts_per_leaf=3), two_nic_pod(6, hosts_per_leaf=3, dual_homed=True)
    for host in one.hosts():
        assert len({one.switch_of(nic) for nic in used_nics(one) if nic.startswith(f"nic:{host}/")}) == 1
        assert len({two.switch_of(nic) for nic in used_nics(two) if nic.startswith(f"nic:{host}/")}) == 2
    assert one.hosts_behind("switch:leaf-1") == two.hosts_behind("switch:leaf-1-1") == ("h3", "h4", "h5")
    assert len(one.gpus_of_nic("nic:h0/mlx5_1/1")) == 4
    assert tiers(two) == {"leaf": 4, "spine": 4}
