"""`goodput diagnose`: right on real captures, clear on damaged and foreign files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from goodput_cli.main import build

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NVRX = DATA / "public" / "nvrx-flight-recorder"
real = pytest.mark.skipif(not DATA.is_dir(), reason="the real captures of ../shared/data are not here")


def diagnose(*paths: Path | str, expect: int = 0) -> dict[str, Any]:
    arguments = ["diagnose", *(str(path) for path in paths), "--json"]
    result = CliRunner().invoke(build(arguments), arguments)
    assert result.exit_code == expect, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    assert set(document) >= {"verdicts", "unrecognised", "warnings", "files", "notable", "needs"}
    return document


def ranks_named(document: dict[str, Any]) -> set[int]:
    return {
        rank
        for verdict in document["verdicts"]
        for culprit in verdict["culprits"] or [verdict["culprit"]]
        for rank in culprit["ranks"]
    }


@real
def test_names_the_rank_that_never_joins() -> None:
    document = diagnose(DATA / "flight-recorder" / "gloo-4ranks-rank2-never-joins")
    assert ranks_named(document) == {2}


@real
@pytest.mark.parametrize(("trace", "culprits"), [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})])
def test_names_both_culprits_of_a_labelled_trace_and_nobody_else(trace: str, culprits: set[int]) -> None:
    assert ranks_named(diagnose(NVRX / trace)) == culprits


@real
@pytest.mark.parametrize(("trace", "culprits"), [("gpu_error_1st", {12, 14}), ("lock_gil_1st", {9, 14})])
@pytest.mark.parametrize("missing", range(16))
def test_a_missing_dump_is_evidence(trace: str, culprits: set[int], missing: int, tmp_path: Path) -> None:
    folder = tmp_path / trace
    shutil.copytree(NVRX / trace, folder, ignore=shutil.ignore_patterns(f"_dump_{missing}"))
    folder.chmod(0o755)
    document = diagnose(folder)
    assert culprits <= ranks_named(document)
    for verdict in document["verdicts"]:
        named = {rank for culprit in verdict["culprits"] or [verdict["culprit"]] for rank in culprit["ranks"]}
        assert named <= culprits or verdict["confidence"] <= 0.5
        for other in verdict["alternatives"]:
            bystander = other["component"] not in {f"rank:job/{rank}" for rank in culprits}
            assert not bystander or other["confidence"] <= 0.5


@real
def test_names_the_gpu_whose_firmware_does_not_answer() -> None:
    (verdict,) = diagnose(DATA / "public" / "gpud" / "dmesg-with-xid-119.log")["verdicts"]
    assert verdict["fault_class"] == "gpu_driver"
    assert "0000:9b:00" in verdict["culprit"]["component"]


@real
def test_sees_no_fault_in_a_quiet_log_and_the_flapping_port_in_the_other() -> None:
    assert diagnose(DATA / "public" / "azurehpc" / "0flap_syslog")["verdicts"] == []
    (verdict,) = diagnose(DATA / "public" / "azurehpc" / "1dev_6flap_syslog")["verdicts"]
    assert verdict["fault_class"] == "link_flap"
    assert verdict["culprit"]["host"] == "jplc7eb7-vm-0"
    assert "ib6" in verdict["culprit"]["component"]


@real
def test_a_truncated_dump_is_named_and_the_others_still_count(tmp_path: Path) -> None:
    folder = tmp_path / "dumps"
    shutil.copytree(DATA / "flight-recorder" / "gloo-4ranks-rank2-never-joins", folder)
    folder.chmod(0o755)
    torn = folder / "rank_1"
    torn.chmod(0o644)
    torn.write_bytes(torn.read_bytes()[:700])
    document = diagnose(folder)
    assert any("rank_1" in warning for warning in document["warnings"]) or any(
        "rank_1" in each["path"] for each in document["unrecognised"]
    )
    assert 2 in ranks_named(document)


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    document = diagnose(tmp_path, expect=1)
    assert document["verdicts"] == []
    assert any(str(tmp_path) in warning and "empty" in warning for warning in document["warnings"])


def test_a_binary_file_is_not_recognised(tmp_path: Path) -> None:
    binary = tmp_path / "core"
    binary.write_bytes(bytes(range(256)) * 512)
    document = diagnose(binary, expect=1)
    assert document["unrecognised"] == [{"path": str(binary), "why": "binary"}]


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "nowhere.log"
    document = diagnose(missing, expect=1)
    assert any(str(missing) in warning for warning in document["warnings"])


def test_a_kernel_log_of_ones_own_names_the_gpu(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.write_text(
        "2026-03-01T10:00:00.000000+00:00 node7 kernel: usb 1-1: new device\n"
        "2026-03-01T10:00:05.250000+00:00 node7 kernel: NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', "
        "name=<unknown>, GPU has fallen off the bus.\n"
    )
    (verdict,) = diagnose(log)["verdicts"]
    assert verdict["fault_class"] == "gpu_off_bus"
    assert verdict["culprit"]["component"] == "gpu:node7/0000:05:00"
    assert "fallen off the bus" in verdict["evidence"][0]["excerpt"]
