"""Who holds up whom: from where ranks stand to the few that everybody else waits for.

Every unfinished operation is a question to its members: who has not joined? who has joined but is held up by something it
issued earlier? Following these questions from rank to rank ends at the ranks that wait for nobody: the roots. Whatever lies
on the way is a victim, however loudly it complains.

Four kinds of root:

* *not joined*: it is asked to join an operation, has not, and waits for nobody itself (stuck outside of collectives);
* *behind*: an operation that nobody can finish without it was finished by others, not by it. Its own device, or the thread
  that watches the device, has stopped. This holds whatever else it may be waiting for;
* *mismatch*: it joined with another operation or size than the rest of the group;
* *absent*: it says nothing at all. It is to blame alone where others wait and nobody else can be the reason; where it would
  be stuck behind a known root anyway, its silence is half a reason.

If all members of an operation are inside it, nothing else of theirs is open and nobody is behind, the recorder cannot tell
which of them (or what lies between them) is at fault: that group is *held inside*, and hardware evidence must decide.
"""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from goodput_correlator.domain.standing import OpKey, Pending, Standing, Standings


class RootKind(enum.StrEnum):
    NOT_JOINED = "not_joined"
    BEHIND = "behind"
    MISMATCH = "mismatch"
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Root:
    """`key` is the operation that shows it, `waiting` the ranks held up directly there, `lag` how many finished operations
    it has missed, `certainty` how well the recorder supports it, 0..1."""

    rank: int
    kind: RootKind
    certainty: float
    key: OpKey
    op: str
    waiting: tuple[int, ...]
    lag: int = 0
    frames: tuple[str, ...] = ()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Inside:
    """All of `ranks` are inside `key` and nobody is missing."""

    key: OpKey
    op: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Blame:
    """`roots` by rank; `waits_for` says, for each victim, whom it waits for and in which operation."""

    roots: tuple[Root, ...]
    inside: tuple[Inside, ...]
    waits_for: Mapping[int, tuple[int, OpKey, str]]
    stuck: frozenset[int]
    unexplained: frozenset[int] = frozenset()
    cycle: tuple[int, ...] = ()


@dataclass(slots=True)
class _Question:
    """One open operation: who is in it, and who is the reason that it does not end."""

    key: OpKey
    op: str
    inside: list[int] = field(default_factory=list)  # have it open
    not_joined: list[int] = field(default_factory=list)
    held_up: list[int] = field(default_factory=list)  # joined, but something issued earlier is still open
    absent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # have finished it
    running: list[int] = field(default_factory=list)  # in it, and their device has started it
    synchronising: bool = False

    @property
    def blockers(self) -> list[int]:
        return self.not_joined + self.held_up + self.absent


def find_roots(all_of: Standings) -> Blame:
    """Deterministic in its input; linear in the sum of the sizes of the groups with open operations."""
    questions = _questions(all_of)
    behind = _behind(all_of, questions)
    mismatched = _mismatched(all_of, questions)
    stuck = frozenset(rank for rank, each in all_of.known.items() if each.pending)
    certain = behind.keys() | mismatched.keys()
    edges: dict[int, list[tuple[OpKey, list[int]]]] = {}
    for rank, standing in all_of.known.items():
        if rank in certain:
            edges[rank] = []
            continue
        asked = [(each.key, [m for m in questions[each.key].blockers if m != rank]) for each in standing.pending]
        edges[rank] = [(key, blockers) for key, blockers in asked if blockers]
    wanted = _wanted(questions)
    not_joined = _not_joined(all_of, questions, edges, wanted, certain)
    roots: dict[int, Root] = {**not_joined, **mismatched, **behind}
    absent = _absent(all_of, wanted, edges, roots)
    sources = roots.keys() | absent.keys()
    inside = _inside(questions, sources)
    for each in inside:
        sources = sources | set(each.ranks)
    waits_for = _follow(edges, sources)
    unexplained = frozenset(rank for rank in stuck if rank not in waits_for and rank not in sources)
    cycle = tuple(sorted(unexplained)) if unexplained and not roots and not inside else ()
    found = sorted({**absent, **roots}.values(), key=lambda root: (-root.certainty, root.rank))
    return Blame(tuple(found), inside, waits_for, stuck, unexplained, cycle)


def _questions(all_of: Standings) -> dict[OpKey, _Question]:
    questions: dict[OpKey, _Question] = {}
    for standing in all_of.known.values():
        for pending in standing.pending:
            question = questions.get(pending.key)
            if question is None:
                question = questions[pending.key] = _Question(pending.key, pending.op)
            question.synchronising = question.synchronising or pending.synchronising
    for question in questions.values():
        _ask(all_of, question)
    return questions


def _ask(all_of: Standings, question: _Question) -> None:
    key = question.key
    members: Iterable[int] = (key.sender, key.receiver) if key.p2p else all_of.members.get(key.group, ())
    for member in members:
        standing = all_of.known.get(member)
        if standing is None:
            question.absent.append(member)
            continue
        mine = standing.opened(key)
        if mine is not None:
            question.inside.append(member)
            if mine.started:
                question.running.append(member)
            if standing.ordered and _earlier(standing, mine):
                question.held_up.append(member)
        elif key.p2p or standing.joined.get(key.group, -1) < key.seq:
            question.not_joined.append(member)
        elif standing.finished.get(key.group, -1) >= key.seq:
            question.done.append(member)
        else:
            question.held_up.append(member)  # joined, with an older operation of this very group still open


def _earlier(standing: Standing, mine: Pending) -> bool:
    return any(each.order < mine.order for each in standing.pending)


def _behind(all_of: Standings, questions: Mapping[OpKey, _Question]) -> dict[int, Root]:
    """Ranks that have not finished what others of the group could not have finished without them."""
    found: dict[int, Root] = {}
    for key, question in questions.items():
        if key.p2p or not question.synchronising:
            continue
        _not_started(question, found)
        if not question.done:
            continue
        if question.not_joined:
            continue  # it cannot have ended without them: those who say so have given up waiting
        ahead = max(all_of.known[other].finished.get(key.group, -1) for other in question.done)
        lag = ahead - key.seq + 1
        if lag < 2 and len(question.inside) > len(question.done):
            continue  # the last operation ended for a few only: what lies between them may be torn
        for rank in question.inside:
            before = found.get(rank)
            if before is None or lag > before.lag:
                certainty = 0.92 if lag >= 2 else 0.8
                detail = f"{len(question.done)} of {len(all_of.members.get(key.group, ()))} members have finished it"
                found[rank] = Root(
                    rank, RootKind.BEHIND, certainty, key, question.op, tuple(question.done), lag, detail=detail
                )
    return found


def _not_started(question: _Question, found: dict[int, Root]) -> None:
    """Members whose device has not begun what the devices of all others have, with nothing older in its way."""
    if question.blockers or question.done or len(question.running) < 2:
        return
    idle = [rank for rank in question.inside if rank not in question.running]
    if len(idle) * 2 > len(question.inside):
        return
    detail = f"the devices of {len(question.running)} members have started it, its own has not"
    for rank in idle:
        found.setdefault(
            rank,
            Root(rank, RootKind.BEHIND, 0.85, question.key, question.op, tuple(question.running), lag=1, detail=detail),
        )


def _mismatched(all_of: Standings, questions: Mapping[OpKey, _Question]) -> dict[int, Root]:
    """Ranks that brought another operation or size to the same place in the sequence than most of the group."""
    found: dict[int, Root] = {}
    for key, question in questions.items():
        if key.p2p or len(question.inside) < 2:
            continue
        brought: dict[int, tuple[object, ...]] = {}
        for rank in question.inside:
            mine = all_of.known[rank].opened(key)
            if mine is not None and mine.signature is not None:
                brought[rank] = mine.signature
        counts = Counter(brought.values())
        if len(counts) < 2:
            continue
        (usual, most), (_, next_most) = counts.most_common(2)
        for rank, signature in brought.items():
            if most > next_most and signature == usual:
                continue
            mine = all_of.known[rank].opened(key)
            odd = _words(signature)
            found[rank] = Root(
                rank,
                RootKind.MISMATCH,
                0.9 if most > next_most and most >= 2 else 0.5,
                key,
                question.op,
                tuple(other for other in question.inside if other != rank),
                frames=mine.frames if mine else (),
                detail=f"it brought {odd}, {most} others {_words(usual)}",
            )
    return found


def _words(signature: tuple[object, ...]) -> str:
    op, *rest = signature
    return f"{op} of {rest[0]}" if rest else str(op)


def _wanted(questions: Mapping[OpKey, _Question]) -> dict[int, list[_Question]]:
    """Rank -> the operations in which others wait for it to join."""
    wanted: dict[int, list[_Question]] = defaultdict(list)
    for question in questions.values():
        for rank in question.not_joined + question.absent:
            if any(other != rank for other in question.inside):
                wanted[rank].append(question)
    return wanted


def _not_joined(
    all_of: Standings,
    questions: Mapping[OpKey, _Question],
    edges: Mapping[int, list[tuple[OpKey, list[int]]]],
    wanted: Mapping[int, list[_Question]],
    certain: Iterable[int],
) -> dict[int, Root]:
    found: dict[int, Root] = {}
    already = set(certain)
    for rank, standing in all_of.known.items():
        asked = [each for each in wanted.get(rank, []) if rank in each.not_joined]
        if rank in already or edges[rank]:
            continue
        if not asked:
            if idle := _idle(all_of, standing, len(edges)):
                found[rank] = idle
            continue
        question = _telling(asked)
        if standing.pending and any(len(questions[each.key].inside) > 1 for each in standing.pending):
            continue  # it is inside something together with others: they are held inside, not by it alone
        detail = "nothing of its own is open" if not standing.pending else "what it has open waits for nobody"
        found[rank] = Root(rank, RootKind.NOT_JOINED, 0.92, question.key, question.op, tuple(question.inside), detail=detail)
    return found


def _idle(all_of: Standings, standing: Standing, known: int) -> Root | None:
    """A rank with nothing open while all others are stuck, and only silent ranks could be waiting for it: half a reason."""
    if standing.pending or not all_of.absent or sum(1 for each in all_of.known.values() if not each.pending) * 4 > known:
        return None
    shared = sorted(all_of.absent & _neighbours(all_of, standing.rank))
    if not shared:
        return None
    return Root(
        standing.rank,
        RootKind.NOT_JOINED,
        0.5,
        OpKey("", 0),
        "",
        (),
        detail="nothing of its own is open, while all others are held up in collectives",
    )


def _telling(asked: list[_Question]) -> _Question:
    """The question that shows most: a collective before an exchange of two, the most waiting, then the first by name."""
    return min(asked, key=lambda q: (q.key.p2p, -len(q.inside), q.key))


def _absent(
    all_of: Standings,
    wanted: Mapping[int, list[_Question]],
    edges: Mapping[int, list[tuple[OpKey, list[int]]]],
    roots: Mapping[int, Root],
) -> dict[int, Root]:
    """Silent ranks that others wait for. Where a known root may be holding up the silent one as well, its silence is half a
    reason at most; where nothing else can be the reason, it is the reason."""
    found: dict[int, Root] = {}
    heads = {rank: min(each.pending, key=lambda p: p.order).key for rank, each in all_of.known.items() if each.pending}
    victims = _follow(edges, roots).keys() | roots.keys()
    rivals = [rank for rank in all_of.absent if wanted.get(rank)]
    for rank in sorted(rivals):
        asked = wanted[rank]
        direct = [q for q in asked if any(heads[other] == q.key for other in q.inside if other not in roots)]
        question = _telling(direct or asked)
        if not direct:
            certainty = 0.25 if roots else 0.4
        elif roots and _neighbours(all_of, rank) & victims:
            certainty = 0.4 if question.key.p2p else 0.5
        else:
            certainty = 0.85 if len(rivals) == 1 else max(0.3, 0.85 / len(rivals))
        found[rank] = _absence(rank, certainty, question)
    return found


def _neighbours(all_of: Standings, rank: int) -> set[int]:
    """Everybody that shares a group with `rank`."""
    return {other for members in all_of.members.values() if rank in members for other in members} - {rank}


def _absence(rank: int, certainty: float, question: _Question) -> Root:
    return Root(
        rank,
        RootKind.ABSENT,
        certainty,
        question.key,
        question.op,
        tuple(other for other in question.inside if other != rank),
        detail="it says nothing of where it stands",
    )


def _inside(questions: Mapping[OpKey, _Question], sources: Iterable[int]) -> tuple[Inside, ...]:
    """Operations that all members are in, with nothing older open, and that still do not end."""
    known = set(sources)
    found = []
    for key, question in sorted(questions.items()):
        if question.blockers or question.done or len(question.inside) < 2 or known & set(question.inside):
            continue
        found.append(Inside(key, question.op, tuple(sorted(question.inside))))
    return tuple(found)


def _follow(edges: Mapping[int, list[tuple[OpKey, list[int]]]], sources: Iterable[int]) -> dict[int, tuple[int, OpKey, str]]:
    """For each rank that waits, directly or through others, for one of `sources`: whom, and in which operation."""
    waiting: dict[int, list[tuple[int, OpKey]]] = defaultdict(list)
    for rank, asked in edges.items():
        for key, blockers in asked:
            for blocker in blockers:
                waiting[blocker].append((rank, key))
    reached: dict[int, tuple[int, OpKey, str]] = {}
    roots = set(sources)
    frontier = sorted(roots)
    while frontier:
        after: set[int] = set()
        for blocker in frontier:
            for rank, key in sorted(waiting.get(blocker, [])):
                if rank not in reached and rank not in roots:
                    reached[rank] = (blocker, key, "directly" if blocker in roots else "through others")
                    after.add(rank)
        frontier = sorted(after)
    return reached
