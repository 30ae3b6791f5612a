"""A rank that stands in code which reads or writes, on a host of whose storage nobody tells.

Its collector is silent, so neither the mount nor the disk can be looked at. That the rank is who the others wait for is seen
by its reports all the same; which of the two hangs, the storage or the process, is not. Code that reads or writes a file
seldom hangs by itself: the storage is the likelier, and nobody is sure. A loader that waits for its next batch is another
matter, for it may wait for anything.
"""

from __future__ import annotations

import re

from goodput_common.contracts.ids import host_id
from goodput_common.contracts.job import StallSuspected
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.blame import analysis
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, symptoms_of
from goodput_correlator.domain.finding import Finding
from goodput_correlator.domain.roots import RootKind

ENGINE = "storage_stall"
UNSEEN = 0.68
_FILES = re.compile(r" in (?:\w+_)?(?:read|write|open|load|save|fsync|pread|pwrite)(?:_\w+)?$", re.IGNORECASE)


def unseen_storage(case: Case) -> tuple[Finding, ...]:
    if case.placement is None or not case.stalled or not case.silent_hosts:
        return ()
    awaited = {root.rank for root in analysis(case).blame.roots if root.kind is RootKind.NOT_JOINED}
    found: dict[str, dict[int, Observed]] = {}
    for rank in sorted(awaited & case.stalls.keys()):
        host = case.host_of_rank(rank)
        if host in case.silent_hosts and reads_or_writes(case.stalls[rank].fact):
            found.setdefault(host, {})[rank] = case.stalls[rank]
    return tuple(_finding(case, host, said) for host, said in found.items())


def reads_or_writes(fact: object) -> bool:
    """Whether a rank stands, in its innermost frame, in a function that is called after what is done with files."""
    return isinstance(fact, StallSuspected) and not fact.in_collective and bool(_FILES.search((*fact.frames, "")[0]))


def _finding(case: Case, host: str, said: dict[int, Observed]) -> Finding:
    assert case.placement is not None
    component, first = host_id(host), min(said)
    evidence = [cite(each, f"rank {r} stands in code that reads or writes", 0.5, component) for r, each in said.items()]
    return Finding(
        fault_class=FaultClass.STORAGE_STALL,
        component=component,
        score=UNSEEN,
        evidence=tuple(evidence[:4]),
        engine=ENGINE,
        ranks=case.placement.on_host(host),
        host=host,
        explains=symptoms_of(case),
        because=f"rank {first} stands in code that reads or writes, and nobody tells of the storage of {host}",
        action=Action(
            kind=ActionKind.SWAP_NODE,
            target=component,
            reason="what its storage does cannot be seen, for its collector is silent: continue on another host",
        ),
    )
