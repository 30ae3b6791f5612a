"""Every file that was given: what it is, what came of it, what was not understood.

A file is a flight recorder, a log, the output of tools, or several of these in one. Logs and recorders are read by the
collector's own readers; the output of tools goes through `sections` and `reports`; what is left of a pasted text once the
tools' output is taken out is read as a log. Nothing raises for what a file holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from goodput_cli.diagnose.hosts import HOSTNAME_FILES, Named
from goodput_cli.diagnose.reports import Report, read
from goodput_cli.diagnose.sections import Section, has_tool, log_lines, moment_of, split_text
from goodput_cli.diagnose.tools import Tool, may_hold_tools
from goodput_cli.diagnose.unpack import Item
from goodput_collector.domain import kernel_log, nccl_log
from goodput_collector.domain.pasted import Unread
from goodput_collector.domain.recognise import HEAD_BYTES, Kind, Recognised, recognise
from goodput_collector.domain.timestamps import split

TEXT_BYTES_MAX = 32 << 20
_HOST_LINES = 400
_HOST_FILE_BYTES_MAX = 256
_TIME_IN_NAME = re.compile(r"(?<!\d)(\d{4})-?(\d\d)-?(\d\d)[T_.-]?(\d\d)[:-]?(\d\d)[:-]?(\d\d)(?!\d)")


@dataclass(slots=True)
class File:
    """One file in the output. `kinds`: what it is, in words, with how many of it; `host` and `host_by` for what names no
    host itself; `passed_over` are lines of a log that say nothing of a fault; `why`: it is nothing that could be used."""

    item: Item
    modified: datetime
    kinds: list[str] = field(default_factory=list)
    recognised: Recognised | None = None
    reports: list[Report] = field(default_factory=list)
    rest: list[Section] = field(default_factory=list)
    text: str = ""
    is_mixed: bool = False
    named: frozenset[str] = frozenset()
    host: str = ""
    host_by: str = ""
    facts: int = 0
    lines: int = 0
    not_understood: Unread = field(default_factory=Unread)
    passed_over: Unread = field(default_factory=Unread)
    why: str = ""
    too_large: bool = False  # to be searched for the output of tools

    @property
    def drawn(self) -> int:
        """How many things in it tell of the fabric: nodes of a scan, neighbours of interfaces, GPUs of a matrix."""
        contents = [report.content for report in self.reports]
        nodes = sum(len(each.fabric.nodes) for each in contents if each.fabric is not None)
        gpus = sum(len(each.topo.gpus) for each in contents if each.topo is not None)
        return nodes + gpus + sum(len(each.neighbours) for each in contents)

    @property
    def is_dump(self) -> bool:
        return self.recognised is not None and self.recognised.kind is Kind.FLIGHT_RECORDER

    @property
    def is_log(self) -> bool:
        """To be read whole by a log reader."""
        return self.recognised is not None and not self.is_dump and not self.is_mixed and not self.why


def look(item: Item) -> File:
    """What a file is, by its content."""
    if item.left_out:
        return File(item, datetime(1970, 1, 1, tzinfo=UTC), why=item.left_out)
    try:
        status = item.path.stat()
        file = File(item, datetime.fromtimestamp(min(max(status.st_mtime, 0.0), 4e9), UTC))
        if item.is_tree:
            file.kinds.append("tree of RDMA devices")
            return file
        with item.path.open("rb") as raw:
            head = raw.read(HEAD_BYTES)
            file.recognised = recognise(head)
            if file.recognised.kind in (Kind.UNKNOWN, Kind.GZIP):
                file.why = file.recognised.why or file.recognised.kind
                return file
            if file.is_dump:
                file.kinds.append("flight recorder")
                return file
            rest = raw.read(TEXT_BYTES_MAX - len(head)) if status.st_size <= TEXT_BYTES_MAX else b""
    except OSError as error:
        return File(item, datetime(1970, 1, 1, tzinfo=UTC), why=f"cannot be read: {error.strerror or error}")
    if status.st_size <= TEXT_BYTES_MAX:
        _take_apart(file, (head + rest).decode("utf-8", "replace"))
    else:
        file.named = _hosts_of_lines(head.decode("utf-8", "replace").splitlines())
        file.too_large = True
    return file


def _take_apart(file: File, text: str) -> None:
    file.text = text
    file.lines = text.count("\n") + (not text.endswith("\n"))
    if file.recognised is not None and file.recognised.kind is Kind.JOURNAL_EXPORT and text.startswith(("__", "{")):
        file.named = _hosts_of_lines(text.splitlines())
        return  # a journal whole: its values may be anything
    sections = split_text(text) if may_hold_tools(text) else []
    told = {section.host for section in sections if section.host}
    file.is_mixed = has_tool(sections) or bool(told)
    if not file.is_mixed:
        file.named = _hosts_of_lines(text.splitlines()[:_HOST_LINES]) or _host_file(file, text)
        return
    file.reports = [read(each, file.item.name) for each in sections if each.tool not in (None, Tool.JOURNAL)]
    file.rest = [each for each in sections if each.tool in (None, Tool.JOURNAL)]
    for report in file.reports:
        file.not_understood.add(report.unread)
    labels = {metric.labels.get("Hostname", "") for report in file.reports for metric in report.content.metrics} - {""}
    logged = _hosts_of_lines(line for section in file.rest for line in section.lines[:_HOST_LINES])
    file.named = frozenset(told | labels | logged)


def is_hostname_file(file: File) -> bool:
    return PurePosixPath(file.item.hint).name.lower() in HOSTNAME_FILES


def _host_file(file: File, text: str) -> frozenset[str]:
    """A file `hostname`, as bug reports have, holds a host's name and nothing else."""
    word = text.strip()
    is_one = is_hostname_file(file) and len(text) <= _HOST_FILE_BYTES_MAX
    return frozenset({word}) if is_one and re.fullmatch(r"[A-Za-z][\w.-]{0,62}", word) else frozenset()


def _hosts_of_lines(lines: Iterable[str]) -> frozenset[str]:
    found: set[str] = set()
    for number, line in enumerate(lines):
        if number >= _HOST_LINES:
            break
        if line.startswith("_HOSTNAME="):
            found.add(line.partition("=")[2].strip())
        elif (host := split(line[:1000]).host) and not host.replace(".", "").isdigit():
            found.add(host)
        elif (journal := re.search(r'"_HOSTNAME"\s*:\s*"([\w.-]{1,64})"', line[:65536])) is not None:
            found.add(journal[1])
    return frozenset(found - {""})


def taken_at(file: File, section: Section | None, reference: datetime | None, told: str = "") -> tuple[datetime, bool]:
    """(when, whether the text or the file's name says so). Else the time that the caller gave, else the file's own."""
    own = moment_of(told) if told else None
    if own is None and section is not None:
        own = section.at
    if own is None:
        own = time_in_name(PurePosixPath(file.item.name).name)
    return (own, True) if own is not None else (reference or file.modified, False)


def time_in_name(name: str) -> datetime | None:
    """`ibstat_20250223_162418.txt`, `2025-02-23T16:24:18`: taken for UTC."""
    match = _TIME_IN_NAME.search(name)
    if match is None:
        return None
    try:
        return datetime(*(int(part) for part in match.groups()), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        return None


def write_rest(file: File, hosts: Mapping[str, Named], folder: Path) -> Iterator[tuple[Path, str]]:
    """(log file, host) of what is left once the tools' output is taken out: one file for each host, and for each journal."""
    groups: dict[tuple[str, bool], list[str]] = {}
    for section in file.rest:
        host = section.host or (hosts[file.item.hint].host if file.item.hint in hosts else "")
        is_journal = section.tool is Tool.JOURNAL
        lines = section.lines if is_journal else list(log_lines(section))
        groups.setdefault((host, is_journal), []).extend(lines)
        if not is_journal:
            _sort_out(file, lines)
    for number, ((host, _), lines) in enumerate(sorted(groups.items())):
        if not any(line.strip() for line in lines):
            continue
        path = folder / f"{number}"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        at = file.modified.timestamp()
        os.utime(path, (at, at))
        yield path, host


def _sort_out(file: File, lines: list[str]) -> None:
    """Lines of the rest that no parser could use: those of a log say nothing of a fault, the others are not understood.
    Rules and brackets hold nothing to understand."""
    for line in lines:
        if not any(letter.isalnum() for letter in line):
            continue
        raw = line[:4096].encode("utf-8", "replace")
        if kernel_log.NEEDLES.found_in(raw) or nccl_log.NEEDLES.found_in(raw):
            continue
        (file.passed_over if split(line).dated or b"NCCL " in raw else file.not_understood).note(line)


def pass_over_lines(file: File) -> None:
    """Of a log that is read whole: the lines in which no parser's words stand. The words are searched, not the lines."""
    data = file.text.encode("utf-8", "replace")
    blank = sum(1 for line in file.text.splitlines() if not line.strip())
    told = {
        data.rfind(b"\n", 0, place) + 1
        for needles in (kernel_log.NEEDLES, nccl_log.NEEDLES)
        for place in needles.places_in(data)
    }
    begin = 0
    while begin < len(data) and (begin in told or not data[begin : _end(data, begin)].strip()):
        begin = _end(data, begin) + 1
    if begin < len(data):
        file.passed_over.note(data[begin : min(_end(data, begin), begin + 1000)].decode("utf-8", "replace"))
        file.passed_over.count = max(1, file.lines - blank - len(told))


def _end(data: bytes, begin: int) -> int:
    """Where the line ends that begins here."""
    end = data.find(b"\n", begin)
    return len(data) if end < 0 else end
