"""Sources that name things differently speak of the same things, and sources that differ make contradictions, not errors."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId, ComponentKind
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.build import InvalidFabric
from goodput_topology.generate import h100_pod, lab
from goodput_topology.graph import Fabric
from goodput_topology.merge import Standing, check, merge, standing
from goodput_topology.snapshot import to_snapshots

AT = datetime(2026, 3, 1, tzinfo=UTC)


def record(id: ComponentId, **attrs: str) -> ComponentRecord:
    return ComponentRecord(id=id, kind=ids.kind_of(id), attrs=attrs)


def part(a: ComponentId, b: ComponentId) -> EdgeRecord:
    return EdgeRecord(a=a, b=b, relation=Relation.PART_OF)


def cable(a: ComponentId, b: ComponentId) -> EdgeRecord:
    return EdgeRecord(a=a, b=b, relation=Relation.CABLED)


def rail(gpu: ComponentId, nic: ComponentId) -> EdgeRecord:
    return EdgeRecord(a=gpu, b=nic, relation=Relation.RAIL)


def said(source: str, *records: ComponentRecord | EdgeRecord, version: int = 1, after_s: float = 0.0) -> TopologySnapshot:
    return TopologySnapshot(
        fabric="f", source=source, version=version, at=AT + timedelta(seconds=after_s),
        components=tuple(each for each in records if isinstance(each, ComponentRecord)),
        edges=tuple(each for each in records if isinstance(each, EdgeRecord)),
    )  # fmt: skip


def joined(*snapshots: TopologySnapshot) -> Fabric:
    return Fabric.from_snapshots("f", snapshots)


HOST, NIC = "host:h7", "nic:h7/mlx5_0/1"
DISCOVERED = said(
    "discovery-h7", record(HOST), record(NIC, guid="0xe09d7303007a4bd8", netdev="ib0", pci="0000:18:00"), part(NIC, HOST)
)


def scanned(nic: ComponentId, host: ComponentId, guid: str = "e09d7303007a4bd8") -> TopologySnapshot:
    return said(
        "ibnet-h1",
        record(host), record(nic, guid=guid), record("switch:leaf-2", guid="1", tier="leaf"), record("port:leaf-2/1"),
        part(nic, host), part("port:leaf-2/1", "switch:leaf-2"), cable("port:leaf-2/1", nic),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "is_one"),
    [
        ("discovery-h7", Standing.HOST),
        ("switch-leaf-2", Standing.SWITCH),
        ("ibnet-h1", Standing.SCAN),
        ("lab", Standing.DRAWN),
    ],
)
def test_what_a_source_is_shows_in_its_name(source: str, is_one: Standing) -> None:
    assert standing(source) is is_one


def test_a_single_source_is_taken_as_it_is() -> None:
    fabric = h100_pod(hosts=4)
    again = Fabric.from_snapshots("default", to_snapshots(fabric, source="file", version=1, at=AT))
    assert dict(again.components) == dict(fabric.components)
    assert again.contradictions == ()


def test_an_adapter_is_found_by_its_guid_and_its_host_by_the_adapter() -> None:
    fabric = joined(scanned("nic:h7.example/HCA-1/1", "host:h7.example"), DISCOVERED)
    assert fabric.peer_of(NIC) == "port:leaf-2/1"
    assert "nic:h7.example/HCA-1/1" not in fabric
    assert fabric.hosts() == ("h7",)
    assert fabric.contradictions == ()


def test_an_adapter_that_the_scan_could_not_name_gets_its_host_from_the_host() -> None:
    nameless = "nic:ib-e09d7303007a4bd8/hca/1"
    scan = said(
        "ibnet-h1", record(nameless, guid="e09d7303007a4bd8"), record("switch:leaf-2"), record("port:leaf-2/1"),
        part("port:leaf-2/1", "switch:leaf-2"), cable(nameless, "port:leaf-2/1"),
    )  # fmt: skip
    fabric = joined(DISCOVERED, scan)
    assert fabric.switch_of(NIC) == "switch:leaf-2"
    assert fabric.part_of(NIC) == (HOST,)


def test_the_same_adapter_by_pci_address_under_another_name_keeps_the_hosts_name() -> None:
    drawn = said("file", record(HOST), record("nic:h7/rdma0/1", pci="18:00.0", rail="3"), part("nic:h7/rdma0/1", HOST))
    fabric = joined(drawn, DISCOVERED)
    assert fabric.attr(NIC, "rail") == "3"
    assert "nic:h7/rdma0/1" not in fabric


def test_a_guid_is_stronger_than_a_name_where_names_were_swapped() -> None:
    drawn = said(
        "file",
        record(HOST),
        record("nic:h7/mlx5_0/1", guid="0xb", rail="1"),
        record("nic:h7/mlx5_1/1", guid="0xa", rail="0"),
    )
    found = said("discovery-h7", record(HOST), record("nic:h7/mlx5_0/1", guid="0xa"), record("nic:h7/mlx5_1/1", guid="0xb"))
    fabric = joined(drawn, found)
    assert (fabric.attr("nic:h7/mlx5_0/1", "rail"), fabric.attr("nic:h7/mlx5_1/1", "rail")) == ("0", "1")


def test_a_replaced_adapter_keeps_its_id_and_the_drawings_guid_is_a_contradiction() -> None:
    drawn = said("file", record(HOST), record(NIC, guid="0xdead", rail="0"), part(NIC, HOST))
    fabric = joined(drawn, DISCOVERED)
    assert fabric.attr(NIC, "guid") == "0xe09d7303007a4bd8"
    assert fabric.attr(NIC, "rail") == "0"
    (only,) = fabric.contradictions
    assert (only.component, only.what, only.other, only.other_from) == (NIC, "guid", "0xdead", "file")


def test_what_two_adapters_share_names_neither() -> None:
    """Both ports of a bond carry one MAC address."""
    host = said(
        "discovery-h7",
        record(HOST),
        record("nic:h7/a/1", mac="00:11:22:33:44:55"),
        record("nic:h7/b/1", mac="00:11:22:33:44:55"),
    )
    switch = said(
        "switch-leaf", record("nic:x/y/1", mac="00:11:22:33:44:55"), record("switch:leaf"), record("port:leaf/1"),
        part("port:leaf/1", "switch:leaf"), cable("port:leaf/1", "nic:x/y/1"),
    )  # fmt: skip
    fabric = joined(host, switch)
    assert fabric.link_of("nic:h7/a/1") is None and fabric.link_of("nic:h7/b/1") is None


# -- two hosts that speak for themselves ------------------------------------------------------------------------------


def gpus(host: str, *uuids: str, after_s: float = 0.0, missing: str = "") -> TopologySnapshot:
    whole = ids.host_id(host)
    found: list[ComponentRecord | EdgeRecord] = [record(whole)]
    for at, uuid in enumerate(uuids):
        gone = {"missing": "true"} if uuid == missing else {}
        found += [record(f"gpu:{host}/{at}", uuid=uuid, **gone), part(f"gpu:{host}/{at}", whole)]
    return said(f"discovery-{host}", *found, after_s=after_s)


@pytest.mark.parametrize("uuids", [("U-a1", "U-b1"), ("U-a1",), ("U-a0", "U-a1")])
def test_a_gpu_put_from_one_host_into_another_does_not_make_them_one(uuids: tuple[str, ...]) -> None:
    """Down to a host whose every part came from the other: two machines that speak for themselves are two."""
    fabric = joined(gpus("a", "U-a0", "U-a1"), gpus("b", *uuids, after_s=60))
    assert set(fabric.hosts()) == {"a", "b"}
    assert len(fabric.gpus_of_host("a")) == 2 and len(fabric.gpus_of_host("b")) == len(uuids)
    assert fabric.resolve(None, "U-a1") == f"gpu:b/{uuids.index('U-a1')}"


def test_the_newer_snapshot_has_a_gpu_that_two_hosts_claim_and_the_other_is_kept_as_a_contradiction() -> None:
    fabric = joined(gpus("b", "U-1", after_s=10), gpus("a", "U-0", "U-1", after_s=99))
    assert fabric.resolve(None, "U-1") == "gpu:a/1"
    assert "uuid" not in fabric.components["gpu:b/0"].attrs
    (only,) = fabric.contradictions
    assert (only.component, only.what, only.kept_from, only.other_from) == ("gpu:a/1", "uuid", "discovery-a", "discovery-b")


def test_a_host_that_misses_a_gpu_does_not_have_it_however_new_its_word() -> None:
    fabric = joined(gpus("a", "U-0", "U-1", missing="U-1", after_s=99), gpus("b", "U-1"))
    assert fabric.resolve(None, "U-1") == "gpu:b/0"


def test_two_hosts_of_one_short_name_are_two_and_the_short_name_is_neithers() -> None:
    first, second = gpus("n1.pod-a", "U-a"), gpus("n1.pod-b", "U-b")
    short = said("file", record("host:n1", rack="r1"))
    full = said("lab", record("host:n1.pod-b", rack="r2"))
    fabric = joined(first, second, short, full)
    assert {"n1.pod-a", "n1.pod-b"} <= set(fabric.hosts())
    assert len(fabric.gpus_of_host("n1.pod-a")) == len(fabric.gpus_of_host("n1.pod-b")) == 1
    assert (fabric.attr("host:n1.pod-a", "rack"), fabric.attr("host:n1.pod-b", "rack")) == ("", "r2")
    alone = joined(first, short)
    assert alone.hosts() == ("n1.pod-a",) and alone.attr("host:n1.pod-a", "rack") == "r1"


def nics(host: str, **macs: str) -> TopologySnapshot:
    whole = ids.host_id(host)
    found: list[ComponentRecord | EdgeRecord] = [record(whole)]
    for name, mac in macs.items():
        found += [record(f"nic:{host}/{name}/1", netdev=name, mac=mac), part(f"nic:{host}/{name}/1", whole)]
    return said(f"discovery-{host}", *found)


FIXED = "be:3a:f2:b6:05:9f"  # the management controller's USB adapter, the same in every server of the model


def test_one_mac_address_in_two_hosts_is_two_adapters_and_names_neither() -> None:
    hosts = nics("a", usb0=FIXED, eth0="02:00:00:00:00:0a"), nics("b", enx9f=FIXED, eth0="02:00:00:00:00:0b")
    port = "port:leaf/1"
    heard = said(
        "switch-leaf", record("switch:leaf"), record(port, lldp_system="?", lldp_port=FIXED), part(port, "switch:leaf")
    )
    fabric = joined(*hosts, heard)
    assert set(fabric.hosts()) == {"a", "b"}
    assert set(fabric.nics_of_host("a")) == {"nic:a/usb0/1", "nic:a/eth0/1"}
    assert set(fabric.nics_of_host("b")) == {"nic:b/enx9f/1", "nic:b/eth0/1"}
    assert fabric.link_of(port) is None
    told = said("switch-leaf", record("nic:x/y/1", mac="02:00:00:00:00:0b"), *neighbour("nic:x/y/1", port)[1:])
    assert joined(*hosts, told).peer_of(port) == "nic:b/eth0/1"


def test_clones_with_all_addresses_in_common_stay_two_hosts() -> None:
    fabric = joined(nics("a", eth0=FIXED), nics("b", eth0=FIXED))
    assert set(fabric.nics_of_host("a")) == {"nic:a/eth0/1"} and set(fabric.nics_of_host("b")) == {"nic:b/eth0/1"}


def test_what_a_host_heard_of_another_over_a_cable_is_that_others_adapter() -> None:
    """Back to back: LLDP knows the interface and the MAC address, and the other host knows itself."""
    own = nics("h8", eth2="02:00:00:00:00:08")
    theirs = "nic:h8.example/eth2/1"
    heard = said(
        "discovery-z", record("host:z"), record("nic:z/e/1"), part("nic:z/e/1", "host:z"),
        record(theirs, netdev="eth2", mac="02:00:00:00:00:08"), cable("nic:z/e/1", theirs),
    )  # fmt: skip
    assert joined(own, heard).peer_of("nic:z/e/1") == "nic:h8/eth2/1"


def neighbour(nic: ComponentId, port: ComponentId) -> list[ComponentRecord | EdgeRecord]:
    switch = ids.switch_id(port.partition(":")[2].partition("/")[0])
    return [record(nic), record(switch), record(port), part(port, switch), cable(nic, port)]


def test_a_cable_seen_from_both_ends_is_one_link() -> None:
    host = said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-2/etp1"))
    switch = said(
        "switch-leaf-2", record("switch:leaf-2"), record("port:leaf-2/Ethernet8", alias="etp1"), record(NIC),
        part("port:leaf-2/Ethernet8", "switch:leaf-2"), cable("port:leaf-2/Ethernet8", NIC),
    )  # fmt: skip
    fabric = joined(host, switch)
    assert len(list(fabric.of_kind(ComponentKind.LINK))) == 1
    assert len(fabric.ports_of_switch("switch:leaf-2")) == 1
    assert fabric.contradictions == ()


@pytest.mark.parametrize(
    "heard",
    [
        {"lldp_system": "h7.example", "lldp_port": "ib0"},
        {"lldp_system": "h7", "lldp_port": "E0:9D:73:00:00:07"},
        {"lldp_system": "some other name", "lldp_chassis": "e09d.7300.0007", "lldp_port": "4"},
    ],
)
def test_whom_a_switch_heard_without_knowing_is_known_here(heard: dict[str, str]) -> None:
    host = said("discovery-h7", record(HOST), record(NIC, netdev="ib0", mac="e0:9d:73:00:00:07"), part(NIC, HOST))
    port = "port:leaf-2/Ethernet8"
    switch = said("switch-leaf-2", record("switch:leaf-2"), record(port, **heard), part(port, "switch:leaf-2"))
    assert joined(host, switch).peer_of(NIC) == port
    stranger = said("switch-leaf-2", record("switch:leaf-2"), record(port, lldp_system="x", lldp_port="y"))
    assert joined(host, stranger).link_of(port) is None


def test_a_switch_is_one_by_its_chassis_under_its_full_name_and_its_short_one() -> None:
    host = said(
        "discovery-h7", record("switch:leaf-2.dc1.example", mac="aa:bb:cc:dd:ee:ff"), record("port:leaf-2.dc1.example/E1"),
        part("port:leaf-2.dc1.example/E1", "switch:leaf-2.dc1.example"),
        record(NIC), cable(NIC, "port:leaf-2.dc1.example/E1"),
    )  # fmt: skip
    switch = said(
        "switch-leaf-2", record("switch:leaf-2", mac="AA:BB:CC:DD:EE:FF", tier="leaf"), record("port:leaf-2/E1"),
        part("port:leaf-2/E1", "switch:leaf-2"),
    )  # fmt: skip
    for snapshots in ((host, switch), (switch, host)):
        fabric = joined(*snapshots)
        assert [each for each in fabric.components if each.startswith("switch:")] == ["switch:leaf-2.dc1.example"]
        assert fabric.attr("switch:leaf-2.dc1.example", "tier") == "leaf"
        assert len(fabric.ports_of_switch("switch:leaf-2.dc1.example")) == 1


def test_a_cable_that_was_moved_is_believed_and_the_drawing_becomes_a_contradiction() -> None:
    drawn = said("file", record(HOST), *neighbour(NIC, "port:leaf-2/1"), part(NIC, HOST), after_s=999)
    fabric = joined(drawn, said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-3/9")))
    assert fabric.peer_of(NIC) == "port:leaf-3/9"
    (only,) = fabric.contradictions
    assert (only.what, only.kept, only.other, only.other_from) == ("cable", "port:leaf-3/9", "port:leaf-2/1", "file")


def test_of_two_hosts_that_claim_one_port_the_one_that_changed_last_has_it() -> None:
    silent = said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-2/1"))
    alive = said("discovery-h8", record("host:h8"), *neighbour("nic:h8/mlx5_0/1", "port:leaf-2/1"), after_s=60)
    for snapshots in ((silent, alive), (alive, silent)):
        fabric = joined(*snapshots)
        assert fabric.peer_of("port:leaf-2/1") == "nic:h8/mlx5_0/1"
        assert [each.what for each in fabric.contradictions] == ["cable"]


def test_a_switch_that_confirms_a_host_beats_a_later_claim() -> None:
    confirmed = said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-2/1"))
    switch = said("switch-leaf-2", *neighbour(NIC, "port:leaf-2/1"))
    later = said("discovery-h8", record("host:h8"), *neighbour("nic:h8/mlx5_0/1", "port:leaf-2/1"), after_s=60)
    assert joined(later, switch, confirmed).peer_of("port:leaf-2/1") == NIC


def test_a_new_version_replaces_what_the_same_source_said_and_nothing_else() -> None:
    moved = said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-2/2"), version=2)
    before = said("discovery-h7", record(HOST), *neighbour(NIC, "port:leaf-2/1"), version=1)
    other = said("discovery-h8", record("host:h8"))
    fabric = joined(before, other, moved)
    assert fabric.peer_of(NIC) == "port:leaf-2/2"
    assert "port:leaf-2/1" not in fabric
    assert set(fabric.hosts()) == {"h7", "h8"}


def test_people_decide_purpose_and_place_and_the_host_what_it_is() -> None:
    drawn = said(
        "file", record(HOST, rack="r1"), record(NIC, carries_traffic="false", rail="7", netdev="old0"), part(NIC, HOST)
    )
    host = said(
        "discovery-h7",
        record(HOST, rack="fd-9"),
        record(NIC, carries_traffic="true", rail="0", netdev="ib0"),
        part(NIC, HOST),
    )
    fabric = joined(host, drawn)
    assert (fabric.attr(HOST, "rack"), fabric.carries_traffic(NIC), fabric.attr(NIC, "rail")) == ("r1", False, "7")
    assert fabric.attr(NIC, "netdev") == "ib0"
    assert {each.what for each in fabric.contradictions} == {"rack", "carries_traffic", "rail", "netdev"}


def test_the_rails_of_a_gpu_come_from_one_source() -> None:
    gpu, other = "gpu:h7/0", "nic:h7/mlx5_1/1"
    both = [record(HOST), record(gpu), record(NIC), record(other)]
    fabric = joined(said("discovery-h7", *both, rail(gpu, other)), said("file", *both, rail(gpu, NIC)))
    assert fabric.nics_of_gpu(gpu) == (NIC,)
    assert [each.what for each in fabric.contradictions] == ["rail"]


def test_an_nvlink_domain_is_known_by_its_gpus() -> None:
    seen = said(
        "discovery-h7", record("nvdomain:c1.0"), *[record(f"gpu:h7/{n}") for n in range(2)],
        *[part(f"gpu:h7/{n}", "nvdomain:c1.0") for n in range(2)],
    )  # fmt: skip
    drawn = said(
        "file", record("nvdomain:rack-4", rack="4"), *[record(f"gpu:h7/{n}") for n in range(2)],
        *[part(f"gpu:h7/{n}", "nvdomain:rack-4") for n in range(2)],
    )  # fmt: skip
    fabric = joined(seen, drawn)
    assert fabric.nvdomain_of("gpu:h7/0") == "nvdomain:c1.0"
    assert fabric.attr("nvdomain:c1.0", "rack") == "4"
    assert "nvdomain:rack-4" not in fabric


def test_a_source_that_goes_back_on_a_component_leaves_the_others_edge_in_the_air() -> None:
    """One source may not make another's snapshot unusable."""
    switch = said("switch-leaf-2", record("switch:leaf-2"), record("port:leaf-2/1"), cable("port:leaf-2/1", NIC))
    fabric = joined(switch, said("discovery-h7", record(HOST), version=2))
    assert fabric.link_of("port:leaf-2/1") is None
    assert [(each.component, each.what) for each in fabric.contradictions] == [(NIC, "cabled")]


def test_an_edge_from_a_thing_to_itself_is_no_edge() -> None:
    itself = said("discovery-h2", cable(NIC, NIC), rail(NIC, NIC), part(NIC, NIC))
    assert joined(DISCOVERED, itself).link_of(NIC) is None


def test_a_snapshot_by_itself_must_fit_together() -> None:
    with pytest.raises(InvalidFabric, match="no component nic:h7/mlx5_0/1"):
        check([said("switch-leaf-2", record("switch:leaf-2"), record("port:leaf-2/1"), cable("port:leaf-2/1", NIC))])
    check([DISCOVERED])
    check([])


def test_what_a_lab_host_discovers_agrees_with_the_labs_own_drawing() -> None:
    """In a lab a host has the same interfaces, as plain netdevs, and no hardware behind them."""
    drawn = to_snapshots(lab(hosts=2, name="f"), source="lab", version=1, at=AT)
    seen = [
        said(f"discovery-h{n}", record(f"host:h{n}", hostname="lab"), record(f"nic:h{n}/rail0/1", netdev="rail0"),
             part(f"nic:h{n}/rail0/1", f"host:h{n}"))
        for n in range(2)
    ]  # fmt: skip
    fabric = joined(*drawn, *seen)
    assert fabric.contradictions == ()
    assert set(fabric.components) == set(lab(hosts=2).components)


# -- whatever they say ----------------------------------------------------------------------------------------------

HOSTS = st.sampled_from(["h1", "h1.example", "h2", "x"])
VALUES = st.sampled_from(["", "0xa", "0xb", "0000:18:00", "rail0", "mlx5_0", "true", "h1", "s"])
IDS = st.one_of(
    st.builds(ids.host_id, HOSTS),
    st.builds(ids.gpu_id, HOSTS, st.integers(0, 1)),
    st.builds(ids.nic_id, HOSTS, st.sampled_from(["mlx5_0", "rail0"])),
    st.builds(ids.nvdomain_id, HOSTS),
    st.builds(ids.switch_id, st.sampled_from(["s", "s.example", "t"])),
    st.builds(ids.port_id, st.sampled_from(["s", "s.example", "t"]), st.sampled_from(["1", "2"])),
    st.sampled_from(["rubbish", "port:/1", "switch:", "link:nic:h1/rail0/1--port:s/1", "nic:h1", "gpu:"]),
)
ATTRS = st.dictionaries(
    st.sampled_from(["guid", "uuid", "pci", "netdev", "mac", "alias", "rail", "lldp_system", "lldp_port"]),
    VALUES,
    max_size=3,
)
RECORDS = st.builds(ComponentRecord, id=IDS, kind=st.sampled_from(ComponentKind), attrs=ATTRS) | st.builds(
    lambda id, attrs: record(id, **attrs), IDS.filter(lambda each: ":" in each and each[-1] != ":"), ATTRS
)
EDGES = st.builds(EdgeRecord, a=IDS, b=IDS, relation=st.sampled_from(Relation), attrs=ATTRS)
SOURCES = st.sampled_from(["discovery-h1", "discovery-h2", "switch-s", "ibnet-h1", "file", "lab"])
SNAPSHOTS = st.lists(
    st.builds(
        lambda source, components, edges, version, after_s: said(
            source, *components, *edges, version=version, after_s=after_s
        ),
        SOURCES, st.lists(RECORDS, max_size=8), st.lists(EDGES, max_size=8), st.integers(1, 3), st.integers(0, 3),
    ),
    min_size=2, max_size=6, unique_by=lambda each: each.source,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(SNAPSHOTS)
def test_whatever_several_sources_say_makes_a_fabric(snapshots: list[TopologySnapshot]) -> None:
    merged = merge(snapshots)
    Fabric.build("f", merged.components, merged.edges)


@settings(max_examples=50, deadline=None)
@given(SNAPSHOTS, st.randoms(use_true_random=False))
def test_the_order_of_arrival_makes_no_difference(snapshots: list[TopologySnapshot], random: object) -> None:
    shuffled = list(snapshots)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge(shuffled) == merge(snapshots)


def test_every_host_of_a_pod_and_the_drawing_agree_whatever_is_missing() -> None:
    """A drawing of a pod and each host's own word for itself, some of them silent: nothing is lost, nothing contradicts."""
    pod = h100_pod(hosts=4, name="f")
    drawn = to_snapshots(pod, source="file", version=1, at=AT)
    hosts = []
    for host in pod.hosts():
        own = [pod.components[each] for each in pod.parts(ids.host_id(host)) if each.startswith(("nic:", "gpu:"))]
        parts = [part(each.id, ids.host_id(host)) for each in own]
        hosts.append(said(f"discovery-{host}", record(ids.host_id(host)), *own, *parts))
    for count in range(len(hosts) + 1):
        for spoke in itertools.combinations(hosts, count):
            fabric = joined(*drawn, *spoke)
            assert fabric.contradictions == ()
            assert set(fabric.components) == set(pod.components)
