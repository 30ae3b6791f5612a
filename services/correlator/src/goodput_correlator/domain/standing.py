"""Where each rank stands in its process groups: what it has joined, what it has finished, what it is still inside of.

Two sources say so. A flight-recorder dump lists every unfinished operation in the order in which the rank issued them. A
progress report only counts, a collective at a time, but comes every second. Either may be missing, and a rank's silence
must not be mistaken for a position: a rank nobody has heard since the stall began is *unknown*.

Traps that are real (torch 2.9-2.13): counts of one group mix collectives and point-to-point; a group's counts say nothing
when its last operation was a send; an only-active dump of a rank that stands still outside any collective holds no entry.
A job that crawls moves on after its dumps: a dump that a rank has left behind shows where it was, not where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump, GroupProgress, RankProgress
from goodput_correlator.domain.case import Case, Observed
from goodput_correlator.domain.gaps import silent_after_s

SETTLED_S = 0.8  # a report this long after the last step shows where the rank stands still

# Operations that no member can finish before every member has started them.
SYNCHRONISING = frozenset(
    {
        "all_reduce",
        "allreduce",
        "allreduce_coalesced",
        "all_gather",
        "_all_gather_base",
        "all_gather_into_tensor",
        "allgather",
        "_allgather_base",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "all_to_all",
        "all_to_all_single",
        "alltoall",
        "alltoall_base",
        "barrier",
        "monitored_barrier",
    }
)
# Operations whose members legitimately pass tensors of different sizes.
RAGGED = frozenset({"all_to_all", "all_to_all_single", "alltoall", "alltoall_base", "gather", "scatter"})
# Operations on a list with a tensor for each member, which may be of different sizes.
UNEVEN = frozenset({"all_gather", "allgather", "reduce_scatter"})


class OpKey(NamedTuple):
    """One operation as all its members know it: collective `seq` of a group, or the first open exchange of a pair."""

    group: str
    seq: int
    sender: int = -1
    receiver: int = -1

    @property
    def p2p(self) -> bool:
        return self.sender >= 0


@dataclass(frozen=True, slots=True)
class Pending:
    """An operation that a rank has issued and not finished. `order` is its place among all that the rank has open."""

    key: OpKey
    op: str
    order: int
    signature: tuple[object, ...] | None = None
    created_at: datetime | None = None
    frames: tuple[str, ...] = ()
    started: bool | None = None  # whether its device has begun it; None where the recorder keeps no timing

    @property
    def synchronising(self) -> bool:
        return self.op in SYNCHRONISING


@dataclass(frozen=True, slots=True)
class Standing:
    """One rank. `pending` has the first open operation of each lane (a group's collectives, or one direction of a pair)."""

    rank: int
    seen: Observed
    joined: Mapping[str, int]
    finished: Mapping[str, int]
    pending: tuple[Pending, ...]
    open_count: int = 0
    ordered: bool = True  # whether `order` is known across groups
    last_issued_at: datetime | None = None
    last_call: str = ""  # what it issued last: "all_reduce at train.py:41 in step", where the dump has stacks

    def opened(self, key: OpKey) -> Pending | None:
        return next((each for each in self.pending if each.key == key), None)


@dataclass(frozen=True, slots=True)
class Standings:
    """All that is known of one job. `absent` are ranks that exist but do not say where they stand."""

    world: frozenset[int]
    members: Mapping[str, tuple[int, ...]]
    names: Mapping[str, str]  # group -> what a person calls it
    known: Mapping[int, Standing] = field(default_factory=dict)
    history: Mapping[int, FlightRecorderDump] = field(default_factory=dict)
    stale: frozenset[int] = frozenset()  # ranks whose dump was taken before the others had come to where they stand
    live: bool = False  # of a job that stands still now; dumps that are read later were taken once all had given up

    @property
    def absent(self) -> frozenset[int]:
        return self.world - self.known.keys()

    def describe(self, key: OpKey, op: str = "") -> str:
        name = self.names.get(key.group) or key.group or "default"
        if key.p2p:
            return f"send {key.sender} -> {key.receiver} in group {name}"
        return f"{op or 'collective'} #{key.seq} of group {name}"


def standings(case: Case) -> Standings:
    """From the newest usable dump of each rank that has not moved on since, else its newest usable progress report."""
    members = {group: tuple(sorted(ranks)) for group, ranks in case.members.items()}
    names: dict[str, str] = {}
    usable = {rank: seen for rank, seen in case.dumps.items() if _usable_dump(case, seen)}
    for rank, seen in case.progress.items():
        fact = seen.fact
        if not isinstance(fact, RankProgress) or not fact.groups or not _usable_progress(case, seen):
            continue
        if rank not in usable or _moved_on(case, usable[rank], fact):
            usable[rank] = seen
    for seen in (*case.progress.values(), *case.dumps.values()):
        fact = seen.fact
        if isinstance(fact, RankProgress | FlightRecorderDump):
            _learn_groups(fact.groups, members, names)
    world = _world(case, members)
    _infer_members(usable.values(), members, world)
    known = {rank: _standing(rank, seen, members) for rank, seen in sorted(usable.items())}
    history = {rank: seen.fact for rank, seen in usable.items() if isinstance(seen.fact, FlightRecorderDump)}
    stale = _stale(known, members, history) if case.offline else frozenset()
    for rank in stale:
        del known[rank], history[rank]
    live = not case.offline and case.stalled_since is not None
    return Standings(world, members, names, known, history, stale=stale, live=live)


def _stale(
    known: Mapping[int, Standing], members: Mapping[str, tuple[int, ...]], history: Mapping[int, FlightRecorderDump]
) -> frozenset[int]:
    """Ranks whose dump cannot be of the same moment: two others at least have finished operations that need it, more than
    one beyond what it had joined. One is not enough: gloo also calls finished what it has given up waiting for."""
    finished: dict[str, dict[int, int]] = {}
    for rank, dump in history.items():
        for each in dump.collectives:
            if each.state is CollectiveState.COMPLETED and not each.p2p and each.op in SYNCHRONISING:
                mine = finished.setdefault(each.group, {})
                mine[rank] = max(each.seq, mine.get(rank, -1))
    found = set()
    for group, newest in finished.items():
        ahead = sorted(newest.values())[-2:]
        if len(ahead) < 2:
            continue
        for rank in members.get(group, ()):
            standing = known.get(rank)
            if standing is not None and group in standing.joined and 0 <= standing.joined[group] + 2 <= ahead[0]:
                found.add(rank)
    return frozenset(found) if len(found) * 2 < len(known) else frozenset()


def _usable_dump(case: Case, seen: Observed) -> bool:
    if case.offline or case.stalled_since is None:
        return True
    return seen.received_at >= case.stalled_since


def _usable_progress(case: Case, seen: Observed) -> bool:
    """Whether a report shows where a rank stands still. It does until the rank is silent: a report or two that got lost do
    not make its place unknown."""
    if case.offline or case.stalled_since is None:
        return True
    settled = case.stalled_since + timedelta(seconds=SETTLED_S)
    return seen.received_at >= settled and seen.received_at >= case.now - timedelta(seconds=silent_after_s(case))


def _moved_on(case: Case, dumped: Observed, report: RankProgress) -> bool:
    """Whether the rank has finished more since its dump. Its reports must have changed since, and not only differ from the
    dump: gloo's status may count what is no collective."""
    since = case.counted_since.get(report.rank)
    if case.offline or since is None or since <= dumped.received_at or not isinstance(dumped.fact, FlightRecorderDump):
        return False
    finished = {each.group: each.last_completed for each in dumped.fact.groups}
    return any(each.last_completed > finished.get(each.group, -1) for each in report.groups if not each.p2p)


def _learn_groups(groups: Iterable[GroupProgress], members: dict[str, tuple[int, ...]], names: dict[str, str]) -> None:
    for each in groups:
        if each.ranks and len(each.ranks) > len(members.get(each.group, ())):
            members[each.group] = tuple(sorted(each.ranks))
        if each.desc:
            names.setdefault(each.group, f"{each.desc} ({each.group})" if each.group else each.desc)


def _world(case: Case, members: Mapping[str, tuple[int, ...]]) -> frozenset[int]:
    ranks = {rank for group in members.values() for rank in group}
    ranks.update(case.dumps, case.progress)
    if case.placement is not None:
        ranks.update(case.placement.ranks)
        ranks.update(range(case.placement.world_size))
    return frozenset(ranks)


def _infer_members(seen: Iterable[Observed], members: dict[str, tuple[int, ...]], world: frozenset[int]) -> None:
    """Groups whose members no source lists: the whole world for the default group, else whoever was seen in it."""
    found: dict[str, set[int]] = {}
    for each in seen:
        fact = each.fact
        if not isinstance(fact, FlightRecorderDump | RankProgress):
            continue
        used = {group.group for group in fact.groups}
        if isinstance(fact, FlightRecorderDump):
            used |= {collective.group for collective in fact.collectives}
        for group in used:
            if group not in members:
                found.setdefault(group, set()).add(fact.rank)
    for group, ranks in found.items():
        members[group] = tuple(sorted(world if group in ("", "0", "default_pg") else ranks))


def _standing(rank: int, seen: Observed, members: Mapping[str, tuple[int, ...]]) -> Standing:
    fact = seen.fact
    if isinstance(fact, FlightRecorderDump):
        return _from_dump(rank, seen, fact)
    assert isinstance(fact, RankProgress)
    return _from_progress(rank, seen, fact)


def _from_dump(rank: int, seen: Observed, dump: FlightRecorderDump) -> Standing:
    joined: dict[str, int] = {}
    finished: dict[str, int] = {}
    for group in dump.groups:
        if group.p2p:
            continue  # its counts are of sends and receives
        joined[group.group] = group.last_enqueued
        finished[group.group] = group.last_completed
    lanes: dict[OpKey | str, Pending] = {}
    open_count = 0
    last_issued_at: datetime | None = None
    timed = any(g.last_started >= 0 for g in dump.groups) or any(
        c.state is CollectiveState.STARTED for c in dump.collectives
    )
    for order, each in enumerate(dump.collectives):
        if not each.p2p:
            joined[each.group] = max(each.seq, joined.get(each.group, -1))
        if each.created_at is not None and (last_issued_at is None or each.created_at > last_issued_at):
            last_issued_at = each.created_at
        if each.state is CollectiveState.COMPLETED:
            if not each.p2p:
                finished[each.group] = max(each.seq, finished.get(each.group, -1))
            continue
        open_count += 1
        key = _key(rank, each)
        if key is None:
            continue
        lane = key if key.p2p else key.group
        if lane not in lanes:
            started = each.state is CollectiveState.STARTED if timed else None
            lanes[lane] = Pending(key, each.op, order, signature_of(each), each.created_at, each.frames, started)
    for lane, first in lanes.items():
        if isinstance(lane, str):
            finished[lane] = min(finished.get(lane, first.key.seq - 1), first.key.seq - 1)
    last = dump.collectives[-1] if dump.collectives else None
    call = f"{last.op} at {last.frames[0]}" if last is not None and last.frames else ""
    return Standing(rank, seen, joined, finished, tuple(lanes.values()), open_count, True, last_issued_at, call)


def _from_progress(rank: int, seen: Observed, report: RankProgress) -> Standing:
    joined: dict[str, int] = {}
    finished: dict[str, int] = {}
    pending: list[Pending] = []
    for group in report.groups:
        if group.p2p:
            continue
        joined[group.group] = group.last_enqueued
        finished[group.group] = group.last_completed
        if group.last_enqueued > group.last_completed >= 0 or group.last_enqueued > 0 > group.last_completed:
            seq = group.last_completed + 1 if group.last_completed >= 0 else group.last_enqueued
            started = group.last_started >= seq if group.last_started >= 0 else None
            pending.append(Pending(OpKey(group.group, seq), report.in_collective, len(pending), started=started))
    return Standing(rank, seen, joined, finished, tuple(pending), len(pending), ordered=False)


def _key(rank: int, each: Collective) -> OpKey | None:
    if not each.p2p:
        return OpKey(each.group, each.seq)
    if each.peer is None:
        return None
    if "send" in each.op:
        return OpKey(each.group, 0, rank, each.peer)
    return OpKey(each.group, 0, each.peer, rank)


def signature_of(each: Collective) -> tuple[object, ...] | None:
    """What must agree between the members of one collective; None where nothing must."""
    if each.p2p:
        return None
    if each.op in RAGGED or (each.op in UNEVEN and (len(set(each.output_sizes)) > 1 or len(set(each.input_sizes)) > 1)):
        return (each.op,)
    return (each.op, each.input_sizes, each.dtypes)
