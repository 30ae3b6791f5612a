"""The fabric answers what diagnosis asks, and refuses records that do not fit together."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts.ids import ComponentKind, link_ends
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.build import InvalidFabric
from goodput_topology.generate import h100_pod, lab, nvl72, size
from goodput_topology.graph import Fabric

POD = h100_pod(hosts=4, pods=2, spines=3)
RACKS = nvl72(racks=2)


def component(id: str, kind: ComponentKind, **attrs: str) -> ComponentRecord:
    return ComponentRecord(id=id, kind=kind, attrs=attrs)


HOST = component("host:a", ComponentKind.HOST)
NIC = component("nic:a/mlx5_0/1", ComponentKind.NIC, netdev="eth1", pci="0000:18:00.0")
SWITCH = component("switch:s", ComponentKind.SWITCH)
PORT = component("port:s/1", ComponentKind.PORT)
NIC_PART = EdgeRecord(a=NIC.id, b=HOST.id, relation=Relation.PART_OF)
PORT_PART = EdgeRecord(a=PORT.id, b=SWITCH.id, relation=Relation.PART_OF)
CABLE = EdgeRecord(a=NIC.id, b=PORT.id, relation=Relation.CABLED)
SMALL = [HOST, NIC, SWITCH, PORT]


def test_a_small_fabric_builds_and_its_link_becomes_a_component() -> None:
    fabric = Fabric.build("f", SMALL, [NIC_PART, PORT_PART, CABLE])
    link = fabric.link_of(NIC.id)
    assert link == "link:nic:a/mlx5_0/1--port:s/1"
    assert fabric.component(link).kind is ComponentKind.LINK  # type: ignore[union-attr]
    assert fabric.peer_of(NIC.id) == PORT.id
    assert fabric.switch_of(NIC.id) == SWITCH.id


@pytest.mark.parametrize(
    ("components", "edges", "named"),
    [
        (
            SMALL,
            [EdgeRecord(a="gpu:a/0", b=HOST.id, relation=Relation.PART_OF), PORT_PART],
            "edges[0] (gpu:a/0 part_of host:a)",
        ),
        ([*SMALL, NIC], [NIC_PART, PORT_PART], "components[4] (nic:a/mlx5_0/1): already defined by components[1]"),
        ([HOST, component("nic:a/x/1", ComponentKind.GPU)], [], "components[1] (nic:a/x/1): kind is gpu"),
        ([component("rubbish", ComponentKind.HOST)], [], "components[0]: 'rubbish' is not a component id"),
        ([HOST], [EdgeRecord(a=HOST.id, b=HOST.id, relation=Relation.PART_OF)], "both ends are the same"),
        ([HOST, PORT, SWITCH], [], "component port:s/1: a port must be part_of a switch"),
        (SMALL, [NIC_PART, PORT_PART, EdgeRecord(a=HOST.id, b=PORT.id, relation=Relation.CABLED)], "a cable joins nics"),
        (SMALL, [NIC_PART, PORT_PART, EdgeRecord(a=NIC.id, b=HOST.id, relation=Relation.RAIL)], "a rail goes from a gpu"),
        (
            [*SMALL, component("link:nic:a/mlx5_0/1--port:s/1", ComponentKind.LINK)],
            [NIC_PART, PORT_PART],
            "no cabled edge joins its ends",
        ),
        (
            [HOST, component("host:b", ComponentKind.HOST), NIC],
            [EdgeRecord(a=NIC.id, b="host:b", relation=Relation.PART_OF)],
            "the id of nic:a/mlx5_0/1 says host a",
        ),
    ],
)
def test_records_that_do_not_fit_are_named(components: list[ComponentRecord], edges: list[EdgeRecord], named: str) -> None:
    with pytest.raises(InvalidFabric) as raised:
        Fabric.build("f", components, edges)
    assert named in str(raised.value)


def test_a_port_with_two_cables_is_refused_and_both_are_named() -> None:
    other = component("nic:a/mlx5_1/1", ComponentKind.NIC)
    with pytest.raises(InvalidFabric) as raised:
        Fabric.build(
            "f", [*SMALL, other], [NIC_PART, PORT_PART, CABLE, EdgeRecord(a=other.id, b=PORT.id, relation=Relation.CABLED)]
        )
    assert "edges[3] (nic:a/mlx5_1/1 cabled port:s/1): port:s/1 already has the cable link:nic:a/mlx5_0/1--port:s/1" in str(
        raised.value
    )


def test_a_circle_of_parts_is_refused() -> None:
    hosts = [component(f"host:{name}", ComponentKind.HOST) for name in "ab"]
    edges = [EdgeRecord(a=f"host:{a}", b=f"host:{b}", relation=Relation.PART_OF) for a, b in ("ab", "ba")]
    with pytest.raises(InvalidFabric, match="circle"):
        Fabric.build("f", hosts, edges)


def test_every_problem_is_told_but_the_message_stays_short() -> None:
    edges = [EdgeRecord(a=f"nic:a/{n}/1", b=HOST.id, relation=Relation.PART_OF) for n in range(100)]
    with pytest.raises(InvalidFabric) as raised:
        Fabric.build("f", [HOST], edges)
    assert len(raised.value.problems) == 100
    assert "… and 80 more" in str(raised.value)


def test_an_empty_fabric_answers_unknown_to_everything() -> None:
    fabric = Fabric.empty("nothing")
    assert fabric.component("gpu:h0/0") is None
    assert fabric.resolve("h0", "0000:1b:00") is None
    assert fabric.canonical("gpu:h0/0000:1b:00") == "gpu:h0/0000:1b:00"
    assert fabric.hosts_behind("switch:x") == ()
    assert fabric.path("nic:a/0/1", "nic:b/0/1").count == 0
    assert fabric.carries_traffic("nic:a/0/1") is None
    assert fabric.failure_domains("gpu:h0/0") == ()
    assert fabric.neighbourhood("gpu:h0/0", 3) == {}


@pytest.mark.parametrize("alias", ["0000:1b:00.0", "1B:00.0", "00000000:1b:00.0", "0000:1b:00"])
def test_a_gpu_is_found_by_any_spelling_of_its_pci_address(alias: str) -> None:
    assert POD.resolve("h2", alias) == "gpu:h2/0"
    assert POD.canonical("gpu:h2/0000:1b:00") == "gpu:h2/0"


def test_a_nic_is_found_by_netdev_device_and_address() -> None:
    assert POD.resolve("h1", "rdma3") == POD.resolve("h1", "mlx5_3") == "nic:h1/mlx5_3/1"
    assert POD.canonical("nic:h1/rdma3/1") == "nic:h1/mlx5_3/1"
    address = POD.attr("nic:h1/mlx5_3/1", "addr")
    assert POD.resolve(None, address) == POD.resolve(None, f"::ffff:{address}") == "nic:h1/mlx5_3/1"


def test_a_uuid_resolves_without_a_host_and_a_netdev_does_not() -> None:
    assert POD.resolve(None, POD.attr("gpu:h3/7", "uuid").upper()) == "gpu:h3/7"
    assert POD.resolve(None, "rdma3") is None


def test_an_alias_that_two_components_share_resolves_to_neither() -> None:
    twin = component("nic:a/mlx5_1/1", ComponentKind.NIC, netdev="eth1", pci="0000:18:00.1")
    fabric = Fabric.build("f", [*SMALL, twin], [NIC_PART, PORT_PART])
    assert fabric.resolve("a", "eth1") is None
    assert fabric.resolve("a", "0000:18:00.1") == twin.id  # the function tells them apart
    assert fabric.canonical("nic:a/eth1/1") == "nic:a/eth1/1"


def test_both_ports_of_an_adapter_are_found_by_their_functions() -> None:
    zero = component("nic:a/mlx5_0/1", ComponentKind.NIC, pci="0000:9b:00")
    one = component("nic:a/mlx5_1/1", ComponentKind.NIC, pci="0000:9b:00.1")
    fabric = Fabric.build("f", [component("host:a", ComponentKind.HOST), zero, one], [])
    for alias in ("9b:00.0", "9b:00", "0000:9B:00", "00000000:9b:00.0"):
        assert fabric.resolve("a", alias) == zero.id
    for alias in ("9b:00.1", "0000:9B:00.1", "00000000:9b:00.1"):
        assert fabric.resolve("a", alias) == one.id
    assert fabric.resolve("a", "9b:00.2") is None  # a virtual function that nobody described


def test_an_alias_of_another_kind_does_not_change_an_id() -> None:
    assert POD.canonical("gpu:h1/rdma3") == "gpu:h1/rdma3"


def test_a_rail_stays_on_one_leaf_and_crosses_a_spine_between_pods() -> None:
    near = POD.path("nic:h0/mlx5_2/1", "nic:h3/mlx5_2/1")
    assert (near.count, near.hops, near.switches) == (1, 2, {"switch:leaf-p0-r2"})
    far = POD.path("nic:h0/mlx5_2/1", "nic:h7/mlx5_2/1")
    assert (far.count, far.hops) == (3, 4)
    assert "switch:leaf-p0-r2" in far.always and "switch:leaf-p1-r2" in far.always
    assert not any(spine in far.always for spine in ("switch:spine-0", "switch:spine-1", "switch:spine-2"))
    assert len(far.links) == 2 + 2 * 3


def test_paths_can_be_cut_short_without_losing_count_or_links() -> None:
    whole, cut = (POD.path("nic:h0/mlx5_0/1", "nic:h4/mlx5_0/1", limit=limit) for limit in (64, 1))
    assert cut.truncated and not whole.truncated
    assert (cut.count, cut.links, cut.always) == (whole.count, whole.links, whole.always)
    assert cut.listed == whole.listed[:1]


def test_there_is_no_path_to_itself_or_from_an_end_without_cable() -> None:
    assert POD.path("nic:h0/mlx5_0/1", "nic:h0/mlx5_0/1").count == 0
    assert POD.path("nic:h0/eth0/1", "nic:h1/mlx5_0/1").count == 0


def test_two_cables_between_switches_are_two_paths() -> None:
    components = [component(f"switch:{s}", ComponentKind.SWITCH, tier="leaf") for s in "st"]
    edges = []
    for number, (s, t) in enumerate([("s", "t"), ("s", "t")]):
        for switch in (s, t):
            components.append(component(f"port:{switch}/{number}", ComponentKind.PORT))
            edges.append(EdgeRecord(a=f"port:{switch}/{number}", b=f"switch:{switch}", relation=Relation.PART_OF))
        edges.append(EdgeRecord(a=f"port:s/{number}", b=f"port:t/{number}", relation=Relation.CABLED))
    for switch, host in (("s", "a"), ("t", "b")):
        components += [
            component(f"host:{host}", ComponentKind.HOST),
            component(f"nic:{host}/n/1", ComponentKind.NIC),
            component(f"port:{switch}/down", ComponentKind.PORT),
        ]
        edges += [
            EdgeRecord(a=f"nic:{host}/n/1", b=f"host:{host}", relation=Relation.PART_OF),
            EdgeRecord(a=f"port:{switch}/down", b=f"switch:{switch}", relation=Relation.PART_OF),
            EdgeRecord(a=f"nic:{host}/n/1", b=f"port:{switch}/down", relation=Relation.CABLED),
        ]
    paths = Fabric.build("f", components, edges).path("nic:a/n/1", "nic:b/n/1")
    assert paths.count == 2 == len(set(paths.listed))
    assert {"switch:s", "switch:t"} <= paths.always


def as_networkx(fabric: Fabric) -> nx.Graph:
    graph = nx.Graph()
    for link in fabric.of_kind(ComponentKind.LINK):
        for end in link_ends(link):
            graph.add_edge(link, end)
            if end.startswith("port:"):
                graph.add_edge(end, fabric.switch_of(end))
    return graph


def assert_paths_as_networkx_finds_them(fabric: Fabric, a: str, b: str) -> None:
    graph = as_networkx(fabric)
    paths = fabric.path(a, b, limit=10_000)
    if a == b or not nx.has_path(graph, a, b):
        assert paths.count == 0
        return
    expected = {tuple(path) for path in nx.all_shortest_paths(graph, a, b)}
    assert set(paths.listed) == expected
    assert paths.count == len(expected) == len(paths.listed)
    on_all = set.intersection(*(set(path) for path in expected))
    assert paths.always == {each for each in on_all if each.startswith(("link:", "switch:"))}
    assert paths.links == {each for path in expected for each in path if each.startswith("link:")}
    assert paths.switches == {each for path in expected for each in path if each.startswith("switch:")}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.sampled_from([1, 2, 8]), st.data())
def test_paths_in_pods_agree_with_networkx(hosts: int, pods: int, spines: int, rails: int, data: st.DataObject) -> None:
    fabric = h100_pod(hosts=hosts, pods=pods, spines=spines, rails=rails)
    nics = [nic for nic in fabric.of_kind(ComponentKind.NIC) if fabric.link_of(nic)]
    assert_paths_as_networkx_finds_them(fabric, data.draw(st.sampled_from(nics)), data.draw(st.sampled_from(nics)))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=16), st.data())
def test_paths_in_any_network_agree_with_networkx(switches: int, cables: list[tuple[int, int]], data: st.DataObject) -> None:
    components = [component(f"switch:s{n}", ComponentKind.SWITCH) for n in range(switches)]
    edges: list[EdgeRecord] = []

    def port(switch: int, name: str) -> str:
        id = f"port:s{switch}/{name}"
        components.append(component(id, ComponentKind.PORT))
        edges.append(EdgeRecord(a=id, b=f"switch:s{switch}", relation=Relation.PART_OF))
        return id

    for number, (a, b) in enumerate(cables):
        if a < switches and b < switches:
            ends = port(a, f"{number}a"), port(b, f"{number}b")
            edges.append(EdgeRecord(a=ends[0], b=ends[1], relation=Relation.CABLED))
    for host in "ab":
        components += [component(f"host:{host}", ComponentKind.HOST), component(f"nic:{host}/n/1", ComponentKind.NIC)]
        edges.append(EdgeRecord(a=f"nic:{host}/n/1", b=f"host:{host}", relation=Relation.PART_OF))
        down = port(data.draw(st.integers(0, switches - 1)), host)
        edges.append(EdgeRecord(a=f"nic:{host}/n/1", b=down, relation=Relation.CABLED))
    assert_paths_as_networkx_finds_them(Fabric.build("f", components, edges), "nic:a/n/1", "nic:b/n/1")


def test_hosts_behind_tell_what_a_failure_takes_away() -> None:
    link = POD.link_of("nic:h1/mlx5_4/1")
    assert link is not None
    assert POD.hosts_behind(link) == ("h1",)
    assert POD.hosts_behind("nic:h1/mlx5_4/1") == ("h1",)
    assert POD.hosts_behind(POD.peer_of("nic:h1/mlx5_4/1") or "") == ("h1",)
    assert POD.hosts_behind("switch:leaf-p1-r0") == ("h4", "h5", "h6", "h7")
    assert set(POD.hosts_behind("switch:spine-1")) == set(POD.hosts())
    uplink = next(each for each in POD.links_of_switch("switch:leaf-p0-r3") if "spine" in each)
    assert POD.hosts_behind(uplink) == ("h0", "h1", "h2", "h3")


def test_gpus_behind_follow_the_rail() -> None:
    link = POD.link_of("nic:h1/mlx5_4/1")
    assert POD.gpus_behind(link or "") == ("gpu:h1/4",)
    assert POD.gpus_behind("switch:leaf-p0-r4") == tuple(f"gpu:h{n}/4" for n in range(4))
    assert len(POD.gpus_behind("host:h1")) == 8
    assert len(RACKS.gpus_behind("nvdomain:nvl-1")) == 72
    assert len(RACKS.gpus_behind("nvswitch:rack-0-nvsw3/1")) == 72


def test_failure_domains_go_from_near_to_far() -> None:
    domains = POD.failure_domains("gpu:h0/5")
    assert domains[:2] == ("host:h0", "nvdomain:h0")
    assert domains.index("nic:h0/mlx5_5/1") < domains.index("switch:leaf-p0-r5") < domains.index("switch:spine-0")
    assert POD.shared_domains(["gpu:h0/5", "gpu:h2/5"])[0] == "switch:leaf-p0-r5"
    assert POD.shared_domains(["gpu:h0/1", "gpu:h0/5"])[0] == "host:h0"
    assert POD.shared_domains([]) == ()


def test_a_neighbourhood_is_limited_by_distance_and_by_number() -> None:
    near = POD.neighbourhood("nic:h0/mlx5_0/1", 3)
    assert near["link:nic:h0/mlx5_0/1--port:leaf-p0-r0/Ethernet0"] == 1
    assert near["port:leaf-p0-r0/Ethernet0"] == 2
    assert near["switch:leaf-p0-r0"] == 3
    assert "switch:spine-0" not in near
    assert max(near.values()) == 3
    assert len(POD.neighbourhood("nic:h0/mlx5_0/1", 9, limit=10)) == 10


def test_neighbours_can_be_asked_for_one_relation() -> None:
    assert POD.neighbours("gpu:h0/0", Relation.RAIL) == ("nic:h0/mlx5_0/1",)
    assert set(POD.neighbours("gpu:h0/0")) == {"host:h0", "nvdomain:h0", "nic:h0/mlx5_0/1"}


def test_a_subgraph_keeps_only_what_was_asked_for() -> None:
    kept = {"host:h0", "nic:h0/mlx5_0/1", "switch:leaf-p0-r0", "port:leaf-p0-r0/Ethernet0", "nic:h1/mlx5_0/1"}
    under = POD.subgraph(kept)
    assert set(under.components) == kept | {"link:nic:h0/mlx5_0/1--port:leaf-p0-r0/Ethernet0"}


def test_management_and_uncabled_ports_carry_no_traffic() -> None:
    assert POD.carries_traffic("nic:h0/eth0/1") is False
    assert POD.carries_traffic("nic:h0/mlx5_8/1") is False
    assert POD.carries_traffic(POD.link_of("nic:h0/mlx5_0/1") or "") is True
    unsaid = Fabric.build("f", SMALL, [NIC_PART, PORT_PART, CABLE])
    assert unsaid.carries_traffic(NIC.id) is None


def test_h100_pods_have_the_parts_of_the_real_machine() -> None:
    assert size(POD) == {
        "host": 8, "gpu": 64, "nic": 80, "link": 64 + 16 * 3, "switch": 19, "port": 64 + 2 * 16 * 3, "nvswitch": 32,
        "nvdomain": 8,
    }  # fmt: skip
    addresses = [POD.attr(gpu, "pci") for gpu in POD.gpus_of_host("h0")]
    assert len(set(addresses)) == 8
    for host, rail in itertools.product(range(4), range(8)):
        assert POD.switch_of(f"nic:h{host}/mlx5_{rail}/1") == f"switch:leaf-p0-r{rail}"


def test_nvl72_racks_are_one_domain_each_and_can_form_domains_of_576() -> None:
    assert len(RACKS.gpus_of_nvdomain("nvdomain:nvl-0")) == 72
    assert RACKS.nvdomain_of("gpu:r1-t17/3") == "nvdomain:nvl-1"
    assert len([each for each in RACKS.parts("nvdomain:nvl-0") if each.startswith("nvswitch:")]) == 18
    assert RACKS.resolve("r0-t3", "0018:01:00") == "gpu:r0-t3/2"
    assert len(nvl72(racks=8, racks_per_domain=8).gpus_of_nvdomain("nvdomain:nvl-0")) == 576


def test_the_lab_has_the_agreed_names() -> None:
    fabric = lab(hosts=4, rails=2)
    assert fabric.link_of("nic:h0/rail0/1") == "link:nic:h0/rail0/1--port:leaf0/h0"
    assert fabric.switch_of("nic:h3/rail1/1") == "switch:leaf1"
    assert fabric.attr("nic:h0/rail0/1", "netdev") == "rail0"
    assert fabric.carries_traffic("nic:h0/mgmt/1") is False
    assert fabric.hosts() == ("h0", "h1", "h2", "h3")


def test_the_same_arguments_give_the_same_fabric() -> None:
    again = h100_pod(hosts=4, pods=2, spines=3)
    assert dict(again.components) == dict(POD.components)
    assert again.edges == POD.edges


def test_impossible_sizes_are_refused() -> None:
    impossible = [lambda: h100_pod(hosts=0), lambda: h100_pod(rails=3), lambda: nvl72(racks=0), lambda: lab(gpus_per_host=9)]
    for make in impossible:
        with pytest.raises(ValueError, match="need"):
            make()


def test_fabrics_of_several_sources_are_joined() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    hosts = TopologySnapshot(fabric="f", source="hosts", version=1, at=at, components=(HOST, NIC), edges=(NIC_PART,))
    lldp = TopologySnapshot(
        fabric="f", source="lldp", version=4, at=at,
        components=(component(NIC.id, ComponentKind.NIC, rail="0"), SWITCH, PORT),
        edges=(PORT_PART, EdgeRecord(a=PORT.id, b=NIC.id, relation=Relation.CABLED), CABLE),
    )  # fmt: skip
    fabric = Fabric.from_snapshots("f", [lldp, hosts])
    assert fabric.attr(NIC.id, "netdev") == "eth1" and fabric.attr(NIC.id, "rail") == "0"
    assert fabric.peer_of(NIC.id) == PORT.id
