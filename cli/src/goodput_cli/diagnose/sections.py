"""A pasted text taken apart: which lines are whose output, on which host, taken when.

People paste several outputs into one file, between fences, behind prompts, below headings, quoted by a mail program, or with
`pdsh`'s host name before every line:

    ```
    [root@node7 ~]# date; ibstat
    Sun Feb 23 16:24:18 UTC 2025
    CA 'mlx5_0'
    ...

Every line ends in exactly one place: in a section of a tool, in a section of the rest (log lines and prose), or as markup
that says where sections begin and end (a fence, a prompt, a heading, a date). Nothing is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from goodput_cli.diagnose.hosts import is_host_name, looks_like_host
from goodput_cli.diagnose.tools import Opened, Tool, is_command, json_tool, opened_by
from goodput_collector.domain.timestamps import split

LINE_CHARS_MAX = 16_384
JSON_CHARS_MAX = 8 << 20  # some tools put a whole document into one line
SECTIONS_MAX = 20_000
_WINDOW_LINES, _WINDOW_CHARS = 60, 8192
_PREFIXED_MIN = 3

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]{0,200}\x07|\x1b[()][A-Z0-9]")
_QUOTED = re.compile(r"^(?:> ?){1,8}")
_FENCE = re.compile(r"^\s*(?:```|~~~)[\w+-]*\s*$|^\s*</?(?:details|summary|pre|code|p|br)\b[^>]*>.*$", re.IGNORECASE)
_PROMPT = re.compile(
    r"^\s*(?:\([\w.-]{1,32}\) )?"
    r"(?:\[?(?P<user>[\w.-]{1,32})@(?P<host>[\w.-]{1,64})[ :][^\]$#]{0,120}\]?\s?[$#]|[$]|\+(?= [a-z/])) ?"
    r"(?P<command>\S.*)?$"
)
_ROOT = re.compile(r"^\s*#+ +(?P<command>[\w./-]+(?: .*)?)$")
_HOST_PROMPT = re.compile(r"^\s*(?P<host>[A-Za-z][\w.-]{0,63})[#$>] ?(?P<command>\S.*)$")
_FILE = re.compile(r"^==> (?P<path>\S.*?) <==\s*$")
_RULED = re.compile(r"^\s*[=#*-]{2,}\s*(?P<words>[^=#*\s-][^=#*]{0,120}?)\s*[=#*-]{2,}\s*$")
_LABELLED = re.compile(
    r"^\s*(?:Host(?:name)?|Node(?:name)?|Static hostname)\s*[:=]\s*(?P<host>[\w.-]{1,64})\s*$", re.IGNORECASE
)
_UNAME = re.compile(r"^Linux (?P<host>[\w.-]{1,64}) \d+\.\d+\S* #")
_SSH = re.compile(r"\bssh\s+(?:-\S+\s+)*(?:[\w.-]+@)?(?P<host>[A-Za-z][\w.-]{0,63})\s+['\"]?(?P<command>\S.*?)['\"]?\s*$")
_DATE = re.compile(
    r"^\s*(?:zzz \*{3})?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<mon>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)"
    r"(?: (?P<half>[AP]M))?(?: (?P<zone>[A-Z]{2,5}|[+-]\d{2,4}))? (?P<year>\d{4})\s*$"
)
_ISO = re.compile(r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?\s?(?P<zone>Z|[+-]\d\d:?\d\d)?")
_PREFIX = re.compile(r"^(?P<host>[A-Za-z][\w.-]{0,63}): ?(?P<rest>.*)$")
_LOG = re.compile(r"^\S*?(?:NVRM: |mlx5_core |nvidia-nvswitch\d|NCCL (?:INFO|WARN)|\[rank\d+\]|ProcessGroup)")
_EXPORT = re.compile(r"^(?:[A-Z_][A-Z0-9_]*(?:=|$)|\{)")


@dataclass(slots=True)
class Section:
    """Lines of one tool, or of the rest (`tool` is None). `command` is what was typed before them, `host_by` says how the
    host is known, `at` when the output was taken: both only where the text itself says so."""

    tool: Tool | None
    first_line: int
    lines: list[str] = field(default_factory=list)
    host: str = ""
    host_by: str = ""
    at: datetime | None = None
    command: str = ""

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def split_text(text: str) -> list[Section]:
    """All of a text. Never raises, whatever it is given."""
    return split_counted(text)[0]


def split_counted(text: str) -> tuple[list[Section], int]:
    """Besides, how many lines were markup: together with the sections' lines these are all lines of the text."""
    splitter = _Splitter()
    lines = [_clean(line) for line in text.split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    streams = _by_prefix(lines)
    for host, numbered in streams:
        splitter.begin(host)
        splitter.take(numbered)
    return splitter.sections, splitter.markup


def has_tool(sections: Iterable[Section]) -> bool:
    return any(each.tool is not None for each in sections)


def _clean(line: str) -> str:
    most = JSON_CHARS_MAX if line.lstrip()[:1] in ("{", "[") else LINE_CHARS_MAX
    line = _ESCAPES.sub("", line[:most]).rstrip("\r")
    quoted = _QUOTED.match(line)
    return line[quoted.end() :] if quoted is not None else line


def _by_prefix(lines: list[str]) -> list[tuple[str, list[tuple[int, str]]]]:
    """[(host, numbered lines)]: what `pdsh` has mixed is sorted out by host; all else is one stream of no host."""
    counted: dict[str, int] = {}
    opening: set[str] = set()
    for line in lines:
        if (match := _PREFIX.match(line)) is not None:
            counted[match["host"]] = counted.get(match["host"], 0) + 1
            if match["host"] not in opening and _opens_stream(match["host"], match["rest"]):
                opening.add(match["host"])
    hosts = {host for host in opening if counted[host] >= _PREFIXED_MIN}
    streams: dict[str, list[tuple[int, str]]] = {"": []}
    for number, line in enumerate(lines, 1):
        match = _PREFIX.match(line) if hosts else None
        if match is not None and match["host"] in hosts:
            streams.setdefault(match["host"], []).append((number, match["rest"]))
        else:
            streams[""].append((number, line))
    return [(host, numbered) for host, numbered in streams.items() if numbered]


def _opens_stream(host: str, rest: str) -> bool:
    """Is it a host's name, and not a word of the text, that stands before this?"""
    return opened_by(rest) is not None or (rest.startswith("[") and looks_like_host(host) and split(rest).dated)


class _Splitter:
    def __init__(self) -> None:
        self.sections: list[Section] = []
        self.markup = 0
        self.begin("")

    def begin(self, host: str) -> None:
        """A stream of its own: nothing that was said before holds for it."""
        self._host, self._host_by = host, "the name before each line" if host else ""
        self._at: datetime | None = None
        self._command = ""
        self._open: Section | None = None
        self._keys: set[str] = set()
        self._depth = _Depth()
        self._asked = ""

    def take(self, numbered: list[tuple[int, str]]) -> None:
        lines = [line for _, line in numbered]
        for place, (number, line) in enumerate(numbered):
            if self._in_json() and not _FENCE.match(line):
                self._append(number, line)
                if self._depth.closed_by(line):
                    self._close()
            elif self._markup(line, lines, place):
                self.markup += 1
            else:
                self._content(number, line, lines, place)
        self._close()

    # -- markup -------------------------------------------------------------------------------------------------------

    def _markup(self, line: str, lines: list[str], place: int) -> bool:
        """Whether the line only says where things begin, when, and on which host."""
        if _FENCE.match(line):
            self._close()
            return True
        stripped = line.strip()
        if self._asked == "hostname" and stripped:
            self._asked = ""
            if is_host_name(stripped):
                self._on(stripped, "`hostname`")
                return True
        if opened_by(line) is not None:
            return False
        if (at := moment_of(stripped)) is not None:
            self._close()
            self._at = at
            return True
        return self._prompt(line) or self._heading(line, stripped, lines, place)

    def _prompt(self, line: str) -> bool:
        match = _PROMPT.match(line)
        if match is None:
            match = _ROOT.match(line) or _HOST_PROMPT.match(line)
            if match is None or not is_command(match["command"].split()[0]):
                return False
        found = match.groupdict()
        command = (found.get("command") or "").strip()
        if command.startswith("[") or (found.get("host") is None and not command):
            return False
        if (host := found.get("host")) and is_host_name(host):
            self._on(host, "the prompt")
        if (ssh := _SSH.search(command)) is not None and is_command(ssh["command"].split()[0]):
            self._on(ssh["host"], "`ssh`")
            command = ssh["command"]
        self._close()
        self._command = command
        self._asked = "hostname" if command.split()[:1] == ["hostname"] else ""
        return True

    def _heading(self, line: str, stripped: str, lines: list[str], place: int) -> bool:
        if (match := _FILE.match(line)) is not None:
            self._close()
            self._command = match["path"]
            return True
        if (match := _LABELLED.match(line)) is not None and is_host_name(match["host"]):
            self._close()
            self._on(match["host"], "a heading")
            return True
        if (match := _UNAME.match(line)) is not None and is_host_name(match["host"]):
            self._on(match["host"], "`uname`")
            return True
        if (match := _RULED.match(line)) is not None:
            return self._ruled(match["words"])
        if stripped and set(stripped) <= {"-"} and len(stripped) >= 4:
            return self._between_rules(lines, place)
        if stripped and is_host_name(stripped) and 0 < place < len(lines) - 1:
            return all(set(lines[at].strip()) == {"-"} for at in (place - 1, place + 1))
        return False

    def _ruled(self, words: str) -> bool:
        """`===== node7 | before | 2025-02-23T16:24:18Z =====`: a host, a time, or neither."""
        parts = [part.strip() for part in words.split("|")]
        host = next((part for part in parts if is_host_name(part) and any(c.isdigit() for c in part)), "")
        at = next((found for part in parts if (found := moment_of(part)) is not None), None)
        if not host and at is None:
            return False
        self._close()
        if host:
            self._on(host, "a heading")
        self._at = at or self._at
        return True

    def _between_rules(self, lines: list[str], place: int) -> bool:
        """`dshbak` puts a host between two rules."""
        for first, name, last in ((place, place + 1, place + 2), (place - 2, place - 1, place)):
            if first < 0 or last >= len(lines) or not is_host_name(lines[name].strip()):
                continue
            if set(lines[first].strip()) == {"-"} == set(lines[last].strip()):
                self._close()
                self._on(lines[name].strip(), "a heading")
                return True
        return False

    def _on(self, host: str, by: str) -> None:
        if host != self._host:
            self._close()
            self._at = None
        self._host, self._host_by = host, by

    # -- content ------------------------------------------------------------------------------------------------------

    def _content(self, number: int, line: str, lines: list[str], place: int) -> None:
        opened = self._opened(line, lines, place)
        if opened is not None:
            current = self._open
            banner = current is not None and current.tool is Tool.RAS_TEXT and len(current.lines) <= 3
            if current is not None and opened.tool is Tool.RAS_JSON and banner:
                current.tool = Tool.RAS_JSON  # the text's banner stands before some releases' JSON
            elif current is None or current.tool is not opened.tool or self._again(opened):
                self._start(opened.tool, number)
            self._keys.add(opened.key)
            self._append(number, line)
            if self._in_json():
                self._depth = _Depth()
                if self._depth.closed_by(line):
                    self._close()
            return
        tool = self._open.tool if self._open is not None else None
        if (tool is Tool.JOURNAL and line and not _EXPORT.match(line)) or (
            tool is not None and tool is not Tool.JOURNAL and _is_log(line)
        ):
            self._close()
        self._append(number, line)

    def _opened(self, line: str, lines: list[str], place: int) -> Opened | None:
        if line.lstrip()[:1] in ("{", "["):
            window = "\n".join(lines[place : place + _WINDOW_LINES])[:_WINDOW_CHARS]
            if '"__REALTIME_TIMESTAMP"' not in line and (tool := json_tool(window)) is not None:
                return Opened(tool, "json")
        return opened_by(line)

    def _again(self, opened: Opened) -> bool:
        """The same thing a second time: the tool was run again. Parts without a key of their own never say so."""
        return bool(opened.key) and opened.key in self._keys

    def _in_json(self) -> bool:
        return self._open is not None and self._open.tool in (Tool.RAS_JSON, Tool.LLDPCTL_JSON, Tool.RDMA_JSON)

    def _start(self, tool: Tool | None, number: int) -> None:
        self._close()
        if len(self.sections) >= SECTIONS_MAX:  # all the rest is one section, which no tool printed
            self._open = self.sections[-1]
            return
        tool = None if len(self.sections) == SECTIONS_MAX - 1 else tool
        self._open = Section(tool, number, [], self._host, self._host_by, self._at, self._command)
        self.sections.append(self._open)

    def _append(self, number: int, line: str) -> None:
        if self._open is None:
            self._start(None, number)
        assert self._open is not None
        self._open.lines.append(line)

    def _close(self) -> None:
        self._open = None
        self._keys = set()


class _Depth:
    """How deep in braces and brackets a JSON text stands, strings left out. Wrong commas do not matter."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False

    def closed_by(self, line: str) -> bool:
        escaped = False
        for letter in line:
            if self._in_string:
                if not escaped and letter == '"':
                    self._in_string = False
                escaped = letter == "\\" and not escaped
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
        self._in_string = False  # no string goes on over a line's end
        return self._depth <= 0


def _is_log(line: str) -> bool:
    """A line of a log: dated and with more behind the date, or with words that only logs have."""
    if _LOG.match(line):
        return True
    stamp = split(line.lstrip())
    return stamp.dated and bool(stamp.text.strip()) and not stamp.text.lstrip().startswith(("|", ":"))


def log_lines(section: Section) -> Iterator[str]:
    """The lines of the rest as a log reader wants them: without the indentation of a quoted block."""
    for line in section.lines:
        stripped = line.lstrip()
        yield stripped if stripped is not line and split(stripped).dated else line


# -- times -----------------------------------------------------------------------------------------------------------

_MONTHS = {
    name: n for n, name in enumerate(["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"], 1)
}


def moment_of(text: str) -> datetime | None:
    """A line that is a date and nothing else (`date`, the line above nvidia-smi's table, ISO 8601). Other zones than UTC by
    name cannot be told and are taken for UTC."""
    if (match := _DATE.match(text)) is not None:
        hours, minutes, seconds = (int(part) for part in match["clock"].split(":"))
        if match["half"]:
            hours = hours % 12 + (12 if match["half"] == "PM" else 0)
        try:
            return datetime(
                int(match["year"]), _MONTHS.get(match["mon"], 0), int(match["day"]), hours, minutes, seconds, tzinfo=UTC
            )
        except ValueError:
            return None
    if (match := _ISO.fullmatch(text.strip())) is not None:
        try:
            return datetime.fromisoformat(match["iso"] + (match["zone"] or "Z")).astimezone(UTC)
        except (ValueError, OverflowError):
            return None
    return None
