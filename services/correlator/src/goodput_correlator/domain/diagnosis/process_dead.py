"""A rank's process is gone: killed, crashed, or ended by an exception of its own.

When one rank dies the others lose their connections and may die of that. Whoever says "connection closed by peer" is a
victim; the culprit left without a word, or with a reason of its own. A rank that left cleanly is done, not dead. If all
ranks leave within seconds and none gives a reason, somebody stopped the job - unless all but one lost their connections.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta

from goodput_common.contracts.job import RankExited
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_common.contracts.verdict import Action, ActionKind, FaultClass
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import cite, events, symptoms_of
from goodput_correlator.domain.finding import Finding

ENGINE = "process_dead"
CONSEQUENCE = re.compile(
    r"connection (?:closed|reset|refused)|reset by peer|closed by peer|broken pipe|remote process|timed? ?out|timeout"
    r"|watchdog|socket|no route to host|unreachable|NCCL.*(?:system|remote) error|aborted|communicator|process ?group"
    r"|Dist(?:Backend|Network|Store)Error",
    re.IGNORECASE,
)
ENDED = re.compile(r"SystemExit|KeyboardInterrupt|SIGTERM|SIGINT|SignalException|signal:? (?:15|2)\b")  # told to go
# what the loss of a peer never raises
OWN_FAULT = re.compile(
    r"^(?:\w+\.)*(?:ValueError|TypeError|IndexError|AssertionError|ZeroDivisionError|FileNotFoundError|OutOfMemoryError)\b"
)
TEXT_ONLY_MAX = 0.6
TOGETHER_S = 1.2  # by the broker's clock: deaths closer than this have no order
STOPPED_WITHIN_S = 6.0
OUTLIVED_S = 2.5
POLITE_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "15", "2", "1"})


@dataclass(frozen=True, slots=True)
class Death:
    rank: int
    seen: tuple[Observed, ...]
    reason: str
    signal: str
    consequence: bool
    polite: bool

    @property
    def at(self) -> Observed:
        return self.seen[0]

    @property
    def telling(self) -> bool:
        """It ended for a reason of its own: an exception, or a signal that nobody sends to end a job politely."""
        return not self.consequence and bool(self.reason or (self.signal and not self.polite))

    @property
    def wordless(self) -> bool:
        return not (self.reason or self.signal)


def deaths(case: Case) -> dict[int, Death]:
    """Every rank whose process is gone uncleanly, with what is known of it."""
    if case.placement is None:
        return {}
    gone: dict[int, list[Observed]] = {}
    for each, event in events(case, EventName.PROCESS_EXITED):
        rank = rank_of_event(case, each, event)
        if rank is not None and event.attrs.get("clean") != "true" and not of_another_life(case, rank, each):
            gone.setdefault(rank, []).append(each)
    clean = set()
    for rank, left in case.exits.items():
        assert isinstance(left.fact, RankExited)
        if left.fact.clean:
            clean.add(rank)
        else:
            gone.setdefault(rank, []).append(left)
    found = {}
    gone = {rank: seen for rank, seen in gone.items() if rank not in clean}
    for rank, seen in sorted(gone.items()):
        ordered = tuple(sorted(seen, key=lambda each: each.order))
        reason = next((e.fact.reason for e in ordered if isinstance(e.fact, RankExited) and e.fact.reason), "")
        attrs = [e.fact.attrs for e in ordered if isinstance(e.fact, Event)]
        signal = next((a["signal"] for a in attrs if a.get("signal")), "")
        found[rank] = Death(
            rank,
            ordered,
            reason,
            signal,
            bool(CONSEQUENCE.search(reason) or (len(gone) > 1 and ENDED.search(reason))),
            signal in POLITE_SIGNALS and not reason,
        )
    return found


def rank_of_event(case: Case, seen: Observed, event: Event) -> int | None:
    """The rank that a process event speaks of: by its component, its attribute, or the pid on that host."""
    assert case.placement is not None
    if event.component.startswith("rank:"):
        job, _, number = event.component.removeprefix("rank:").rpartition("/")
        return int(number) if job == case.job and number.isdigit() else None
    if event.attrs.get("job") not in (None, "", case.job):
        return None
    pid = event.attrs.get("pid", "")
    return case.placement.by_pid(seen.host, int(pid)) if pid.isdigit() else None


def of_another_life(case: Case, rank: int, seen: Observed) -> bool:
    """Whether what the collector says of a process (an event or a state) is about an earlier process of the same rank."""
    assert case.placement is not None
    place = case.placement.ranks.get(rank)
    if place is None:
        return True
    attrs = seen.fact.attrs if isinstance(seen.fact, Event | State) else {}
    if seen.host and place.host and seen.host != place.host:
        return True
    pid, generation = attrs.get("pid", ""), attrs.get("generation", "")
    pid_known = pid.isdigit() and place.pid > 0
    if pid_known and int(pid) != place.pid:
        return True
    older = generation.isdigit() and int(generation) < case.placement.generation
    if pid_known and not older:
        return False
    # a process may join a new generation under its old pid, and a container's first process always has the same one
    return older if place.registered_at is None else seen.received_at < place.registered_at


def diagnose(case: Case) -> tuple[Finding, ...]:
    found = deaths(case)
    if not found or case.placement is None:
        return ()
    if _stopped_as_a_whole(found, len(case.placement.ranks)):
        return ()
    in_time = {rank: death for rank, death in found.items() if death.telling or not _outlived(case, rank)}
    own = {rank: death for rank, death in in_time.items() if not death.consequence and not death.polite}
    candidates = own or in_time
    if not candidates:
        return tuple(_finding(case, death, 0.2) for death in found.values())
    first = min(candidates.values(), key=lambda death: death.at.order)
    together = [d for d in candidates.values() if d.at.received_at <= first.at.received_at + timedelta(seconds=TOGETHER_S)]
    telling = [death for death in together if death.telling]
    out = []
    for rank, death in found.items():
        if death in telling or (rank in own and death in together and not telling):
            score = 0.94 if len(together) == 1 or (len(telling) == 1 and death.telling) else 0.85 if death.telling else 0.5
        else:
            score = 0.2  # it died of what killed another, or with it
        if death.reason and any(d.wordless for d in together) and not OWN_FAULT.search(death.reason):
            score = min(score, TEXT_ONLY_MAX)  # a killed rank says nothing; what its peers say of that has many wordings
        out.append(_finding(case, death, score))
    return tuple(out)


def _outlived(case: Case, rank: int) -> bool:
    """Whether the rank still reported when steps had long stood still: then it died of the stall (a watchdog, or a launcher
    that restarts the job), and the stall not of its death - unless it had a reason of its own."""
    report = case.progress.get(rank)
    if case.offline or case.stalled_since is None or report is None:
        return False
    patience = timedelta(seconds=max(OUTLIVED_S, 2 * case.usual_step_s))
    return report.received_at > case.stalled_since + patience


def _stopped_as_a_whole(found: dict[int, Death], world: int) -> bool:
    """All gone within seconds, and none with a reason of its own: a person or a scheduler ended the job."""
    if len(found) < world:
        return False
    wordless = [death for death in found.values() if not death.consequence]
    if len(wordless) == 1 and len(found) > 1 and not wordless[0].polite:
        return False  # one went without a word and all the others say that they lost their connections: it was first
    times = [death.at.received_at for death in found.values()]
    return not any(death.telling for death in found.values()) and max(times) - min(times) <= timedelta(
        seconds=STOPPED_WITHIN_S
    )


def _finding(case: Case, death: Death, score: float) -> Finding:
    component = case.rank_component(death.rank)
    host = case.host_of_rank(death.rank)
    how = f"with: {death.reason}" if death.reason else f"by {death.signal}" if death.signal else "without a word"
    evidence = [cite(each, f"the process of rank {death.rank} ended {how}", score, component) for each in death.seen[:4]]
    for each, event in events(case, EventName.HOST_STALL):
        place = case.placement.ranks.get(death.rank) if case.placement else None
        if (
            event.attrs.get("what") == "oom_kill"
            and each.host == host
            and place
            and event.attrs.get("pid") == str(place.pid)
        ):
            evidence.append(cite(each, "the kernel killed it for want of memory", 0.5, component))
    return Finding(
        fault_class=FaultClass.PROCESS_DEAD,
        component=component,
        score=score,
        evidence=tuple(evidence),
        engine=ENGINE,
        ranks=(death.rank,),
        host=host,
        explains=symptoms_of(case),
        because="the others wait for a process that no longer exists",
        decisive=score >= 0.8,
        action=Action(
            kind=ActionKind.RESTART_RANK, target=component, reason="the process is gone; its host and GPU show no fault"
        ),
    )
