"""Flight-recorder files from a folder: which rank each belongs to, and when it was taken.

The file's name says the rank, unless the groups inside prove another one: the ranks that are in all of a recorder's
groups are often just one. A launcher that numbers the ranks of each host anew makes several files with one number;
where the groups do not tell them apart they are left out, with a warning, since half of them would speak for somebody
else.

A recorder without entries has no time in it; it was taken when the others of its folder were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from goodput_collector.application.small_file import read_small
from goodput_common import flight_recorder
from goodput_common.contracts.job import FlightRecorderDump


class DumpFile(NamedTuple):
    path: Path
    modified: datetime


@dataclass(slots=True)
class Settled:
    dumps: list[FlightRecorderDump] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)


class _Candidate(NamedTuple):
    dump: FlightRecorderDump
    folder: Path
    timed: bool
    proven: bool
    modified: datetime


def settle(files: list[DumpFile], *, fabric: str, job: str, host: str) -> Settled:
    """Read them all, decide whose each is. Nothing raises: what cannot be read is a warning that names the file."""
    settled = Settled()
    candidates: dict[int, list[_Candidate]] = {}
    for file in files:
        try:
            candidate = _read(file, fabric=fabric, job=job, host=host)
        except (OSError, flight_recorder.UnreadableDump) as error:
            reason = error.reason if isinstance(error, flight_recorder.UnreadableDump) else error.strerror or str(error)
            settled.warnings.append(f"{file.path}: flight recorder cannot be read: {reason}")
            settled.unreadable.append((str(file.path), reason))
            continue
        candidates.setdefault(candidate.dump.rank, []).append(candidate)
    kept = [each for rank in sorted(candidates) for each in _one(candidates[rank], settled)]
    settled.dumps = _dated(kept)
    return settled


def _read(file: DumpFile, *, fabric: str, job: str, host: str) -> _Candidate:
    origin = str(file.path)
    if file.path.stat().st_size > flight_recorder.DUMP_BYTES_MAX:
        raise flight_recorder.UnreadableDump("too large for a flight recorder", origin=origin)
    raw = flight_recorder.parse(read_small(file.path, bytes_max=flight_recorder.DUMP_BYTES_MAX), origin=origin)
    named = flight_recorder.rank_from_name(file.path.name)
    own = flight_recorder.own_ranks(raw)
    if len(own) == 1:
        rank = own[0]
    elif named is not None:
        rank = named.rank
    else:
        raise flight_recorder.UnreadableDump("neither its name nor its groups say whose it is", origin=origin)
    at = flight_recorder.newest_time(raw)
    dump = flight_recorder.normalise(
        raw,
        fabric=fabric,
        job=job,
        rank=rank,
        host=(named.host if named is not None else "") or host,
        at=at or file.modified,
        origin=origin,
        reason="file",
    )
    return _Candidate(dump, file.path.parent, at is not None, len(own) == 1, file.modified)


def _one(same_rank: list[_Candidate], settled: Settled) -> list[_Candidate]:
    """The one to keep of those that claim one rank."""
    if len(same_rank) == 1:
        return same_rank
    names = ", ".join(each.dump.origin for each in same_rank)
    rank = same_rank[0].dump.rank
    proven = [each for each in same_rank if each.proven]
    if not proven and len({each.dump.host for each in same_rank}) > 1:
        settled.warnings.append(f"{names}: the number {rank} repeats across hosts and nothing says whose is whose; left out")
        return []
    newest = max(proven or same_rank, key=lambda each: (each.dump.at, each.modified, each.dump.origin))
    settled.warnings.append(f"{names}: several dumps of rank {rank}; the newest, {newest.dump.origin}, is used")
    return [newest]


def _dated(candidates: list[_Candidate]) -> list[FlightRecorderDump]:
    latest: dict[Path, datetime] = {}
    for each in candidates:
        if each.timed:
            latest[each.folder] = max(each.dump.at, latest.get(each.folder, each.dump.at))
    return [
        each.dump if each.timed or each.folder not in latest else msgspec.structs.replace(each.dump, at=latest[each.folder])
        for each in candidates
    ]
