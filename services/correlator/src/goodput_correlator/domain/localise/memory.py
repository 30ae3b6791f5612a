"""What a fabric's probes have lately shown, kept between the moments at which somebody asks.

Folding a report is cheap and goes on all the time; naming suspects is dear and happens only while a job is in trouble. What
is found for the newest closed window is found once, for all jobs and moments that ask: a closed window does not change.
"""

from __future__ import annotations

from datetime import datetime

from goodput_correlator.domain.case import Observed
from goodput_correlator.domain.localise.answer import Localised, localise
from goodput_correlator.domain.localise.matrix import Ways
from goodput_correlator.domain.localise.reports import Windows
from goodput_topology.graph import Fabric


class ProbeMemory:
    """Bounded by flows and windows (`reports.Windows`); what does not fit is counted in `dropped`."""

    def __init__(self) -> None:
        self._windows = Windows()
        self._ways: Ways | None = None
        self._found: tuple[int, Localised] | None = None

    @property
    def dropped(self) -> int:
        return self._windows.dropped

    @property
    def flows(self) -> int:
        return self._windows.flows

    def fold(self, seen: Observed) -> None:
        """Take in a Probe; in the order of `Observed.order`."""
        self._windows.fold(seen)

    def forget(self, at: datetime) -> None:
        """What no decision after this can need. What is known of ways goes, too, unless it is in use."""
        self._windows.forget(at.timestamp())
        if self._found is not None and self._found[0] < self._newest_closed(at) - self._windows.policy.windows:
            self._ways = self._found = None

    def localised(self, at: datetime, topology: Fabric) -> Localised:
        if self._ways is None or self._ways.topology is not topology:
            self._ways, self._found = Ways(topology), None
        closed = self._newest_closed(at)
        if self._found is None or self._found[0] != closed:
            self._found = (closed, localise(self._windows.gathered(at.timestamp()), topology, ways=self._ways))
        return self._found[1]

    def _newest_closed(self, at: datetime) -> int:
        return self._windows.policy.newest_closed(at.timestamp())
