"""Starts ranks by forking a process that has torch loaded already: one import instead of eight, on two cores a matter of
twenty seconds.

    python -m goodput_faultlab.lab.forkserver SOCKET_FD

Speaks JSON lines over an inherited socket. In: one `StartRank` a line. Out: `Started` with the pid, and `Ended` with the
wait status of each rank as it ends. Ends, and takes its ranks with it, when the socket is closed. A rank is a child in
its host's network namespace, with an environment and a log of its own; only its memory image is borrowed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from pathlib import Path
from typing import NoReturn

import msgspec

from goodput_faultlab.lab import linux, trainer


class StartRank(msgspec.Struct, frozen=True, kw_only=True):
    """`network` is the number of an inherited file; `environment` is added to the fork server's own."""

    network: int
    environment: dict[str, str]
    log: str
    spec: trainer.TrainerSpec


class Started(msgspec.Struct, frozen=True, kw_only=True, tag="started"):
    rank: int
    pid: int


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag="ended"):
    pid: int
    status: int  # as `os.waitstatus_to_exitcode` gives it: negative is a signal


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    threads: int


Report = Started | Ended | Ready


def serve(control: socket.socket) -> StartRank | None:
    """In the server: loops until the socket is closed, then None. In a forked child: what it is to do."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)
    _say(control, Ready(threads=sum(1 for _ in Path("/proc/self/task").iterdir())))
    pending = b""
    while True:
        for key, _ in selector.select():
            if key.fileobj == wake_read:
                os.read(wake_read, 4096)
                _reap(control)
                continue
            received = control.recv(1 << 16)
            if not received:
                return None
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                request = msgspec.json.decode(line, type=StartRank)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    selector.close()
                    for leftover in (wake_read, wake_write, control.detach()):
                        os.close(leftover)
                    return request
                _say(control, Started(rank=request.spec.rank, pid=pid))


def become(request: StartRank) -> None:
    """Turn a forked child into the rank."""
    linux.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.enter(request.network)
    os.setpgid(0, 0)
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.update(request.environment)


def run(spec: trainer.TrainerSpec) -> NoReturn:
    """The trainer as the main program of a process: exception hook, exit handlers, exit status. Only the interpreter's own
    teardown is left out: with torch loaded it takes seconds of a core, for each rank."""
    status = 0
    try:
        trainer.main(spec)
    except BaseException as error:  # noqa: BLE001 - what the interpreter does at the top
        sys.excepthook(type(error), error, error.__traceback__)
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _reap(control: socket.socket) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            _say(control, Ended(pid=pid, status=os.waitstatus_to_exitcode(status)))


def _say(control: socket.socket, report: Report) -> None:
    with contextlib.suppress(BrokenPipeError):
        control.sendall(msgspec.json.encode(report) + b"\n")


def main() -> None:
    linux.die_with_parent(signal.SIGKILL)
    control = socket.socket(fileno=int(sys.argv[1]))
    import torch.distributed  # noqa: F401

    import goodput_agent  # noqa: F401 - loaded here so that no rank needs to
    import goodput_common.bus.jetstream  # noqa: F401

    gc.freeze()  # what is loaded now stays shared: the ranks' collectors leave it alone
    request = serve(control)
    if request is not None:
        become(request)
        run(request.spec)


if __name__ == "__main__":
    main()
