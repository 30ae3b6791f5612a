"""Whose dump is this? A flight recorder does not say; the name of its file does, in as many ways as there are launchers.

rank_3   _dump_3   rank_3.json   nccl_trace_rank_3   comm_lib_trace_rank_3
nccl_trace_rank_container-node02_5     rank 5 on container-node02
node17.pci3_rank_2                     the second of node17: the number starts anew on every host
"""

from __future__ import annotations

import re
from typing import NamedTuple


class NamedRank(NamedTuple):
    """`rank` as the name has it; `host` where the name has one. `local` says that the number may repeat across hosts."""

    rank: int
    host: str = ""
    local: bool = False


_EXTENSION = re.compile(r"(?:\.(?:json|pkl|pickle|pt|bin|dump|fr|trace|log))+$", re.IGNORECASE)
_FORMS = (
    (re.compile(r"^(?P<host>.+)\.pci\w*_rank_?(?P<rank>\d+)$"), True),
    (re.compile(r"^(?:nccl|comm_lib|fr)_trace_rank_(?:(?P<host>.*[^_\d].*)_)?(?P<rank>\d+)$"), False),
    (re.compile(r"^.*rank[_-]?(?P<rank>\d+)$", re.IGNORECASE), False),
    (re.compile(r"^.*dump[_-]?(?P<rank>\d+)$", re.IGNORECASE), False),
    (re.compile(r"^.*?(?P<rank>\d+)$"), False),  # a launcher's own prefix: torch appends the bare rank to it
)
_RANK_MAX = 10_000_000


def rank_from_name(name: str) -> NamedRank | None:
    """The rank (and host) that a dump's file name gives, or None."""
    stem = _EXTENSION.sub("", name.rsplit("/", 1)[-1])
    for form, local in _FORMS:
        if (match := form.match(stem)) is not None:
            found = match.groupdict()
            rank = int(found["rank"])
            return NamedRank(rank, found.get("host") or "", local) if rank <= _RANK_MAX else None
    return None
