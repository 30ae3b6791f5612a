"""Who waits for whom: every unfinished operation as a question to its members.

Who has not joined it? Who has joined, but is held up by something issued earlier? Who says nothing? These are its
*blockers*; whoever is inside waits for them. The graph keeps operations as nodes (rank -> operation -> blockers), so that
one all-reduce of 512 ranks costs 1,024 edges and not 262,144.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from goodput_correlator.domain.standing import OpKey, Pending, Standing, Standings


@dataclass(slots=True)
class Question:
    """One open operation: who is in it, and who is the reason that it does not end."""

    key: OpKey
    op: str
    inside: list[int] = field(default_factory=list)  # have it open
    not_joined: list[int] = field(default_factory=list)
    held_up: list[int] = field(default_factory=list)  # joined, but something issued earlier is still open
    absent: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)  # have finished it
    running: list[int] = field(default_factory=list)  # in it, and their device has started it
    queued: list[int] = field(default_factory=list)  # in it, and their device has not
    synchronising: bool = False
    blockers: list[int] = field(default_factory=list)

    def waits_for_another(self, rank: int) -> bool:
        """Whether `rank`, being inside, waits for anybody but itself."""
        return len(self.blockers) > 1 or (bool(self.blockers) and self.blockers[0] != rank)


def ask_all(all_of: Standings) -> dict[OpKey, Question]:
    """Linear in the sum of the sizes of the groups with open operations."""
    questions: dict[OpKey, Question] = {}
    for standing in all_of.known.values():
        for pending in standing.pending:
            question = questions.get(pending.key)
            if question is None:
                question = questions[pending.key] = Question(pending.key, pending.op)
            question.synchronising = question.synchronising or pending.synchronising
    for question in questions.values():
        _ask(all_of, question)
    return questions


def _ask(all_of: Standings, question: Question) -> None:
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
            if mine.started is not None:
                (question.running if mine.started else question.queued).append(member)
            if standing.ordered and _has_earlier(standing, mine):
                question.held_up.append(member)
        elif key.p2p or standing.joined.get(key.group, -1) < key.seq:
            question.not_joined.append(member)
        elif standing.finished.get(key.group, -1) >= key.seq:
            question.done.append(member)
        else:
            question.held_up.append(member)  # joined, with an older operation of this very group still open
    question.blockers = question.not_joined + question.held_up + question.absent


def _has_earlier(standing: Standing, mine: Pending) -> bool:
    return any(each.order < mine.order for each in standing.pending)


class WaitGraph:
    """The questions as a graph. Ranks in `settled` wait for nobody, whatever they have open: their fault is known."""

    def __init__(self, all_of: Standings, questions: Mapping[OpKey, Question], settled: Set[int]) -> None:
        self._questions = questions
        self._settled = settled
        self._blocks: dict[int, list[OpKey]] = defaultdict(list)
        self.unjoined: dict[int, list[Question]] = defaultdict(list)  # rank -> where others wait for it to join
        self.unheard: dict[int, list[Question]] = defaultdict(list)  # the same for ranks that say nothing
        for key, question in questions.items():
            for blocker in question.blockers:
                self._blocks[blocker].append(key)
            for rank in question.not_joined:
                if question.inside:
                    self.unjoined[rank].append(question)
            for rank in question.absent:
                if question.inside:
                    self.unheard[rank].append(question)
        self.waiting = frozenset(
            rank
            for rank, standing in all_of.known.items()
            if rank not in settled and any(questions[each.key].waits_for_another(rank) for each in standing.pending)
        )

    def missing(self, key: OpKey) -> tuple[int, ...]:
        """Members that an open operation still waits for, one way or another."""
        question = self._questions.get(key)
        return tuple(question.blockers) if question is not None else ()

    def follow(self, sources: Iterable[int]) -> dict[int, tuple[int, OpKey, bool]]:
        """For each rank that waits for one of `sources`, directly or through others: whom it waits for, in which operation,
        and whether that is a source itself."""
        roots = set(sources)
        reached: dict[int, tuple[int, OpKey, bool]] = {}
        first_blocker: dict[OpKey, int] = {}
        frontier = sorted(roots)
        while frontier:
            after: set[int] = set()
            for blocker in frontier:
                for key in sorted(self._blocks.get(blocker, ())):
                    before = first_blocker.setdefault(key, blocker)
                    # all inside wait for the first blocker found, and that one for the second
                    waiting = self._questions[key].inside if before == blocker else (before,)
                    for rank in waiting:
                        if rank == blocker or rank in reached or rank in roots or rank not in self.waiting:
                            continue
                        reached[rank] = (blocker, key, blocker in roots)
                        after.add(rank)
            frontier = sorted(after)
        return reached
