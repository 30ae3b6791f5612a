"""`goodput diagnose` on what people paste into bug reports: one tool's output, several in one file, several hosts."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from goodput_cli.diagnose.gather import gather_paths
from goodput_cli.main import build

PASTES = Path(__file__).parent / "pastes"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real captures of ../shared/data are not here")


def diagnose(*arguments: Path | str, expect: int = 0) -> dict[str, Any]:
    given = ["diagnose", *(str(each) for each in arguments), "--json"]
    result = CliRunner().invoke(build(given), given)
    assert result.exit_code == expect, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def shown(*arguments: Path | str) -> str:
    given = ["diagnose", *(str(each) for each in arguments)]
    result = CliRunner().invoke(build(given), given)
    assert result.exit_code == 0, result.output
    return result.output


def notable(document: dict[str, Any], component: str) -> list[str]:
    return [each["what"] for each in document["notable"] if each["component"] == component]


def set_time(path: Path, at: datetime) -> None:
    os.utime(path, (at.timestamp(), at.timestamp()))


@pytest.mark.parametrize(
    ("paste", "tools"),
    [
        ("bug-report.md", ["ibstat", "ethtool -S", "rdma link", "nvidia-smi", "log lines"]),
        ("dcgm.txt", ["dcgm-exporter"]),
        ("ethtool.txt", ["ethtool"]),
        ("ibnetdiscover.txt", ["ibnetdiscover"]),
        ("ibqueryerrors.txt", ["ibqueryerrors"]),
        ("ibstat.txt", ["ibstat"]),
        ("ibstatus.txt", ["ibstatus"]),
        ("journal.json", ["journal"]),
        ("lldpctl-keyvalue.txt", ["lldpctl"]),
        ("lldpctl.json", ["lldpctl JSON"]),
        ("lldpctl.txt", ["lldpctl"]),
        ("nvidia-smi-q.txt", ["nvidia-smi -q"]),
        ("nvidia-smi.txt", ["nvidia-smi"]),
        ("nvlink.txt", ["2 x nvidia-smi nvlink"]),
        ("perfquery-twice.txt", ["2 x perfquery"]),
        ("ras-malformed.json", ["NCCL RAS JSON"]),
        ("ras.txt", ["NCCL RAS"]),
        ("rdma-statistic.txt", ["rdma statistic"]),
        ("rdma.json", ["rdma -j"]),
        ("topo.txt", ["nvidia-smi topo -m"]),
    ],
)
def test_a_paste_is_known_by_what_stands_in_it_and_understood_to_the_last_line(
    paste: str, tools: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "paste"
    shutil.copy(PASTES / paste, file)
    (told,) = diagnose(file)["files"]
    assert told["recognised"] == tools
    assert told["facts"] + told["parts_of_the_fabric"] > 0
    if paste != "bug-report.md":
        assert told["not_understood"] == {"count": 0, "first": ""}


def test_a_bug_report_with_fences_and_prompts_names_the_gpu_and_counts_the_prose() -> None:
    document = diagnose(PASTES / "bug-report.md")
    (verdict,) = document["verdicts"]
    assert (verdict["fault_class"], verdict["culprit"]["host"]) == ("gpu_off_bus", "node7")
    (file,) = document["files"]
    assert (file["host"], file["host_by"]) == ("node7", "what stands in it")
    assert file["not_understood"] == {"count": 4, "first": "## Training hangs after 40 minutes"}
    assert file["passed_over"]["count"] == 1
    assert notable(document, "nic:node7/mlx5_1/1") == ["port is DOWN, Polling: since when is not known"]
    assert notable(document, "gpu:node7/1") == ["is unreadable: nvidia-smi got no answer from it"]


def test_an_interfaces_statistics_belong_to_the_adapter_that_another_paste_names_for_it() -> None:
    assert notable(diagnose(PASTES / "bug-report.md"), "nic:node7/mlx5_bond_0/1") == [
        "link_down_events_phy = 3: read once, since when is not known"
    ]


def test_statistics_without_their_command_say_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_text("NIC statistics:\n     link_down_events_phy: 3\n")
    assert any("ethtool -S" in need for need in diagnose(file)["needs"])


# -- counters --------------------------------------------------------------------------------------------------------


def test_one_snapshot_of_a_large_old_counter_is_no_fault_and_says_so(tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_text(
        "# Port counters: Lid 5 port 1 (CapMask: 0x1)\nLinkDownedCounter:....255\nSymbolErrorCounter:....65535\n"
    )
    document = diagnose(file)
    assert document["verdicts"] == []
    assert notable(document, "port:lid-5/1") == [
        "link_downed = at least 255, symbol_error = at least 65535: read once, since when is not known"
    ]
    assert any("second snapshot" in need for need in document["needs"])
    assert any("LID 5" in need and "ibnetdiscover" in need for need in document["needs"])


def test_two_snapshots_with_dates_in_one_file_give_increases() -> None:
    document = diagnose(PASTES / "perfquery-twice.txt")
    assert notable(document, "port:lid-647/1") == ["link_downed rose by 2 in 600 s", "symbol_error rose by 4000 in 600 s"]
    assert not any("second snapshot" in need for need in document["needs"])


def test_two_files_give_increases_by_their_dates(tmp_path: Path) -> None:
    for name, count, minute in (("before", 2, 0), ("after", 7, 5)):
        file = tmp_path / "node7" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"link mlx5_0/1 local_ack_timeout_err {count}\n")
        set_time(file, datetime(2025, 2, 23, 16, minute, tzinfo=UTC))
    assert notable(diagnose(tmp_path), "nic:node7/mlx5_0/1") == ["local_ack_timeout_err rose by 5 in 300 s"]


def test_a_fall_between_two_files_dated_only_by_the_file_system_is_no_increase(tmp_path: Path) -> None:
    for name, count, minute in (("a", 7, 0), ("b", 2, 5)):
        file = tmp_path / "node7" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"GPU 0: X (UUID: GPU-1)\n  Link 0: CRC Errors: {count}\n")
        set_time(file, datetime(2025, 2, 23, 16, minute, tzinfo=UTC))
    document = diagnose(tmp_path)
    assert notable(document, "nvlink:node7/0/0") == ["nvlink_crc_errors = 2: read once, since when is not known"]
    assert any("no increase is told" in note for note in document["notes"])


def test_two_snapshots_of_unknown_times_say_by_how_much_but_make_up_no_rate(tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_text("link mlx5_0/1 local_ack_timeout_err 2\nlink mlx5_0/1 local_ack_timeout_err 9\n")
    document = diagnose(file)
    assert any("local_ack_timeout_err by 7 rose" in note for note in document["notes"])
    assert notable(document, "nic:unknown-host/mlx5_0/1") == [
        "local_ack_timeout_err = 9: read once, since when is not known"
    ]


def test_trees_of_one_host_at_two_times_give_increases(tmp_path: Path) -> None:
    for name, count in (("20250223_160000", 250), ("20250223_161000", 255)):
        port = tmp_path / "node7" / name / "mlx5_0" / "ports" / "1"
        (port / "counters").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        (port / "counters" / "link_downed").write_text(f"{count}\n")
    assert notable(diagnose(tmp_path), "nic:node7/mlx5_0/1") == ["link_downed rose by 5 in 600 s (saturated)"]


def test_ports_that_ibqueryerrors_leaves_out_are_said_to_be_below_thresholds() -> None:
    document = diagnose(PASTES / "ibqueryerrors.txt")
    assert any("below its thresholds, not zero" in note for note in document["notes"])
    assert notable(document, "port:leaf-04/2") == ["link_downed = 2: read once, since when is not known"]
    assert notable(document, "nic:node8/mlx5_0/1") == ["symbol_error = 14: read once, since when is not known"]


@real
def test_a_real_tree_with_a_counter_at_its_ceiling_is_told_and_no_verdict() -> None:
    document = diagnose(DATA / "public" / "gpud" / "sys-class-infiniband-h100")
    assert document["verdicts"] == []
    assert any("link_downed = at least 255" in what for what in notable(document, "nic:unknown-host/mlx5_1/1"))


# -- joining ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def case(tmp_path: Path) -> Path:
    folder = tmp_path / "case"
    for host, pastes in (
        ("node7", ("ibstat.txt", "topo.txt", "lldpctl.txt", "nvidia-smi-q.txt", "nvlink.txt")),
        ("node8", ("ibstatus.txt",)),
    ):
        (folder / host).mkdir(parents=True)
        for paste in pastes:
            shutil.copy(PASTES / paste, folder / host)
    for paste in ("ibnetdiscover.txt", "perfquery-twice.txt", "ibqueryerrors.txt"):
        shutil.copy(PASTES / paste, folder)
    return folder


def test_hosts_come_from_folders_and_a_lid_finds_its_port(case: Path) -> None:
    document = diagnose(case)
    hosts = {Path(file["path"]).name: file["host"] for file in document["files"]}
    assert (hosts["ibstat.txt"], hosts["ibstatus.txt"], hosts["ibnetdiscover.txt"]) == ("node7", "node8", "")
    assert notable(document, "nic:node7/mlx5_0/1") == [
        "link_downed rose by 2 in 600 s",
        "symbol_error rose by 4000 in 600 s",
    ]
    assert not any("LID" in need for need in document["needs"])


def test_an_index_finds_its_gpu_where_another_paste_names_its_address(case: Path) -> None:
    document = diagnose(case)
    assert any("nvlink_crc_errors = 891" in what for what in notable(document, "nvlink:node7/0/1"))
    assert "row remapping: failed" in notable(document, "gpu:node7/0")


def test_the_fabric_is_taken_from_the_files_and_cables_are_not_asked_for(case: Path) -> None:
    document = diagnose(case)
    assert document["topology"]["hosts"] == ["node7", "node8"]
    assert document["topology"]["links"] == 3
    assert not any("the cables" in need for need in document["needs"])


def test_an_adapter_without_a_name_in_the_scan_is_found_by_its_hosts_gid(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    (folder / "node7").mkdir(parents=True)
    shutil.copy(PASTES / "ibstatus.txt", folder / "node7")
    scan = (PASTES / "ibnetdiscover.txt").read_text().replace("node7 mlx5_0", "MT4129 ConnectX7 Mellanox Technologies")
    (folder / "scan").write_text(scan)
    (tmp_path / "place").mkdir()
    fabric = gather_paths([folder], tmp_path / "place").fabric
    assert fabric.peer_of("nic:node7/mlx5_0/1") == "port:leaf-04/1"


def test_a_link_that_flaps_is_named_by_both_its_ends_where_lldp_told_them(tmp_path: Path) -> None:
    folder = tmp_path / "node7"
    folder.mkdir()
    shutil.copy(PASTES / "lldpctl.json", folder)
    lines = [
        f"2026-03-01T10:0{minute}:00+00:00 node7 kernel: mlx5_core 0000:18:00.0 ens1np0: Link {word}\n"
        for minute, word in enumerate(("down", "up", "down", "up", "down", "up"))
    ]
    (folder / "kern.log").write_text("".join(lines))
    (verdict,) = diagnose(folder)["verdicts"]
    assert verdict["fault_class"] == "link_flap"
    assert verdict["culprit"]["component"] == "link:nic:node7/ens1np0/1--port:leaf-1/Ethernet8"


@real
def test_ranks_are_joined_with_hosts_when_they_are_given_and_asked_for_when_not(tmp_path: Path) -> None:
    folder = tmp_path / "case"
    shutil.copytree(DATA / "flight-recorder" / "gloo-4ranks-rank2-never-joins", folder / "dumps")
    (folder / "node7").mkdir()
    shutil.copy(PASTES / "ibstat.txt", folder / "node7")
    asked = diagnose(folder)
    assert any("--ranks node7=" in need and "ranks 0-3" in need for need in asked["needs"])
    told = diagnose(folder, "--ranks", "node7=0-1", "--ranks", "node8=2-3")
    assert told["ranks"] == {"by": "--ranks", "hosts": {"0": "node7", "1": "node7", "2": "node8", "3": "node8"}}
    assert not any("--ranks" in need for need in told["needs"])
    (verdict,) = told["verdicts"]
    assert verdict["culprit"]["ranks"] == [2]
    assert verdict["culprit"]["host"] == "node8"


def test_ranks_are_read_from_nccls_own_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    made = [
        ("node7:4242:4310 [3]", "ncclCommInitRank comm 0x55d0 rank 3 nranks 8 cudaDev 3 nvmlDev 3"),
        ("node8:99:98 [0]", "ncclCommInitRank comm 0x66d0 rank 4 nranks 8 cudaDev 0 nvmlDev 0"),
        ("node8:99:98 [0]", "ncclCommSplit comm 0x77d0 rank 0 nranks 2 cudaDev 0 nvmlDev 0"),
    ]
    lines = [f"{who} NCCL INFO {what} busId 1b000 - Init COMPLETE\n" for who, what in made]
    log.write_text("".join(lines) + "node7:4242:4310 [3] NCCL WARN NET/IB : mlx5_0:1 Got async event : port error\n")
    assert diagnose(log)["ranks"] == {"by": "NCCL's log", "hosts": {"3": "node7", "4": "node8"}}


@pytest.mark.parametrize("wrong", ["node7", "node7=", "=1", "node7=3-1", "node7=a"])
def test_ranks_that_are_none_say_how_they_should_look(wrong: str, tmp_path: Path) -> None:
    given = ["diagnose", str(tmp_path), "--ranks", wrong]
    result = CliRunner().invoke(build(given), given)
    assert "--ranks" in str(result.exception)


# -- NCCL's status service -------------------------------------------------------------------------------------------


def test_a_malformed_report_is_mended_and_one_query_is_not_called_stuck() -> None:
    document = diagnose(PASTES / "ras-malformed.json")
    assert notable(document, "job:job") == ["communicator 78db921d1c117b4a: MISMATCH (asked once: may be passing)"]
    assert document["ranks"]["by"] == "NCCL RAS"
    assert document["ranks"]["hosts"]["7"] == "node7"
    assert document["ranks"]["hosts"]["8"] == "node8"
    assert any("NCCL RAS again" in need for need in document["needs"])


def test_a_count_that_stays_over_repeated_queries_is_stuck(tmp_path: Path) -> None:
    text = (PASTES / "ras.txt").read_text()
    for minute in range(3):
        (tmp_path / f"ras_20250223_16{minute:02d}00.txt").write_text(text)
    (what,) = notable(diagnose(tmp_path), "job:job")
    assert what == "communicator 78db921d1c117b4a is stuck: ranks 7 are behind"


def test_json_beyond_repair_is_counted_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "ras.json"
    file.write_text('{\n"communicators": [\n{"rank": oops }\n')
    (told,) = diagnose(file)["files"]
    assert told["not_understood"]["count"] == 3
    assert told["not_understood"]["first"].startswith("malformed beyond repair")


def test_a_document_in_one_long_line_is_whole(tmp_path: Path) -> None:
    ports = [{"ifindex": n, "ifname": f"mlx5_{n}", "port": 1, **{f"counter_{c}": c for c in range(99)}} for n in range(40)]
    file = tmp_path / "paste"
    file.write_text(json.dumps(ports) + "\n")
    (told,) = diagnose(file)["files"]
    assert (told["facts"], told["not_understood"]["count"]) == (40 * 99, 0)


@pytest.mark.parametrize(
    "opener", ["| NVIDIA-SMI 535.1 |", "GPU 00000000:1B:00.0", "CA 'm'", "Settings for e0:", "LLDP neighbors:"]
)
def test_lines_longer_than_any_tool_prints_are_counted_unread_and_take_no_time(opener: str, tmp_path: Path) -> None:
    file = tmp_path / "paste"
    file.write_text(f"{opener}\n" + f"|  0  a{' ' * 15_000}b\n" * 50)
    (told,) = diagnose(file)["files"]
    assert told["not_understood"]["count"] >= 50


# -- output ----------------------------------------------------------------------------------------------------------


def test_every_file_has_a_line_for_people(case: Path, tmp_path: Path) -> None:
    (case / "notes.txt").write_text("nothing to see\n")
    text = shown(case)
    for file in sorted(case.rglob("*.txt")):
        assert f"{file}: " in text
    assert f"{case / 'notes.txt'}: not recognised: " in text
    assert "not understood: 1 line, first: nothing to see" in text
    assert "would tell more" in text


def test_the_same_files_give_the_same_output(case: Path) -> None:
    assert diagnose(case) == diagnose(case)
