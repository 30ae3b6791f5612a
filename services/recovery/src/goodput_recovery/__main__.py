"""`python -m goodput_recovery`: configure from the environment, run until SIGTERM."""

from __future__ import annotations

from goodput_common.runtime.lifecycle import run_service
from goodput_common.runtime.logs import configure_logging
from goodput_common.runtime.process import run_main
from goodput_recovery.bootstrap import build
from goodput_recovery.settings import load


async def serve() -> int:
    settings = load()
    configure_logging("recovery", settings.log_json, settings.log_level, fabric=settings.fabric)
    service = await build(settings)
    return await run_service("recovery", service.parts, health=service.health, tasks=service.tasks)


if __name__ == "__main__":
    run_main(serve)
