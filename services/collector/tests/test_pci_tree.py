"""Which adapter serves which GPU, from the shape of the PCI tree alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from discovery_trees import gb200, h100, plain_vm
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.pci import listing, read_devices
from goodput_collector.domain.pci_tree import Nearness, PciDevice, PciKind, attach, kind_of, nearness, numbered, order_of


def device(kind: PciKind, address: str, *bridges: str, numa: int | None = None, model: int = 0x1021) -> PciDevice:
    return PciDevice(address=address, kind=kind, vendor=0x15B3, device=model, bridges=bridges, numa=numa)


def gpu(address: str, *bridges: str, numa: int | None = None) -> PciDevice:
    return device(PciKind.GPU, address, *bridges, numa=numa)


def nic(address: str, *bridges: str, numa: int | None = None, model: int = 0x1021) -> PciDevice:
    return device(PciKind.NIC, address, *bridges, numa=numa, model=model)


def of(devices: list[PciDevice], kind: PciKind) -> list[PciDevice]:
    return [each for each in devices if each.kind is kind]


@pytest.mark.parametrize(
    ("a", "b", "near"),
    [
        (gpu("a", "root", "up", "down1"), nic("b", "root", "up", "down2"), Nearness.SWITCH),
        (gpu("a", "root", "up1"), nic("b", "root", "up2"), Nearness.ROOT_PORT),
        (gpu("a", "root1", numa=0), nic("b", "root2", numa=0), Nearness.NUMA),
        (gpu("a", "root1", numa=0), nic("b", "root2", numa=1), Nearness.FAR),
        (gpu("a"), nic("b"), Nearness.FAR),
    ],
)
def test_nearness_is_what_two_devices_share(a: PciDevice, b: PciDevice, near: Nearness) -> None:
    assert nearness(a, b)[0] is near
    assert nearness(b, a)[0] is near


def test_an_h100_server_pairs_each_gpu_with_the_adapter_under_its_switch(tmp_path: Path) -> None:
    found = read_devices(h100(tmp_path).root)
    gpus, nics = of(found, PciKind.GPU), of(found, PciKind.NIC)
    assert (len(gpus), len(nics), len(of(found, PciKind.NVSWITCH))) == (8, 10, 4)
    attached = attach(gpus, nics)
    assert {each.nearness for each in attached.values()} == {Nearness.SWITCH}
    assert attached["0000:1b:00.0"].nics == ("0000:18:00.0",)
    assert attached["0000:df:00.0"].nics == ("0000:dc:00.0",)
    assert len({each.nics for each in attached.values()}) == 8


def test_a_gb200_tray_shares_out_the_adapters_of_a_numa_node_and_leaves_the_dpu(tmp_path: Path) -> None:
    found = read_devices(gb200(tmp_path).root)
    attached = attach(of(found, PciKind.GPU), of(found, PciKind.NIC))
    assert {gpu: each.nics for gpu, each in attached.items()} == {
        "0008:01:00.0": ("0000:03:00.0",),
        "0009:01:00.0": ("0002:03:00.0",),
        "0018:01:00.0": ("0010:03:00.0",),
        "0019:01:00.0": ("0012:03:00.0",),
    }
    assert {each.nearness for each in attached.values()} == {Nearness.NUMA}


def test_a_virtual_machine_without_a_tree_pairs_nothing(tmp_path: Path) -> None:
    found = read_devices(plain_vm(tmp_path).root)
    assert [each.kind for each in found] == [PciKind.NIC]
    assert attach([gpu("0000:00:05.0")], found) == {}


def test_two_gpus_and_two_adapters_under_one_switch_are_two_pairs() -> None:
    under = ("root", "up")
    attached = attach(
        [gpu("0000:02:00.0", *under), gpu("0000:01:00.0", *under)],
        [nic("0000:04:00.0", *under), nic("0000:03:00.0", *under)],
    )
    assert {gpu: each.nics for gpu, each in attached.items()} == {
        "0000:01:00.0": ("0000:03:00.0",),
        "0000:02:00.0": ("0000:04:00.0",),
    }


def test_four_gpus_share_two_adapters_and_one_gpu_uses_both_ports() -> None:
    under = ("root", "up")
    gpus = [gpu(f"0000:0{n}:00.0", *under) for n in range(1, 5)]
    pair = [nic("0000:0a:00.0", *under), nic("0000:0a:00.1", *under)]
    assert [attach(gpus, pair)[each.address].nics for each in gpus] == [
        ("0000:0a:00.0",),
        ("0000:0a:00.0",),
        ("0000:0a:00.1",),
        ("0000:0a:00.1",),
    ]
    assert attach(gpus[:1], pair)["0000:01:00.0"].nics == ("0000:0a:00.0", "0000:0a:00.1")


def test_the_display_of_a_management_controller_is_no_gpu() -> None:
    assert kind_of(0x030000, 0x1A03) is None
    assert kind_of(0x030200, 0x10DE) is PciKind.GPU
    assert kind_of(0x068000, 0x10DE) is PciKind.NVSWITCH
    assert kind_of(0x068000, 0x8086) is None
    assert kind_of(0x020700, 0x15B3) is PciKind.NIC
    assert kind_of(0x120000, 0x1002) is PciKind.GPU


def test_numbers_stay_with_their_devices_when_a_neighbour_is_missing() -> None:
    all_four = numbered(["c", "0000:03:00.0", "0000:01:00.0", "0000:02:00.0"][1:], {})
    assert all_four == {"0000:01:00.0": 0, "0000:02:00.0": 1, "0000:03:00.0": 2}
    assert numbered(["0000:01:00.0", "0000:03:00.0"], all_four) == {"0000:01:00.0": 0, "0000:03:00.0": 2}


def test_a_device_in_another_slot_gets_the_lowest_free_number_and_another_machine_starts_anew() -> None:
    known = {"0000:01:00.0": 0, "0000:02:00.0": 1}
    assert numbered(["0000:01:00.0", "0000:00:00.0"], known) == {"0000:01:00.0": 0, "0000:00:00.0": 2}
    assert numbered(["0000:09:00.0"], known) == {"0000:09:00.0": 0}


ADDRESSES = st.from_regex(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", fullmatch=True)
DEVICES = st.lists(
    st.builds(
        device, st.sampled_from([PciKind.GPU, PciKind.NIC]), ADDRESSES, st.sampled_from(["r1", "r2"]),
        numa=st.sampled_from([None, 0, 1]), model=st.sampled_from([1, 2]),
    ),
    max_size=16, unique_by=lambda each: each.address,
)  # fmt: skip


@given(DEVICES)
def test_every_gpu_that_is_attached_has_an_adapter_that_exists(devices: list[PciDevice]) -> None:
    gpus, nics = of(devices, PciKind.GPU), of(devices, PciKind.NIC)
    attached = attach(gpus, nics)
    assert attached.keys() <= {each.address for each in gpus}
    for each in attached.values():
        assert each.nics and set(each.nics) <= {nic.address for nic in nics}


@given(st.lists(ADDRESSES | st.text(max_size=12), max_size=12), st.dictionaries(ADDRESSES, st.integers(0, 20), max_size=6))
def test_no_two_devices_ever_share_a_number_that_was_not_shared_before(addresses: list[str], known: dict[str, int]) -> None:
    unique = {number: address for address, number in known.items()}
    remembered = {address: number for number, address in unique.items()}
    found = numbered(addresses, remembered)
    assert set(found) == set(addresses)
    assert len(set(found.values())) == len(found)


@given(st.text(max_size=20))
def test_any_text_has_a_place_in_the_order(text: str) -> None:
    assert sorted([order_of(text), order_of("0000:01:00.0")])


def test_an_unreadable_attribute_leaves_the_rest(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    at = (tree.root / "bus/pci/devices/0000:1b:00.0").resolve()
    (at / "numa_node").unlink()
    (at / "max_link_width").write_text("unknown\n")
    (tree.root / "bus/pci/devices/junk").symlink_to("nowhere")
    found = {each.address: each for each in read_devices(tree.root)}
    assert (found["0000:1b:00.0"].numa, found["0000:1b:00.0"].width_max) == (None, 0)
    assert found["0000:1b:00.0"].bridges[0] == "0000:15:01.0"


def test_a_listing_differs_when_a_device_is_gone(tmp_path: Path) -> None:
    tree = h100(tmp_path)
    before = listing(tree.root)
    tree.remove("0000:18:00.0")
    assert listing(tree.root) != before
    assert listing(tmp_path / "nothing") == ()
