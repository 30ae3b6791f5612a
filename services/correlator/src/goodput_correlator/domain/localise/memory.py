"""What a fabric's probes have lately shown, kept between the moments at which somebody asks.

Folding a report is cheap and goes on all the time, and so does taking over the sums of each window as it closes; suspects
are sought only while a job is in trouble, and then only the bad flows are looked at. What is found for the newest closed
window is found once, for all jobs and moments that ask: a closed window does not change.
"""

from __future__ import annotations

from datetime import datetime

from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.answer import Localised
from goodput_correlator.domain.localise.crossings import Crossings
from goodput_correlator.domain.localise.look import look
from goodput_correlator.domain.localise.reports import Windows
from goodput_topology.graph import Fabric


class ProbeMemory:
    """Bounded by flows and windows (`reports.Windows`); what does not fit is counted in `dropped`. With the `topology` each
    flow's way is learned when it is first heard of; without, the first look has to learn all of them."""

    def __init__(self, topology: Fabric | None = None) -> None:
        self._windows = Windows()
        self._crossings: Crossings | None = None
        self._found: tuple[int, Localised] | None = None
        if topology is not None:
            self.use(topology)

    @property
    def dropped(self) -> int:
        return self._windows.dropped

    @property
    def flows(self) -> int:
        return self._windows.flows

    def use(self, topology: Fabric) -> None:
        """From now on. Each flow's way is learned anew with its next report, or by the next look."""
        if self._crossings is None or self._crossings.topology is not topology:
            self._windows.learner = self._crossings = Crossings(topology)
            self._found = None

    def fold(self, seen: Observed) -> None:
        """Take in a Probe; in the order of `Observed.order`."""
        self._windows.fold(seen)

    def forget(self, at: datetime) -> None:
        """What no decision after this can need."""
        self._windows.forget(at.timestamp())
        if self._crossings is not None and self._crossings.full:
            self._windows.learner = self._crossings = Crossings(self._crossings.topology)

    def localised(self, at: datetime, topology: Fabric) -> Localised:
        self.use(topology)
        assert self._crossings is not None
        closed = self._windows.policy.newest_closed(at.timestamp())
        if self._found is None or self._found[0] != closed:
            self._found = (closed, look(self._windows, self._crossings, at.timestamp()))
        return self._found[1]
