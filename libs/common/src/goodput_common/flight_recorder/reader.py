"""From the bytes of a flight recorder to one FlightRecorderDump, whatever wrote it.

Accepts formats 2.1 .. 2.10 and on (torch 2.4 to 2.13 at least): pickle or JSON, NCCL or gloo, with or without timing,
stacks and communicator state. What differs between them ends here:

* without timing `state` stays "scheduled" for ever: `retired` is the sign of completion (always so on gloo);
* JSON has counts as text and 0 where a pickle has None;
* `profiling_name` carries the backend and, for point-to-point, both ends as ranks *within the group* ("nccl:send 0->3").
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from goodput_common.contracts.job import Collective, CollectiveState, FlightRecorderDump
from goodput_common.flight_recorder.errors import UnreadableDump
from goodput_common.flight_recorder.plain_pickle import NotPlainData, loads
from goodput_common.flight_recorder.progress import Config, Seen, configs_of, plain_desc, progress_of

DUMP_BYTES_MAX = 256 << 20
ENTRIES_MAX = 200_000
COLLECTIVES_KEPT = 256
FRAMES_KEPT = 8
FINISHED_KEPT = 2  # finished entries of a lane that are kept beside its first unfinished one
_ENDS = re.compile(r"^(?P<op>.*?)\s+(?P<own>\d+)\s*(?:->|<-)\s*(?P<peer>-?\d+)$")
_NOT_USER = re.compile(r"/torch/|/multiprocessing/|/importlib/|/runpy\.py|/threading\.py|/contextlib\.py|^<")
_STATES = {state.value: state for state in CollectiveState}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def looks_like_dump(head: bytes) -> bool:
    """Could these first bytes (a few hundred are enough) open a flight-recorder dump?"""
    if head[:1] == b"\x80":
        return any(key in head for key in (b"pg_config", b"pg_status", b"entries", b"version", b"comm_lib_version"))
    stripped = head.lstrip()
    return stripped[:1] == b"{" and any(
        b'"' + key + b'"' in head for key in (b"pg_config", b"pg_status", b"entries", b"comm_lib_version", b"nccl_version")
    )


def parse(data: bytes, *, origin: str = "memory") -> dict[str, Any]:
    """The recorder's top-level dictionary. Raises UnreadableDump. How deep its values are nested is not looked at: what is
    read out of it are text and numbers at known places, and no caller may walk down into it."""
    if len(data) > DUMP_BYTES_MAX:
        raise UnreadableDump(f"{len(data)} bytes are more than a dump may have ({DUMP_BYTES_MAX})", origin=origin)
    if not data.strip():
        raise UnreadableDump("the file is empty", origin=origin)
    try:
        raw = msgspec.json.decode(data) if data.lstrip()[:1] == b"{" else loads(data, max_depth=None)
    except (msgspec.DecodeError, NotPlainData, RecursionError, UnicodeDecodeError) as error:
        raise UnreadableDump(str(error) or type(error).__name__, origin=origin) from error
    if not isinstance(raw, dict):
        raise UnreadableDump(f"holds a {type(raw).__name__}, not a flight recorder's dictionary", origin=origin)
    if not any(key in raw for key in ("entries", "pg_status", "pg_config")):
        raise UnreadableDump("has none of the keys entries, pg_status, pg_config of a flight recorder", origin=origin)
    if not isinstance(raw.get("entries", []), list | tuple):
        raise UnreadableDump("`entries` is not a list", origin=origin)
    if len(raw.get("entries", [])) > ENTRIES_MAX:
        raise UnreadableDump(f"`entries` has more than {ENTRIES_MAX} elements", origin=origin)
    return raw


def own_ranks(raw: Mapping[str, Any]) -> tuple[int, ...]:
    """The ranks that could have written this recorder: members of every group in it. Often exactly one; () if unknown."""
    configs = configs_of(raw.get("pg_config"))
    memberships = [set(config.ranks) for config in configs.values() if config.name and config.ranks]
    for entry in raw.get("entries", []):
        if isinstance(entry, Mapping) and entry.get("is_p2p"):
            _, own, _ = _ends(_text(entry.get("profiling_name")))
            group = _group_of(entry)
            ranks = configs[group].ranks if group in configs else ()
            if own is not None and own < len(ranks):
                memberships.append({ranks[own]})
                break
    return tuple(sorted(set.intersection(*memberships))) if memberships else ()


def normalise(
    raw: Mapping[str, Any],
    *,
    fabric: str,
    job: str,
    rank: int,
    host: str,
    at: datetime | None = None,
    origin: str = "memory",
    reason: str = "",
    generation: int = 0,
    keep: int = COLLECTIVES_KEPT,
    heads: bool = False,
) -> FlightRecorderDump:
    """`at` defaults to the newest time in the entries (the epoch when there is none). Keeps the newest `keep` entries,
    unfinished ones first; with `heads` only those of them that say where the rank stands. Raises UnreadableDump."""
    configs = configs_of(raw.get("pg_config"))
    entries = []
    for index, entry in enumerate(raw.get("entries", [])):
        if not isinstance(entry, Mapping):
            raise UnreadableDump(f"entries[{index}] is not a dictionary", origin=origin)
        entries.append((_integer(entry.get("record_id"), index), entry))
    entries.sort(key=lambda each: each[0])
    backend = _backend([entry for _, entry in entries], raw)
    seen = [_seen(entry) for _, entry in entries]
    chosen = _heads(seen, [entry for _, entry in entries], keep) if heads else _newest(seen, keep)
    return FlightRecorderDump(
        fabric=fabric,
        job=job,
        rank=rank,
        host=host,
        at=at or newest_time(raw) or _EPOCH,
        backend=backend,
        version=_text(raw.get("version")),
        generation=generation,
        reason=reason,
        origin=origin,
        groups=progress_of(rank=rank, gloo=backend == "gloo", pg_status=raw.get("pg_status"), configs=configs, entries=seen),
        collectives=tuple(_collective(entries[index][1], seen[index], configs) for index in chosen),
        truncated=len(chosen) < len(seen),
    )


def read_dump(
    data: bytes,
    *,
    fabric: str,
    job: str,
    rank: int,
    host: str,
    at: datetime | None = None,
    origin: str = "memory",
    reason: str = "",
    generation: int = 0,
    keep: int = COLLECTIVES_KEPT,
    heads: bool = False,
) -> FlightRecorderDump:
    """`parse` and `normalise` in one. Raises UnreadableDump."""
    raw = parse(data, origin=origin)
    return normalise(
        raw,
        fabric=fabric,
        job=job,
        rank=rank,
        host=host,
        at=at,
        origin=origin,
        reason=reason,
        generation=generation,
        keep=keep,
        heads=heads,
    )


def newest_time(raw: Mapping[str, Any]) -> datetime | None:
    """The latest moment that any entry names."""
    entries = [entry for entry in raw.get("entries", []) if isinstance(entry, dict)]
    newest = 0
    for key in ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns"):
        for value in [entry.get(key) for entry in entries]:
            if type(value) is int and value > newest:
                newest = value
    return _time(newest)


def _seen(entry: Mapping[str, Any]) -> Seen:
    """What counting needs of an entry; the rest is read only of those that are kept. Runs thousands of times a dump."""
    group = entry.get("process_group", entry.get("pg_name", ""))
    desc = ""
    if isinstance(group, list | tuple) and group:
        desc = plain_desc(group[1]) if len(group) > 1 else ""
        group = group[0]
    return Seen(
        _integer(entry.get("pg_id"), 0),
        group if type(group) is str else _text(group or ""),
        desc,
        _integer(entry.get("collective_seq_id", entry.get("seq_id")), -1),
        bool(entry.get("is_p2p")),
        _state(entry),
    )


def _collective(entry: Mapping[str, Any], seen: Seen, configs: Mapping[str, Config]) -> Collective:
    title = _text(entry.get("profiling_name"))
    op, _, peer = _ends(title.partition(":")[2] or title)
    ranks = configs[seen.group].ranks if seen.group in configs else ()
    if peer is not None and ranks:
        peer = ranks[peer] if 0 <= peer < len(ranks) else None
    return Collective(
        group=seen.group,
        seq=seen.seq,
        op=op,
        state=seen.state,
        p2p=seen.p2p,
        p2p_seq=_integer(entry.get("p2p_seq_id"), 0),
        op_id=_integer(entry.get("op_id"), 0),
        created_at=_time(_integer(entry.get("time_created_ns"), 0)),
        input_sizes=_sizes(entry.get("input_sizes")),
        output_sizes=_sizes(entry.get("output_sizes")),
        dtypes=tuple(_text(each) for each in _sequence(entry.get("input_dtypes"))[:16]),
        timeout_ms=_integer(entry.get("timeout_ms"), 0),
        peer=peer,
        frames=_frames(entry.get("frames")),
    )


def _group_of(entry: Mapping[str, Any]) -> str:
    group = entry.get("process_group", entry.get("pg_name", ""))
    return _text(group[0] if isinstance(group, list | tuple) and group else group or "")


def _state(entry: Mapping[str, Any]) -> CollectiveState:
    if entry.get("retired") or _integer(entry.get("time_discovered_completed_ns"), 0) > 0:
        return CollectiveState.COMPLETED
    return _STATES.get(_text(entry.get("state")), CollectiveState.SCHEDULED)


def _ends(op: str) -> tuple[str, int | None, int | None]:
    """ "send 0->3" -> ("send", 0, 3): own and peer's rank within the group."""
    match = _ENDS.match(op)
    if match is None:
        return op, None, None
    return match["op"].rpartition(":")[2], int(match["own"]), int(match["peer"])


def _newest(seen: Sequence[Seen], keep: int) -> list[int]:
    """Which entries to keep: unfinished ones first, then the newest; in order."""
    if len(seen) <= keep:
        return list(range(len(seen)))
    backwards = range(len(seen) - 1, -1, -1)
    unfinished = [index for index in backwards if seen[index].state is not CollectiveState.COMPLETED]
    finished = [index for index in backwards if seen[index].state is CollectiveState.COMPLETED]
    return sorted((unfinished + finished)[:keep])


def _heads(seen: Sequence[Seen], entries: Sequence[Mapping[str, Any]], keep: int) -> list[int]:
    """Of each lane (a group's collectives, or what it exchanges with one peer in one direction) the first unfinished entry
    and the last `FINISHED_KEPT` finished ones, `keep` in all; in order."""
    first: dict[tuple[str, str], int] = {}
    finished: dict[tuple[str, str], list[int]] = {}
    for index in range(len(seen) - 1, -1, -1):
        each = seen[index]
        lane = (each.group, str(entries[index].get("profiling_name", "")) if each.p2p else "")
        if each.state is not CollectiveState.COMPLETED:
            first[lane] = index
        elif len(kept := finished.setdefault(lane, [])) < FINISHED_KEPT:
            kept.append(index)
    newest = sorted((index for kept in finished.values() for index in kept), reverse=True)
    return sorted([*sorted(first.values()), *newest][:keep])


def _backend(entries: list[Mapping[str, Any]], raw: Mapping[str, Any]) -> str:
    for entry in entries:
        prefix, colon, _ = _text(entry.get("profiling_name")).partition(":")
        if colon:
            return prefix
    config = raw.get("pg_config")
    if isinstance(config, Mapping) and set(config) == {""}:
        return "gloo"
    return "nccl" if raw.get("nccl_version") or raw.get("comm_lib_version") else ""


def _frames(frames: Any) -> tuple[str, ...]:
    """The innermost frames of the user's own code; the innermost of all where none is."""
    found = [frame for frame in _sequence(frames) if isinstance(frame, Mapping)]
    mine = [frame for frame in found if not _NOT_USER.search(_text(frame.get("filename")))]
    return tuple(_frame(frame) for frame in (mine or found)[:FRAMES_KEPT])


def _frame(frame: Mapping[str, Any]) -> str:
    name, line, function = (
        _text(frame.get(key, default)) for key, default in (("filename", "?"), ("line", 0), ("name", "?"))
    )
    return f"{name.rsplit('/', 1)[-1]}:{line} in {function}"[:200]


def _sizes(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(size for size in _sequence(shape)[:16] if isinstance(size, int)) for shape in _sequence(value)[:16])


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _text(value: Any) -> str:
    """Text and numbers as text; anything that holds other values is none, however deep it may be."""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _time(nanoseconds: int) -> datetime | None:
    """Nanoseconds since the epoch; None for 0 and for what no calendar has."""
    if not 0 < nanoseconds < 10**19:
        return None
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)
