"""Pasted texts taken apart: no line is lost, hosts and times are those that stand above the output."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from goodput_cli.diagnose.reports import read
from goodput_cli.diagnose.sections import moment_of, split_counted, split_text
from goodput_cli.diagnose.tools import Tool, may_hold_tools, opened_by

PASTES = Path(__file__).parent / "pastes"
IBSTAT = "CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n"
ALL_LINES = [line for paste in sorted(PASTES.iterdir()) for line in paste.read_text().split("\n")]
MARKUP = [
    "```",
    "[root@node7 ~]# ibstat",
    "$ date",
    "Sun Feb 23 16:24:10 UTC 2025",
    "==> x <==",
    "----",
    "node7",
    "=== node9 ===",
    "",
]


def tools(text: str) -> list[tuple[Tool | None, str]]:
    return [(section.tool, section.host) for section in split_text(text)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(ALL_LINES), st.sampled_from(MARKUP), st.text(max_size=80)), max_size=60))
def test_every_line_is_in_one_section_or_is_markup(lines: list[str]) -> None:
    text = "\n".join(lines) + "\n"
    sections, markup = split_counted(text)
    assert sum(len(section.lines) for section in sections) + markup == text.count("\n")
    for section in sections:
        if section.tool not in (None, Tool.JOURNAL):
            report = read(section, "x")
            assert report.unread.count >= 0
            assert bool(report.unread.first) == (report.unread.count > 0)


@pytest.mark.parametrize("paste", sorted(path.name for path in PASTES.glob("*.txt")))
def test_a_line_that_the_tool_does_not_print_is_counted(paste: str) -> None:
    lines = (PASTES / paste).read_text().split("\n")
    opener = next(number for number, line in enumerate(lines) if opened_by(line.replace("\x1b[4m", "")) is not None)
    lines.insert(opener + 1, "§ what is this §")
    reports = [read(section, "x") for section in split_text("\n".join(lines)) if section.tool is not None]
    assert sum(report.unread.count for report in reports) >= 1


@pytest.mark.parametrize(
    "above",
    [
        "[root@node7 ~]# ibstat\n",
        "root@node7:~# ibstat\n",
        "user@node7:/var/log$ sudo ibstat\n",
        "node7# ibstat\n",
        "$ ssh node7 ibstat\n",
        "$ hostname\nnode7\n$ ibstat\n",
        "===== node7 | before | 2025-02-23T16:24:18Z =====\n",
        "--------\nnode7\n--------\n",
        "Hostname: node7\n",
        "Linux node7 5.15.0-89-generic #99-Ubuntu SMP x86_64 GNU/Linux\n",
    ],
)
def test_the_host_is_the_one_above(above: str) -> None:
    assert tools(above + IBSTAT)[-1] == (Tool.IBSTAT, "node7")


def test_what_pdsh_mixes_is_sorted_out_by_host() -> None:
    mixed = "".join(f"node{number}: {line}\n" for line in IBSTAT.splitlines() for number in (7, 8))
    sections = split_text(mixed)
    assert [(section.tool, section.host, section.text) for section in sections] == [
        (Tool.IBSTAT, "node7", IBSTAT),
        (Tool.IBSTAT, "node8", IBSTAT),
    ]


def test_a_kernel_log_that_pdsh_collected_is_of_the_hosts_before_its_lines() -> None:
    lines = "[24128.828315] NVRM: one\n[24129.1] NVRM: two\n[24130.1] NVRM: three\n"
    mixed = "".join(f"node7: {line}\n" for line in lines.splitlines())
    assert may_hold_tools(mixed)
    assert [(section.tool, section.host, section.text) for section in split_text(mixed)] == [(None, "node7", lines)]


def test_quotes_escapes_and_carriage_returns_do_not_hide_a_tool() -> None:
    assert tools("> CA 'mlx5_0'\r\n> \tPort 1:\r\n\x1b[31m\t\tState: Active\x1b[0m\r\n") == [(Tool.IBSTAT, "")]


def test_a_time_holds_for_what_comes_below_it_on_the_same_host() -> None:
    text = (
        f"[root@node7 ~]# date\nSun Feb 23 16:24:10 UTC 2025\n[root@node7 ~]# ibstat\n{IBSTAT}"
        f"[root@node8 ~]# ibstat\n{IBSTAT}"
    )
    first, second = (section for section in split_text(text) if section.tool)
    assert first.at == datetime(2025, 2, 23, 16, 24, 10, tzinfo=UTC)
    assert second.at is None


def test_a_log_line_ends_a_tools_output() -> None:
    kinds = [
        tool for tool, _ in tools(IBSTAT + "[24128.828315] NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.\n")
    ]
    assert kinds == [Tool.IBSTAT, None]


def test_the_same_adapter_twice_is_the_tool_run_twice() -> None:
    assert [tool for tool, _ in tools(IBSTAT + IBSTAT)] == [Tool.IBSTAT, Tool.IBSTAT]
    other = IBSTAT.replace("mlx5_0", "mlx5_1")
    assert [tool for tool, _ in tools(IBSTAT + other)] == [Tool.IBSTAT]


def test_json_ends_with_its_last_brace() -> None:
    kinds = [tool for tool, _ in tools('{\n "lldp": {"interface": []}\n}\nand then it hung\n')]
    assert kinds == [Tool.LLDPCTL_JSON, None]


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Sun Feb 23 16:24:18 2025", datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)),
        ("Sun Feb 23 04:24:18 PM UTC 2025", datetime(2025, 2, 23, 16, 24, 18, tzinfo=UTC)),
        ("2025-02-23T16:24:18+02:00", datetime(2025, 2, 23, 14, 24, 18, tzinfo=UTC)),
        ("Sun Feb 31 16:24:18 2025", None),
        ("Sun Feb 23 16:24:18 2025 it hung", None),
    ],
)
def test_a_date_alone_on_its_line_is_a_time(text: str, at: datetime | None) -> None:
    assert moment_of(text) == at


@pytest.mark.parametrize("line", [line for line in ALL_LINES if opened_by(line) is not None])
def test_a_text_with_a_tools_first_line_is_never_passed_over_unsplit(line: str) -> None:
    assert may_hold_tools(f"some log\n{line}\n")


@pytest.mark.parametrize("text", ["[root@node7 ~]# dmesg\n", "user@node7:~$ dmesg\n", "```\n"])
def test_a_text_with_a_prompt_or_a_fence_is_taken_apart(text: str) -> None:
    assert may_hold_tools(text)


def test_a_plain_log_need_not_be_taken_apart() -> None:
    assert not may_hold_tools("Aug 17 06:18:01 node7 systemd[1]: Started session 1 of user root.\n" * 10)
