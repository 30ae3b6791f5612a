"""A story for a ticket, as Markdown.

What comes from logs goes into code spans: there a `#45` is no link to a ticket, an `@name` calls nobody, and `<b>` is no
HTML. What we say ourselves is escaped, since names of components and jobs occur in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from goodput_cli.explain.model import Story
from goodput_cli.explain.text import began, shortened
from goodput_cli.explain.words import clean

MOMENTS_SHOWN = 60
LISTED = 40
_SPECIAL = re.compile(r"[\\`*_{}\[\]<>#|~$@!]")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "@": "&#64;"}


def render(story: Story) -> str:
    return "\n".join(_lines(story)) + "\n"


def escape(text: str) -> str:
    """Prose, shown as it is written."""
    return _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], "\\" + found[0]), clean(text).replace("&", "&amp;"))


def code(text: str) -> str:
    """A code span, whatever backticks are in it."""
    text = clean(text)
    if not text:
        return "-"
    fence = "`" * (max(map(len, re.findall("`+", text)), default=0) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def cell(text: str) -> str:
    """A code span in a table, where a bar must be escaped even in code."""
    return code(text).replace("|", "\\|")


def _lines(story: Story) -> Iterator[str]:
    yield f"## {escape(story.headline)}"
    yield ""
    yield f"**{escape(story.summary)}**"
    yield ""
    about = f", job {code(story.job)}" if story.job else ""
    yield f"Verdict {code(story.verdict)}, version {story.version}, {story.state}; fabric {code(story.fabric)}{about}."
    yield from _head("What happened")
    yield f"Seconds after the first evidence, {began(story)}."
    yield ""
    yield "| s | | component | what |"
    yield "|---:|---|---|---|"
    for row in shortened(story.timeline, MOMENTS_SHOWN):
        if isinstance(row, int):
            yield f"| … | | | {row} more |"
        else:
            yield f"| {row.after_s:+.2f} | {row.kind} | {cell(row.component or '')} | {cell(row.what)} |"
    yield from _head("Evidence")
    for line in story.evidence[:LISTED]:
        heard = f" ({escape(line.heard)})" if line.heard else ""
        yield f"- {line.after_s:+.2f} s, {code(line.component or '')}: {code(line.excerpt)}{heard}<br>{escape(line.why)}"
    if not story.evidence:
        yield "None is cited."
    yield from _rest(len(story.evidence))
    yield from _head("Why this, and not the runner-up")
    for reason in story.why_this:
        yield f"- {escape(reason)}"
    for rival in story.rivals:
        name = code(rival.component or "nobody")
        yield f"- Not {name}, {escape(rival.fault_class)}, {rival.confidence:.2f}: {escape(rival.because)}"
    if story.explained:
        yield from _head("Explained, and nobody else's fault")
        for symptom in story.explained[:LISTED]:
            named = f"{code(symptom.who)}: " if symptom.who else ""
            yield f"- {named}{code(symptom.symptom)}: {escape(symptom.because)}"
        yield from _rest(len(story.explained))
    yield from _head("Not seen")
    for source in story.not_seen or ("no source is known to have been silent",):
        yield f"- {escape(source)}"
    yield from _head("What would change this verdict")
    for change in story.would_change:
        yield f"- {escape(change)}"
    yield from _head("What to do")
    advice = story.advice
    target = f" {code(advice.target)}" if advice.target else ""
    yield f"**{escape(advice.kind)}**{target}: {escape(advice.what)}, because {escape(advice.reason)}."
    yield ""
    for passed in advice.not_chosen:
        yield f"- Not {escape(passed.kind)}: {escape(passed.why)}"
    yield f"- Recovery: {escape(story.recovery)}"


def _head(title: str) -> Iterator[str]:
    yield ""
    yield f"### {title}"
    yield ""


def _rest(count: int) -> Iterator[str]:
    if count > LISTED:
        yield f"- … {count - LISTED} more"
