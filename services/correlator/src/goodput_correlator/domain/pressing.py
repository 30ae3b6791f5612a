"""What cannot wait for the next whole second.

Everything is judged at whole seconds. At the quarters between them only a job is judged that nobody was named for and that
has just had what may decide it:

* news: an event or a changed state of its hosts, an event of the network, a dump, a rank that suspects a stall;
* it has just stood still for long enough to be judged at all;
* it has just become clear that its steps are slow.

"Just" is told by what was received since the grid time before, and by nothing that a process remembers of its own doings:
whoever starts at any grid time goes on as if it had been there before. A job of many ranks is a dear case and gets halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from goodput_correlator.domain.grid import GRID
from goodput_correlator.domain.remembered import Remembered
from goodput_correlator.domain.timeline import JobTimeline

HALVES_FROM_RANKS = 2048  # a case of so many takes a good part of a quarter second
HALF_US = 500_000
QUIET = timedelta(seconds=10)  # what nobody has spoken of for so long can wait: most such jobs have ended
JUST_S = 1.0  # ranks report once a second: how long it is shown to stand still may jump by as much


def pressing(known: Remembered, at: datetime, named: Callable[[str], bool]) -> Iterator[JobTimeline]:
    """The jobs, in order of name, that are judged at `at` although it is no whole second. `named`: somebody is already."""
    for name in sorted(known.jobs):
        job = known.jobs[name]
        since = job.waiting_since
        if since is None or job.heard_at is None or job.heard_at < at - QUIET:
            continue
        if (at - since).total_seconds() < job.decisive_after_s(at) and job.pace.slow is None:
            continue
        if named(name) or (len(job.ranks) >= HALVES_FROM_RANKS and at.microsecond != HALF_US):
            continue
        before = looked_before(job, at)
        if just_slow(job, before) or _just_ripe(job, since, at, before) or known.told_since(job, before):
            yield job


def looked_before(job: JobTimeline, at: datetime) -> datetime:
    """When the job could be judged last before `at`."""
    return at - GRID * (2 if len(job.ranks) >= HALVES_FROM_RANKS else 1)


def just_slow(job: JobTimeline, before: datetime) -> bool:
    """Whether a window of slow steps has ended after `before`."""
    closed_at = job.pace.closed_at
    return closed_at is not None and closed_at > before and job.pace.slow is not None


def _just_ripe(job: JobTimeline, since: datetime, at: datetime, before: datetime) -> bool:
    """Whether a report that came after `before`, or time alone, may have shown that it stands still for long enough."""
    stood_s, least_s = job.stood_s(at), job.decisive_after_s(at)
    if since + timedelta(seconds=stood_s) > before:
        return any(0 <= stood_s - mark_s < JUST_S for mark_s in (least_s, job.stall_after_s(at)))
    return 0 <= (at - since).total_seconds() - least_s < (at - before).total_seconds()
