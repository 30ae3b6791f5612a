"""The files of one RDMA port, kept open: a second reading of a port costs one system call a counter and nothing else.

A file of sysfs gives its present content whenever it is read from its start. It is closed when the device goes (its driver
was unloaded): reads then fail with ENODEV, and the tree is to be listed anew. A process may have only so many files open;
past `Descriptors.left` a file is opened for each reading.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import operator
import os
import resource
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from goodput_collector.application.rdma_tree import FOLDERS, Port
from goodput_collector.domain.rdma_addresses import address
from goodput_collector.domain.rdma_counters import DEVICE_COUNTERS, Width, describe, is_reported

GIDS_MAX, PKEYS_MAX = 64, 16
DEVICE_FOLDER = "device"
HW_FOLDER = "hw_counters"
STATE_FILES = ("state", "phys_state", "rate", "lid")
_COUNTER_BYTES, _TEXT_BYTES = 32, 256
_COUNTER_SIZES, _TEXT_SIZES, _STARTS = itertools.repeat(_COUNTER_BYTES), itertools.repeat(_TEXT_BYTES), itertools.repeat(0)
_SHARE = 2  # of the files that this process may have open, a half at most
_GONE = (errno.ENODEV, errno.ENXIO)
_NONE_LEFT = (errno.EMFILE, errno.ENFILE)  # this process, or the host, has no more


class _Kept(NamedTuple):
    name: str
    path: str
    fd: int  # -1: opened for each reading


class Counted(NamedTuple):
    """Counter -> value, under mlx5's names. `moved` are those whose values are others than in `since`, in order; with None
    nobody has compared."""

    values: dict[str, int]
    since: dict[str, int] | None = None
    moved: Sequence[str] = ()


class _Folder:
    """A folder of counters, all files open. What reads as it did before is not looked at: a still folder gives the very
    mapping that it gave before, which is therefore never changed."""

    def __init__(self, kept: list[_Kept]) -> None:
        self._names = [each.name for each in kept]
        self._fds = [each.fd for each in kept]
        self._raw: list[bytes] = []
        self._counted = Counted({})

    def read(self) -> Counted:
        """Raises OSError, ValueError."""
        before, since = self._raw, self._counted.values
        raw = list(map(os.pread, self._fds, _COUNTER_SIZES, _STARTS))
        if raw == before:
            return Counted(since, since)
        values = since.copy()
        moved = []
        differ = map(operator.ne, raw, before) if before else itertools.repeat(True)
        for name, now in itertools.compress(zip(self._names, raw, strict=True), differ):
            values[name] = _number(now)
            moved.append(name)
        self._raw, self._counted = raw, Counted(values, since if since else None, moved)
        return self._counted


class Stale(Exception):
    """The device behind an open file is no more: list the tree anew."""


class Descriptors:
    """How many more files may be kept open."""

    def __init__(self, limit: int | None = None) -> None:
        self.left = limit if limit is not None else resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE

    def open(self, path: str) -> int:
        """-1 where none is left. Raises OSError for what says something of the file."""
        if self.left <= 0:
            return -1
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NONE_LEFT:
                return -1
            raise
        self.left -= 1
        return fd

    def close(self, fd: int) -> None:
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)
            self.left += 1


class PortFiles:
    """`folders` that have counters, by name; `first` of its device's ports carries what belongs to the device. Hardware
    counters that are all `told_elsewhere` are left to whoever tells them."""

    def __init__(self, port: Port, descriptors: Descriptors, *, first: bool, told_elsewhere: Collection[str] = ()) -> None:
        self.port = port
        self._descriptors = descriptors
        self._path = str(port.path)
        self._state: list[_Kept] = []
        self._state_raw: list[bytes] | None = None
        self._state_found: dict[str, str] | None = None
        self._counters: dict[str, list[_Kept]] = {}
        self._fast: dict[str, _Folder] = {}  # the same where every file is open
        self.widths: dict[str, Width] = {}
        self.lifespan_s = 0.0
        for name in STATE_FILES:
            self._keep(self._state, name, f"{self._path}/{name}")
        self._state_fds = [each.fd for each in self._state]
        for folder in FOLDERS:
            if folder == HW_FOLDER and self._all_of(folder, told_elsewhere):
                continue
            self._keep_counters(folder, f"{self._path}/{folder}")
        if first:
            self._keep_counters(DEVICE_FOLDER, f"{port.device}/hw_counters", only=DEVICE_COUNTERS)
        self.refresh_lifespan()

    @property
    def folders(self) -> tuple[str, ...]:
        return tuple(self._counters)

    def state(self) -> dict[str, str] | None:
        """state, phys_state, rate and lid as the files have them; None when not even the state is. The very mapping of the
        last time where nothing has changed. Raises Stale."""
        try:
            raw = list(map(os.pread, self._state_fds, _TEXT_SIZES, _STARTS))
        except OSError:
            raw = [self._text(kept) for kept in self._state]
        if raw != self._state_raw:
            texts = (each.decode("utf-8", "replace").strip() for each in raw)
            found = {kept.name: text for kept, text in zip(self._state, texts, strict=True) if text}
            self._state_raw, self._state_found = raw, found if "state" in found else None
        return self._state_found

    def counters(self, folder: str) -> Counted:
        """What cannot be read, or is no number, is left out. Raises Stale."""
        if (fast := self._fast.get(folder)) is not None:
            try:
                return fast.read()
            except (ValueError, OSError):
                pass  # some of them: with care, then
        values = {}
        pread = os.pread
        for name, path, fd in self._counters[folder]:
            try:
                values[name] = _number(pread(fd, _COUNTER_BYTES, 0) if fd >= 0 else _once(path, _COUNTER_BYTES))
            except ValueError:
                continue
            except OSError as error:
                if error.errno in _GONE:
                    raise Stale from None
        return Counted(values)

    def addresses(self) -> tuple[dict[tuple[str, int], str], set[tuple[str, int]]]:
        """((what, index) -> address, for those that there are; those of which it cannot be told)."""
        found: dict[tuple[str, int], str] = {}
        unknown: set[tuple[str, int]] = set()
        for what, folder, count in (("gid", "gids", GIDS_MAX), ("pkey", "pkeys", PKEYS_MAX)):
            for index in range(count):
                try:
                    text = _once(f"{self._path}/{folder}/{index}", _TEXT_BYTES).decode("ascii", "replace")
                except FileNotFoundError:
                    if index == 0:  # there is no table: the device is about to go
                        unknown |= {(what, each) for each in range(count)}
                    break  # the table ends here
                except OSError as error:
                    if error.errno != errno.EINVAL:  # which the kernel says of an empty place
                        unknown.add((what, index))
                    continue
                if told := address(what, text):
                    found[what, index] = told
        return found, unknown

    def refresh_lifespan(self) -> None:
        try:
            self.lifespan_s = int(_once(f"{self._path}/hw_counters/lifespan", _COUNTER_BYTES)) / 1000
        except (OSError, ValueError):
            self.lifespan_s = 0.0

    def close(self) -> None:
        for kept in (self._state, *self._counters.values()):
            for _, _, fd in kept:
                self._descriptors.close(fd)
        self._state, self._state_fds, self._counters, self._fast = [], [], {}, {}

    def _text(self, kept: _Kept) -> bytes:
        try:
            return os.pread(kept.fd, _TEXT_BYTES, 0) if kept.fd >= 0 else _once(kept.path, _TEXT_BYTES)
        except OSError as error:
            if error.errno in _GONE:
                raise Stale from None
            return b""

    def _all_of(self, folder: str, told: Collection[str]) -> bool:
        names = {describe(name).name for name in _listed(f"{self._path}/{folder}") if is_reported(name)}
        return bool(told) and names <= set(told)

    def _keep(self, kept: list[_Kept], name: str, path: str) -> None:
        with contextlib.suppress(OSError):
            kept.append(_Kept(name, path, self._descriptors.open(path)))

    def _keep_counters(self, folder: str, path: str, *, only: frozenset[str] | None = None) -> None:
        kept: list[_Kept] = []
        for name in _listed(path):
            if is_reported(name) and (only is None or name in only):
                counter = describe(name)
                self.widths[counter.name] = counter.width
                self._keep(kept, counter.name, f"{path}/{name}")
        kept.sort()  # by the names that are told
        if kept:
            self._counters[folder] = kept
        if kept and all(each.fd >= 0 for each in kept) and len({each.name for each in kept}) == len(kept):
            self._fast[folder] = _Folder(kept)


def _number(raw: bytes) -> int:
    """Raises ValueError; a counter is not negative."""
    value = int(raw)
    if value < 0:
        raise ValueError(raw)
    return value


def _listed(folder: str) -> list[str]:
    try:
        return sorted(each.name for each in Path(folder).iterdir())
    except OSError:
        return []


def _once(path: str, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)
