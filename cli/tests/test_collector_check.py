"""`goodput collector check` and `python -m goodput_collector check`: what they print, and how they exit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from goodput_cli.main import main as command_line
from goodput_collector.__main__ import main as container
from goodput_common.runtime.logs import configure_logging

Run = Callable[..., int]


def goodput(*arguments: str) -> None:
    sys.argv = ["goodput", "collector", *arguments]
    command_line()


def module(*arguments: str) -> None:
    container(list(arguments))


@pytest.fixture(params=[goodput, module])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Exit code of a check of a host that has nothing but a kernel log."""
    (tmp_path / "sys").mkdir()
    (tmp_path / "kern.log").touch()
    for name, value in {
        "RUN_DIR": tmp_path / "run", "SYS_ROOT": tmp_path / "sys", "KERNEL_LOG": tmp_path / "kern.log", "HOST": "h0",
        "LLDP": "", "CLOUD_TOPOLOGY": "", "COLLECTOR_OFF": "netlink,devlink,nvml,ras,process,host",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"GOODPUT_{name}", str(value))
    monkeypatch.setattr(sys, "argv", sys.argv)

    def checked(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            request.param("check", *arguments)
        configure_logging("test", json=False, level="WARNING")
        return int(ended.value.code or 0)

    return checked


def test_a_host_of_which_all_is_read_exits_0(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    text = capsys.readouterr().out
    assert text.startswith("host h0, read as ")
    assert "all that is here can be read" in text


def test_a_source_that_is_there_and_cannot_be_read_exits_1_and_is_named_with_its_variable(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("GOODPUT_SWITCHES", str(tmp_path / "none.json"))
    assert run() == 1
    text = capsys.readouterr().out
    assert "not seen on this host: switch" in text
    assert f"[GOODPUT_SWITCHES={tmp_path / 'none.json'}]" in text


def test_json_is_one_document_that_says_the_same(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["host"] == "h0"
    outcomes = {each["source"]: each["outcome"] for each in found["sources"]}
    assert outcomes["kernel_log"] == "ok"
    assert outcomes["netlink"] == "off"


def test_a_wrong_setting_exits_2_and_is_named(
    run: Run,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOODPUT_RAS_ADDRESS", "h:99999")
    assert run() == 2
    assert "GOODPUT_RAS_ADDRESS: expected host:port" in capsys.readouterr().err
