"""Reports of this host's ranks, on their way together: which of them fit into one message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from goodput_common.contracts.job import HostProgress, RankProgress

BYTES_A_MESSAGE = 256 << 10  # of reports as they came; the bus takes a MiB


class Told(NamedTuple):
    report: RankProgress
    size_bytes: int
    number: int  # who waits for the answer


def refusal(report: RankProgress, fabric: str, host: str) -> str:
    """Why a report cannot be sent on from here; "" where it can."""
    if (report.fabric, report.host) != (fabric, host):
        return f"it is of host {report.host!r} in fabric {report.fabric!r}, and this is {host!r} in {fabric!r}"
    return ""


def messages(told: Iterable[Told], at: datetime) -> Iterator[tuple[HostProgress, list[int]]]:
    """One a job (more where they are large), each with the numbers of those who wait for it."""
    jobs: dict[str, list[Told]] = {}
    for each in told:
        jobs.setdefault(each.report.job, []).append(each)
    for of_job in jobs.values():
        begin, size = 0, 0
        for n, each in enumerate(of_job):
            if n > begin and size + each.size_bytes > BYTES_A_MESSAGE:
                yield _message(of_job[begin:n], at)
                begin, size = n, 0
            size += each.size_bytes
        yield _message(of_job[begin:], at)


def _message(told: list[Told], at: datetime) -> tuple[HostProgress, list[int]]:
    first = told[0].report
    reports = tuple(each.report for each in told)
    data = HostProgress(fabric=first.fabric, job=first.job, host=first.host, at=at, reports=reports)
    return data, [each.number for each in told]
