"""The lab's inner half: a process in namespaces of its own that builds the world and runs what it is asked to.

    python -m goodput_faultlab.lab.enter -- python -m goodput_faultlab.lab.inside

The first line of stdin is a `Setup`, each further one a `RunRequest`; stdout carries `Report`s. The end of stdin ends the
lab.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TypeVar

import msgspec

from goodput_faultlab.lab.plan import LabPlan
from goodput_faultlab.lab.protocol import Failed, Finished, Progress, Ready, Report, RunRequest, Setup
from goodput_faultlab.lab.run import LabRunError
from goodput_faultlab.lab.world import World

T = TypeVar("T")


class Voice:
    """Reports go to the original stdout; whatever else prints goes to stderr."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb")
        os.dup2(2, 1)

    def report(self, report: Report) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._out.write(msgspec.json.encode(report) + b"\n")
            self._out.flush()

    def say(self, text: str) -> None:
        self.report(Progress(text=text))


async def serve(voice: Voice) -> None:
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(0, "rb"))
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, task.cancel)
    setup = msgspec.json.decode(await reader.readline(), type=Setup)
    plan = LabPlan(
        hosts=setup.hosts,
        ranks_per_host=setup.ranks_per_host,
        rails=setup.rails,
        spares=setup.spares,
        fabric=setup.fabric,
    )
    world = World(plan, Path(setup.directory), name=setup.name, say=voice.say)
    began_s = loop.time()
    try:
        starting = asyncio.create_task(world.start(), name="lab-start")
        await _unless_closed(starting, reader)
        voice.report(Ready(started_in_s=round(loop.time() - began_s, 3)))
        while line := await reader.readline():
            request = msgspec.json.decode(line, type=RunRequest)
            running = asyncio.create_task(world.run(request.scenario, request.seed), name="lab-run")
            try:
                voice.report(Finished(result=await _unless_closed(running, reader)))
            except LabRunError as error:
                voice.report(Failed(reason=str(error)))
    finally:
        await world.stop()


async def _unless_closed(task: asyncio.Task[T], reader: asyncio.StreamReader) -> T:
    """The task's result; when the outer half goes away meanwhile, the task is cancelled."""
    while not task.done():
        await asyncio.wait({task}, timeout=0.5)
        if reader.at_eof() and not task.done():
            task.cancel()
    return await task


def main() -> int:
    voice = Voice()
    try:
        asyncio.run(serve(voice))
    except (asyncio.CancelledError, KeyboardInterrupt):
        return 130
    except Exception as error:  # noqa: BLE001 - the outer half must hear of it, whatever it was
        traceback.print_exc()
        voice.report(Failed(reason=f"{type(error).__name__}: {error}", fatal=True))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
