"""The lab: a small cluster made of real processes, to break on purpose.

Hosts are network namespaces, cables are veth pairs, switches are bridges; ranks are torch processes that train over gloo
under the real agent; collectors, correlator, recovery, NATS and Postgres are the real programs. What is broken is really
broken: a port goes down, a process is frozen or killed, C code keeps the interpreter lock. Every fault is in the ledger
before it happens.

    preflight()      what this machine lacks, and what to do about it
    run_scenario()   one run in a lab of its own
    LabSession       one lab for many runs

    outer half: session, checks             in the caller's process; needs no rights
    inner half: inside, world, run, ...     in namespaces of its own, as root of a user namespace where need be
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goodput_faultlab.lab.checks import Problem, limits, preflight
    from goodput_faultlab.lab.result import LabResult
    from goodput_faultlab.lab.scenarios import SCENARIOS
    from goodput_faultlab.lab.session import LabError, LabSession, run_scenario

__all__ = ["SCENARIOS", "LabError", "LabResult", "LabSession", "Problem", "limits", "preflight", "run_scenario"]

_HOME = {
    "Problem": "checks",
    "limits": "checks",
    "preflight": "checks",
    "LabResult": "result",
    "SCENARIOS": "scenarios",
    "LabError": "session",
    "LabSession": "session",
    "run_scenario": "session",
}


def __getattr__(name: str) -> Any:
    """Loaded when asked for: a dozen of the lab's processes start through this package, and want none of it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = found
    return found
