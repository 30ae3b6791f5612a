"""Being woken when a file in a folder changes, instead of looking ten times a second. Linux only; elsewhere there is no
descriptor, and the reader goes by its clock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import sys
from collections.abc import Iterable
from pathlib import Path

_MODIFY, _ATTRIB, _MOVED_TO, _CREATE = 0x2, 0x4, 0x80, 0x100
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC
FOLDERS_MAX = 512


class FolderWatch:
    """`fd` is readable after a change in one of the folders, until `clear`. None where the system cannot do it."""

    def __init__(self) -> None:
        self.fd: int | None = None
        self._watched: set[Path] = set()
        if not sys.platform.startswith("linux"):
            return
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            fd = int(self._libc.inotify_init1(_FLAGS))
        except (OSError, AttributeError):
            return
        if fd >= 0:
            self.fd = fd
            self._waiting = select.poll()
            self._waiting.register(fd, select.POLLIN)

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch these folders too; those that do not exist yet are tried again with the next call."""
        if self.fd is None:
            return
        for folder in folders:
            if folder in self._watched or len(self._watched) >= FOLDERS_MAX:
                continue
            mask = _MODIFY | _ATTRIB | _MOVED_TO | _CREATE
            if self._libc.inotify_add_watch(self.fd, os.fsencode(folder), mask) >= 0:
                self._watched.add(folder)

    def clear(self) -> None:
        if self.fd is not None and self._waiting.poll(0):
            with contextlib.suppress(BlockingIOError):
                while os.read(self.fd, 65536):
                    pass

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None
        self._watched.clear()
