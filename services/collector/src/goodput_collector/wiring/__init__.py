"""Which sources this collector reads, and how each is constructed: one module a family, each with `readers(given)`.

A source that is switched off in the settings is not constructed. One that this host lacks is constructed all the same: it
says `absent` by itself, and is looked for again, because devices appear.
"""

from __future__ import annotations

from goodput_collector.application.ports import SourceReader
from goodput_collector.wiring import job, logs, network
from goodput_collector.wiring.given import Given

FAMILIES = (logs, network, job)


def all_readers(given: Given) -> list[SourceReader]:
    return [reader for family in FAMILIES for reader in family.readers(given)]
