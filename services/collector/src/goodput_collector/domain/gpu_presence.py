"""Whether a GPU is there, told once a change.

    present         it answers
    lost            it said so itself, or answered nothing but `Unknown Error` twice in a row: an event, once
    reset_required  it is there and will do nothing before a reset
    unreadable      it has not answered in time, or not clearly: cannot tell
    unseen          the PCI bus has it and NVML does not list it: cannot tell (a container sees only its own)

`Unknown Error` is how a GPU that fell off the bus looks from a driver that has not noticed yet; it is also how a driver
looks in mid-reload, and how all GPUs look to a process that has lost the right to their device files. So one bad read is
`unreadable` and only the second in a row is `lost`; and where most GPUs have gone quiet in one look it is none of them but
the driver (`driver_in_doubt`), and nothing is told of any. What else a driver may answer (no memory, not ready) is never a
loss, however often it is said.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from goodput_collector.domain.gpu_return import GPU_IS_LOST, Meaning, meaning, words
from goodput_common.contracts import ids
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Event, EventName, Severity, State

UNSURE_READS = 2


class Presence(enum.StrEnum):
    PRESENT = "present"
    LOST = "lost"
    RESET_REQUIRED = "reset_required"
    UNREADABLE = "unreadable"
    UNSEEN = "unseen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Who it is. `attrs` go with its states and events: index, uuid, pci, model, as far as they are known."""

    component: ComponentId
    attrs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Watch:
    """One GPU's presence over time."""

    gpu: Gpu
    presence: Presence = Presence.UNREADABLE
    why: str = "not read yet"
    _bad_reads: int = 0

    def read(self, answers: int, codes: list[int], at: datetime) -> Event | None:
        """One read gave `answers` good answers and these return codes besides. GPU_LOST when it is lost by this."""
        if answers and not codes:
            if self.presence is not Presence.PRESENT or self._bad_reads:
                self._now(Presence.PRESENT, "")
            return None
        meanings = {meaning(code): code for code in codes}
        if Meaning.LOST in meanings:
            return self._lost(meanings[Meaning.LOST], at)
        if Meaning.RESET in meanings:
            self._now(Presence.RESET_REQUIRED, "the driver asks for a reset")
            return None
        if not in_doubt(answers, codes):
            self._now(Presence.PRESENT, "")
            return None
        self._bad_reads = self._bad_reads + 1 if Meaning.SUSPECT in meanings else 0
        if self._bad_reads >= UNSURE_READS:
            return self._lost(meanings[Meaning.SUSPECT], at)
        if self.presence is not Presence.LOST:
            self.presence, self.why = Presence.UNREADABLE, f"every call failed: {words(codes[0])[0]}"
        return None

    @property
    def suspected(self) -> bool:
        """Whether the last read may have been its last."""
        return self._bad_reads > 0

    def acquit(self) -> None:
        """It was the driver: the next bad read is the first."""
        self._bad_reads = 0

    def silent(self, since_s: float) -> None:
        """It has not answered in time."""
        if self.presence is not Presence.LOST:
            self.presence, self.why = Presence.UNREADABLE, f"no answer from the driver for {since_s:.0f} s"

    def state(self, at: datetime) -> State:
        attrs = self.gpu.attrs | ({"why": self.why} if self.why else {})
        return State(component=self.gpu.component, name="gpu", observed_at=at, value=self.presence.value, attrs=attrs)

    def _now(self, presence: Presence, why: str) -> None:
        self.presence, self.why, self._bad_reads = presence, why, 0

    def _lost(self, code: int, at: datetime) -> Event | None:
        if self.presence is Presence.LOST:
            return None
        what = "NVML lost" if code == GPU_IS_LOST else f"NVML answers every call with error {code}"
        self.presence, self.why = Presence.LOST, what
        return Event(
            component=self.gpu.component,
            name=EventName.GPU_LOST,
            observed_at=at,
            severity=Severity.FATAL,
            excerpt=f"{self.gpu.attrs.get('pci', self.gpu.component)}: {what}",
            attrs=self.gpu.attrs | {"what": what, "by": "nvml", "code": str(code)},
        )


def in_doubt(answers: int, codes: Collection[int]) -> bool:
    """Whether a read gave nothing but errors that say nothing clear."""
    return not answers and any(meaning(code) in (Meaning.SUSPECT, Meaning.UNSURE) for code in codes)


def driver_in_doubt(gpus: int, of: int) -> bool:
    """Whether so many GPUs without a clear answer, of those that are not lost, are the driver's trouble and not theirs."""
    return 2 * gpus > of


def not_listed(
    host: str, on_bus: Mapping[str, str], known: Collection[str], refused: Sequence[tuple[int, int]]
) -> list[Watch]:
    """GPUs of this host that the driver does not give: on the PCI bus (address -> kernel driver) and not `known`, or refused
    with a return code by index. Which of the refused is which of the missing is known only when there are as many; that
    one is lost cannot be told from here, for it may merely not be ours to see."""
    missing = sorted(address for address, driver in on_bus.items() if driver == "nvidia" and address not in known)
    why = "the driver has it and NVML does not list it"
    if refused and len(refused) == len(missing):
        why = f"NVML refuses it: {words(refused[0][1])[0]}"
    if missing:
        gpus = [Gpu(component=ids.gpu_id(host, address), attrs={"pci": address}) for address in missing]
        return [Watch(gpu, Presence.UNSEEN, why) for gpu in gpus]
    found = []
    for index, code in refused:
        gpu = Gpu(component=ids.gpu_id(host, index), attrs={"index": str(index)})
        presence = Presence.LOST if meaning(code) is Meaning.LOST else Presence.UNREADABLE
        found.append(Watch(gpu, presence, words(code)[0]))
    return found
