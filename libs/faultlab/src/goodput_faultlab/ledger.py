"""The ground-truth ledger: what was broken on purpose, when, and what the right answer is.

An entry is on disk (written and fsynced) *before* the fault is injected: if the injector dies half-way the worst case is an
entry whose fault never came, never a fault that nobody wrote down. The file is JSON Lines; an entry's later lines (the same
`id`, now with `cleared_at`) replace its earlier ones, so nothing is ever rewritten in place.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.verdict import FaultClass

LINE_BYTES_MAX = 1 << 20


class Symptom(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a fault brings about at another component. Whoever blames that component is wrong; `what` is the name
    of the event, counter or state that shows there."""

    component: ComponentId
    what: str


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One injected fault and the right answer to it.

    `component` is the culprit that a verdict should name, `also_right` those that are as good (the rank and its GPU;
    the link and its host's end). `component` None with fault_class undetermined: the right answer is to blame nobody.
    `ranks` are those that the culprit carries. Times are in the injector's clock, which is the reference of a score.
    """

    id: str
    scenario: str
    fault_class: FaultClass
    component: ComponentId | None
    injected_at: datetime
    also_right: tuple[ComponentId, ...] = ()
    ranks: tuple[int, ...] = ()
    host: str | None = None
    job: str | None = None
    cleared_at: datetime | None = None
    note: str = ""
    flavour: str = ""
    severity: float = 1.0  # 1 blatant, 0 marginal
    cascade: str = ""  # the kind of cascade of which this is the root
    explains: tuple[Symptom, ...] = ()
    background: bool = False  # broken too, but not under the job in question: naming it is right, not naming it is no miss


class LedgerDamaged(ValueError):
    """A line in the middle of the file is not an entry (a torn last line is forgiven). Names file and line."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}:{line}: not a ledger entry: {why}. Move the file away or delete that line.")
        self.path = path
        self.line = line


class Ledger:
    """An append-only file of entries. Reading never needs the writer to have closed it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, entry: LedgerEntry) -> None:
        """Durable when it returns: call it before injecting."""
        self._append(entry)

    def clear(self, entry: LedgerEntry, at: datetime) -> LedgerEntry:
        """Note that the fault was taken away again; call it after doing so."""
        cleared = msgspec.structs.replace(entry, cleared_at=at)
        self._append(cleared)
        return cleared

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Every entry in its last form, in the order of first writing. An absent file is an empty ledger."""
        latest: dict[str, LedgerEntry] = {}
        for entry in self._lines():
            latest[entry.id] = entry
        return tuple(latest.values())

    def _append(self, entry: LedgerEntry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        created = not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            self._close_torn_line(handle)
            view = memoryview(line)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
        finally:
            os.close(handle)
        if created:  # the name itself must survive a crash too
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @staticmethod
    def _close_torn_line(handle: int) -> None:
        """A writer that died in mid-line left no newline: cut that piece off, or the next entry would be glued to it."""
        size = os.fstat(handle).st_size
        at = size
        while at > 0:
            start = max(0, at - 4096)
            block = os.pread(handle, at - start, start)
            newline = block.rfind(b"\n")
            if newline >= 0:
                at = start + newline + 1
                break
            at = start
        if at != size:
            os.ftruncate(handle, at)

    def _lines(self) -> Iterator[LedgerEntry]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            number = 0
            while line := file.readline(LINE_BYTES_MAX):
                number += 1
                if not line.endswith(b"\n"):
                    if len(line) >= LINE_BYTES_MAX:
                        raise LedgerDamaged(self.path, number, f"longer than {LINE_BYTES_MAX} bytes")
                    return  # torn: the writer died before the fault was injected
                if not line.strip():
                    continue
                try:
                    yield msgspec.json.decode(line, type=LedgerEntry)
                except msgspec.DecodeError as error:
                    raise LedgerDamaged(self.path, number, str(error)) from error
