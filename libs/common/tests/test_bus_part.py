"""A service waits for a broker that is still starting, and says what to do where waiting does not help."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from goodput_common.bus import part
from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.runtime.clock import ManualClock
from goodput_common.runtime.lifecycle import StartError

ADDRESS = "nats://bus:4222"


class Broker:
    """Stands in for bus and provisioning: answers with `errors` in turn, then well."""

    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)
        self.asked = 0
        self.closed = False

    async def provision(self, _: Any) -> None:
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)

    async def close(self) -> None:
        self.closed = True


async def _start(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the part, letting the clock run until it has."""
    monkeypatch.setattr(part, "provision", broker.provision)
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))
    bus: Any = broker
    starting = asyncio.create_task(part.BusPart(bus, ADDRESS, clock, wait_s=2.0).start())
    while not starting.done():
        await asyncio.sleep(0)
        await clock.advance(part.AGAIN_S)
    await starting


async def test_a_broker_that_is_still_starting_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(*(BusUnavailable("not yet") for _ in range(3)))
    await _start(broker, monkeypatch)
    assert broker.asked == 4


async def test_a_broker_that_does_not_come_ends_the_start_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(*(BusUnavailable("refused") for _ in range(100)))
    with pytest.raises(StartError, match=f"no bus at {ADDRESS} within 2 s: refused") as raised:
        await _start(broker, monkeypatch)
    assert "GOODPUT_NATS_URL" in raised.value.do_next
    assert broker.asked < 100


async def test_a_stream_of_another_shape_ends_the_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(ProvisioningConflict("stream JOB: retention is limits, wanted interest"))
    with pytest.raises(StartError, match="stream JOB: retention") as raised:
        await _start(broker, monkeypatch)
    assert raised.value.do_next
    assert broker.asked == 1


async def test_the_connection_is_closed_with_the_service() -> None:
    broker = Broker()
    bus: Any = broker
    await part.BusPart(bus, ADDRESS, ManualClock(datetime(2026, 1, 1, tzinfo=UTC))).close()
    assert broker.closed
