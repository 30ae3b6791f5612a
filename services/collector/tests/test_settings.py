"""Settings: bad values are named, and hosts that share a machine do not share a spool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from goodput_collector.bootstrap import DESCRIPTORS_MAX, raise_descriptor_limit
from goodput_collector.settings import NETDEVS_IGNORED, Settings, listed, load
from goodput_common.runtime.settings import SettingsError


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOODPUT_HOST", "h7")
    monkeypatch.setenv("GOODPUT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("GOODPUT_RDMA_IGNORE", "mlx5_bond_0, mlx5_9,")
    settings = load()
    assert settings.spool_directory == tmp_path / "collector" / "h7"
    assert listed(settings.rdma_ignore) == ("mlx5_bond_0", "mlx5_9")


def test_hosts_on_one_machine_have_spools_of_their_own(tmp_path: Path) -> None:
    folders = {Settings(run_dir=tmp_path, host=host).spool_directory for host in ("h0", "h1")}  # type: ignore[call-arg]
    assert len(folders) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("NETDEV_IGNORE", "("), ("HEARTBEAT_S", "0"), ("SPOOL_BYTES", "5"), ("RDMA_INTERVAL_S", "soon")]
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"GOODPUT_{name}", value)
    with pytest.raises(SettingsError, match=f"GOODPUT_{name}"):
        load()


@pytest.mark.parametrize(
    ("interface", "ignored"),
    [
        ("lo", True),
        ("docker0", True),
        ("veth1a2b3c4", True),
        ("rail0", False),
        ("ib6", False),
        ("eth0", False),
        ("veth0", False),
    ],
)
def test_interfaces_that_carry_no_training_traffic_are_left_out(interface: str, ignored: bool) -> None:
    assert bool(re.fullmatch(NETDEVS_IGNORED, interface)) is ignored


def test_the_descriptor_limit_is_raised_to_what_is_allowed_within_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    limits = (1024, 1 << 20)
    monkeypatch.setattr("goodput_collector.bootstrap.resource.getrlimit", lambda _: limits)
    monkeypatch.setattr("goodput_collector.bootstrap.resource.setrlimit", lambda _, wanted: told.append(wanted))
    assert raise_descriptor_limit() == DESCRIPTORS_MAX
    limits = (1024, 4096)
    assert raise_descriptor_limit() == 4096
    limits = (1 << 20, 1 << 20)
    assert raise_descriptor_limit() == 1 << 20  # never lowered
    assert told == [(DESCRIPTORS_MAX, 1 << 20), (4096, 4096)]
