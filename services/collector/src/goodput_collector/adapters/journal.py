"""The system journal, as `journalctl --follow` writes it out: for hosts on which /dev/kmsg may not be read, or where a
daemon's word on a link is wanted too.

journalctl runs as a child and is started again when it ends, from behind the entry whose events are in the spool: its
cursor is the bookmark. What it has to say about itself (no permission, no journal) becomes the reason.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Sequence
from functools import partial

from goodput_collector.adapters.bookmarks import Bookmarks
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.dedup import Folder
from goodput_collector.domain.journal_export import JournalEntries
from goodput_collector.domain.kernel_log import KernelLogParser
from goodput_collector.domain.line_counts import LineCounts
from goodput_collector.domain.timestamps import LineClock
from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import Sample, Source
from goodput_common.runtime.clock import Clock

CHUNK_BYTES = 256 * 1024
CHUNKS_PER_READ = 16
END_WAIT_S = 2.0
_STDERR_BYTES = 2000
_REMEDY = "put the collector's user into the group systemd-journal, or run it as root"
_MATCHES = ("_TRANSPORT=kernel", "+", "SYSLOG_IDENTIFIER=systemd-networkd", "+", "SYSLOG_IDENTIFIER=NetworkManager")
_MARK = "journal"


class JournalReader:
    """See `goodput_collector.application.ports.SourceReader`. `command` is how journalctl is called here."""

    source = Source.KERNEL_LOG
    instance = "journal"
    interval_s = 5.0
    deadline_s = 10.0

    def __init__(
        self,
        *,
        host: str,
        clock: Clock,
        bookmarks: Bookmarks,
        command: Sequence[str] = ("journalctl",),
        history_s: float = 600.0,
    ) -> None:
        self._command = tuple(command)
        self._clock = clock
        self._bookmarks = bookmarks
        self._history_s = history_s
        self._host = ids.host_id(host)
        self._parser = KernelLogParser(host=host, clock=LineClock())
        self._folder = Folder()
        self._counts = LineCounts(self._host, self.source)
        self._entries = JournalEntries()
        self._child: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._cursor = ""  # of the last entry read
        self._kept = ""  # of the last one whose events are in the spool

    def open(self) -> None:
        cursor = self._kept or self._bookmarks.text(_MARK) or ""
        if cursor != self._cursor:
            self._folder = Folder()
        self._cursor = cursor
        start = f"--after-cursor={cursor}" if cursor else f"--since=-{int(self._history_s)}s"
        options = ["--output=export", "--follow", "--no-tail", "--no-pager", "--quiet", start]
        options.append("--output-fields=MESSAGE,_HOSTNAME,SYSLOG_IDENTIFIER,_BOOT_ID")
        try:
            self._child = subprocess.Popen(
                [*self._command, *options, *_MATCHES],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
            )
        except FileNotFoundError:
            raise Absent(f"there is no {self._command[0]} here") from None
        except PermissionError as error:
            raise Unreadable(f"{self._command[0]}: {error.strerror}", remedy="see GOODPUT_JOURNALCTL") from None
        self._entries, self._said = JournalEntries(), b""
        for pipe in (self._child.stdout, self._child.stderr):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def wake_fd(self) -> int | None:
        return None if self._child is None or self._child.stdout is None else self._child.stdout.fileno()

    def read(self) -> Reading:
        if self._child is None or self._child.stdout is None:
            raise Unreadable("journalctl does not run")
        samples: list[Sample] = []
        ended = False
        for _ in range(CHUNKS_PER_READ):
            try:
                data = os.read(self._child.stdout.fileno(), CHUNK_BYTES)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            seen_before = self._entries.seen
            for placed in self._entries.feed(data):
                event = self._parser.see(placed)
                if event is not None:
                    self._counts.matched += 1
                    samples += self._folder.add(event)
            self._counts.seen += self._entries.seen - seen_before
        self._listen()
        if ended and not samples:
            raise Unreadable(self._why_it_ended(), remedy=_REMEDY)
        now = self._clock.now()
        samples += self._folder.flush(now)
        samples += self._counts.due(now, self._clock.monotonic_s())
        self._cursor = self._entries.cursor or self._cursor
        kept = partial(self._keep, self._cursor, bool(samples)) if self._cursor else None
        trouble = f"{self._entries.damaged} entries could not be understood" if self._entries.damaged else ""
        marks = {_MARK: self._cursor} if self._cursor else {}
        return Reading(samples=samples, covered=[self._host], trouble=trouble, kept=kept, marks=marks)

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(OSError):
                child.terminate()
            try:
                child.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        self._bookmarks.save()

    def _keep(self, cursor: str, told: bool) -> None:
        self._kept = cursor
        if told:
            self._bookmarks.keep({_MARK: cursor})
        else:
            self._bookmarks.set(_MARK, cursor)

    def _listen(self) -> None:
        """Take what it says about itself, so that it does not wait for somebody to."""
        if self._child is not None and self._child.stderr is not None:
            while said := self._child.stderr.read(CHUNK_BYTES):
                self._said = (self._said + said)[-_STDERR_BYTES:]

    def _why_it_ended(self) -> str:
        assert self._child is not None
        try:
            code = self._child.wait(END_WAIT_S)
        except subprocess.TimeoutExpired:
            return "journalctl has closed its output"
        self._listen()
        said = self._said.decode("utf-8", "replace").strip().splitlines()
        return f"journalctl ended with {code}" + (f": {said[-1][:200]}" if said else "")
