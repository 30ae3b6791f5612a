"""Small stand-ins for the collector's tests: a clock that is turned by hand, a process table and a sysfs tree of files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.subjects import token

START = datetime(2026, 3, 1, tzinfo=UTC)


class TurnedClock:
    """Wall and monotonic clock for readers, which never sleep."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> datetime:
        return START + timedelta(seconds=self.seconds)

    def monotonic_s(self) -> float:
        return self.seconds

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a reader does not sleep")


class Proc:
    """A process table under a folder, as /proc has it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, pid: int, state: str = "S", *, ticks: int = 0, start: int = 1000, cgroup: str = "/job") -> None:
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        fields = [
            state,
            "1",
            "1",
            "1",
            "0",
            "-1",
            "0",
            "0",
            "0",
            "0",
            "0",
            str(ticks),
            "0",
            "0",
            "0",
            "20",
            "0",
            "1",
            "0",
            str(start),
        ]
        (folder / "stat").write_text(f"{pid} (python3 (odd) name) {' '.join(fields)} 0 0\n")
        (folder / "wchan").write_text("do_poll")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")

    def remove(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


def register(run_dir: Path, rank: int, pid: int, *, start: int = 1000, job: str = "j1", boot_id: str = "b1") -> Path:
    folder = run_dir / "ranks"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{token(job)}.{rank}.json"
    registered = RankRegistered(
        fabric="f", job=job, rank=rank, world_size=2, host="h0", pid=pid, at=START, process_start=start, boot_id=boot_id
    )
    path.write_bytes(msgspec.json.encode(registered))
    return path


def rdma_device(
    root: Path, name: str, counters: dict[str, int], hw_counters: dict[str, int], state: str = "4: ACTIVE"
) -> Path:
    port = root / "class" / "infiniband" / name / "ports" / "1"
    for folder, values in (("counters", counters), ("hw_counters", hw_counters)):
        (port / folder).mkdir(parents=True, exist_ok=True)
        for counter, value in values.items():
            (port / folder / counter).write_text(f"{value}\n")
    for file, text in (
        ("state", state),
        ("phys_state", "5: LinkUp"),
        ("rate", "400 Gb/sec (4X NDR)"),
        ("link_layer", "InfiniBand"),
    ):
        (port / file).write_text(f"{text}\n")
    return port
