"""Streams one log file: chunk by chunk, and of each chunk only the lines that a parser could use.

A log of many gigabytes takes little memory and not much time: a search over the bytes finds the few lines that matter,
and only those are decoded, dated and parsed. Where lines are dated relative to the line before, none may be skipped.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from goodput_collector.domain import kernel_log, nccl_log
from goodput_collector.domain.journal_export import JournalEntries
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.nccl_log import JobLogParser, rank_of_log
from goodput_collector.domain.recognise import HEAD_BYTES, Kind, needs_every_line
from goodput_collector.domain.timestamps import LineClock, split
from goodput_common.contracts.telemetry import Event

CHUNK_BYTES = 1 << 20
LINE_BYTES = 64 * 1024
LOOK_BACK_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is read at most. Of a longer log the end is read, and a warning says so."""

    log_bytes: int = 4 << 30
    files: int = 20_000
    facts: int = 200_000


class LogFile(NamedTuple):
    path: Path
    kind: Kind
    head: bytes
    modified: datetime
    size: int
    zipped: bool = False


class LogReader:
    """Streams one log: chunk by chunk, and of each chunk only the lines that a parser could use."""

    def __init__(self, file: LogFile, *, host: str, job: str, reference: datetime, zone: tzinfo) -> None:
        self._file = file
        boot_at, self._estimated = _boot_at(file, reference)
        self._clock = LineClock(reference=reference, boot_at=boot_at, zone=zone)
        self._kernel = KernelLogParser(host=host, clock=self._clock, reference=reference)
        self._job = JobLogParser(
            host=host, clock=self._clock, job=job, rank=rank_of_log(file.path.name), reference=reference
        )
        self._entries = JournalEntries() if file.kind is Kind.JOURNAL_EXPORT else None
        self._every_line = self._entries is not None or needs_every_line(file.head)

    def read(self, limits: Limits, warnings: list[str]) -> Iterator[Event]:
        if self._estimated:
            warnings.append(
                f"{self._file.path}: dated since boot only; its last line is taken to be from when the file was last written"
            )
        try:
            with self._open() as stream:
                if not self._file.zipped and self._file.size > limits.log_bytes:
                    stream.seek(self._file.size - limits.log_bytes)
                    warnings.append(f"{self._file.path}: only its last {limits.log_bytes} bytes are read")
                yield from self._stream(stream, limits.log_bytes)
        except (OSError, EOFError, zlib.error) as error:
            warnings.append(f"{self._file.path}: stops in the middle: {getattr(error, 'strerror', None) or error}")

    def _open(self) -> BinaryIO:
        return cast("BinaryIO", gzip.open(self._file.path)) if self._file.zipped else self._file.path.open("rb")

    def _stream(self, stream: BinaryIO, bytes_max: int) -> Iterator[Event]:
        rest, left = b"", bytes_max
        while left > 0 and (chunk := stream.read(min(CHUNK_BYTES, left))):
            left -= len(chunk)
            whole, newline, rest_after = (rest + chunk).rpartition(b"\n")
            if not newline:
                rest = (rest + chunk)[:LINE_BYTES]
                continue
            rest = rest_after
            yield from self._chunk(whole)
        if rest:
            yield from self._chunk(rest)

    def _chunk(self, chunk: bytes) -> Iterator[Event]:
        if self._every_line:
            for line in chunk.split(b"\n"):
                yield from self._line(line)
            return
        end = 0
        for at in sorted({*kernel_log.NEEDLES.places_in(chunk), *nccl_log.NEEDLES.places_in(chunk)}):
            if at < end:
                continue  # in the line just read
            begin = chunk.rfind(b"\n", 0, at) + 1
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            yield from self._line(chunk[begin:end], chunk, begin)

    def _line(self, raw: bytes, chunk: bytes = b"", begin: int = 0) -> Iterator[Event]:
        if self._entries is not None:
            for entry in self._entries.feed(raw + b"\n"):
                yield from _some(self._kernel.see(entry))
            return
        line = raw[:LINE_BYTES].decode("utf-8", "replace")
        stamp = self._clock.split(line)
        if begin and not stamp.dated:
            self._set_clock(chunk, begin)
        placed = self._clock.put(stamp)
        if nccl_log.NEEDLES.found_in(raw):
            event = self._job.see(placed)
            if event is not None:
                yield event
                return
        yield from _some(self._kernel.see(placed))

    def _set_clock(self, chunk: bytes, begin: int) -> None:
        """Give the clock the nearest dated line before this one: a line without a stamp goes with it."""
        end = begin - 1
        for _ in range(LOOK_BACK_LINES):
            if end <= 0:
                return
            previous = chunk.rfind(b"\n", 0, end) + 1
            stamp = self._clock.split(chunk[previous:end][:400].decode("utf-8", "replace"))
            if stamp.dated:
                self._clock.put(stamp)
                return
            end = previous - 1


def _some(event: Event | None) -> tuple[Event, ...]:
    return () if event is None else (event,)


def _boot_at(file: LogFile, reference: datetime) -> tuple[datetime | None, bool]:
    """When the host was booted, for a log dated since boot: its last line is as old as the file. (at, guessed)"""
    stamps = [split(line) for line in file.head.decode("utf-8", "replace").splitlines()[:400]]
    if not any(stamp.uptime_s is not None for stamp in stamps) or any(stamp.at or stamp.yearless for stamp in stamps):
        return None, False
    tail = file.head
    if not file.zipped and file.size > HEAD_BYTES:
        with file.path.open("rb") as raw:
            raw.seek(file.size - HEAD_BYTES)
            tail = raw.read(HEAD_BYTES)
    uptimes = [stamp.uptime_s for stamp in map(split, tail.decode("utf-8", "replace").splitlines()) if stamp.uptime_s]
    return (reference - timedelta(seconds=uptimes[-1]), True) if uptimes else (None, False)
