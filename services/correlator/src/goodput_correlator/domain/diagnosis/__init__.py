"""The engines, in order. Each is a function from a case to findings; adding a fault class is one file and one line here."""

from __future__ import annotations

from collections.abc import Callable

from goodput_correlator.domain.case import Case
from goodput_correlator.domain.diagnosis import undetermined
from goodput_correlator.domain.finding import Finding

Engine = Callable[[Case], tuple[Finding, ...]]

ENGINES: tuple[Engine, ...] = (undetermined.diagnose,)
