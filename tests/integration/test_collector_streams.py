"""Whether a collector makes the bus's streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from goodput_collector.bootstrap import build
from goodput_collector.settings import Settings
from goodput_common.contracts.subjects import STREAMS


@pytest.mark.parametrize(("asked", "made"), [(False, 0), (True, len(STREAMS))])
async def test_a_collector_makes_streams_only_when_asked(clean_streams: str, tmp_path: Path, asked: bool, made: int) -> None:
    given: dict[str, Any] = {"nats_url": clean_streams, "run_dir": tmp_path, "collector_http": False}
    connection: Any = build(Settings(**given, provision_streams=asked)).parts[0]
    try:
        bus = await connection.connect()
        assert len(await (await bus.client()).jetstream().streams_info()) == made
    finally:
        await connection.close()
