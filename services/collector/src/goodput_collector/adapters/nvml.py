"""The GPUs of this host as their driver tells: what they measure, what they count, what they are.

Xids and the like do not come from here but by event (`nvml_events`), in a reader of their own: it keeps telling them when a
sick GPU makes the calls of this one hang. A GPU whose call does not come back is left to its own thread (`nvml_lanes`), is
told as `unreadable`, and the others are read as before. That goes for the calls that find the GPUs, too (`nvml_listing`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

from goodput_collector.adapters.nvml_device import Answers
from goodput_collector.adapters.nvml_doubt import check_driver
from goodput_collector.adapters.nvml_gpus import RENEW_FIRST_S, Known, NvmlGpus
from goodput_collector.adapters.nvml_lanes import Lanes
from goodput_collector.adapters.nvml_library import NvmlLibrary
from goodput_collector.adapters.proc import read_stat
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.application.ports import Reading
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.gpu_cadence import Group
from goodput_collector.domain.gpu_presence import Presence
from goodput_collector.domain.gpu_ranks import Process
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Sample, Source, State
from goodput_common.runtime.clock import Clock

__all__ = ["RENEW_FIRST_S", "NvmlReader"]

_STATES_EVERY_S = 10.0


class NvmlReader:
    """See `goodput_collector.application.ports.SourceReader`."""

    source = Source.NVML
    instance = ""
    deadline_s = 10.0

    def __init__(
        self,
        library: NvmlLibrary,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        run_dir: Path,
        sys_root: Path = Path("/sys"),
        proc_root: Path = Path("/proc"),
        interval_s: float = 1.0,
        full_every_s: float = 60.0,
        call_s: float = 2.5,
    ) -> None:
        self.interval_s = interval_s
        self._clock = clock
        self._run_dir = run_dir
        self._proc_root = proc_root
        self._lanes: Lanes[Answers] = Lanes("source nvml calls", each_s=call_s, all_s=3 * call_s)
        self._gpus = NvmlGpus(
            library, host=host, boot_id=boot_id, clock=clock, sys_root=sys_root, interval_s=interval_s, call_s=call_s
        )
        self._gauges = Gauges(full_every_s=full_every_s)
        self._changes = Changes(full_every_s=full_every_s, volatile=("reasons", "why"))
        self._states_at_s = float("-inf")
        self._covered: list[ComponentId] = []
        self._ranks: list[RankRegistered] | None = None

    def open(self) -> None:
        self._gpus.start()

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        known = self._gpus.known
        asked: dict[str, tuple[Group, ...]] = {}
        if not self._gpus.renew(now_s, hung=self.hung):  # which may take what time there is
            asked = {key: each.cadence.due(now_s) for key, each in known.items() if each.device is not None}
        outcome = self._lanes.run(
            [(key, partial(each.read, groups)) for key, groups in asked.items() if groups and (each := known[key].device)]
        )
        at = self._clock.now()
        check_driver({key: each.watch for key, each in known.items()}, outcome.results, outcome.stuck)
        samples: list[Sample] = []
        trouble: list[str] = []
        self._ranks = None
        for key, answers in outcome.results.items():
            known[key].cadence.asked(asked[key], now_s, answers.took_s)
            samples += self._digest(known[key], answers, at, now_s)
            if answers.codes or answers.forbidden:
                trouble += _troubles(known[key], answers)
        for key, since_s in outcome.stuck.items():
            if key in known:
                known[key].watch.silent(since_s)
                known[key].samples.forget()
                trouble.append(f"{known[key].watch.gpu.component}: {known[key].watch.why}")
        trouble += [f"{known[key].watch.gpu.component}: not reached in time" for key in outcome.unread]
        for key, error in outcome.errors.items():
            trouble.append(f"{known[key].watch.gpu.component}: {type(error).__name__}: {error}")
        self._gauges.sweep(now_s)
        samples += self._changed(at, now_s)
        trouble += [f"{each.watch.gpu.component}: lost" for each in self._gpus.lost]
        return Reading(samples=samples, trouble="; ".join(dict.fromkeys(trouble)), covered=self._covered)

    def close(self) -> None:
        """What was counted is kept, so that a short outage loses no increase."""
        self._gpus.close(hung=self.hung)
        self._lanes.close()

    @property
    def hung(self) -> bool:
        """Whether a call into the driver has not come back yet."""
        return self._lanes.stuck or self._gpus.stuck

    def _digest(self, known: Known, answers: Answers, at: datetime, now_s: float) -> Sequence[Sample]:
        samples: list[Sample] = []
        lost = known.watch.read(answers.fine, list(answers.codes.values()), at)
        if lost is not None:
            samples.append(lost)
        if known.watch.presence is Presence.LOST:
            known.samples.forget()
            self._gpus.one_is_lost(now_s)
            return samples
        samples += known.samples.gauges(answers.clocks, at, now_s, self._gauges)
        samples += known.samples.throttling(answers.clocks, at, now_s)
        if answers.values or answers.counts or answers.ecc or answers.links:
            samples += self._digest_slow(known, answers, at, now_s)
        return samples

    def _digest_slow(self, known: Known, answers: Answers, at: datetime, now_s: float) -> Iterable[Sample]:
        """What is not asked every second."""
        gpu, values, incarnation = known.samples, answers.values, self._gpus.incarnation
        samples: list[Sample] = [*gpu.gauges(values, at, now_s, self._gauges)]
        if answers.counts:
            samples += gpu.counters(answers.counts, at, now_s, incarnation)
            if gpu.more_errors(answers.counts):
                known.cadence.hurry(Group.MEMORY)
        if answers.ecc:
            samples += gpu.ecc(answers.ecc, at, now_s, incarnation)
        if answers.links:
            samples += gpu.nvlinks(answers.links, at, now_s, incarnation)
        gpu.describe(values, at)
        if "processes" in values:
            processes = [self._process(pid, mig) for pid, mig in values["processes"]]
            gpu.ranks(processes, self._registered(), at)
        return samples

    def _process(self, pid: int, mig: str) -> Process:
        stat = read_stat(self._proc_root, pid)
        return Process(pid, stat.start_ticks if stat is not None else 0, _inner_pid(self._proc_root, pid), mig)

    def _registered(self) -> list[RankRegistered]:
        """Read once a reading, and only where a GPU's processes were asked for."""
        if self._ranks is None:
            self._ranks = list(registered_ranks(self._run_dir))
        return self._ranks

    def _changed(self, at: datetime, now_s: float) -> list[State]:
        """There may be hundreds of links: they are only gone through when something did change, and now and then."""
        known = self._gpus.known.values()
        if news := [each for each in known if each.news()]:
            self._covered = _covered(known)
        if not news and now_s - self._states_at_s < _STATES_EVERY_S:
            return []
        self._states_at_s = now_s
        states = list(self._gpus.unseen)
        for each in known:
            states.append(each.watch.state(at))
            states += each.samples.states()
        return self._changes.of(states, now_s)


def _covered(known: Iterable[Known]) -> list[ComponentId]:
    seen = (Presence.PRESENT, Presence.RESET_REQUIRED)
    covered = [each.watch.gpu.component for each in known if each.watch.presence in seen]
    for each in known:
        covered += each.samples.links
    return covered


def _troubles(known: Known, answers: Answers) -> list[str]:
    component = known.watch.gpu.component
    trouble = []
    if answers.forbidden:
        trouble.append(f"not allowed to read {', '.join(sorted(set(answers.forbidden)))} (of {component} and others)")
    if answers.codes and known.watch.presence is Presence.PRESENT:
        failed = ", ".join(f"{question} ({code})" for question, code in sorted(answers.codes.items())[:3])
        trouble.append(f"{component}: cannot read {failed}")
    return trouble


def _inner_pid(proc_root: Path, pid: int) -> int:
    """The pid that a process has in its own namespace; -1 where /proc does not tell."""
    try:
        with (proc_root / str(pid) / "status").open("rb") as file:
            for line in file:
                if line.startswith(b"NSpid:"):
                    return int(line.split()[-1])
    except (OSError, ValueError, IndexError):
        return -1
    return -1
