"""The buses under contract: a test that asks for `bus` runs on the in-memory twin and on a real NATS server.

A behaviour is written once; the twin may differ from the server in nothing that a service could notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from goodput_common.bus.jetstream import JetStreamBus
from goodput_common.bus.memory import MemoryBus
from goodput_common.bus.provision import delete_all_streams, provision
from goodput_common.bus.testing import AnyBus


@pytest.fixture(params=["memory", "jetstream"])
def server(request: pytest.FixtureRequest) -> str | None:
    """None for the twin, else the server's address."""
    return None if request.param == "memory" else str(request.getfixturevalue("nats_url"))


@pytest.fixture
async def bus(server: str | None) -> AsyncIterator[AnyBus]:
    made: AnyBus
    if server is None:
        made = MemoryBus()
    else:
        await delete_all_streams(server)
        made = await JetStreamBus.connect(server, name="contract", registry=CollectorRegistry())
    await provision(made)
    yield made
    await made.close()


@pytest.fixture
async def jetstream(nats_url: str) -> AsyncIterator[JetStreamBus]:
    """For what only a server can do."""
    await delete_all_streams(nats_url)
    made = await JetStreamBus.connect(nats_url, name="contract", registry=CollectorRegistry())
    await provision(made)
    yield made
    await made.close()
