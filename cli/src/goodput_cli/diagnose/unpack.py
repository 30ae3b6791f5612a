"""The files behind the paths that were given: folders walked, archives and packed files unpacked, all within bounds.

Archives (tar, zip, with any of the usual packers) and packed files are recognised by their first bytes and unpacked into a
folder that lives as long as the command. No name in an archive leads out of it; links and devices are left out. Archives
inside archives are opened up to a depth. What is left out at a bound is said, with the bound.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import zstandard

CHUNK_BYTES = 1 << 20
_WINDOW_BYTES_MAX = 128 << 20
_DAMAGED = (
    *(OSError, EOFError, ValueError, RuntimeError, NotImplementedError),
    *(zlib.error, lzma.LZMAError, zstandard.ZstdError, tarfile.TarError, zipfile.BadZipFile),
)
_PACKERS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".tgz", ".tbz", ".txz", ".tzst")
_TAR_MAGIC_AT, _TAR_HEAD = 257, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What is unpacked at most: in all, of one member, how many members, how deep in each other."""

    bytes_in_all: int = 2 << 30
    bytes_of_one: int = 1 << 30
    files: int = 20_000
    depth: int = 3


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to look at: a file, or a folder that is one thing (a tree of RDMA devices). `path` is where it lies, `name`
    how it is called in the output, `hint` the part of its path that may name a host. `left_out`: why it is not looked at."""

    path: Path
    name: str
    hint: str
    left_out: str = ""
    is_tree: bool = False


@dataclass(slots=True)
class Unpacker:
    """`folder` takes what is unpacked. `warnings` name what was left out; `names` maps places in `folder` to names."""

    folder: Path
    bounds: Bounds = field(default_factory=Bounds)
    warnings: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    _bytes: int = 0
    _files: int = 0
    _archives: int = 0
    _members_seen: int = 0
    _hidden: int = 0

    def items(self, paths: list[Path]) -> Iterator[Item]:
        for path in paths:
            if not path.exists():
                self.warnings.append(f"{path}: does not exist")
                yield Item(path, str(path), str(path), "does not exist")
                continue
            hint = PurePosixPath(path.name) if path.is_dir() else PurePosixPath(*path.parts[-2:])
            yield from self._walk(path, str(path), hint, 0)
        if self._hidden:
            self.warnings.append(f"{self._hidden} hidden files and links to folders are not read")

    def display(self, text: str) -> str:
        """A text with the names of things in place of where they were unpacked."""
        for place, name in sorted(self.names.items(), key=lambda each: -len(each[0])):
            text = text.replace(place, name)
        return text

    # -- folders ------------------------------------------------------------------------------------------------------

    def _walk(self, path: Path, name: str, hint: PurePosixPath, depth: int) -> Iterator[Item]:
        if is_rdma_tree(path):
            yield self._item(path, name, hint, is_tree=True)
        elif path.is_file():
            yield from self._file(path, name, hint, depth)
        else:
            yield from self._folder(path, name, hint, depth)

    def _folder(self, path: Path, name: str, hint: PurePosixPath, depth: int) -> Iterator[Item]:
        try:
            children = sorted(path.iterdir()) if path.is_dir() else []
        except OSError as error:
            self.warnings.append(f"{name}: {error.strerror or error}")
            yield Item(path, name, str(hint), "cannot be read")
            return
        if not children:
            self.warnings.append(f"{name}: " + ("is an empty folder" if path.is_dir() else "is neither a file nor a folder"))
        for child in children:
            if child.name.startswith(".") or (child.is_symlink() and child.is_dir()):
                self._hidden += 1
                continue
            yield from self._walk(child, f"{name.rstrip('/')}/{child.name}", hint / child.name, depth)

    def _item(self, path: Path, name: str, hint: PurePosixPath, *, is_tree: bool = False) -> Item:
        self._files += 1
        left_out = "" if self._files <= self.bounds.files else f"more than {self.bounds.files} files"
        if self._files == self.bounds.files + 1:
            self.warnings.append(f"more than {self.bounds.files} files: the rest is not read")
        return Item(path, name, str(hint), left_out, is_tree)

    # -- packed files -------------------------------------------------------------------------------------------------

    def _file(self, path: Path, name: str, hint: PurePosixPath, depth: int) -> Iterator[Item]:
        try:
            with path.open("rb") as raw:
                head = raw.read(_TAR_HEAD)
        except OSError as error:
            self.warnings.append(f"{name}: {error.strerror or error}")
            yield Item(path, name, str(hint), "cannot be read")
            return
        packer = next((packer for begin, packer in _PACKERS.items() if head.startswith(begin)), "")
        is_archive = bool(packer) or is_tar(head) or head.startswith((b"PK\x03\x04", b"PK\x05\x06"))
        if not is_archive:
            yield self._item(path, name, hint)
        elif depth >= self.bounds.depth:
            self.warnings.append(f"{name}: is packed more than {self.bounds.depth} times over: not opened")
            yield Item(path, name, str(hint), f"packed more than {self.bounds.depth} times over")
        elif self._archives >= self.bounds.files:
            yield Item(path, name, str(hint), f"more than {self.bounds.files} packed files")
        else:
            yield from self._unpack(path, name, hint, head, packer, depth)

    def _unpack(self, path: Path, name: str, hint: PurePosixPath, head: bytes, packer: str, depth: int) -> Iterator[Item]:
        self._archives += 1
        place = self.folder / str(self._archives)
        place.mkdir()
        found = 0
        try:
            for member, inner in self._members(path, place, head, packer, name):
                found += 1
                if not inner:  # what an archive holds is looked at below, as a folder: a tree of RDMA devices is one thing
                    self.names[str(member)] = name
                    yield from self._file(member, name, hint, depth + 1)
        except _DAMAGED as error:
            self.warnings.append(f"{name}: stops in the middle: {getattr(error, 'strerror', None) or error}")
            if not found:
                yield Item(path, name, str(hint), "cannot be unpacked")
                return
        if (place / "members").is_dir():
            self.names[str(place / "members")] = name
            yield from self._walk(place / "members", name, hint, depth + 1)
        elif not found:
            self.warnings.append(f"{name}: is an empty archive")
            yield Item(path, name, str(hint), "an empty archive")

    def _members(self, path: Path, place: Path, head: bytes, packer: str, name: str) -> Iterator[tuple[Path, str]]:
        """(file, its name inside) of an archive's members; a packed file alone has the name ""."""
        if head.startswith(b"PK"):
            yield from self._of_zip(path, place / "members", name)
            return
        with opened(path, packer) as stream:
            peeked = stream.read(_TAR_HEAD)
        with opened(path, packer) as stream:
            if is_tar(peeked):
                yield from self._of_tar(stream, place / "members", name)
                return
            target = place / _bare(Path(name).name)
            self._copy(stream, target, name)
        modified = path.stat().st_mtime
        os.utime(target, (modified, modified))
        yield target, ""

    def _of_tar(self, stream: BinaryIO, target: Path, name: str) -> Iterator[tuple[Path, str]]:
        others = 0
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK_BYTES // 64) as archive:
            for member in archive:
                inner = _safe(member.name)
                if member.isdir():
                    continue
                if not member.isreg() or inner is None:
                    others += 1
                    continue
                if not self._room(name):
                    break
                source = archive.extractfile(member)
                if source is not None and (file := self._place(target, inner)) is not None:
                    self._copy(cast("BinaryIO", source), file, f"{name}/{inner}")
                    os.utime(file, (_time(member.mtime), _time(member.mtime)))
                    yield file, inner
        if others:
            self.warnings.append(f"{name}: {others} members that are no plain files are left out")

    def _of_zip(self, path: Path, target: Path, name: str) -> Iterator[tuple[Path, str]]:
        others = 0
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                inner = _safe(member.filename)
                if member.is_dir():
                    continue
                if inner is None or member.flag_bits & 1:
                    others += 1
                    continue
                if not self._room(name):
                    break
                if (file := self._place(target, inner)) is not None:
                    with archive.open(member) as source:
                        self._copy(cast("BinaryIO", source), file, f"{name}/{inner}")
                    at = _zip_time(member)
                    os.utime(file, (at, at))
                    yield file, inner
        if others:
            self.warnings.append(f"{name}: {others} members with a password or a foreign path are left out")

    def _room(self, name: str) -> bool:
        if self._members_seen < self.bounds.files and self._bytes < self.bounds.bytes_in_all:
            self._members_seen += 1
            return True
        many = self._members_seen >= self.bounds.files
        why = f"{self.bounds.files} files" if many else f"{self.bounds.bytes_in_all >> 20} MiB unpacked"
        self.warnings.append(f"{name}: more than {why}: the rest is not read")
        return False

    def _place(self, target: Path, inner: str) -> Path | None:
        file = target / inner
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError:  # a file and a folder of one name
            return None
        return None if file.exists() else file

    def _copy(self, source: BinaryIO, target: Path, name: str) -> None:
        most = left = min(self.bounds.bytes_of_one, self.bounds.bytes_in_all - self._bytes)
        with target.open("wb") as file:
            while left > 0 and (chunk := source.read(min(CHUNK_BYTES, left))):
                file.write(chunk)
                left -= len(chunk)
                self._bytes += len(chunk)
            if left <= 0 and source.read(1):
                self.warnings.append(f"{name}: only its first {most} bytes are unpacked")


def is_rdma_tree(path: Path) -> bool:
    """A folder of devices (`/sys/class/infiniband` or a copy)."""
    try:
        return path.is_dir() and any((child / "ports").is_dir() for child in path.iterdir())
    except OSError:
        return False


def is_tar(head: bytes) -> bool:
    return head[_TAR_MAGIC_AT : _TAR_MAGIC_AT + 5] == b"ustar"


def opened(path: Path, packer: str) -> BinaryIO:
    """The bytes inside a packed file, as a stream."""
    if packer == "gzip":
        return cast("BinaryIO", gzip.open(path))
    if packer == "bzip2":
        return cast("BinaryIO", bz2.open(path))
    if packer == "xz":
        return cast("BinaryIO", lzma.LZMAFile(path))
    if packer == "zstd":
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX)
        return cast("BinaryIO", unpacker.stream_reader(path.open("rb"), read_across_frames=True, closefd=True))
    return path.open("rb")


def _safe(name: str) -> str | None:
    """A member's path inside its archive without anything that leads out of it; None where nothing is left."""
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("/", ".", "")]
    if not parts or ".." in parts or len(parts) > 40 or any("\0" in part or len(part) > 200 for part in parts):
        return None
    return "/".join(parts)


def _bare(name: str) -> str:
    """The name of what a packed file holds: without the packer's ending."""
    suffix = next((each for each in _SUFFIXES if name.endswith(each) and name != each), "")
    return name.removesuffix(suffix) or "unpacked"


def _time(seconds: float) -> float:
    return min(max(float(seconds), 0.0), 4e9)


def _zip_time(member: zipfile.ZipInfo) -> float:
    try:
        return _time(datetime(*member.date_time).timestamp())  # a zip knows no zone
    except (ValueError, OverflowError):
        return 0.0
