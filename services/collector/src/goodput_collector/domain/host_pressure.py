"""What the host's own tables say of want: of CPU, of memory, of I/O, and of numbers that are used up.

Pressure stall information counts the time in which something could not run for want of a resource:

    some avg10=1.13 avg60=0.99 avg300=1.52 total=280206344      at least one task waited
    full avg10=0.43 avg60=0.29 avg300=0.74 total=63695289       no task got anything done

`total` is in microseconds. A data loader that swaps shows as memory pressure long before a rank is killed, and as a slow
rank to everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Pressure(NamedTuple):
    avg10_share: float
    total_us: int


class Memory(NamedTuple):
    total_bytes: int
    available_bytes: int

    @property
    def available_share(self) -> float | None:
        return self.available_bytes / self.total_bytes if self.total_bytes > 0 else None


_MEMORY = re.compile(rb"MemTotal:\s+(\d{1,20})\b.*\n(?:.*\n){0,8}?MemAvailable:\s+(\d{1,20})\b")

VMSTAT = {
    "pswpin": "swap_in_pages",
    "pswpout": "swap_out_pages",
    "oom_kill": "oom_kills",
    "pgmajfault": "major_faults",
    "allocstall_normal": "allocation_stalls",
}
"""What of /proc/vmstat is told, under which name."""


def parse_pressure(text: bytes) -> dict[str, Pressure]:
    """`some` and `full` of one pressure file; lines that are neither are left out."""
    found = {}
    for line in text.split(b"\n"):
        kind, _, rest = line.partition(b" avg10=")
        if kind not in (b"some", b"full"):
            continue
        avg10, _, rest = rest.partition(b" ")
        total = rest.rpartition(b" total=")[2]
        try:
            percent = float(avg10)
        except ValueError:
            continue
        if 0 <= percent <= 100 and total.isdigit() and len(total) <= 20:
            found[kind.decode()] = Pressure(percent / 100, int(total))
    return found


def parse_vmstat(text: bytes) -> dict[str, int]:
    """The counters of `VMSTAT` that this kernel has, under the names that they are told by."""
    return {told: number for name, told in VMSTAT.items() if (number := _number_after(text, name)) is not None}


def parse_meminfo(text: bytes) -> Memory | None:
    """Of its first lines, where the two stand; None where they do not."""
    found = _MEMORY.match(text)
    return Memory(int(found[1]) * 1024, int(found[2]) * 1024) if found is not None else None


def parse_file_share(file_nr: bytes) -> float | None:
    """`allocated unused max` of /proc/sys/fs/file-nr; None where there is no limit to speak of."""
    numbers = _numbers(file_nr.split())
    return numbers[0] / numbers[2] if len(numbers) == 3 and 0 < numbers[2] < 2**62 else None


def parse_task_share(loadavg: bytes, pid_max: bytes) -> float | None:
    """How much of the process numbers is taken: `… 5/176 12549` of /proc/loadavg counts all threads."""
    fields = loadavg.split()
    tasks = _numbers(fields[3].split(b"/")) if len(fields) >= 5 else []
    most = _numbers(pid_max.split())
    return tasks[1] / most[0] if len(tasks) == 2 and most and most[0] > 0 else None


def parse_share(used: bytes, most: bytes) -> float | None:
    numbers = _numbers([used.strip(), most.strip()])
    return numbers[0] / numbers[1] if len(numbers) == 2 and numbers[1] > 0 else None


def _number_after(text: bytes, name: str) -> int | None:
    """The number behind a word that begins a line. Searched, not split: these tables have hundreds of lines."""
    word = name.encode()
    at = text.find(b"\n" + word + b" ")
    if at < 0 and text.startswith(word):
        at = -1
    elif at < 0:
        return None
    start = at + 1 + len(word)
    end = text.find(b"\n", start)
    numbers = _numbers(text[start : end if end >= 0 else len(text)].split()[:1])
    return numbers[0] if numbers else None


def _numbers(words: Iterable[bytes]) -> list[int]:
    """All of them as numbers, or none: a table that reads otherwise is not understood in part."""
    found = []
    for word in words:
        if not word.isdigit() or len(word) > 20:
            return []
        found.append(int(word))
    return found
