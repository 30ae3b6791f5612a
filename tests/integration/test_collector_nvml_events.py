"""Xids and what a sick driver does to the GPU sources, up to the message on the bus, with the double of NVIDIA's library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "services" / "collector" / "tests"))

from collector_fixtures import Rig, Ticking
from fake_nvml import table as fake

from goodput_collector.adapters.nvml import NvmlReader
from goodput_collector.adapters.nvml_events import QUEUE_MAX, NvmlEventReader
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_common.contracts.telemetry import (
    Event,
    EventName,
    Severity,
    Source,
    SourceStatus,
)
from goodput_common.runtime.clock import SystemClock

pytestmark = pytest.mark.skipif(
    fake.compiler() is None, reason="needs a C compiler (cc) to build the double of libnvidia-ml"
)

GPU0, GPU1 = "gpu:h0/0000:10:00", "gpu:h0/0000:11:00"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[fake.Table]:
    """A driver with two H100."""
    with fake.double(tmp_path) as table:
        table.gpus(2)
        yield table


class Clock(SystemClock):
    """Minutes of the reader's cadence pass in moments."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() * 200


def running(folder: Path, **more: float) -> tuple[NvmlReader, NvmlEventReader]:
    library, clock = NvmlLibrary(sys_root=folder / "sys"), Clock()
    sampling = NvmlReader(
        library,
        host="h0",
        boot_id="b1",
        clock=clock,
        run_dir=folder / "run",
        sys_root=folder / "sys",
        proc_root=folder / "proc",
        call_s=1.0,
    )
    return sampling, NvmlEventReader(
        library, host="h0", clock=clock, wait_ms=30, silent_max_s=more.get("silent_max_s", 30.0)
    )


async def test_an_xid_reaches_the_bus_with_what_the_catalogue_says_of_it(table: fake.Table, tmp_path: Path) -> None:
    sampling, watching = running(tmp_path)
    async with Rig(tmp_path, sampling, watching) as rig:
        await rig.until(lambda: rig.condition(Source.NVML, "events").covered, "the GPUs watched")
        table.event(1, fake.XID, 79)
        table.event(0, fake.XID, 13, 5, 2)
        table.event(0, fake.DOUBLE_BIT, 0)
        found: list[Event] = []

        def three() -> bool:
            found[:] = [each for each in rig.samples(Source.NVML) if isinstance(each, Event)]
            return len(found) == 3

        await rig.until(three, "three events")
    xid, mig, health = found
    assert (xid.component, xid.name, xid.severity) == (GPU1, EventName.XID, Severity.FATAL)
    assert xid.attrs["xid"] == "79"
    assert xid.attrs["impact"] == "reboot"
    assert xid.attrs["uuid"] == "GPU-00000001"
    assert xid.attrs["by"] == "nvml"
    assert mig.attrs["mig"] == "5/2"
    assert (health.name, health.attrs["state"]) == (EventName.DEVICE_HEALTH, "uncorrected")
    assert xid.observed_at - health.observed_at < timedelta(seconds=20)


async def test_an_xid_is_told_while_every_other_call_into_the_driver_hangs(table: fake.Table, tmp_path: Path) -> None:
    sampling, watching = running(tmp_path)
    async with Rig(tmp_path, sampling, watching) as rig:
        await rig.until(lambda: rig.condition(Source.NVML, "events").covered, "the GPUs watched")
        table.set({f"gpu{gpu}.GetClockInfo.1": "hang" for gpu in range(2)})
        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.UNKNOWN, "the sampling to stand still")
        table.event(0, fake.XID, 119)
        await rig.until(
            lambda: any(isinstance(each, Event) and each.name is EventName.XID for each in rig.samples(Source.NVML)),
            "the Xid",
        )
        table.set({f"gpu{gpu}.GetClockInfo.1": 1980 for gpu in range(2)})
        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.OK, "the sampling to come back")


async def test_a_gpu_that_is_lost_goes_from_the_driver_to_the_bus(table: fake.Table, tmp_path: Path) -> None:
    sampling, watching = running(tmp_path)
    async with Rig(tmp_path, sampling, watching) as rig:
        await rig.until(lambda: rig.samples(Source.NVML), "the first reading")
        table.set({"gpu1.*": "!15"})
        await rig.until(
            lambda: any(isinstance(each, Event) and each.name is EventName.GPU_LOST for each in rig.samples(Source.NVML)),
            "the loss",
        )
        assert GPU1 not in rig.condition(Source.NVML).covered
        table.drop("gpu1.*")
        await rig.until(lambda: GPU1 in rig.condition(Source.NVML).covered, "the GPU back, after NVML was started anew")
        table.event(1, fake.XID, 31)
        await rig.until(
            lambda: any(isinstance(each, Event) and each.name is EventName.XID for each in rig.samples(Source.NVML)),
            "an event of the GPU that came back",
        )
    lost = [each for each in rig.samples(Source.NVML) if isinstance(each, Event) and each.name is EventName.GPU_LOST]
    assert len(lost) == 1


async def test_a_driver_that_hangs_lies_goes_and_comes_back_disturbs_no_other_source(
    table: fake.Table, tmp_path: Path
) -> None:
    sampling, watching = running(tmp_path, silent_max_s=0.3)
    neighbour = Ticking()
    (tmp_path / "sys" / "bus" / "pci" / "devices").mkdir(parents=True)
    async with Rig(tmp_path, sampling, watching, neighbour) as rig:

        async def undisturbed(what: str) -> None:
            reads = neighbour.reads
            await rig.until(lambda: neighbour.reads > reads + 20, f"the neighbour's reads while {what}")

        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.OK, "the first reading")
        table.set({f"gpu{gpu}.GetClockInfo.1": "hang" for gpu in range(2)} | {"sys.EventSetWait": "hang"})
        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.UNKNOWN, "unknown while hung")
        await rig.until(lambda: rig.condition(Source.NVML, "events").status is SourceStatus.UNKNOWN, "events unknown")
        await undisturbed("the driver hangs")
        table.drop("sys.EventSetWait")
        table.set({f"gpu{gpu}.GetClockInfo.1": "nonsense" for gpu in range(2)})
        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.OK, "back, though it lies")
        await undisturbed("the driver lies")
        table.set({"*": "!9"})
        await rig.until(
            lambda: (
                "not loaded" in rig.condition(Source.NVML).reason or rig.condition(Source.NVML).status is SourceStatus.ABSENT
            ),
            "gone",
        )
        await undisturbed("the driver is gone")
        table.drop("*")
        await rig.until(lambda: rig.condition(Source.NVML).status is SourceStatus.OK, "back")
        await rig.until(lambda: rig.condition(Source.NVML, "events").status is SourceStatus.OK, "events back")
        assert rig.condition(Source.RDMA, "neighbour").status is SourceStatus.OK


def test_events_beyond_the_bound_are_counted_and_told_as_a_gap(table: fake.Table, tmp_path: Path) -> None:
    _, watching = running(tmp_path)
    watching.open()
    try:
        waiter = watching._waiter
        assert waiter is not None
        made = watching._event(next(iter([_gpu()])), fake.XID, 31, 0xFFFFFFFF, 0xFFFFFFFF)
        for _ in range(QUEUE_MAX + 5):
            waiter._put(made)
        reading = watching.read()
        assert len(reading.samples) == QUEUE_MAX + 1
        assert reading.samples[-1].attrs["missed"] == "5"  # type: ignore[union-attr]
        again = watching.read()
        assert len(again.samples) == QUEUE_MAX + 1, "not kept yet: told again"
        assert again.kept is not None
        again.kept()
        assert watching.read().samples == []
    finally:
        watching.close()


def _gpu() -> object:
    from goodput_collector.domain.gpu_presence import Gpu

    return Gpu(component=GPU0, attrs={"pci": "0000:10:00"})


def test_a_gpu_that_tells_no_events_is_trouble(table: fake.Table, tmp_path: Path) -> None:
    table.set({"gpu1.RegisterEvents": "!3"})
    _, watching = running(tmp_path)
    watching.open()
    try:
        reading = watching.read()
        assert reading.covered == (GPU0,)
        assert "no events from GPU 1" in reading.trouble
    finally:
        watching.close()
