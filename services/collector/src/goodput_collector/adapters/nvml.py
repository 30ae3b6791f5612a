"""The GPUs of this host as their driver tells: what they measure, what they count, what they are.

Xids and the like do not come from here but by event (`nvml_events`), in a reader of their own: it keeps telling them when a
sick GPU makes the calls of this one hang. A GPU whose call does not come back is left to its own thread (`nvml_lanes`), is
told as `unreadable`, and the others are read as before. That goes for the calls that find the GPUs, too (`nvml_listing`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from goodput_collector.adapters.nvml_device import Answers, NvmlDevice
from goodput_collector.adapters.nvml_lanes import Lanes
from goodput_collector.adapters.nvml_library import Nvml, NvmlLibrary, nvidia_gpus
from goodput_collector.adapters.nvml_listing import Listing
from goodput_collector.adapters.proc import read_stat
from goodput_collector.adapters.process import registered_ranks
from goodput_collector.application.ports import Absent, Reading, Unreadable
from goodput_collector.domain.changes import Changes
from goodput_collector.domain.gauges import Gauges
from goodput_collector.domain.gpu_cadence import Cadence, Group
from goodput_collector.domain.gpu_presence import Gpu, Presence, Watch, driver_in_doubt, in_doubt, not_listed
from goodput_collector.domain.gpu_ranks import Process
from goodput_collector.domain.gpu_return import TIMEOUT, Meaning, meaning, words
from goodput_collector.domain.gpu_samples import NOISE, GpuSamples
from goodput_common.contracts.job import RankRegistered
from goodput_common.contracts.telemetry import Gauge, Sample, Source, State
from goodput_common.runtime.clock import Clock

RENEW_FIRST_S, RENEW_MAX_S = 60.0, 900.0
_RENEW_WITHIN_S = 15.0
_LIST_AGAIN_S = 5.0
_STATES_EVERY_S = 10.0
_USER = "nvml"


@dataclass(slots=True)
class _Known:
    """A GPU that NVML lists, or has listed."""

    watch: Watch
    samples: GpuSamples
    cadence: Cadence
    device: NvmlDevice | None


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
        self._library = library
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._run_dir = run_dir
        self._sys_root = sys_root
        self._proc_root = proc_root
        self._lanes: Lanes[Answers] = Lanes("source nvml calls", each_s=call_s, all_s=3 * call_s)
        self._listing = Listing(library, user=_USER, host=host, call_s=call_s)
        self._list_again_at_s: float | None = None
        self._count = 0
        self._gpus: dict[str, _Known] = {}
        self._unseen: list[State] = []
        self._gauges = Gauges(full_every_s=full_every_s)
        self._changes = Changes(full_every_s=full_every_s, volatile=("reasons", "why"))
        self._version: tuple[object, ...] = ()
        self._states_at_s = float("-inf")
        self._ranks: list[RankRegistered] | None = None
        self._nvml: Nvml | None = None
        self._incarnation = ""
        self._renew_after_s = RENEW_FIRST_S
        self._renew_at_s: float | None = None
        self._renewing_since_s: float | None = None

    def open(self) -> None:
        self._start()

    def wake_fd(self) -> int | None:
        return None

    def read(self) -> Reading:
        now_s = self._clock.monotonic_s()
        asked = {}
        if not self._renew(now_s):  # which may take what time there is
            asked = {key: known.cadence.due(now_s) for key, known in self._gpus.items() if known.device is not None}
        outcome = self._lanes.run([(key, self._call(key, groups)) for key, groups in asked.items() if groups])
        at = self._clock.now()
        self._check_driver(outcome.results, outcome.stuck)
        samples: list[Sample] = []
        gauges: list[Gauge] = []
        trouble = []
        self._ranks = None
        for key, answers in outcome.results.items():
            known = self._gpus[key]
            known.cadence.asked(asked[key], now_s, answers.took_s)
            samples += self._digest(known, answers, at, now_s, gauges)
            trouble += _troubles(known, answers)
        for key, since_s in outcome.stuck.items():
            if key in self._gpus:
                known = self._gpus[key]
                known.watch.silent(since_s)
                known.samples.forget()
                trouble.append(f"{known.watch.gpu.component}: {known.watch.why}")
        trouble += [f"{self._gpus[key].watch.gpu.component}: not reached in time" for key in outcome.unread]
        for key, error in outcome.errors.items():
            trouble.append(f"{self._gpus[key].watch.gpu.component}: {type(error).__name__}: {error}")
        samples += self._gauges.of(gauges, now_s, noise=NOISE)
        samples += self._changed(at, now_s)
        trouble += [f"{known.watch.gpu.component}: lost" for known in self._lost()]
        return Reading(samples=samples, trouble="; ".join(dict.fromkeys(trouble)), covered=self._covered())

    def close(self) -> None:
        """What was counted is kept, so that a short outage loses no increase. With a call still on its way into the driver,
        NVML stays initialised: to shut it down under a call is not safe."""
        self._nvml = None
        for known in self._gpus.values():
            known.device = None
        if not self.hung:
            self._library.release(_USER)
        self._lanes.close()
        self._listing.close()

    @property
    def hung(self) -> bool:
        """Whether a call into the driver has not come back yet."""
        return self._lanes.stuck or self._listing.stuck

    # -- the GPUs ----------------------------------------------------------------------------------------------------

    def _start(self, *, anew: bool = False) -> None:
        """Raises Absent, Unreadable."""
        self._nvml, self._count = self._listing.start(anew=anew)
        self._incarnation = f"{self._boot_id}/{self._library.incarnation()}"
        self._list(self._nvml)

    def _list(self, nvml: Nvml) -> None:
        """Find the GPUs. Raises Absent, Unreadable."""
        on_bus = nvidia_gpus(self._sys_root)
        if not self._count and not on_bus:
            raise Absent("no NVIDIA GPU: the driver lists none")
        listed = self._listing.gpus(nvml, self._count)
        doubtful = [code for _, code in listed.refused if in_doubt(0, (code,))]
        if doubtful and driver_in_doubt(len(doubtful) + len(listed.silent), listed.count):
            raise _no_clear_answer(len(doubtful) + len(listed.silent), listed.count, doubtful[0])
        if listed.silent and len(listed.silent) == listed.count:
            raise _no_answer(max(listed.silent.values()))
        named = set()
        for each in listed.named:
            key = each.gpu.attrs.get("pci", str(each.place))
            named.add(key)
            self._know(key, each.gpu, NvmlDevice(nvml, each.handle), place=each.place, places=self._count)
        told_of = self._not_named(named, listed.silent)
        heard_of = named | set(told_of.values())
        refused = listed.refused + [(index, TIMEOUT) for index in listed.silent]
        refused = [(index, code) for index, code in refused if index not in told_of]
        at, now_s = self._clock.now(), self._clock.monotonic_s()
        self._list_again_at_s = now_s + _LIST_AGAIN_S if listed.silent else None
        self._unseen = [each.state(at) for each in not_listed(self._host, on_bus, heard_of, refused)]

    def _not_named(self, named: set[str], silent: dict[int, float]) -> dict[int, str]:
        """Says of known GPUs that they were not named this time. Those, by index, of which no more can be said."""
        told_of = {}
        for key, known in self._gpus.items():
            if key in named:
                continue
            known.device = None
            known.samples.forget()
            index = int(known.watch.gpu.attrs["index"])
            if index in silent:
                known.watch.silent(silent[index])
            elif known.watch.presence is not Presence.LOST:
                known.watch.presence, known.watch.why = Presence.UNSEEN, "NVML does not list it any more"
            if index in silent or known.watch.presence is Presence.LOST:
                told_of[index] = key
        return told_of

    def _know(self, key: str, gpu: Gpu, device: NvmlDevice, *, place: int, places: int) -> None:
        known = self._gpus.get(key)
        cadence = Cadence(place=place, places=places, fastest_s=self.interval_s)
        if known is None or known.watch.gpu != gpu:
            watch = Watch(gpu)
            if known is not None:
                watch.presence = known.watch.presence
            self._gpus[key] = _Known(watch, GpuSamples(gpu, self._host), cadence, device)
            return
        known.device, known.cadence = device, cadence

    # -- one reading -------------------------------------------------------------------------------------------------

    def _call(self, key: str, groups: tuple[Group, ...]) -> Callable[[], Answers]:
        device = self._gpus[key].device
        assert device is not None
        return lambda: device.read(groups)

    def _digest(self, known: _Known, answers: Answers, at: datetime, now_s: float, gauges: list[Gauge]) -> Iterable[Sample]:
        samples: list[Sample] = []
        lost = known.watch.read(answers.fine, list(answers.codes.values()), at)
        if lost is not None:
            samples.append(lost)
        if known.watch.presence is Presence.LOST:
            known.samples.forget()
            if self._renew_at_s is None:
                self._renew_after_s = RENEW_FIRST_S
                self._renew_at_s = now_s + self._renew_after_s
            return samples
        gpu, values = known.samples, answers.values
        gauges += gpu.gauges(values, at)
        samples += gpu.throttling(values, at, now_s)
        if answers.counts:
            samples += gpu.counters(answers.counts, at, now_s, self._incarnation)
            if gpu.more_errors(answers.counts):
                known.cadence.hurry(Group.MEMORY)
        if answers.ecc:
            samples += gpu.ecc(answers.ecc, at, now_s, self._incarnation)
        if answers.links:
            samples += gpu.nvlinks(answers.links, at, now_s, self._incarnation)
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
        version = tuple((known.watch.presence, known.samples.version) for known in self._gpus.values())
        if version == self._version and now_s - self._states_at_s < _STATES_EVERY_S:
            return []
        self._version, self._states_at_s = version, now_s
        return self._changes.of(self._states(at), now_s)

    def _states(self, at: datetime) -> list[State]:
        states = list(self._unseen)
        for known in self._gpus.values():
            states.append(known.watch.state(at))
            states += known.samples.states()
        return states

    def _covered(self) -> list[str]:
        seen = (Presence.PRESENT, Presence.RESET_REQUIRED)
        covered = [known.watch.gpu.component for known in self._gpus.values() if known.watch.presence in seen]
        for known in self._gpus.values():
            covered += known.samples.links
        return covered

    def _lost(self) -> list[_Known]:
        return [known for known in self._gpus.values() if known.watch.presence is Presence.LOST]

    def _check_driver(self, results: dict[str, Answers], stuck: dict[str, float]) -> None:
        """Raises Unreadable when it is not a GPU that is missing but the driver."""
        gone = [code for answers in results.values() for code in answers.codes.values() if meaning(code) is Meaning.DRIVER]
        if gone:
            reason, remedy = words(gone[0])
            raise Unreadable(reason, remedy=remedy)
        alive = {key: known for key, known in self._gpus.items() if known.watch.presence is not Presence.LOST}
        self._check_doubts(alive, results, stuck)
        if stuck and len(stuck) >= len(alive) and not results:
            raise _no_answer(max(stuck.values()))

    def _check_doubts(self, alive: dict[str, _Known], results: dict[str, Answers], stuck: dict[str, float]) -> None:
        """Raises Unreadable when so many GPUs give no clear answer that none of them is to blame."""
        codes: list[int] = []
        quiet = 0
        for key, known in alive.items():
            answers = results.get(key)
            if answers is None:
                quiet += key in stuck or known.watch.suspected
            elif in_doubt(answers.fine, answers.codes.values()):
                codes += answers.codes.values()
                quiet += 1
        if codes and driver_in_doubt(quiet, len(alive)):
            for known in alive.values():
                known.watch.acquit()
            raise _no_clear_answer(quiet, len(alive), codes[0])

    # -- starting anew -----------------------------------------------------------------------------------------------

    def _renew(self, now_s: float) -> bool:
        """A GPU that was reset shows itself only to an NVML that is initialised anew: do that now and then while one is
        lost. One that did not say who it is, is only asked again. Whether the driver was called. Raises Unreadable,
        Absent."""
        if self._nvml is None:
            raise Unreadable("NVML is closed")
        if self._renewing_since_s is None:
            if self.hung:
                return False
            if self._list_again_at_s is not None and now_s >= self._list_again_at_s:
                self._list(self._nvml)
                return True
            if self._renew_at_s is None or now_s < self._renew_at_s:
                return False
            self._library.renew()
            self._renewing_since_s = now_s
        if not self._library.alone(_USER):
            if now_s - self._renewing_since_s > _RENEW_WITHIN_S:
                self._library.renewal_failed()
                self._renewed(now_s)
            return False
        if self.hung:  # since it was asked for
            return False
        self._start(anew=True)
        self._renewed(now_s)
        return True

    def _renewed(self, now_s: float) -> None:
        self._renewing_since_s = None
        self._renew_after_s = min(self._renew_after_s * 2, RENEW_MAX_S) if self._lost() else RENEW_FIRST_S
        self._renew_at_s = now_s + self._renew_after_s if self._lost() else None


def _no_answer(since_s: float) -> Unreadable:
    return Unreadable(
        f"the NVIDIA driver has not answered for {since_s:.0f} s, on any GPU",
        remedy="see the kernel log; a hung driver usually takes a reboot",
    )


def _no_clear_answer(gpus: int, of: int, code: int) -> Unreadable:
    return Unreadable(
        f"{gpus} of {of} GPUs give no clear answer at once: {words(code)[0]}",
        remedy="see the kernel log; where it is well, the right to /dev/nvidia* may be lost (systemd reload): "
        "restart the collector",
    )


def _troubles(known: _Known, answers: Answers) -> list[str]:
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
