"""Who is out of step with its group: comparing, place by place, what the members called.

A process group counts its collectives, so the n-th of one member has to be the n-th of all. Where it is another operation,
shape or type of data, the few are wrong and not the many; two that differ from each other are both suspects. What the many
have finished counts, too: the smaller tensors of a mismatch may be through while the larger one waits for ever.

Two faults need more than one place. A call *left out* (or made *twice*) shifts everything behind it by one: from some place
on a member calls what the others call one place later (earlier). Where operations look alike, the line of user code that
called them tells them apart. And calls in another *order* make a circle: some wait in A for those who wait in B for them.
A call left out of A, by a rank that then waits in B, looks the same, and is said to.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from goodput_common.contracts.job import Collective
from goodput_correlator.domain.roots import Odd, Root, RootKind
from goodput_correlator.domain.standing import OpKey, Standings, signature_of
from goodput_correlator.domain.waits import Question

CLEAR, UNCLEAR = 0.9, 0.5  # a minority against a majority of two at least; ranks that merely differ
SHIFTED, CROSSED = 0.88, 0.85
SUSPECT = 0.45  # one of two between which nothing decides
ALIKE_MIN = 2  # places that have to agree once shifted
CROSSING_MAX = 16  # so many that wait elsewhere are not out of order: they are late

Called = Mapping[OpKey, Mapping[int, Collective]]


def mismatched(all_of: Standings, questions: Mapping[OpKey, Question]) -> dict[int, Root]:
    """Ranks that brought another operation or size to the same place in the sequence than most of the group."""
    found: dict[int, Root] = {}
    called = _called_at(all_of, questions)
    for key, question in questions.items():
        if key.p2p:
            continue
        brought: dict[int, tuple[object, ...]] = {}
        for rank, each in called.get(key, {}).items():
            if (signature := signature_of(each)) is not None:
                brought[rank] = signature
        for rank in question.inside:
            mine = all_of.known[rank].opened(key)
            if mine is not None and mine.signature is not None:
                brought.setdefault(rank, mine.signature)
        counts = Counter(brought.values())
        if len(counts) < 2:
            continue
        lines = {rank: _frames(all_of, called, key, rank) for rank in sorted(brought)}
        ordered = sorted(counts.items(), key=lambda each: (-each[1], str(each[0])))
        (usual, most), (_, next_most) = ordered[0], ordered[1]
        clear = most > next_most
        for rank, signature in sorted(brought.items()):
            if clear and signature == usual:
                continue
            others = usual if signature != usual else ordered[1][0]
            found[rank] = Root(
                rank,
                RootKind.MISMATCH,
                CLEAR if clear and most >= 2 else UNCLEAR,
                key,
                question.op,
                tuple(other for other in question.inside if other != rank),
                frames=lines[rank],
                detail=f"it brought {_words(signature)}, {counts[others]} others {_words(others)}",
                theirs=next(
                    (f for r in sorted(brought) if brought[r] == others and (f := _frames(all_of, called, key, r))), ()
                ),
                odd=_how(signature, others),
            )
    return found


def _called_at(all_of: Standings, questions: Mapping[OpKey, Question]) -> Called:
    """What the dumps show at the places of open collectives, finished entries included."""
    wanted: dict[str, set[int]] = defaultdict(set)
    for key in questions:
        if not key.p2p:
            wanted[key.group].add(key.seq)
    found: dict[OpKey, dict[int, Collective]] = defaultdict(dict)
    for rank, dump in all_of.history.items():
        for each in dump.collectives:
            if each.seq in wanted.get(each.group, ()) and not each.p2p:
                found[OpKey(each.group, each.seq)][rank] = each
    return found


def _frames(all_of: Standings, called: Called, key: OpKey, rank: int) -> tuple[str, ...]:
    if (each := called.get(key, {}).get(rank)) is not None and each.frames:
        return each.frames
    mine = all_of.known[rank].opened(key) if rank in all_of.known else None
    return mine.frames if mine is not None else ()


def _how(mine: tuple[object, ...], theirs: tuple[object, ...]) -> Odd:
    if mine[0] != theirs[0]:
        return Odd.TYPE
    return Odd.SHAPE if mine[1:2] != theirs[1:2] else Odd.DTYPE


def _words(signature: tuple[object, ...]) -> str:
    op, *rest = signature
    if not rest:
        return str(op)
    types = rest[1] if len(rest) > 1 else ()
    named = f" {', '.join(map(str, types))}" if isinstance(types, tuple) and types else ""
    return f"{op} of {rest[0]}{named}"


# -- a call left out, or one too many ----------------------------------------------------------------------------------

Token = tuple[object, ...]


def shifted(all_of: Standings, groups: Iterable[str]) -> dict[int, Root]:
    """Ranks whose calls in one of `groups` are those of the others, one place off from some place on."""
    wanted = set(groups)
    entries: dict[str, dict[int, dict[int, Collective]]] = defaultdict(lambda: defaultdict(dict))
    for rank in sorted({rank for group in wanted for rank in all_of.members.get(group, ())} & all_of.history.keys()):
        for each in all_of.history[rank].collectives:
            if each.group in wanted and not each.p2p:
                entries[each.group][rank][each.seq] = each
    found: dict[int, Root] = {}
    for group in sorted(entries):
        for root in _shifted_in(group, entries[group]):
            found.setdefault(root.rank, root)
    return found


def _token(each: Collective) -> Token:
    return (*(signature_of(each) or (each.op,)), each.frames[0] if each.frames else "")


def _shifted_in(group: str, calls: Mapping[int, Mapping[int, Collective]]) -> list[Root]:
    at: dict[int, Counter[Token]] = defaultdict(Counter)
    tokens = {rank: {seq: _token(each) for seq, each in mine.items()} for rank, mine in calls.items()}
    for mine in tokens.values():
        for seq, token in mine.items():
            at[seq][token] += 1
    if all(len(counts) < 2 for counts in at.values()):
        return []
    pair = len(tokens) == 2
    usual = {seq: most for seq, counts in at.items() if (most := _majority(counts)) is not None}
    found = []
    for rank, mine in sorted(tokens.items()):
        others = usual if not pair else next(theirs for other, theirs in tokens.items() if other != rank)
        first = next((seq for seq in sorted(mine) if seq in others and mine[seq] != others[seq]), None)
        if first is None:
            continue
        odd = Odd.MISSING if _alike(mine, others, first, 1) else Odd.EXTRA if _alike(others, mine, first, 1) else None
        if odd is None:
            continue
        source = calls[rank] if odd is Odd.EXTRA else _who_called(calls, first, others[first])
        what = source[first]
        line = f" at {what.frames[0]}" if what.frames else ""
        did, off = ("left out", "ahead") if odd is Odd.MISSING else ("made one more:", "behind")
        detail = f"it {did} {what.op}{line}, #{first} of the group, and is one place {off}"
        if pair:
            detail += ", or the other one is off: of two, neither can be told"
        found.append(
            Root(
                rank,
                RootKind.MISMATCH,
                SUSPECT if pair else SHIFTED,
                OpKey(group, first),
                what.op,
                tuple(other for other in sorted(tokens) if other != rank),
                frames=calls[rank][first].frames,
                detail=detail,
                theirs=_who_called(calls, first, others[first])[first].frames,
                odd=odd,
            )
        )
    return found


def _majority(counts: Counter[Token]) -> Token | None:
    ordered = counts.most_common(2)
    if ordered[0][1] < 2 or (len(ordered) > 1 and ordered[0][1] == ordered[1][1]):
        return None
    return ordered[0][0]


def _alike(ahead: Mapping[int, Token], behind: Mapping[int, Token], first: int, by: int) -> bool:
    """Whether `ahead` calls, from `first` on, what `behind` calls `by` places later."""
    places = [seq for seq in ahead if seq >= first and seq + by in behind]
    return len(places) >= ALIKE_MIN and all(ahead[seq] == behind[seq + by] for seq in places)


def _who_called(calls: Mapping[int, Mapping[int, Collective]], seq: int, token: Token) -> Mapping[int, Collective]:
    return next(mine for _, mine in sorted(calls.items()) if seq in mine and _token(mine[seq]) == token)


# -- circles -----------------------------------------------------------------------------------------------------------


def crossed(all_of: Standings, questions: Mapping[OpKey, Question], unexplained: Iterable[int]) -> dict[int, Root]:
    """Ranks that wait in one operation for those who wait for them in another: the fewer of the two sides, or both."""
    left = {rank for rank in unexplained if all_of.known[rank].ordered}
    heads = {rank: min(all_of.known[rank].pending, key=lambda each: each.order).key for rank in left}
    found: dict[int, Root] = {}
    done: set[frozenset[OpKey]] = set()
    for rank in sorted(left):
        here = heads[rank]
        for other in sorted({heads[each] for each in questions[here].blockers if each in heads}):
            pair = frozenset((here, other))
            if other == here or pair in done:
                continue
            done.add(pair)
            for root in _crossing(all_of, questions, heads, here, other):
                found.setdefault(root.rank, root)
    return found


def _crossing(
    all_of: Standings, questions: Mapping[OpKey, Question], heads: Mapping[int, OpKey], one: OpKey, two: OpKey
) -> list[Root]:
    first = _waiting_for(questions, heads, one, two)
    second = _waiting_for(questions, heads, two, one)
    if not first or not second or min(len(first), len(second)) > CROSSING_MAX:
        return []
    # of as many on either side, those are odd for whose call more wait
    in_one, in_two = (sum(head == each for head in heads.values()) for each in (one, two))
    sizes = (len(first), -in_two), (len(second), -in_one)
    even = sizes[0] == sizes[1]
    fewer, more, here, there = (first, second, one, two) if sizes[0] <= sizes[1] else (second, first, two, one)
    sides = [(fewer, more, here, there)] + ([(more, fewer, there, here)] if even else [])
    found = []
    for mine, others, own, asked in sides:
        for rank in mine:
            opened, theirs = all_of.known[rank].opened(own), all_of.known[others[0]].opened(asked)
            missed = all_of.describe(asked, questions[asked].op)
            detail = (
                f"it waits in {all_of.describe(own, questions[own].op)} for {len(others)} that wait for it in {missed}: "
                "it left that out, or calls the two in another order"
            )
            if even:
                detail += "; as many on either side, so neither can be told"
            found.append(
                Root(
                    rank,
                    RootKind.MISMATCH,
                    SUSPECT if even else CROSSED,
                    asked,
                    questions[asked].op,
                    others,
                    frames=opened.frames if opened is not None else (),
                    detail=detail,
                    theirs=theirs.frames if theirs is not None else (),
                    odd=Odd.ORDER,
                )
            )
    return found


def _waiting_for(
    questions: Mapping[OpKey, Question], heads: Mapping[int, OpKey], here: OpKey, asked: OpKey
) -> tuple[int, ...]:
    """Ranks with `here` at their head for which `asked` waits."""
    return tuple(sorted(rank for rank in questions[asked].blockers if heads.get(rank) == here))
