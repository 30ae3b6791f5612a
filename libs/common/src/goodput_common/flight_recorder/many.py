"""The dumps of a large job, one by one: each is read, reduced to where its rank stands, and dropped.

A job of 4,096 ranks leaves gigabytes; what tells who waits for whom is a few entries a rank. Reading is all computation, so
where there are enough files they are shared out among processes. No more than a few files a process are under way at any
time: memory is bounded by what remains of the dumps, not by their size.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import msgspec

from goodput_common.contracts.job import FlightRecorderDump
from goodput_common.flight_recorder.errors import UnreadableDump
from goodput_common.flight_recorder.names import rank_from_name
from goodput_common.flight_recorder.reader import DUMP_BYTES_MAX, normalise, own_ranks, parse

FILES_AT_ONCE = 16  # of one task of one process
TASKS_AHEAD = 3  # for each process: enough that none waits for work, few enough that results do not pile up
ALONE_BELOW = 64  # files: to start processes takes longer than to read so few

Outcome = FlightRecorderDump | UnreadableDump


def read_many(
    paths: Sequence[Path], *, fabric: str, job: str, host: str = "", processes: int | None = None
) -> Iterator[Outcome]:
    """The dumps in the order of `paths`, reduced (`normalise(heads=True)`); a file that cannot be read comes as the error
    that says why. Whose a dump is the groups inside say where they prove it, else its name. `processes` defaults to the
    CPUs that this process may use, and to one for few files."""
    workers = len(os.sched_getaffinity(0)) if processes is None else max(1, processes)
    if processes is None and len(paths) < ALONE_BELOW:
        workers = 1
    members: dict[tuple[int, ...], tuple[int, ...]] = {}
    if workers == 1:
        for path in paths:
            yield _shared(_read(path, fabric, job, host), members)
        return
    tasks = (paths[at : at + FILES_AT_ONCE] for at in range(0, len(paths), FILES_AT_ONCE))
    running: deque[Future[list[Outcome]]] = deque()
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=gc.disable) as pool:
        try:
            for task in tasks:
                running.append(pool.submit(_read_all, task, fabric, job, host))
                if len(running) >= workers * TASKS_AHEAD:
                    for outcome in running.popleft().result():
                        yield _shared(outcome, members)
            while running:
                for outcome in running.popleft().result():
                    yield _shared(outcome, members)
        finally:
            for each in running:
                each.cancel()


def _read_all(paths: Sequence[Path], fabric: str, job: str, host: str) -> list[Outcome]:
    """In a process of its own, which holds no cycles: collecting garbage would only walk through millions of live values."""
    return [_read(path, fabric, job, host) for path in paths]


def _read(path: Path, fabric: str, job: str, host: str) -> Outcome:
    origin = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(DUMP_BYTES_MAX + 1)
        raw = parse(data, origin=origin)
        own, named = own_ranks(raw), rank_from_name(path.name)
        if len(own) != 1 and named is None:
            return UnreadableDump("neither its name nor its groups say whose it is", origin=origin)
        rank = own[0] if len(own) == 1 or named is None else named.rank
        host = (named.host if named is not None else "") or host
        return normalise(raw, fabric=fabric, job=job, rank=rank, host=host, origin=origin, reason="file", heads=True)
    except UnreadableDump as error:
        return error
    except OSError as error:
        return UnreadableDump(error.strerror or str(error), origin=origin)


def _shared(outcome: Outcome, members: dict[tuple[int, ...], tuple[int, ...]]) -> Outcome:
    """With one tuple for the members of a group, however many dumps name it."""
    if isinstance(outcome, UnreadableDump):
        return outcome
    groups = tuple(
        msgspec.structs.replace(each, ranks=members.setdefault(each.ranks, each.ranks)) for each in outcome.groups
    )
    return msgspec.structs.replace(outcome, groups=groups)
