"""A dry run of every source: what is found on this host, what is readable, what it covers and what it costs.

Each source is opened and read a few times in a thread of its own, as the collector would, and nothing is published. The
cost is the CPU time of its thread in a later read (a first read fills caches), spread over the interval between reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import statistics
import time
from collections.abc import Mapping, Sequence

import msgspec

from goodput_collector.application.ports import Absent, Reading, SourceReader, Unreadable
from goodput_collector.application.worker import Hung, Worker
from goodput_common.contracts.ids import ComponentId
from goodput_common.contracts.telemetry import Source
from goodput_common.runtime.clock import Clock

READS = 4
BETWEEN_READS_S = 0.25
OPEN_WITHIN_S = 15.0


class Outcome(enum.StrEnum):
    OK = "ok"
    PARTLY = "partly"  # read, but for a part
    NOTHING = "nothing"  # readable, and it shows nothing that could be watched: neither fine nor broken
    UNREADABLE = "unreadable"
    ABSENT = "absent"  # this host has no such thing
    OFF = "off"  # by the settings


class SourceCheck(msgspec.Struct, frozen=True, kw_only=True):
    """`read_us` is the CPU time of one read in microseconds, `cpu_percent` that of one core at the source's interval."""

    source: Source
    instance: str = ""
    outcome: Outcome
    reason: str = ""
    remedy: str = ""
    covered: tuple[ComponentId, ...] = ()
    samples: int = 0
    interval_s: float | None = None
    read_us: float | None = None
    cpu_percent: float | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What can be said of a source that says nothing itself."""

    why_nothing: Mapping[Source, str] = {}
    remedies: Mapping[Source, str] = {}


NO_ADVICE = Advice()


async def check(
    readers: Sequence[SourceReader], off: Mapping[Source, str], *, clock: Clock, advice: Advice = NO_ADVICE
) -> tuple[SourceCheck, ...]:
    """Every source, in the order of `Source`. `off`: those that the settings leave out, with what would switch them on."""
    read = await asyncio.gather(*(_check(reader, clock) for reader in readers))
    found = [_advised(each, advice) for each in read]
    found += [SourceCheck(source=source, outcome=Outcome.OFF, remedy=remedy) for source, remedy in off.items()]
    order = list(Source)
    return tuple(sorted(found, key=lambda each: (order.index(each.source), each.instance)))


async def _check(reader: SourceReader, clock: Clock) -> SourceCheck:
    worker = Worker(f"check {reader.source} {reader.instance}")
    try:
        await worker.call(reader.open, deadline_s=max(OPEN_WITHIN_S, reader.deadline_s))
        return await _read(reader, worker, clock)
    except Absent as error:
        return _failed(reader, Outcome.ABSENT, str(error), error.remedy)
    except Unreadable as error:
        return _failed(reader, Outcome.UNREADABLE, str(error), error.remedy)
    except Hung:
        return _failed(reader, Outcome.UNREADABLE, f"no answer within {reader.deadline_s:g} s", "")
    except Exception as error:  # noqa: BLE001 - one source's bug must not hide the others
        return _failed(reader, Outcome.UNREADABLE, f"{type(error).__name__}: {error}", "")
    finally:
        with contextlib.suppress(Exception):  # what was read stands
            await worker.call(reader.close, deadline_s=1.0)
        worker.stop()


async def _read(reader: SourceReader, worker: Worker, clock: Clock) -> SourceCheck:
    costs_s: list[float] = []
    covered: dict[ComponentId, None] = {}
    samples, trouble = 0, ""

    def timed() -> tuple[Reading, float]:
        before_s = time.thread_time()
        reading = reader.read()
        return reading, time.thread_time() - before_s

    for number in range(READS):
        if number:
            await clock.sleep(BETWEEN_READS_S)
        reading, cost_s = await worker.call(timed, deadline_s=reader.deadline_s)
        costs_s.append(cost_s)
        covered |= dict.fromkeys(reading.covered or ())
        covered |= dict.fromkeys(each.component for each in reading.samples)
        samples += len(reading.samples) + len(reading.dumps)
        trouble = reading.trouble
    cost_s = statistics.median(costs_s[1:])
    if not covered and not samples:
        outcome = Outcome.NOTHING
    else:
        outcome = Outcome.PARTLY if trouble else Outcome.OK
    return SourceCheck(
        source=reader.source,
        instance=reader.instance,
        outcome=outcome,
        reason=trouble,
        covered=tuple(covered),
        samples=samples,
        interval_s=reader.interval_s,
        read_us=round(cost_s * 1e6, 1),
        cpu_percent=round(100 * cost_s / reader.interval_s, 4),
    )


def _failed(reader: SourceReader, outcome: Outcome, reason: str, remedy: str) -> SourceCheck:
    return SourceCheck(
        source=reader.source, instance=reader.instance, outcome=outcome, reason=reason, remedy=remedy,
        interval_s=reader.interval_s,
    )  # fmt: skip


def _advised(each: SourceCheck, advice: Advice) -> SourceCheck:
    reason, remedy = each.reason, each.remedy
    if each.outcome is Outcome.NOTHING and not reason:
        reason = advice.why_nothing.get(each.source, "it can be read, and has nothing to watch")
    fails = each.outcome in (Outcome.UNREADABLE, Outcome.ABSENT) or (each.outcome is Outcome.NOTHING and each.reason)
    if fails and not remedy:
        remedy = advice.remedies.get(each.source, "")
    return msgspec.structs.replace(each, reason=reason, remedy=remedy)
