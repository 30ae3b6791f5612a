"""Starting NVML and asking which GPUs there are: calls into the driver like any other, and as likely not to come back.

A sick GPU that hangs when it is asked who it is must not keep the others from being listed, nor may an NVML that does not
start keep its reader from saying so. So each of these calls has its own time (`nvml_lanes`); one that does not keep it is
told, and asked again once it has come back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from goodput_collector.adapters.nvml_lanes import Lanes
from goodput_collector.adapters.nvml_library import GPUS_MAX, Nvml, NvmlLibrary, identify
from goodput_collector.application.ports import Unreadable
from goodput_collector.domain.gpu_presence import Gpu
from goodput_collector.domain.gpu_return import words

_STARTING = "NVML"


class Named(NamedTuple):
    place: int
    handle: object
    gpu: Gpu


@dataclass(slots=True)
class Listed:
    """GPUs by what they said: who they are, a return code, or nothing (for how many seconds)."""

    named: list[Named] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    silent: dict[int, float] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return len(self.named) + len(self.refused) + len(self.silent)


class Listing:
    """`start` takes at most `call_s`, `gpus` twice that."""

    def __init__(self, library: NvmlLibrary, *, user: str, host: str, call_s: float) -> None:
        self._library = library
        self._user = user
        self._host = host
        self._starting: Lanes[tuple[Nvml, int]] = Lanes("source nvml start", each_s=call_s, all_s=call_s)
        self._naming: Lanes[tuple[object, Gpu]] = Lanes("source nvml names", each_s=call_s, all_s=2 * call_s)

    @property
    def stuck(self) -> bool:
        """Whether a call is still on its way into the driver: NVML must not be shut down under it."""
        return self._starting.stuck or self._naming.stuck

    def start(self, *, anew: bool = False) -> tuple[Nvml, int]:
        """The binding, initialised, and how many GPUs it knows. `anew`: let go of it first. Raises Absent, Unreadable."""
        outcome = self._starting.run([(_STARTING, partial(self._start, anew))])
        for error in outcome.errors.values():
            raise error
        if _STARTING in outcome.results:
            return outcome.results[_STARTING]
        raise Unreadable(
            f"the NVIDIA driver has not let NVML start for {outcome.stuck.get(_STARTING, 0.0):.0f} s",
            remedy="see the kernel log; a hung driver usually takes a reboot",
        )

    def gpus(self, nvml: Nvml, count: int) -> Listed:
        """Raises what is neither an answer nor a return code."""
        outcome = self._naming.run([(str(index), partial(self._name, nvml, index)) for index in range(count)])
        listed = Listed()
        for key, (handle, gpu) in outcome.results.items():
            listed.named.append(Named(int(key), handle, gpu))
        for key, error in outcome.errors.items():
            if not isinstance(error, nvml.NVMLError):
                raise error
            listed.refused.append((int(key), int(error.value)))
        listed.silent = {int(key): since_s for key, since_s in outcome.stuck.items()} | {
            int(key): 0.0 for key in outcome.unread
        }
        return listed

    def close(self) -> None:
        self._starting.close()
        self._naming.close()

    def _start(self, anew: bool) -> tuple[Nvml, int]:
        if anew:
            self._library.release(self._user)
        nvml = self._library.acquire(self._user)
        try:
            return nvml, min(int(nvml.nvmlDeviceGetCount()), GPUS_MAX)
        except nvml.NVMLError as error:
            reason, remedy = words(int(error.value))
            raise Unreadable(reason, remedy=remedy) from None

    def _name(self, nvml: Nvml, index: int) -> tuple[object, Gpu]:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        return handle, identify(nvml, handle, index, self._host)
