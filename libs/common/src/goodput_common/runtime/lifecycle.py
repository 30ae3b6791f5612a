"""The life of a service: start, ready, stop pulling, drain, flush, close.

A service is a list of parts (a bus connection, a consumer, an HTTP server …) in the order in which they need each other.
`run_service` starts them in that order, says ready, and waits for SIGTERM, SIGINT or a crashed task. Then, within
`stop_within_s` whatever happens:

    stop pulling   all at once    take no new work
    drain          all at once    finish the work in hand
    flush          last first     hand on what was produced (outbox, spool, buffers) to parts that still run
    close          last first     give resources back

Every phase has a share of the time; a part that overruns it is named in the log, cancelled and left behind, so that one hung
part cannot keep the others from closing. A second signal ends the process at once. A watchdog thread ends it if even the
event loop is stuck.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

from goodput_common.runtime.health import Health
from goodput_common.runtime.logs import get_logger
from goodput_common.runtime.process import ExitCode, handle_signals
from goodput_common.runtime.tasks import Tasks, cancel_all

_log = get_logger(__name__)


class StartError(Exception):
    """A part cannot start for a reason that an operator can mend; `do_next` says how."""

    exit_code = ExitCode.START_FAILED

    def __init__(self, reason: str, *, do_next: str) -> None:
        super().__init__(reason)
        self.do_next = do_next


class Part:
    """One thing with a life of its own inside a service. Override what applies; what is not overridden takes no time.

    `close` is also called when `start` failed or was cut short, so it must cope with a part that is half there.
    """

    name: str = ""

    async def start(self) -> None:
        """Come up; return once usable. Raise StartError when an operator has to do something."""

    async def stop_pulling(self) -> None:
        """Take no new work."""

    async def drain(self) -> None:
        """Finish the work in hand."""

    async def flush(self) -> None:
        """Hand on what is buffered."""

    async def close(self) -> None:
        """Give back every resource."""


class Phase(enum.StrEnum):
    STOP_PULLING = "stop_pulling"
    DRAIN = "drain"
    FLUSH = "flush"
    CLOSE = "close"


# Cumulative shares of `stop_within_s`: time that a phase leaves unused goes to the ones after it.
_DEADLINES: tuple[tuple[Phase, float], ...] = (
    (Phase.STOP_PULLING, 0.1),
    (Phase.DRAIN, 0.6),
    (Phase.FLUSH, 0.8),
    (Phase.CLOSE, 0.97),
)
_CANCEL_WITHIN_S = 0.1  # how long a cancelled part may take over its own clean-up before it is left behind


async def run_service(
    name: str,
    parts: Sequence[Part],
    *,
    health: Health,
    tasks: Tasks | None = None,
    stop: asyncio.Event | None = None,
    stop_within_s: float = 9.0,
) -> int:
    """Run until told to stop; returns the exit code. Signals are handled only in the main thread and when no `stop` event
    is given (with one, the caller decides when to stop: `goodput demo` and tests run a service inside their own process).
    """
    tasks = tasks or Tasks()
    own_signals = stop is None and threading.current_thread() is threading.main_thread()
    stop = stop or asyncio.Event()
    health.set_phase("starting", ready=False)
    with handle_signals(stop, stop_within_s) if own_signals else contextlib.nullcontext():
        _log_lost_exceptions()
        began_s = time.monotonic()
        code, started = await _start(parts, tasks, stop)
        if code is ExitCode.STOPPED and not stop.is_set():
            health.set_phase("ready", ready=True)
            _log.info("ready", started_in_s=round(time.monotonic() - began_s, 3), parts=[_name(each) for each in parts])
            await _first(stop.wait(), tasks.crashed())
        health.set_phase("stopping", ready=False)
        if tasks.crash is not None:
            code = ExitCode.CRASHED
            _log.error("stopping: a task crashed", task=tasks.crash.task, error=repr(tasks.crash.error))
        elif code is ExitCode.STOPPED:
            _log.info("stopping", within_s=stop_within_s)
        clean = await _stop(started, tasks, stop_within_s)
        if code is ExitCode.STOPPED and not clean:
            code = ExitCode.STOPPED_UNCLEANLY
        _log.info("stopped", service=name, exit_code=int(code), meaning=code.name.lower())
        return int(code)


async def _start(parts: Sequence[Part], tasks: Tasks, stop: asyncio.Event) -> tuple[ExitCode, list[Part]]:
    """Start in order; returns the parts that have to be closed again, in start order."""
    reached: list[Part] = []
    for part in parts:
        if stop.is_set() or tasks.crash is not None:
            break
        reached.append(part)
        starting = asyncio.create_task(part.start(), name=f"{_name(part)} start")
        await _first(_quiet(starting), stop.wait(), tasks.crashed())
        if not starting.done():
            _log.info("start cut short", part=_name(part))
            await cancel_all([starting], within_s=1.0)
            break
        if error := starting.exception():
            do_next = getattr(error, "do_next", "")
            _log.error(
                "start failed",
                part=_name(part),
                error=str(error) or repr(error),
                next=do_next or "see the error; mend its cause and start the service again",
                exc_info=None if do_next else error,
            )
            return ExitCode.START_FAILED, reached
    return ExitCode.STOPPED, reached


async def _stop(parts: Sequence[Part], tasks: Tasks, within_s: float) -> bool:
    """All phases over the parts that were started; returns whether every one did its work in time."""
    began_s = time.monotonic()
    clean = True
    for phase, share in _DEADLINES:
        ends_s = began_s + within_s * share
        if phase is Phase.CLOSE and (stubborn := await tasks.close(within_s=0.5)):
            _log.error("tasks did not end when cancelled", tasks=stubborn)
            clean = False
        concerned = [part for part in parts if getattr(type(part), phase) is not getattr(Part, phase)]
        if phase in (Phase.STOP_PULLING, Phase.DRAIN):
            results = await asyncio.gather(*(_bounded(part, phase, ends_s) for part in concerned))
            clean = clean and all(results)
            continue
        concerned.reverse()
        for index, part in enumerate(concerned):
            now_s = time.monotonic()
            share_s = max(0.1, (ends_s - now_s) / (len(concerned) - index))
            clean = await _bounded(part, phase, now_s + share_s) and clean
    return clean


async def _bounded(part: Part, phase: Phase, ends_s: float) -> bool:
    """Run one phase of one part until its deadline."""
    began_s = time.monotonic()
    task: asyncio.Task[None] = asyncio.create_task(getattr(part, phase)(), name=f"{_name(part)} {phase}")
    await asyncio.wait([task], timeout=max(0.0, ends_s - began_s))
    if not task.done():
        _log.error(
            "part hung while stopping",
            part=_name(part),
            phase=str(phase),
            after_s=round(time.monotonic() - began_s, 2),
            where=_where(task),
            next="its work may be redone after the restart; report this with the place named in `where`",
        )
        await cancel_all([task], within_s=_CANCEL_WITHIN_S)
        return False
    if task.cancelled():
        _log.error("part was cancelled while stopping", part=_name(part), phase=str(phase))
        return False
    if error := task.exception():
        _log.error("part failed while stopping", part=_name(part), phase=str(phase), error=repr(error), exc_info=error)
        return False
    return True


def _name(part: Part) -> str:
    return part.name or type(part).__name__


def _where(task: asyncio.Task[Any], *, frames_max: int = 6) -> list[str]:
    """Where a suspended task waits, innermost await first."""
    coro: Any = task.get_coro()
    places: list[str] = []
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "gi_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}")
        coro = getattr(coro, "cr_await", None) or getattr(coro, "gi_yieldfrom", None)
    return places[::-1][:frames_max]


async def _quiet(task: asyncio.Task[Any]) -> None:
    await asyncio.wait([task])


async def _first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of `waits` does; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_all(tasks, within_s=1.0)


def _log_lost_exceptions() -> None:
    """What asyncio would print about exceptions nobody awaited goes through our logs."""

    def handle(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        _log.error("unhandled in the event loop", message=context.get("message", ""), exc_info=error)

    asyncio.get_running_loop().set_exception_handler(handle)
