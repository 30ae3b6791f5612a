"""`goodput up`: every service on this machine with an embedded NATS and Postgres, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from pathlib import Path
from typing import Annotated

import typer

from goodput_cli.output import Failure, err, out, print_json
from goodput_faultlab.stack import Stack, StackError

DEFAULT_PORTS = {"correlator": 8081, "recovery": 8082}


def default_directory() -> Path:
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "goodput"


def command(
    directory: Annotated[Path | None, typer.Option(help="Where data and logs live.")] = None,
    fabric: Annotated[str, typer.Option(help="Name of the fabric.")] = "default",
    as_json: Annotated[bool, typer.Option("--json", help="Addresses and token as JSON, then silence.")] = False,
) -> None:
    """Starts NATS, Postgres, correlator and recovery; prints their addresses; stops them all on Ctrl-C."""
    try:
        asyncio.run(_up(directory or default_directory() / "up", fabric, as_json=as_json))
    except StackError as error:
        raise Failure(str(error)) from error


async def _up(directory: Path, fabric: str, *, as_json: bool) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    stack = Stack(
        directory,
        fabric=fabric,
        ports=DEFAULT_PORTS,
        operator_token=_kept_token(directory),
        on_progress=lambda text: err.print(text, style="dim"),
    )
    await stack.start()
    try:
        urls = {name: stack.service(name).url for name in stack.services}
        if as_json:
            print_json(
                {"nats": stack.nats.url, "services": urls, "token": stack.operator_token, "directory": str(directory)}
            )
        else:
            out.print(f"correlator  {urls['correlator']}   recovery  {urls['recovery']}   NATS  {stack.nats.url}")
            out.print(f"GOODPUT_TOKEN={stack.operator_token} goodput verdicts --follow", markup=False)
            out.print(f"logs in {directory / 'logs'}; Ctrl-C stops everything")
        await stopped.wait()
    finally:
        await stack.stop()


def _kept_token(directory: Path) -> str:
    """The same token at every start, readable by its owner only."""
    path = directory / "operator-token"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(24))
    return path.read_text().strip()
