"""The lines of one log file as bytes, handed to the parser that they are for; most lines are known to say nothing without
being decoded.

A system log may be text or a journal's export; its first line tells. Where lines are dated relative to the line before,
each has to be read for the time's sake.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from goodput_collector.domain.journal_export import JournalEntries
from goodput_collector.domain.kernel_log import NEEDLES as KERNEL_NEEDLES
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.nccl_log import NEEDLES as JOB_NEEDLES
from goodput_collector.domain.nccl_log import JobLogParser
from goodput_common.contracts.telemetry import Event

_EXPORT = (b"__CURSOR=", b"__REALTIME_TIMESTAMP=", b'{"__', b'{ "__')


class LogLines(Protocol):
    def feed(self, lines: Sequence[bytes]) -> Iterator[Event]:
        """The events of the next lines (without their newlines)."""


class KernelLines:
    def __init__(self, parser: KernelLogParser) -> None:
        self._parser = parser
        self._entries: JournalEntries | None = None
        self._relative = False

    def feed(self, lines: Sequence[bytes]) -> Iterator[Event]:
        if self._entries is None and any(line.startswith(_EXPORT) for line in lines[:64]):
            self._entries = JournalEntries()
        if self._entries is not None:
            for placed in self._entries.feed(b"\n".join(lines) + b"\n"):
                if (event := self._parser.see(placed)) is not None:
                    yield event
            return
        self._relative = self._relative or any(_is_relative(line) for line in lines[:64])
        for line in lines if self._relative else KERNEL_NEEDLES.lines_in(lines):
            if (event := self._parser.feed(line.decode("utf-8", "replace"))) is not None:
                yield event


class JobLines:
    def __init__(self, parser: JobLogParser) -> None:
        self._parser = parser

    def feed(self, lines: Sequence[bytes]) -> Iterator[Event]:
        for line in JOB_NEEDLES.lines_in(lines):
            if (event := self._parser.feed(line.decode("utf-8", "replace"))) is not None:
                yield event


def _is_relative(line: bytes) -> bool:
    return line[:1] == b"[" and line[1:12].lstrip()[:1] == b"+"
