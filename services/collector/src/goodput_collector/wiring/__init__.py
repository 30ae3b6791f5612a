"""Which sources this collector reads, and how each is constructed: one module a family, each with `readers(given)`.

A source that is switched off in the settings is not constructed. One that this host lacks is constructed all the same: it
says `absent` by itself, and is looked for again, because devices appear.
"""

from __future__ import annotations

from goodput_collector.application.ports import SourceReader
from goodput_collector.wiring import discovery, gpu, host, job, logs, network, switches
from goodput_collector.wiring.advice import SWITCHED_ON_BY
from goodput_collector.wiring.given import Given
from goodput_common.contracts.telemetry import Source

FAMILIES = (logs, gpu, network, host, job, switches, discovery)


def all_readers(given: Given) -> list[SourceReader]:
    off = given.settings.sources_off
    return [reader for family in FAMILIES for reader in family.readers(given) if reader.source not in off]


def switched_off(given: Given) -> dict[Source, str]:
    """The sources that this collector does not read, each with what would switch it on."""
    off, read = given.settings.sources_off, {reader.source for reader in all_readers(given)}
    return {
        source: f"take {source} out of GOODPUT_COLLECTOR_OFF" if source in off else f"set {SWITCHED_ON_BY[source]}"
        for source in Source
        if source not in read and source is not Source.HEARTBEAT and (source in off or source in SWITCHED_ON_BY)
    }
