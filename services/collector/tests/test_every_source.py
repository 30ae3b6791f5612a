"""Whatever source hangs, fails or disappears, all others keep their schedule: every reader that the wiring constructs, one
after the other. What each does with a double of its own device is in its own tests."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from collector_fixtures import Rig, Ticking, rdma_device
from host_tree import HostTree

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.ports import Reading, SourceReader, Unreadable
from goodput_collector.settings import Settings
from goodput_collector.wiring import all_readers
from goodput_collector.wiring.given import Given
from goodput_common.contracts.telemetry import Source, SourceStatus
from goodput_common.runtime.clock import SystemClock


def all_of(folder: Path) -> list[SourceReader]:
    """Every source switched on, on a host of files with one adapter."""
    tree = HostTree(folder / "host")
    rdma_device(tree.sys, "mlx5_0", {"link_downed": 0}, {"out_of_sequence": 0})
    switches = folder / "switches.json"
    switches.write_text(
        json.dumps([{"name": "leaf-1", "address": "127.0.0.1:9", "kind": "sonic", "tls": {"plaintext": True}}])
    )
    (folder / "kern.log").touch()
    settings = Settings(
        host="h0",
        fabric="f",
        run_dir=folder / "run",
        sys_root=tree.sys,
        proc_root=tree.proc,
        kernel_log=str(folder / "kern.log"),
        job_logs=str(folder / "*.log"),
        dcgm_url="http://127.0.0.1:9/metrics",
        ras_address="127.0.0.1:9",
        switches=switches,
    )
    return all_readers(
        Given(settings=settings, boot_id="b1", clock=SystemClock(), bookmarks=Bookmarks(folder / "bookmarks"))
    )


def name_of(reader: SourceReader) -> str:
    return f"{reader.source} {reader.instance}".strip()


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [name_of(reader) for reader in all_of(tmp_path_factory.mktemp("names"))]


def test_the_wiring_knows_every_source(names: list[str]) -> None:
    told = {Source(name.partition(" ")[0]) for name in names}
    assert told == set(Source) - {Source.HEARTBEAT, Source.PROBES}


class Broken:
    """A reader whose first calls do not go as they should; then it is itself again."""

    def __init__(self, reader: SourceReader, *, first: Callable[[], object], times: int = 1) -> None:
        self._reader = reader
        self._first, self._times = first, times
        self.source, self.instance = reader.source, f"{reader.instance} broken".strip()
        self.interval_s, self.deadline_s = 0.01, 0.05
        self.reads = 0

    def open(self) -> None:
        if self._times:
            self._times -= 1
            self._first()
        self._reader.open()

    def read(self) -> Reading:
        self.reads += 1
        return self._reader.read()

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        self._reader.close()


async def hang_and_come_back(folder: Path, reader: SourceReader) -> None:
    release = threading.Event()
    broken, neighbour = Broken(reader, first=lambda: release.wait(30)), Ticking()
    async with Rig(folder, broken, neighbour) as rig:
        condition = rig.condition(broken.source, broken.instance)
        await rig.until(lambda: "no answer within" in condition.reason, f"{name_of(reader)}: the deadline")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, f"{name_of(reader)}: its neighbour's reads")
        release.set()
        await rig.until(lambda: "no answer" not in condition.reason, f"{name_of(reader)}: it came back")


async def test_each_source_that_hangs_is_left_alone_and_comes_back(tmp_path: Path) -> None:
    """Each in a rig of its own, with a neighbour of its own; the rigs at the same time, for most of it is waiting."""
    async with asyncio.TaskGroup() as group:
        for number, reader in enumerate(all_of(tmp_path)):
            group.create_task(hang_and_come_back(tmp_path / str(number), reader))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Unreadable("the device has gone"), "the device has gone"),
        (OSError(19, "No such device", "/sys/gone"), "No such device"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "UnicodeDecodeError"),
        (RecursionError("too deep"), "RecursionError"),
    ],
)
async def test_each_source_that_fails_in_turn_is_unknown_with_its_reason_until_it_answers(
    tmp_path: Path, error: Exception, words: str
) -> None:
    def fail() -> None:
        raise type(error)(*error.args)  # a new one each time: its traceback would grow

    readers = [Broken(reader, first=fail, times=20) for reader in all_of(tmp_path)]
    neighbour = Ticking()
    async with Rig(tmp_path, *readers, neighbour) as rig:
        seen: set[str] = set()

        def all_failed() -> bool:
            for each in readers:
                if words in rig.condition(each.source, each.instance).reason:
                    seen.add(name_of(each))
            return len(seen) == len(readers)

        await rig.until(all_failed, "each tells its failure")
        before = neighbour.reads
        await rig.until(lambda: neighbour.reads > before + 20, "the neighbour's reads")
        await rig.until(
            lambda: all(words not in rig.condition(each.source, each.instance).reason for each in readers),
            "they answer again",
        )
        assert rig.condition(Source.RDMA, neighbour.instance).status is SourceStatus.OK
