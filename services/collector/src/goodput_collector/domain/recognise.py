"""What is in this file? Told by its first bytes, because names lie: a kernel log may be called `out.txt`, a dump
`_dump_3`.

Nothing is guessed from an extension. A file of which nothing can be made is unknown, and says why.
"""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from goodput_collector.domain import kernel_log, nccl_log
from goodput_collector.domain.timestamps import split
from goodput_common import flight_recorder

HEAD_BYTES = 64 * 1024
_LINES = 400
_JOB_LOG = re.compile(
    rb"NCCL (?:INFO|WARN|version)|ProcessGroup(?:NCCL|Gloo)|\[rank\d+\]|torch\.distributed|torchrun|Megatron"
)
_KERNEL = re.compile(rb"NVRM: |^\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) \w{3} +\d+ \d\d:\d\d:\d\d \d{4}\] ", re.MULTILINE)
_GZIP = b"\x1f\x8b"
_PACKED = {
    b"\xfd7zXZ\0": "xz",
    b"BZh": "bzip2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
}


class Kind(enum.StrEnum):
    KERNEL_LOG = "kernel_log"  # dmesg, syslog, a journal in text
    JOURNAL_EXPORT = "journal_export"  # journalctl -o export or json
    JOB_LOG = "job_log"  # what NCCL, gloo and torch print
    FLIGHT_RECORDER = "flight_recorder"
    RDMA_TREE = "rdma_tree"  # a folder; see goodput_collector.application.rdma_tree
    GZIP = "gzip"  # of something: look inside
    TEXT = "text"  # without any sign of the above; a line of them may still come
    UNKNOWN = "unknown"


class Recognised(NamedTuple):
    kind: Kind
    why: str = ""


def recognise(head: bytes) -> Recognised:
    """By the first `HEAD_BYTES` of a file (fewer only if the file has no more)."""
    if not head.strip():
        return Recognised(Kind.UNKNOWN, "empty")
    if head[:2] == _GZIP:
        return Recognised(Kind.GZIP)
    for begin, name in _PACKED.items():
        if head.startswith(begin):
            return Recognised(Kind.UNKNOWN, f"packed with {name}: unpack it first")
    if flight_recorder.looks_like_dump(head):
        return Recognised(Kind.FLIGHT_RECORDER)
    if _is_binary(head):
        return Recognised(Kind.UNKNOWN, "binary")
    if b"__REALTIME_TIMESTAMP" in head:
        return Recognised(Kind.JOURNAL_EXPORT)
    if _KERNEL.search(head) or _has_kernel_stamps(head):
        return Recognised(Kind.KERNEL_LOG)
    if _JOB_LOG.search(head) or nccl_log.NEEDLES.found_in(head):
        return Recognised(Kind.JOB_LOG)
    if kernel_log.NEEDLES.found_in(head):
        return Recognised(Kind.KERNEL_LOG)
    return Recognised(Kind.TEXT, "no line of a kernel log, job log or flight recorder among the first")


def _is_binary(head: bytes) -> bool:
    """NUL bytes, or more than a few control characters."""
    if b"\0" in head:
        return True
    controls = sum(head.count(bytes([code])) for code in range(32) if code not in (7, 8, 9, 10, 12, 13, 27))
    return controls * 50 > len(head)


def _has_kernel_stamps(head: bytes) -> bool:
    """Lines dated since boot, or with host and program: what syslog daemons and dmesg write, and hardly anybody else."""
    lines = head.decode("utf-8", "replace").splitlines()[:_LINES]
    stamps = [split(line) for line in lines if line.strip()]
    signs = sum(
        1
        for stamp in stamps
        if stamp.uptime_s is not None or stamp.since_previous_s is not None or stamp.boot or (stamp.host and stamp.ident)
    )
    return signs * 2 >= len(stamps) > 0


def has_hosts(head: bytes) -> bool:
    """Do the lines of this log name their host?"""
    lines = head.decode("utf-8", "replace").splitlines()[:_LINES]
    return any(split(line).host for line in lines)


def needs_every_line(head: bytes) -> bool:
    """Are lines dated relative to the one before? Then none may be skipped."""
    lines = head.decode("utf-8", "replace").splitlines()[:_LINES]
    return any(split(line).since_previous_s is not None for line in lines)
