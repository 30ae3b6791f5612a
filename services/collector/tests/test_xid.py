"""What an Xid line says, in all its shapes; severity comes from the catalogue and the line, never from the number alone."""

# ruff: noqa: E501 - log lines are quoted whole

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goodput_collector.domain.xid import SxidLines, parse_nvidia
from goodput_collector.domain.xid_table import NVLINK_ROWS, XIDS
from goodput_common.contracts.telemetry import Event, EventName, Severity

AT = datetime(2026, 3, 1, tzinfo=UTC)
ROOT = Path(__file__).resolve().parents[3]
CATALOGUE = ROOT.parent / "shared" / "data" / "public" / "nvidia-xid"


def parse(text: str) -> Event:
    event = parse_nvidia(text, host="h0", at=AT)
    assert event is not None
    return event


def attrs(text: str, *names: str) -> tuple[str | None, ...]:
    found = parse(text).attrs
    return tuple(found.get(name) for name in names)


def test_off_the_bus_names_the_gpu_and_asks_for_a_reboot() -> None:
    event = parse("NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    assert (event.name, event.component, event.severity) == (EventName.XID, "gpu:h0/0000:05:00", Severity.FATAL)
    assert event.attrs["impact"] == "reboot"
    assert "pid" not in event.attrs and "process" not in event.attrs


def test_a_gsp_timeout_tells_process_and_wait() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 119, pid=20, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU4 GSP!"
    assert attrs(line, "xid", "pid", "process", "timeout_s", "impact") == ("119", "20", "nvidia-smi", "6", "reset")


def test_rate_limited_prints_make_the_count_a_lower_bound() -> None:
    line = "NVRM: Rate limiting GSP RPC error prints for GPU at PCI:0000:9b:00 (printing 1 of every 30)."
    assert attrs(line, "xid", "pci", "lower_bound", "printing_one_of") == ("119", "0000:9b:00", "true", "30")


@pytest.mark.parametrize(
    ("line", "cause", "channel"),
    [
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 149", "149", "00000001"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 45", "45", "00000001"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, Ch 0000000f", None, "0000000f"),
        ("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=a, channel 0x0000000f", None, "0x0000000f"),
    ],
)
def test_xid_45_is_a_victim_and_names_its_cause_where_it_has_one(line: str, cause: str | None, channel: str) -> None:
    assert attrs(line, "impact", "cause", "channel") == ("victim", cause, channel)
    assert parse(line).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("rest", "impact", "severity", "side"),
    [
        (
            "149, NETIR_LINK_EVT Fatal   XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000)",
            "reset",
            "fatal",
            "local",
        ),
        (
            "149, pid=1, name=a, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x00000000 0x0 0x0)",
            "reset",
            "fatal",
            "peer",
        ),
        ("149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x00000000 0x0 0x0)", "ignore", "info", "none"),
        ("149, NETIR_LINK_DOWN Fatal XC0 i0 Link 02 (0x02500011 0x00000000)", "reset", "fatal", "peer"),
        ("149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x0 0x0 0x0 0x0)", "reset", "fatal", None),
        ("149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 13 (0x00000226 0x00000001)", "nonfatal", "warning", None),
        (
            "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x1 0x0 0x00100000 0x4)",
            "nonfatal",
            "warning",
            None,
        ),
        ("145, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x000002c2 0x00000001)", "reset", "fatal", None),
        ("144, SAW_MVB Fatal XC0 i0 Link -1 (0x00000021 0x00000002)", "reset", "fatal", None),
        ("146, SOMETHING_NEW Nonfatal XC0 i0 Link 1 (0x00000000 0x00000000)", "nonfatal", "warning", None),
        ("146, SOMETHING_NEW Fatal XC0 i0 Link 1", "reset", "fatal", None),
    ],
)
def test_nvlink5_is_judged_by_its_words(rest: str, impact: str, severity: str, side: str | None) -> None:
    event = parse(f"NVRM: Xid (PCI:0018:01:00): {rest}")
    assert (event.attrs["impact"], event.severity, event.attrs.get("side")) == (impact, severity, side)


def test_a_link_number_is_told_unless_it_is_minus_one() -> None:
    assert attrs("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6 0x0)", "link") == ("8",)
    assert attrs("NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x0 0x0)", "link") == (None,)


@pytest.mark.parametrize(
    ("change", "action", "impact"),
    [
        ("0x0 (None) to 0x1 (GPU Reset Required)", "gpu_reset", "reset"),
        ("0x0 (None) to 0x2 (Node Reboot Required)", "node_reboot", "reboot"),
        ("0x0 (None) to 0x4 (Drain and Reset)", "drain_and_reset", "reset"),
        ("0x4 (Drain and Reset) to 0x0 (None)", "none", "ignore"),
    ],
)
def test_xid_154_tells_the_action_that_is_now_asked_for(change: str, action: str, impact: str) -> None:
    line = f"NVRM: Xid (PCI:0000:9b:00): 154, pid='<unknown>', name=<unknown>, GPU recovery action changed from {change}"
    assert attrs(line, "recovery_action", "impact") == (action, impact)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:c1:00 GPU-I:05 GPU-CI:02): 13, Graphics SM Warp Exception on (GPC 7, TPC 3, SM 0): x",
            ("13", "5/2", "app"),
        ),
        ("NVRM: Xid (0000:03:00): 31, Ch 00000010, intr 10000000. MMU Fault", ("31", None, "app")),
        (
            "NVRM: Xid (PCI:0000:9b:00): 63, pid=1, name=<unknown>, Row Remapper: New row (0x1) marked",
            ("63", None, "ignore"),
        ),
        ("NVRM: Xid (PCI:0000:9b:00): 94, pid=1, name=python, Contained: SM (0x1). RST: No, D-RST: No", ("94", None, "app")),
        ("NVRM: Xid (PCI:0000:9b:00): 95, pid=1, name=python, Uncontained", ("95", None, "reset")),
        ("NVRM: Xid (PCI:0000:9b:00): 171, HBM, Uncorrectable DRAM error in FBPA 9", ("171", None, "unknown")),
        ("NVRM: Xid (PCI:0000:9b:00): 999, something new", ("999", None, "unknown")),
    ],
)
def test_other_shapes(line: str, expected: tuple[str | None, ...]) -> None:
    assert attrs(line, "xid", "mig", "impact") == expected


def test_xid_74_carries_link_and_registers() -> None:
    line = "NVRM: Xid (PCI:0000:D8:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x100000, 0x0, 0x0)"
    assert attrs(line, "pci", "link", "words") == ("0000:d8:00", "14", "0x100000 0x0 0x0")


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:05:00.0: GPU has fallen off the bus.",
        "NVRM: GPU 0000:05:00.0: RmInitAdapter failed! (0x26:0xffff:1290)",
        "Unable to determine the device handle for GPU0000:05:00.0: Unknown Error",
    ],
)
def test_a_gpu_that_is_gone_without_a_number_is_told_too(line: str) -> None:
    event = parse(line)
    assert (event.name, event.component) == (EventName.GPU_LOST, "gpu:h0/0000:05:00")


@pytest.mark.parametrize("line", ["NVRM: GPU Board Serial Number: 1650124014249", "a Xid (", "NVRM: Xid (PCI:zz): 79, x"])
def test_lines_that_say_nothing_are_passed_over(line: str) -> None:
    assert parse_nvidia(line, host="h0", at=AT) is None


def test_an_sxid_of_three_lines_is_one_event_whichever_comes_first() -> None:
    prefix = "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, "
    lines = SxidLines()
    told = [
        lines.feed(prefix + rest, host="h0", at=AT)
        for rest in (
            "Non-fatal, Link 44 Minion Link DLREQ interrupt",
            "Severity 0 Engine instance 44 Sub-engine instance 00",
            "Data {0x0000002c, 0x0000002c}",
            "Severity 1 Engine instance 44 Sub-engine instance 00",
            "Data {0x0000002c, 0x0000002c}",
        )
    ]
    assert [event is not None for event in told] == [True, False, False, True, False]
    assert told[0] is not None and told[3] is not None
    assert (told[0].component, told[0].attrs["fatal"], told[0].attrs["link"]) == ("nvswitch:h0/3", "false", "44")
    assert told[3].attrs["fatal"] == "true"


@given(st.text(max_size=200))
def test_any_rest_of_an_xid_line_is_survived(rest: str) -> None:
    event = parse_nvidia(f"NVRM: Xid (PCI:0000:05:00): 149, {rest}", host="h0", at=AT)
    assert event is not None and event.attrs["xid"] == "149"


def test_the_table_knows_the_numbers_that_decide() -> None:
    assert XIDS[79].action == "RESTART_BM"
    assert {code for code, entry in XIDS.items() if entry.action == "RESTART_BM"} == {79}
    assert len({row.units for row in NVLINK_ROWS}) > 15
    assert {row.xid for row in NVLINK_ROWS} == set(range(144, 151))


def test_the_table_knows_on_which_chips_a_number_exists() -> None:
    assert XIDS[79].chips == ("A100", "H100", "B100", "GB200")
    assert XIDS[74].chips == ("A100", "H100")
    assert all(XIDS[code].chips == ("B100", "GB200") for code in range(144, 151))


@pytest.mark.skipif(not CATALOGUE.is_dir(), reason="NVIDIA's catalogue under ../shared is not here")
def test_the_table_is_what_the_catalogue_says() -> None:
    tool = ROOT / "services" / "collector" / "tools" / "generate_xid_table.py"
    done = subprocess.run(
        [sys.executable, str(tool), str(CATALOGUE), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
