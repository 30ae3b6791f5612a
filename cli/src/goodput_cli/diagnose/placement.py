"""Which rank ran where, from whatever says so: the caller, NCCL's own log, NCCL's status service.

    --ranks node7=0-7 --ranks node8=8-15
    node7:4242:4310 [3] NCCL INFO comm 0x55d0 rank 3 nranks 16 cudaDev 3 nvmlDev 3 busId 1b000 - Init COMPLETE

Ranks are those of a communicator; only the largest one is taken for the whole job. A rank that is told to be in two places
is in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from goodput_collector.domain.ras import RasReport
from goodput_common.contracts.job import RankRegistered

RANKS_MAX = 100_000
_GIVEN = re.compile(r"^(?P<host>[^=\s/]{1,96})=(?P<ranks>\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)*)$")
_NCCL = re.compile(
    r"(?P<host>[A-Za-z0-9][\w.-]{0,95}):(?P<pid>\d{1,9}):\d{1,9} \[\d{1,4}\] NCCL INFO .{0,80}?"
    r"\bcomm 0x[0-9a-f]+ rank (?P<rank>\d{1,6}) n[rR]anks (?P<size>\d{1,6}) cudaDev (?P<gpu>\d{1,4})"
)


class NotRanks(ValueError):
    """Says what is wrong with a `--ranks`, and how it should look."""


@dataclass(slots=True)
class Ranks:
    """rank -> (host, pid, GPU's index or -1), from the strongest witness; `by` is that witness in words."""

    places: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    size: int = 0
    by: str = ""
    _doubtful: set[int] = field(default_factory=set)

    def put(self, rank: int, host: str, pid: int, gpu: int) -> None:
        if len(self.places) < RANKS_MAX and self.places.setdefault(rank, (host, pid, gpu))[0] != host:
            self._doubtful.add(rank)

    def registered(self, job: str, fabric: str, at: datetime) -> list[RankRegistered]:
        size = max([self.size, *(rank + 1 for rank in self.places)], default=0)
        found: list[RankRegistered] = []
        on_host: dict[str, int] = {}
        for rank, (host, pid, gpu) in sorted(self.places.items()):
            local = on_host[host] = on_host.get(host, -1) + 1
            if rank in self._doubtful:
                continue
            found.append(
                RankRegistered(
                    fabric=fabric,
                    job=job,
                    rank=rank,
                    world_size=size,
                    host=host,
                    pid=pid,
                    at=at,
                    local_rank=local,
                    gpu=gpu if gpu >= 0 else None,
                )
            )
        return found


def given(texts: Sequence[str]) -> Ranks:
    """Raises NotRanks."""
    ranks = Ranks(by="--ranks")
    for text in texts:
        match = _GIVEN.match(text.strip())
        if match is None:
            raise NotRanks(f"--ranks {text!r}: expected HOST=RANKS, as in --ranks node7=0-7 or --ranks node8=8-11,14")
        for part in match["ranks"].split(","):
            low, _, high = part.partition("-")
            first, last = int(low), int(high or low)
            if last < first or last - first >= RANKS_MAX:
                raise NotRanks(f"--ranks {text!r}: {part} is no range of ranks")
            for rank in range(first, last + 1):
                ranks.put(rank, match["host"], 0, -1)
    return ranks


def from_nccl(texts: Iterable[str]) -> Ranks:
    """By the largest communicator whose making the logs tell of."""
    told: dict[int, Ranks] = {}
    for text in texts:
        for match in _NCCL.finditer(text):
            size = int(match["size"])
            ranks = told.setdefault(size, Ranks(size=size, by="NCCL's log"))
            ranks.put(int(match["rank"]), match["host"], int(match["pid"]), int(match["gpu"]))
    return told[max(told)] if told else Ranks()


def from_ras(reports: Iterable[RasReport]) -> Ranks:
    """By the largest communicator of the newest report that names all of its ranks. Its nodes may be addresses."""
    found = Ranks()
    for report in reports:
        largest = max(report.communicators, key=lambda each: each.size, default=None)
        if largest is None or largest.size < 2:
            continue
        ranks = Ranks(size=largest.size, by="NCCL RAS")
        for numbers in largest.at.values():
            for who in (rank for at in numbers.values() for rank in at):
                if who.rank >= 0 and who.node:
                    ranks.put(who.rank, who.node, max(who.pid, 0), who.gpu)
        for who in largest.missing:
            if who.rank >= 0 and who.node:
                ranks.put(who.rank, who.node, max(who.pid, 0), who.gpu)
        if len(ranks.places) == largest.size:
            found = ranks
    return found


def strongest(*witnesses: Ranks) -> Ranks:
    return next((each for each in witnesses if each.places), Ranks())
