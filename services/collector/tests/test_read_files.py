"""Any mix of files and folders: recognised by content, streamed, and what is damaged named."""

from __future__ import annotations

import gzip
import os
import pickle
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest
from collector_fixtures import rdma_device
from test_dumps import recorder

from goodput_collector.application.read_files import UNKNOWN_HOST, Limits, Read, read_path, read_paths
from goodput_collector.domain.recognise import Kind, recognise
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import Event, EventName, Source, State

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"
AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=x, GPU has fallen off the bus."


def events(read: Read) -> list[Event]:
    return [each.fact for each in read.facts if isinstance(each.fact, Event)]


def dumps(read: Read) -> list[FlightRecorderDump]:
    return [each.fact for each in read.facts if isinstance(each.fact, FlightRecorderDump)]


@pytest.mark.parametrize(
    ("head", "kind"),
    [
        (b"[12.5] usb 1-1: new device\n[13.0] x\n", Kind.KERNEL_LOG),
        (b"[Sun Feb 23 16:24:18 2025] usb\n", Kind.KERNEL_LOG),
        (b"Aug 17 00:00:24 vm systemd[1]: logrotate.service: Deactivated.\n", Kind.KERNEL_LOG),
        (b"kern  :warn  : 2025-01-21T04:41:44,283302+00:00 NVRM: x\n", Kind.KERNEL_LOG),
        (b"[rank3]: step 5\n", Kind.JOB_LOG),
        (b"h1:1:2 [0] NCCL INFO Bootstrap\n", Kind.JOB_LOG),
        (pickle.dumps(recorder(), protocol=2), Kind.FLIGHT_RECORDER),
        (b'{"entries": [], "pg_config": {}}', Kind.FLIGHT_RECORDER),
        (b"__REALTIME_TIMESTAMP=1\n", Kind.JOURNAL_EXPORT),
        (b"", Kind.UNKNOWN),
        (bytes(range(256)), Kind.UNKNOWN),
        (b"\x1f\x8b\x08\x00", Kind.GZIP),
        (b"hello world\n", Kind.TEXT),
    ],
)
def test_a_file_is_known_by_what_is_in_it(head: bytes, kind: Kind) -> None:
    assert recognise(head).kind is kind


def test_a_mix_of_everything_is_read_each_in_its_way(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text(f"[Sun Feb 23 16:24:18 2025] {XID}\n")
    (tmp_path / "job.log").write_text("h1:1:2 [0] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n")
    (tmp_path / "fr").mkdir()
    (tmp_path / "fr" / "rank_1").write_bytes(pickle.dumps(recorder()))
    rdma_device(tmp_path / "sys", "mlx5_0", {"link_downed": 255, "symbol_error": 0}, {})
    read = read_paths([tmp_path])
    assert {each.source for each in read.facts} == {
        Source.KERNEL_LOG,
        Source.JOB_LOG,
        Source.FLIGHT_RECORDER,
        Source.RDMA,
    }
    assert {each.fact.name for each in read.facts if isinstance(each.fact, State)} == {"port_state", "counter:link_downed"}
    saturated = next(each.fact for each in read.facts if getattr(each.fact, "name", "") == "counter:link_downed")
    assert isinstance(saturated, State)
    assert (saturated.value, saturated.attrs) == ("255", {"saturated": "true"})
    assert read.warnings == []
    assert read.unrecognised == []


def test_binary_empty_and_missing_things_are_named(tmp_path: Path) -> None:
    (tmp_path / "image.bin").write_bytes(bytes(range(256)) * 10)
    (tmp_path / "nothing").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "notes.txt").write_text("remember the milk\n")
    read = read_paths([tmp_path, tmp_path / "gone"])
    assert read.facts == []
    assert {Path(path).name: why for path, why in read.unrecognised}.keys() == {"image.bin", "nothing", "notes.txt", "gone"}
    assert any("folder: is an empty folder" in warning for warning in read.warnings)
    assert any("nothing: is empty" in warning for warning in read.warnings)
    assert any("gone: does not exist" in warning for warning in read.warnings)


def test_a_truncated_dump_is_a_warning_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_bytes(pickle.dumps(recorder()))
    (tmp_path / "rank_1").write_bytes(pickle.dumps(recorder())[:50])
    read = read_path(tmp_path)
    assert [dump.rank for dump in dumps(read)] == [0]
    (warning,) = read.warnings
    assert "rank_1" in warning and "truncated" in warning
    assert [Path(path).name for path, _ in read.unrecognised] == ["rank_1"]


def test_a_dump_without_entries_was_taken_when_the_others_were(tmp_path: Path) -> None:
    timed = recorder()
    timed["entries"] = [{"record_id": 1, "pg_id": 0, "process_group": ["0", ""], "time_created_ns": 1_772_366_400 * 10**9}]
    (tmp_path / "rank_0").write_bytes(pickle.dumps(timed))
    (tmp_path / "rank_1").write_bytes(pickle.dumps(recorder()))
    assert {dump.at for dump in dumps(read_path(tmp_path))} == {AT}


def test_numbers_that_repeat_across_hosts_are_left_out_unless_the_groups_tell_them_apart(tmp_path: Path) -> None:
    for host in ("n1", "n2"):
        (tmp_path / f"{host}.pci3_rank_0").write_bytes(pickle.dumps(recorder()))
    read = read_path(tmp_path)
    assert dumps(read) == []
    assert "repeats across hosts" in read.warnings[0]
    for number, host in enumerate(("n1", "n2")):
        raw = recorder()
        raw["pg_config"]["9"] = {"name": "9", "desc": "", "ranks": f"[{number}]"}
        (tmp_path / f"{host}.pci3_rank_0").write_bytes(pickle.dumps(raw))
    read = read_path(tmp_path)
    assert [(dump.rank, dump.host) for dump in dumps(read)] == [(0, "n1"), (1, "n2")]
    assert read.warnings == []


def test_of_two_dumps_of_one_rank_the_newest_is_used(tmp_path: Path) -> None:
    for name, enqueued, at_s in (("rank_0", 5, 100), ("nccl_trace_rank_0", 6, 200)):
        path = tmp_path / name
        path.write_bytes(pickle.dumps(recorder(enqueued=enqueued)))
        os.utime(path, (at_s, at_s))
    read = read_path(tmp_path)
    assert [dump.groups[0].last_enqueued for dump in dumps(read)] == [6]
    assert "several dumps of rank 0" in read.warnings[0]


def test_a_large_log_is_read_in_little_memory(tmp_path: Path) -> None:
    log = tmp_path / "big.log"
    chatter = "[Sun Feb 23 16:24:18 2025] usb 1-1: new high-speed device using xhci_hcd, nothing to see here at all\n" * 1000
    with log.open("w") as file:
        for _ in range(400):
            file.write(chatter)
        file.write(f"[Sun Feb 23 16:24:19 2025] {XID}\n")
    tracemalloc.start()
    read = read_path(log)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [event.name for event in events(read)] == [EventName.XID]
    assert log.stat().st_size > 40_000_000
    assert peak < 8_000_000


def test_a_flood_of_one_line_is_a_few_facts_with_its_count(tmp_path: Path) -> None:
    log = tmp_path / "flood.log"
    log.write_text("".join(f"[Sun Feb 23 16:24:{i % 20:02d} 2025] {XID}\n" for i in range(20_000)))
    found = events(read_path(log))
    assert sum(event.count for event in found) == 20_000
    assert len(found) < 40


def test_of_a_log_beyond_the_limit_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text(f"[1.0] {XID}\n" + "[2.0] chatter\n" * 500 + f"[3.0] {XID.replace('9b', '05')}\n")
    read = read_path(log, limits=Limits(log_bytes=2000), reference_time=AT)
    assert [event.component for event in events(read)] == [f"gpu:{UNKNOWN_HOST}/0000:05:00"]
    assert any("only its last 2000 bytes" in warning for warning in read.warnings)


def test_a_log_dated_since_boot_is_dated_by_its_last_line_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text(f"[100.0] {XID}\n[160.0] chatter\n")
    read = read_path(log, reference_time=AT)
    assert (AT - events(read)[0].observed_at).total_seconds() == 60
    assert any("dated since boot only" in warning for warning in read.warnings)


def test_relative_stamps_are_followed_line_by_line(tmp_path: Path) -> None:
    log = tmp_path / "dmesg"
    log.write_text(f"[Feb23 16:24] boot\n[ +10.000000] a\n[ +10.000000] b\n[  +5.000000] {XID}\n")
    (event,) = events(read_path(log, reference_time=AT))
    assert event.observed_at == datetime(2026, 2, 23, 16, 24, 25, tzinfo=UTC)


def test_a_line_without_a_stamp_goes_with_the_line_before_it(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("2026-02-03T04:05:06Z [rank0] step\nmore\n" + "[rank0]: Watchdog caught collective operation timeout\n")
    (event,) = events(read_path(log, reference_time=AT))
    assert event.observed_at == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)


def test_compressed_logs_are_looked_into(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "syslog.1.gz", "wt") as file:
        file.write("Feb  7 06:18:01 vm-3 kernel: mlx5_core 0000:01:00.0 ib0: Link down\n")
    (event,) = events(read_path(tmp_path, reference_time=AT))
    assert event.component == "nic:vm-3/ib0/1"
    (tmp_path / "broken.gz").write_bytes((tmp_path / "syslog.1.gz").read_bytes()[:40])
    assert any("broken.gz" in warning for warning in read_path(tmp_path).warnings)


def test_several_logs_that_do_not_name_their_host_are_hosts_of_their_own(tmp_path: Path) -> None:
    for name in ("n1", "n2"):
        (tmp_path / f"{name}.log").write_text(f"[Sun Feb 23 16:24:18 2025] {XID}\n")
    read = read_path(tmp_path)
    assert [each.host for each in read.facts] == ["n1", "n2"]
    assert any("do not name their host" in warning for warning in read.warnings)
    assert {each.host for each in read_path(tmp_path, host="h7").facts} == {"h7"}


def test_an_error_in_the_middle_of_text_is_found_too(tmp_path: Path) -> None:
    (tmp_path / "console.txt").write_text("some console output\n" * 9000 + XID + "\n")
    read = read_path(tmp_path)
    assert [event.name for event in events(read)] == [EventName.XID]
    assert read.unrecognised == []


@pytest.mark.skipif(not SHARED.is_dir(), reason="the captures under ../shared are not here")
class TestRealFiles:
    def test_dumps_of_sixteen_ranks_and_their_truth_is_no_evidence(self) -> None:
        read = read_path(SHARED / "public" / "nvrx-flight-recorder" / "gpu_error_1st")
        assert sorted(dump.rank for dump in dumps(read)) == list(range(16))
        assert [Path(path).name for path, _ in read.unrecognised] == ["fault_injection.log"]
        assert read.warnings == []

    def test_the_public_folder_as_a_whole(self) -> None:
        read = read_path(SHARED / "public" / "gpud")
        assert {event.component for event in events(read)} == {f"gpu:{UNKNOWN_HOST}/0000:9b:00"}
        ports = [each.fact for each in read.facts if isinstance(each.fact, State) and each.fact.name == "port_state"]
        assert len(ports) == 9

    def test_a_healthy_log_holds_no_fact(self) -> None:
        read = read_path(SHARED / "public" / "azurehpc" / "0flap_syslog")
        assert read.facts == []
        assert [kind for _, kind in read.recognised] == [Kind.KERNEL_LOG]
