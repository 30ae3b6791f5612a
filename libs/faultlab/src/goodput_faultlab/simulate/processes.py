"""What the collectors' process source sees of the ranks: alive, stopped, gone, and whether they use the CPU.

As the real one does, it tells states at intervals and changes at once. A rank that waits in a collective polls and uses
its CPU; so does one that holds the interpreter lock; one that is stopped, or waits for input, does not. Exit codes are
unknown to it: it is not the parent.
"""

from __future__ import annotations

from functools import partial

from goodput_common.contracts import ids
from goodput_common.contracts.telemetry import EventName, Severity, Source
from goodput_faultlab.simulate import lines
from goodput_faultlab.simulate.clockwork import Clockwork
from goodput_faultlab.simulate.collectors import Collectors
from goodput_faultlab.simulate.layout import Place
from goodput_faultlab.simulate.training import Training

FULL_EVERY_S = 5.0
LOOK_EVERY_S = 0.5


class Processes:
    """One watch a host, over whatever ranks run there now."""

    def __init__(self, training: Training, clockwork: Clockwork, collectors: Collectors) -> None:
        self._training = training
        self._clockwork = clockwork
        self._collectors = collectors

    def start(self, hosts: tuple[str, ...]) -> None:
        rng = self._clockwork.rng("process")
        for host in hosts:
            self._clockwork.after(3.0 + rng.uniform(0.0, FULL_EVERY_S), partial(self._full, host))

    def gone(self, place: Place) -> None:
        """The process has ended without taking its registration away."""
        self._clockwork.after(self._clockwork.rng("process").uniform(0.0, LOOK_EVERY_S), partial(self._tell_gone, place))

    def stopped(self, place: Place) -> None:
        """The process has been stopped from outside."""
        self._clockwork.after(self._clockwork.rng("process").uniform(0.0, LOOK_EVERY_S), partial(self._tell_stopped, place))

    def _attrs(self, place: Place) -> dict[str, str]:
        return {"pid": str(place.pid), "generation": str(self._training.generation)}

    def _event(self, place: Place, name: EventName, words: str, attrs: dict[str, str]) -> None:
        job = self._training.layout.job
        component = ids.rank_id(job, place.rank)
        attrs = {"pid": str(place.pid), "host": place.host, "generation": str(self._training.generation)} | attrs
        line = f"rank {place.rank} of {job}: pid {place.pid} {words}"
        made = lines.event(component, name, Severity.ERROR, line, attrs)
        self._collectors.add(place.host, Source.PROCESS, made)

    def _tell_gone(self, place: Place) -> None:
        self._event(place, EventName.PROCESS_EXITED, "is gone", {"clean": "false"})
        self._state(place)

    def _tell_stopped(self, place: Place) -> None:
        self._event(place, EventName.PROCESS_STOPPED, "was stopped (T)", {"state": "T"})
        self._state(place)

    def _full(self, host: str) -> None:
        for rank in self._training.layout.on_host(host):
            self._state(self._training.layout.places[rank])
        self._clockwork.after(FULL_EVERY_S, partial(self._full, host))

    def _state(self, place: Place) -> None:
        training = self._training
        component = ids.rank_id(training.layout.job, place.rank)
        fault = training.fault_of(place.rank)
        if place.rank in training.gone:
            value, attrs = "gone", {"clean": "false"}
        elif fault is not None and fault.stopped:
            value, attrs = "T", {"letter": "T", "cpu": "idle", "cpu_ms": "0", "window_ms": "1000"}
        elif fault is not None and fault.phase == "data":
            value, attrs = "running", {"letter": "S", "cpu": "used", "cpu_ms": "10", "window_ms": "1000", "wchan": "do_poll"}
        else:
            value, attrs = "running", {"letter": "R", "cpu": "used", "cpu_ms": "1010", "window_ms": "1000"}
        made = lines.state(component, "process", value, **self._attrs(place), **attrs)
        self._collectors.add(place.host, Source.PROCESS, made)
