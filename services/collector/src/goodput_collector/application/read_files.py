"""Everything that files say, without a server: what `goodput diagnose PATH...` runs on.

Any mix of files and folders. Each file is recognised by its content and read as a stream, so that a log of many
gigabytes takes little memory; of the lines only those are looked at that a parser could use. What cannot be recognised
is named, what is damaged becomes a warning that names the file, and neither stops the rest.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import NamedTuple

from goodput_collector.application.rdma_tree import FOLDERS, counters_of, ports_in, state_of
from goodput_collector.application.read_dumps import DumpFile, settle
from goodput_collector.application.read_logs import Limits, LogFile, LogReader
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.rdma_counters import describe
from goodput_collector.domain.recognise import HEAD_BYTES, Kind, Recognised, has_hosts, recognise
from goodput_common.contracts import ids
from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.contracts.telemetry import Event, Sample, Source, State

__all__ = ["UNKNOWN_HOST", "Found", "Limits", "Read", "read_path", "read_paths"]

UNKNOWN_HOST = "unknown-host"


class Found(NamedTuple):
    """One fact, with the host that it was seen on, the kind of source, and the file."""

    fact: Sample | FlightRecorderDump
    host: str
    source: Source
    origin: str

    @property
    def at(self) -> datetime:
        """When it was seen, by its host's clock."""
        return self.fact.at if isinstance(self.fact, FlightRecorderDump) else self.fact.observed_at


@dataclass(slots=True)
class Read:
    """What came of it. `recognised` is (path, kind), `unrecognised` (path, why)."""

    facts: list[Found] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    recognised: list[tuple[str, Kind]] = field(default_factory=list)
    unrecognised: list[tuple[str, str]] = field(default_factory=list)


def read_paths(
    paths: Sequence[Path | str],
    *,
    host: str = "",
    fabric: str = "default",
    job: str = "job",
    reference_time: datetime | None = None,
    zone: tzinfo = UTC,
    limits: Limits | None = None,
) -> Read:
    """Read all of it. `host` names lines that do not name their host; `reference_time` is when the logs were collected
    (default: each file's own time). Raises nothing for what a file holds."""
    limits = limits or Limits()
    read = Read()
    files, dumps = [], list[DumpFile]()
    for path in _expand([Path(each) for each in paths], read, limits):
        if _is_rdma_tree(path):
            read.recognised.append((str(path), Kind.RDMA_TREE))
            read.facts += _tree(path, host or UNKNOWN_HOST, reference_time, read)
        elif (file := _look(path, read)) is not None:
            files.append(file)
    hostless = {file.path for file in files if file.kind is Kind.KERNEL_LOG and not has_hosts(file.head)}
    for file in files:
        if file.kind is Kind.FLIGHT_RECORDER:
            dumps.append(DumpFile(file.path, file.modified))
            continue
        assumed = host or (file.path.stem if len(hostless) > 1 and file.path in hostless else UNKNOWN_HOST)
        reader = LogReader(file, host=assumed, job=job, reference=reference_time or file.modified, zone=zone)
        _keep(reader.read(limits, read.warnings), file, read, limits)
    if len(hostless) > 1 and not host:
        read.warnings.append("several logs do not name their host: each is taken for a host of its own, named like its file")
    settled = settle(dumps, fabric=fabric, job=job, host=host)
    read.warnings += settled.warnings
    read.unrecognised += settled.unreadable
    read.facts += [Found(dump, dump.host, Source.FLIGHT_RECORDER, dump.origin) for dump in settled.dumps]
    return read


def read_path(
    path: Path | str, *, host: str = "", reference_time: datetime | None = None, limits: Limits | None = None
) -> Read:
    """`read_paths` of one."""
    return read_paths([path], host=host, reference_time=reference_time, limits=limits)


# -- which files ----------------------------------------------------------------------------------------------------


def _expand(paths: Iterable[Path], read: Read, limits: Limits) -> Iterator[Path]:
    """Files, and folders that are one thing (a tree of RDMA devices); other folders are walked."""
    left = limits.files
    for path in paths:
        if not path.exists():
            read.warnings.append(f"{path}: does not exist")
            read.unrecognised.append((str(path), "does not exist"))
            continue
        for each in _walk(path, read):
            if left == 0:
                read.warnings.append(f"more than {limits.files} files: the rest is not read")
                return
            left -= 1
            yield each


def _walk(path: Path, read: Read) -> Iterator[Path]:
    if path.is_file() or _is_rdma_tree(path):
        yield path
        return
    try:
        children = sorted(path.iterdir()) if path.is_dir() else []
    except OSError as error:
        read.warnings.append(f"{path}: {error.strerror or error}")
        return
    if not children:
        read.warnings.append(f"{path}: " + ("is an empty folder" if path.is_dir() else "is neither a file nor a folder"))
    for child in children:
        if child.name.startswith(".") or (child.is_symlink() and child.is_dir()):
            continue
        yield from _walk(child, read)


def _is_rdma_tree(path: Path) -> bool:
    """A folder of devices (`/sys/class/infiniband` or a copy)."""
    try:
        return path.is_dir() and any((child / "ports").is_dir() for child in path.iterdir())
    except OSError:
        return False


def _look(path: Path, read: Read) -> LogFile | None:
    try:
        status = path.stat()
        with path.open("rb") as raw:
            head = raw.read(HEAD_BYTES)
        recognised = recognise(head)
        zipped = recognised.kind is Kind.GZIP
        if zipped:
            with gzip.open(path) as unpacked:
                head = unpacked.read(HEAD_BYTES)
            recognised = recognise(head)
            if recognised.kind is Kind.FLIGHT_RECORDER:
                recognised = Recognised(Kind.UNKNOWN, "a compressed flight recorder: unpack it first")
    except (OSError, EOFError, zlib.error) as error:
        read.warnings.append(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}")
        read.unrecognised.append((str(path), "cannot be read"))
        return None
    if recognised.kind in (Kind.UNKNOWN, Kind.GZIP):
        read.unrecognised.append((str(path), recognised.why or recognised.kind))
        if recognised.why == "empty":
            read.warnings.append(f"{path}: is empty")
        return None
    if recognised.kind is not Kind.TEXT:
        read.recognised.append((str(path), recognised.kind))
    modified = datetime.fromtimestamp(status.st_mtime, UTC)
    return LogFile(path, recognised.kind, head, modified, status.st_size, zipped)


def _keep(events: Iterable[Event], file: LogFile, read: Read, limits: Limits) -> None:
    """Take the events of a log, folded; plain text that holds none is unrecognised after all."""
    folder = Folder(burst=16)
    found = 0

    def keep(told: Iterable[Event]) -> None:
        nonlocal found
        for event in told:
            found += 1
            if len(read.facts) < limits.facts:
                source = Source.JOB_LOG if event.name.startswith("nccl_") else Source.KERNEL_LOG
                read.facts.append(Found(event, _host_of(event), source, str(file.path)))

    for event in events:
        keep(folder.add(event))
    keep(folder.flush())
    if len(read.facts) >= limits.facts:
        read.warnings.append(f"{file.path}: more than {limits.facts} facts in all: the rest is left out")
    if file.kind is Kind.TEXT:
        if found:
            read.recognised.append((str(file.path), Kind.KERNEL_LOG))
        else:
            read.unrecognised.append((str(file.path), "text without a line that says anything about a fault"))


def _host_of(event: Event) -> str:
    return ids.host_of(event.component) or event.attrs.get("host", "")


# -- trees of RDMA devices ------------------------------------------------------------------------------------------


def _tree(path: Path, host: str, reference: datetime | None, read: Read) -> Iterator[Found]:
    """What each port is, and what its counters stand at. Without a second reading nothing says when they counted."""
    at = reference or datetime.fromtimestamp(path.stat().st_mtime, UTC)
    tell: Callable[[State], Found] = lambda state: Found(state, host, Source.RDMA, str(path))  # noqa: E731
    for port in ports_in(path, host):
        state = state_of(port, at)
        if state is None:
            read.warnings.append(f"{port.path}: has no readable state")
            continue
        yield tell(state)
        for folder in FOLDERS:
            for name, value in counters_of(port, folder)[0].items():
                if value == 0:
                    continue
                width = describe(name).width
                attrs = {"saturated": "true"} if width.saturates and value == width.ceiling else {}
                yield tell(
                    State(component=port.component, name=f"counter:{name}", observed_at=at, value=str(value), attrs=attrs)
                )
