"""`python -m goodput_collector`"""

from __future__ import annotations

from goodput_collector.bootstrap import build
from goodput_collector.settings import load
from goodput_common.runtime.lifecycle import run_service
from goodput_common.runtime.logs import configure_logging
from goodput_common.runtime.process import run_main


async def serve() -> int:
    settings = load()
    configure_logging("collector", settings.log_json, settings.log_level, fabric=settings.fabric)
    collector = build(settings)
    return await run_service("collector", collector.parts, health=collector.health, tasks=collector.tasks)


if __name__ == "__main__":
    run_main(serve)
