"""From paths to facts: unpack, recognise, find out hosts and times, read, join. The one place that knows the order."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from goodput_cli.diagnose import placement
from goodput_cli.diagnose.fabric import infer
from goodput_cli.diagnose.facts import Facts
from goodput_cli.diagnose.files import TEXT_BYTES_MAX, File, is_hostname_file, look, pass_over_lines, taken_at, write_rest
from goodput_cli.diagnose.hosts import Named, assign
from goodput_cli.diagnose.known import gather
from goodput_cli.diagnose.placed import Placed
from goodput_cli.diagnose.placement import Ranks
from goodput_cli.diagnose.readings import Counts, Taken
from goodput_cli.diagnose.unpack import Bounds, Unpacker
from goodput_collector.application.rdma_tree import FOLDERS, counters_of, ports_in, state_of
from goodput_collector.application.read_files import UNKNOWN_HOST, Found, Read, read_paths
from goodput_collector.domain.rdma_counters import describe
from goodput_collector.domain.recognise import Kind, has_hosts
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.job import FlightRecorderDump, RankRegistered
from goodput_common.contracts.telemetry import Source
from goodput_topology.graph import Fabric

JOB = "job"
LOG_WORDS = {Kind.KERNEL_LOG: "kernel log", Kind.JOURNAL_EXPORT: "journal", Kind.JOB_LOG: "job log", Kind.TEXT: "log"}


@dataclass(slots=True)
class Gathered:
    """`notes` are what a reader should know of what was read; `warnings` what went wrong in reading it."""

    files: list[File] = field(default_factory=list)
    facts: list[Found] = field(default_factory=list)
    ranks: list[RankRegistered] = field(default_factory=list)
    ranks_by: str = ""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    read_once: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    asked_ras_once: bool = False
    fabric: Fabric = field(default_factory=lambda: Fabric.empty("files"))

    @property
    def dumps(self) -> list[FlightRecorderDump]:
        return [each.fact for each in self.facts if isinstance(each.fact, FlightRecorderDump)]

    @property
    def unrecognised(self) -> list[tuple[str, str]]:
        return [(file.item.name, file.why) for file in self.files if file.why]


def gather_paths(
    paths: Sequence[Path],
    folder: Path,
    *,
    host: str = "",
    reference: datetime | None = None,
    ranks: Ranks | None = None,
    bounds: Bounds | None = None,
) -> Gathered:
    """Read all of it. `folder` is empty and takes what is unpacked; it may go when this is done."""
    unpacker = Unpacker(folder, bounds or Bounds())
    gathered = Gathered(files=[look(item) for item in unpacker.items(list(paths))])
    gathered.warnings += unpacker.warnings
    for file in gathered.files:
        if file.why == "empty":
            gathered.warnings.append(f"{file.item.name}: is empty")
        elif file.why.startswith("cannot be read"):
            gathered.warnings.append(f"{file.item.name}: {file.why}")
        elif file.too_large:
            most = f"{TEXT_BYTES_MAX >> 20} MiB"
            gathered.warnings.append(
                f"{file.item.name}: larger than {most}: read as a log, not searched for the output of tools"
            )
    hosts = _hosts(gathered.files, host)
    placed = _placed(gathered.files, hosts, reference)
    _logs(gathered, hosts, unpacker, folder, host, reference)
    _dumps(gathered, unpacker, host, reference)
    _join(gathered, placed, ranks or Ranks(), hosts, reference)
    gathered.warnings = list(dict.fromkeys(unpacker.display(each) for each in gathered.warnings))
    return gathered


# -- hosts and times -------------------------------------------------------------------------------------------------


def _hosts(files: list[File], given: str) -> dict[str, Named]:
    """A host by each file's hint, for whatever in it names none."""
    inside = {file.item.hint: file.named for file in files if file.named}
    alone = {file.item.hint: Named(next(iter(file.named)), "what stands in it") for file in files if len(file.named) == 1}
    others = [file.item.hint for file in files if file.item.hint not in alone and not file.is_dump]
    found = assign(others, inside, given) | (alone if not given else dict(alone.items()))
    for file in files:
        if (named := found.get(file.item.hint)) is not None and not file.is_dump:
            file.host, file.host_by = named
    return found


def _placed(files: list[File], hosts: dict[str, Named], reference: datetime | None) -> list[Placed]:
    """All reports in order of time."""
    placed: list[Placed] = []
    for file in files:
        named = hosts.get(file.item.hint, Named(UNKNOWN_HOST, ""))
        for report in file.reports:
            section = report.section
            query = report.content.query
            at, exact = taken_at(file, section, reference, query.timestamp if query is not None else "")
            by = section.host_by if section.host else named.by
            placed.append(Placed(report, section.host or named.host, by, Taken(at, exact, len(placed))))
    return sorted(placed, key=lambda each: (each.taken.at, each.taken.order))


# -- logs and recorders ----------------------------------------------------------------------------------------------


def _logs(
    gathered: Gathered, hosts: dict[str, Named], unpacker: Unpacker, folder: Path, host: str, reference: datetime | None
) -> None:
    hostless = [file for file in gathered.files if _is_hostless(file) and file.item.hint not in hosts]
    for number, file in enumerate(gathered.files):
        if file.is_log:
            named = hosts.get(file.item.hint)
            assumed = named.host if named else file.item.path.stem if len(hostless) > 1 and file in hostless else ""
            _log(gathered, unpacker, file, file.item.path, assumed, reference)
            if not file.why:
                pass_over_lines(file)
        elif file.is_mixed:
            place = folder / f"rest-{number}"
            place.mkdir()
            for path, own in write_rest(file, hosts, place):
                unpacker.names[str(path)] = file.item.name
                _log(gathered, unpacker, file, path, own or host, reference or file.modified)
            file.kinds += _kinds_of(file)
    if len(hostless) > 1:
        gathered.warnings.append(
            "several logs do not name their host: each is taken for a host of its own, named like its file"
        )


def _is_hostless(file: File) -> bool:
    is_kernel = file.recognised is not None and file.recognised.kind is Kind.KERNEL_LOG
    return file.is_log and is_kernel and not has_hosts(file.text.encode("utf-8", "replace")[:65536])


def _log(gathered: Gathered, unpacker: Unpacker, file: File, path: Path, host: str, reference: datetime | None) -> None:
    read = read_paths([path], host=host, job=JOB, reference_time=reference)
    facts = _renamed(read, unpacker)
    gathered.facts += facts
    gathered.warnings += [each for each in read.warnings if not (file.is_mixed and "dated since boot" not in each)]
    file.facts += len(facts)
    if file.is_mixed:
        return
    if read.unrecognised and not facts and len(file.named) == 1 and is_hostname_file(file):
        file.kinds.append("host name")
    elif read.unrecognised and not facts:
        file.why = read.unrecognised[0][1]
        for line in file.text.splitlines():
            file.not_understood.note(line)
    else:
        kind = read.recognised[0][1] if read.recognised else Kind.TEXT
        file.kinds.append(LOG_WORDS.get(kind, kind.value))


def _kinds_of(file: File) -> list[str]:
    tally = Tally(report.tool.value for report in file.reports)
    kinds = [tool if count == 1 else f"{count} x {tool}" for tool, count in tally.items()]
    if file.facts or any(section.tool is not None for section in file.rest) or file.passed_over.count:
        kinds.append("log lines")
    if not kinds:
        file.why = "text without a line that says anything about a fault"
    return kinds


def _renamed(read: Read, unpacker: Unpacker) -> list[Found]:
    return [each._replace(origin=unpacker.display(each.origin)) for each in read.facts]


def _dumps(gathered: Gathered, unpacker: Unpacker, host: str, reference: datetime | None) -> None:
    """All in one go: which rank a recorder is of shows only beside the others."""
    files = {str(file.item.path): file for file in gathered.files if file.is_dump}
    if not files:
        return
    read = read_paths([Path(path) for path in files], host=host, job=JOB, reference_time=reference)
    gathered.warnings += read.warnings
    for path, why in read.unrecognised:
        if path in files:
            files[path].why = why
            files[path].kinds.clear()
    for found in read.facts:
        if found.origin in files:
            files[found.origin].facts += 1
    gathered.facts += _renamed(read, unpacker)


# -- joining ---------------------------------------------------------------------------------------------------------


def _join(
    gathered: Gathered, placed: list[Placed], given: Ranks, hosts: dict[str, Named], reference: datetime | None
) -> None:
    known = gather(placed)
    texts = (file.text for file in gathered.files if "NCCL INFO" in file.text)
    reports = (each.report.content.ras for each in placed if each.report.content.ras is not None)
    ranks = placement.strongest(given, placement.from_nccl(texts), placement.from_ras(reports))
    newest = max((each.at for each in gathered.facts), default=reference)
    first = min((each.at for each in gathered.facts), default=newest)
    if ranks.places and (first or placed):
        at = first or placed[0].taken.at
        gathered.ranks = ranks.registered(JOB, "default", at)
        gathered.ranks_by = ranks.by
    facts = Facts(known, JOB, gathered.ranks)
    for each in placed:
        facts.see(each)
    _trees(gathered, facts, hosts, reference)
    gathered.facts += facts.told()
    gathered.notes += facts.notes
    gathered.read_once = facts.readings.read_once()
    gathered.missing = sorted(known.missing)
    gathered.asked_ras_once = facts.asked_ras_once
    for file in gathered.files:
        file.facts += sum(report.facts for report in file.reports)
    gathered.fabric = infer(placed, known, UNKNOWN_HOST, gathered.notes)
    gathered.read_once = sorted({gathered.fabric.canonical(each) for each in gathered.read_once})
    if links := sum(1 for _ in gathered.fabric.of_kind(ComponentKind.LINK)):
        hosts_told = len(gathered.fabric.hosts())
        gathered.notes.append(f"the fabric is taken from these files: {hosts_told} hosts and {links} links of it are known")


def _trees(gathered: Gathered, facts: Facts, hosts: dict[str, Named], reference: datetime | None) -> None:
    for file in gathered.files:
        if not file.item.is_tree or file.why:
            continue
        host = hosts.get(file.item.hint, Named(UNKNOWN_HOST, "")).host
        at, exact = taken_at(file, None, reference)
        for port in ports_in(file.item.path, host):
            state = state_of(port, at)
            if state is None:
                gathered.warnings.append(f"{port.path}: has no readable state")
                continue
            gathered.facts.append(Found(state, host, Source.RDMA, file.item.name))
            values: dict[str, int] = {}
            for folder in FOLDERS:
                values |= counters_of(port, folder)[0]
            widths = {name: describe(name).width for name in values}
            counts = Counts(values, widths, Taken(at, exact, len(gathered.facts)), file.item.name)
            facts.readings.add(port.component, host, Source.RDMA, "sysfs", counts)
            file.facts += 1 + len(values)
