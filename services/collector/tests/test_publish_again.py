"""A reading that could be published only in part: what was spooled is not told again, and nothing holds up the rest."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from goodput_collector.adapters.spool import DiskSpool
from goodput_collector.application.encodable import encodable_part
from goodput_collector.application.message_size import SAMPLES_PER_BATCH
from goodput_collector.application.ports import Outgoing, Reading
from goodput_collector.application.publish import Origin, Publisher
from goodput_common.bus.errors import BusUnavailable
from goodput_common.bus.ports import Bus
from goodput_common.contracts.telemetry import Event, EventName, Source, TelemetryBatch
from goodput_common.runtime.clock import SystemClock
from goodput_common.runtime.tasks import Tasks

AT = datetime(2026, 3, 1, tzinfo=UTC)


async def nowhere() -> Bus:
    raise BusUnavailable("away")


def event(number: int, **attrs: Any) -> Event:
    return Event(component="host:h0", name=EventName.XID, observed_at=AT, excerpt=str(number), attrs=attrs)


class Rig:
    def __init__(self, folder: Path) -> None:
        self.spool = DiskSpool(folder, boot_id="b1")
        origin = Origin(fabric="f", host="h0", boot_id="b1")
        self.publisher = Publisher(origin, self.spool, nowhere, clock=SystemClock(), tasks=Tasks())

    def told(self) -> list[str]:
        return [sample.excerpt for batch in self.batches() for sample in batch.samples if isinstance(sample, Event)]

    def batches(self) -> list[TelemetryBatch]:
        return [cast("TelemetryBatch", each.data) for _, each in self.spool.peek(1000)]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_what_has_been_spooled_of_a_reading_is_not_told_again_when_it_is_offered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    rig = Rig(tmp_path)
    reading = Reading(samples=[event(number) for number in range(2 * SAMPLES_PER_BATCH + 1)], marks={"log": "1:2:3"})
    append, calls = DiskSpool.append, 0

    def fails_once(spool: DiskSpool, message: Outgoing, *, source: str, seq: int) -> bool:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise MemoryError
        return append(spool, message, source=source, seq=seq)

    monkeypatch.setattr(DiskSpool, "append", fails_once)
    with pytest.raises(MemoryError):
        rig.publisher.publish(Source.KERNEL_LOG, reading)
    assert rig.publisher.publish(Source.NETLINK, Reading(samples=[event(-1)]))  # another source's comes in between
    assert rig.publisher.publish(Source.KERNEL_LOG, reading)
    assert sorted(map(int, rig.told())) == [-1, *range(2 * SAMPLES_PER_BATCH + 1)]
    numbers = [each.seq for each in rig.batches() if each.source is Source.KERNEL_LOG]
    assert numbers == sorted(set(numbers))


def test_a_sample_that_cannot_be_encoded_is_left_out_and_counted_and_takes_no_other_with_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    reading = Reading(samples=[event(0), event(1, pci=object()), event(2, log="a\udcff")], marks={"log": "1:2:3"})
    assert rig.publisher.publish(Source.KERNEL_LOG, reading)
    assert rig.told() == ["0", "2"]
    assert rig.publisher.refused == 1
    assert [each.seq for each in rig.batches()] == [1]
    rig.spool.close()
    again = DiskSpool(tmp_path, boot_id="b1")
    assert again.marks["log"][0] == "1:2:3"
    again.close()


def test_nothing_is_left_out_of_what_can_be_encoded() -> None:
    batch = TelemetryBatch(
        fabric="f", host="h", source=Source.RDMA, boot_id="b", seq=1, observed_from=AT, observed_to=AT, samples=(event(1),)
    )
    assert encodable_part(batch) == (None, 1)
    assert encodable_part(event(1)) == (None, 1)
