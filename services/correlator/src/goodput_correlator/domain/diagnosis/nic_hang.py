"""A network adapter whose firmware has stopped: commands time out, the health counter stands still. Its link may read up."""

from __future__ import annotations

from goodput_common.contracts.ids import host_of
from goodput_common.contracts.telemetry import EventName
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.blame import agreement
from goodput_correlator.domain.case import Case
from goodput_correlator.domain.clues import EVIDENCE_PER_FINDING, cite, events, ranks_on, symptoms_of
from goodput_correlator.domain.diagnosis._device import by_component, survived
from goodput_correlator.domain.finding import Finding

ENGINE = "nic_hang"


def diagnose(case: Case) -> tuple[Finding, ...]:
    found = []
    for nic, seen in by_component(case, events(case, EventName.NIC_HANG)).items():
        if case.topology.carries_traffic(nic) is False:
            continue
        ranks = ranks_on(case, nic)
        if case.placement is not None and not ranks:
            continue
        factor, words, extra = agreement(case, ranks, network=True)
        score = 0.88 if len(seen) > 1 or "unrecoverable" in seen[0][1].attrs.get("what", "") else 0.8
        left, history = survived(case, seen, ranks)
        score *= left
        because = "nothing leaves or reaches the ranks behind a hung adapter"
        found.append(
            Finding(
                fault_class=FaultClass.NIC_HANG,
                component=nic,
                score=min(0.96, score * factor),
                evidence=(
                    *(
                        cite(each, "the adapter's firmware does not answer", score, nic)
                        for each, _ in seen[:EVIDENCE_PER_FINDING]
                    ),
                    *extra,
                ),
                engine=ENGINE,
                ranks=ranks,
                host=host_of(nic),
                explains=symptoms_of(case),
                because="; ".join(each for each in (because, history, words) if each),
                history=history,
                decisive=factor >= 0.9 and not history,
                hardware=True,
                action=Action(
                    kind=ActionKind.SWAP_NODE,
                    target=nic,
                    reason="the adapter needs a firmware reset: continue on a spare node",
                ),
            )
        )
    return tuple(found)
