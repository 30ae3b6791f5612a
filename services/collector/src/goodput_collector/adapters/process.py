"""The training processes of this host, as /proc shows them: alive, stopped, frozen, dead, and whether they use the CPU.

Who is watched says the run directory: the agent of each rank leaves `<run dir>/ranks/<job>.<rank>.json` there, and
takes it away after a clean end. Both move the date of the folder, which is listed when that happens.

A process that is gone while its registration is still there did not leave by itself. A pid that starts at another time
is another process. A pid that was never seen is not called dead, for it may live in another pid namespace - unless
another rank of its job was seen here under the pid that it gave.

An exit wakes the reader at once, where the kernel has pidfds.
"""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import msgspec

from goodput_collector.adapters.folder_dates import FolderDates
from goodput_collector.adapters.proc import ProcStat, is_frozen, read_stat, wchan
from goodput_collector.application.ports import Reading
from goodput_collector.application.small_file import read_small
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.path_text import path_text
from goodput_common.contracts import ids
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Event, EventName, Sample, Severity, Source, State
from goodput_common.runtime.clock import Clock

RANKS_MAX = 1024
CPU_WINDOW_S = 1.0
_PID_MAX = 1 << 22  # the kernel's own bound
_STOPPED = frozenset({"T", "t"})
_DEAD = frozenset({"Z", "X", "x"})  # waiting to be reaped
_DECODER = msgspec.json.Decoder(RankRegistered)


@dataclass(slots=True)
class _Watched:
    rank: RankRegistered
    path: Path
    mtime_ns: int
    start_ticks: int = 0
    pidfd: int | None = None
    seen: bool = False
    gone: bool = False
    left: dict[str, str] = field(default_factory=dict)
    stopped: str = ""
    uninterruptible: int = 0
    ticks_seen: int = -1
    ticks: int = 0
    ticks_at_s: float = 0.0
    cpu_ms: int = -1
    window_ms: int = 0
    moving: str = "unknown"

    @property
    def component(self) -> str:
        return ids.rank_id(self.rank.job, self.rank.rank)


class ProcessReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.PROCESS
    instance = ""
    deadline_s = 5.0

    def __init__(
        self,
        *,
        run_dir: Path,
        clock: Clock,
        host: str,
        boot_id: str,
        proc_root: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        interval_s: float = 0.5,
        full_every_s: float = 5.0,
    ) -> None:
        self.interval_s = interval_s
        self._folder = run_dir / "ranks"
        self._clock = clock
        self._host = host
        self._boot_id = boot_id
        self._proc = proc_root
        self._cgroup = cgroup_root
        self._dates = FolderDates()
        self._trouble = ""
        self._watched: dict[Path, _Watched] = {}
        self._epoll: select.epoll | None = None
        self._changes = Changes(full_every_s=full_every_s, volatile=("cpu_ms", "window_ms", "wchan", "letter"))
        self._tick_ms = 1000 / os.sysconf("SC_CLK_TCK")

    def open(self) -> None:
        if self._epoll is None and hasattr(os, "pidfd_open"):
            self._epoll = select.epoll()
            for watched in self._watched.values():
                self._wake_on_exit(watched)

    def wake_fd(self) -> int | None:
        return None if self._epoll is None else self._epoll.fileno()

    def read(self) -> Reading:
        events: list[Sample] = []
        states: list[State] = []
        now, now_s = self._clock.now(), self._clock.monotonic_s()
        if self._trouble or self._dates.due(now_s):
            self._dates.begin(now_s)
            self._dates.note(self._folder)
            self._trouble = self._look()
        for watched in self._watched.values():
            if watched.gone:
                states.append(_state(watched, now, "gone", watched.left))
                continue
            stat = read_stat(self._proc, watched.rank.pid)
            if stat is not None and not self._same_process(watched, stat):
                stat = None
            if stat is None or stat.state in _DEAD:
                told, state = self._missing(watched, now)
            else:
                told, state = self._present(watched, stat, now, now_s)
            events += told
            states.append(state)
        return Reading(samples=[*events, *self._changes.of(states, now_s)], trouble=self._trouble)

    def close(self) -> None:
        for watched in self._watched.values():
            self._unwatch(watched)  # but not forgotten: who exits before it is opened again is missed then
        if self._epoll is not None:
            self._epoll.close()
        self._epoll = None

    # -- who is watched ---------------------------------------------------------------------------------------------

    def _look(self) -> str:
        """Follow the registrations; returns what is wrong with one of them."""
        trouble = ""
        found: dict[Path, int] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith(".") and len(found) < RANKS_MAX:
                    with contextlib.suppress(OSError):
                        found[Path(entry.path)] = entry.stat().st_mtime_ns
        for path in [path for path in self._watched if path not in found]:
            self._unwatch(self._watched.pop(path))
        for path, mtime_ns in found.items():
            known = self._watched.get(path)
            if known is not None and known.mtime_ns == mtime_ns:
                continue
            try:
                rank = _registration(path)
            except (OSError, ValueError) as error:
                reason = (error.strerror if isinstance(error, OSError) else None) or error
                trouble = f"{path_text(path)}: not a rank's registration: {reason}"
                continue
            if known is not None:
                self._unwatch(known)
            if rank.boot_id and rank.boot_id != self._boot_id:
                self._watched.pop(path, None)  # from before the host was started anew
                continue
            self._watched[path] = self._watch(rank, path, mtime_ns)
        return trouble

    def _watch(self, rank: RankRegistered, path: Path, mtime_ns: int) -> _Watched:
        watched = _Watched(rank, path, mtime_ns, start_ticks=rank.process_start)
        self._wake_on_exit(watched)
        return watched

    def _wake_on_exit(self, watched: _Watched) -> None:
        if self._epoll is not None and not watched.gone:
            with contextlib.suppress(OSError):
                watched.pidfd = os.pidfd_open(watched.rank.pid)
                self._epoll.register(watched.pidfd, select.EPOLLIN)

    def _unwatch(self, watched: _Watched) -> None:
        if watched.pidfd is None:
            return
        if self._epoll is not None:
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(watched.pidfd)
        with contextlib.suppress(OSError):
            os.close(watched.pidfd)
        watched.pidfd = None

    def _same_process(self, watched: _Watched, stat: ProcStat) -> bool:
        if not watched.start_ticks:
            watched.start_ticks = stat.start_ticks
        return stat.start_ticks == watched.start_ticks

    def _shares_pids(self, job: str) -> bool:
        """Has a rank of this job been seen here, started when it said?"""
        return any(
            each.seen and each.rank.job == job and each.rank.process_start == each.start_ticks
            for each in self._watched.values()
        )

    # -- how it is --------------------------------------------------------------------------------------------------

    def _missing(self, watched: _Watched, now: datetime) -> tuple[list[Sample], State]:
        self._unwatch(watched)
        if not watched.seen and not self._shares_pids(watched.rank.job):
            return [], _state(watched, now, "unknown", {"reason": "no such pid here; it may be in another pid namespace"})
        watched.gone = True
        clean = not watched.path.exists()  # taken away in the meantime: it left by itself
        watched.left = {"clean": str(clean).lower()}
        event = self._event(watched, EventName.PROCESS_EXITED, now, **watched.left)
        return [event], _state(watched, now, "gone", watched.left)

    def _present(self, watched: _Watched, stat: ProcStat, now: datetime, now_s: float) -> tuple[list[Sample], State]:
        watched.seen = True
        still = stat.cpu_ticks == watched.ticks_seen  # what has used the CPU since the last look is not frozen
        watched.ticks_seen = stat.cpu_ticks
        frozen = still and stat.state not in _STOPPED and is_frozen(self._proc, self._cgroup, watched.rank.pid)
        letter = "frozen" if frozen else stat.state
        self._measure(watched, stat, now_s)
        events: list[Sample] = []
        stopped = letter if letter in _STOPPED or frozen else ""
        if stopped and not watched.stopped:
            events.append(self._event(watched, EventName.PROCESS_STOPPED, now, state=stopped))
        elif watched.stopped and not stopped:
            events.append(self._event(watched, EventName.PROCESS_CONTINUED, now, state=letter))
        watched.stopped = stopped
        watched.uninterruptible = watched.uninterruptible + 1 if letter == "D" else 0
        # R and S take turns all the time, and everything sleeps uninterruptibly for a moment: neither is news
        value = letter if stopped else "D" if watched.uninterruptible > 1 else "running"
        attrs = {"letter": letter, "cpu": watched.moving}
        if watched.cpu_ms >= 0:
            attrs |= {"cpu_ms": str(watched.cpu_ms), "window_ms": str(watched.window_ms)}
        if watched.moving != "used" and (place := wchan(self._proc, watched.rank.pid)):
            attrs["wchan"] = place
        return events, _state(watched, now, value, attrs)

    def _measure(self, watched: _Watched, stat: ProcStat, now_s: float) -> None:
        """CPU time over at least `CPU_WINDOW_S`: used, or not a single tick."""
        if not watched.ticks_at_s:
            watched.ticks, watched.ticks_at_s = stat.cpu_ticks, now_s
            return
        over_s = now_s - watched.ticks_at_s
        if over_s < CPU_WINDOW_S:
            return
        used = stat.cpu_ticks - watched.ticks
        watched.cpu_ms, watched.window_ms = round(used * self._tick_ms), round(over_s * 1000)
        watched.moving = "used" if used > 0 else "idle"
        watched.ticks, watched.ticks_at_s = stat.cpu_ticks, now_s

    def _event(self, watched: _Watched, name: EventName, now: datetime, **attrs: str) -> Event:
        pid = watched.rank.pid
        state = attrs.get("state", "")
        words = {
            EventName.PROCESS_EXITED: f"pid {pid} is gone" if attrs.get("clean") != "true" else f"pid {pid} left",
            EventName.PROCESS_STOPPED: f"pid {pid} was stopped ({state})",
            EventName.PROCESS_CONTINUED: f"pid {pid} runs again",
        }
        bad = name is EventName.PROCESS_STOPPED or (name is EventName.PROCESS_EXITED and attrs.get("clean") == "false")
        return Event(
            component=watched.component,
            name=name,
            observed_at=now,
            severity=Severity.ERROR if bad else Severity.INFO,
            excerpt=f"rank {watched.rank.rank} of {watched.rank.job}: {words[name]}",
            attrs={"pid": str(pid), "host": self._host, "generation": str(watched.rank.generation)} | attrs,
        )


def _state(watched: _Watched, now: datetime, value: str, attrs: dict[str, str]) -> State:
    return State(
        component=watched.component,
        name="process",
        observed_at=now,
        value=value,
        attrs={"pid": str(watched.rank.pid), "generation": str(watched.rank.generation)} | attrs,
    )


def _registration(path: Path) -> RankRegistered:
    """Raises OSError, ValueError."""
    try:
        rank = _DECODER.decode(read_small(path))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not 0 < rank.pid <= _PID_MAX:
        raise ValueError(f"there is no pid {rank.pid}")
    return rank


def registered_ranks(run_dir: Path) -> Iterable[RankRegistered]:
    """The ranks that are registered on this host now."""
    with contextlib.suppress(OSError):
        for path in sorted((run_dir / "ranks").glob("*.json"))[:RANKS_MAX]:
            with contextlib.suppress(OSError, ValueError):
                yield _registration(path)
