"""LLDP neighbours become cables where both ends can be told, and attributes where they cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.switch_facts import NeighbourFact, NeighbourGone
from goodput_collector.domain.switch_lldp import (
    AGAIN_S,
    GONE_AFTER_S,
    SETTLE_S,
    YES,
    Directory,
    Neighbour,
    Neighbours,
    mac,
    short,
)
from goodput_common.contracts import ids
from goodput_common.contracts.topology import ComponentRecord, EdgeRecord, Relation, TopologySnapshot
from goodput_topology.graph import Fabric
from goodput_topology.merge import Standing, standing

START = datetime(2026, 3, 1, tzinfo=UTC)
HOST = {"system": "h0.example.net", "port": "eth2", "station": YES}


class Table:
    """One switch's table of neighbours, and the time."""

    def __init__(self, *served: str, ports: tuple[str, ...] = ("Ethernet0", "Ethernet4")) -> None:
        self.neighbours = Neighbours("leaf-1", fabric="f", directory=Directory(("leaf-1", *served)))
        self.ports = dict.fromkeys(ports, "up")
        self.aliases = {"etp1": "Ethernet0"}
        self.seconds = 0.0

    def hear(self, where: str, key: str = "1", /, **fields: str) -> None:
        for name, value in fields.items():
            self.neighbours.take(NeighbourFact(where, key, name, value), self.seconds)

    def gone(self, port: str) -> None:
        self.neighbours.take(NeighbourGone(port, ""), self.seconds)

    def tell(self, after_s: float = SETTLE_S) -> tuple[TopologySnapshot, ...]:
        self.neighbours.tell(self.ports, self.aliases, self.now(), self.seconds)  # ports that are new take time to settle
        self.seconds += after_s
        return self.neighbours.tell(self.ports, self.aliases, self.now(), self.seconds)

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def cables(self, after_s: float = SETTLE_S) -> list[tuple[str, str]]:
        (snapshot,) = self.tell(after_s)
        return [(edge.a, edge.b) for edge in snapshot.edges if edge.relation is Relation.CABLED]


def record(component: str, **attrs: str) -> ComponentRecord:
    return ComponentRecord(id=component, kind=ids.kind_of(component), attrs=attrs)


def test_a_switch_tells_its_ports_before_it_knows_any_neighbour() -> None:
    (snapshot,) = Table().tell()
    assert snapshot.source == "switch-leaf-1"
    assert [each.id for each in snapshot.components] == ["switch:leaf-1", "port:leaf-1/Ethernet0", "port:leaf-1/Ethernet4"]
    assert snapshot.components[1].attrs == {"alias": "etp1"}


def test_a_host_that_is_a_station_is_cabled_by_its_interface() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    assert table.cables() == [("nic:h0.example.net/eth2/1", "port:leaf-1/Ethernet0")]


def test_a_mac_address_and_a_description_identify_a_nic_too() -> None:
    table = Table()
    table.hear("Ethernet0", system="h0", port="0C42.A100.000B", port_descr="ens1f0np0", station=YES)
    (snapshot,) = table.tell()
    nic = next(each for each in snapshot.components if each.id.startswith("nic:"))
    assert (nic.id, nic.attrs) == ("nic:h0/ens1f0np0/1", {"mac": "0c:42:a1:00:00:0b", "netdev": "ens1f0np0"})


def test_a_served_switch_is_cabled_port_to_port_under_its_own_name() -> None:
    table = Table("spine-1")
    table.hear("Ethernet4", system="SPINE-1.example.net", port="etp9", port_descr="Ethernet32", bridging=YES)
    (snapshot,) = table.tell()
    other = next(each for each in snapshot.components if each.id == "port:spine-1/etp9")
    assert other.attrs == {"alias": "Ethernet32"}
    assert ("port:leaf-1/Ethernet4", "port:spine-1/etp9") in [(each.a, each.b) for each in snapshot.edges]


@pytest.mark.parametrize(
    "fields",
    [
        {"system": "somebody", "port": "eth2"},  # says not what it is
        {"system": "h0", "port": "eth2", "station": YES, "bridging": YES},  # both
        {"system": "h0", "port": "to the leaf", "station": YES},  # no interface's name
        {"port": "eth2", "station": YES},  # no name
        {"system": "leaf-1", "port": "Ethernet4", "bridging": YES},  # itself
    ],
)
def test_a_neighbour_that_cannot_be_told_makes_no_cable_and_is_kept_as_attributes(fields: dict[str, str]) -> None:
    table = Table()
    table.hear("Ethernet0", **fields)
    (snapshot,) = table.tell()
    assert all(edge.relation is Relation.PART_OF for edge in snapshot.edges)
    attrs = next(each for each in snapshot.components if each.id == "port:leaf-1/Ethernet0").attrs
    assert attrs["lldp_port"] == fields["port"]


def test_two_ports_that_claim_one_neighbour_make_no_cable() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    table.hear("Ethernet4", **HOST)
    assert table.cables() == []


def test_several_neighbours_on_a_port_are_none() -> None:
    table = Table()
    table.hear("Ethernet0", "1", **HOST)
    table.hear("Ethernet0", "2", **(HOST | {"system": "h1"}))
    assert table.cables() == []


def test_the_same_is_told_again_only_now_and_then() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    (first,) = table.tell()
    assert table.tell(60) == ()
    (again,) = table.tell(AGAIN_S)
    assert again.version > first.version
    assert again.components == first.components


def test_a_table_that_comes_in_pieces_is_told_once_it_is_whole() -> None:
    table = Table()
    table.tell()
    for port in ("Ethernet0", "Ethernet4"):
        table.hear(port, **(HOST | {"system": f"h{port[-1]}"}))
        assert table.tell(1.0) == ()
    assert len(table.cables()) == 2


def test_a_cable_outlives_the_silence_of_a_link_that_is_down() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    table.cables()
    table.ports["Ethernet0"] = "down"
    table.gone("Ethernet0")
    assert table.tell(GONE_AFTER_S * 3) == ()
    assert table.tell(GONE_AFTER_S * 3) == ()
    table.ports["Ethernet0"] = "up"
    assert table.tell(GONE_AFTER_S - 10) == ()
    assert table.cables(GONE_AFTER_S) == []


def test_another_neighbour_takes_the_place_of_the_one_before() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    table.cables()
    table.gone("Ethernet0")
    table.hear("Ethernet0", **(HOST | {"system": "h1"}))
    assert table.cables() == [("nic:h1/eth2/1", "port:leaf-1/Ethernet0")]


def test_what_the_switch_tells_meets_what_the_host_tells() -> None:
    table = Table()
    table.hear("Ethernet0", **HOST)
    host = TopologySnapshot(
        fabric="f", source="discovery-h0", version=1, at=START,
        components=(record("host:h0"), record("nic:h0/mlx5_0/1", netdev="eth2", rdma="mlx5_0")),
        edges=(EdgeRecord(a="nic:h0/mlx5_0/1", b="host:h0", relation=Relation.PART_OF),),
    )  # fmt: skip
    fabric = Fabric.from_snapshots("f", [host, *table.tell()])
    assert fabric.component("link:nic:h0/mlx5_0/1--port:leaf-1/Ethernet0") is not None
    assert fabric.component("nic:h0.example.net/eth2/1") is None


@pytest.mark.parametrize(
    ("words", "found"),
    [("0C42.A100.000B", "0c:42:a1:00:00:0b"), ("0x0c42a100000b", "0c:42:a1:00:00:0b"), ("eth2", ""), ("0c:42", "")],
)
def test_a_mac_address_is_one_however_it_is_written(words: str, found: str) -> None:
    assert mac(words) == found


def test_a_systems_name_is_compared_without_its_domain_but_an_address_whole() -> None:
    assert (short("Leaf-1.Example.net"), short("10.0.0.1")) == ("leaf-1", "10.0.0.1")


FIELDS = st.sampled_from(list(Neighbour.__dataclass_fields__))
FACTS = st.one_of(
    st.builds(
        NeighbourFact,
        st.sampled_from(["Ethernet0", "Ethernet4", "Ethernet8"]),
        st.sampled_from("12"),
        FIELDS,
        st.text(max_size=12) | st.sampled_from(["yes", "h0", "eth2", "leaf-1", "spine-1"]),
    ),
    st.builds(NeighbourGone, st.sampled_from(["Ethernet0", "Ethernet4"]), st.sampled_from(["", "1"])),
)


@given(st.lists(FACTS, max_size=30))
def test_whatever_neighbours_say_the_snapshot_fits_together(facts: list[NeighbourFact | NeighbourGone]) -> None:
    table = Table("spine-1")
    for fact in facts:
        table.neighbours.take(fact, 0.0)
    snapshots = table.tell()
    assert len(Fabric.from_snapshots("f", snapshots)) >= 3


def test_a_switchs_snapshot_is_known_by_its_name_where_sources_come_together() -> None:
    table = Table()
    (snapshot,) = table.tell()
    assert snapshot.source == table.neighbours.source == "switch-leaf-1"
    assert standing(snapshot.source) is Standing.SWITCH
