"""The process around a service: exit codes, signals, and an end that cannot be held up.

Kept apart from the lifecycle, which is about parts and their order and can run inside any process.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, NoReturn

from goodput_common.runtime.logs import get_logger

_log = get_logger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class ExitCode(enum.IntEnum):
    """128 + the signal's number is used, as in a shell, when a second signal or one before the start ended the process."""

    STOPPED = 0  # asked to, and every part did
    CRASHED = 1  # a task died
    MISCONFIGURED = 2
    START_FAILED = 3
    STOPPED_UNCLEANLY = 4  # asked to, but a part failed or hung on the way down


@contextlib.contextmanager
def handle_signals(stop: asyncio.Event, stop_within_s: float) -> Iterator[None]:
    """First signal: set `stop` and arm the watchdog. Second: exit now. Plain `signal.signal`, because a handler of the event
    loop would not run while the loop is stuck in a call."""
    loop = asyncio.get_running_loop()
    watchdog: list[threading.Timer] = []

    def received(number: int, _: FrameType | None) -> None:
        if watchdog:
            os.write(2, f"second {signal.Signals(number).name}: exiting at once\n".encode())
            os._exit(128 + number)
        watchdog.append(_arm_watchdog(stop_within_s, 128 + number))
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, received) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for timer in watchdog:
            timer.cancel()


def _arm_watchdog(after_s: float, code: int) -> threading.Timer:
    """End the process in `after_s` from outside the event loop, saying where every thread stands."""

    def expired() -> None:
        os.write(2, f"not stopped within {after_s:g} s, exiting; the threads stand here:\n".encode())
        with contextlib.suppress(OSError, ValueError):
            faulthandler.dump_traceback(file=2)
        os._exit(code)

    timer = threading.Timer(after_s, expired)
    timer.daemon = True
    timer.start()
    return timer


def run_main(serve: Callable[[], Coroutine[Any, Any, int]], *, unwind_within_s: float = 0.5) -> NoReturn:
    """The body of a service's `__main__`: run `serve`, then leave with its exit code, for certain.

    Takes care of what surrounds `run_service`: signals before it (a container's first process ignores SIGTERM until a
    handler is set), a misconfiguration (exit 2, message without a traceback), and threads or tasks that would keep the
    interpreter from ending (left behind after `unwind_within_s`).
    """
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    code: int
    runner = asyncio.Runner()
    try:
        code = runner.run(serve())
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(ExitCode.CRASHED)
    except Exception as error:  # noqa: BLE001 - the last resort of the process
        do_next = getattr(error, "do_next", "")
        code = int(getattr(error, "exit_code", ExitCode.CRASHED))
        _log.error("did not start", error=str(error) or repr(error), next=do_next, exc_info=None if do_next else error)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _arm_watchdog_quietly(unwind_within_s, code)
    with contextlib.suppress(Exception):
        runner.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _arm_watchdog_quietly(after_s: float, code: int) -> None:
    timer = threading.Timer(after_s, os._exit, (code,))
    timer.daemon = True
    timer.start()
