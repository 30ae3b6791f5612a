"""A driver that answers ethtool with nonsense, beside one that does not and beside another source."""

from __future__ import annotations

from pathlib import Path

from collector_fixtures import Rig, Ticking
from network_fixtures import MLX5, Adapter, FakeNetlink, Kernel, net_device
from test_ethtool import reader

from goodput_common.contracts.telemetry import Counter, Source, SourceStatus
from goodput_common.runtime.clock import SystemClock


async def test_garbage_from_one_driver_disturbs_no_other_interface_and_no_other_source(tmp_path: Path) -> None:
    for place, name in enumerate(("rail0", "rail1")):
        net_device(tmp_path, name, pci=f"0000:9b:00.{place}")
    kernel, neighbour = Kernel(rail0=Adapter(MLX5), rail1=Adapter(MLX5)), Ticking()
    netlink = FakeNetlink(lambda _kind, _payload: [], ("ethtool",))
    bad, good = kernel.adapters["rail0"], kernel.adapters["rail1"]

    def counted(interface: str, name: str) -> int:
        told = (each for each in rig.samples(Source.ETHTOOL) if isinstance(each, Counter) and each.name == name)
        return sum(each.delta for each in told if f"/{interface}/" in each.component)

    async with Rig(tmp_path, reader(tmp_path, kernel, SystemClock(), netlink), neighbour) as rig:
        condition = rig.condition(Source.ETHTOOL)
        await rig.until(lambda: condition.status is SourceStatus.OK, "the first reading")
        bad.says, bad.driver = 4_000_000_000, "\x7f" * 31
        netlink.raw = b"\x05\0\0\0garbage garbage garbage"
        await rig.until(lambda: "rail0" in condition.reason, "the trouble")
        assert condition.status is SourceStatus.OK
        good.stats["rx_discards_phy"] += 3
        await rig.until(lambda: counted("rail1", "rx_discards_phy") == 3, "the other interface's counter")
        reads = neighbour.reads
        await rig.until(lambda: neighbour.reads > reads + 20, "the neighbour's readings")
        bad.says, bad.driver, netlink.raw = -1, "mlx5_core", None
        await rig.until(lambda: "rail0" not in condition.reason, "its recovery")
