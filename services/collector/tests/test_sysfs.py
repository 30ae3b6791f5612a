"""RDMA ports from a sysfs tree: states, increases, what is left out, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from collector_fixtures import TurnedClock, rdma_device

from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.application.ports import Absent, Reading
from goodput_common.contracts.telemetry import Counter, CounterDoubt, State

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "public" / "gpud"


def reader(root: Path, clock: TurnedClock, **more: object) -> RdmaReader:
    made = RdmaReader(host="h0", boot_id="b1", clock=clock, sys_root=root, **more)  # type: ignore[arg-type]
    made.open()
    return made


def counters(reading: Reading) -> dict[str, tuple[int, CounterDoubt]]:
    return {each.name: (each.delta, each.doubt) for each in reading.samples if isinstance(each, Counter)}


def states(reading: Reading) -> dict[str, str]:
    return {each.name: each.value for each in reading.samples if isinstance(each, State)}


def test_a_port_is_told_once_and_then_when_it_changes(tmp_path: Path) -> None:
    clock = TurnedClock()
    port = rdma_device(tmp_path, "mlx5_0", {"link_downed": 3}, {})
    rdma = reader(tmp_path, clock)
    (first,) = rdma.read().samples
    assert isinstance(first, State)
    assert (first.component, first.value, first.attrs["phys_state"]) == ("nic:h0/mlx5_0/1", "ACTIVE", "LinkUp")
    clock.seconds += 5
    assert rdma.read().samples == []
    (port / "state").write_text("1: DOWN\n")
    clock.seconds += 5
    assert states(rdma.read()) == {"port_state": "DOWN"}


def test_increases_of_both_folders_are_told_under_mlx5_names(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "bnxt_re0", {"link_downed": 3}, {"to_retransmits": 7, "lifespan": 10})
    rdma = reader(tmp_path, clock)
    rdma.read()
    rdma_device(tmp_path, "bnxt_re0", {"link_downed": 5}, {"to_retransmits": 9, "lifespan": 10})
    clock.seconds += 5
    assert counters(rdma.read()) == {
        "link_downed": (2, CounterDoubt.NONE),
        "local_ack_timeout_err": (2, CounterDoubt.NONE),
    }


def test_a_driver_loaded_again_makes_a_reset(tmp_path: Path) -> None:
    clock = TurnedClock()
    rdma_device(tmp_path, "mlx5_0", {}, {"packet_seq_err": 2**32 - 2})
    rdma = reader(tmp_path, clock)
    rdma.read()
    (tmp_path / "class" / "infiniband" / "mlx5_0").rename(tmp_path / "old")
    rdma_device(tmp_path, "mlx5_0", {}, {"packet_seq_err": 4})
    clock.seconds += 5
    assert counters(rdma.read()) == {"packet_seq_err": (4, CounterDoubt.RESET)}


def test_a_device_can_be_left_out(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {}, {})
    rdma_device(tmp_path, "mlx5_bond_0", {}, {})
    components = {each.component for each in reader(tmp_path, TurnedClock(), ignore=["mlx5_bond_0"]).read().samples}
    assert components == {"nic:h0/mlx5_0/1"}


def test_a_device_whose_files_cannot_be_read_is_trouble_and_the_others_are_told(tmp_path: Path) -> None:
    rdma_device(tmp_path, "mlx5_0", {}, {})
    broken = rdma_device(tmp_path, "mlx5_1", {}, {})
    (broken / "state").unlink()
    reading = reader(tmp_path, TurnedClock()).read()
    assert "mlx5_1/1" in reading.trouble
    assert len(reading.samples) == 1


def test_a_host_without_such_devices_has_none(tmp_path: Path) -> None:
    with pytest.raises(Absent, match="no RDMA devices"):
        reader(tmp_path, TurnedClock())
    (tmp_path / "class" / "infiniband").mkdir(parents=True)
    with pytest.raises(Absent):
        reader(tmp_path, TurnedClock()).read()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captures under ../shared are not here")
def test_the_real_h100_tree(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "infiniband").symlink_to(SHARED / "sys-class-infiniband-h100")
    found = [each for each in reader(tmp_path, TurnedClock()).read().samples if isinstance(each, State)]
    ports = {each.component: each.value for each in found if each.name == "port_state"}
    assert len(ports) == 9
    assert ports["nic:h0/mlx5_0/1"] == "ACTIVE"
    saturated = {(each.component, each.name) for each in found if each.value == "saturated"}
    assert ("nic:h0/mlx5_1/1", "counter:link_downed") in saturated
