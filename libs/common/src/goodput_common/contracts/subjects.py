"""Subjects and streams, as data. Nothing else in the code base spells a subject."""

from __future__ import annotations

import re
from typing import NamedTuple

_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
NO_JOB = "_"
REJECTED_PREFIX = "goodput.rejected"


def token(text: str) -> str:
    """One subject token from any text: dots, blanks and wildcards become `-` (the exact name is in the body)."""
    return _UNSAFE.sub("-", text) or "_"


def telemetry(fabric: str, host: str, source: str) -> str:
    return f"goodput.telemetry.{token(fabric)}.{token(host)}.{token(source)}"


def topology(fabric: str, source: str) -> str:
    return f"goodput.topology.{token(fabric)}.{token(source)}"


def job(fabric: str, job: str, event: str) -> str:
    return f"goodput.job.{token(fabric)}.{token(job)}.{token(event)}"


def verdict(fabric: str, job: str | None, fault_class: str) -> str:
    return f"goodput.verdict.{token(fabric)}.{token(job or NO_JOB)}.{token(fault_class)}"


def recovery(fabric: str, job: str | None, state: str) -> str:
    return f"goodput.recovery.{token(fabric)}.{token(job or NO_JOB)}.{token(state)}"


def agent(fabric: str, job: str, rank: int) -> str:
    """Core NATS request/reply, in no stream: a command nobody hears must fail at once."""
    return f"goodput.agent.{token(fabric)}.{token(job)}.{rank}"


def rejected(stream: str) -> str:
    return f"{REJECTED_PREFIX}.{token(stream)}"


class Stream(NamedTuple):
    """One JetStream stream. `max_age_s` and `max_bytes` bound it; the oldest messages go first."""

    name: str
    subjects: tuple[str, ...]
    max_age_s: int
    max_bytes: int
    duplicate_window_s: int = 120


STREAMS: tuple[Stream, ...] = (
    Stream("TELEMETRY", ("goodput.telemetry.>",), max_age_s=24 * 3600, max_bytes=8 << 30),
    Stream("TOPOLOGY", ("goodput.topology.>",), max_age_s=7 * 24 * 3600, max_bytes=1 << 30),
    Stream("JOB", ("goodput.job.>",), max_age_s=24 * 3600, max_bytes=8 << 30),
    Stream("VERDICT", ("goodput.verdict.>",), max_age_s=30 * 24 * 3600, max_bytes=1 << 30),
    Stream("RECOVERY", ("goodput.recovery.>",), max_age_s=30 * 24 * 3600, max_bytes=1 << 30),
    Stream("REJECTED", (f"{REJECTED_PREFIX}.>",), max_age_s=7 * 24 * 3600, max_bytes=1 << 30),
)


def matches(pattern: str, subject: str) -> bool:
    """NATS subject matching: `*` is one token, `>` one or more at the end."""
    wanted, given = pattern.split("."), subject.split(".")
    for position, token in enumerate(wanted):
        if token == ">":
            return len(given) > position
        if position >= len(given) or token not in ("*", given[position]):
            return False
    return len(wanted) == len(given)


def stream_of(subject: str) -> Stream:
    """The stream that keeps `subject`. Raises KeyError for a subject in no stream."""
    for stream in STREAMS:
        if any(matches(pattern, subject) for pattern in stream.subjects):
            return stream
    raise KeyError(subject)


def is_kept(subject: str) -> bool:
    """Whether one of the contract's streams keeps `subject`: where it is missing, somebody will make it."""
    return any(matches(pattern, subject) for stream in STREAMS for pattern in stream.subjects)


def of_fabric(stream: str, fabric: str) -> str:
    """The filter for one fabric's messages of a stream whose subjects carry the fabric. Raises KeyError: no such stream."""
    found = next((each for each in STREAMS if each.name == stream and stream != "REJECTED"), None)
    if found is None:
        raise KeyError(stream)
    return f"{found.subjects[0].removesuffix('>')}{token(fabric)}.>"


def job_events(fabric: str, event: str) -> str:
    """The filter for one kind of event of all jobs of a fabric."""
    return f"goodput.job.{token(fabric)}.*.{token(event)}"


def of_job(stream: str, fabric: str, job: str | None) -> str:
    """The filter for one job's messages of JOB, VERDICT or RECOVERY. Raises KeyError: no such stream."""
    return f"{of_fabric(stream, fabric).removesuffix('>')}{token(job or NO_JOB)}.*"


def agents_of(fabric: str, job: str) -> str:
    """Commands to any rank of one job."""
    return f"goodput.agent.{token(fabric)}.{token(job)}.*"
