"""Which ranks' processes are gone, how each ended, and whether that can have been why the job stands still.

A cause precedes its effect. Whoever acts on a stall ends processes too: a watchdog, a launcher, recovery after a verdict.
Such an end comes clearly after steps stopped, and explains nothing: it is an *aftermath*. Clearly means later than steps of
this job pause by themselves, and later than its start-up takes: a process that is killed in a pause, before anybody was
named, is why no step follows. What ends late for a reason of its own (killed for want of memory, crashed, an exception that
the loss of a peer never raises) is none, and is held to account.

Ends are placed on the broker's clock by `clues.happened_at`, so neither host clocks that are 2 s apart nor a collector that
tells late make an early end late.

The one message about an exit may be lost. Then an end is known by what remains: the collector lists the process as gone, or
the kernel has said that it killed that pid for its memory. The former is repeated for as long as it is true and says nothing
of when; the process ended somewhen after its last sign of life.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from goodput_common.contracts.job import RankExited, RankProgress
from goodput_common.contracts.telemetry import Event, EventName, State
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.clues import events, happened_at
from goodput_correlator.domain.timeline import LONG_PHASES

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
POLITE_SIGNALS = frozenset({"SIGTERM", "SIGINT", "SIGHUP", "15", "2", "1"})
CRASH_SIGNALS = frozenset({"SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "11", "7", "4", "8"})  # nobody sends these to end a job
GONE = "gone"  # the collector's word for a process that is no more
LATE_S = 5.0  # steps that stood still this long before a process ended do not stand still because of it
LIVED_ON_S = 2.5  # the same where only its last sign of life is known, which is earlier than its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The unclean end of one rank. `stood_s`: for how long steps had stood still by then, where that is known."""

    rank: int
    seen: tuple[Observed, ...]
    reason: str
    signal: str
    consequence: bool
    polite: bool
    died_at: datetime  # by the broker's clock
    killed_for_memory: Observed | None = None  # the kernel's own line about it
    stood_s: float = 0.0
    late: bool = False  # clearly after steps stopped, or after somebody was named for it
    unseen: bool = False  # nobody reported the exit itself: it died somewhen after `died_at`
    aftermath: bool = False  # late, and for no reason of its own: an effect of the stall

    @property
    def at(self) -> Observed:
        return self.seen[0]

    @property
    def telling(self) -> bool:
        """It ended for a reason of its own: an exception, a signal that nobody sends to end a job politely, or the kernel
        that wanted its memory."""
        return self.crashed or (not self.consequence and bool(self.reason or (self.signal and not self.polite)))

    @property
    def crashed(self) -> bool:
        """Ended by the kernel and not by a person or a program, whenever that was."""
        return self.killed_for_memory is not None or self.signal in CRASH_SIGNALS

    @property
    def wordless(self) -> bool:
        return not (self.reason or self.signal)


def deaths(case: Case) -> dict[int, Death]:
    """Every rank whose process is gone uncleanly, with what is known of it."""
    found: dict[int, Death] | None = case.memo.get("deaths")
    if found is None:
        found = case.memo["deaths"] = _deaths(case)
    return found


def _deaths(case: Case) -> dict[int, Death]:
    if case.placement is None:
        return {}
    gone = _gone(case)
    died_at = {rank: min(happened_at(case, each) for each in seen) for rank, seen in gone.items()}
    unseen = {rank: (seen, lived_until) for rank, seen, lived_until in _unseen(case, gone)}
    for rank, (seen_later, lived_until) in unseen.items():
        gone[rank], died_at[rank] = [seen_later], lived_until
    late = {rank for rank, at in died_at.items() if _late(case, rank, at, LIVED_ON_S if rank in unseen else LATE_S)}
    after_a_name = sum(1 for at in died_at.values() if _after_a_name(case, at))
    found = {}
    for rank, seen in sorted(gone.items()):
        ordered = tuple(sorted(seen, key=lambda each: each.order))
        reason = next((e.fact.reason for e in ordered if isinstance(e.fact, RankExited) and e.fact.reason), "")
        attrs = [e.fact.attrs for e in ordered if isinstance(e.fact, Event)]
        signal = next((a["signal"] for a in attrs if a.get("signal")), "")
        death = Death(
            rank=rank,
            seen=ordered,
            reason=reason,
            signal=signal,
            consequence=bool(CONSEQUENCE.search(reason) or (len(gone) > 1 and ENDED.search(reason))),
            polite=signal in POLITE_SIGNALS and not reason,
            died_at=died_at[rank],
            killed_for_memory=_killed_for_memory(case, rank),
            stood_s=(died_at[rank] - case.stalled_since).total_seconds() if case.stalled_since is not None else 0.0,
            late=rank in late,
            unseen=rank in unseen,
        )
        torn_down = after_a_name > 1 and _after_a_name(case, death.died_at)
        if death.late and not death.crashed and (torn_down or not _own_words(death)):
            death = replace(death, aftermath=True)
        found[rank] = death
    return found


def _gone(case: Case) -> dict[int, list[Observed]]:
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
    return {rank: seen for rank, seen in gone.items() if rank not in clean}


def _unseen(case: Case, seen_to_end: Iterable[int]) -> list[tuple[int, Observed, datetime]]:
    """Ranks whose exit nobody reported and that are gone nevertheless: (rank, what says so, until when it was alive)."""
    assert case.placement is not None
    left = frozenset(seen_to_end) | case.exits.keys()
    killed = {
        rank: line
        for rank in case.placement.ranks
        if rank not in left and (line := _killed_for_memory(case, rank)) is not None
    }
    listed = _listed_as_gone(case)
    found = []
    for rank in sorted((killed.keys() | listed.keys()) - left):
        seen = killed[rank] if rank in killed else listed[rank]
        said = case.progress.get(rank)
        if (said is not None and _speaks(case, said, seen)) or _before_it_registered(case, rank, seen):
            continue  # the word of an end is about another process
        if rank in killed:
            found.append((rank, seen, happened_at(case, seen)))
            continue
        lived = [said.received_at] if said is not None else []
        lived += [
            happened_at(case, each)
            for each in case.cpu.get(case.rank_component(rank), ())
            if isinstance(each.fact, State) and each.fact.value != GONE and not of_another_life(case, rank, each)
        ]
        found.append((rank, seen, min(max(lived, default=seen.received_at), happened_at(case, seen))))
    return found


def _speaks(case: Case, said: Observed, seen: Observed) -> bool:
    """Whether a rank has reported since its end was told, or has done so until now: then another process is gone."""
    patience = timedelta(seconds=LIVED_ON_S)
    lately = seen.source == "process" and not case.offline and said.received_at > case.now - patience
    return lately or said.received_at > seen.received_at + patience


def _before_it_registered(case: Case, rank: int, seen: Observed) -> bool:
    place = case.placement.ranks.get(rank) if case.placement is not None else None
    return place is not None and place.registered_at is not None and seen.received_at < place.registered_at


def _listed_as_gone(case: Case) -> dict[int, Observed]:
    """The ranks that their host's collector lists as gone, and not as having left in order."""
    found = {}
    for each in case.observed:
        fact = each.fact
        if not isinstance(fact, State) or fact.name != "process" or fact.value != GONE or fact.attrs.get("clean") == "true":
            continue
        job, _, number = fact.component.removeprefix("rank:").rpartition("/")
        if job == case.job and number.isdigit() and not of_another_life(case, int(number), each):
            found[int(number)] = each
    return found


def _late(case: Case, rank: int, died_at: datetime, late_s: float) -> bool:
    if case.offline or case.stalled_since is None:
        return False
    if _after_a_name(case, died_at):
        return True
    patience = timedelta(seconds=max(late_s, late_s - 2.0 + 2 * case.usual_step_s, case.patience_s))
    return died_at > case.stalled_since + patience and not in_long_phase(case, rank)


def _after_a_name(case: Case, died_at: datetime) -> bool:
    """Whether a culprit of this stall had been named by then: from that moment on somebody may act."""
    return not case.offline and case.named_at is not None and died_at > case.named_at


def in_long_phase(case: Case, rank: int) -> bool:
    """Whether it spoke last from a checkpoint or the like: then steps stood still with good reason before it ended."""
    said = case.progress.get(rank)
    return said is not None and isinstance(said.fact, RankProgress) and said.fact.phase in LONG_PHASES


def _own_words(death: Death) -> bool:
    """An exception that is not about peers, and no word of having been told to go."""
    return bool(death.reason) and not death.consequence and not ENDED.search(death.reason)


def _killed_for_memory(case: Case, rank: int) -> Observed | None:
    place = case.placement.ranks.get(rank) if case.placement is not None else None
    if place is None:
        return None
    pids = {str(place.pid)} if place.pid > 0 else set()
    outer_pid, told_at = case.outer_pids.get(case.rank_component(rank), (0, case.now))
    if outer_pid > 0 and (place.registered_at is None or told_at >= place.registered_at):
        pids.add(str(outer_pid))  # in a container it knows itself by another number than the kernel does
    lines = _kernel_kills(case)
    found = (lines.get((place.host, pid)) for pid in sorted(pids))
    return next((each for each in found if each is not None), None)


def _kernel_kills(case: Case) -> dict[tuple[str, str], Observed]:
    """What the kernels have killed for want of memory, by host and the host's own number of the process: the first word."""
    found: dict[tuple[str, str], Observed] | None = case.memo.get("kernel_kills")
    if found is None:
        found = case.memo["kernel_kills"] = {}
        for each, event in events(case, EventName.HOST_STALL):
            if event.attrs.get("what") == "oom_kill":
                found.setdefault((each.host, event.attrs.get("pid", "")), each)
    return found


def gone_by_themselves(found: Iterable[Death]) -> frozenset[int]:
    """The ranks whose end may be why the others wait."""
    return frozenset(death.rank for death in found if not death.aftermath)


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
