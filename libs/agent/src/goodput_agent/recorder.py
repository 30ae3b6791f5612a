"""Reading torch's flight recorder in the process that it records.

Two prices. The status (last enqueued and completed per group) costs 0.07 ms and is read every second; the whole recorder
costs 10-20 ms for 2,000 entries and is read only when steps have stopped, when somebody asks, and once for every new group.
Stacks are never asked for: symbolising them took seconds.

The recorder names a group by a number local to this process, and gloo forgets the members altogether (its `pg_config` is one
entry without a name). Both are put right from torch.distributed's own registry of groups, so that a dump which leaves this
process says which ranks each group has.

gloo's status counts sends and receives, which are nobody's but the two peers', among the group's collectives. The reader of
dumps puts that right from the entries; so does the status here: a group whose two counts were seen to differ is counted from
the whole recorder, at its price, for as long as they do.

torch is used when the training script has imported it and is never imported from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from goodput_agent.identity import Identity
from goodput_common import flight_recorder
from goodput_common.contracts.job import FlightRecorderDump, GroupProgress
from goodput_common.flight_recorder import UnreadableDump

RELEARN_AFTER_S = 10.0
RECOUNT_AFTER_S = 30.0  # gloo: how long the first send in a group that had only collectives may go unnoticed
_DUMP_NAMES = ("_dump_fr_trace_json", "_dump_nccl_trace_json")  # the second is what torch before 2.7 calls it
COLLECTIVE_MODULE = "distributed_c10d.py"
NOT_COLLECTIVES = frozenset({"wrapper", "inner", "<lambda>"})


class NoFlightRecorder(Exception):
    """This process has none: torch is not loaded, or too old, or no group was made. The text says which."""


class Group(NamedTuple):
    name: str
    desc: str
    ranks: tuple[int, ...]


class Recording(NamedTuple):
    """`data` is what goes into a file, `dump` the same for the bus."""

    data: bytes
    dump: FlightRecorderDump


class FlightRecorder:
    """Called from the reporter's thread only."""

    def __init__(self, modules: Mapping[str, Any] = sys.modules, monotonic_s: Callable[[], float] = lambda: 0.0) -> None:
        self._modules = modules
        self._monotonic_s = monotonic_s
        self._names: dict[int, str] = {}  # local group id -> name that all members share
        self._asked_for: frozenset[int] = frozenset()
        self._learned_s = float("-inf")
        self._gloo = False
        self._counted: dict[str, GroupProgress] = {}  # groups whose status counts more than collectives
        self._counted_s = float("-inf")

    def status(self) -> tuple[GroupProgress, ...]:
        """Progress in each group that this rank has used; empty when there is no recorder or nothing in it."""
        dump = self._dump_function()
        if dump is None:
            return ()
        status = _status_of(msgspec.json.decode(dump(includeCollectives=False)))
        if self._may_learn(frozenset(status) - self._names.keys()) or self._must_count():
            self._learn(msgspec.json.decode(dump(includeCollectives=True)))
        groups = self.groups()
        found = []
        for local, counts in sorted(status.items()):
            name = self._names.get(local)
            if name is None:
                continue
            group = groups.get(name, Group(name, "", ()))
            enqueued, started, completed = counts
            if (counted := self._counted.get(name)) is not None:
                enqueued, started, completed = counted.last_enqueued, counted.last_started, counted.last_completed
            found.append(
                GroupProgress(
                    group=name,
                    ranks=group.ranks,
                    last_enqueued=enqueued,
                    last_started=started,
                    last_completed=completed,
                    desc=group.desc,
                )
            )
        return tuple(found)

    def record(self, identity: Identity, *, at: datetime, reason: str, origin: str) -> Recording:
        """Everything in the recorder, members of the groups filled in. Raises NoFlightRecorder, UnreadableDump."""
        dump = self._dump_function()
        if dump is None:
            raise NoFlightRecorder("torch.distributed is not in use in this process")
        raw = flight_recorder.parse(dump(includeCollectives=True))
        if not raw.get("entries"):
            raise NoFlightRecorder("nothing recorded; set TORCH_FR_BUFFER_SIZE=2000 before init_process_group")
        self._learn(raw)
        if groups := self.groups():
            raw["pg_config"] = {
                group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
                for group in groups.values()
            }
        normal = flight_recorder.normalise(
            raw,
            fabric=identity.fabric,
            job=identity.job,
            rank=identity.rank,
            host=identity.host,
            at=at,
            origin=origin,
            reason=reason,
            generation=identity.generation,
        )
        return Recording(msgspec.json.encode(raw), normal)

    def groups(self) -> dict[str, Group]:
        """The process groups that this rank belongs to, by name, as torch.distributed's registry has them."""
        distributed = self._modules.get("torch.distributed.distributed_c10d")
        world = getattr(distributed, "_world", None)
        if world is None:
            return {}
        found: dict[str, Group] = {}
        for group, ranks in list(world.pg_group_ranks.items()):
            name = world.pg_names.get(group)
            if name is None:  # a group that this rank is no member of
                continue
            desc = str(getattr(group, "group_desc", "") or "")
            found[str(name)] = Group(str(name), "" if desc == "undefined" else desc, tuple(sorted(ranks)))
        return found

    def _dump_function(self) -> Callable[..., bytes] | None:
        distributed = self._modules.get("torch.distributed.distributed_c10d")
        world = getattr(distributed, "_world", None)
        if world is None or not world.pg_map:
            return None
        bindings = getattr(getattr(self._modules.get("torch"), "_C", None), "_distributed_c10d", None)
        return next((found for name in _DUMP_NAMES if (found := getattr(bindings, name, None)) is not None), None)

    def _may_learn(self, unknown: frozenset[int]) -> bool:
        """At once for a group not met before, else (its entries may have been overwritten) every so often."""
        now = self._monotonic_s()
        if not unknown or (unknown <= self._asked_for and now - self._learned_s < RELEARN_AFTER_S):
            return False
        self._asked_for = unknown
        self._learned_s = now
        return True

    def _must_count(self) -> bool:
        return self._gloo and (bool(self._counted) or self._monotonic_s() - self._counted_s >= RECOUNT_AFTER_S)

    def _learn(self, raw: Mapping[str, Any]) -> None:
        for entry in raw.get("entries", ()):
            group = entry.get("process_group")
            if isinstance(group, list) and group:
                self._names[int(entry.get("pg_id", 0))] = str(group[0])
        self._counted, self._counted_s = {}, self._monotonic_s()
        try:
            normal = flight_recorder.normalise(raw, fabric="", job="", rank=0, host="", keep=1)
        except UnreadableDump:
            return  # then the status is all there is
        self._gloo = normal.backend == "gloo"
        if self._gloo:
            status = {self._names.get(local): counts[0] for local, counts in _status_of(raw).items()}
            self._counted = {
                each.group: each
                for each in normal.groups
                if status.get(each.group, each.last_enqueued) != each.last_enqueued
            }


def _status_of(raw: Mapping[str, Any]) -> dict[int, tuple[int, int, int]]:
    return {
        int(local): (
            int(fields.get("last_enqueued_collective", -1)),
            int(fields.get("last_started_collective", -1)),
            int(fields.get("last_completed_collective", -1)),
        )
        for local, fields in raw.get("pg_status", {}).items()
    }


def where_is(thread_id: int) -> tuple[str, tuple[str, ...]]:
    """(collective that the thread is inside, or "", its innermost frames as `train.py:41 in step`, user's code first).

    An asynchronous collective is waited for in C++ and leaves no frame of torch.distributed: then the name is "".
    """
    frame = sys._current_frames().get(thread_id)
    collective = ""
    frames: list[str] = []
    depth = 0
    while frame is not None and depth < 64:
        code = frame.f_code
        if code.co_filename.endswith(COLLECTIVE_MODULE) and code.co_name not in NOT_COLLECTIVES:
            collective = code.co_name
        elif "/torch/" not in code.co_filename and len(frames) < 8:
            frames.append(f"{code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} in {code.co_name}")
        frame = frame.f_back
        depth += 1
    return collective, tuple(frames)
