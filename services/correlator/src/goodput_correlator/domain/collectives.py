"""Who holds up whom: from where ranks stand to the few that everybody else waits for.

Every unfinished operation is a question to its members: who has not joined? who has joined but is held up by something it
issued earlier? Following these questions from rank to rank ends at the ranks that wait for nobody: the roots. Whatever lies
on the way is a victim, however loudly it complains.

Four kinds of root:

* *not joined*: it is asked to join an operation, has not, and waits for nobody itself (stuck outside of collectives);
* *behind*: an operation that nobody can finish without it was finished by others, not by it. Its own device, or the thread
  that watches the device, has stopped. This holds whatever else it may be waiting for;
* *mismatch*: it is out of step with the rest of the group: another operation or size, a call left out, another order
  (`desync` compares);
* *absent*: it says nothing at all. It is to blame alone where others wait and nobody else can be the reason; where it would
  be stuck behind a known root anyway, its silence is half a reason.

If all members of an operation are inside it, nothing else of theirs is open and nobody is behind, the recorder cannot tell
which of them (or what lies between them) is at fault: that group is *held inside*, and hardware evidence must decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from goodput_correlator.domain.desync import crossed, mismatched, shifted
from goodput_correlator.domain.roots import Inside, Odd, Root, RootKind
from goodput_correlator.domain.standing import OpKey, Standing, Standings
from goodput_correlator.domain.waits import Question, WaitGraph, ask_all

__all__ = ["Blame", "Inside", "Root", "RootKind", "find_roots"]

ONE_BEHIND_LIVE = 0.65  # a single rank that alone has not finished the last operation: its device, or the path to it
ONE_BEHIND_UNTIMED = 0.4  # where no device's start is known (gloo has none) its data may as well be lost on the way


@dataclass(frozen=True, slots=True)
class Blame:
    """`roots` by rank; `waits_for` says, for each victim, whom it waits for and in which operation."""

    roots: tuple[Root, ...]
    inside: tuple[Inside, ...]
    waits_for: Mapping[int, tuple[int, OpKey, bool]]  # (whom, in which operation, whether that is a root itself)
    stuck: frozenset[int]
    graph: WaitGraph = field(compare=False, repr=False)
    unexplained: frozenset[int] = frozenset()  # stuck, and nothing shows behind whom

    @property
    def innermost(self) -> tuple[Inside, ...]:
        """The smallest groups that are held inside: what is wrong lies with a member or between members of these, and the
        recorder cannot say more. Everybody counts alike there; hardware evidence has to decide."""
        least = min((len(each.ranks) for each in self.inside), default=0)
        return tuple(each for each in self.inside if len(each.ranks) == least)

    @property
    def left_to_hardware(self) -> frozenset[int]:
        """The ranks among which hardware evidence has to decide: those of the innermost groups, where no rank is named."""
        if any(root.certainty > 0.5 for root in self.roots):
            return frozenset()
        return frozenset(rank for each in self.innermost for rank in each.ranks)


def find_roots(all_of: Standings) -> Blame:
    """Deterministic in its input; about linear in the sum of the sizes of the groups with open operations."""
    questions = ask_all(all_of)
    odd = mismatched(all_of, questions)
    found = _find(all_of, questions, odd)
    off = shifted(all_of, _doubtful(all_of, found))
    return _find(all_of, questions, {**off, **odd}) if off else found


def _doubtful(all_of: Standings, found: Blame) -> frozenset[str]:
    """Groups in which somebody has not come or is behind, or nobody knows why it stands: a call may have been left out in
    them. To compare what all groups have called would cost more than all the rest."""
    groups = {
        root.key.group
        for root in found.roots
        if root.kind in (RootKind.NOT_JOINED, RootKind.BEHIND) or root.odd is Odd.ORDER
    }
    groups |= {each.key.group for rank in found.unexplained for each in all_of.known[rank].pending}
    return frozenset(groups)


def _find(all_of: Standings, questions: Mapping[OpKey, Question], odd: Mapping[int, Root]) -> Blame:
    certain = {**_behind(all_of, questions), **odd}
    graph = WaitGraph(all_of, questions, certain.keys())
    roots: dict[int, Root] = {**_not_joined(all_of, questions, graph, certain), **certain}
    absent = _absent(all_of, graph, roots)
    sources = roots.keys() | absent.keys()
    inside = _inside(all_of, questions, sources)
    for each in inside:
        sources = sources | set(each.ranks)
    waits_for = graph.follow(sources)
    stuck = frozenset(rank for rank, each in all_of.known.items() if each.pending)
    unexplained = frozenset(rank for rank in stuck if rank not in waits_for and rank not in sources)
    if unexplained and (circle := crossed(all_of, questions, unexplained)):
        roots |= circle
        waits_for = graph.follow(sources | circle.keys())
        unexplained = unexplained - waits_for.keys() - circle.keys()
    found = sorted({**absent, **roots}.values(), key=lambda root: (-root.certainty, root.rank))
    return Blame(tuple(found), inside, waits_for, stuck, graph, unexplained)


def _behind(all_of: Standings, questions: Mapping[OpKey, Question]) -> dict[int, Root]:
    """Ranks that have not finished what others of the group could not have finished without them."""
    found: dict[int, Root] = {}
    for key, question in questions.items():
        if key.p2p or not question.synchronising:
            continue
        _not_started(all_of, question, found)
        if not question.done:
            continue
        if question.not_joined:
            continue  # it cannot have ended without them: those who say so have given up waiting
        ahead = max(all_of.known[other].finished.get(key.group, -1) for other in question.done)
        lag = ahead - key.seq + 1
        if lag < 2 and len(question.inside) > len(question.done):
            continue  # the last operation ended for a few only: what lies between them may be torn
        if all_of.live and lag < 2 and len(question.inside) > 1:
            continue  # the network may have lost its last packets to several at once: held inside, and not at fault
        for rank in question.inside:
            before = found.get(rank)
            if before is None or lag > before.lag:
                timed = bool(question.running or question.queued)
                last = 0.8 if not all_of.live else ONE_BEHIND_LIVE if timed else ONE_BEHIND_UNTIMED
                certainty = 0.92 if lag >= 2 else last
                detail = f"{len(question.done)} of {len(all_of.members.get(key.group, ()))} members have finished it"
                found[rank] = Root(
                    rank, RootKind.BEHIND, certainty, key, question.op, tuple(question.done), lag, detail=detail
                )
    return found


def _not_started(all_of: Standings, question: Question, found: dict[int, Root]) -> None:
    """Members whose device has not begun what the devices of all others have, with nothing older in its way."""
    if question.blockers or question.done or len(question.running) < 2:
        return
    if len(question.queued) * 2 > len(question.inside):
        return
    detail = f"the devices of {len(question.running)} members have started it, its own has not"
    for rank in question.queued:
        standing = all_of.known[rank]
        if not standing.ordered and any(each.key != question.key for each in standing.pending):
            continue  # counts do not say what came first: it may be held up by what it has open in another group
        found.setdefault(
            rank,
            Root(rank, RootKind.BEHIND, 0.85, question.key, question.op, tuple(question.running), lag=1, detail=detail),
        )


def _not_joined(
    all_of: Standings, questions: Mapping[OpKey, Question], graph: WaitGraph, certain: Mapping[int, Root]
) -> dict[int, Root]:
    found: dict[int, Root] = {}
    odd = {rank for rank, root in certain.items() if root.odd is not None}
    for rank, standing in all_of.known.items():
        if rank in certain or rank in graph.waiting:
            continue
        # who is out of step itself may ask for what nobody has to join
        asked = [question for question in graph.unjoined.get(rank, ()) if not odd.issuperset(question.inside)]
        if not asked:
            if idle := _idle(all_of, standing):
                found[rank] = idle
            continue
        if any(len(questions[each.key].inside) > 1 for each in standing.pending):
            continue  # it is inside something together with others: they are held inside, not by it alone
        question = _telling(asked)
        detail = "nothing of its own is open" if not standing.pending else "what it has open waits for nobody"
        found[rank] = Root(rank, RootKind.NOT_JOINED, 0.92, question.key, question.op, tuple(question.inside), detail=detail)
    return found


def _idle(all_of: Standings, standing: Standing) -> Root | None:
    """A rank with nothing open while all others are stuck, and only silent ranks could be waiting for it: half a reason."""
    if (
        standing.pending
        or not all_of.absent
        or sum(1 for each in all_of.known.values() if not each.pending) * 4 > len(all_of.known)
    ):
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


def _telling(asked: list[Question]) -> Question:
    """The question that shows most: a collective before an exchange of two, the most waiting, then the first by name."""
    return min(asked, key=lambda q: (q.key.p2p, -len(q.inside), q.key))


def _absent(all_of: Standings, graph: WaitGraph, roots: Mapping[int, Root]) -> dict[int, Root]:
    """Silent ranks that others wait for. Where a known root may be holding up the silent one as well, its silence is half a
    reason at most; where nothing else can be the reason, it is the reason."""
    found: dict[int, Root] = {}
    heads = {
        min(each.pending, key=lambda p: p.order).key
        for rank, each in all_of.known.items()
        if each.pending and rank not in roots
    }
    victims = graph.follow(roots).keys() | roots.keys()
    rivals = sorted(rank for rank in all_of.absent if graph.unheard.get(rank))
    for rank in rivals:
        asked = graph.unheard[rank]
        direct = [question for question in asked if question.key in heads]
        question = _telling(direct or asked)
        if not direct:
            certainty = 0.25 if roots else 0.4
        elif roots and _neighbours(all_of, rank) & victims:
            certainty = 0.4 if question.key.p2p else 0.5
        else:
            certainty = 0.85 if len(rivals) == 1 else max(0.3, 0.85 / len(rivals))
        found[rank] = _absence(rank, certainty, question, stale=rank in all_of.stale)
    return found


def _neighbours(all_of: Standings, rank: int) -> set[int]:
    """Everybody that shares a group with `rank`."""
    return {other for members in all_of.members.values() if rank in members for other in members} - {rank}


def _absence(rank: int, certainty: float, question: Question, *, stale: bool) -> Root:
    return Root(
        rank,
        RootKind.ABSENT,
        certainty,
        question.key,
        question.op,
        tuple(other for other in question.inside if other != rank),
        detail="has only an older dump, of before the others came here" if stale else "says nothing of where it stands",
    )


def _inside(all_of: Standings, questions: Mapping[OpKey, Question], sources: Iterable[int]) -> tuple[Inside, ...]:
    """Operations that all members have joined, with nothing older open, and that do not end (live: for several of them)."""
    known = set(sources)
    found = []
    for key, question in sorted(questions.items()):
        if (
            question.blockers
            or (question.done and not all_of.live)
            or len(question.inside) < 2
            or known & set(question.inside)
        ):
            continue
        found.append(Inside(key, question.op, tuple(sorted(question.inside))))
    return tuple(found)
