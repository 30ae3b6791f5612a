"""Diagnosis of files: no server, no registration, no present. Whatever the files hold is the whole case.

Flight-recorder dumps stand for a stalled job; logs stand for their hosts. A verdict names every culprit that the evidence
carries jointly; a suspect that is only half likely (the rank whose dump is missing) gets a verdict of its own, with its own
confidence, so that a reader can tell the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from goodput_common.contracts.job import FlightRecorderDump, RankExited, RankProgress, RankRegistered, StallSuspected
from goodput_common.contracts.verdict import FaultClass, Verdict
from goodput_correlator.domain.case import Case, Observed, ordered
from goodput_correlator.domain.finding import Diagnosis
from goodput_correlator.domain.ranking import FILES_NAMED_MIN, decide_each
from goodput_correlator.domain.timeline import JobTimeline
from goodput_correlator.domain.verdict import content_id, incident_id, open_verdict
from goodput_topology.graph import Fabric

JobFact = RankRegistered | RankProgress | RankExited | StallSuspected | FlightRecorderDump


def diagnose_facts(facts: Iterable[Observed], *, now: datetime, topology: Fabric | None = None) -> list[Verdict]:
    """Verdicts for each job that left dumps, then for hardware that no job's verdict has named. The same facts give the same
    verdicts; `now` is only stamped on them."""
    fabric = topology if topology is not None else Fabric.empty("files")
    everything = ordered(facts)
    jobs: dict[str, JobTimeline] = {}
    for each in everything:
        if isinstance(each.fact, JobFact):
            jobs.setdefault(each.fact.job, JobTimeline(each.fact.job, each.fact.fabric)).fold(each)
    verdicts: list[Verdict] = []
    named = set()
    for name in sorted(jobs):
        placed = any(isinstance(each.fact, RankRegistered) and each.fact.job == name for each in everything)
        case = Case(
            now=now,
            fabric=fabric.name,
            job=name,
            observed=everything,
            topology=fabric,
            placement=jobs[name].placement if placed else None,
            offline=True,
        )
        if not case.dumps:
            continue
        for diagnosis in decide_each(case):
            verdicts.append(_verdict(diagnosis, fabric.name, name, now))
            named |= {culprit.component for culprit in diagnosis.culprits}
    hardware = Case(now=now, fabric=fabric.name, job=None, observed=everything, topology=fabric, offline=True)
    verdicts += [
        _verdict(diagnosis, fabric.name, None, now)
        for diagnosis in decide_each(hardware)
        if diagnosis.confidence >= FILES_NAMED_MIN
        and diagnosis.culprits
        and not {c.component for c in diagnosis.culprits} & named
    ]
    return verdicts


def _verdict(diagnosis: Diagnosis, fabric: str, job: str | None, now: datetime) -> Verdict:
    said = sorted(each.event_id for each in diagnosis.evidence)
    who = [culprit.component for culprit in diagnosis.culprits] or [FaultClass.UNDETERMINED.value]
    incident = incident_id(fabric, job, diagnosis.fault_class, *who, content_id(*said))
    return open_verdict(diagnosis, incident=incident, fabric=fabric, job=job, generation=0, at=now)
