"""Small words of a story: how sure, who, and text of strangers made harmless."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from goodput_cli.verdict_view import MEANING, culprit_text, ranks_text
from goodput_common.contracts.ids import ComponentId, ComponentKind, InvalidComponentId, kind_of, rank_of
from goodput_common.contracts.verdict import Culprit, FaultClass, Trouble, Verdict, VerdictState

NAMES_SHOWN = 4
# Only words for a number that is always printed beside them.
SURE = ((0.97, "almost certainly"), (0.9, "very likely"), (0.7, "likely"), (0.5, "more likely than not"), (0.0, "perhaps"))
SUFFERS = {Trouble.STALLED: "{job} stands still", Trouble.SLOW: "{job} is slow", Trouble.IDLE: "no job waits for it"}


def clean(text: str) -> str:
    """One line without control characters: a log line must neither colour nor move about on the reader's terminal."""
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "�" for letter in text).strip()


def culprits_of(verdict: Verdict) -> tuple[Culprit, ...]:
    """All that are named; empty where nobody is."""
    return tuple(each for each in verdict.culprits or (verdict.culprit,) if each.component is not None)


def who(verdict: Verdict) -> str:
    if named := culprits_of(verdict):
        return " and ".join(culprit_text(each) for each in named)
    kind = verdict.culprit.kind
    if verdict.fault_class in (FaultClass.UNDETERMINED, FaultClass.NO_HARDWARE_FAULT) or kind is None:
        return "nobody"
    return f"a {kind} that you may not see"


def summary(verdict: Verdict) -> str:
    """Who is to blame for what, and how sure that is, in one sentence."""
    sure = next(word for least, word in SURE if round(verdict.confidence, 2) >= least)
    suffers = SUFFERS[verdict.trouble].format(job=f"job {verdict.job}" if verdict.job else "hardware")
    if verdict.fault_class is FaultClass.UNDETERMINED:
        said = f"Nobody can be named: {suffers}, and what was seen does not tell why"
    elif verdict.fault_class is FaultClass.NO_HARDWARE_FAULT:
        said = f"No hardware is at fault, {sure}: {suffers} for a reason of the application's own"
    else:
        verb = "are" if len(culprits_of(verdict)) > 1 else "is"
        meaning = MEANING[verdict.fault_class]
        said = f"{who(verdict)} {verb} {sure} to blame: {meaning} ({verdict.fault_class}), and {suffers}"
    over = f"; it is over: {clean(verdict.resolution)}" if verdict.state is VerdictState.RESOLVED else ""
    return f"{said}; confidence {verdict.confidence:.2f}{over}."


def names(components: Sequence[ComponentId | None]) -> str:
    """`rank:train/0-23`; others by name, at most a few of them."""
    known = [each for each in components if each is not None]
    jobs = {job for each in known if (job := _job(each)) is not None}
    if len(jobs) == 1 and all(_job(each) is not None for each in known) and len(known) > 1:
        ranks = ranks_text(tuple(rank_of(each)[1] for each in known)).removeprefix("ranks ").removeprefix("rank ")
        return f"rank:{jobs.pop()}/{ranks}"
    return listed(list(dict.fromkeys(known)))


def _job(component: ComponentId) -> str | None:
    try:
        return rank_of(component)[0] if kind_of(component) is ComponentKind.RANK else None
    except InvalidComponentId:
        return None


def listed(items: Iterable[str]) -> str:
    found = list(items)
    more = f" and {len(found) - NAMES_SHOWN} more" if len(found) > NAMES_SHOWN else ""
    return ", ".join(found[:NAMES_SHOWN]) + more


def many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
