"""Why this and not the runner-up, and what would change the verdict.

Everything here is read off the verdict. What would change it is told in three ways: what is missing and could still come
(sources that were silent), what stands close (rivals, evidence of a single line), and what would contradict the class that
was named, which is general knowledge and the same for each class.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from goodput_cli.explain.model import Heard, Rival
from goodput_cli.explain.words import clean, culprits_of, listed, many, names, who
from goodput_common.contracts.verdict import Explained, FaultClass, Trouble, Verdict, VerdictState

CONTRADICTS: dict[FaultClass, str] = {
    FaultClass.GPU_OFF_BUS: "the GPU answers its driver without having been reset",
    FaultClass.GPU_MEMORY: "the error turns out to be corrected, or to have been there while steps went on",
    FaultClass.NVLINK: "an error of its own on the GPU at the other end, before this one",
    FaultClass.LINK_FLAP: "the link stays up and counts no errors while the job is still in trouble, "
    "or the adapter or switch at one of its ends fails as a whole",
    FaultClass.PFC_STORM: "a port further along the path turns out to have paused before this one",
    FaultClass.STRAGGLER: "its rank gets as fast as the others, or others turn out to be late before it",
    FaultClass.GPU_DRIVER: "the driver answers again, or the GPU is found to have left the bus first",
    FaultClass.PCIE: "the link trains at full width and speed without errors while the trouble goes on",
    FaultClass.NIC_HANG: "the adapter answers commands, or only its cable or switch port is down",
    FaultClass.SWITCH_FAULT: "traffic passes through the switch on other ports, or the errors gather on one cable",
    FaultClass.HOST_DOWN: "anything at all is heard from the host that was sent after the stall",
    FaultClass.PROCESS_DEAD: "a fault of its GPU, its host or its network from before its end, or a rank that ended earlier",
    FaultClass.PROCESS_STALL: "the process goes on by itself, or its hardware is found broken",
    FaultClass.COLLECTIVE_DESYNC: "a recorder that shows its peers, not it, to have left the common order of collectives",
    FaultClass.STORAGE_STALL: "storage answers while its processes still wait",
    FaultClass.NO_HARDWARE_FAULT: "a hardware error from before the job's own, on a component of the job",
    FaultClass.UNDETERMINED: "any evidence that speaks for one component clearly more than for all others",
}
CLASSES = frozenset(each.value for each in FaultClass)


def why_this(verdict: Verdict, heard: Mapping[str, Heard]) -> Iterator[str]:
    """What the name rests on, and how much of the trouble it accounts for."""
    if not culprits_of(verdict) and verdict.fault_class is FaultClass.UNDETERMINED:
        yield "no suspect is likely enough by itself to be named"
    if strongest := max(verdict.evidence, key=lambda each: each.weight, default=None):
        by = sorted({told.source for each in verdict.evidence if (told := heard.get(each.event_id))})
        sources = f" from {listed(by)}" if by else ""
        count = len(verdict.evidence)
        lines = f"{count} lines of evidence{sources}, most on" if count > 1 else f"one line of evidence{sources}"
        yield f"it rests on {lines}: {clean(strongest.why or strongest.excerpt)}"
    if verdict.explained:
        follow = "follows" if len(verdict.explained) == 1 else "follow"
        yield f"{many(len(verdict.explained), 'other symptom')} {follow} from it, and nobody else need be blamed for that"
    if not verdict.alternatives and verdict.fault_class is not FaultClass.UNDETERMINED:
        aside = [each for each in verdict.explained if _suspected(each)]
        if aside:
            shown = "; ".join(f"{each.component} ({_suspected(each)}): {clean(each.because)}" for each in aside[:3])
            yield f"there is no runner-up: whoever else looked guilty is accounted for: {shown}"
        else:
            yield "there is no runner-up: nothing that was seen speaks for anybody else"


def _suspected(explained: Explained) -> str | None:
    """The class of a suspect that was set aside: its symptom begins with it."""
    head = explained.symptom.partition(":")[0]
    return head if head in CLASSES and explained.component is not None else None


def rivals(chain: Sequence[Verdict]) -> Iterator[Rival]:
    """The alternatives of the newest version, the likeliest first; then who an earlier version named."""
    newest = chain[-1]
    told = {each.component for each in culprits_of(newest)}
    for each in sorted(newest.alternatives, key=lambda alternative: -alternative.confidence):
        told.add(each.component)
        because = clean(each.because) or _accounted(newest, each.component)
        because = because or f"the verdict does not say; it is {each.confidence:.2f} sure beside {newest.confidence:.2f}"
        yield Rival(component=each.component, fault_class=each.fault_class, confidence=each.confidence, because=because)
    for verdict in reversed(chain[:-1]):
        for culprit in culprits_of(verdict):
            if culprit.component not in told:
                told.add(culprit.component)
                said = f"named by v{verdict.version}"
                because = _accounted(newest, culprit.component) or "a later version found more for another"
                yield Rival(
                    component=culprit.component,
                    fault_class=verdict.fault_class,
                    confidence=verdict.confidence,
                    because=f"{said}; {because}",
                )


def _accounted(verdict: Verdict, component: str | None) -> str:
    return next((clean(each.because) for each in verdict.explained if each.component == component and component), "")


def would_change(verdict: Verdict, heard: Mapping[str, Heard]) -> Iterator[str]:
    if verdict.state is VerdictState.RESOLVED:
        yield "nothing any more: it is resolved; what comes back soon is its next version, other trouble another incident"
        return
    for each in verdict.unexplained:
        yield f"a cause of what this leaves unexplained ({clean(each)}): it may be a second fault"
    for each in verdict.unknown:
        yield f"word from what was not seen ({clean(each)}): it may confirm the verdict or name another"
    rival = max(verdict.alternatives, key=lambda each: each.confidence, default=None)
    if rival is not None:
        yield f"more evidence for {rival.component or 'nobody'} ({rival.fault_class}), which comes next"
    sources = {told.source for each in verdict.evidence if (told := heard.get(each.event_id))}
    if len(verdict.evidence) == 1:
        yield "doubt about its only line of evidence: without it nothing speaks for this verdict"
    elif len(sources) == 1 and len(heard) >= len(verdict.evidence):
        yield f"doubt about {sources.pop()}, the only source that it rests on"
    if verdict.fault_class is FaultClass.UNDETERMINED:
        yield CONTRADICTS[verdict.fault_class]
    else:
        named = names([each.component for each in culprits_of(verdict)]) or who(verdict)
        yield f"a contradiction ({named}): {CONTRADICTS[verdict.fault_class]}"
    if verdict.job is not None and verdict.trouble is not Trouble.IDLE:
        again = "steps that finish again" if verdict.trouble is Trouble.STALLED else "steps as fast as before"
        yield f"{again}: the verdict is then resolved"
