"""A small file of somebody else's: whatever stands under its name, it is read at once, within bounds, or refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from goodput_collector.application.small_file import read_small, small_text
from goodput_collector.wiring.given import read_boot_id


def test_it_is_read_whole_up_to_its_bound(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b" 4: ACTIVE\n\xff")
    assert read_small(tmp_path / "a", bytes_max=12) == b" 4: ACTIVE\n\xff"
    assert small_text(tmp_path / "a") == "4: ACTIVE\n\ufffd"
    with pytest.raises(OSError, match="larger than 11 bytes"):
        read_small(tmp_path / "a", bytes_max=11)


def test_what_is_no_file_or_never_ends_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(2 << 30)
    for name in ("pipe", "folder", "endless", "circle", "sparse", "absent"):
        with pytest.raises(OSError) as raised:
            read_small(tmp_path / name)
        assert raised.value.errno in (errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.ENOENT, errno.EISDIR)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_boot_id_that_says_nothing_does_not_keep_the_collector_from_starting(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sys" / "kernel" / "random" / "boot_id"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert read_boot_id(tmp_path)
