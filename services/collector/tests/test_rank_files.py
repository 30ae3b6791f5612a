"""Where the ranks of this host write, asked of the kernel; and lines of job logs, none of which crashes or is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from collector_fixtures import TurnedClock, kept, register
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.adapters.rank_files import LogOwner, RankFiles
from goodput_collector.domain.log_lines import JobLines
from goodput_collector.domain.nccl_files import dump_prefixes, log_of, parse_environ
from goodput_collector.domain.nccl_log import JobLogParser
from goodput_collector.domain.timestamps import LineClock
from goodput_collector.settings import Settings
from goodput_collector.wiring.given import Given
from goodput_collector.wiring.logs import readers
from goodput_common.contracts.telemetry import Event, Source

WATCHDOG = "[rank1]:[E1121 04:41:44.283 ProcessGroupNCCL.cpp:685] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=50, OpType=ALLREDUCE)"  # noqa: E501


def process(root: Path, pid: int, *, stdout: Path | str = "/dev/null", **environ: str) -> None:
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    for number in (1, 2):
        (folder / "fd" / str(number)).symlink_to(stdout)
    (folder / "environ").write_bytes(b"\0".join(f"{name}={value}".encode() for name, value in environ.items()))


def files(root: Path) -> RankFiles:
    return RankFiles(lambda: registered_ranks(root / "run"), host="h0", proc_root=root / "proc")


def test_output_and_nccls_file_belong_to_the_rank_that_writes_them(tmp_path: Path) -> None:
    register(tmp_path / "run", 0, 70)
    register(tmp_path / "run", 1, 71)
    process(tmp_path, 70, stdout="/logs/all.log", NCCL_DEBUG_FILE="/logs/nccl.%h.%p")
    process(tmp_path, 71, stdout="/logs/all.log", NCCL_DEBUG_FILE="/logs/%q")
    assert files(tmp_path).logs() == {
        Path("/logs/all.log"): LogOwner("j1", None),
        Path("/logs/nccl.h0.70"): LogOwner("j1", 0),
    }


def test_what_is_no_file_is_no_log(tmp_path: Path) -> None:
    for rank, target in enumerate(("/dev/pts/3", "pipe:[77]", "/logs/gone (deleted)")):
        register(tmp_path / "run", rank, 70 + rank)
        process(tmp_path, 70 + rank, stdout=target)
    register(tmp_path / "run", 3, 99)  # a process that is not to be seen
    assert files(tmp_path).logs() == {}


def test_files_of_a_rank_in_another_mount_namespace_are_found_through_it(tmp_path: Path) -> None:
    register(tmp_path / "run", 0, 70)
    process(tmp_path, 70, stdout="/logs/out", TORCH_FR_DUMP_TEMP_FILE="/dumps/trace_")
    for owner in ("self", "70"):
        (tmp_path / "proc" / owner / "ns").mkdir(parents=True)
        (tmp_path / "proc" / owner / "ns" / "mnt").touch()
    root = tmp_path / "proc" / "70" / "root"
    found = files(tmp_path)
    assert list(found.logs()) == [root / "logs" / "out"]
    assert found.dump_patterns() == [f"{root}/dumps/trace_*"]


def test_a_process_is_asked_once_and_forgotten_when_it_leaves(tmp_path: Path) -> None:
    path = register(tmp_path / "run", 0, 70)
    process(tmp_path, 70, stdout="/logs/out")
    found = files(tmp_path)
    assert len(found.logs()) == 1
    (tmp_path / "proc" / "70" / "environ").unlink()
    assert len(found.logs()) == 1
    path.unlink()
    assert found.logs() == {}


def test_torchs_own_place_for_dumps_counts_only_where_nccl_records() -> None:
    assert dump_prefixes({"HOME": "/root"}, nccl=False) == []
    assert dump_prefixes({"HOME": "/root"}, nccl=True)[1] == "/root/.cache/torch/comm_lib_trace_rank_"
    assert dump_prefixes({"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "/d/x_"}, nccl=True) == ["/d/x_"]


def test_the_log_of_a_registered_rank_is_read_without_being_named(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text("step 1\n")
    register(tmp_path / "run", 5, 70)
    process(tmp_path, 70, stdout=log)
    told: dict[str, Any] = {"run_dir": tmp_path / "run", "proc_root": tmp_path / "proc", "kernel_log": "", "host": "h0"}
    clock = TurnedClock()
    given = Given(settings=Settings(**told), boot_id="b1", clock=clock, bookmarks=Bookmarks(tmp_path / "bookmarks"))
    (reader,) = readers(given)
    reader.open()
    kept(reader.read())
    with log.open("a") as file:
        file.write(WATCHDOG.replace("[rank1]:", "") + "\n")
    (event,) = reader.read().samples
    assert isinstance(event, Event)
    assert (reader.source, event.component, event.attrs["seq"]) == (Source.JOB_LOG, "rank:j1/5", "50")
    reader.close()


@given(st.binary(max_size=200))
def test_no_environment_crashes_its_parser(data: bytes) -> None:
    environ = parse_environ(data)
    log_of(environ, host="h", pid=1)
    dump_prefixes(environ, nccl=True)


@given(st.lists(st.one_of(st.binary(max_size=80), st.just(WATCHDOG.encode())), max_size=20))
def test_no_line_of_a_job_log_crashes_and_no_watchdog_is_lost_among_noise(lines: list[bytes]) -> None:
    whole = [line.replace(b"\n", b" ") for line in lines]
    events = list(JobLines(JobLogParser(host="h0", clock=LineClock(), job="j")).feed(whole))
    assert len(events) >= sum(line == WATCHDOG.encode() for line in whole)
