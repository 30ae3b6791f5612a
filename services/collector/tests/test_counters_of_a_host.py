"""A whole host's counters over a thousand readings, with all that makes increases lie: deltas are exact.

Two trees: a real one of an H100 host (where ../shared is there), and one of our own with RoCE, InfiniBand, bnxt_re and EFA.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import NoReturn

import pytest
from collector_fixtures import START, rdma_device

from goodput_collector.adapters.rdma_netlink import RdmaStatistics
from goodput_collector.adapters.rdma_ports import Descriptors
from goodput_collector.adapters.sysfs import RdmaReader
from goodput_collector.domain.rdma_counters import describe, is_reported
from goodput_common.contracts.telemetry import Counter, CounterDoubt, State

H100 = Path(__file__).resolve().parents[4] / "shared" / "data" / "public" / "gpud" / "sys-class-infiniband-h100"
READINGS = 1000


class SteppingClock:
    """The monotonic clock goes on; the wall clock is set back and forth now and then."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.step_s = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds + self.step_s)

    def monotonic_s(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a reader does not sleep")


class Host:
    """A tree on disk that counts like devices do, and knows what it truly counted."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = sorted(root.glob("class/infiniband/*/ports/1"))
        self.values: dict[tuple[Path, str, str], int] = {}
        self.files: dict[tuple[Path, str, str], str] = {}
        for port in self.ports:
            for file in sorted([*port.glob("counters/*"), *port.glob("hw_counters/*")]):
                if is_reported(file.name):
                    key = (port, file.parent.name, describe(file.name).name)
                    self.values[key], self.files[key] = int(file.read_text()), file.name
        self.true = dict.fromkeys(self.values, 0)

    def component(self, port: Path) -> str:
        return f"nic:h0/{port.parts[-3]}/1"

    def count(self, key: tuple[Path, str, str], by: int) -> None:
        width = describe(self.files[key]).width
        ceiling = 2**64 - 1 if self.values[key] > width.ceiling else width.ceiling
        total = self.values[key] + by
        self.true[key] += by
        self._set(key, min(total, ceiling) if width.saturates else total % (ceiling + 1))

    def reload(self, device: Path) -> None:
        """The driver is loaded again: another folder, and all counters at zero."""
        old = device.with_name(f"{device.name}.old")
        device.rename(old)
        shutil.copytree(old, device)
        shutil.rmtree(old)
        for key in self.values:
            if device in key[0].parents:
                self._set(key, 0)

    def clear(self, port: Path, folder: str) -> None:
        """Somebody sets the counters of one folder to zero: same driver, same folder."""
        for key in self.values:
            if key[0] == port and key[1] == folder:
                self._set(key, 0)

    def _set(self, key: tuple[Path, str, str], value: int) -> None:
        self.values[key] = value
        (key[0] / key[1] / self.files[key]).write_text(f"{value}\n")


@pytest.fixture(params=["h100", "ours"])
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    if request.param == "h100":
        if not H100.is_dir():
            pytest.skip("the captures under ../shared are not here")
        tree = tmp_path / "class" / "infiniband"
        shutil.copytree(H100, tree, copy_function=shutil.copyfile)
        for path in [tree, *tree.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
    else:
        for index in range(7):
            rdma_device(
                tmp_path,
                f"mlx5_{index}",
                {"link_downed": 254 if index == 2 else 0, "symbol_error": 7, "port_rcv_data": 2**40 + index},
                {"rx_write_requests": 2**32 - 5000 if index == 3 else 1000, "out_of_sequence": 40, "lifespan": 12},
            )
        rdma_device(tmp_path, "bnxt_re0", {"link_downed": 0}, {"to_retransmits": 9, "oos_drop_count": 4, "active_qps": 3})
        rdma_device(tmp_path, "efa_0", {}, {"retrans_pkts": 2**33, "retrans_timeout_events": 1, "rx_drops": 0})
    yield Host(tmp_path)


def test_a_thousand_readings_with_wraps_ceilings_resets_caches_and_clock_steps(host: Host) -> None:
    rng, clock = random.Random(11), SteppingClock()
    reader = RdmaReader(
        host="h0",
        boot_id="b1",
        clock=clock,
        sys_root=host.root,
        descriptors=Descriptors(2000),
        statistics=RdmaStatistics(socket_of=_no_netlink),
    )
    reader.open()
    told: dict[tuple[str, str], int] = {}
    doubts: dict[tuple[str, str], set[CounterDoubt]] = {}
    covered: set[str] = set()
    saturated: set[tuple[str, str]] = set()

    def read() -> None:
        reading = reader.read()
        covered.update(reading.covered or ())
        for each in reading.samples:
            if isinstance(each, Counter):
                assert each.delta > 0
                assert 0 < each.interval_s < 60, "a step of the wall clock is no interval"
                told[each.component, each.name] = told.get((each.component, each.name), 0) + each.delta
                doubts.setdefault((each.component, each.name), set()).add(each.doubt)
            elif isinstance(each, State) and each.value == "saturated":
                saturated.add((each.component, each.name.removeprefix("counter:")))

    read()
    wrapping = _wrapping(host)
    reloaded, cleared = (host.ports[at] for at in (1, 4) if host.ports[at] != wrapping[0])
    reloaded = reloaded.parents[1]
    lost: dict[tuple[Path, str, str], int] = dict.fromkeys(host.values, 0)
    for second in range(1, READINGS):
        clock.seconds += 1
        before = dict(host.values)
        if second in (300, 800):
            host.reload(reloaded)
        if second == 500:
            host.clear(cleared, "hw_counters")
        for key in rng.sample(sorted(host.values), 12):
            host.count(key, rng.choice((1, 7, 400, 90_000)) if key[1] == "hw_counters" else rng.choice((1, 2)))
        if second % 9 == 0:
            host.count(wrapping, 40_000_000)
        if second in (200, 700):
            clock.step_s += rng.choice((-3600.0, 7200.0))
        if second == 500:  # one that was cleared and has counted past its last reading looks as if it had gone on
            for key, value in host.values.items():
                if key[0] == cleared and key[1] == "hw_counters" and value > before[key]:
                    lost[key] += before[key]
        read()
        if second % 50 == 0:  # somebody reads again within the lifespan: an answer from the cache
            clock.seconds += 0.005
            read()
    clock.seconds += 1
    read()

    assert covered == {host.component(port) for port in host.ports}
    for key, true in host.true.items():
        name = host.component(key[0]), key[2]
        width = describe(host.files[key]).width
        if name in saturated and width.saturates:
            assert told.get(name, 0) <= true, key
        else:
            assert told.get(name, 0) == true - lost[key], key
    assert CounterDoubt.WRAPPED in doubts[host.component(wrapping[0]), wrapping[2]]
    assert any(CounterDoubt.RESET in found for found in doubts.values())


def _no_netlink(_protocol: int) -> NoReturn:
    raise OSError(93, "Protocol not supported")


def _wrapping(host: Host) -> tuple[Path, str, str]:
    """The 32-bit counter that stands nearest to its end."""
    queue = [key for key in host.values if key[1] == "hw_counters" and describe(host.files[key]).width.ceiling == 2**32 - 1]
    return max(queue, key=lambda key: host.values[key])
