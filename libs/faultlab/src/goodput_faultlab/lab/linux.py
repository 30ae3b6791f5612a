"""The three system calls that Python 3.11 lacks, and what is made of them: namespaces without names.

A namespace lives as long as something refers to it. The lab refers to its namespaces by open files alone, so whatever
happens to the lab - Ctrl-C, kill -9 - the kernel takes the whole network down with it, and no two labs can collide.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1


def _call(name: str, *args: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(flags: int) -> None:
    """Raises OSError, whose text names the call."""
    _call("unshare", flags)


def enter(namespace: int, kind: int = CLONE_NEWNET) -> None:
    """Move this thread into the namespace behind an open file."""
    _call("setns", namespace, kind)


def mount(source: str, target: str, kind: str, flags: int) -> None:
    _call("mount", source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None)


def unmount(target: str) -> None:
    """Lazily: what is below goes too."""
    _call("umount2", target.encode(), 2)


def die_with_parent(signal_number: int) -> None:
    _call("prctl", PR_SET_PDEATHSIG, signal_number, 0, 0, 0)


def new_network() -> int:
    """An open file that keeps a new, empty network namespace alive. The caller's own namespace is unchanged."""

    def make() -> int:
        unshare(CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    return in_thread(make)


def inside_network(namespace: int, do: Callable[[], T]) -> T:
    """Run `do` in a thread that has entered the namespace: sockets opened there belong to it."""

    def run() -> T:
        enter(namespace)
        return do()

    return in_thread(run)


def in_thread(do: Callable[[], T]) -> T:
    """Namespaces belong to threads: a thread that ends takes its change of namespace with it."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(do())
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="lab-namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
