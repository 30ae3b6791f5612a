"""How far a rank has come in each of its process groups, from a recorder's `pg_status`, `pg_config` and entries.

`pg_status` counts per *local* group id, a number that differs between ranks for the same group. What the members share is
the group's name. Three ways lead from id to name, best first:

1. an entry carries both (`pg_id`, `process_group`);
2. local ids grow as groups are made, and so do torch's numeric names: between two groups that entries have tied together,
   the rest of `pg_status` and of `pg_config` match by position, if both have equally many there (held against the entries
   of the real dumps at hand: no exception);
3. otherwise the name is unknown, and is given one that no other rank can have, so that nobody compares it.

gloo collapses `pg_config` to one key `''` that holds whatever group was made last, so its ranks count only where the rank
has seen no group but the first. It also counts sends and receives in `pg_status` while recording neither, so its counts are
taken from the entries, all of which are collectives. NCCL's status holds the sequence number of the last operation, which
is a point-to-point number if that was a send or receive: `p2p` says so where an entry shows it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from goodput_common.contracts.job import CollectiveState, GroupProgress

_NO_DESC = "undefined"
_NUMBER = re.compile(r"-?\d+")
_RANKS_MAX = 1_000_000
_SHARED_MAX = 100_000  # characters


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in _NUMBER.findall(text[: 12 * _RANKS_MAX]))


@lru_cache(maxsize=256)
def _shared(text: str) -> tuple[int, ...]:
    """One tuple for the same members in all dumps: those of a job of 4,096 ranks would otherwise hold 16 million numbers."""
    return _numbers(text)


class Config(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]


def ranks_of(text: Any) -> tuple[int, ...]:
    """`"[0, 1, 2]"` or a list -> (0, 1, 2)."""
    if isinstance(text, str):
        return _shared(text) if len(text) <= _SHARED_MAX else _numbers(text)
    if isinstance(text, list | tuple):
        return tuple(rank for rank in text if isinstance(rank, int))
    return ()


def plain_desc(desc: Any) -> str:
    """torch says "undefined" where nobody gave a description."""
    return desc if isinstance(desc, str) and desc != _NO_DESC else ""


def configs_of(pg_config: Any) -> dict[str, Config]:
    """Group name -> what the recorder knows of it, in the order in which the groups were made where names are numbers."""
    found: dict[str, Config] = {}
    for key, value in (pg_config if isinstance(pg_config, Mapping) else {}).items():
        if not isinstance(key, str | int):
            continue
        fields = value if isinstance(value, Mapping) else {"ranks": value}
        found[str(key)] = Config(str(key), plain_desc(fields.get("desc")), ranks_of(fields.get("ranks")))
    if all(name.isdigit() for name in found):
        return {name: found[name] for name in sorted(found, key=int)}
    return found


def names_of_local_ids(local_ids: Sequence[int], configs: Mapping[str, Config], tied: Mapping[int, str]) -> dict[int, str]:
    """Local id -> shared name, for the ids whose name is known. `tied` is what entries say."""
    names = {local: name for local, name in tied.items() if local in local_ids}
    if not configs or not all(name.isdigit() for name in configs):
        return names
    order = list(configs)
    ids = sorted(local_ids)
    anchors = [(-1, -1)]
    for local in sorted(names):
        place = order.index(names[local]) if names[local] in configs else None
        if place is None or place <= anchors[-1][1]:
            return names  # entries contradict the order: trust nothing but them
        anchors.append((ids.index(local), place))
    anchors.append((len(ids), len(order)))
    for (id_from, name_from), (id_to, name_to) in itertools.pairwise(anchors):
        if id_to - id_from == name_to - name_from:
            for step in range(1, id_to - id_from):
                names[ids[id_from + step]] = order[name_from + step]
    return names


class Seen(NamedTuple):
    """One entry, as far as counting needs it."""

    local_id: int
    group: str
    desc: str
    seq: int
    p2p: bool
    state: CollectiveState


def _count(value: Any) -> int:
    """Counts are numbers in a pickle and text in JSON."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return -1


def _from_entries(entries: Sequence[Seen]) -> tuple[int, int, int]:
    """(enqueued, started, completed) by the collectives among the entries; -1 where nothing shows it."""
    collectives = [each for each in entries if not each.p2p]
    if not collectives:
        return -1, -1, -1
    newest = max(each.seq for each in collectives)
    unfinished = [each.seq for each in collectives if each.state is not CollectiveState.COMPLETED]
    started = [each.seq for each in collectives if each.state is CollectiveState.STARTED]
    return newest, max(started, default=-1), min(unfinished) - 1 if unfinished else newest


def progress_of(
    *, rank: int, gloo: bool, pg_status: Any, configs: Mapping[str, Config], entries: Sequence[Seen]
) -> tuple[GroupProgress, ...]:
    """Progress in every group that status, configuration or entries know of, in the order of the local ids."""
    status = {
        int(key): value
        for key, value in (pg_status if isinstance(pg_status, Mapping) else {}).items()
        if isinstance(key, str | int) and str(key).lstrip("-").isdigit() and isinstance(value, Mapping)
    }
    by_id: dict[int, list[Seen]] = {}
    for each in entries:
        by_id.setdefault(each.local_id, []).append(each)
    local_ids = sorted({*status, *by_id})
    tied = {local: seen[-1].group for local, seen in by_id.items() if seen[-1].group}
    names = names_of_local_ids(local_ids, configs, tied)
    found = []
    for local in local_ids:
        mine = by_id.get(local, [])
        name = names.get(local)
        config = configs.get(name) if name is not None else None
        if config is None:
            config = Config(name if name is not None else f"local:{rank}/{local}", "", _collapsed(gloo, local_ids, configs))
        fields = status.get(local, {})
        counts = (
            _count(fields.get("last_enqueued_collective")),
            _count(fields.get("last_started_collective")),
            _count(fields.get("last_completed_collective")),
        )
        if (gloo or not fields) and any(not each.p2p for each in mine):
            counts = _from_entries(mine)
        found.append(
            GroupProgress(
                group=config.name,
                ranks=config.ranks,
                last_enqueued=counts[0],
                last_started=counts[1],
                last_completed=counts[2],
                desc=config.desc or (mine[-1].desc if mine else ""),
                p2p=bool(mine) and mine[-1].p2p,
            )
        )
    known = {each.group for each in found}
    found.extend(
        GroupProgress(group=config.name, ranks=config.ranks, desc=config.desc)
        for config in configs.values()
        if config.name and config.name not in known
    )
    return tuple(found)


def _collapsed(gloo: bool, local_ids: Sequence[int], configs: Mapping[str, Config]) -> tuple[int, ...]:
    """gloo's one configuration is the default group's only if that is the one group there is: ranks 0..n-1, local id 0."""
    only = configs.get("")
    if not gloo or only is None or list(local_ids) != [0] or only.ranks != tuple(range(len(only.ranks))):
        return ()
    return only.ranks
