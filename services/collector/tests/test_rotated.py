"""Rotated logs that were packed: unpacked by what they are, not by their name; what cannot be is left out and is a gap."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from goodput_collector.adapters.files import Mark, Tail
from goodput_collector.domain.recognise import Kind, recognise

LZ4 = b"\x04\x22\x4d\x18"


def zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def frames(data: bytes) -> bytes:
    half = len(data) // 2
    return zstd(data[:half]) + zstd(data[half:])


def lines(first: int, last: int) -> bytes:
    return b"".join(b"line %d of a log that goes on and on\n" % number for number in range(first, last))


def left(tail: Tail) -> bytes:
    got = []
    while more := tail.read(1 << 16):
        got += more
    return b"".join(line + b"\n" for line in got)


def read_before(log: Path) -> Mark:
    log.write_bytes(lines(0, 10))
    tail = Tail(log)
    assert left(tail) == lines(0, 10)
    mark = tail.mark()
    tail.close()
    assert mark is not None
    return mark


PACKED = ["gzip", "xz", "bzip2", "zstd", "zstd frames", "plain"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd, frames, bytes], ids=PACKED)
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".lz4"])
def test_a_rotated_log_is_unpacked_by_what_it_is(tmp_path: Path, pack: Callable[[bytes], bytes], suffix: str) -> None:
    log = tmp_path / "kern.log"
    mark = read_before(log)
    (tmp_path / f"kern.log.2{suffix}").write_bytes(pack(lines(0, 5000)))
    os.utime(tmp_path / f"kern.log.2{suffix}", (100, 100))
    (tmp_path / f"kern.log.1{suffix}").write_bytes(pack(lines(5000, 5010)))
    log.write_bytes(lines(5010, 5020))
    tail = Tail(log, mark=mark)
    assert left(tail) == lines(10, 5020)
    assert tail.gaps == 0


def test_an_empty_rotated_log_hides_none_of_those_after_it(tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    mark = read_before(log)
    for name, data, age_s in (
        ("kern.log.4", lines(0, 20), 100),
        ("kern.log.3", b"", 200),
        ("kern.log.2", lines(20, 30), 300),
        ("kern.log.1", lines(30, 40), 400),
    ):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (age_s, age_s))
    log.write_bytes(lines(40, 50))
    tail = Tail(log, mark=mark)
    assert left(tail) == lines(10, 50)
    assert tail.gaps == 0


@pytest.mark.parametrize(
    "content",
    [LZ4 + os.urandom(100), zstd(lines(20, 3000))[:-40], gzip.compress(lines(20, 3000))[:-400], b"\x28\xb5\x2f\xfd\xff"],
    ids=["lz4", "zstd cut", "gzip cut", "zstd damaged"],
)
def test_one_that_cannot_be_unpacked_is_a_gap_and_gives_no_line_that_nobody_wrote(tmp_path: Path, content: bytes) -> None:
    log = tmp_path / "kern.log"
    mark = read_before(log)
    for name, data, age_s in (
        ("kern.log.3", lines(0, 20), 100),
        ("kern.log.2.lz4", content, 200),
        ("kern.log.1", lines(3000, 3010), 300),
    ):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (age_s, age_s))
    log.write_bytes(lines(3010, 3020))
    tail = Tail(log, mark=mark)
    got = left(tail)
    assert got.startswith(lines(10, 20))
    assert got.endswith(lines(3000, 3020))
    written = lines(0, 3020).splitlines()
    strange = set(got.splitlines()) - set(written)
    assert len(strange) <= 1  # the half line with which it breaks off
    assert all(any(line.startswith(half) for line in written) for half in strange)
    assert tail.gaps == 1


@pytest.mark.parametrize(
    ("pack", "name"),
    [(lzma.compress, "xz"), (bz2.compress, "bzip2"), (zstd, "zstd"), (LZ4.join, "lz4")],
    ids=["xz", "bzip2", "zstd", "lz4"],
)
def test_a_packed_file_that_is_to_be_diagnosed_says_how_it_is_packed(pack: Callable[[bytes], bytes], name: str) -> None:
    head = LZ4 + b"x" * 20 if name == "lz4" else pack(lines(0, 100))
    assert recognise(head) == (Kind.UNKNOWN, f"packed with {name}: unpack it first")


def test_a_gzip_file_damaged_in_its_middle_is_a_warning_to_whoever_diagnoses(tmp_path: Path) -> None:
    from goodput_collector.application.read_files import read_path

    noise = os.urandom(300_000).hex().encode()
    whole = bytearray(gzip.compress(b"Feb  7 06:18:01 vm-3 kernel: mlx5_core 0000:01:00.0 ib0: Link down\n" + noise + b"\n"))
    for at in range(20, 2000):
        whole[at] ^= 0xFF
    (tmp_path / "start.gz").write_bytes(whole)
    whole = bytearray(gzip.compress(b"Feb  7 06:18:01 vm-3 kernel: mlx5_core 0000:01:00.0 ib0: Link down\n" + noise + b"\n"))
    for at in range(200_000, 202_000):
        whole[at] ^= 0xFF
    (tmp_path / "middle.gz").write_bytes(whole)
    with pytest.raises(zlib.error):
        gzip.decompress((tmp_path / "start.gz").read_bytes())
    warnings = "\n".join(read_path(tmp_path).warnings)
    assert "start.gz" in warnings
    assert "middle.gz" in warnings
