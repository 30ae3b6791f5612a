"""The bus as a part of a service: its streams exist before anything is published or consumed."""

from __future__ import annotations

from goodput_common.bus.errors import BusUnavailable, ProvisioningConflict
from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.provision import provision
from goodput_common.runtime.clock import Clock
from goodput_common.runtime.lifecycle import Part, StartError

WAIT_S = 60.0
AGAIN_S = 0.5


class BusPart(Part):
    """Waits for a broker that is still starting, makes or verifies the streams, and closes the connection at the end.

    `address` is for the error: the URL without its password.
    """

    name = "bus"

    def __init__(self, bus: JetStreamBus, address: str, clock: Clock, *, wait_s: float = WAIT_S) -> None:
        self._bus, self._address, self._clock, self._wait_s = bus, address, clock, wait_s

    async def start(self) -> None:
        until_s = self._clock.monotonic_s() + self._wait_s
        while True:
            try:
                await provision(self._bus)
                return
            except BusUnavailable as error:
                if self._clock.monotonic_s() > until_s:
                    raise StartError(
                        f"no bus at {self._address} within {self._wait_s:.0f} s: {error}",
                        do_next="start NATS with JetStream, or correct GOODPUT_NATS_URL",
                    ) from error
            except ProvisioningConflict as error:
                raise StartError(str(error), do_next="bring the stream into the shape named above, or remove it") from error
            await self._clock.sleep(AGAIN_S)

    async def close(self) -> None:
        await self._bus.close()
