"""The InfiniBand fabric whole, from `ibnetdiscover`: a file that somebody writes, or the program itself.

One host a fabric does this, and seldom: the scan asks every switch and every adapter. It needs the right to send management
datagrams (/dev/infiniband/umad*).
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from goodput_collector.adapters.discovery_memory import DiscoveryMemory
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.discovery_fabric import draw
from goodput_collector.domain.discovery_keep import Tell, Telling, next_version
from goodput_collector.domain.ibnetdiscover import parse
from goodput_common.contracts.ids import ComponentKind
from goodput_common.contracts.telemetry import Source
from goodput_common.contracts.topology import TopologySnapshot
from goodput_common.runtime.clock import Clock
from goodput_topology.graph import Fabric
from goodput_topology.merge import SCAN_PREFIX
from goodput_topology.snapshot import to_snapshots

OUTPUT_MAX = 64 << 20
RUN_WITHIN_S = 110.0


class FabricScanReader:
    """See `goodput_collector.application.ports.SourceReader`. `how` is a file's path or a command line."""

    source = Source.DISCOVERY
    instance = "ibnetdiscover"
    deadline_s = 120.0

    def __init__(
        self, how: str, *, fabric: str, host: str, clock: Clock, memory: DiscoveryMemory, interval_s: float = 600.0
    ) -> None:
        self.interval_s = interval_s
        self._how, self._fabric, self._host, self._clock = how, fabric, host, clock
        self._store, self._memory = memory, memory.load()
        self._telling = Telling(told=self._memory.digest, settle_s=0.0, again_s=interval_s)

    def open(self) -> None:
        """Nothing is held open."""

    def wake_fd(self) -> int | None:
        return None

    def close(self) -> None:
        """Nothing is held open."""

    def read(self) -> Reading:
        scanned = parse(self._text())
        records = draw(scanned)
        if not records[0]:
            raise Unreadable(f"{self._how} shows no fabric ({scanned.complained} lines were not understood)")
        digest = hashlib.sha256(msgspec.json.encode(records, order="deterministic")).hexdigest()[:32]
        trouble = f"{scanned.complained} complaints, first: {scanned.complaints[0]}" if scanned.complaints else ""
        return Reading(
            trouble=trouble,
            covered=tuple(record.id for record in records[0] if record.kind is ComponentKind.SWITCH),
            snapshots=self._snapshots(Fabric.build(self._fabric, *records), digest),
            kept=lambda: self._store.save(self._memory),
        )

    def _snapshots(self, whole: Fabric, digest: str) -> tuple[TopologySnapshot, ...]:
        tell = self._telling.decide(digest, self._clock.monotonic_s())
        if tell is Tell.NOTHING:
            return ()
        if tell is Tell.CHANGED:
            now_s = self._clock.now().timestamp()
            self._memory.version, self._memory.at_s = next_version(self._memory.version, now_s), now_s
            self._memory.digest = digest
        at = datetime.fromtimestamp(self._memory.at_s, UTC)
        return to_snapshots(whole, source=f"{SCAN_PREFIX}{self._host}", version=self._memory.version, at=at)

    def _text(self) -> str:
        """Raises Absent, Unreadable."""
        path = Path(self._how)
        if "/" in self._how and " " not in self._how and path.is_file() and not path.stat().st_mode & 0o111:
            with path.open("rb") as file:
                return file.read(OUTPUT_MAX).decode("utf-8", "replace")
        words = shlex.split(self._how)
        program = shutil.which(words[0]) if words else None
        if program is None:
            raise Absent(f"there is neither a file nor a program {self._how!r}")
        try:
            done = subprocess.run([program, *words[1:]], capture_output=True, timeout=RUN_WITHIN_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unreadable(f"{words[0]} did not end within {RUN_WITHIN_S:g} s") from None
        except OSError as error:
            raise Unreadable(f"{words[0]} cannot be run: {error.strerror or error}") from None
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()[:200]
            raise Unreadable(f"{words[0]} failed: {said}", remedy="it needs /dev/infiniband/umad* (root)")
        return done.stdout[:OUTPUT_MAX].decode("utf-8", "replace")
