"""The lines of one log file as bytes, handed to the parser that they are for; most lines are known to say nothing without
being decoded.

A system log may be text or a journal's export; its first line tells. Where lines are dated relative to the line before,
each has to be read for the time's sake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from goodput_collector.domain.journal_export import JournalEntries
from goodput_collector.domain.kernel_log import NEEDLES as KERNEL_NEEDLES
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.nccl_log import NEEDLES as JOB_NEEDLES
from goodput_collector.domain.nccl_log import JobLogParser
from goodput_common.contracts.telemetry import Event


class LogLines(Protocol):
    def feed(self, line: bytes) -> Iterable[Event]:
        """The events of one line (without its newline)."""


class KernelLines:
    def __init__(self, parser: KernelLogParser) -> None:
        self._parser = parser
        self._entries: JournalEntries | None = None
        self._relative = False

    def feed(self, line: bytes) -> list[Event]:
        if self._entries is None and line.startswith((b"__CURSOR=", b"__REALTIME_TIMESTAMP=", b'{"__', b'{ "__')):
            self._entries = JournalEntries()
        if self._entries is not None:
            events = (self._parser.see(placed) for placed in self._entries.feed(line + b"\n"))
            return [event for event in events if event is not None]
        if not self._relative and line[:1] == b"[" and line[1:12].lstrip()[:1] == b"+":
            self._relative = True
        if not self._relative and not KERNEL_NEEDLES.found_in(line):
            return []
        event = self._parser.feed(line.decode("utf-8", "replace"))
        return [] if event is None else [event]


class JobLines:
    def __init__(self, parser: JobLogParser) -> None:
        self._parser = parser

    def feed(self, line: bytes) -> list[Event]:
        if not JOB_NEEDLES.found_in(line):
            return []
        event = self._parser.feed(line.decode("utf-8", "replace"))
        return [] if event is None else [event]
