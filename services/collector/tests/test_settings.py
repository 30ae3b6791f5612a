"""Settings: bad values are named, and hosts that share a machine do not share a spool."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from goodput_collector.bootstrap import DESCRIPTORS_MAX, raise_descriptor_limit
from goodput_collector.settings import NETDEVS_IGNORED, OFF_WHEN_EMPTY, Settings, listed, load
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
    ("name", "value"),
    [
        ("NETDEV_IGNORE", "("),
        ("HEARTBEAT_S", "0"),
        ("HISTORY_S", "inf"),
        ("COLLECTOR_OFF", "\udcff"),
        ("SPOOL_BYTES", "5"),
        ("RDMA_INTERVAL_S", "soon"),
        ("JOURNALCTL", 'journalctl "--directory=/x'),
        ("IBNETDISCOVER", "ibnetdiscover 'x"),
        ("RAS_ADDRESS", "localhost"),
        ("RAS_ADDRESS", ":28028"),
        ("RAS_ADDRESS", "localhost:99999"),
        ("KERNEL_LOG", "journal,/var/log/kern.log"),
        ("KERNEL_LOG", "/var/log/kern.log,/dev/kmsg"),
        ("LLDP", "lisen"),
        ("CLOUD_TOPOLOGY", "ftp://metadata/place.json"),
        ("DCGM_URL", "127.0.0.1:9400"),
    ],
)
def test_a_bad_value_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"GOODPUT_{name}", value)
    with pytest.raises(SettingsError, match=f"GOODPUT_{name}"):
        load()


@pytest.mark.parametrize("name", sorted(OFF_WHEN_EMPTY))
def test_an_empty_variable_switches_off_what_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"GOODPUT_{name.upper()}", "")
    assert getattr(load(), name) == ""
    assert "empty: " in (Settings.model_fields[name].description or "")


@pytest.mark.parametrize("name", sorted(Settings.model_fields.keys() - OFF_WHEN_EMPTY))
def test_any_other_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(f"GOODPUT_{name.upper()}", raising=False)
    unset = getattr(load(), name)
    monkeypatch.setenv(f"GOODPUT_{name.upper()}", "")
    assert getattr(load(), name) == unset


def test_every_setting_that_an_empty_value_switches_off_can_be_emptied() -> None:
    says = {name for name, field in Settings.model_fields.items() if "empty: " in (field.description or "")}
    assert {name for name in says if Settings.model_fields[name].default} == OFF_WHEN_EMPTY


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
