"""`python -m goodput_collector` runs it. `python -m goodput_collector check [--covered] [--json]` reads every source once
and tells what was found, where the command line is not installed: in the container."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import msgspec

from goodput_collector.bootstrap import build
from goodput_collector.settings import load
from goodput_common.runtime.lifecycle import run_service
from goodput_common.runtime.logs import configure_logging
from goodput_common.runtime.process import ExitCode, run_main
from goodput_common.runtime.settings import SettingsError


async def serve() -> int:
    settings = load()
    configure_logging("collector", settings.log_json, settings.log_level, fabric=settings.fabric)
    collector = build(settings)
    return await run_service("collector", collector.parts, health=collector.health, tasks=collector.tasks)


def check(*, all_covered: bool, as_json: bool) -> int:
    from goodput_collector.check_text import broken, lines  # a collector that runs needs neither
    from goodput_collector.dry_run import report

    try:
        settings = load()
    except SettingsError as error:
        print(error, file=sys.stderr)
        return ExitCode.MISCONFIGURED
    configure_logging("collector", json=False, level="WARNING")
    found = asyncio.run(report(settings, environ=os.environ))
    if as_json:
        print(msgspec.json.encode(found).decode())
    else:
        for _, line in lines(found, all_covered=all_covered):
            print(line)
    return int(broken(found))


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m goodput_collector", description="The collector of this host.")
    parser.add_argument(
        "do", nargs="?", choices=["run", "check"], default="run", help="check: read every source once, and tell"
    )
    parser.add_argument("--covered", action="store_true", help="check: name every component that is covered")
    parser.add_argument("--json", action="store_true", help="check: as JSON")
    given = parser.parse_args(arguments)
    if given.do == "check":
        sys.exit(check(all_covered=given.covered, as_json=given.json))
    run_main(serve)


if __name__ == "__main__":
    main(sys.argv[1:])
