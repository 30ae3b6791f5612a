"""The GPUs that NVML lists, or has listed: found at the start, looked for again where one did not say who it is, and found
anew by an NVML that is started anew while one is lost.

A GPU that was reset shows itself only to such a one. That is tried after 1, 2, 4 ... at most 15 minutes, and needs every
user of NVML in this process to let go of it first (`nvml_library`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from goodput_collector.adapters.nvml_device import NvmlDevice
from goodput_collector.adapters.nvml_doubt import no_answer, no_clear_answer
from goodput_collector.adapters.nvml_library import Nvml, NvmlLibrary, nvidia_gpus
from goodput_collector.adapters.nvml_listing import Listing
from goodput_collector.application.ports import Absent, Unreadable
from goodput_collector.domain.gpu_cadence import Cadence
from goodput_collector.domain.gpu_presence import Gpu, Presence, Watch, driver_in_doubt, in_doubt, not_listed
from goodput_collector.domain.gpu_return import TIMEOUT
from goodput_collector.domain.gpu_samples import GpuSamples
from goodput_common.contracts.telemetry import State
from goodput_common.runtime.clock import Clock

RENEW_FIRST_S, RENEW_MAX_S = 60.0, 900.0
_RENEW_WITHIN_S = 15.0
_LIST_AGAIN_S = 5.0
_USER = "nvml"


@dataclass(slots=True)
class Known:
    """A GPU that NVML lists, or has listed."""

    watch: Watch
    samples: GpuSamples
    cadence: Cadence
    device: NvmlDevice | None
    _told: tuple[Presence, int] | None = None  # by `news`

    def news(self) -> bool:
        """Whether it, or a state of it, is another one than when this was last asked."""
        now = (self.watch.presence, self.samples.version)
        if now == self._told:
            return False
        self._told = now
        return True


class NvmlGpus:
    def __init__(
        self,
        library: NvmlLibrary,
        *,
        host: str,
        boot_id: str,
        clock: Clock,
        sys_root: Path,
        interval_s: float,
        call_s: float,
    ) -> None:
        self._library = library
        self._host = host
        self._boot_id = boot_id
        self._clock = clock
        self._sys_root = sys_root
        self._interval_s = interval_s
        self._listing = Listing(library, user=_USER, host=host, call_s=call_s)
        self._list_again_at_s: float | None = None
        self._count = 0
        self._nvml: Nvml | None = None
        self._renew_after_s = RENEW_FIRST_S
        self._renew_at_s: float | None = None
        self._renewing_since_s: float | None = None
        self.known: dict[str, Known] = {}
        self.unseen: list[State] = []
        self.incarnation = ""

    @property
    def stuck(self) -> bool:
        """Whether a call that starts NVML or names a GPU has not come back yet."""
        return self._listing.stuck

    @property
    def lost(self) -> list[Known]:
        return [known for known in self.known.values() if known.watch.presence is Presence.LOST]

    def start(self, *, anew: bool = False) -> None:
        """Raises Absent, Unreadable."""
        self._nvml, self._count = self._listing.start(anew=anew)
        self.incarnation = f"{self._boot_id}/{self._library.incarnation()}"
        self._list(self._nvml)

    def close(self, *, hung: bool) -> None:
        """What was counted is kept. With a call still on its way into the driver (`hung`) NVML stays initialised: to shut it
        down under a call is not safe."""
        self._nvml = None
        for known in self.known.values():
            known.device = None
        if not hung:
            self._library.release(_USER)
        self._listing.close()

    def one_is_lost(self, now_s: float) -> None:
        """Start NVML anew in a while."""
        if self._renew_at_s is None:
            self._renew_after_s = RENEW_FIRST_S
            self._renew_at_s = now_s + self._renew_after_s

    def renew(self, now_s: float, *, hung: bool) -> bool:
        """A GPU that was reset shows itself only to an NVML that is initialised anew: do that now and then while one is
        lost. One that did not say who it is, is only asked again. Whether the driver was called. Raises Unreadable,
        Absent."""
        if self._nvml is None:
            raise Unreadable("NVML is closed")
        if self._renewing_since_s is None:
            if hung:
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
        if hung:  # since it was asked for
            return False
        self.start(anew=True)
        self._renewed(now_s)
        return True

    def _renewed(self, now_s: float) -> None:
        self._renewing_since_s = None
        self._renew_after_s = min(self._renew_after_s * 2, RENEW_MAX_S) if self.lost else RENEW_FIRST_S
        self._renew_at_s = now_s + self._renew_after_s if self.lost else None

    def _list(self, nvml: Nvml) -> None:
        """Find the GPUs. Raises Absent, Unreadable."""
        on_bus = nvidia_gpus(self._sys_root)
        if not self._count and not on_bus:
            raise Absent("no NVIDIA GPU: the driver lists none")
        listed = self._listing.gpus(nvml, self._count)
        doubtful = [code for _, code in listed.refused if in_doubt(0, (code,))]
        if doubtful and driver_in_doubt(len(doubtful) + len(listed.silent), listed.count):
            raise no_clear_answer(len(doubtful) + len(listed.silent), listed.count, doubtful[0])
        if listed.silent and len(listed.silent) == listed.count:
            raise no_answer(max(listed.silent.values()))
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
        self.unseen = [each.state(at) for each in not_listed(self._host, on_bus, heard_of, refused)]

    def _not_named(self, named: set[str], silent: dict[int, float]) -> dict[int, str]:
        """Says of known GPUs that they were not named this time. Those, by index, of which no more can be said."""
        told_of = {}
        for key, known in self.known.items():
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
        known = self.known.get(key)
        cadence = Cadence(place=place, places=places, fastest_s=self._interval_s)
        if known is None or known.watch.gpu != gpu:
            watch = Watch(gpu)
            if known is not None:
                watch.presence = known.watch.presence
            self.known[key] = Known(watch, GpuSamples(gpu, self._host), cadence, device)
            return
        known.device, known.cadence = device, cadence
