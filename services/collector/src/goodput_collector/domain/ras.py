"""What NCCL's own status service (RAS) answers: who takes part in which communicator, how far each has come, who is missing.

The text is made for people and was changed from release to release:

    #0-0 (78db921d1c117b4a) MISMATCH
      Communicator ranks have different AllReduce operation counts
      7 ranks have launched up to operation 64
      Rank 77 has launched up to operation 60 -- GPU 1 managed by process 4242 on node 10.0.0.5

Releases before 2.26 count all operations in one. Of a group that is small its members are listed below its line; such an
outlier may as well be the ranks *ahead*. A communicator whose ranks all agree is not named at all. JSON (since 2.28.7)
names everybody with every count; some releases and forks write it with commas missing or too many, or put the text's
banner before it.

Ranks are those of the communicator, which are the job's only where all of the job is in it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

POINT_TO_POINT = frozenset({"Send", "Recv", "SendRecv"})
"""What ranks of a communicator do in different numbers, and rightly."""
ANY_OPERATION = "any"
_RANKS_MAX = 100_000


class Malformed(Exception):
    """Not JSON, and not to be mended."""


class RasRank(NamedTuple):
    rank: int
    pid: int  # -1: not known
    node: str
    gpu: int  # -1: not known


class Missing(NamedTuple):
    """A process that did not answer. `state` is `incomplete` (no answer this time) or `dead` (given up for good)."""

    pid: int
    node: str
    gpus: str
    state: str


@dataclass(slots=True)
class Communicator:
    """`counts`: operation -> number -> how many ranks have launched so many. `at` names those of them that are known."""

    hash: str
    size: int = 0
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    at: dict[str, dict[int, list[RasRank]]] = field(default_factory=dict)
    missing: list[RasRank] = field(default_factory=list)
    errors: set[str] = field(default_factory=set)  # MISMATCH, INCOMPLETE, ERROR

    def add(self, operation: str, count: int, ranks: int, known: RasRank | None = None) -> None:
        numbers = self.counts.setdefault(operation, {})
        numbers[count] = numbers.get(count, 0) + ranks
        if known is not None:
            self.at.setdefault(operation, {}).setdefault(count, []).append(known)

    @property
    def differs(self) -> bool:
        """Have some of its ranks launched a collective that others have not?"""
        return any(len(numbers) > 1 for name, numbers in self.counts.items() if name not in POINT_TO_POINT)


@dataclass(slots=True)
class RasReport:
    """`complete`: the answer came to its end. `understood` and `lines` say how much of the text made sense."""

    communicators: list[Communicator] = field(default_factory=list)
    processes: list[Missing] = field(default_factory=list)
    version: str = ""
    timeouts: int = 0
    complete: bool = False
    names_all: bool = False  # every communicator is in it
    lines: int = 0
    understood: int = 0


# -- text ------------------------------------------------------------------------------------------------------------

_VERSION = re.compile(r"^(?:NCCL|RCCL) version (\S+)")
_HASH = re.compile(r"^#\d+-\d+ \((?P<hash>[0-9a-fA-F]{1,16})\) (?P<error>[A-Z]+)\s*$")
_WHO = r"GPUs? (?P<gpu>-?\d+)(?: \(NVML \d+\))? managed by process (?P<pid>\d+) on node (?P<node>\S+)"
_MANY = re.compile(r"^\s*(?P<ranks>\d+) ranks have (?:launched up to operation (?P<count>\d+)|not launched any operations)")
_ONE = re.compile(
    r"^\s*Rank (?P<rank>\d+) has (?:launched up to operation (?P<count>\d+)|not launched any operations)"
    rf"(?: -- (?:{_WHO})?.*)?$"
)
_LISTED = re.compile(rf"^\s*Rank (?P<rank>\d+) -- (?:{_WHO})?")
_DIFFERENT = re.compile(r"^\s*Communicator ranks have different (?:(?P<operation>\w+) operation counts|(?P<status>status))")
_MISSING_RANKS = re.compile(r"^\s*Missing communicator data from (?P<count>\d+) rank")
_NUMBERS = re.compile(r"^\s*The missing ranks?: (?P<ranks>[\d, ]+)$")
_PROCESS = re.compile(r"^\s*Process (?P<pid>\d+) on node (?P<node>\S+) managing GPUs? (?P<gpus>[\d,]+)")
_TIMEOUTS = re.compile(r"^\s*Encountered (?P<count>\d+) communication timeout")
_KNOWN_TO_SAY_NOTHING = re.compile(
    r"^\s*$|^[=\s]+$|^\s*(?:Job summary|Communicators\.\.\.|Group |#  in group|Nodes |\(total\)|per node|Processes "
    r"|Errors|Warnings"
    r"|CUDA |HIP |No communicator data|The outlier|Node \S+ running|\d+ job process|Missing communicator data from \d+ job"
    r"|\d+ ranks? (?:have status|reported)|Rank \d+ (?:has status|reported)|(?:Initialization|Asynchronous) error"
    r"|\[could not find|\d[\d\s-]*(?:[A-Z]+\s+[A-Z,]+)?$|INCOMPLETE$|DEAD$|TIMEOUT$|per process)"
)


def parse_text(text: str) -> RasReport:
    """Whatever can be made of it. A report that stops in the middle is not `complete`: it has no warnings section."""
    report, reader = RasReport(), _TextReader()
    for line in text.splitlines():
        report.lines += 1
        if reader.line(line, report) or _KNOWN_TO_SAY_NOTHING.match(line):
            report.understood += 1
    report.communicators = list(reader.communicators.values())
    for each in report.communicators:  # the table above names sizes, but not whose
        each.size = max((sum(numbers.values()) for numbers in each.counts.values()), default=0) + len(each.missing)
    report.complete = reader.section == "Warnings" and text.endswith("\n")
    return report


class _TextReader:
    def __init__(self) -> None:
        self.section = ""
        self.communicators: dict[str, Communicator] = {}
        self._in: Communicator | None = None
        self._kind = ""  # the heading that the lines below belong to
        self._operation = ""
        self._count: int | None = None

    def line(self, line: str, report: RasReport) -> bool:
        if line in ("Errors", "Warnings"):
            self.section, self._in, self._kind = line, None, ""
            return True
        if (match := _VERSION.match(line)) is not None:
            report.version = match[1]
            return True
        if (match := _HASH.match(line)) is not None:
            found = self.communicators.setdefault(match["hash"].lower(), Communicator(match["hash"].lower()))
            found.errors.add(match["error"])
            self._in, self._kind, self._operation, self._count = found, match["error"], "", None
            return True
        if line in ("INCOMPLETE", "DEAD", "TIMEOUT"):
            self._in, self._kind = None, line
            return True
        if (match := _TIMEOUTS.match(line)) is not None:
            report.timeouts = int(match["count"][:9])
            return True
        if (match := _PROCESS.match(line)) is not None:
            state = "dead" if self._kind == "DEAD" else "incomplete"
            report.processes.append(Missing(_int(match["pid"]), match["node"], match["gpus"], state))
            return True
        return self._in is not None and self._of_communicator(line, self._in)

    def _of_communicator(self, line: str, found: Communicator) -> bool:
        if (match := _DIFFERENT.match(line)) is not None:
            operation = "" if match["status"] else match["operation"]
            self._operation, self._count = (ANY_OPERATION if operation == "collective" else operation), None
            return True
        if (match := _MANY.match(line)) is not None and self._operation:
            self._count = _int(match["count"] or "0")
            found.add(self._operation, self._count, min(_int(match["ranks"]), _RANKS_MAX))
            return True
        if (match := _ONE.match(line)) is not None and self._operation:
            self._count = None
            found.add(self._operation, _int(match["count"] or "0"), 1, _who(match))
            return True
        if _MISSING_RANKS.match(line) is not None:
            return True
        if (match := _NUMBERS.match(line)) is not None:
            numbers = [number.strip() for number in match["ranks"].split(",")]
            found.missing += [RasRank(_int(number), -1, "", -1) for number in numbers if number.isdigit()]
            return True
        if (match := _LISTED.match(line)) is not None:
            if self._kind == "INCOMPLETE":
                found.missing.append(_who(match))
            elif self._operation and self._count is not None:
                found.at.setdefault(self._operation, {}).setdefault(self._count, []).append(_who(match))
            return True
        return False


def _who(match: re.Match[str]) -> RasRank:
    pid, node, gpu = match["pid"], match["node"], match["gpu"]
    return RasRank(_int(match["rank"]), _int(pid or "-1"), node or "", _int(gpu or "-1"))


def _int(text: str) -> int:
    return int(text[:18])


# -- JSON ------------------------------------------------------------------------------------------------------------

_TOO_MANY = re.compile(r",(\s*[}\]])")
_TOO_FEW = re.compile(r'([}\]"\d]|true|false|null)(\s*\n\s*)(?=["{\[])')


def parse_json(text: str) -> RasReport:
    """Raises Malformed."""
    start = text.find("{")
    if start < 0:
        raise Malformed("there is no object in it")
    body = text[start:]
    for mended in (body, _TOO_FEW.sub(r"\1,\2", _TOO_MANY.sub(r"\1", body))):
        try:
            document = msgspec.json.decode(mended.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError) as error:
            why = str(error)
            continue
        if not isinstance(document, dict):
            raise Malformed("it is no object")
        return _report(document)
    raise Malformed(why)


def _report(document: dict[str, Any]) -> RasReport:
    report = RasReport(complete="ras" in document, names_all=True, version=_word(document.get("nccl_version")))
    ras = document.get("ras")
    if isinstance(ras, dict):
        report.timeouts = _number(ras.get("timeouts_count"), 0)
    for each in _objects(document.get("communicators")):
        found = Communicator(_word(each.get("hash")).removeprefix("0x").lower(), size=_number(each.get("size"), 0))
        for rank in _objects(each.get("ranks")):
            counts = rank.get("collective_counts")
            for operation, count in counts.items() if isinstance(counts, dict) else ():
                if isinstance(operation, str):
                    found.add(operation, _number(count, 0), 1, _rank(rank))
            status = rank.get("status")
            if isinstance(status, dict) and (_bad(status.get("init_state")) or _bad(status.get("async_error"))):
                found.errors.add("ERROR")
        for rank in _objects(each.get("missing_ranks")):
            _missing(rank, found, report)
        if found.differs:
            found.errors.add("MISMATCH")
        report.communicators.append(found)
    report.processes = list(dict.fromkeys(report.processes))
    return report


def _missing(rank: dict[str, Any], found: Communicator, report: RasReport) -> None:
    status = rank.get("status")
    status = status if isinstance(status, dict) else {}
    who = _rank(rank)
    if status.get("unresponsive") is True or status.get("considered_dead") is True:
        found.missing.append(who)
        found.errors.add("INCOMPLETE")
        state = "dead" if status.get("considered_dead") is True else "incomplete"
        report.processes.append(Missing(who.pid, who.node, str(who.gpu), state))


def _bad(state: Any) -> bool:
    """An NCCL result other than success (0) and in progress (7)."""
    return isinstance(state, int) and state not in (0, 7)


def _rank(rank: dict[str, Any]) -> RasRank:
    return RasRank(
        _number(rank.get("rank"), -1),
        _number(rank.get("pid"), -1),
        _word(rank.get("host")),
        _number(rank.get("cuda_dev"), -1),
    )


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value[:_RANKS_MAX] if isinstance(each, dict)] if isinstance(value, list) else []


def _number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63 else default


def _word(value: Any) -> str:
    return value[:64] if isinstance(value, str) else ""
