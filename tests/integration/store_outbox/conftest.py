"""An outbox in a schema of its own, and publishers that end with the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine

from goodput_common.store.outbox import OutboxPublisher
from goodput_common.store.testing import publishers, schema_in


@pytest.fixture
async def engine(fresh_database: str) -> AsyncIterator[AsyncEngine]:
    async with schema_in(fresh_database) as made:
        yield made


@pytest.fixture
async def publisher_of(engine: AsyncEngine) -> AsyncIterator[Callable[..., OutboxPublisher]]:
    async with publishers(engine) as make:
        yield make
