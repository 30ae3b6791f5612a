"""A story on the terminal. One fact a line, so that it can be searched when it is piped; colour comes from the console,
which uses it on a terminal only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from rich.text import Text

from goodput_cli.explain.model import MomentKind, Story
from goodput_cli.explain.words import clean

T = TypeVar("T")
MOMENTS_SHOWN = 40
EVIDENCE_SHOWN = 12
EXPLAINED_SHOWN = 12
STYLES = {
    MomentKind.STEP: "bold",
    MomentKind.EVIDENCE: "cyan",
    MomentKind.SYMPTOM: "dim",
    MomentKind.VERDICT: "red",
    MomentKind.RECOVERY: "green",
}


def lines(story: Story) -> Iterator[Text]:
    yield Text(clean(story.summary), style="bold")
    yield _dim(f"verdict {story.verdict} v{story.version} · {story.state} · fabric {story.fabric}")
    yield from _head(f"what happened (seconds after the first evidence, {began(story)})")
    for row in shortened(story.timeline, MOMENTS_SHOWN):
        if isinstance(row, int):
            yield _dim(f"  … {row} more")
            continue
        where = "  " if row.kind is MomentKind.VERDICT else f"  {clean(row.component or '-')}  "
        yield Text.assemble((f"  {row.after_s:+9.2f}", "dim"), f"  {row.kind:8}", where, (clean(row.what), STYLES[row.kind]))
    yield from _head("evidence")
    for line in story.evidence[:EVIDENCE_SHOWN]:
        heard = f"  [{clean(line.heard)}]" if line.heard else ""
        at = (f"  {line.after_s:+9.2f}  ", "dim")
        yield Text.assemble(at, f"{clean(line.component or '-')}: ", (line.excerpt, "cyan"), (heard, "dim"))
        yield Text(f"             which means: {line.why}  (weight {line.weight:.2f})")
    yield from _rest(len(story.evidence), EVIDENCE_SHOWN)
    if not story.evidence:
        yield Text("  none is cited")
    yield from _head("why this, and not the runner-up")
    for reason in story.why_this:
        yield _item(reason)
    for rival in story.rivals:
        name = f"{rival.component or 'nobody'}, {rival.fault_class}, {rival.confidence:.2f}"
        yield Text.assemble("  - not ", (clean(name), "yellow"), f": {clean(rival.because)}")
    if story.explained:
        yield from _head("explained, and nobody else's fault")
        for symptom in story.explained[:EXPLAINED_SHOWN]:
            named = f"{symptom.who}: " if symptom.who else ""
            yield _item(f"{named}{symptom.symptom}: {symptom.because}")
        yield from _rest(len(story.explained), EXPLAINED_SHOWN)
    yield from _head("not seen")
    for source in story.not_seen or ("no source is known to have been silent",):
        yield _item(source)
    yield from _head("what would change this verdict")
    for change in story.would_change:
        yield _item(change)
    yield from _head("what to do")
    advice = story.advice
    yield Text.assemble("  ", (f"{advice.kind} {clean(advice.target or '')}".strip(), "bold green"), f": {advice.what}")
    yield _item(f"because {advice.reason}")
    for passed in advice.not_chosen:
        yield _item(f"not {passed.kind}: {passed.why}")
    yield _item(f"recovery: {story.recovery}")


def began(story: Story) -> str:
    return f"{story.began_at:%Y-%m-%d %H:%M:%S.%f}"[:-3] + f" {story.began_at:%Z}".rstrip()


def shortened(rows: tuple[T, ...], most: int) -> list[T | int]:
    """The first and the last of many, with the number of those left out in between."""
    if len(rows) <= most:
        return list(rows)
    first, last = most // 2, most - most // 2
    return [*rows[:first], len(rows) - most, *rows[-last:]]


def _head(title: str) -> Iterator[Text]:
    yield Text("")
    yield Text(title, style="bold")


def _item(text: str) -> Text:
    return Text(f"  - {clean(text)}")


def _dim(text: str) -> Text:
    return Text(text, style="dim")


def _rest(count: int, shown: int) -> Iterator[Text]:
    if count > shown:
        yield _dim(f"  … {count - shown} more (--json shows all)")
