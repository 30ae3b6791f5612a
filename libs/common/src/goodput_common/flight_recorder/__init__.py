"""The one reader of torch's flight recorder: memory in the agent, files in the collector and in `goodput diagnose`.

>>> dump = read_dump(data, fabric="default", job="j1", rank=3, host="h7", origin="/dumps/rank_3")
>>> rank_from_name("nccl_trace_rank_container-node02_5")
NamedRank(rank=5, host='container-node02', local=False)

The folder of a large job is read by `many.read_many`, which a training process has no use for and does not import.
"""

from __future__ import annotations

from goodput_common.flight_recorder.errors import UnreadableDump
from goodput_common.flight_recorder.names import NamedRank, rank_from_name
from goodput_common.flight_recorder.reader import (
    DUMP_BYTES_MAX,
    looks_like_dump,
    newest_time,
    normalise,
    own_ranks,
    parse,
    read_dump,
)

__all__ = [
    "DUMP_BYTES_MAX",
    "NamedRank",
    "UnreadableDump",
    "looks_like_dump",
    "newest_time",
    "normalise",
    "own_ranks",
    "parse",
    "rank_from_name",
    "read_dump",
]
