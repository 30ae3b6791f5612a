"""What `check` found, in words. Plain lines: a container without a terminal shows them as well as the command line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from goodput_collector.application.check import Outcome, SourceCheck
from goodput_collector.dry_run import Report

MEANING = {
    Outcome.OK: "read",
    Outcome.PARTLY: "read, but for a part",
    Outcome.UNREADABLE: "there, and cannot be read",
    Outcome.NOTHING: "readable, nothing to watch now",
    Outcome.ABSENT: "this host has no such thing",
    Outcome.OFF: "not read, by the settings",
}
HEADER = ("source", "outcome", "every", "CPU a read", "of a core", "covers")
COVERED_SHOWN = 3
Line = tuple[Outcome | None, str]
"""With the outcome that it is about, for whoever has colours."""


def broken(report: Report) -> bool:
    return any(each.outcome is Outcome.UNREADABLE for each in report.sources)


def lines(report: Report, *, all_covered: bool = False) -> Iterator[Line]:
    user = "root" if report.uid == 0 else f"user {report.uid}"
    yield None, f"host {report.host}, read as {user}; jobs register in {report.run_dir}"
    for note in report.notes:
        yield Outcome.PARTLY, f"note: {note}"
    yield None, ""
    yield from _table(report, all_covered=all_covered)
    said = [_said(each, report.told_by.get(each.source, "")) for each in report.sources]
    for outcome in (Outcome.UNREADABLE, Outcome.PARTLY, Outcome.NOTHING, Outcome.ABSENT, Outcome.OFF):
        of_it = [text for each, text in zip(report.sources, said, strict=True) if each.outcome is outcome]
        if of_it:
            yield None, ""
            yield outcome, f"{outcome}: {MEANING[outcome]}"
            yield from ((None, f"  {text}") for text in of_it)
    yield None, ""
    yield _summary(report)


def name_of(each: SourceCheck) -> str:
    return f"{each.source} {each.instance}".strip()


def _table(report: Report, *, all_covered: bool) -> Iterator[Line]:
    rows = [(each.outcome, _cells(each, all_covered=all_covered)) for each in report.sources]
    widths = [max(len(cells[column]) for cells in (HEADER, *(cells for _, cells in rows))) for column in range(len(HEADER))]
    for outcome, cells in ((None, HEADER), *rows):
        yield outcome, "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _cells(each: SourceCheck, *, all_covered: bool) -> tuple[str, ...]:
    read = each.read_us is not None
    return (
        name_of(each),
        str(each.outcome),
        f"{each.interval_s:g} s" if read and each.interval_s is not None else "",
        f"{each.read_us / 1000:.2f} ms" if each.read_us is not None else "",
        f"{each.cpu_percent:.3f} %" if each.cpu_percent is not None else "",
        _covers(each, all_covered=all_covered),
    )


def _covers(each: SourceCheck, *, all_covered: bool) -> str:
    shown = each.covered if all_covered else each.covered[:COVERED_SHOWN]
    more = len(each.covered) - len(shown)
    return ", ".join(shown) + (f" and {more} more (--covered)" if more else "")


def _said(each: SourceCheck, told_by: str) -> str:
    said = "; ".join(part for part in (each.reason, each.remedy) if part)
    told = f" [{told_by}]" if told_by and each.outcome is not Outcome.OFF else ""
    return f"{name_of(each)}: {said}{told}"


def _summary(report: Report) -> Line:
    count = Counter(each.outcome for each in report.sources)
    counted = ", ".join(f"{count[outcome]} {outcome}" for outcome in Outcome if count[outcome])
    cost = sum(each.cpu_percent or 0.0 for each in report.sources)
    unseen = sorted({name_of(each) for each in report.sources if each.outcome is Outcome.UNREADABLE})
    parts = sorted({name_of(each) for each in report.sources if each.outcome is Outcome.PARTLY})
    nothing = sorted({name_of(each) for each in report.sources if each.outcome is Outcome.NOTHING})
    if unseen:
        said, outcome = f"not seen on this host: {', '.join(unseen)}", Outcome.UNREADABLE
    elif parts:
        said, outcome = f"all that is here can be read, but for parts of {', '.join(parts)}", Outcome.PARTLY
    else:
        said, outcome = "all that is here can be read", Outcome.OK
    said += f"; nothing to watch yet by {', '.join(nothing)}" if nothing else ""
    return outcome, f"{said} ({counted}; all sources together {cost:.2f} % of one core)"
