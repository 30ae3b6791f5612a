"""Fabrics survive files and messages, and damaged ones are refused by name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_topology import jsonfile, snapshot
from goodput_topology.generate import h100_pod, lab
from goodput_topology.graph import Fabric

AT = datetime(2026, 1, 1, tzinfo=UTC)
POD = h100_pod(hosts=3, spines=2)


def same(a: Fabric, b: Fabric) -> bool:
    key = lambda e: (e.relation.value, e.a, e.b)  # noqa: E731
    return (
        a.name == b.name
        and dict(a.components) == dict(b.components)
        and sorted(a.edges, key=key) == sorted(b.edges, key=key)
    )


def test_a_fabric_comes_back_from_its_file(tmp_path: Path) -> None:
    jsonfile.save(POD, tmp_path / "f.json")
    assert same(jsonfile.load(tmp_path / "f.json"), POD)
    assert [each.name for each in tmp_path.iterdir()] == ["f.json"]


def test_the_file_does_not_depend_on_the_order_of_records() -> None:
    turned = Fabric.build(POD.name, reversed(list(POD.components.values())), reversed(POD.edges))
    assert jsonfile.dumps(turned) == jsonfile.dumps(POD)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "not JSON"),
        (b"\x80\x02}", "not JSON"),
        (b"[]", "Expected `object`"),
        (b'{"format":"goodput.topology/1","fabric":"f","components":[{"id":"host:a"}],"edges":[]}', "$.components[0]"),
        (
            b'{"format":"goodput.topology/1","fabric":"f","components":[],"edges":[{"a":1,"b":"x","relation":"rail"}]}',
            "$.edges[0].a",
        ),
        (b'{"format":"goodput.topology/9","fabric":"f","components":[],"edges":[]}', "field format is 'goodput.topology/9'"),
        (
            b'{"format":"goodput.topology/1","fabric":"f","components":[],"edges":[{"a":"host:a","b":"host:b","relation":"part_of"}]}',
            "edges[0] (host:a part_of host:b)",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_its_name_and_the_field(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(text)
    with pytest.raises(jsonfile.UnreadableTopology) as raised:
        jsonfile.load(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_an_absent_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(jsonfile.UnreadableTopology, match=r"nowhere\.json: cannot be read"):
        jsonfile.load(tmp_path / "nowhere.json")


def test_a_large_fabric_is_cut_into_parts_that_fit_the_bus() -> None:
    big = h100_pod(hosts=64, pods=2)
    parts = snapshot.to_snapshots(big, source="t", version=3, at=AT)
    assert len(parts) > 1
    assert all(len(msgspec.json.encode(part)) < 1_000_000 for part in parts)
    assert same(Fabric.from_snapshots("default", parts), big)


def test_an_empty_fabric_is_still_one_part() -> None:
    (part,) = snapshot.to_snapshots(Fabric.empty("e"), source="t", version=1, at=AT)
    assert (part.part, part.parts, part.components) == (1, 1, ())


@given(st.permutations(range(4)), st.lists(st.integers(0, 3)))
def test_parts_in_any_order_and_doubled_give_the_whole_once_it_is_whole(order: list[int], doubled: list[int]) -> None:
    parts = [
        msgspec.structs.replace(each, part=n + 1, parts=4)
        for n, each in enumerate(snapshot.to_snapshots(lab(hosts=1), source="t", version=1, at=AT) * 4)
    ]
    assembly = snapshot.Assembly()
    for number in order[:-1]:
        assert assembly.add(parts[number]) is None
        for again in doubled:
            if again in order[:-1] and order.index(again) <= order.index(number):
                assert assembly.add(parts[again]) is None
    whole = assembly.add(parts[order[-1]])
    assert whole is not None and [part.part for part in whole] == [1, 2, 3, 4]


def test_a_newer_version_replaces_what_an_interrupted_sender_left() -> None:
    def part(version: int, number: int) -> snapshot.TopologySnapshot:
        return snapshot.TopologySnapshot(fabric="f", source="s", version=version, at=AT, part=number, parts=2)

    assembly = snapshot.Assembly()
    assert assembly.add(part(1, 1)) is None
    assert assembly.add(part(2, 2)) is None
    assert assembly.add(part(1, 2)) is None
    whole = assembly.add(part(2, 1))
    assert whole is not None and {each.version for each in whole} == {2}


def test_half_received_snapshots_are_bounded() -> None:
    assembly = snapshot.Assembly()
    for number in range(snapshot.SOURCES_MAX + 10):
        assembly.add(snapshot.TopologySnapshot(fabric="f", source=f"s{number}", version=1, at=AT, part=1, parts=2))
    late = snapshot.TopologySnapshot(fabric="f", source="s0", version=1, at=AT, part=2, parts=2)
    assert assembly.add(late) is None  # its first part was forgotten


def test_a_part_number_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="part 3 of 2"):
        snapshot.Assembly().add(snapshot.TopologySnapshot(fabric="f", source="s", version=1, at=AT, part=3, parts=2))
